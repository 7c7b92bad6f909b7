"""What the declarations of operators share: calls, checks of arguments, and their error form."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_float, is_int
from ekiden.ir.op import Array, get
from ekiden.ir.prim import PrimExpr
from ekiden.ir.text import prim_text, shape_text, type_text
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.runtime.errors import IndexRangeError, LinAlgError, TypeInferenceError
from ekiden.te.range_checks import bound_text, message
from ekiden.topi.dimensions import unify_dim

_P = ParamSpec("_P")
_R = TypeVar("_R")
_A = TypeVar("_A", bound=Attrs)
_C = TypeVar("_C")
_L = TypeVar("_L", bound=Hashable)


def call(name: str, *args: Expr, attrs: Attrs | None = None) -> Call:
    """Return a call of a registered operator."""
    return Call(get(name), args, attrs)


def fail(name: str, message: str) -> NoReturn:
    """Raise the type error of an operator."""
    raise TypeInferenceError(f"{name}: {message}")


def attempt(name: str, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a shape function of topi; its ValueError becomes the operator's type error."""
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        fail(name, str(error).removeprefix(f"{name}: "))


def attrs_of(kind: type[_A], attrs: Attrs | None) -> _A:
    """Return the attributes, checked to be of the class that the operator declares."""
    assert isinstance(attrs, kind), f"expected attributes {kind.__name__}, got {attrs!r}"
    return attrs


def check_indices(
    name: str, indices: Array, size: int, axis: int | None, what: str = "index"
) -> None:
    """Raise IndexRangeError for an index out of range, as the kernel of an `index_check` does."""
    low = 0 if indices.dtype.kind == "u" else -size
    check_range(f"{name}: {what}", indices, (low, size), bound_text(axis), (size,))


def check_range(
    subject: str,
    values: Array,
    ends: tuple[int, int],
    bound: str = "",
    shown: Sequence[int] = (),
) -> None:
    """Raise IndexRangeError for a value outside [low, high), as the kernel of a `range_check`
    does.
    """
    low, high = ends
    # uint8 values must not wrap around in the comparison with a negative bound.
    wide = values.astype(np.int64)
    wrong = np.argwhere((wide < low) | (wide >= high))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        text = message(subject, len(at), bound)
        raise IndexRangeError(text.format(int(wide[at]), *at, *shown, low, high - 1))


def check_info(subject: str, info: Array, problem: str) -> None:
    """Raise LinAlgError for what is not 0, as the kernel of an `info_check` does."""
    wrong = np.argwhere(info)
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise LinAlgError(message(subject, len(at), "", problem).format(int(info[at]), *at))


def tensors(name: str, types: Sequence[Type], count: int | None = None) -> tuple[TensorType, ...]:
    """Return the argument types, checked to be `count` tensors.

    Raises:
        TypeInferenceError: Arguments are too many, too few, or no tensors.
    """
    if count is not None and len(types) != count:
        fail(name, f"expected {count} arguments, got {len(types)}")
    for position, kind in enumerate(types):
        if not isinstance(kind, TensorType):
            fail(name, f"argument {position} must be a tensor, got {type_text(kind)}")
    return tuple(t for t in types if isinstance(t, TensorType))


def tensor_fields(name: str, types: Sequence[Type]) -> tuple[TensorType, ...]:
    """Return the fields of the one tuple argument of a variadic operator.

    Raises:
        TypeInferenceError: The argument is not one tuple of at least one tensor.
    """
    if len(types) != 1 or not isinstance(types[0], TupleType):
        actual = ", ".join(map(type_text, types))
        fail(name, f"the argument must be one tuple of tensors, got {actual}")
    fields = tensors(name, types[0].fields)
    if not fields:
        fail(name, "expected at least one tensor, got an empty tuple")
    return fields


Takes = Literal["any", "number", "floating point", "integer", "bits", "int32"]
"""What elements an argument may have: bool is no number, and bits are integers or bools."""
_TAKES: dict[Takes, tuple[Callable[[str], bool], str]] = {
    "any": (lambda dtype: True, "anything"),
    "number": (lambda dtype: dtype != "bool", "a number"),
    "floating point": (is_float, "floating point"),
    "integer": (is_int, "integers"),
    "int32": (lambda dtype: dtype == "int32", "int32"),
    "bits": (lambda dtype: is_int(dtype) or dtype == "bool", "integers or bools"),
}


def check_dtype(name: str, what: str, dtype: str, takes: Takes) -> None:
    """Check that an argument has elements that an operator can take."""
    fits, requirement = _TAKES[takes]
    if not fits(dtype):
        fail(name, f"{what!r} must be {requirement}, got {dtype}")


def one_dtype(name: str, arguments: Sequence[TensorType]) -> str:
    """Return the dtype that all arguments have.

    Raises:
        TypeInferenceError: Arguments have several dtypes.
    """
    dtypes = [a.dtype for a in arguments]
    if len(set(dtypes)) > 1:
        fail(name, f"arguments must have one dtype, got {', '.join(dtypes)}")
    return dtypes[0]


def rank_at_least(name: str, argument: TensorType, rank: int, what: str) -> None:
    """Check the rank of an argument."""
    if len(argument.shape) < rank:
        fail(name, f"{what!r} must have at least {rank} dimensions, got {show(argument.shape)}")


def rank_is(name: str, argument: TensorType, rank: int, what: str) -> None:
    """Check the rank of an argument."""
    if len(argument.shape) != rank:
        fail(
            name,
            f"{what!r} must have {rank} dimensions, got {len(argument.shape)}:"
            f" {show(argument.shape)}",
        )


def agree(name: str, a: PrimExpr, b: PrimExpr, what: str) -> PrimExpr:
    """Return the common value of two dimensions that must be equal.

    Raises:
        TypeInferenceError: The dimensions are known to differ.
    """
    common = unify_dim(a, b)
    if common is None:
        fail(name, f"{what} must agree, got {prim_text(a)} and {prim_text(b)}")
    return common


def along_vector(
    name: str, data: TensorType, axis: int, vector: TensorType, what: str
) -> TensorType:
    """Return the type of data with the extent along an axis that a vector for that axis confirms.

    The extent may be known from either, as if the vector were spread over the data.
    """
    extent = agree(name, data.shape[axis], vector.shape[0], f"axis {axis} of 'data' and {what}")
    return TensorType((*data.shape[:axis], extent, *data.shape[axis + 1 :]), data.dtype)


def summable(data: Array) -> Array:
    """Return an array whose products NumPy can sum: float32 for dtypes that NumPy lacks."""
    return data.astype(np.float32) if data.dtype.kind == "V" else data


def show(shape: Sequence[PrimExpr]) -> str:
    """Return a shape as text for messages."""
    return shape_text(tuple(shape))


def by_layout(layout: _L, entries: Mapping[_L, _C]) -> _C:
    """Return the entry for a layout, or for several.

    Raises:
        ValueError: There is no entry for the layout.
    """
    if layout not in entries:
        names = " or ".join(map(str, entries))
        raise ValueError(f"the layout must be {names}, got {layout}")
    return entries[layout]


def keeps_layout(attrs: Any) -> None:  # noqa: ANN401 - any attributes with two layouts
    """Raise ValueError where the result is asked for in another layout than the data's."""
    if attrs.out_layout not in ("", attrs.layout):
        raise ValueError(
            f"out_layout must be that of the data, {attrs.layout!r}, got {attrs.out_layout!r}"
        )


def identity_relation(
    name: str, count: int = 1, takes: Takes = "any"
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    """Return a relation whose result is the first argument's type; all arguments share its
    dtype.
    """

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the first argument's type.

        Raises:
            TypeInferenceError: The operator does not take the dtype, or arguments have several.
        """
        arguments = tensors(name, types, count)
        check_dtype(name, "data", one_dtype(name, arguments), takes)
        return arguments[0]

    return relation
