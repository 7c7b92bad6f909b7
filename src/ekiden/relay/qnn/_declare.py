"""What the declarations of the dialect share.

A quantised tensor stands for scale * (integers - zero_point); its scale (float32) and zero point
(int32) are arguments of their own, scalars or, where a tensor has one of each per channel, vectors
along an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OPS, Array, Borders, OpDef, Relation, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Constant, Expr
from ekiden.relay.op._declare import agree, fail, rank_is, tensors
from ekiden.relay.op._declare import call as plain_call
from ekiden.relay.op.reshaping import reshape
from ekiden.relay.transform.graph.legalize import register_legalize
from ekiden.topi.dimensions import as_dim, replaced

TABLE = "FTVMQnnCanonicalize"
"""The table of legalizations (TVM's name) that says what the operators stand for."""
BYTES = ("int8", "uint8")
SHORTS = (*BYTES, "int16", "uint16")
INTEGERS = (*SHORTS, "int32")
"""What a tensor may be quantised to."""

Expansion = Callable[[Any, Sequence[Expr], Sequence[Type]], Expr]
"""(attributes, arguments, their types and the result's) -> the same in ordinary operators."""


def declare(
    name: str,
    arguments: str,
    relation: Relation,
    reference: Callable[..., Array],
    expand: Expansion,
    attrs: type[Attrs] | None = None,
    result: str = "as data",
    quantizes: str = "",
) -> None:
    """Declare one row of the dialect.

    No pass but `qnn.transform.CanonicalizeOps` knows the operators, and none remains after it.

    Args:
        name: The operator.
        arguments: The names of its arguments, separated by spaces.
        relation: The type relation.
        reference: The computation on arrays.
        expand: The same in ordinary operators.
        attrs: The class of its attributes.
        result: The description of the result.
        quantizes: See OpDef; the columns `macs`, `weight_layouts` and `borders` are those of that
            operator.
    """
    real = OPS[quantizes] if quantizes else None
    register_op(
        OpDef(
            name=name,
            arguments=tuple(arguments.split()),
            attrs=attrs,
            relation=relation,
            reference=reference,
            result=result,
            quantizes=quantizes,
            expanded=True,
            macs=None if real is None else real.macs,
            weight_layouts={} if real is None else real.weight_layouts,
            borders=Borders.NO if real is None else real.borders,
        )
    )

    def legalize(
        call_attrs: Attrs | None, inputs: Sequence[RelayExpr], types: Sequence[Type]
    ) -> RelayExpr:
        """Return the expansion in operators of relay, under the signature of TVM's FTVMLegalize."""
        return expand(call_attrs, inputs, types)

    register_legalize(name, legalize, TABLE)


PARAMETER_DTYPES = {"float64": "float32", "int64": "int32"}
"""What NumPy's default types become in scales and zero points."""


def _as_parameter(arg: Expr, what: str) -> Expr:
    if not isinstance(arg, Constant) or not what.endswith(("scale", "zero_point")):
        return arg
    kind = PARAMETER_DTYPES.get(str(arg.data.dtype))
    if kind is None and arg.data.shape != (1,):
        return arg
    array = arg.data if kind is None else arg.data.astype(kind)
    return Constant(array.reshape(()) if array.shape == (1,) else array, span=arg.span)


def call(name: str, *args: Expr, attrs: Attrs | None = None) -> Call:
    """Return a call of an operator of the dialect.

    Scales and zero points that are constants of NumPy's default types are converted to those of the
    dialect, and vectors of one element to scalars.
    """
    named_args = zip(args, OPS[name].arguments, strict=False)
    return plain_call(name, *(_as_parameter(a, w) for a, w in named_args), attrs=attrs)


def limits(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest integer of a dtype."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def saturated(values: Array, dtype: str) -> Array:
    """Return integers limited to the range of a dtype."""
    return np.clip(values, *limits(dtype)).astype(dtype)


def dtype_of(name: str, kind: TensorType, allowed: Sequence[str], what: str) -> str:
    """Return the dtype of an argument, which must be one of `allowed`.

    Raises:
        TypeInferenceError: It is none of them.
    """
    if kind.dtype not in allowed:
        expected = ", ".join(allowed)
        fail(name, f"{what!r} must be one of {expected}, got {kind.dtype}")
    return kind.dtype


def check_parameter(name: str, kind: TensorType, what: str, dim: PrimExpr | None = None) -> None:
    """Check a scale or zero point: a scalar, or a vector of `dim` elements if that is not None."""
    dtype = "float32" if what.endswith("scale") else "int32"
    if kind.dtype != dtype:
        fail(name, f"{what!r} must be {dtype}, got {kind.dtype}")
    if not kind.shape:
        return
    if dim is None:
        rank_is(name, kind, 0, what)
    rank_is(name, kind, 1, what)
    assert dim is not None
    agree(name, kind.shape[0], dim, f"elements of {what!r} and of its axis")


def axis_dim(name: str, kind: TensorType, axis: int, parameters: Sequence[TensorType]) -> PrimExpr:
    """Return the extent of the axis that parameters run along; of a scalar 1, as in TVM."""
    rank = max(len(kind.shape), 1)
    if any(p.shape for p in parameters) and not -rank <= axis < rank:
        fail(name, f"axis {axis} is out of range for {len(kind.shape)} dimensions")
    from_end = axis % rank if -rank <= axis < rank else 0
    return kind.shape[from_end] if kind.shape else as_dim(1)


def told_by(name: str, kind: TensorType, axis: int, parameters: Sequence[TensorType]) -> TensorType:
    """Return the type of data with the extent along `axis` taken from vectors of parameters."""
    vectors = [p.shape[0] for p in parameters if p.shape]
    if not vectors or not kind.shape:
        return kind
    at = axis % len(kind.shape)
    extent = agree(name, kind.shape[at], vectors[0], "extents")
    return TensorType(replaced(kind.shape, at, extent), kind.dtype)


def tensor(kind: Type) -> TensorType:
    """Return a type that is known to be a tensor's."""
    assert isinstance(kind, TensorType), kind
    return kind


def fields(name: str, kind: Type, what: str) -> tuple[TensorType, ...]:
    """Return the types of a tuple of tensors."""
    if not isinstance(kind, TupleType):
        fail(name, f"{what!r} must be a tuple of tensors")
    return tensors(name, kind.fields)


def along(parameter: Expr, kind: Type, rank: int, axis: int) -> Expr:
    """Return a scale or zero point in the shape that broadcasts over a tensor of `rank`
    dimensions.
    """
    if not tensor(kind).shape or rank == 1:
        return parameter
    return reshape(parameter, (-1, *(1,) * (rank - 1 - axis % rank)) if rank else ())


def along_array(parameter: Array, rank: int, axis: int) -> Array:
    """Return an array in the shape that broadcasts over a tensor, as `along`."""
    if not parameter.ndim or not rank:
        return parameter.reshape(())
    return parameter.reshape(-1, *(1,) * (rank - 1 - axis % rank))


def value(parameter: Expr) -> Array | None:
    """Return a parameter that is known at compile time, or None."""
    return parameter.data if isinstance(parameter, Constant) else None


def is_all(parameter: Expr, number: int) -> bool:
    """Return whether a parameter is known to be a number."""
    data = value(parameter)
    return data is not None and bool(np.all(data == number))


def same(a: Expr, b: Expr) -> bool:
    """Return whether two parameters are known to be one scalar."""
    first, second = value(a), value(b)
    if first is None or second is None or first.size != 1 or second.size != 1:
        return False
    return bool(first.reshape(()) == second.reshape(()))
