"""What a tensor of a model is during import: a constant, an array of shape expressions, or a
run-time expression.
"""

from __future__ import annotations

import re
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ekiden.arith import simplify
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.ir.prim import FloatImm, IntImm, PrimExpr
from ekiden.ir.type import TensorType, Type, tensor_type
from ekiden.relay.expr import Constant, Expr, const
from ekiden.topi.shape import Dim, as_attr

Symbols: TypeAlias = npt.NDArray[np.object_]
"""An object array of PrimExpr: int64 ones stand for any integer dtype."""


class Value:
    """One tensor: `array` where it is known now, `symbols` where it is known from shapes, else
    `expr` alone.

    hint: what is known of the elements of a small vector of integers that is computed at run time,
    in which a `Var` that is no dimension stands for a number of the data (see `sizes`).

    Constants keep the array of the model, uncopied; treat it as read-only.
    """

    __slots__ = ("array", "expr", "hint", "symbols", "type")

    type: TensorType
    is_text: ClassVar[bool] = False
    """Whether it is a tensor of strings, whose expression is one of bytes."""

    def __init__(
        self,
        type_: TensorType,
        array: Array | None = None,
        symbols: Symbols | None = None,
        expr: Expr | None = None,
    ) -> None:
        self.type = type_
        self.array = array
        self.symbols = symbols
        self.expr = expr
        self.hint: Symbols | None = None

    @property
    def kind(self) -> Type:
        """The type of the value, which need not be a tensor."""
        return self.type

    @property
    def is_known(self) -> bool:
        """Whether the elements are known at import, as numbers or as shape expressions."""
        return self.array is not None or self.symbols is not None

    @property
    def elements(self) -> Array:
        """The numbers, or the object array of expressions, of a known value."""
        found = self.array if self.array is not None else self.symbols
        assert found is not None, "elements of a run-time value are not known at import"
        return found

    def dims(self) -> tuple[Dim, ...]:
        """The elements of a known vector or scalar as dimensions: ints and expressions."""
        if self.array is not None:
            return tuple(int(n) for n in self.array.ravel().astype(np.int64))
        assert self.symbols is not None, "dims of a run-time value are not known at import"
        return as_attr(self.symbols.ravel())


def constant(array: Array) -> Value:
    """A value of known numbers."""
    made = Constant(array)
    type_ = tensor_type(array.shape, dtype_name(array))
    made.set_checked_type(type_)
    return Value(type_, array=array, expr=made)


def scalar(number: object, dtype: str) -> Value:
    """A number as a value without dimensions."""
    return constant(const(number, dtype).data)


def dtype_name(array: Array) -> str:
    """The dtype of an array in our spelling."""
    return "bool" if array.dtype == np.bool_ else str(array.dtype)


def known(elements: Array, dtype: str) -> Value:
    """A value of numbers or shape expressions; expressions that are constants become numbers."""
    if elements.dtype != np.object_:
        return constant(np.asarray(elements, to_numpy(dtype)))
    tidy = np.empty(elements.shape, object)
    for at, each in np.ndenumerate(elements.astype(object)):
        tidy[at] = simplify(each)
    flat = [e.value if isinstance(e, (IntImm, FloatImm)) else e for e in tidy.ravel()]
    if not any(isinstance(e, PrimExpr) for e in flat):
        return constant(np.array(flat, to_numpy(dtype)).reshape(elements.shape))
    return Value(tensor_type(elements.shape, dtype), symbols=tidy)


def clean_name(name: str) -> str:
    """A name that Relay text can hold: letters, digits and underscores, not starting with a digit;
    may be empty.
    """
    cleaned = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return f"v{cleaned}" if cleaned[:1].isdigit() else cleaned


def dim_name(name: str, axis: int, stated: str = "") -> str:
    """What a symbolic dimension of an input is called: as the model calls it, if it does."""
    cleaned = "" if stated in _UNNAMED else clean_name(stated)
    return cleaned or f"{clean_name(name) or 'input'}_dim{axis}"


_UNNAMED = ("None", "unknown", "unk")
"""Names that exporters give to dimensions they know nothing of: not one dimension, however often
they occur.
"""


class Names:
    """Hands out clean names, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, name: str, fallback: str) -> str:
        """`name` cleaned, or with a number added if that is taken."""
        base = found = clean_name(name) or fallback
        count = 0
        while found in self._taken:
            count += 1
            found = f"{base}_{count}"
        self._taken.add(found)
        return found
