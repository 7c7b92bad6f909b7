"""Gradients of reductions and of operators that move elements.

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
from ekiden.relay.gradient.helpers import broadcast_like, scalar, shape_like, shaped, sum_to, tensor
from ekiden.relay.op.algebra import VarianceAttrs
from ekiden.relay.op.gradient import register_gradient
from ekiden.relay.op.index import GatherNDAttrs, OneHotAttrs, TakeAttrs
from ekiden.relay.op.join import ConcatenateAttrs, SplitAttrs, StackAttrs
from ekiden.relay.op.nn.padding import PadAttrs
from ekiden.relay.op.reduce import ReduceAttrs, reduced_axes
from ekiden.relay.op.slice import StridedSliceAttrs, sliced
from ekiden.relay.op.transform import (
    RepeatAttrs,
    ReverseAttrs,
    TileAttrs,
    TransposeAttrs,
    transposed_axes,
)
from ekiden.topi.dimensions import as_dim, known

Expr = RelayExpr


def _with_reduced_axes(call: Call, value: Expr) -> Expr:
    """Return a value of the shape of a reduction's result, with 1 where an axis was reduced."""
    attrs = call.attrs
    assert isinstance(attrs, ReduceAttrs) and isinstance(call.op, Op)
    if not attrs.keepdims:
        for axis in reduced_axes(call.op.name, attrs, len(tensor(call.args[0]).shape)):
            value = op.expand_dims(value, axis)
    return value


@register_gradient("sum")
def _sum(call: Call, grad: Expr) -> Sequence[Expr]:
    return [broadcast_like(_with_reduced_axes(call, grad), call.args[0])]


@register_gradient("mean")
def _mean(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, ReduceAttrs)
    axes = reduced_axes("mean", attrs, len(tensor(x).shape))
    share = over_number(grad, x, axes)
    return [broadcast_like(_with_reduced_axes(call, share), x)]


def over_number(value: Expr, x: Expr, axes: Sequence[int], less: int = 0) -> Expr:
    """Return a value of the dtype of x divided by the number of elements that x has along axes.

    `less` elements are left out; symbolic sizes are counted at run time. The division is in float32
    where the dtype has 16 bits: float16 ends at 65504, and bfloat16 rounds 257 to 256.
    """
    dtype = tensor(x).dtype
    wide = "float32" if itemsize(dtype) < 4 else dtype
    sizes = [known(tensor(x).shape[axis]) for axis in axes]
    static_sizes = [size for size in sizes if size is not None]
    if len(static_sizes) == len(sizes):
        number: Expr = const(float(math.prod(static_sizes) - less), wide)
    else:
        ones = op.sum(op.ones([tensor(x).shape[a] for a in axes], wide))
        number = op.subtract(ones, const(float(less), wide)) if less else ones
    return _over(value, number, dtype)


def over_count(value: Expr, mask: Expr, axes: Sequence[int], dtype: str) -> Expr:
    """Return a value of a dtype over how many elements of a mask are set along axes, which stay
    with an extent of 1. In float32 where the dtype has 16 bits, as in over_number.
    """
    wide = "float32" if itemsize(dtype) < 4 else dtype
    return _over(value, op.sum(op.cast(mask, wide), axis=axes, keepdims=True), dtype)


def over_size(value: Expr, size: int, dtype: str) -> Expr:
    """Return a value of a dtype over a number of elements that a 16-bit dtype may not hold."""
    return _over(value, const(float(size), "float32" if itemsize(dtype) < 4 else dtype), dtype)


def _over(value: Expr, number: Expr, dtype: str) -> Expr:
    """Return a value of a dtype over a number, which has 32 bits where the dtype has 16."""
    if itemsize(dtype) >= 4:
        return op.divide(value, number)
    return op.cast(op.divide(op.cast(value, "float32"), number), dtype)


def _extreme(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the gradient shared by the elements that are the extreme."""
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, ReduceAttrs) and isinstance(call.op, Op)
    axes = reduced_axes(call.op.name, attrs, len(tensor(x).shape))
    is_extreme = op.equal(x, _with_reduced_axes(call, call))
    share = over_count(_with_reduced_axes(call, grad), is_extreme, axes, tensor(x).dtype)
    return [op.multiply(share, op.cast(is_extreme, tensor(x).dtype))]


register_gradient("max", _extreme)
register_gradient("min", _extreme)


@register_gradient("prod")
def _prod(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the gradient of a product: for each element the product of all but it.

    With two zeros or more it is 0 for all elements, with one zero for all but that.
    """
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, ReduceAttrs)
    axes = reduced_axes("prod", attrs, len(tensor(x).shape))
    zero, one = scalar(0.0, x), scalar(1.0, x)
    is_zero = op.equal(x, zero)
    count = op.sum(op.cast(is_zero, "int32"), axis=axes, keepdims=True)
    without = op.where(is_zero, one, x)
    product = op.prod(without, axis=axes, keepdims=True)
    at_zero = op.where(op.equal(count, const(1, "int32")), product, zero)
    beside = op.where(op.equal(count, const(0, "int32")), op.divide(product, without), zero)
    product_of_rest = op.where(is_zero, at_zero, beside)
    return [op.multiply(_with_reduced_axes(call, grad), product_of_rest)]


@register_gradient("cumsum")
def _cumsum(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the sums of the gradient from the end, as x[i] is in every sum from i on.

    Without an axis the elements are summed as one row, which is the result.
    """
    axis = getattr(call.attrs, "axis", None)
    exclusive = bool(getattr(call.attrs, "exclusive", False))
    along = 0 if axis is None else axis
    backwards = op.cumsum(op.reverse(grad, along), axis=along, exclusive=exclusive)
    sums = op.reverse(backwards, along)
    return [sums if axis is not None else shape_like(sums, call.args[0])]


@register_gradient("variance")
def _variance(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return 2 * (x - mean(x)) / count: the effect through the mean adds up to nothing."""
    (x,) = call.args
    attrs = call.attrs
    assert isinstance(attrs, VarianceAttrs)
    axes = reduced_axes("variance", attrs, len(tensor(x).shape))
    if not attrs.keepdims:
        for axis in axes:
            grad = op.expand_dims(grad, axis)
    away = op.subtract(x, op.mean(x, axis=axes, keepdims=True))
    share = over_number(op.multiply(grad, scalar(2.0, x)), x, axes, int(attrs.unbiased))
    return [op.multiply(share, away)]


def _reshaped(call: Call, grad: Expr) -> Sequence[Expr | None]:
    return [shape_like(grad, call.args[0]), *[None] * (len(call.args) - 1)]


for _name in (
    *("reshape", "squeeze", "expand_dims", "nn.batch_flatten", "contrib_reverse_reshape"),
    *("reshape_like", "dyn.reshape", "dyn.squeeze", "dyn.expand_dims"),
):
    register_gradient(_name, _reshaped)


@register_gradient("annotation.checkpoint")
def _checkpoint(call: Call, grad: Expr) -> Sequence[Expr]:
    return [grad]


@register_gradient("transpose")
def _transpose(call: Call, grad: Expr) -> Sequence[Expr]:
    attrs = call.attrs
    assert isinstance(attrs, TransposeAttrs)
    axes = transposed_axes(attrs, len(tensor(call).shape))
    return [op.transpose(grad, [axes.index(i) for i in range(len(axes))])]


@register_gradient("broadcast_to")
def _broadcast_to(call: Call, grad: Expr) -> Sequence[Expr]:
    return [sum_to(grad, tensor(call).shape, call.args[0])]


def _slice(data: Expr, axis: int, begin: PrimExpr | int, end: PrimExpr | int) -> Expr:
    return op.strided_slice(data, [begin], [end], axes=[axis])


@register_gradient("concatenate")
def _concatenate(call: Call, grad: Expr) -> Sequence[Expr]:
    attrs, (operands,) = call.attrs, call.args
    assert isinstance(attrs, ConcatenateAttrs)
    kinds = operands.checked_type.fields  # type: ignore[attr-defined]
    axis = attrs.axis % len(kinds[0].shape)
    begin: PrimExpr | int = 0
    fields = []
    for kind in kinds:
        end = kind.shape[axis] + begin
        fields.append(_slice(grad, axis, begin, end))
        begin = end
    return [Tuple(tuple(fields))]


@register_gradient("stack")
def _stack(call: Call, grad: Expr) -> Sequence[Expr]:
    attrs, (operands,) = call.attrs, call.args
    assert isinstance(attrs, StackAttrs)
    axis = attrs.axis % len(tensor(call).shape)
    count = len(operands.checked_type.fields)  # type: ignore[attr-defined]
    return [
        Tuple(tuple(op.squeeze(_slice(grad, axis, i, i + 1), axis=[axis]) for i in range(count)))
    ]


@register_gradient("split")
def _split(call: Call, grad: Expr) -> Sequence[Expr]:
    assert isinstance(call.attrs, SplitAttrs)
    return [op.concatenate(grad, call.attrs.axis)]


@register_gradient("reverse")
def _reverse(call: Call, grad: Expr) -> Sequence[Expr]:
    assert isinstance(call.attrs, ReverseAttrs)
    return [op.reverse(grad, call.attrs.axis)]


@register_gradient("nn.pad")
def _pad(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Return the gradient cropped, and the remainder for the value of the border.

    Borders must be constant.
    """
    assert isinstance(call.attrs, PadAttrs)
    if call.attrs.pad_mode != "constant":
        raise ValueError(f"pad_mode {call.attrs.pad_mode!r}")
    crop = [(-before, -after) for before, after in call.attrs.pad_width]
    inner = op.nn.pad(grad, crop, scalar(0.0, call))
    return [inner, _filled(call.args[1], call, op.subtract(op.sum(grad), op.sum(inner)))]


def _filled(value: Expr, result: Expr, total: Expr) -> Expr | None:
    """Return the gradient of a number that fills elements of a result, whose gradients have this
    sum.
    """
    kind = tensor(value)
    if "float" not in kind.dtype:
        return None
    gradient = total if tensor(result).dtype == kind.dtype else op.cast(total, kind.dtype)
    return shaped(gradient, kind.shape) if kind.shape else gradient


@register_gradient("full")
def _full(call: Call, grad: Expr) -> Sequence[Expr | None]:
    return [_filled(call.args[0], call, op.sum(grad))]


@register_gradient("one_hot")
def _one_hot(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Return for each of the two values the sum of the gradient of elements that have it."""
    indices, on, off = call.args
    attrs = call.attrs
    assert isinstance(attrs, OneHotAttrs)
    is_on = op.one_hot(
        indices, const(True, "bool"), const(False, "bool"), attrs.depth, attrs.axis, "bool"
    )
    zero = op.zeros_like(grad)
    return [
        None,
        _filled(on, call, op.sum(op.where(is_on, grad, zero))),
        _filled(off, call, op.sum(op.where(is_on, zero, grad))),
    ]


@register_gradient("strided_slice")
def _strided_slice(call: Call, grad: Expr) -> Sequence[Expr]:
    """Return the gradient with zeros between its elements for steps, and zeros around.

    Negative steps are reversed first.
    """
    (x,) = call.args
    assert isinstance(call.attrs, StridedSliceAttrs)
    zero = scalar(0.0, x)
    ranges = sliced(call.attrs, tensor(x).shape)
    if any(known(size) == 0 for _, _, size in ranges):  # no step lies between no elements
        return [op.zeros_like(x)]
    widths = []
    for axis, (first, stride, size) in enumerate(ranges):
        # A slice that runs backwards is the reversed slice from its last element.
        if stride < 0:
            grad = op.reverse(grad, axis)
            first, stride = first + (size - 1) * stride, -stride
        if stride > 1:
            grad = _apart(grad, axis, stride, [r[2] for r in ranges], zero)
            ranges[axis] = (first, 1, (size - 1) * stride + 1)
        widths.append((first, tensor(x).shape[axis] - first - (size - 1) * stride - 1))
    return [op.nn.pad(grad, widths, zero)]


def _apart(grad: Expr, axis: int, step: int, shape: Sequence[PrimExpr], zero: Expr) -> Expr:
    """Return elements along an axis with step - 1 zeros between them."""
    wide = op.expand_dims(grad, axis + 1)
    widths = [(0, 0)] * (len(shape) + 1)
    widths[axis + 1] = (0, step - 1)
    size = shape[axis] * step
    flat = [*shape[:axis], size, *shape[axis + 1 :]]
    merged = shaped(op.nn.pad(wide, widths, zero), flat)
    return _slice(merged, axis, 0, size - (step - 1))


@register_gradient("take")
def _take(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Return the gradient added up at each index, as often as it was taken."""
    data, indices = call.args
    attrs = call.attrs
    assert isinstance(attrs, TakeAttrs)
    if attrs.batch_dims:
        raise ValueError(f"batch_dims {attrs.batch_dims}")
    zeros = op.zeros_like(data)
    if attrs.axis is None:
        zeros = op.reshape(zeros, (-1,))
    shape = tensor(data).shape if attrs.axis is not None else (_product(tensor(data).shape),)
    axis = (attrs.axis or 0) % len(shape)
    # scatter_nd writes along leading axes, so the axis is moved to the front and back.
    if axis:
        rank, last = len(tensor(indices).shape), len(tensor(call).shape)
        zeros = op.transpose(zeros, [axis, *range(axis), *range(axis + 1, len(shape))])
        grad = op.transpose(
            grad, [*range(axis, axis + rank), *range(axis), *range(axis + rank, last)]
        )
    at = op.expand_dims(_in_range(indices, shape[axis], attrs.mode), 0)
    summed = op.scatter_nd(zeros, at, grad, "add")
    if axis:
        summed = op.transpose(summed, [*range(1, axis + 1), 0, *range(axis + 1, len(shape))])
    return [shape_like(summed, data) if attrs.axis is None else summed, None]


def _in_range(indices: Expr, size: PrimExpr, mode: str) -> Expr:
    """Return the positions that `take` reads at indices; "fast" promises that these are in
    range.
    """
    if mode == "fast":
        return indices
    dtype = tensor(indices).dtype
    count = known(size)
    if count is None:
        raise ValueError(f"mode {mode!r} along an axis of unknown size")
    length, zero = const(count, dtype), const(0, dtype)
    if mode == "wrap":
        return op.floor_mod(indices, length)
    if mode == "raise":  # negative ones count from the end
        return op.where(op.less(indices, zero), op.add(indices, length), indices)
    return op.maximum(op.minimum(indices, const(count - 1, dtype)), zero)


def _product(dims: Sequence[PrimExpr]) -> PrimExpr:
    total = as_dim(1)
    for dim in dims:
        total = dim * total
    return total


@register_gradient("gather_nd")
def _gather_nd(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Return the gradient of each slice added up at its coordinates."""
    data, indices = call.args
    assert isinstance(call.attrs, GatherNDAttrs)
    if call.attrs.batch_dims:
        raise ValueError(f"batch_dims {call.attrs.batch_dims}")
    return [op.scatter_nd(op.zeros_like(data), indices, grad, "add"), None]


@register_gradient("dyn.arange")
def _dynamic_arange(call: Call, grad: Expr) -> Sequence[Expr | None]:
    """Return the gradients of start and step of start + i * step; `stop` only decides the
    length.
    """
    start, _stop, step = call.args
    position = op.cumsum(op.ones_like(grad), axis=0, exclusive=True)
    moved = op.sum(op.multiply(grad, position))
    return [_filled(start, call, op.sum(grad)), None, _filled(step, call, moved)]


@register_gradient("dyn.full")
def _dynamic_full(call: Call, grad: Expr) -> Sequence[Expr | None]:
    return [_filled(call.args[0], call, op.sum(grad)), None]


@register_gradient("tile")
def _tile(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    assert isinstance(call.attrs, TileAttrs)
    shape = tensor(x).shape
    copies: list[PrimExpr | int] = [*call.attrs.reps]
    reps = [*[1] * (len(shape) - len(copies)), *copies]
    lead = len(reps) - len(shape)
    split_shape: list[PrimExpr | int] = list(reps[:lead])
    summed = list(range(lead))
    # Each axis of copies becomes a pair of axes, of which the first is summed over.
    for rep, dim in zip(reps[lead:], shape, strict=True):
        summed.append(len(split_shape))
        split_shape += [rep, dim]
    return [op.sum(shaped(grad, split_shape), axis=summed)]


@register_gradient("repeat")
def _repeat(call: Call, grad: Expr) -> Sequence[Expr]:
    (x,) = call.args
    assert isinstance(call.attrs, RepeatAttrs)
    shape = tensor(x).shape
    axis = call.attrs.axis % len(shape)
    split_shape: list[PrimExpr | int] = [*shape[: axis + 1], call.attrs.repeats, *shape[axis + 1 :]]
    return [op.sum(shaped(grad, split_shape), axis=axis + 1)]
