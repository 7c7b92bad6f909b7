"""View operators: reshape, expand_dims, squeeze, batch_flatten; no kernel runs.

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
from ekiden.ir.node import always_printed_field, node
from ekiden.ir.op import (
    Array,
    OpDef,
    OpPattern,
    PrecisionPolicy,
    TransposeRule,
    TypeRelationFunc,
    register_op,
)
from ekiden.ir.prim import is_const
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_min_rank,
    check_tensors,
    raise_type_error,
    shape_text,
)
from ekiden.relay.op.dynamic import DynamicAttrs, call_dynamic, constant_value
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    as_dim,
    as_ints,
    as_shape,
    assume_condition,
    infer_reshape,
    known_int,
    normalize_axes,
    normalize_axis,
    product_of_dims,
    require_result_rank,
    to_attr_axes,
    to_attr_dims,
)

if TYPE_CHECKING:
    import ekiden.relay.op.dynamic_reshape as dynamic_reshape
else:
    dynamic_reshape = LazyModule("ekiden.relay.op.dynamic_reshape")


@node("relay.attrs.ReshapeAttrs")
class ReshapeAttrs(Attrs):
    """Attributes of reshape: the new shape with TVM's special values: 0 copies a dimension (unless
    `allowzero`), -1 infers one, -2 copies the rest, -3 merges two, -4 splits one.
    """

    newshape: Dims = always_printed_field(())
    allowzero: bool = False


def _declare_reshape_op(
    name: str,
    attrs: type[Attrs] | None,
    relation: TypeRelationFunc,
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
            transpose_rule=TransposeRule.SHAPE,
            precision=PrecisionPolicy.FOLLOW,
        )
    )


def _reshape_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    """Infer the type with the special values of `newshape` resolved.

    Equal numbers of elements are proved, or, of symbols, noted as an assumption that is checked
    when the function is entered.
    """
    (data,) = check_tensors("reshape", types, 1)
    settings = check_attrs(ReshapeAttrs, attrs)
    try:
        shape = infer_reshape(data.shape, settings.newshape, settings.allowzero)
        before, after = product_of_dims(data.shape), product_of_dims(shape)
        # One object where the reshape is of nothing but signs.
        if before is not after:
            # Sizes that are symbols are checked at run time, and taken as equal until then.
            assume_condition(lambda: before.equal(after), (before, after))
        return TensorType(shape, data.dtype)
    except ValueError as error:
        raise_type_error(
            "reshape",
            f"{shape_text(data.shape)} to {shape_text(as_shape(settings.newshape))}: {error}",
        )


def _reshape_reference(attrs: ReshapeAttrs, data: Array) -> Array:
    return data.reshape(
        as_ints(infer_reshape(as_shape(data.shape), attrs.newshape, attrs.allowzero))
    )


_declare_reshape_op(
    "reshape",
    ReshapeAttrs,
    _reshape_relation,
    _reshape_reference,
    "`newshape`, its -1 computed from the number of elements",
)


def reshape(data: Expr, newshape: Sequence[Dim] | Dim | Expr, allowzero: bool = False) -> Call:
    """Reshape `data`; see ReshapeAttrs for special values.

    A `newshape` that is data may hold 0 and -1 alone: its length is the result's rank.
    """
    if (constant_shape := constant_value(newshape)) is None:
        assert isinstance(newshape, Expr)
        return call_dynamic(
            "reshape", data, newshape, attrs=dynamic_reshape.DynReshapeAttrs(allowzero)
        )
    dims = constant_shape if isinstance(constant_shape, Sequence) else (constant_shape,)
    return call_op("reshape", data, attrs=ReshapeAttrs(to_attr_dims(dims), allowzero))


@node("relay.attrs.ExpandDimsAttrs")
class ExpandDimsAttrs(Attrs):
    """Attributes of expand_dims: index and number of the new axes."""

    axis: int = 0
    num_newaxis: int = 1


def _insert_position(attrs: ExpandDimsAttrs, rank: int) -> int:
    return normalize_axis(attrs.axis, rank + 1, "expand_dims")


def _expand_dims_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("expand_dims", types, 1)
    settings = check_attrs(ExpandDimsAttrs, attrs)
    position = call_shape_rule("expand_dims", _insert_position, settings, len(data.shape))
    call_shape_rule(
        "expand_dims", require_result_rank, len(data.shape) + settings.num_newaxis, "num_newaxis"
    )
    return TensorType(
        (*data.shape[:position], *(as_dim(1),) * settings.num_newaxis, *data.shape[position:]),
        data.dtype,
    )


def _expand_dims_reference(attrs: ExpandDimsAttrs, data: Array) -> Array:
    position = _insert_position(attrs, data.ndim)
    return data.reshape(data.shape[:position] + (1,) * attrs.num_newaxis + data.shape[position:])


_declare_reshape_op(
    "expand_dims",
    ExpandDimsAttrs,
    _expand_dims_relation,
    _expand_dims_reference,
    "data's shape with `num_newaxis` dimensions of 1 at `axis`",
)


def _single_axis(value: int | Sequence[int]) -> tuple[int]:
    (number,) = value if isinstance(value, Sequence) else (value,)
    return (number,)


def expand_dims(data: Expr, axis: int | Expr, num_newaxis: int = 1) -> Call:
    """Insert unit axes before `axis` (counted in the result when negative)."""
    if (axis_index := constant_value(axis)) is None:
        assert isinstance(axis, Expr)
        return call_dynamic(
            "expand_dims", data, axis, attrs=dynamic_reshape.DynExpandDimsAttrs(num_newaxis)
        )
    return call_op(
        "expand_dims", data, attrs=ExpandDimsAttrs(*_single_axis(axis_index), num_newaxis)
    )


@node("relay.attrs.SqueezeAttrs")
class SqueezeAttrs(Attrs):
    """Attributes of squeeze: the unit axes to remove; None for all that are known to be 1."""

    axis: tuple[int, ...] | None = None


def _squeeze_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("squeeze", types, 1)
    dropped = check_attrs(SqueezeAttrs, attrs).axis
    if dropped is None:
        if any(known_int(d) is None for d in data.shape):  # the rank of the result cannot wait
            raise_type_error(
                "squeeze",
                f"'axis' is needed where dimensions are symbols, got {shape_text(data.shape)}",
            )
        return TensorType(tuple(d for d in data.shape if not is_const(d, 1)), data.dtype)
    axes = call_shape_rule("squeeze", normalize_axes, dropped, len(data.shape), "squeeze")
    if len(axes) < len(dropped):
        raise_type_error("squeeze", f"an axis is there twice, got {dropped}")
    for axis in axes:
        # A symbol may be 1: run time decides.
        if known_int(data.shape[axis]) not in (None, 1):
            raise_type_error(
                "squeeze", f"axis {axis} must have extent 1, got {shape_text(data.shape)}"
            )
    return TensorType(tuple(d for i, d in enumerate(data.shape) if i not in axes), data.dtype)


def _squeeze_reference(attrs: SqueezeAttrs, data: Array) -> Array:
    return data.squeeze(attrs.axis)


_declare_reshape_op(
    "squeeze",
    SqueezeAttrs,
    _squeeze_relation,
    _squeeze_reference,
    "data's shape without the dimensions of 1 (at `axis`, if given)",
)


def squeeze(data: Expr, axis: int | Sequence[int] | Expr | None = None) -> Call:
    """Remove unit axes of `data`."""
    axes = constant_value(axis)
    if isinstance(axis, Expr) and axes is None:
        return call_dynamic("squeeze", data, axis, attrs=DynamicAttrs())
    return call_op("squeeze", data, attrs=SqueezeAttrs(to_attr_axes(axes)))


def _batch_flatten_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("nn.batch_flatten", types, 1)
    check_min_rank("nn.batch_flatten", data, 1, "data")
    return TensorType((data.shape[0], product_of_dims(data.shape[1:])), data.dtype)


def _batch_flatten_reference(attrs: None, data: Array) -> Array:
    return data.reshape(data.shape[0], as_ints((product_of_dims(as_shape(data.shape[1:])),))[0])


_declare_reshape_op(
    "nn.batch_flatten",
    None,
    _batch_flatten_relation,
    _batch_flatten_reference,
    "(n, product of the other dimensions)",
)


def batch_flatten(data: Expr) -> Call:
    """Flatten all axes except the first."""
    return call_op("nn.batch_flatten", data)


__all__ = ["expand_dims", "reshape", "squeeze"]
