"""Gradients of reductions and data movement operators.

What moves elements is a matrix of zeros and ones, whose transpose moves gradients back: a slice
becomes a pad, a pad a slice, a concatenation slices, a repetition a sum, a gather a scatter that
adds up. What reduces hands its gradient to each element, in proportion: 1 for a sum, 1 / count for
a mean, to those that are the extreme in equal shares for max and min, so that their sum stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden.ir.dtype import itemsize
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Call, Tuple, const
from ekiden.relay.gradient.helpers import (
    broadcast_to_target,
    reshape_static,
    reshape_to,
    scalar_like,
    sum_to_shape,
    tensor_type_of,
)
from ekiden.relay.op.gradient import register_gradient
from ekiden.relay.op.index import GatherNDAttrs, OneHotAttrs, TakeAttrs
from ekiden.relay.op.join import ConcatenateAttrs, SplitAttrs, StackAttrs
from ekiden.relay.op.nn.padding import PadAttrs
from ekiden.relay.op.reduce import ReduceAttrs, reduced_axes
from ekiden.relay.op.slice import StridedSliceAttrs, normalize_slice
from ekiden.relay.op.tensor_math import VarianceAttrs
from ekiden.relay.op.transform import (
    RepeatAttrs,
    ReverseAttrs,
    TileAttrs,
    TransposeAttrs,
    normalize_transpose_axes,
)
from ekiden.topi.dimensions import as_dim, known_int

Expr = RelayExpr


def _restore_reduced_axes(call: Call, value: Expr) -> Expr:
    """Reshape a reduction's result to keep the reduced axes with extent 1."""
    attrs = call.attrs
    assert isinstance(attrs, ReduceAttrs) and isinstance(call.op, Op)
    if not attrs.keepdims:
        for axis in reduced_axes(call.op.name, attrs, len(tensor_type_of(call.args[0]).shape)):
            value = op.expand_dims(value, axis)
    return value


@register_gradient("sum")
def _sum_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    return [broadcast_to_target(_restore_reduced_axes(call, grad), call.args[0])]


@register_gradient("mean")
def _mean_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, ReduceAttrs)
    axes = reduced_axes("mean", attrs, len(tensor_type_of(x).shape))
    share = divide_by_extent(grad, x, axes)
    return [broadcast_to_target(_restore_reduced_axes(call, share), x)]


def divide_by_extent(value: Expr, x: Expr, axes: Sequence[int], less: int = 0) -> Expr:
    """Divide a value by the number of elements of x along axes.

    `less` elements are left out; symbolic sizes are counted at run time. The division is in float32
    where the dtype has 16 bits: float16 ends at 65504, and bfloat16 rounds 257 to 256.
    """
    dtype = tensor_type_of(x).dtype
    wide = "float32" if itemsize(dtype) < 4 else dtype
    sizes = [known_int(tensor_type_of(x).shape[axis]) for axis in axes]
    static_sizes = [size for size in sizes if size is not None]
    if len(static_sizes) == len(sizes):
        number: Expr = const(float(math.prod(static_sizes) - less), wide)
    else:
        # A symbolic size becomes a number by counting.
        ones = op.sum(op.ones([tensor_type_of(x).shape[a] for a in axes], wide))
        number = op.subtract(ones, const(float(less), wide)) if less else ones
    return _divide(value, number, dtype)


def divide_by_mask_count(value: Expr, mask: Expr, axes: Sequence[int], dtype: str) -> Expr:
    """Divide a value by the number of set mask elements along axes, which keep extent 1; in float32
    where the dtype has 16 bits.
    """
    wide = "float32" if itemsize(dtype) < 4 else dtype
    return _divide(value, op.sum(op.cast(mask, wide), axis=axes, keepdims=True), dtype)


def divide_by_size(value: Expr, size: int, dtype: str) -> Expr:
    """Divide a value by a size that may exceed the range of 16-bit dtypes."""
    return _divide(value, const(float(size), "float32" if itemsize(dtype) < 4 else dtype), dtype)


def _divide(value: Expr, number: Expr, dtype: str) -> Expr:
    """Divide a value by a number, in float32 for 16-bit dtypes."""
    if itemsize(dtype) >= 4:
        return op.divide(value, number)
    return op.cast(op.divide(op.cast(value, "float32"), number), dtype)


def _max_min_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Distribute the gradient evenly among the elements equal to the extremum."""
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, ReduceAttrs) and isinstance(call.op, Op)
    axes = reduced_axes(call.op.name, attrs, len(tensor_type_of(x).shape))
    is_extreme = op.equal(x, _restore_reduced_axes(call, call))
    share = divide_by_mask_count(
        _restore_reduced_axes(call, grad), is_extreme, axes, tensor_type_of(x).dtype
    )
    return [op.multiply(share, op.cast(is_extreme, tensor_type_of(x).dtype))]


register_gradient("max", _max_min_gradient)
register_gradient("min", _max_min_gradient)


@register_gradient("prod")
def _prod_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the gradient of a product: the product of all other elements, times g.

    With two zeros or more it is 0 for all elements, with one zero for all but that.
    """
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, ReduceAttrs)
    axes = reduced_axes("prod", attrs, len(tensor_type_of(x).shape))
    zero, one = scalar_like(0.0, x), scalar_like(1.0, x)
    is_zero = op.equal(x, zero)
    count = op.sum(op.cast(is_zero, "int32"), axis=axes, keepdims=True)
    # Divided by 1 where there is a 0, so that nothing becomes a NaN.
    without = op.where(is_zero, one, x)
    product = op.prod(without, axis=axes, keepdims=True)
    at_zero = op.where(op.equal(count, const(1, "int32")), product, zero)
    beside = op.where(op.equal(count, const(0, "int32")), op.divide(product, without), zero)
    product_of_rest = op.where(is_zero, at_zero, beside)
    return [op.multiply(_restore_reduced_axes(call, grad), product_of_rest)]


@register_gradient("cumsum")
def _cumsum_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the reversed cumulative sum of the gradient, since x[i] enters every sum from i on.

    Without an axis the elements are summed as one row, which is the result.
    """
    axis = getattr(call.attrs, "axis", None)
    exclusive = bool(getattr(call.attrs, "exclusive", False))
    along = 0 if axis is None else axis
    backwards = op.cumsum(op.reverse(grad, along), axis=along, exclusive=exclusive)
    sums = op.reverse(backwards, along)
    return [sums if axis is not None else reshape_to(sums, call.args[0])]


@register_gradient("variance")
def _variance_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return 2 * (x - mean(x)) / count * g; the terms through the mean cancel."""
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, VarianceAttrs)
    axes = reduced_axes("variance", attrs, len(tensor_type_of(x).shape))
    if not attrs.keepdims:
        for axis in axes:
            grad = op.expand_dims(grad, axis)
    away = op.subtract(x, op.mean(x, axis=axes, keepdims=True))
    share = divide_by_extent(op.multiply(grad, scalar_like(2.0, x)), x, axes, int(attrs.unbiased))
    return [op.multiply(share, away)]


def _reshape_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    return [reshape_to(grad, call.args[0]), *[None] * (len(call.args) - 1)]


for _name in (
    *("reshape", "squeeze", "expand_dims", "nn.batch_flatten", "contrib_reverse_reshape"),
    *("reshape_like", "dyn.reshape", "dyn.squeeze", "dyn.expand_dims"),
):
    register_gradient(_name, _reshape_gradient)


@register_gradient("annotation.checkpoint")
def _checkpoint_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    return [grad]


@register_gradient("transpose")
def _transpose_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    attrs = call.attrs
    assert isinstance(attrs, TransposeAttrs)
    axes = normalize_transpose_axes(attrs, len(tensor_type_of(call).shape))
    return [op.transpose(grad, [axes.index(i) for i in range(len(axes))])]


@register_gradient("broadcast_to")
def _broadcast_to_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    return [sum_to_shape(grad, tensor_type_of(call).shape, call.args[0])]


def _slice_axis(data: Expr, axis: int, begin: PrimExpr | int, end: PrimExpr | int) -> Expr:
    return op.strided_slice(data, [begin], [end], axes=[axis])


@register_gradient("concatenate")
def _concatenate_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    attrs, (operands,) = call.attrs, call.args
    assert isinstance(attrs, ConcatenateAttrs)
    kinds = operands.checked_type.fields  # type: ignore[attr-defined]
    axis = attrs.axis % len(kinds[0].shape)
    begin: PrimExpr | int = 0
    fields = []
    for kind in kinds:
        end = kind.shape[axis] + begin
        fields.append(_slice_axis(grad, axis, begin, end))
        begin = end
    return [Tuple(tuple(fields))]


@register_gradient("stack")
def _stack_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    attrs, (operands,) = call.attrs, call.args
    assert isinstance(attrs, StackAttrs)
    axis = attrs.axis % len(tensor_type_of(call).shape)
    count = len(operands.checked_type.fields)  # type: ignore[attr-defined]
    return [
        Tuple(
            tuple(op.squeeze(_slice_axis(grad, axis, i, i + 1), axis=[axis]) for i in range(count))
        )
    ]


@register_gradient("split")
def _split_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    assert isinstance(call.attrs, SplitAttrs)
    return [op.concatenate(grad, call.attrs.axis)]


@register_gradient("reverse")
def _reverse_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    assert isinstance(call.attrs, ReverseAttrs)
    return [op.reverse(grad, call.attrs.axis)]


@register_gradient("nn.pad")
def _pad_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Return the cropped gradient, and its remainder for the pad value.

    Borders must be constant.
    """
    assert isinstance(call.attrs, PadAttrs)
    if call.attrs.pad_mode != "constant":
        raise ValueError(f"pad_mode {call.attrs.pad_mode!r}")
    crop = [(-before, -after) for before, after in call.attrs.pad_width]
    inner = op.nn.pad(grad, crop, scalar_like(0.0, call))
    # The gradients of border elements: those of all less those of the data.
    return [
        inner,
        _fill_value_gradient(call.args[1], call, op.subtract(op.sum(grad), op.sum(inner))),
    ]


def _fill_value_gradient(value: Expr, result: Expr, total: Expr) -> Expr | None:
    """Return the gradient of a fill value, given the sum over the filled elements."""
    kind = tensor_type_of(value)
    if "float" not in kind.dtype:
        return None
    gradient = total if tensor_type_of(result).dtype == kind.dtype else op.cast(total, kind.dtype)
    return reshape_static(gradient, kind.shape) if kind.shape else gradient


@register_gradient("full")
def _full_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    return [_fill_value_gradient(call.args[0], call, op.sum(grad))]


@register_gradient("one_hot")
def _one_hot_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Return the gradients of on_value and off_value: sums over their elements."""
    indices, on, off = call.args
    attrs = call.attrs
    assert isinstance(attrs, OneHotAttrs)
    is_on = op.one_hot(
        indices, const(True, "bool"), const(False, "bool"), attrs.depth, attrs.axis, "bool"
    )
    zero = op.zeros_like(grad)
    return [
        None,
        _fill_value_gradient(on, call, op.sum(op.where(is_on, grad, zero))),
        _fill_value_gradient(off, call, op.sum(op.where(is_on, zero, grad))),
    ]


@register_gradient("strided_slice")
def _strided_slice_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    """Scatter the gradient back into zeros: dilate it by the strides, and pad it.

    Negative steps are reversed first.
    """
    (x,) = call.args
    assert isinstance(call.attrs, StridedSliceAttrs)
    zero = scalar_like(0.0, x)
    ranges = normalize_slice(call.attrs, tensor_type_of(x).shape)
    if any(known_int(size) == 0 for _, _, size in ranges):  # no step lies between no elements
        return [op.zeros_like(x)]
    widths = []
    for axis, (first, stride, size) in enumerate(ranges):
        # A slice that runs backwards is the reversed slice from its last element.
        if stride < 0:
            grad = op.reverse(grad, axis)
            first, stride = first + (size - 1) * stride, -stride
        if stride > 1:
            grad = _insert_zeros(grad, axis, stride, [r[2] for r in ranges], zero)
            ranges[axis] = (first, 1, (size - 1) * stride + 1)
        # What was cut off at both ends comes back as zeros.
        widths.append((first, tensor_type_of(x).shape[axis] - first - (size - 1) * stride - 1))
    return [op.nn.pad(grad, widths, zero)]


def _insert_zeros(grad: Expr, axis: int, step: int, shape: Sequence[PrimExpr], zero: Expr) -> Expr:
    """Insert step - 1 zeros between the elements along an axis."""
    wide = op.expand_dims(grad, axis + 1)
    widths = [(0, 0)] * (len(shape) + 1)
    widths[axis + 1] = (0, step - 1)
    size = shape[axis] * step
    flat = [*shape[:axis], size, *shape[axis + 1 :]]
    merged = reshape_static(op.nn.pad(wide, widths, zero), flat)
    # No zeros behind the last element.
    return _slice_axis(merged, axis, 0, size - (step - 1))


@register_gradient("take")
def _take_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Scatter-add the gradient at the taken indices."""
    data, indices = call.args
    attrs = call.attrs
    assert isinstance(attrs, TakeAttrs)
    if attrs.batch_dims:
        raise ValueError(f"batch_dims {attrs.batch_dims}")
    zeros = op.zeros_like(data)
    if attrs.axis is None:
        zeros = op.reshape(zeros, (-1,))
    shape = (
        tensor_type_of(data).shape
        if attrs.axis is not None
        else (_multiply_dims(tensor_type_of(data).shape),)
    )
    axis = (attrs.axis or 0) % len(shape)
    # scatter_nd writes along leading axes, so the axis is moved to the front and back.
    if axis:
        rank, last = len(tensor_type_of(indices).shape), len(tensor_type_of(call).shape)
        # scatter_nd indexes leading axes.
        zeros = op.transpose(zeros, [axis, *range(axis), *range(axis + 1, len(shape))])
        grad = op.transpose(
            grad, [*range(axis, axis + rank), *range(axis), *range(axis + rank, last)]
        )
    axis_index = op.expand_dims(_normalize_indices(indices, shape[axis], attrs.mode), 0)
    summed = op.scatter_nd(zeros, axis_index, grad, "add")
    if axis:
        summed = op.transpose(summed, [*range(1, axis + 1), 0, *range(axis + 1, len(shape))])
    return [reshape_to(summed, data) if attrs.axis is None else summed, None]


def _normalize_indices(indices: Expr, size: PrimExpr, mode: str) -> Expr:
    """Normalise indices as `take` reads them; mode "fast" promises that they are in range."""
    if mode == "fast":
        return indices
    dtype = tensor_type_of(indices).dtype
    count = known_int(size)
    if count is None:
        raise ValueError(f"mode {mode!r} along an axis of unknown size")
    length, zero = const(count, dtype), const(0, dtype)
    if mode == "wrap":
        return op.floor_mod(indices, length)
    if mode == "raise":  # negative ones count from the end
        return op.where(op.less(indices, zero), op.add(indices, length), indices)
    return op.maximum(op.minimum(indices, const(count - 1, dtype)), zero)


def _multiply_dims(dims: Sequence[PrimExpr]) -> PrimExpr:
    total = as_dim(1)
    for dim in dims:
        total = dim * total
    return total


@register_gradient("gather_nd")
def _gather_nd_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Scatter-add each slice's gradient at its coordinates."""
    data, indices = call.args
    assert isinstance(call.attrs, GatherNDAttrs)
    if call.attrs.batch_dims:
        raise ValueError(f"batch_dims {call.attrs.batch_dims}")
    return [op.scatter_nd(op.zeros_like(data), indices, grad, "add"), None]


@register_gradient("dyn.arange")
def _dynamic_arange_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Return the gradients of start and step of start + i * step; `stop` only sets the length."""
    start, _stop, step = call.args
    position = op.cumsum(op.ones_like(grad), axis=0, exclusive=True)
    moved = op.sum(op.multiply(grad, position))
    return [
        _fill_value_gradient(start, call, op.sum(grad)),
        None,
        _fill_value_gradient(step, call, moved),
    ]


@register_gradient("dyn.full")
def _dynamic_full_gradient(call: Call, grad: Expr) -> Sequence[Expr | None]:
    return [_fill_value_gradient(call.args[0], call, op.sum(grad)), None]


@register_gradient("tile")
def _tile_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    assert isinstance(call.attrs, TileAttrs)
    shape = tensor_type_of(x).shape
    copies: list[PrimExpr | int] = [*call.attrs.reps]
    reps = [*[1] * (len(shape) - len(copies)), *copies]
    lead = len(reps) - len(shape)
    split_shape: list[PrimExpr | int] = list(reps[:lead])
    summed = list(range(lead))
    # Each axis of copies becomes a pair of axes, of which the first is summed over.
    for rep, dim in zip(reps[lead:], shape, strict=True):
        summed.append(len(split_shape))
        split_shape += [rep, dim]
    return [op.sum(reshape_static(grad, split_shape), axis=summed)]


@register_gradient("repeat")
def _repeat_gradient(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    assert isinstance(call.attrs, RepeatAttrs)
    shape = tensor_type_of(x).shape
    axis = call.attrs.axis % len(shape)
    split_shape: list[PrimExpr | int] = [*shape[: axis + 1], call.attrs.repeats, *shape[axis + 1 :]]
    return [op.sum(reshape_static(grad, split_shape), axis=axis + 1)]
