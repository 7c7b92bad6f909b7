"""Engines that take models of ONNX: which operators of Relay go there, a row each, and regions as
such models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType, Type
from ekiden.relay.dataflow_pattern import is_op, wildcard
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem, Var
from ekiden.relay.transform.merge_composite import Entry
from ekiden.relay.transform.scopes import evaluation_order
from ekiden.runtime.engines import load_region
from ekiden.runtime.errors import CompileError

OPSET, IR_VERSION = 17, 8
DTYPES = {"float32": TensorProto.FLOAT}
"""Of the tensors that regions have: what all engines have all of the rows below for."""

Attributes = Mapping[str, Any]


def _nothing(call: Call) -> Attributes | None:
    return {}


@dataclass(frozen=True, slots=True)
class Row:
    """An operator of Relay that is one of ONNX: its name there, how many arguments, and its
    attributes; None where this call has no such form.
    """

    op: str
    arity: int
    attributes: Callable[[Call], Attributes | None] = _nothing


def _dense(call: Call) -> Attributes | None:
    """Gemm has no batch dimensions."""
    ranks = [len(_tensor(arg).shape) for arg in call.args]
    return {"transB": 1} if ranks == [2, 2] else None


def _bias(call: Call) -> Attributes | None:
    """Add along the last axis; a bias along another has another shape in ONNX."""
    axis: int = getattr(call.attrs, "axis")  # noqa: B009 - of BiasAddAttrs
    return {} if axis in (-1, len(_tensor(call.args[0]).shape) - 1) else None


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
    if attrs.layout != "NCHW":
        return None
    rounding = {"kernel_shape": list(attrs.pool_size), "ceil_mode": int(attrs.ceil_mode)}
    return _window(attrs) | rounding


def _window(attrs: Any) -> dict[str, Any]:  # noqa: ANN401 - attributes of several operators
    return {
        "strides": list(attrs.strides),
        "pads": list(attrs.padding),
        "dilations": list(attrs.dilation),
    }


ROWS = {
    "nn.dense": Row("Gemm", 2, _dense),
    "nn.bias_add": Row("Add", 2, _bias),
    "nn.conv2d": Row("Conv", 2, _conv2d),
    "nn.max_pool2d": Row("MaxPool", 1, _pool),
    "nn.softmax": Row("Softmax", 1, _softmax),
    "nn.relu": Row("Relu", 1),
    "add": Row("Add", 2),
    "subtract": Row("Sub", 2),
    "multiply": Row("Mul", 2),
    "divide": Row("Div", 2),
    "tanh": Row("Tanh", 1),
    "sigmoid": Row("Sigmoid", 1),
    "exp": Row("Exp", 1),
    "sqrt": Row("Sqrt", 1),
}
"""By the name in Relay."""


def _tensor(expr: RelayExpr) -> TensorType:
    found = expr.checked_type
    assert isinstance(found, TensorType), "operators of the table take and give tensors"
    return found


def _takes(row: Row, expr: RelayExpr) -> bool:
    """Whether a matched call has a form in ONNX, of dtypes that engines compute."""
    assert isinstance(expr, Call)
    kinds = [each.checked_type for each in (*expr.args, expr)]
    if not all(isinstance(kind, TensorType) and kind.dtype in DTYPES for kind in kinds):
        return False
    return row.attributes(expr) is not None


@dataclass(slots=True)
class OnnxEngine:
    """An engine of `ekiden.runtime.engines` that takes models of ONNX."""

    name: str

    def patterns(self) -> Sequence[Entry]:
        """Each operator of the table."""
        return [
            (
                f"{self.name}.{name}",
                is_op(name)(*(wildcard() for _ in range(row.arity))),
                partial(_takes, row),
            )
            for name, row in ROWS.items()
        ]

    def compile(self, function: Function) -> bytes:
        """A region as a model of ONNX; CompileError for an operator outside the table."""
        region = _Region()
        inputs = [_info(region.bind(param), param.checked_type) for param in function.params]
        region.convert(function.body)
        body = function.body
        outputs = body.fields if isinstance(body, Tuple) else (body,)
        infos = [_info(region.result(each), each.checked_type) for each in outputs]
        graph = helper.make_graph(
            region.nodes, str(function.attr("global_symbol")), inputs, infos, region.constants
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        code: bytes = model.SerializeToString(deterministic=True)
        return code

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        """By the runtime, which has it without the compiler."""
        return load_region(self.name, symbol, code)


def _info(name: str, kind: Type) -> ValueInfoProto:
    """An input or output: sizes that are not numbers are left open."""
    assert isinstance(kind, TensorType), "regions have tensors as parameters and results"
    sizes = [each.value if isinstance(each, IntImm) else None for each in kind.shape]
    return helper.make_tensor_value_info(name, DTYPES[kind.dtype], sizes)


class _Region:
    """A region on its way to ONNX: nodes so far, constants, and the names of values."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.names: dict[RelayExpr, str] = {}

    def bind(self, expr: RelayExpr) -> str:
        """A new name for a value."""
        self.names[expr] = f"v{len(self.names)}"
        return self.names[expr]

    def convert(self, root: RelayExpr) -> None:
        """Add the nodes of all calls below an expression; composite functions are their bodies."""
        order = evaluation_order(root)
        inner = {
            id(each)
            for function in order
            if isinstance(function, Function)
            for each in evaluation_order(function.body)
        }
        for expr in order:
            if id(expr) not in inner and expr not in self.names:
                self._convert(expr)

    def _convert(self, expr: RelayExpr) -> None:
        match expr:
            case Constant():
                name = self.bind(expr)
                self.constants.append(numpy_helper.from_array(np.asarray(expr.data), name))
            case Call(op=Op() as op):
                self._operator(op.name, expr)
            case Call(op=Function() as composite):
                for param, arg in zip(composite.params, expr.args, strict=True):
                    self.names[param] = self.names[arg]
                self.convert(composite.body)
                self.names[expr] = self.names[composite.body]
            case TupleGetItem(tuple_value=Tuple() as made):
                self.names[expr] = self.names[made.fields[expr.index]]
            case Function() | Tuple() | Op() | Var():
                pass
            case _:
                raise CompileError(f"a {type(expr).__name__} has no form in ONNX")

    def _operator(self, name: str, call: Call) -> None:
        row = ROWS.get(name)
        attributes = None if row is None else row.attributes(call)
        if row is None or attributes is None:
            raise CompileError(f"'{name}' of this form is not in ONNX")
        inputs = [self.names[arg] for arg in call.args]
        self.nodes.append(helper.make_node(row.op, inputs, [self.bind(call)], **attributes))

    def result(self, expr: RelayExpr) -> str:
        """The name of a result, which no input and no other result has."""
        at = f"r{len(self.nodes)}"
        self.nodes.append(helper.make_node("Identity", [self.names[expr]], [at]))
        return at
