"""Q/DQ rewriting of an ONNX model according to a plan: QuantizeLinear and DequantizeLinear around
products, which ONNX Runtime and the importer fuse to integer products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from ekiden.frontend.onnx.load import referenced_names, subgraph_attributes, topological_order
from ekiden.ir.name_uniquer import NameUniquer
from ekiden.ir.op import Array
from ekiden.quantization.calibrate import TensorStats
from ekiden.quantization.plan import QuantPlan, Recipe
from ekiden.quantization.quantizable_layers import Layer
from ekiden.quantization.range_calibration import RANGE_METHODS, scale_and_zero_point
from ekiden.quantization.weight_quantization import (
    QuantizedWeight,
    awq_factor,
    bias_correction,
    quantize_int4_groups,
    quantize_weight,
)
from ekiden.runtime.errors import InputError

__all__ = ["add_quantized_copies", "apply_smoothing", "insert_quantization", "upgrade_opset"]

PER_CHANNEL_OPSET, BLOCKED_OPSET = 13, 21
"""The first with a scale for each channel, and the first with blocks and 4 bits."""


def upgrade_opset(model: onnx.ModelProto, recipe: Recipe) -> onnx.ModelProto:
    """Return the model converted to an opset with the features that the recipe needs. Raises
    InputError if ONNX cannot convert it.
    """
    needed = BLOCKED_OPSET if bool(recipe.group) != (recipe.bits == 4) else PER_CHANNEL_OPSET
    has = next(
        (opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx")), 1
    )
    converted = onnx.ModelProto()
    converted.CopyFrom(model)
    if has < needed:
        try:
            converted = version_converter.convert_version(model, needed)
        except Exception as error:  # of ONNX, of any class
            reason = str(error).partition("\n")[0]
            raise InputError(f"quantize: opset {has} cannot become {needed}: {reason}") from None
    # Opset 21's int4 and block_size need IR version 10.
    converted.ir_version = max(converted.ir_version, 10 if needed == BLOCKED_OPSET else 7)
    return converted


def insert_quantization(
    model: onnx.ModelProto,
    layers: Sequence[Layer],
    plan: QuantPlan,
    stats: Mapping[str, TensorStats],
) -> onnx.ModelProto:
    """Return the model with QuantizeLinear and DequantizeLinear around the planned layers."""
    return _QuantizedGraphBuilder(model, layers, plan, stats).replace_layers()


def add_quantized_copies(
    model: onnx.ModelProto,
    layers: Sequence[Layer],
    plan: QuantPlan,
    stats: Mapping[str, TensorStats],
) -> tuple[onnx.ModelProto, list[tuple[str, str, str]]]:
    """Return the float model with a quantized copy of each planned layer on the same inputs, and
    the names (layer, float result, quantized result).
    """
    return _QuantizedGraphBuilder(model, layers, plan, stats).add_copies()


class _QuantizedGraphBuilder:
    """Builder of the quantized graph."""

    def __init__(
        self,
        model: onnx.ModelProto,
        layers: Sequence[Layer],
        plan: QuantPlan,
        stats: Mapping[str, TensorStats],
    ) -> None:
        self._made = onnx.ModelProto()
        self._made.CopyFrom(model)
        self._nodes = topological_order(model.graph, "model")
        self._recipe, self._seen = plan.recipe, stats
        kinds = {row.layer: row.kind for row in plan.layers}
        self._planned = {
            layer_entry.result_name: (layer_entry, kinds[layer_entry.name])
            for layer_entry in layers
            if kinds.get(layer_entry.name, "float") != "float"
        }
        self._names = NameUniquer(_collect_names(self._made.graph))
        self._data: dict[str, str] = {}
        """Tensor -> the same after rounding."""
        self._run_data: dict[str, tuple[str, str, str]] = {}
        """Tensor -> its bytes, scale and zero point, found in each run."""
        self._out: list[onnx.NodeProto] = []

    def replace_layers(self) -> onnx.ModelProto:
        """Return the model in which quantized layers replace the planned ones."""
        for node in self._nodes:
            planned = self._planned.get(node.output[0]) if node.output else None
            if planned is None:
                self._out.append(node)
            else:
                self._emit_layer(*planned, planned[0].result_name)
        return self._finalize_graph()

    def add_copies(self) -> tuple[onnx.ModelProto, list[tuple[str, str, str]]]:
        """Return the model with quantized copies after the float layers, and the names of each
        pair.
        """
        rows = []
        for node in self._nodes:
            self._out.append(node)
            planned = self._planned.get(node.output[0]) if node.output else None
            if planned is not None:
                result = self._names.fresh(f"{planned[0].result_name}_integers")
                self._emit_layer(*planned, result)
                rows.append((planned[0].name, planned[0].result_name, result))
        del self._made.graph.output[:]
        names = [name for _, *pair in rows for name in pair]
        self._made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        return self._finalize_graph(), rows

    def _finalize_graph(self) -> onnx.ModelProto:
        """Store the live nodes in the graph, dropping initializers that nothing reads."""
        graph = self._made.graph
        del graph.node[:]
        graph.node.extend(self._live_nodes())
        read = referenced_names(graph.node) | {output.name for output in graph.output}
        used = [initializer for initializer in graph.initializer if initializer.name in read]
        del graph.initializer[:]
        graph.initializer.extend(used)
        # Shapes and types recorded for removed tensors would fail the checker.
        del graph.value_info[:]
        return self._made

    def _live_nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes from which an output is reachable. Nodes that only a float weight went
        through do not, and would keep the weight in the file.
        """
        read = {output.name for output in self._made.graph.output}
        live = []
        for node in reversed(self._out):
            if read.intersection(node.output):
                read |= referenced_names([node])
                live.append(node)
        return live[::-1]

    def _add_initializer(self, base: str, value: Array) -> str:
        """Add an initializer under a unique name, and return that name."""
        name = self._names.fresh(base)
        self._made.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _emit_node(self, operator: str, inputs: Sequence[str], result: str, **attrs: object) -> str:
        """Emit a node, and return the name of its result."""
        name = self._names.fresh(result)
        self._out.append(helper.make_node(operator, inputs, [name], name=name, **attrs))
        return name

    def _emit_layer(self, layer: Layer, kind: str, result: str) -> None:
        if self._recipe.group and self._recipe.bits == 4:
            self._emit_matmul_nbits(layer, result)
            return
        integers = quantize_weight(layer, self._recipe, self._gram_matrix(layer))
        bias = layer.bias
        if self._recipe.bias_correction and layer.node.op_type != "MatMul":
            shift = bias_correction(
                layer, layer.weight, integers.dequantize(), self._seen[layer.data_name].mean
            )
            bias = -shift if bias is None else (bias - shift).astype(np.float32)
        if kind == "dynamic":
            self._emit_dynamic_matmul(layer, integers, bias, result)
            return
        data = (
            layer.data_name if kind == "weight" else self._emit_quantize_dequantize(layer.data_name)
        )
        base = layer.node.input[1]
        inputs = [data, self._emit_weight_dequantize(base, integers)]
        if bias is not None:
            inputs.append(self._emit_bias(layer, kind, integers, bias))
        node = onnx.NodeProto()
        node.CopyFrom(layer.node)
        node.input[:] = inputs
        node.output[0] = result
        if result != layer.result_name:
            node.name = ""
        self._out.append(node)

    def _gram_matrix(self, layer: Layer) -> Array | None:
        """Return the Gram matrix of a layer's input, if collected."""
        stats = self._seen.get(layer.data_name)
        return None if stats is None else stats.gram_matrices.get(layer.name)

    def _scale_and_zero_point(self, tensor: str) -> tuple[np.float32, np.uint8]:
        method = RANGE_METHODS[self._recipe.method]
        return scale_and_zero_point(*method.find_range(self._seen[tensor].histogram))

    def _emit_quantize_dequantize(self, tensor: str) -> str:
        """Emit the quantize-dequantize pair of a tensor, once for all layers that read it."""
        if tensor not in self._data:
            scale, point = self._scale_and_zero_point(tensor)
            side = [
                self._add_initializer(f"{tensor}_scale", np.asarray(scale)),
                self._add_initializer(f"{tensor}_zero_point", np.asarray(point)),
            ]
            levels = self._emit_node("QuantizeLinear", [tensor, *side], f"{tensor}_levels")
            self._data[tensor] = self._emit_node(
                "DequantizeLinear", [levels, *side], f"{tensor}_rounded"
            )
        return self._data[tensor]

    def _emit_weight_dequantize(self, base: str, integers: QuantizedWeight) -> str:
        """Emit the DequantizeLinear node of an integer weight."""
        side = [
            self._add_initializer(f"{base}_levels", integers.values),
            self._add_initializer(f"{base}_scale", integers.scale),
            # ONNX Runtime fails without, where it makes unsigned bytes of it
            self._add_initializer(
                f"{base}_zero_point", np.zeros_like(integers.scale, integers.values.dtype)
            ),
        ]
        attrs: dict[str, object] = {} if integers.axis is None else {"axis": integers.axis}
        if integers.block:
            attrs["block_size"] = integers.block
        return self._emit_node("DequantizeLinear", side, f"{base}_rounded", **attrs)

    def _emit_bias(self, layer: Layer, kind: str, integers: QuantizedWeight, bias: Array) -> str:
        """Emit a bias as int32 at the scale of the products; as floats if it overflows int32 or the
        data are not quantized.
        """
        base = layer.node.input[2] if len(layer.node.input) > 2 else f"{layer.result_name}_bias"
        if kind == "static" and bias.ndim == 1:
            scale = (self._scale_and_zero_point(layer.data_name)[0] * integers.scale).astype(
                np.float32
            )
            levels = np.round(bias.astype(np.float64) / scale)
            # The accumulator is int32: a larger bias would wrap around.
            if np.abs(levels).max(initial=0.0) < 2**31 - 1:
                side = [
                    self._add_initializer(f"{base}_levels", levels.astype(np.int32)),
                    self._add_initializer(f"{base}_scale", scale),
                ]
                attrs = {} if scale.ndim == 0 else {"axis": 0}
                return self._emit_node("DequantizeLinear", side, f"{base}_rounded", **attrs)
        return self._add_initializer(f"{base}_corrected", bias)

    def _emit_dynamic_matmul(
        self, layer: Layer, integers: QuantizedWeight, bias: Array | None, result: str
    ) -> None:
        values = integers.values
        if layer.channel_axis == 0:
            values = np.ascontiguousarray(values.T)
        base = layer.node.input[1]
        data = self._emit_dynamic_quantize(layer.data_name)
        weight = self._add_initializer(f"{base}_levels", values)
        sums = self._emit_node("MatMulInteger", [data[0], weight, data[2]], f"{result}_sums")
        floats = self._emit_node("Cast", [sums], f"{result}_floats", to=onnx.TensorProto.FLOAT)
        side = self._add_initializer(f"{base}_scale", integers.scale)
        scale = self._emit_node("Mul", [data[1], side], f"{result}_scale")
        last = ["Mul", [floats, scale]]
        if bias is not None:
            product = self._emit_node("Mul", [floats, scale], f"{result}_product")
            last = ["Add", [product, self._add_initializer(f"{result}_bias", bias)]]
        self._out.append(helper.make_node(last[0], last[1], [result], name=layer.name))

    def _emit_matmul_nbits(self, layer: Layer, result: str) -> None:
        """Emit ONNX Runtime's MatMulNBits for weights of 4 bits in groups. It may quantize its data
        per group, which is what makes it fast.
        """
        packed, scale = quantize_int4_groups(layer, self._recipe, self._gram_matrix(layer))
        base = layer.node.input[1]
        inputs = [
            layer.data_name,
            self._add_initializer(f"{base}_levels", packed),
            self._add_initializer(f"{base}_scale", scale.reshape(-1)),
        ]
        # accuracy_level 4 lets ONNX Runtime quantize the activations to int8.
        attrs = {
            "N": layer.weight.shape[layer.channel_axis],
            "K": layer.weight.shape[layer.reduction_axis],
            "bits": 4, "block_size": self._recipe.group, "accuracy_level": 4,
        }  # fmt: skip
        bias = layer.bias
        product = result if bias is None else self._names.fresh(f"{result}_product")
        self._out.append(
            helper.make_node(
                "MatMulNBits", inputs, [product], layer.name, domain="com.microsoft", **attrs
            )
        )
        if bias is not None:
            side = self._add_initializer(f"{result}_bias", bias)
            self._out.append(helper.make_node("Add", [product, side], [result]))
        domains = [opset.domain for opset in self._made.opset_import]
        if "com.microsoft" not in domains:
            self._made.opset_import.append(helper.make_opsetid("com.microsoft", 1))

    def _emit_dynamic_quantize(self, tensor: str) -> tuple[str, str, str]:
        if tensor not in self._run_data:
            names = tuple(
                self._names.fresh(f"{tensor}_{w}") for w in ("levels", "scale", "zero_point")
            )
            self._out.append(helper.make_node("DynamicQuantizeLinear", [tensor], names))
            self._run_data[tensor] = (names[0], names[1], names[2])
        return self._run_data[tensor]


def _collect_names(graph: onnx.GraphProto) -> set[str]:
    """Return every value and node name of a graph and its subgraphs."""
    names = {value_info.name for value_info in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        names.update(node.input)
        names.update(node.output)
        names.add(node.name)
        for inner in subgraph_attributes(node):
            names |= _collect_names(inner)
    return names


def smoothquant_factors(layer: Layer, stats: TensorStats, recipe: Recipe) -> Array:
    """Return the per-channel smoothing factors max |x|^alpha / max |w|^(1 - alpha) of SmoothQuant,
    or those of AWQ.
    """
    if recipe.awq:
        return awq_factor(layer, recipe, stats.gram_matrices[layer.name])
    largest = np.abs(layer.weight).max(axis=layer.channel_axis)
    alpha = recipe.smooth
    # Xiao et al., "SmoothQuant" (2023), equation 4.
    factor = stats.max_abs**alpha / np.maximum(largest, 1e-5) ** (1 - alpha)
    return np.asarray(np.maximum(factor, 1e-5), np.float32)


def apply_smoothing(
    model: onnx.ModelProto,
    layers: Sequence[Layer],
    stats: Mapping[str, TensorStats],
    recipe: Recipe,
) -> onnx.ModelProto:
    """Return an equivalent model in which each product's inputs are divided by a per-channel factor
    and its weight is multiplied by it. Convolutions and skipped layers are unchanged.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    names = _collect_names(copy.graph)
    excluded = {"", *recipe.skip}
    by_result = {
        layer_entry.result_name: layer_entry
        for layer_entry in layers
        if layer_entry.node.op_type != "Conv"
        and not excluded & {layer_entry.name, layer_entry.result_name}
    }
    nodes = []
    for node in topological_order(copy.graph, "model"):
        layer = by_result.get(node.output[0]) if node.output else None
        if layer is not None:
            factor = smoothquant_factors(layer, stats[layer.data_name], recipe)
            base = f"{layer.result_name}_smooth"
            while any(f"{base}{end}" in names for end in ("", "_data", "_weight")):
                base += "_"
            shape = [1, 1]
            shape[layer.reduction_axis] = -1
            weight = layer.weight * factor.reshape(shape)
            copy.graph.initializer.append(numpy_helper.from_array(1 / factor, base))
            copy.graph.initializer.append(numpy_helper.from_array(weight, f"{base}_weight"))
            nodes.append(helper.make_node("Mul", [layer.data_name, base], [f"{base}_data"]))
            changed = onnx.NodeProto()
            changed.CopyFrom(node)
            changed.input[0], changed.input[1] = f"{base}_data", f"{base}_weight"
            node = changed
        nodes.append(node)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    del copy.graph.value_info[:]
    return copy


def single_layer_model(layer: Layer, data: Array) -> onnx.ModelProto:
    """Return a model of one layer, with an input of the shape of `data`."""
    node = onnx.NodeProto()
    node.CopyFrom(layer.node)
    weights = [numpy_helper.from_array(layer.weight, layer.node.input[1])]
    if layer.bias is not None:
        weights.append(numpy_helper.from_array(layer.bias, layer.node.input[2]))
    port = helper.make_tensor_value_info(layer.data_name, onnx.TensorProto.FLOAT, data.shape)
    graph = helper.make_graph(
        [node], "layer", [port], [onnx.ValueInfoProto(name=layer.result_name)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
