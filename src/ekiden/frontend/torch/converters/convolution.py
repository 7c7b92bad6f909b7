"""Convolutions and pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ekiden.frontend.common.combined import neutral
from ekiden.frontend.common.converters import window as shared
from ekiden.frontend.common.formulas import append_axes
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value
from ekiden.frontend.common.windows import Window, padded
from ekiden.frontend.torch.node import Converter, Node, Row
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Dim, Shape, as_attr, as_dim, as_ints, known, product, tidy

Ints = Sequence[int]


def spread(values: Ints, rank: int, default: int = 0) -> tuple[int, ...]:
    """Return one number for each axis; PyTorch may list one for all axes, or none."""
    numbers = tuple(int(v) for v in values)
    if not numbers:
        return (default,) * rank
    return numbers * rank if len(numbers) == 1 and rank > 1 else numbers


def _window(kernel: Sequence[Dim], stride: Ints, padding: Ints, dilation: Ints = (1,)) -> Window:
    """Return a window whose padding is the same on both sides; a stride may be left out, which is
    the window's extent then.
    """
    rank = len(kernel)
    sides, steps = spread(padding, rank), spread(stride, rank) if stride else as_ints(kernel)
    return Window(tuple(kernel), steps, spread(dilation, rank, 1), sides, sides)


def convolution(
    node: Node, x: Value, weight: Value, bias: Value | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int, *_: object,
) -> Expr:  # fmt: skip
    """Convert aten::convolution over one to three spatial axes, with or without a batch."""
    rank = len(weight.type.shape) - 2
    if rank not in (1, 2, 3):
        node.unsupported(f"expected 1 to 3 spatial axes, got {rank}")
    kernel = node.static(weight.type.shape[2:], "the kernel")
    window = _window(kernel, spread(stride, rank, 1), padding, dilation)
    columns = known(weight.type.shape[1 if transposed else 0])
    if columns is None:
        node.unsupported("the number of channels must be constant")
    return _batched(node, x, rank, lambda data: shared.convolution(
        node, data, node.of(weight), window, groups=groups,
        channels=columns * groups if transposed else columns,
        bias=None if bias is None else node.of(bias),
        output_padding=spread(output_padding, rank) if transposed else None,
    ))  # fmt: skip


def _batched(node: Node, x: Value, rank: int, pool: Callable[[Expr], Expr]) -> Expr:
    """Return what `pool` makes of data with a batch, which is added where there is none."""
    data = node.of(x)
    if len(x.type.shape) == rank + 2:
        return pool(data)
    return op.squeeze(pool(op.expand_dims(data, axis=0)), axis=[0])


def _max_pool(rank: int) -> Converter:
    def convert(
        node: Node, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
        dilation: Ints = (1,), ceil_mode: bool = False,
    ) -> list[Expr | Value | None]:  # fmt: skip
        """Return [maxima, their flat indices]; the indices, a second pass, only if they
        are used.
        """
        window = _window(spread(kernel, rank), stride, padding, dilation)
        maxima = _batched(
            node, x, rank, lambda data: shared.max_pool(node, data, window, ceil_mode=ceil_mode)
        )
        return [maxima, _places(node, x, window) if node.wants(1) else None]

    return convert


def _places(node: Node, x: Value, window: Window) -> Expr:
    """Return the flat positions of maxima in each plane of the data."""
    lead, meta = len(x.type.shape) - len(window.strides), node.meta
    assert isinstance(meta, (list, tuple))
    counts = node.symbols.shape(meta[0].shape[lead:])
    return shared.flat_indices(
        node, shared.max_positions(node, node.of(x), window, counts, lead), x.type.shape[lead:]
    )


def _average_pool(rank: int) -> Converter:
    def convert(
        node: Node, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Expr:  # fmt: skip
        """Return the mean of each window, or its sum divided by `divisor_override`.

        Integers are summed in float64, which is exact, and divided towards zero.
        """
        window = _window(spread(kernel, rank), stride, padding)

        def pool(data: Expr) -> Expr:
            """Return the mean of each window of data that have a batch."""
            return shared.average_pool(node, data, window, "", count_include_pad, ceil_mode)

        def means(data: Expr) -> Expr:
            """Return the means of windows of which zeros beyond the data are a part."""
            missing = window.missing(x.type.shape[-rank:], node.out_shape[-rank:])
            after = as_attr(d if (n := known(d)) is None else max(n, 0) for d in missing)
            wide = padded(node, data, replace(window, after=after), 0)
            return shared.pool("avg", wide, window.unpadded())

        if divisor_override is None:
            return _batched(node, x, rank, pool)
        taps, dtype = float(np.prod(window.kernel)), x.type.dtype
        if is_float(dtype):
            factor = const(taps / divisor_override, dtype)
            return op.multiply(_batched(node, x, rank, means), factor)
        x = node.value_of(node.scope.spanned(node.of(x, "float64")))  # whole sums are exact in it
        sums = op.round(op.multiply(_batched(node, x, rank, means), const(taps, "float64")))
        return op.trunc_divide(op.cast(sums, dtype), const(divisor_override, dtype))

    return convert


def _adaptive(rank: int) -> Converter:
    pools: Mapping[int, Callable[..., Expr]] = {
        1: op.nn.adaptive_avg_pool1d, 2: op.nn.adaptive_avg_pool2d, 3: op.nn.adaptive_avg_pool3d,
    }  # fmt: skip

    def convert(node: Node, x: Value, size: Sequence[object]) -> Result:
        """Return the mean of each bin; one bin per axis is a plain reduction."""
        counts = node.sizes(size)
        if all(known(d) == 1 for d in counts):
            axes = list(range(len(x.type.shape) - rank, len(x.type.shape)))
            if rank == 2 and len(x.type.shape) == 4:
                return op.nn.global_avg_pool2d(node.of(x))
            return op.mean(node.of(x), axis=axes, keepdims=True)
        return _batched(node, x, rank, lambda data: pools[rank](data, counts))

    return convert


def _adaptive_max(rank: int) -> Converter:
    pools: Mapping[int, Callable[..., Expr]] = {
        1: op.nn.adaptive_max_pool1d, 2: op.nn.adaptive_max_pool2d, 3: op.nn.adaptive_max_pool3d,
    }  # fmt: skip

    def convert(node: Node, x: Value, size: Sequence[object]) -> list[Expr | Value | None]:
        """Return [maxima of the bins, their flat indices or None]."""
        counts = node.sizes(size)
        indices = _places_of_bins(node, x, rank) if node.wants(1) else None
        return [_batched(node, x, rank, lambda data: pools[rank](data, counts)), indices]

    return convert


def _places_of_bins(node: Node, x: Value, rank: int) -> Expr:
    """Return the flat indices of the maxima of bins of different lengths.

    All taps of a bin stand side by side, those beyond its end at the lowest value; the first of the
    largest wins.
    """
    lead = len(x.type.shape) - rank
    data, low = node.of(x), const(neutral("maximum", x.type.dtype), x.type.dtype)
    counts, extents = node.out_shape[lead:], x.type.shape[lead:]
    starts, lengths = [], []
    for at, (count, extent) in enumerate(zip(counts, extents, strict=True)):
        axis = lead + 2 * at  # each axis before has become two
        number, size = op.arange(0, count, 1, dtype="int64"), node.of(extent, "int64")
        out = node.of(count, "int64")
        # Bin i of n spans [floor(i * size / n), ceil((i + 1) * size / n)), as in ATen's adaptive
        # pooling.
        start = op.floor_divide(op.multiply(number, size), out)
        after = op.multiply(op.add(number, const(1, "int64")), size)
        end = op.floor_divide(op.add(after, op.subtract(out, const(1, "int64"))), out)
        length = tidy(as_dim(extent) // as_dim(count) + 2)
        taps = op.add(op.expand_dims(start, axis=1), op.arange(0, length, 1, dtype="int64"))
        data = op.take(data, taps, axis=axis, mode="clip")
        later = rank - at - 1  # axes behind
        inside = op.less(taps, op.expand_dims(end, axis=1))
        inside = op.expand_dims(inside, axis=2, num_newaxis=later) if later else inside
        data = op.where(inside, data, low)
        starts.append(start)
        lengths.append(length)
    return _flat_places(node, data, extents, starts, tuple(lengths), lead)


def _flat_places(
    node: Node, data: Expr, extents: Shape, starts: Sequence[Expr], lengths: Shape, lead: int
) -> Expr:
    """Return the flat index of the maximum in each bin of (.., count, length, count, length)."""
    rank = len(starts)
    order = [*range(lead), *(lead + 2 * a for a in range(rank)),
             *(lead + 2 * a + 1 for a in range(rank))]  # fmt: skip
    turned = node.scope.spanned(op.transpose(data, axes=order))
    shape = node.typed(turned).shape[: lead + rank]
    joined = op.reshape(turned, (*shape, product(lengths)), allowzero=True)
    best = op.cast(op.argmax(joined, axis=-1, keepdims=False), "int64")
    flat: Expr = const(0, "int64")
    for axis in range(rank):
        below = node.of(product(lengths[axis + 1 :]), "int64")
        own = op.floor_mod(op.floor_divide(best, below), node.of(lengths[axis], "int64"))
        start = append_axes(starts[axis], rank - 1 - axis)
        step = node.of(product(extents[axis + 1 :]), "int64")
        flat = op.add(flat, op.multiply(op.add(own, start), step))
    return flat


# fmt: off
ROWS: tuple[Row, ...] = (
    ("convolution", convolution),
    *((f"max_pool{n}d_with_indices", _max_pool(n)) for n in (1, 2, 3)),
    *((f"avg_pool{n}d", _average_pool(n)) for n in (1, 2, 3)),
    ("_adaptive_avg_pool2d", _adaptive(2)),
    ("_adaptive_avg_pool3d", _adaptive(3)),
    ("adaptive_avg_pool1d", _adaptive(1)),
    *((f"adaptive_max_pool{n}d", _adaptive_max(n)) for n in (2, 3)),
)
# fmt: on
