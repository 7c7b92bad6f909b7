"""one_hot and topk with depth or k given as tensor arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpPattern, ShapeCheck
from ekiden.ir.prim import AnyDim, PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.op.dynamic import Dims, declare_dynamic_op, load_scalar, select_int64
from ekiden.runtime.errors import InputError
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.topi.dimensions import normalize_axis


@node("relay.attrs.DynOneHotAttrs")
class DynOneHotAttrs(Attrs):
    """Attributes of dyn.one_hot: the new axis and the result's dtype."""

    axis: int = -1
    dtype: str = "float32"
    symbols: tuple[PrimExpr, ...] = ()


@node("relay.attrs.DynTopKAttrs")
class DynTopKAttrs(Attrs):
    """Attributes of dyn.topk, as those of topk without k."""

    axis: int = -1
    ret_type: str = "both"
    is_ascend: bool = False
    dtype: str = "int32"
    symbols: tuple[PrimExpr, ...] = ()


def _one_hot_type(attrs: DynOneHotAttrs, types: Sequence[TensorType]) -> TensorType:
    shape = types[0].shape
    axis_index = normalize_axis(attrs.axis, len(shape) + 1, "dyn.one_hot")
    return TensorType((*shape[:axis_index], AnyDim(), *shape[axis_index:]), attrs.dtype)


def _one_hot_lower(
    attrs: DynOneHotAttrs, inputs: Sequence[Tensor], out: TensorType
) -> list[Tensor]:
    axis_index = attrs.axis % len(out.shape)
    return [
        topi.one_hot(
            inputs[0], inputs[1], inputs[2], out.shape[axis_index], axis_index, attrs.dtype
        )
    ]


def _one_hot_reference(
    attrs: DynOneHotAttrs, indices: Array, on: Array, off: Array, depth: Array
) -> Array:
    axis_index = attrs.axis % (indices.ndim + 1)
    count = int(depth.reshape(-1)[0])
    if count < 0:
        raise InputError(f"run: dyn.one_hot: a dimension of the result is negative; it is {count}")
    positions = np.arange(count).reshape((count,) + (1,) * (indices.ndim - axis_index))
    # An index out of range equals no position, and gives `off` everywhere.
    chosen = np.expand_dims(indices, axis_index).astype(np.int64) == positions
    return np.where(chosen, on, off).astype(to_numpy(attrs.dtype))


declare_dynamic_op(
    "dyn.one_hot",
    ("indices", "on_value", "off_value", "depth"),
    DynOneHotAttrs,
    _one_hot_type,
    lambda attrs, buffers: ([load_scalar(buffers[3], *(0 for _ in buffers[3].shape))], []),
    _one_hot_lower,
    _one_hot_reference,
    "the shape of indices with `depth` inserted at `axis`",
    sizes=(3,),
)


def _topk_type(attrs: DynTopKAttrs, types: Sequence[TensorType]) -> Type:
    data = types[0]
    axis_index = normalize_axis(attrs.axis, len(data.shape), "dyn.topk")
    shape = (*data.shape[:axis_index], AnyDim(), *data.shape[axis_index + 1 :])
    fields = {"values": TensorType(shape, data.dtype), "indices": TensorType(shape, attrs.dtype)}
    return fields.get(attrs.ret_type) or TupleType(tuple(fields.values()))


def _topk_dims(attrs: DynTopKAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, number = buffers
    size = data.shape[attrs.axis % len(data.shape)]
    k = load_scalar(number, *(0 for _ in number.shape))
    # TVM's rule: no positive k means all elements.
    count = select_int64(k < 1, size, k)
    wrong, shown = "k is larger than the extent of the axis", {"k": k, "the extent": size}
    both = 2 if attrs.ret_type == "both" else 1
    return [count] * both, [ShapeCheck(k <= size, wrong, shown)]


def _topk_lower(attrs: DynTopKAttrs, inputs: Sequence[Tensor], out: Type) -> list[Tensor]:
    first = out.fields[0] if isinstance(out, TupleType) else out
    assert isinstance(first, TensorType)
    k = first.shape[attrs.axis % len(first.shape)]
    selected = topi.topk(inputs[0], k, attrs.axis, attrs.ret_type, attrs.is_ascend, attrs.dtype)
    return [selected] if isinstance(selected, Tensor) else list(selected)


def _topk_reference(attrs: DynTopKAttrs, data: Array, k: Array) -> tuple[Array, ...] | Array:
    size, count = data.shape[attrs.axis], int(k.reshape(-1)[0])
    if count > size:
        raise InputError(f"run: dyn.topk: k is larger than the extent of the axis, {size}: {count}")
    order = np.argsort(data, attrs.axis, kind="stable")
    if not attrs.is_ascend:
        # A stable descending sort: negating the keys would overflow the least integer.
        backwards = np.argsort(np.flip(data, attrs.axis), attrs.axis, kind="stable")
        order = size - 1 - np.flip(backwards, attrs.axis)
    order = order.take(range(count if count >= 1 else size), attrs.axis)
    values = np.take_along_axis(data, order, attrs.axis)
    positions = order.astype(to_numpy(attrs.dtype))
    return {"values": values, "indices": positions}.get(attrs.ret_type, (values, positions))


declare_dynamic_op(
    "dyn.topk",
    ("data", "k"),
    DynTopKAttrs,
    _topk_type,
    _topk_dims,
    _topk_lower,
    _topk_reference,
    "data's shape with `k` along the axis: values, indices, or a tuple of both",
    pattern=OpPattern.OPAQUE,
    fields=lambda attrs: 2,
)


__all__ = ["DynOneHotAttrs", "DynTopKAttrs"]
