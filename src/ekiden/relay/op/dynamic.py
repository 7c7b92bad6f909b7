"""Dynamic operators: shapes, sizes or bounds are tensor arguments instead of attributes.

TVM's `dyn.*`. The functions that make calls stand with their static forms, which take an expression
in place of the attribute: `reshape(x, newshape)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, DimsOf, OpDef, OpPattern, ShapeCheck, register_op
from ekiden.ir.prim import AnyDim, PrimExpr, Select, SizeVar, cast, const
from ekiden.ir.type import TensorType, Type, substitute_unknown_dims
from ekiden.relay.expr import Call, Constant, Expr
from ekiden.relay.op._declare import call_op, call_shape_rule, check_tensors, raise_type_error
from ekiden.runtime.errors import InputError
from ekiden.te import Tensor, placeholder
from ekiden.tir.expr import Buffer
from ekiden.topi.dimensions import known_int

Dims = tuple[list[PrimExpr], list[ShapeCheck]]
"""Unknown result dimensions, and run-time conditions on dimensions."""


@node("relay.attrs.DynamicAttrs")
class DynamicAttrs(Attrs):
    """Attributes of dynamic operators: symbols for the unknown dimensions of the result, and its
    dtype.
    """

    dtype: str = ""
    symbols: tuple[PrimExpr, ...] = ()


ResultType = Callable[[Any, Sequence[TensorType]], Type]
"""Function (attributes, argument types) -> result type, with `?` for data-dependent dimensions."""


def declare_dynamic_op(
    name: str,
    arguments: Sequence[str],
    attrs: type[Attrs],
    kind: ResultType,
    dims: DimsOf,
    lower: Callable[..., Sequence[Tensor]],
    reference: Callable[..., Any],
    result: str,
    pattern: OpPattern = OpPattern.INJECTIVE,
    reshape_only: bool = False,
    fields: Callable[[Attrs | None], int] | None = None,
    layout: str = "",
    sizes: Sequence[int] | None = None,
    description: str = "",
    refuses: bool = False,
) -> None:
    """Declare an operator whose result has unknown dimensions; see OpDef.

    Where the shapes of the arguments are known, the type relation runs the computation on
    placeholders as well, whose result has dimensions of any size: what it refuses is a type error.
    All arguments from the second on are its `sizes` where nothing else is said, or its only one.
    """

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the type, with the attributes' symbols for unknown dimensions where the call names
        them.

        Where all arguments have known shapes the kernel's computation is made once, so that its
        errors are a TypeInferenceError here and not a failure later.
        """
        inputs_of_call = check_tensors(name, types, len(arguments))
        result_type = kind(attrs, inputs_of_call)
        symbols = getattr(attrs, "symbols", ())
        if symbols:
            return substitute_unknown_dims(result_type, iter(symbols))
        if not any(isinstance(d, AnyDim) for t in inputs_of_call for d in t.shape):
            inputs = [placeholder(t.shape, t.dtype, f"x{n}") for n, t in enumerate(inputs_of_call)]
            # The lowering checks the arguments too; its errors must come with the types, not in the
            # compiler.
            call_shape_rule(
                name, lower, attrs, inputs, substitute_unknown_dims(result_type, _fresh_sizes())
            )
        return result_type

    def lowering(attrs: Attrs, inputs: Sequence[Tensor], out: Type) -> Sequence[Tensor]:
        """Lower the operator, whose type relation has checked the attributes."""
        return lower(attrs, inputs, out)

    register_op(
        OpDef(
            name=name,
            arguments=tuple(arguments),
            attrs=attrs,
            relation=relation,
            reference=reference,
            lower=lowering,
            pattern=pattern,
            reshape_only=reshape_only,
            dims=dims,
            fields=fields,
            layout=layout,
            sizes=tuple(range(len(arguments) > 1, len(arguments)) if sizes is None else sizes),
            result=result,
            may_fail=refuses,
            description=description
            or f"`{name.removeprefix('dyn.')}`, where {_join_names(arguments[1:] or arguments)}"
            " say at run time what is an attribute there.",
        )
    )


def _fresh_sizes() -> Iterator[PrimExpr]:
    """Yield fresh symbols for dimensions of any size."""
    return (SizeVar(f"d{n}") for n in count())


def _join_names(names: Sequence[str]) -> str:
    return " and ".join(f"`{n}`" for n in names)


def unknown_tensor_type(rank: int, dtype: str) -> TensorType:
    """Return a tensor type of a given rank with unknown dimensions."""
    return TensorType(tuple(AnyDim() for _ in range(rank)), dtype)


def shape_vector_length(name: str, what: str, vector: TensorType) -> int:
    """Return the length of a shape vector, which determines the result's rank.

    Raises:
        TypeInferenceError: It is no vector of known length.
    """
    # The rank of the result is the length of this vector, and ranks are static.
    number = known_int(vector.shape[0]) if len(vector.shape) == 1 else None
    if number is None:
        raise_type_error(
            name, f"{what!r} must be a vector of known length, got {list(vector.shape)}"
        )
    return number


def load_scalar(buffer: Buffer, *index: int) -> PrimExpr:
    """Return the scalar element of an argument as int64."""
    return cast(buffer[tuple(const(i) for i in index)], "int64")


def load_elements(buffer: Buffer) -> list[PrimExpr]:
    """Return the elements of a vector of static length as int64."""
    number = known_int(buffer.shape[0])
    assert number is not None
    return [load_scalar(buffer, i) for i in range(number)]


def select_int64(condition: PrimExpr, yes: PrimExpr, no: PrimExpr) -> PrimExpr:
    """Return a select between two int64 expressions."""
    return Select(condition, yes, no, "int64")


def dims_from_shape_argument(attrs: Attrs, buffers: Sequence[Buffer]) -> Dims:
    """Return the elements of the last argument as the unknown dimensions."""
    return load_elements(buffers[-1]), []


def check_non_negative(name: str, what: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Check that sizes are non-negative, and return them.

    Raises:
        InputError: A size is below 0.
    """
    if min(sizes, default=0) < 0:
        raise InputError(f"run: {name}: {what} is negative; it is {min(sizes)}")
    return sizes


def to_int_tuple(shape: Array) -> tuple[int, ...]:
    """Return the elements of an integer vector as a tuple."""
    return tuple(int(n) for n in shape)


def constant_value(value: object) -> Any:  # noqa: ANN401
    """Return the value of a constant argument, or None.

    An argument that is no expression is returned itself.
    """
    if isinstance(value, Constant):
        # As Python's numbers, of which attributes are made.
        return value.data.tolist()
    return None if isinstance(value, Expr) else value


def call_dynamic(name: str, *args: Expr, attrs: Attrs) -> Call:
    """Build a call of a dynamic operator."""
    return call_op(f"dyn.{name}", *args, attrs=attrs)


__all__ = [
    "Dims",
    "DynamicAttrs",
    "call_dynamic",
    "check_non_negative",
    "constant_value",
    "declare_dynamic_op",
    "dims_from_shape_argument",
    "load_elements",
    "load_scalar",
    "select_int64",
    "shape_vector_length",
    "to_int_tuple",
    "unknown_tensor_type",
]  # fmt: skip
