"""Quantizable layers of a model, matrix products and convolutions with a constant weight."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from ekiden.frontend.onnx.load import topological_order
from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Layer", "find_layers"]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Quantizable layer: its node, its weight as stored in the model, and the meaning of
    its axes.
    """

    node: onnx.NodeProto
    weight: Array
    channel_axis: int
    """The weight's axis that becomes one of the result."""
    reduction_axis: int
    """The one that is summed over: the first of them for a convolution."""
    bias: Array | None

    @property
    def name(self) -> str:
        """Return the layer's display name."""
        return str(self.node.name or self.node.output[0])

    @property
    def data_name(self) -> str:
        """Return the name of its data tensor."""
        return str(self.node.input[0])

    @property
    def result_name(self) -> str:
        """Return the name of its result."""
        return str(self.node.output[0])


def collect_constants(model: onnx.ModelProto, label: str) -> dict[str, onnx.TensorProto]:
    """Return the constants of the main graph by name: initializers, Constant nodes, and their
    copies by Identity, which exporters write for tied weights.
    """
    known = {each.name: each for each in model.graph.initializer}
    for node in topological_order(model.graph, label):
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            known[node.output[0]] = node.attribute[0].t
        elif node.op_type == "Identity" and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]]
    return known


def find_layers(model: onnx.ModelProto, label: str) -> list[Layer]:
    """Return the quantizable layers of the main graph, in order. Branches and loops are
    left alone.
    """
    constant_tensors = collect_constants(model, label)
    layers = []
    for node in topological_order(model.graph, label):
        axes = _weight_axes(node)
        if axes is None or len(node.input) < 2 or node.input[1] not in constant_tensors:
            continue
        weight = constant_tensors[node.input[1]]
        if weight.data_type != onnx.TensorProto.FLOAT:
            continue
        array = numpy_helper.to_array(weight)
        if node.op_type != "Conv" and array.ndim != 2:
            continue
        bias = node.input[2] if len(node.input) > 2 else ""
        # A computed bias has no range known in advance and cannot be corrected.
        if bias and bias not in constant_tensors:
            continue
        bias_array = numpy_helper.to_array(constant_tensors[bias]) if bias else None
        layers.append(Layer(node, array, *axes, bias_array))
    return layers


def node_attributes(node: onnx.NodeProto) -> dict[str, object]:
    """Return the attributes of a node by name."""
    return {attr.name: onnx.helper.get_attribute_value(attr) for attr in node.attribute}


def _weight_axes(node: onnx.NodeProto) -> tuple[int, int] | None:
    """Return the weight's output-channel axis and reduction axis; None if the node is no
    quantizable product.
    """
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Conv":
        return 0, 1
    if node.op_type == "MatMul":
        return 1, 0
    if node.op_type != "Gemm":
        return None
    attrs = node_attributes(node)
    # Transposed data or alpha and beta other than 1 would have to be folded into scales first.
    plain = not attrs.get("transA", 0) and attrs.get("alpha", 1.0) == attrs.get("beta", 1.0) == 1.0
    if not plain:
        return None
    return (0, 1) if attrs.get("transB", 0) else (1, 0)
