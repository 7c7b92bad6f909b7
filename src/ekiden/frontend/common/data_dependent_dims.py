"""Data-dependent dimensions: elements of small integer vectors tracked as symbols.

What is known of such a vector is followed beside its expression: numbers, dimensions, and for each
number that is data a variable of its own. Where a node needs the numbers as dimensions, those that
are data get names, in the place where they are first needed:

    %shape = concatenate((%k, [80]))                        hint: (data1, 80)
 -> let %sizes: Tensor[(0, dim1, 80), uint8] = dyn.extents(%shape);
    full(0f, shape=(dim1, 80))

From there on the variable is that dimension, wherever it stands.
"""

from __future__ import annotations

import numpy as np

from ekiden.arith import simplify
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.value import SymbolArray, Value
from ekiden.ir.dtype import is_int
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar, Var, const
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.topi.dimensions import Dim, known_int, to_attr_dims

MAX_TRACKED_ELEMENTS = 64
"""The longest vector that is followed: sizes are few, and longer vectors are other things."""


def tracked_elements(scope: Scope, value: Value) -> SymbolArray | None:
    """Return the tracked elements of a tensor as expressions; None if they are not tracked."""
    if value.is_known:
        return value.known_elements
    kind = value.type
    count = known_int(kind.shape[0]) if kind.shape else 1
    if (
        len(kind.shape) > 1
        or count is None
        or count > MAX_TRACKED_ELEMENTS
        or not is_int(kind.dtype)
    ):
        return None
    if value.hint is None:
        value.hint = np.empty(tuple(known_int(d) or 0 for d in kind.shape), object)
        for position in np.ndindex(value.hint.shape):
            # One variable per element: two reads of the same element are then known to be equal.
            value.hint[position] = Var("data")
    return scope.substitute_sizes(value.hint)


def is_dim(element: PrimExpr) -> bool:
    """Return whether an element is a number or an expression of dimensions alone."""
    return all(isinstance(v, SizeVar) for v in free_vars(element))


def resolve_named_sizes(scope: Scope, value: Value) -> Value:
    """Return a value known from shapes once all its data elements are named; else the value
    unchanged.
    """
    if value.is_known or value.hint is None:
        return value
    elements_now = scope.substitute_sizes(value.hint)
    if not all(map(is_dim, elements_now.ravel())):
        return value
    return Value(value.type, symbols=elements_now, expr=value.expr)


def to_named_dims(scope: Scope, value: Value) -> tuple[Dim, ...] | None:
    """Return an integer scalar or vector as dimensions; elements that depend on data get names.

    None if it is no such vector. The run ends where a number of the data is negative.
    """
    value = resolve_named_sizes(scope, value)
    tracked = tracked_elements(scope, value)
    if value.is_known:
        return value.dims()
    if tracked is None:
        return None
    flat = [simplify(e) for e in tracked.ravel()]
    shape = [e if is_dim(e) and not _is_negative(e) else AnyDim() for e in flat]
    vector = op.reshape(op.cast(scope.expr(value), "int64"), (len(flat),))
    # The first extent is 0: the variable carries the sizes in its type and occupies no memory.
    var = scope.new_parameter("sizes", TensorType((const(0), *shape), "uint8"))
    scope.bind_var(var, op.extents(vector))
    for element, name in zip(flat, scope.tensor_type_of(var).shape[1:], strict=True):
        if isinstance(element, Var) and isinstance(name, SizeVar):
            scope.name_element_dim(element, name)
    named = [
        e if is_dim(e) else n
        for e, n in zip(flat, scope.tensor_type_of(var).shape[1:], strict=True)
    ]
    return to_attr_dims(named)


def _is_negative(element: PrimExpr) -> bool:
    """Return whether an element is a negative constant."""
    return isinstance(element, IntImm) and element.value < 0
