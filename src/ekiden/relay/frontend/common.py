"""Helpers of TVM's importers, for user-written importers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Function, Tuple, TupleWrapper, Var
from ekiden.relay.expr import var as new_var
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.transform.graph.fold_constant import FoldConstantExpr
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.visitor import free_vars
from ekiden.runtime.errors import InputError


def get_relay_op(op_name: str) -> object:
    """Look up an operator function by name. Raises AttributeError."""
    for namespace in (op, op.nn, op.image, op.vision, op.contrib):
        if hasattr(namespace, op_name):
            return getattr(namespace, op_name)
    raise AttributeError(f"get_relay_op: Relay has no operator {op_name!r}")


def get_name(node: Var) -> str:
    """Return the name of a variable."""
    return node.name_hint


def infer_type(node: RelayExpr, mod: IRModule | None = None) -> RelayExpr:
    """Infer the type of an expression, and return the typed expression."""
    node.set_checked_type(infer_expr_type(node))
    return node


def infer_shape(inputs: RelayExpr, mod: IRModule | None = None) -> tuple[object, ...]:
    """Return the shape of an expression: ints, and expressions for unknown sizes.

    Raises InputError for one that is no tensor.
    """
    kind = infer_expr_type(inputs)
    if not isinstance(kind, TensorType):
        raise InputError(f"infer_shape: expected a tensor, got {kind}")
    return tuple(getattr(dim, "value", dim) for dim in kind.shape)


def infer_channels(inputs: RelayExpr, transpose: bool = False) -> object:
    """Return the number of output channels of a weight: dimension 0, or 1 if transposed."""
    return infer_shape(inputs)[1 if transpose else 0]


def fold_constant(node: RelayExpr, mod: IRModule | None = None) -> RelayExpr:
    """Fold the constants of an expression."""
    return FoldConstantExpr(node, mod or IRModule())


def infer_value(
    input_val: RelayExpr, params: Mapping[str, object], mod: IRModule | None = None
) -> Array:
    """Evaluate an expression over named parameters. Raises InputError for a variable that is none
    of these.
    """
    values = {}
    for variable in free_vars(input_val):
        if variable.name_hint not in params:
            raise InputError(f"infer_value: no value is given for %{variable.name_hint}")
        values[variable] = np.asarray(params[variable.name_hint])
    function = Function(tuple(values), input_val)
    result = Interpreter(mod or IRModule()).evaluate(function, *values.values())
    return np.asarray(result)


infer_value_simulated = infer_value


def to_int_list(np_array: Array) -> list[int]:
    """Return the elements of an array as ints."""
    return [int(value) for value in np_array]


def unbind(data: RelayExpr, axis: int = 0) -> TupleWrapper:
    """Split a tensor into slices along an axis, and drop the axis."""
    count = infer_shape(data)[axis]
    assert isinstance(count, int), "the number of slices is known"
    slices = TupleWrapper(op.split(data, count, axis), count)
    fields: Sequence[RelayExpr] = [op.squeeze(piece, axis=[axis]) for piece in slices]
    return TupleWrapper(Tuple(tuple(fields)), count)


__all__ = [
    "fold_constant",
    "get_name",
    "get_relay_op",
    "infer_channels",
    "infer_shape",
    "infer_type",
    "infer_value",
    "infer_value_simulated",
    "new_var",
    "to_int_list",
    "unbind",
]
