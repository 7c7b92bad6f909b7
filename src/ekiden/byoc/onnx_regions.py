"""ONNX engines: the table of offloadable Relay operators, and the serialisation of regions as ONNX
models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ekiden.byoc.region_conversion import (
    ENGINE_DTYPE,
    OperatorMapping,
    RegionConverter,
    floor_mode_pool_padding,
    operator_patterns,
    region_results,
    tensor_type,
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


def _empty_attributes(call: Call) -> Attributes | None:
    return {}


def _gemm_attributes(call: Call) -> Attributes | None:
    """Return Gemm's attributes; None for batched operands, which Gemm does not support."""
    ranks = [len(tensor_type(arg).shape) for arg in call.args]
    return {"transB": 1} if ranks == [2, 2] else None


def _bias_add_attributes(call: Call) -> Attributes | None:
    """Return the attributes of an addition along the last axis; None for another axis, which needs
    a reshaped bias.
    """
    axis: int = getattr(call.attrs, "axis")  # noqa: B009 - of BiasAddAttrs
    return {} if axis in (-1, len(tensor_type(call.args[0]).shape) - 1) else None


def _softmax_attributes(call: Call) -> Attributes | None:
    return {"axis": getattr(call.attrs, "axis")}  # noqa: B009 - of SoftmaxAttrs


def _conv_attributes(call: Call) -> Attributes | None:
    attrs: Any = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout or attrs.data_layout)
    if layouts != ("NCHW", "OIHW", "NCHW") or _is_empty(call.args[0]):
        return None
    return _window_attributes(attrs) | {"group": attrs.groups}


def _pool_attributes(call: Call) -> Attributes | None:
    attrs: Any = call.attrs
    padding = floor_mode_pool_padding(call) if attrs.layout == "NCHW" else None
    if padding is None or _is_empty(call.args[0]):
        return None
    return _window_attributes(attrs) | {"kernel_shape": list(attrs.pool_size), "pads": padding}


def _is_empty(data: RelayExpr) -> bool:
    """Return whether data are known to have no elements: engines refuse windows over them."""
    return any(isinstance(dim, IntImm) and dim.value == 0 for dim in tensor_type(data).shape)


def _window_attributes(attrs: Any) -> dict[str, Any]:  # noqa: ANN401 - attributes of several operators
    return {
        "strides": list(attrs.strides),
        "pads": list(attrs.padding),
        "dilations": list(attrs.dilation),
    }


ONNX_OPERATORS: dict[str, OperatorMapping[str, Attributes]] = {
    "nn.dense": OperatorMapping("Gemm", 2, _gemm_attributes),
    "nn.bias_add": OperatorMapping("Add", 2, _bias_add_attributes),
    "nn.conv2d": OperatorMapping("Conv", 2, _conv_attributes),
    "nn.max_pool2d": OperatorMapping("MaxPool", 1, _pool_attributes),
    "nn.softmax": OperatorMapping("Softmax", 1, _softmax_attributes),
    "nn.relu": OperatorMapping("Relu", 1, _empty_attributes),
    "add": OperatorMapping("Add", 2, _empty_attributes),
    "subtract": OperatorMapping("Sub", 2, _empty_attributes),
    "multiply": OperatorMapping("Mul", 2, _empty_attributes),
    "divide": OperatorMapping("Div", 2, _empty_attributes),
    "tanh": OperatorMapping("Tanh", 1, _empty_attributes),
    "sigmoid": OperatorMapping("Sigmoid", 1, _empty_attributes),
    "exp": OperatorMapping("Exp", 1, _empty_attributes),
    "sqrt": OperatorMapping("Sqrt", 1, _empty_attributes),
}
"""By the name in Relay."""


@dataclass(slots=True)
class OnnxEngine:
    """Backend that runs regions as ONNX models in an engine of `ekiden.runtime.devices.engines`."""

    name: str

    def patterns(self) -> Sequence[PatternEntry]:
        """Return a pattern for each operator of the table."""
        return operator_patterns(self.name, ONNX_OPERATORS)

    def compile(self, function: Function) -> bytes:
        """Serialize a region as an ONNX model. Raises CompileError for an operator outside the
        table.
        """
        region = _OnnxModelBuilder()
        inputs = [
            _make_value_info(region.bind_parameter(param), param.checked_type)
            for param in function.params
        ]
        region.convert(function.body)
        outputs = region_results(function.body)
        infos = [
            _make_value_info(region.output_name(output), output.checked_type) for output in outputs
        ]
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


def _make_value_info(name: str, kind: Type) -> ValueInfoProto:
    """Return the ValueInfo of an input or output; symbolic dimensions are left open."""
    assert isinstance(kind, TensorType) and kind.dtype == ENGINE_DTYPE, "what the patterns take"
    sizes = [dim.value if isinstance(dim, IntImm) else None for dim in kind.shape]
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)


class _OnnxModelBuilder(RegionConverter[str]):
    """Builder of an ONNX model from a region: nodes, initializers, and the names of values."""

    engine = "ONNX"

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.count = 0

    def bind_parameter(self, expr: RelayExpr) -> str:
        """Name a parameter."""
        self.values[expr] = self._new_value_name()
        return self.values[expr]

    def convert_constant(self, expr: Constant) -> str:
        """Add an initializer."""
        name = self._new_value_name()
        self.constants.append(numpy_helper.from_array(np.asarray(expr.data), name))
        return name

    def convert_call(self, name: str, call: Call, inputs: Sequence[str]) -> str:
        """Append a node."""
        row = ONNX_OPERATORS.get(name)
        attributes = None if row is None else row.attributes(call)
        if row is None or attributes is None:
            raise CompileError(f"'{name}' of this form is not in ONNX")
        result = self._new_value_name()
        self.nodes.append(helper.make_node(row.engine_operator, inputs, [result], **attributes))
        return result

    def _new_value_name(self) -> str:
        """Return an unused value name."""
        self.count += 1
        return f"v{self.count}"

    def output_name(self, expr: RelayExpr) -> str:
        """Return a unique graph output name for a result."""
        location = f"r{len(self.nodes)}"
        self.nodes.append(helper.make_node("Identity", [self.values[expr]], [location]))
        return location
