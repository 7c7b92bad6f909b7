"""Helpers shared by operator declarations: calls, argument checks, type errors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_float, is_int
from ekiden.ir.expr_text import format_prim_expr, format_shape, format_type
from ekiden.ir.op import Array, get
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.runtime.errors import IndexRangeError, LinAlgError, TypeInferenceError
from ekiden.te.range_checks import check_message_format, index_bound_text
from ekiden.topi.dimensions import unify_dim

_Params = ParamSpec("_Params")
_ReturnT = TypeVar("_ReturnT")
_AttrsT = TypeVar("_AttrsT", bound=Attrs)
_EntryT = TypeVar("_EntryT")
_LayoutT = TypeVar("_LayoutT", bound=Hashable)


def call_op(name: str, *args: Expr, attrs: Attrs | None = None) -> Call:
    """Build a call of a registered operator."""
    return Call(get(name), args, attrs)


def raise_type_error(name: str, message: str) -> NoReturn:
    """Raise a TypeInferenceError for an operator."""
    raise TypeInferenceError(f"{name}: {message}")


def call_shape_rule(
    name: str, function: Callable[_Params, _ReturnT], *args: _Params.args, **kwargs: _Params.kwargs
) -> _ReturnT:
    """Call a topi shape function; turn its ValueError into the operator's type error."""
    try:
        return function(*args, **kwargs)
    except ValueError as error:
        raise_type_error(name, str(error).removeprefix(f"{name}: "))


def check_attrs(kind: type[_AttrsT], attrs: Attrs | None) -> _AttrsT:
    """Check that the attributes are of the operator's attribute class, and return them."""
    assert isinstance(attrs, kind), f"expected attributes {kind.__name__}, got {attrs!r}"
    return attrs


def check_indices(
    name: str, indices: Array, size: int, axis: int | None, what: str = "index"
) -> None:
    """Raise IndexRangeError for an out-of-range index, as the intrinsic `index_check` in kernels
    does.
    """
    # Negative indices count from the end, as NumPy's do; unsigned ones have none.
    low = 0 if indices.dtype.kind == "u" else -size
    check_range(f"{name}: {what}", indices, (low, size), index_bound_text(axis), (size,))


def check_range(
    subject: str,
    values: Array,
    ends: tuple[int, int],
    bound: str = "",
    shown: Sequence[int] = (),
) -> None:
    """Raise IndexRangeError for a value outside [low, high), as the intrinsic `range_check` in
    kernels does.
    """
    low, high = ends
    # uint8 values must not wrap around in the comparison with a negative bound.
    wide = values.astype(np.int64)
    wrong = np.argwhere((wide < low) | (wide >= high))
    if len(wrong):
        # argwhere is in row-major order: the same element that the kernel reports.
        indices = tuple(int(i) for i in wrong[0])
        text = check_message_format(subject, len(indices), bound)
        # The bound that is shown is the last valid value, not the end of the interval.
        raise IndexRangeError(text.format(int(wide[indices]), *indices, *shown, low, high - 1))


def check_info(subject: str, info: Array, problem: str) -> None:
    """Raise LinAlgError for a non-zero LAPACK status, as the intrinsic `info_check` in kernels
    does.
    """
    wrong = np.argwhere(info)
    if len(wrong):
        indices = tuple(int(i) for i in wrong[0])
        raise LinAlgError(
            check_message_format(subject, len(indices), "", problem).format(
                int(info[indices]), *indices
            )
        )


def check_tensors(
    name: str, types: Sequence[Type], count: int | None = None
) -> tuple[TensorType, ...]:
    """Check that the arguments are `count` tensors, and return their types.

    Raises:
        TypeInferenceError: Arguments are too many, too few, or no tensors.
    """
    if count is not None and len(types) != count:
        raise_type_error(name, f"expected {count} arguments, got {len(types)}")
    for position, kind in enumerate(types):
        if not isinstance(kind, TensorType):
            raise_type_error(name, f"argument {position} must be a tensor, got {format_type(kind)}")
    return tuple(t for t in types if isinstance(t, TensorType))


def check_tuple_of_tensors(name: str, types: Sequence[Type]) -> tuple[TensorType, ...]:
    """Check that the only argument is a tuple of tensors, and return their types.

    Raises:
        TypeInferenceError: The argument is not one tuple of at least one tensor.
    """
    if len(types) != 1 or not isinstance(types[0], TupleType):
        actual = ", ".join(map(format_type, types))
        raise_type_error(name, f"the argument must be one tuple of tensors, got {actual}")
    fields = check_tensors(name, types[0].fields)
    if not fields:
        raise_type_error(name, "expected at least one tensor, got an empty tuple")
    return fields


DtypeKind = Literal["any", "number", "floating point", "integer", "bits", "int32"]
"""Kinds of accepted dtypes: bool is not a number; bits are integers or bool."""
_DTYPE_PREDICATES: dict[DtypeKind, tuple[Callable[[str], bool], str]] = {
    "any": (lambda dtype: True, "anything"),
    "number": (lambda dtype: dtype != "bool", "a number"),
    "floating point": (is_float, "floating point"),
    "integer": (is_int, "integers"),
    "int32": (lambda dtype: dtype == "int32", "int32"),
    "bits": (lambda dtype: is_int(dtype) or dtype == "bool", "integers or bools"),
}


def check_dtype(name: str, what: str, dtype: str, takes: DtypeKind) -> None:
    """Check that an argument's dtype is of the accepted kind."""
    # bool is no number here, though NumPy counts it as one.
    fits, requirement = _DTYPE_PREDICATES[takes]
    if not fits(dtype):
        raise_type_error(name, f"{what!r} must be {requirement}, got {dtype}")


def check_same_dtype(name: str, arguments: Sequence[TensorType]) -> str:
    """Check that all arguments have the same dtype, and return it.

    Raises:
        TypeInferenceError: Arguments have several dtypes.
    """
    dtypes = [a.dtype for a in arguments]
    if len(set(dtypes)) > 1:
        raise_type_error(name, f"arguments must have one dtype, got {', '.join(dtypes)}")
    return dtypes[0]


def check_min_rank(name: str, argument: TensorType, rank: int, what: str) -> None:
    """Check the minimum rank of an argument."""
    if len(argument.shape) < rank:
        raise_type_error(
            name,
            f"{what!r} must have at least {rank} dimensions, got {shape_text(argument.shape)}",
        )


def check_rank(name: str, argument: TensorType, rank: int, what: str) -> None:
    """Check the rank of an argument."""
    if len(argument.shape) != rank:
        raise_type_error(
            name,
            f"{what!r} must have {rank} dimensions, got {len(argument.shape)}:"
            f" {shape_text(argument.shape)}",
        )


def unify_dims(name: str, a: PrimExpr, b: PrimExpr, what: str) -> PrimExpr:
    """Unify two dimensions that must be equal.

    Raises:
        TypeInferenceError: The dimensions are known to differ.
    """
    common = unify_dim(a, b)
    if common is None:
        raise_type_error(
            name, f"{what} must agree, got {format_prim_expr(a)} and {format_prim_expr(b)}"
        )
    return common


def unify_vector_axis(
    name: str, data: TensorType, axis: int, vector: TensorType, what: str
) -> TensorType:
    """Unify the extent of an axis with the length of a vector along it, and return the data's type.

    The extent may be known from either, as if the vector were spread over the data.
    """
    # The known one of the two extents goes into the result, so that inference learns it.
    extent = unify_dims(
        name, data.shape[axis], vector.shape[0], f"axis {axis} of 'data' and {what}"
    )
    return TensorType((*data.shape[:axis], extent, *data.shape[axis + 1 :]), data.dtype)


def widen_for_numpy(data: Array) -> Array:
    """Convert dtypes without NumPy arithmetic to float32."""
    return data.astype(np.float32) if data.dtype.kind == "V" else data


def shape_text(shape: Sequence[PrimExpr]) -> str:
    """Format a shape for error messages."""
    return format_shape(tuple(shape))


def lookup_layout(layout: _LayoutT, entries: Mapping[_LayoutT, _EntryT]) -> _EntryT:
    """Return the entry of a table for a layout or a combination of layouts.

    Raises:
        ValueError: There is no entry for the layout.
    """
    if layout not in entries:
        names = " or ".join(map(str, entries))
        raise ValueError(f"the layout must be {names}, got {layout}")
    return entries[layout]


def check_out_layout(attrs: Any) -> None:  # noqa: ANN401 - any attributes with two layouts
    """Raise ValueError where the result's layout differs from the data's."""
    if attrs.out_layout not in ("", attrs.layout):
        raise ValueError(
            f"out_layout must be that of the data, {attrs.layout!r}, got {attrs.out_layout!r}"
        )


def identity_relation(
    name: str, count: int = 1, takes: DtypeKind = "any"
) -> Callable[[Sequence[Type], Attrs | None], Type]:
    """Return a type relation whose result is the first argument's type; all arguments share its
    dtype.
    """

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the first argument's type.

        Raises:
            TypeInferenceError: The operator does not take the dtype, or arguments have several.
        """
        arguments = check_tensors(name, types, count)
        check_dtype(name, "data", check_same_dtype(name, arguments), takes)
        return arguments[0]

    return relation
