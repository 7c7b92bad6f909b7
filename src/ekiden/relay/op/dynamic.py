"""Operators whose result's shape is data: an argument says what is an attribute elsewhere.

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
from ekiden.ir.type import TensorType, Type, with_dims
from ekiden.relay.expr import Call, Constant, Expr
from ekiden.relay.op._declare import attempt, call, fail, tensors
from ekiden.runtime.errors import InputError
from ekiden.te import Tensor, placeholder
from ekiden.tir.expr import Buffer
from ekiden.topi.dimensions import known

Dims = tuple[list[PrimExpr], list[ShapeCheck]]
"""The unknown dimensions of a result, and what must hold at run time."""


@node("relay.attrs.DynamicAttrs")
class DynamicAttrs(Attrs):
    """The unknown dimensions of the result, where they have names; the dtype, where there is one
    to choose."""

    dtype: str = ""
    symbols: tuple[PrimExpr, ...] = ()


Kind = Callable[[Any, Sequence[TensorType]], Type]
"""(attributes, argument types) -> the result's type, with `?` where data decides."""


def declare_dynamic(
    name: str,
    arguments: Sequence[str],
    attrs: type[Attrs],
    kind: Kind,
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
    """Declare an operator of a result with unknown dimensions; see OpDef.

    Where the shapes of the arguments are known, the type relation runs the computation on
    placeholders as well, whose result has dimensions of any size: what it refuses is a type error.
    All arguments from the second on are its `sizes` where nothing else is said, or its only one.
    """

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Return the type, whose unknown dimensions are the attributes' symbols where the call
        names them.

        Where all arguments have known shapes the kernel's computation is made once, so that its
        errors are a TypeInferenceError here and not a failure later.
        """
        inputs_of_call = tensors(name, types, len(arguments))
        result_type = kind(attrs, inputs_of_call)
        symbols = getattr(attrs, "symbols", ())
        if symbols:
            return with_dims(result_type, iter(symbols))
        if not any(isinstance(d, AnyDim) for t in inputs_of_call for d in t.shape):
            inputs = [placeholder(t.shape, t.dtype, f"x{n}") for n, t in enumerate(inputs_of_call)]
            attempt(name, lower, attrs, inputs, with_dims(result_type, _sizes()))
        return result_type

    def lowering(attrs: Attrs, inputs: Sequence[Tensor], out: Type) -> Sequence[Tensor]:
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
            refuses=refuses,
            description=description
            or f"`{name.removeprefix('dyn.')}`, where {_and(arguments[1:] or arguments)}"
            " say at run time what is an attribute there.",
        )
    )


def _sizes() -> Iterator[PrimExpr]:
    """Dimensions of any size."""
    return (SizeVar(f"d{n}") for n in count())


def _and(names: Sequence[str]) -> str:
    return " and ".join(f"`{n}`" for n in names)


def unknown_shape(rank: int, dtype: str) -> TensorType:
    """Return a tensor type of a rank, whose dimensions are data."""
    return TensorType(tuple(AnyDim() for _ in range(rank)), dtype)


def length_of(name: str, what: str, vector: TensorType) -> int:
    """Return how many numbers a vector of the result's shape has: the rank must be known.

    Raises:
        TypeInferenceError: It is no vector of known length.
    """
    number = known(vector.shape[0]) if len(vector.shape) == 1 else None
    if number is None:
        fail(name, f"{what!r} must be a vector of known length, got {list(vector.shape)}")
    return number


def element(buffer: Buffer, *index: int) -> PrimExpr:
    """Return an element of an argument as an int64."""
    return cast(buffer[tuple(const(i) for i in index)], "int64")


def elements(buffer: Buffer) -> list[PrimExpr]:
    """Return all elements of a vector of known length, as int64."""
    number = known(buffer.shape[0])
    assert number is not None
    return [element(buffer, i) for i in range(number)]


def choose(condition: PrimExpr, yes: PrimExpr, no: PrimExpr) -> PrimExpr:
    """Return `yes` if a condition holds, else `no`, as int64."""
    return Select(condition, yes, no, "int64")


def shape_dims(attrs: Attrs, buffers: Sequence[Buffer]) -> Dims:
    """Return the elements of the last argument as the unknown dimensions."""
    return elements(buffers[-1]), []


def not_negative(name: str, what: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return sizes unchanged.

    Raises:
        InputError: A size is below 0.
    """
    if min(sizes, default=0) < 0:
        raise InputError(f"run: {name}: {what} is negative; it is {min(sizes)}")
    return sizes


def ints(shape: Array) -> tuple[int, ...]:
    """Return the elements of a vector."""
    return tuple(int(n) for n in shape)


def constant_of(value: object) -> Any:  # noqa: ANN401
    """Return the numbers of an argument that is a constant, None for any other expression.

    An argument that is no expression is returned itself.
    """
    if isinstance(value, Constant):
        return value.data.tolist()
    return None if isinstance(value, Expr) else value


def dynamic(name: str, *args: Expr, attrs: Attrs) -> Call:
    """Return a call of an operator of this file."""
    return call(f"dyn.{name}", *args, attrs=attrs)


__all__ = [
    "Dims", "DynamicAttrs", "choose", "constant_of", "declare_dynamic", "dynamic", "element",
    "elements", "ints", "length_of", "not_negative", "shape_dims", "unknown_shape",
]  # fmt: skip
