"""Export of a Relay graph as an ONNX model (`to_onnx`), with TVM's name and arguments.

Each operator is a row of EMITTERS in `onnx_emitters`. A program that is no graph of these
operators is refused with the list of what stands in the way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ekiden.contrib.target.onnx_emitters import EMITTERS, GraphWriter, NotWritableError
from ekiden.frontend.onnx.lazy_onnx import onnx
from ekiden.ir.dtype import to_numpy
from ekiden.ir.module import IRModule
from ekiden.ir.name_uniquer import NameUniquer
from ekiden.ir.op import Op
from ekiden.ir.prim import AnyDim
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import CompileError, UnsupportedError
from ekiden.topi.dimensions import known_int

__all__ = ["to_onnx"]

OPSETS = range(13, 18)
"""Versions of the operator set that are written: from 13 on the axes of Squeeze and ReduceSum are
inputs, from 18 on those of the other reductions too.
"""
IR_VERSION = 8
"""Version of the file format, the one of opset 15 to 17; all readers of today take it."""


def to_onnx(
    relay_ir: IRModule | Function,
    params: Mapping[str, object] | None,
    name: str,
    opset_version: int = OPSETS[-1],
    path: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """Export a Relay graph as an ONNX model.

    Args:
        relay_ir: a module, whose `main` is written, or a function.
        params: values of parameters by name, which become initializers. The others are inputs.
        name: the name of the graph.
        opset_version: the version of ONNX's operators, 13 to 17.
        path: where the model is saved too.

    Returns:
        The model, checked by the package onnx.

    Raises:
        CompileError: another opset, or `params` that are no parameters of the function.
        UnsupportedError: the program is no graph of operators that are written; it lists all
            reasons.
    """
    if opset_version not in OPSETS:
        bounds = f"{OPSETS[0]} to {OPSETS[-1]}"
        raise CompileError(f"to_onnx: opset_version: expected {bounds}, got {opset_version}")
    module = relay_ir if isinstance(relay_ir, IRModule) else IRModule.from_expr(relay_ir)
    main = InferType()(module)["main"]
    assert isinstance(main, Function), f"main is a function of Relay, got {type(main).__name__}"
    model = _write_model(main, dict(params or {}), name, opset_version)
    onnx.checker.check_model(model)
    if path is not None:
        onnx.save(model, os.fspath(path))
    return model


def _write_model(
    main: Function, params: Mapping[str, object], name: str, opset: int
) -> onnx.ModelProto:
    """Convert a typed function to an ONNX model."""
    uniquer = NameUniquer()
    names = [uniquer.fresh(param.name_hint) for param in main.params]
    unknown = [repr(key) for key in params if key not in names]
    if unknown:
        have = ", ".join(map(repr, names)) or "none"
        raise CompileError(f"to_onnx: params: no parameter {', '.join(unknown)}; there are {have}")
    writer = GraphWriter(set(names))
    values: dict[Expr, list[str]] = {}
    inputs = []
    for param, param_name in zip(main.params, names, strict=True):
        values[param] = [param_name]
        if param_name in params:
            writer.add_initializer(param_name, _to_array(params[param_name]))
        else:
            inputs.append(_value_info(param_name, param.checked_type))
    problems: dict[str, None] = {}
    for expr in post_order(main.body):
        if expr not in values:
            try:
                values[expr] = _write_expr(writer, expr, values)
            except NotWritableError as error:
                problems.setdefault(str(error))
                values[expr] = ["", "", ""]
    if problems:
        raise UnsupportedError("to_onnx: " + "; ".join(problems))
    outputs = []
    for field, kind in zip(values[main.body], _field_types(main.body.checked_type), strict=True):
        # An output needs a name of its own: an input or weight may be one, and one value two.
        output = writer.emit("Identity", [field])
        outputs.append(_value_info(output, kind))
    graph = onnx.helper.make_graph(writer.nodes, name, inputs, outputs, writer.initializers)
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(
        graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="ekiden"
    )


def _write_expr(writer: GraphWriter, expr: Expr, values: Mapping[Expr, Sequence[str]]) -> list[str]:
    """Convert an expression whose operands are converted; return the names of its fields.

    Raises NotWritableError for what ONNX or this writer does not have.
    """
    match expr:
        case Op():
            return []
        case Constant():
            return [writer.add_constant(np.asarray(expr.data))]
        case Tuple():
            return [name for field in expr.fields for name in values[field]]
        case TupleGetItem():
            field = values[expr.tuple_value][expr.index]
            if not field and any(values[expr.tuple_value]):
                raise NotWritableError(f"{_expr_label(expr.tuple_value)}: field {expr.index}")
            return [field]
        case Call(op=Op() as operator):
            emit = EMITTERS.get(operator.name)
            if emit is None:
                raise NotWritableError(f"no ONNX form of {operator.name}")
            result = emit(writer, expr, [name for arg in expr.args for name in values[arg]])
            return [result] if isinstance(result, str) else result
    raise NotWritableError(f"no ONNX form of {type(expr).__name__}: inline and simplify it first")


def _expr_label(expr: Expr) -> str:
    """Return an expression's name for error messages."""
    if isinstance(expr, Call) and isinstance(expr.op, Op):
        return expr.op.name
    return type(expr).__name__


def _field_types(kind: Type) -> tuple[Type, ...]:
    """Return the types of the tensors of a result."""
    fields = getattr(kind, "fields", None)
    return (kind,) if fields is None else tuple(f for k in fields for f in _field_types(k))


def _value_info(name: str, kind: Type) -> onnx.ValueInfoProto:
    """Return the declaration of an input or output; unknown dimensions have no name."""
    if not isinstance(kind, TensorType):
        raise UnsupportedError(f"to_onnx: {name!r} is no tensor but {kind}")
    dims = [
        size
        if (size := known_int(dim)) is not None
        else None
        if isinstance(dim, AnyDim)
        else str(dim)
        for dim in kind.shape
    ]
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(to_numpy(kind.dtype)))
    return onnx.helper.make_tensor_value_info(name, element, dims)


def _to_array(value: Any) -> np.ndarray[Any, Any]:  # noqa: ANN401 - a tensor of any library
    """Return a parameter's value as an array."""
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)
