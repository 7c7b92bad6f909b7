"""Values of tensors during import: a constant, an array of shape expressions, or a run-time
expression.
"""

from __future__ import annotations

import re
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ekiden.arith import simplify
from ekiden.ir.dtype import to_numpy
from ekiden.ir.name_uniquer import NameUniquer
from ekiden.ir.op import Array
from ekiden.ir.prim import FloatImm, IntImm, PrimExpr
from ekiden.ir.type import TensorType, Type, tensor_type
from ekiden.relay.expr import Constant, Expr, const
from ekiden.topi.dimensions import Dim, to_attr_dims

SymbolArray: TypeAlias = npt.NDArray[np.object_]
"""An object array of PrimExpr: int64 ones stand for any integer dtype."""


class Value:
    """Tensor during import: `array` where it is constant, `symbols` where it is known from shapes,
    else `expr` alone.

    hint: what is known of the elements of a small vector of integers that is computed at run time,
    in which a `Var` that is no dimension stands for a number of the data (see `sizes`). Constants
    refer to the model's array without a copy; treat it as read-only.
    """

    __slots__ = ("array", "expr", "hint", "symbols", "type")

    type: TensorType
    is_string: ClassVar[bool] = False
    """Whether it is a tensor of strings, whose expression is one of bytes."""

    def __init__(
        self,
        type_: TensorType,
        array: Array | None = None,
        symbols: SymbolArray | None = None,
        expr: Expr | None = None,
    ) -> None:
        self.type = type_
        self.array = array
        self.symbols = symbols
        self.expr = expr
        self.hint: SymbolArray | None = None

    @property
    def relay_type(self) -> Type:
        """Return the type of the value, which need not be a tensor."""
        return self.type

    @property
    def is_known(self) -> bool:
        """Return whether the elements are known at import, as numbers or as shape expressions."""
        return self.array is not None or self.symbols is not None

    @property
    def known_elements(self) -> Array:
        """Return the numbers, or the object array of expressions, of a known value."""
        known_elements = self.array if self.array is not None else self.symbols
        assert known_elements is not None, "elements of a run-time value are not known at import"
        return known_elements

    def dims(self) -> tuple[Dim, ...]:
        """Return the elements of a known vector or scalar as dimensions: ints and shape
        expressions.
        """
        if self.array is not None:
            return tuple(int(n) for n in self.array.ravel().astype(np.int64))
        assert self.symbols is not None, "dims of a run-time value are not known at import"
        return to_attr_dims(self.symbols.ravel())


def constant_value(array: Array) -> Value:
    """Return an array as a constant value."""
    expr = Constant(array)
    type_ = tensor_type(array.shape, dtype_name(array))
    expr.set_checked_type(type_)
    return Value(type_, array=array, expr=expr)


def scalar_value(number: object, dtype: str) -> Value:
    """Return a number as a constant of rank 0."""
    return constant_value(const(number, dtype).data)


def dtype_name(array: Array) -> str:
    """Return the dtype of an array as Ekiden spells it."""
    return "bool" if array.dtype == np.bool_ else str(array.dtype)


def known_value(elements: Array, dtype: str) -> Value:
    """Return numbers or shape expressions as a value; constant expressions become numbers."""
    if elements.dtype != np.object_:
        return constant_value(np.asarray(elements, to_numpy(dtype)))
    simplified = np.empty(elements.shape, object)
    for position, element in np.ndenumerate(elements.astype(object)):
        simplified[position] = simplify(element)
    flat = [e.value if isinstance(e, (IntImm, FloatImm)) else e for e in simplified.ravel()]
    if not any(isinstance(e, PrimExpr) for e in flat):
        return constant_value(np.array(flat, to_numpy(dtype)).reshape(elements.shape))
    return Value(tensor_type(elements.shape, dtype), symbols=simplified)


def sanitize_name(name: str) -> str:
    """Return a valid Relay identifier: letters, digits and underscores, not starting with a digit;
    may be empty.
    """
    cleaned = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return f"v{cleaned}" if cleaned[:1].isdigit() else cleaned


def input_dim_name(name: str, axis: int, stated: str = "") -> str:
    """Return the name of an input's symbolic dimension: the model's own, else one made of input and
    axis.
    """
    cleaned = "" if stated in _ANONYMOUS_DIM_NAMES else sanitize_name(stated)
    return cleaned or f"{sanitize_name(name) or 'input'}_dim{axis}"


_ANONYMOUS_DIM_NAMES = ("None", "unknown", "unk")
"""Names that exporters give to dimensions they know nothing of: not one dimension, however often
they occur.
"""


class UniqueNames:
    """Generator of unique identifiers within one import."""

    def __init__(self) -> None:
        self._names = NameUniquer()

    def unique_name(self, name: str, fallback: str) -> str:
        """Return `name` sanitized, with a number appended if it is taken."""
        return self._names.fresh(sanitize_name(name) or fallback)
