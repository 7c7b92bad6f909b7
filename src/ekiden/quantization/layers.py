"""The layers of a model that can be quantised: products with a constant weight."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from ekiden.frontend.onnx.load import sorted_nodes
from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["Layer", "find_layers"]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A product: its node, its weight as it stands in the model, and where the axes lie."""

    node: onnx.NodeProto
    weight: Array
    channel_axis: int
    """The weight's axis that becomes one of the result."""
    sum_axis: int
    """The one that is summed over: the first of them for a convolution."""
    bias: Array | None

    @property
    def name(self) -> str:
        """As users know it."""
        return str(self.node.name or self.node.output[0])

    @property
    def data(self) -> str:
        """The tensor that it multiplies."""
        return str(self.node.input[0])

    @property
    def result(self) -> str:
        """The tensor that it gives."""
        return str(self.node.output[0])


def constants_of(model: onnx.ModelProto, label: str) -> dict[str, onnx.TensorProto]:
    """Return the constants of the main graph by every name that they have: initializers, nodes
    Constant, and what Identity makes of these, as exporters write equal or tied weights once."""
    known = {each.name: each for each in model.graph.initializer}
    for node in sorted_nodes(model.graph, label):
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            known[node.output[0]] = node.attribute[0].t
        elif node.op_type == "Identity" and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]]
    return known


def find_layers(model: onnx.ModelProto, label: str) -> list[Layer]:
    """The layers of the main graph, in order. What stands in branches and loops is left alone."""
    known = constants_of(model, label)
    found = []
    for node in sorted_nodes(model.graph, label):
        axes = _axes(node)
        if axes is None or len(node.input) < 2 or node.input[1] not in known:
            continue
        weight = known[node.input[1]]
        if weight.data_type != onnx.TensorProto.FLOAT:
            continue
        array = numpy_helper.to_array(weight)
        if node.op_type != "Conv" and array.ndim != 2:
            continue
        bias = node.input[2] if len(node.input) > 2 else ""
        if bias and bias not in known:
            continue
        made = numpy_helper.to_array(known[bias]) if bias else None
        found.append(Layer(node, array, *axes, made))
    return found


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    """The attributes of a node by name."""
    return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}


def _axes(node: onnx.NodeProto) -> tuple[int, int] | None:
    """The channel's axis and the summed one of the weight; None for what is no such product."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Conv":
        return 0, 1
    if node.op_type == "MatMul":
        return 1, 0
    if node.op_type != "Gemm":
        return None
    given = attributes(node)
    plain = not given.get("transA", 0) and given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0
    if not plain:
        return None
    return (0, 1) if given.get("transB", 0) else (1, 0)
