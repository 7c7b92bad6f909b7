"""strided_slice with bounds given as tensor arguments.

Bounds are clamped by the same rules as constant ones (slice.py), written as expressions on the
elements of `begin`, `end` and `strides`: the extents they give have names from there on. A stride
of 0 is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, ShapeCheck
from ekiden.ir.prim import NE, AnyDim, PrimExpr, const, fold_binary, maximum, minimum
from ekiden.ir.type import TensorType
from ekiden.relay.op._declare import raise_type_error
from ekiden.relay.op.dynamic import (
    Dims,
    declare_dynamic_op,
    load_elements,
    select_int64,
    shape_vector_length,
)
from ekiden.tir.expr import Buffer
from ekiden.topi.dimensions import normalize_axis
from ekiden.topi.slice import dynamic_strided_slice


@node("relay.attrs.DynStridedSliceAttrs")
class DynStridedSliceAttrs(Attrs):
    """Attributes of dyn.strided_slice; in slice_mode "size", `end` holds extents (-1: all the
    rest); axes default to the leading ones.
    """

    slice_mode: str = "end"
    axes: tuple[int, ...] | None = None
    symbols: tuple[PrimExpr, ...] = ()


def _sliced_axes(attrs: DynStridedSliceAttrs, rank: int, count: int) -> list[int]:
    chosen = range(count) if attrs.axes is None else attrs.axes
    return [normalize_axis(a, rank, "dyn.strided_slice") for a in chosen]


def _slice_type(attrs: DynStridedSliceAttrs, types: Sequence[TensorType]) -> TensorType:
    data = types[0]
    what = "begin", "end", "strides"
    counts = [
        shape_vector_length("dyn.strided_slice", n, t) for n, t in zip(what, types[1:], strict=True)
    ]
    count = max(counts)
    if attrs.slice_mode not in ("end", "size"):
        raise_type_error(
            "dyn.strided_slice", f"slice_mode must be 'end' or 'size', got {attrs.slice_mode!r}"
        )
    if attrs.axes is not None and {*counts} != {len(attrs.axes)}:
        raise_type_error(
            "dyn.strided_slice",
            "begin, end, strides and axes must have one length,"
            f" got {', '.join(map(str, counts))} and {len(attrs.axes)}",
        )
    if count > len(data.shape):
        raise_type_error(
            "dyn.strided_slice", f"{count} bounds for an input of rank {len(data.shape)}"
        )
    axes = _sliced_axes(attrs, len(data.shape), count)
    shape = tuple(AnyDim() if i in axes else d for i, d in enumerate(data.shape))
    return TensorType(shape, data.dtype)


def _slice_dims(attrs: DynStridedSliceAttrs, buffers: Sequence[Buffer]) -> Dims:
    data, begin, end, strides = buffers
    begins, ends, steps = map(load_elements, (begin, end, strides))
    count = max(map(len, (begins, ends, steps)))
    axes = _sliced_axes(attrs, len(data.shape), count)
    by_end = attrs.slice_mode == "end"
    dims: dict[int, PrimExpr] = {}
    for n, axis in enumerate(axes):
        size, step = data.shape[axis], steps[n] if by_end and n < len(steps) else const(1)
        back = step < 0
        requested = begins[n] if n < len(begins) else select_int64(back, size - 1, const(0))
        first = select_int64(requested < 0, requested + size, requested)
        # Backwards, the valid positions are -1 (the end) to size - 1; forwards 0 to size.
        low, high = select_int64(back, const(-1), const(0)), select_int64(back, size - 1, size)
        first = maximum(minimum(first, high), low)
        if n >= len(ends):
            last = select_int64(back, const(-1), size)
        elif by_end:
            last = select_int64(ends[n] < 0, ends[n] + size, ends[n])
        else:
            last = select_int64(ends[n] < 0, size, first + minimum(ends[n], size))
        last = maximum(minimum(last, high), low)  # both are, or their difference may be none
        # A stride of 0 is refused by the check; until then the division must be valid.
        by = select_int64(step.equal(0), const(1), step)
        # A ceiling division: -((first - last) // by) for either sign of the stride.
        dims[axis] = maximum(const(0) - (first - last) // by, 0)
    checks = [ShapeCheck(fold_binary(NE, s, 0), "a stride is 0") for s in steps if by_end]
    return [dims[a] for a in sorted(dims)], checks


def _slice_reference(
    attrs: DynStridedSliceAttrs, data: Array, begin: Array, end: Array, strides: Array
) -> Array:
    cuts: list[slice] = [slice(None)] * data.ndim
    by_end = attrs.slice_mode == "end"
    count = max(map(len, (begin, end, strides)))
    for n, axis in enumerate(_sliced_axes(attrs, data.ndim, count)):
        size = data.shape[axis]
        step = int(strides[n]) if by_end and n < len(strides) else 1
        first = int(begin[n]) if n < len(begin) else 0 if step > 0 else size - 1
        last = int(end[n]) if n < len(end) else None
        if last is not None and not by_end:
            first = max(first + size if first < 0 else first, 0)
            # A negative size takes all that is left (TVM's slice_mode "size").
            last = None if last < 0 else first + last
        elif last is not None and step < 0 and last < -size:
            last = None
        cuts[axis] = slice(first, last, step)
    return data[tuple(cuts)]


declare_dynamic_op(
    "dyn.strided_slice",
    ("data", "begin", "end", "strides"),
    DynStridedSliceAttrs,
    _slice_type,
    _slice_dims,
    lambda attrs, inputs, out: [
        dynamic_strided_slice(
            inputs[0],
            inputs[1],
            inputs[2],
            inputs[3],
            out.shape,
            None if attrs.axes is None else _sliced_axes(attrs, inputs[0].ndim, 0),
            attrs.slice_mode == "end",
        )
    ],
    _slice_reference,
    "per axis, ceil((end - begin) / stride) clipped to data's extent",
)


__all__ = ["DynStridedSliceAttrs"]
