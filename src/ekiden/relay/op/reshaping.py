"""Operators that give the same elements in the same order another shape: no kernel runs, the result
is a view.

The number of elements stays, which a run checks where symbols leave it open. `nn.batch_flatten` and
`squeeze` without axes are reshapes whose shape follows from the data's. As no kernel runs, FuseOps
keeps them out of kernels, and ManifestAlloc makes them `vm.reshape_tensor`, a header over the
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ekiden import topi
from ekiden._lazy import LazyModule
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node, shown
from ekiden.ir.op import Array, OpDef, OpPattern, Precision, Relation, Transposes, register_op
from ekiden.ir.prim import is_const
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import attempt, attrs_of, call, fail, rank_at_least, show, tensors
from ekiden.relay.op.dynamic import DynamicAttrs, constant_of, dynamic
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    as_attr,
    as_dim,
    as_ints,
    as_shape,
    assume,
    axes_attr,
    expect_result_rank,
    infer_reshape,
    known,
    normalize_axes,
    normalize_axis,
    product,
)

if TYPE_CHECKING:
    import ekiden.relay.op.dynamic_reshape as dynamic_reshape
else:
    dynamic_reshape = LazyModule("ekiden.relay.op.dynamic_reshape")


@node("relay.attrs.ReshapeAttrs")
class ReshapeAttrs(Attrs):
    """The new shape, read from the left beside the data's: 0 copies a dimension unless
    `allowzero`, one -1 takes what is left, -2 copies all that are left, -3 joins two, and -4 splits
    one into the two extents that follow it.
    """

    newshape: Dims = shown(())
    allowzero: bool = False


def _declare(
    name: str,
    attrs: type[Attrs] | None,
    relation: Relation,
    reference: Callable[..., Array],
    result: str,
) -> None:
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            attrs=attrs,
            relation=relation,
            reference=reference,
            lower=lambda attrs, inputs, out: [topi.reshape(inputs[0], out.shape)],
            pattern=OpPattern.INJECTIVE,
            result=result,
            reshape_only=True,
            turns=Transposes.SHAPE,
            precision=Precision.FOLLOW,
        )
    )


def _reshape_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    """Return the type of `newshape` with its special numbers resolved.

    Equal numbers of elements are proved, or, of symbols, noted as an assumption that is checked
    when the function is entered.
    """
    (data,) = tensors("reshape", types, 1)
    settings = attrs_of(ReshapeAttrs, attrs)
    try:
        shape = infer_reshape(data.shape, settings.newshape, settings.allowzero)
        before, after = product(data.shape), product(shape)
        if before is not after:
            assume(lambda: before.equal(after), (before, after))
        return TensorType(shape, data.dtype)
    except ValueError as error:
        fail("reshape", f"{show(data.shape)} to {show(as_shape(settings.newshape))}: {error}")


def _reshape_reference(attrs: ReshapeAttrs, data: Array) -> Array:
    return data.reshape(
        as_ints(infer_reshape(as_shape(data.shape), attrs.newshape, attrs.allowzero))
    )


_declare(
    "reshape",
    ReshapeAttrs,
    _reshape_relation,
    _reshape_reference,
    "`newshape`, its -1 computed from the number of elements",
)


def reshape(data: Expr, newshape: Sequence[Dim] | Dim | Expr, allowzero: bool = False) -> Call:
    """Return the elements of `data` in order, in another shape; see ReshapeAttrs for numbers below
    1.

    A `newshape` that is data may hold 0 and -1 alone: its length is the result's rank.
    """
    if (constant_shape := constant_of(newshape)) is None:
        assert isinstance(newshape, Expr)
        return dynamic("reshape", data, newshape, attrs=dynamic_reshape.DynReshapeAttrs(allowzero))
    dims = constant_shape if isinstance(constant_shape, Sequence) else (constant_shape,)
    return call("reshape", data, attrs=ReshapeAttrs(as_attr(dims), allowzero))


@node("relay.attrs.ExpandDimsAttrs")
class ExpandDimsAttrs(Attrs):
    """Where the new axes begin in the result, and how many there are."""

    axis: int = 0
    num_newaxis: int = 1


def _expanded(attrs: ExpandDimsAttrs, rank: int) -> int:
    return normalize_axis(attrs.axis, rank + 1, "expand_dims")


def _expand_dims_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("expand_dims", types, 1)
    settings = attrs_of(ExpandDimsAttrs, attrs)
    at = attempt("expand_dims", _expanded, settings, len(data.shape))
    attempt(
        "expand_dims", expect_result_rank, len(data.shape) + settings.num_newaxis, "num_newaxis"
    )
    return TensorType(
        (*data.shape[:at], *(as_dim(1),) * settings.num_newaxis, *data.shape[at:]), data.dtype
    )


def _expand_dims_reference(attrs: ExpandDimsAttrs, data: Array) -> Array:
    at = _expanded(attrs, data.ndim)
    return data.reshape(data.shape[:at] + (1,) * attrs.num_newaxis + data.shape[at:])


_declare(
    "expand_dims",
    ExpandDimsAttrs,
    _expand_dims_relation,
    _expand_dims_reference,
    "data's shape with `num_newaxis` dimensions of 1 at `axis`",
)


def _one(value: int | Sequence[int]) -> tuple[int]:
    (number,) = value if isinstance(value, Sequence) else (value,)
    return (number,)


def expand_dims(data: Expr, axis: int | Expr, num_newaxis: int = 1) -> Call:
    """Return `data` with new axes of extent 1 before `axis` (counted in the result when
    negative).
    """
    if (at := constant_of(axis)) is None:
        assert isinstance(axis, Expr)
        return dynamic(
            "expand_dims", data, axis, attrs=dynamic_reshape.DynExpandDimsAttrs(num_newaxis)
        )
    return call("expand_dims", data, attrs=ExpandDimsAttrs(*_one(at), num_newaxis))


@node("relay.attrs.SqueezeAttrs")
class SqueezeAttrs(Attrs):
    """Axes of extent 1 to remove; None removes all that are known to be 1."""

    axis: tuple[int, ...] | None = None


def _squeeze_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("squeeze", types, 1)
    dropped = attrs_of(SqueezeAttrs, attrs).axis
    if dropped is None:
        if any(known(d) is None for d in data.shape):  # the rank of the result cannot wait
            fail(
                "squeeze", f"'axis' is needed where dimensions are symbols, got {show(data.shape)}"
            )
        return TensorType(tuple(d for d in data.shape if not is_const(d, 1)), data.dtype)
    axes = attempt("squeeze", normalize_axes, dropped, len(data.shape), "squeeze")
    if len(axes) < len(dropped):
        fail("squeeze", f"an axis is there twice, got {dropped}")
    for axis in axes:
        if known(data.shape[axis]) not in (None, 1):
            fail("squeeze", f"axis {axis} must have extent 1, got {show(data.shape)}")
    return TensorType(tuple(d for i, d in enumerate(data.shape) if i not in axes), data.dtype)


def _squeeze_reference(attrs: SqueezeAttrs, data: Array) -> Array:
    return data.squeeze(attrs.axis)


_declare(
    "squeeze",
    SqueezeAttrs,
    _squeeze_relation,
    _squeeze_reference,
    "data's shape without the dimensions of 1 (at `axis`, if given)",
)


def squeeze(data: Expr, axis: int | Sequence[int] | Expr | None = None) -> Call:
    """Return `data` without some axes of extent 1."""
    axes = constant_of(axis)
    if isinstance(axis, Expr) and axes is None:
        return dynamic("squeeze", data, axis, attrs=DynamicAttrs())
    return call("squeeze", data, attrs=SqueezeAttrs(axes_attr(axes)))


def _batch_flatten_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = tensors("nn.batch_flatten", types, 1)
    rank_at_least("nn.batch_flatten", data, 1, "data")
    return TensorType((data.shape[0], product(data.shape[1:])), data.dtype)


def _batch_flatten_reference(attrs: None, data: Array) -> Array:
    return data.reshape(data.shape[0], as_ints((product(as_shape(data.shape[1:])),))[0])


_declare(
    "nn.batch_flatten",
    None,
    _batch_flatten_relation,
    _batch_flatten_reference,
    "(n, product of the other dimensions)",
)


def batch_flatten(data: Expr) -> Call:
    """Return `data` with all axes but the first as one."""
    return call("nn.batch_flatten", data)


__all__ = ["expand_dims", "reshape", "squeeze"]
