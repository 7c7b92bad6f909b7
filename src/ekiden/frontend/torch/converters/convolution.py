"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ekiden.frontend.common.composite_ops import append_unit_axes
from ekiden.frontend.common.converters import window as shared
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.reducers import reduction_identity
from ekiden.frontend.common.sliding_window import Window, pad_window
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import Converter, ConverterRow, FxNode
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import (
    Dim,
    Shape,
    as_dim,
    as_ints,
    known_int,
    product_of_dims,
    simplify_dim,
    to_attr_dims,
)

Ints = Sequence[int]


def expand_per_axis(values: Ints, rank: int, default: int = 0) -> tuple[int, ...]:
    """Expand an argument to one number per axis; PyTorch may list one for all axes, or none."""
    numbers = tuple(int(v) for v in values)
    if not numbers:
        return (default,) * rank
    return numbers * rank if len(numbers) == 1 and rank > 1 else numbers


def _make_window(
    kernel: Sequence[Dim], stride: Ints, padding: Ints, dilation: Ints = (1,)
) -> Window:
    """Return a window of symmetric padding; a missing stride is the window's extent."""
    rank = len(kernel)
    # Without a stride PyTorch's pooling windows do not overlap.
    sides, steps = (
        expand_per_axis(padding, rank),
        expand_per_axis(stride, rank) if stride else as_ints(kernel),
    )
    return Window(tuple(kernel), steps, expand_per_axis(dilation, rank, 1), sides, sides)


def convert_convolution(
    node: FxNode, x: Value, weight: Value, bias: Value | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int, *_: object,
) -> Expr:  # fmt: skip
    """Convert aten::convolution over one to three spatial axes, with or without a batch."""
    rank = len(weight.type.shape) - 2
    if rank not in (1, 2, 3):
        node.reject(f"expected 1 to 3 spatial axes, got {rank}")
    kernel = node.static_shape(weight.type.shape[2:], "the kernel")
    window = _make_window(kernel, expand_per_axis(stride, rank, 1), padding, dilation)
    columns = known_int(weight.type.shape[1 if transposed else 0])
    if columns is None:
        node.reject("the number of channels must be constant")
    return _apply_with_batch_axis(node, x, rank, lambda data: shared.emit_convolution(
        node, data, node.to_expr(weight), window, groups=groups,
        channels=columns * groups if transposed else columns,
        bias=None if bias is None else node.to_expr(bias),
        output_padding=expand_per_axis(output_padding, rank) if transposed else None,
    ))  # fmt: skip


def _apply_with_batch_axis(node: FxNode, x: Value, rank: int, pool: Callable[[Expr], Expr]) -> Expr:
    """Apply a function to data with a batch axis, which is added and dropped where it is
    missing.
    """
    data = node.to_expr(x)
    if len(x.type.shape) == rank + 2:
        return pool(data)
    return op.squeeze(pool(op.expand_dims(data, axis=0)), axis=[0])


def _max_pool_converter(rank: int) -> Converter:
    def convert(
        node: FxNode, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
        dilation: Ints = (1,), ceil_mode: bool = False,
    ) -> list[Expr | Value | None]:  # fmt: skip
        """Convert max_pool{n}d_with_indices; the flat indices take a second pass and are emitted
        only if used.
        """
        window = _make_window(expand_per_axis(kernel, rank), stride, padding, dilation)
        maxima = _apply_with_batch_axis(
            node,
            x,
            rank,
            lambda data: shared.emit_max_pool(node, data, window, ceil_mode=ceil_mode),
        )
        return [maxima, _max_indices(node, x, window) if node.is_output_used(1) else None]

    return convert


def _max_indices(node: FxNode, x: Value, window: Window) -> Expr:
    """Emit the flat index of each window's maximum within its plane."""
    lead, meta = len(x.type.shape) - len(window.strides), node.output_meta
    assert isinstance(meta, (list, tuple))
    counts = node.symbols.to_shape(meta[0].shape[lead:])
    return shared.ravel_indices(
        node,
        shared.max_pool_indices(node, node.to_expr(x), window, counts, lead),
        x.type.shape[lead:],
    )


def _avg_pool_converter(rank: int) -> Converter:
    def convert(
        node: FxNode, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Expr:  # fmt: skip
        """Emit the mean of each window, or its sum divided by `divisor_override`.

        Integers are summed in float64, which is exact, and divided towards zero.
        """
        window = _make_window(expand_per_axis(kernel, rank), stride, padding)

        def pool(data: Expr) -> Expr:
            """Emit the mean of each window of batched data."""
            return shared.emit_average_pool(node, data, window, "", count_include_pad, ceil_mode)

        def padded_means(data: Expr) -> Expr:
            """Emit the means of windows that include zeros beyond the data."""
            # ceil_mode may need elements beyond the padding, which count as zeros.
            missing = window.overhang(x.type.shape[-rank:], node.out_shape[-rank:])
            after = to_attr_dims(d if (n := known_int(d)) is None else max(n, 0) for d in missing)
            wide = pad_window(node, data, replace(window, padding_after=after), 0)
            return shared.emit_pool("avg", wide, window.without_padding())

        if divisor_override is None:
            return _apply_with_batch_axis(node, x, rank, pool)
        # avg_pool divides by the window's size: multiplying by it gives the sum that
        # divisor_override divides.
        taps, dtype = float(np.prod(window.static_extents)), x.type.dtype
        if is_float(dtype):
            factor = const(taps / divisor_override, dtype)
            return op.multiply(_apply_with_batch_axis(node, x, rank, padded_means), factor)
        x = node.as_value(
            node.scope.attach_span(node.to_expr(x, "float64"))
        )  # whole sums are exact in it
        sums = op.round(
            op.multiply(_apply_with_batch_axis(node, x, rank, padded_means), const(taps, "float64"))
        )
        return op.trunc_divide(op.cast(sums, dtype), const(divisor_override, dtype))

    return convert


def _adaptive_avg_pool_converter(rank: int) -> Converter:
    pools: Mapping[int, Callable[..., Expr]] = {
        1: op.nn.adaptive_avg_pool1d, 2: op.nn.adaptive_avg_pool2d, 3: op.nn.adaptive_avg_pool3d,
    }  # fmt: skip

    def convert(node: FxNode, x: Value, size: Sequence[object]) -> Result:
        """Emit the mean of each bin; one bin per axis is a plain reduction."""
        counts = node.to_dims(size)
        if all(known_int(d) == 1 for d in counts):
            axes = list(range(len(x.type.shape) - rank, len(x.type.shape)))
            if rank == 2 and len(x.type.shape) == 4:
                return op.nn.global_avg_pool2d(node.to_expr(x))
            return op.mean(node.to_expr(x), axis=axes, keepdims=True)
        return _apply_with_batch_axis(node, x, rank, lambda data: pools[rank](data, counts))

    return convert


def _adaptive_max_pool_converter(rank: int) -> Converter:
    pools: Mapping[int, Callable[..., Expr]] = {
        1: op.nn.adaptive_max_pool1d, 2: op.nn.adaptive_max_pool2d, 3: op.nn.adaptive_max_pool3d,
    }  # fmt: skip

    def convert(node: FxNode, x: Value, size: Sequence[object]) -> list[Expr | Value | None]:
        """Emit the maxima of the bins, and their flat indices if used."""
        # Indices cost a gather of every bin, so they are made only if something reads them.
        counts = node.to_dims(size)
        indices = _adaptive_max_indices(node, x, rank) if node.is_output_used(1) else None
        return [
            _apply_with_batch_axis(node, x, rank, lambda data: pools[rank](data, counts)),
            indices,
        ]

    return convert


def _adaptive_max_indices(node: FxNode, x: Value, rank: int) -> Expr:
    """Emit the flat indices of the maxima of bins of different lengths.

    All taps of a bin stand side by side, those beyond its end at the lowest value; the first of the
    largest wins.
    """
    lead = len(x.type.shape) - rank
    data, low = node.to_expr(x), const(reduction_identity("maximum", x.type.dtype), x.type.dtype)
    counts, extents = node.out_shape[lead:], x.type.shape[lead:]
    starts, lengths = [], []
    for index, (count, extent) in enumerate(zip(counts, extents, strict=True)):
        axis = lead + 2 * index  # each axis before has become two
        number, size = op.arange(0, count, 1, dtype="int64"), node.to_expr(extent, "int64")
        out = node.to_expr(count, "int64")
        # Bin i of n spans [floor(i * size / n), ceil((i + 1) * size / n)), as in ATen's adaptive
        # pooling.
        start = op.floor_divide(op.multiply(number, size), out)
        after = op.multiply(op.add(number, const(1, "int64")), size)
        end = op.floor_divide(op.add(after, op.subtract(out, const(1, "int64"))), out)
        length = simplify_dim(as_dim(extent) // as_dim(count) + 2)
        taps = op.add(op.expand_dims(start, axis=1), op.arange(0, length, 1, dtype="int64"))
        data = op.take(data, taps, axis=axis, mode="clip")
        later = rank - index - 1  # axes behind
        inside = op.less(taps, op.expand_dims(end, axis=1))
        inside = op.expand_dims(inside, axis=2, num_newaxis=later) if later else inside
        data = op.where(inside, data, low)
        starts.append(start)
        lengths.append(length)
    return _flat_bin_indices(node, data, extents, starts, tuple(lengths), lead)


def _flat_bin_indices(
    node: FxNode, data: Expr, extents: Shape, starts: Sequence[Expr], lengths: Shape, lead: int
) -> Expr:
    """Emit the flat index of the maximum in each bin of [..., count, length, count, length]."""
    rank = len(starts)
    order = [*range(lead), *(lead + 2 * a for a in range(rank)),
             *(lead + 2 * a + 1 for a in range(rank))]  # fmt: skip
    turned = node.scope.attach_span(op.transpose(data, axes=order))
    shape = node.tensor_type_of(turned).shape[: lead + rank]
    joined = op.reshape(turned, (*shape, product_of_dims(lengths)), allowzero=True)
    best = op.cast(op.argmax(joined, axis=-1, keepdims=False), "int64")
    flat: Expr = const(0, "int64")
    for axis in range(rank):
        below = node.to_expr(product_of_dims(lengths[axis + 1 :]), "int64")
        own = op.floor_mod(op.floor_divide(best, below), node.to_expr(lengths[axis], "int64"))
        start = append_unit_axes(starts[axis], rank - 1 - axis)
        step = node.to_expr(product_of_dims(extents[axis + 1 :]), "int64")
        flat = op.add(flat, op.multiply(op.add(own, start), step))
    return flat


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("convolution", convert_convolution),
    *((f"max_pool{n}d_with_indices", _max_pool_converter(n)) for n in (1, 2, 3)),
    *((f"avg_pool{n}d", _avg_pool_converter(n)) for n in (1, 2, 3)),
    ("_adaptive_avg_pool2d", _adaptive_avg_pool_converter(2)),
    ("_adaptive_avg_pool3d", _adaptive_avg_pool_converter(3)),
    ("adaptive_avg_pool1d", _adaptive_avg_pool_converter(1)),
    *((f"adaptive_max_pool{n}d", _adaptive_max_pool_converter(n)) for n in (2, 3)),
)
# fmt: on
