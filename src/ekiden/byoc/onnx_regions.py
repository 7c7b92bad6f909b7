"""Engines that take ONNX models: which operators of Relay go there, a row each, and regions as such
models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ekiden.byoc.regions import (
    REGION_DTYPE,
    Region,
    Row,
    patterns_of,
    pool_padding,
    results_of,
    tensor_of,
)
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Constant, Function
from ekiden.relay.transform.external.merge_composite import PatternEntry
from ekiden.runtime.devices.engines import load_region
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

OPSET, IR_VERSION = 17, 8

Attributes = Mapping[str, Any]


def _nothing(call: Call) -> Attributes | None:
    return {}


def _dense(call: Call) -> Attributes | None:
    """Return Gemm's attributes; None for batched operands, which Gemm does not take."""
    ranks = [len(tensor_of(arg).shape) for arg in call.args]
    return {"transB": 1} if ranks == [2, 2] else None


def _bias(call: Call) -> Attributes | None:
    """Return the attributes of an addition along the last axis; None for another axis, which needs
    a reshaped bias.
    """
    axis: int = getattr(call.attrs, "axis")  # noqa: B009 - of BiasAddAttrs
    return {} if axis in (-1, len(tensor_of(call.args[0]).shape) - 1) else None


def _softmax(call: Call) -> Attributes | None:
    return {"axis": getattr(call.attrs, "axis")}  # noqa: B009 - of SoftmaxAttrs


def _conv2d(call: Call) -> Attributes | None:
    attrs: Any = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if layouts != ("NCHW", "OIHW", "NCHW"):
        return None
    return _window(attrs) | {"group": attrs.groups}


def _pool(call: Call) -> Attributes | None:
    attrs: Any = call.attrs
    padding = pool_padding(call) if attrs.layout == "NCHW" else None
    if padding is None:
        return None
    return _window(attrs) | {"kernel_shape": list(attrs.pool_size), "pads": padding}


def _window(attrs: Any) -> dict[str, Any]:  # noqa: ANN401 - attributes of several operators
    return {
        "strides": list(attrs.strides),
        "pads": list(attrs.padding),
        "dilations": list(attrs.dilation),
    }


OPERATOR_TABLE: dict[str, Row[str, Attributes]] = {
    "nn.dense": Row("Gemm", 2, _dense),
    "nn.bias_add": Row("Add", 2, _bias),
    "nn.conv2d": Row("Conv", 2, _conv2d),
    "nn.max_pool2d": Row("MaxPool", 1, _pool),
    "nn.softmax": Row("Softmax", 1, _softmax),
    "nn.relu": Row("Relu", 1, _nothing),
    "add": Row("Add", 2, _nothing),
    "subtract": Row("Sub", 2, _nothing),
    "multiply": Row("Mul", 2, _nothing),
    "divide": Row("Div", 2, _nothing),
    "tanh": Row("Tanh", 1, _nothing),
    "sigmoid": Row("Sigmoid", 1, _nothing),
    "exp": Row("Exp", 1, _nothing),
    "sqrt": Row("Sqrt", 1, _nothing),
}
"""By the name in Relay."""


@dataclass(slots=True)
class OnnxEngine:
    """Backend that runs regions as ONNX models in an engine of `ekiden.runtime.devices.engines`."""

    name: str

    def patterns(self) -> Sequence[PatternEntry]:
        """Return a pattern for each operator of the table."""
        return patterns_of(self.name, OPERATOR_TABLE)

    def compile(self, function: Function) -> bytes:
        """Serialize a region as an ONNX model. Raises CompileError for an operator outside the
        table.
        """
        region = _Region()
        inputs = [_info(region.bind(param), param.checked_type) for param in function.params]
        region.convert(function.body)
        outputs = results_of(function.body)
        infos = [_info(region.result(output), output.checked_type) for output in outputs]
        graph = helper.make_graph(
            region.nodes, str(function.attr("global_symbol")), inputs, infos, region.constants
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        # Deterministic serialization: equal regions must give equal bytes.
        code: bytes = model.SerializeToString(deterministic=True)
        return code

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        """Load the region in the runtime, without the compiler."""
        return load_region(self.name, symbol, code)


def _info(name: str, kind: Type) -> ValueInfoProto:
    """Return the ValueInfo of an input or output; symbolic dimensions are left open."""
    assert isinstance(kind, TensorType) and kind.dtype == REGION_DTYPE, "what the patterns take"
    sizes = [dim.value if isinstance(dim, IntImm) else None for dim in kind.shape]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)


class _Region(Region[str]):
    """Builder of an ONNX model from a region: nodes, initializers, and the names of values."""

    engine = "ONNX"

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.count = 0

    def bind(self, expr: RelayExpr) -> str:
        """Name a parameter."""
        self.values[expr] = self._name()
        return self.values[expr]

    def constant(self, expr: Constant) -> str:
        """Add an initializer."""
        name = self._name()
        self.constants.append(numpy_helper.from_array(np.asarray(expr.data), name))
        return name

    def operator(self, name: str, call: Call, inputs: Sequence[str]) -> str:
        """Append a node."""
        row = OPERATOR_TABLE.get(name)
        attributes = None if row is None else row.attributes(call)
        if row is None or attributes is None:
            raise CompileError(f"'{name}' of this form is not in ONNX")
        result = self._name()
        self.nodes.append(helper.make_node(row.op, inputs, [result], **attributes))
        return result

    def _name(self) -> str:
        """Return an unused value name."""
        self.count += 1
        return f"v{self.count}"

    def result(self, expr: RelayExpr) -> str:
        """Return a unique graph output name for a result."""
        at = f"r{len(self.nodes)}"
        self.nodes.append(helper.make_node("Identity", [self.values[expr]], [at]))
        return at
