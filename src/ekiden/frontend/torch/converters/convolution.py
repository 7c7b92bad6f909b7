"""Convolutions and pooling. One-dimensional convolutions become ones over two axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import product as every

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.torch.converters.reduction import lowest
from ekiden.frontend.torch.node import Converter, Node, Row
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, Shape, as_dim, known, product, tidy

Ints = Sequence[int]


def spread(values: Ints, rank: int, default: int = 0) -> tuple[int, ...]:
    """A number for each axis; PyTorch has one for all of them, or none."""
    given = tuple(int(v) for v in values)
    if not given:
        return (default,) * rank
    return given * rank if len(given) == 1 and rank > 1 else given


def convolution(
    node: Node, x: Value, weight: Value, bias: Value | None, stride: Ints, padding: Ints,
    dilation: Ints, transposed: bool, output_padding: Ints, groups: int, *_: object,
) -> Expr:  # fmt: skip
    """`aten::convolution` over one to three axes, of a batch or without one."""
    rank = len(weight.type.shape) - 2
    if rank not in (1, 2, 3):
        node.unsupported(f"expected 1 to 3 spatial axes, got {rank}")
    kernel = node.static(weight.type.shape[2:], "the kernel")
    steps, sides = spread(stride, rank, 1), spread(padding, rank)
    gaps, extra = spread(dilation, rank, 1), spread(output_padding, rank)
    data, filters = node.of(x), node.of(weight)
    unbatched = len(x.type.shape) == rank + 1
    if unbatched:
        data = op.expand_dims(data, axis=0)
    if rank == 1:
        data = op.expand_dims(data, axis=2)
        if weight.array is not None:
            filters = node.of(constant(weight.array[:, :, None, :]))
        else:
            filters = op.expand_dims(filters, axis=2)
        kernel, steps, sides = (1, *kernel), (1, *steps), (0, *sides)
        gaps, extra = (1, *gaps), (0, *extra)
    columns = known(weight.type.shape[1 if transposed else 0])
    if columns is None:
        node.unsupported("the number of channels must be constant")
    options: dict[str, object] = {
        "strides": steps, "padding": (*sides, *sides), "dilation": gaps, "groups": groups,
        "channels": columns * groups if transposed else columns, "kernel_size": kernel,
    }  # fmt: skip
    if transposed:
        options["output_padding"] = extra
    plain = (op.nn.conv2d, op.nn.conv3d)
    turned = (op.nn.conv2d_transpose, op.nn.conv3d_transpose)
    call: Callable[..., Expr] = (turned if transposed else plain)[max(rank, 2) - 2]
    found = call(data, filters, **options)
    if bias is not None:
        found = op.nn.bias_add(found, node.of(bias), axis=1)
    if rank == 1:
        found = op.squeeze(found, axis=[2])
    return op.squeeze(found, axis=[0]) if unbatched else found


_MAX: Mapping[int, Callable[..., Expr]] = {
    1: op.nn.max_pool1d, 2: op.nn.max_pool2d, 3: op.nn.max_pool3d,
}  # fmt: skip
_AVERAGE: Mapping[int, Callable[..., Expr]] = {
    1: op.nn.avg_pool1d, 2: op.nn.avg_pool2d, 3: op.nn.avg_pool3d,
}  # fmt: skip


def _batched(node: Node, x: Value, rank: int, pool: Callable[[Expr], Expr]) -> Expr:
    """The pooling of data with a batch, which is added where there is none."""
    data = node.of(x)
    if len(x.type.shape) == rank + 2:
        return pool(data)
    return op.squeeze(pool(op.expand_dims(data, axis=0)), axis=[0])


def _max_pool(rank: int) -> Converter:
    def convert(
        node: Node, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
        dilation: Ints = (1,), ceil_mode: bool = False,
    ) -> list[Expr | Value | None]:  # fmt: skip
        """[maxima, their flat places]; places are None where nobody asks for them, as finding them
        costs a second pass.
        """
        window, sides = spread(kernel, rank), spread(padding, rank)
        steps, gaps = spread(stride, rank) if stride else window, spread(dilation, rank)

        def pool(data: Expr) -> Expr:
            """The pooling of data that have a batch."""
            return _MAX[rank](
                data, pool_size=window, strides=steps, dilation=gaps, padding=(*sides, *sides),
                ceil_mode=ceil_mode,
            )  # fmt: skip

        found = _batched(node, x, rank, pool)
        places = None
        if node.wants(1):
            places = _places(node, x, window, steps, sides, gaps)
        return [found, places]

    return convert


def _places(node: Node, x: Value, window: Ints, steps: Ints, sides: Ints, gaps: Ints) -> Expr:
    """Flat positions of maxima: the taps of every window side by side, the first of the largest; of
    a window that is -inf alone, as its border is, the first of the data.
    """
    rank = len(window)
    shape = x.type.shape
    lead = len(shape) - rank
    meta = node.meta
    assert isinstance(meta, (list, tuple))
    counts = node.symbols.shape(meta[0].shape[lead:])
    low = const(lowest(x.type.dtype), x.type.dtype)
    needed = [
        tidy((as_dim(c) - 1) * s + (k - 1) * g + 1)
        for c, s, k, g in zip(counts, steps, window, gaps, strict=True)
    ]
    after = [tidy(n - e - p) for n, e, p in zip(needed, shape[lead:], sides, strict=True)]
    widths = [(0, 0)] * lead + [
        (p, max(known(a) or 0, 0) if known(a) is not None else p)
        for p, a in zip(sides, after, strict=True)
    ]
    data = op.nn.pad(node.of(x), widths, low)
    taps = list(every(*(range(k) for k in window)))
    parts = [
        op.strided_slice(
            data,
            [t * g for t, g in zip(tap, gaps, strict=True)],
            [tidy(as_dim(t * g) + (as_dim(c) - 1) * s + 1)
             for t, g, c, s in zip(tap, gaps, counts, steps, strict=True)],
            strides=list(steps),
            axes=list(range(lead, lead + rank)),
        )
        for tap in taps
    ]  # fmt: skip
    place = op.cast(op.argmax(op.stack(parts, axis=0), axis=0, keepdims=False), "int64")
    best, zero, one = node.scope.spanned(place), const(0, "int64"), const(1, "int64")
    found: list[Expr] = []
    firsts: list[Expr] = []
    for axis in range(rank):
        offsets = np.array([tap[axis] * gaps[axis] for tap in taps], np.int64)
        own = op.take(const(offsets), best, axis=0)
        start = op.multiply(
            op.arange(0, counts[axis], 1, dtype="int64"), const(steps[axis], "int64")
        )
        start = op.subtract(start, const(sides[axis], "int64"))
        wide = rank - 1 - axis
        start = op.expand_dims(start, axis=1, num_newaxis=wide) if wide else start
        found.append(node.scope.spanned(op.add(own, start)))
        gap = const(gaps[axis], "int64")
        outside = op.floor_divide(op.subtract(op.maximum(op.negative(start), zero), one), gap)
        firsts.append(op.add(start, op.multiply(op.add(outside, one), gap)))
    extents = [node.of(e, "int64") for e in shape[lead:]]
    if any(sides):
        found = _inside(node, found, firsts, extents)
    flat: Expr = zero
    for at, extent in zip(found, extents, strict=True):
        flat = op.add(op.multiply(flat, extent), at)
    return flat


def _inside(
    node: Node, found: Sequence[Expr], firsts: Sequence[Expr], extents: Sequence[Expr]
) -> list[Expr]:
    """Places along each axis, the first of a window's where one of them is outside of the data."""
    zero, tests = const(0, "int64"), list[Expr]()
    for at, extent in zip(found, extents, strict=True):
        tests.append(op.logical_and(op.greater_equal(at, zero), op.less(at, extent)))
    inside = node.scope.spanned(reduce(op.logical_and, tests))
    return [op.where(inside, at, first) for at, first in zip(found, firsts, strict=True)]


def _reached(node: Node, x: Value, window: Ints, steps: Ints, sides: Ints) -> list[tuple[int, Dim]]:
    """What has to be added around the data so that every window lies within."""
    rank = len(window)
    found: list[tuple[int, Dim]] = []
    lead = len(x.type.shape) - rank
    extents = zip(x.type.shape[lead:], node.out_shape[lead:], strict=True)
    for (have, count), k, s, p in zip(extents, window, steps, sides, strict=True):
        needed = tidy((as_dim(count) - 1) * s + k - have - p)
        number = known(needed)
        found.append((p, max(number, 0) if number is not None else needed))
    return found


def _average_pool(rank: int) -> Converter:
    def convert(
        node: Node, x: Value, kernel: Ints, stride: Ints = (), padding: Ints = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Expr:  # fmt: skip
        """The mean over windows, or with `divisor_override` their sum divided by that; integers are
        summed in float64, which is exact, and divided towards zero.
        """
        window, sides = spread(kernel, rank), spread(padding, rank)
        steps = spread(stride, rank) if stride else window

        def pool(data: Expr) -> Expr:
            """The pooling of data that have a batch."""
            return _AVERAGE[rank](
                data, pool_size=window, strides=steps, padding=(*sides, *sides),
                ceil_mode=ceil_mode, count_include_pad=count_include_pad,
            )  # fmt: skip

        def sums(data: Expr) -> Expr:
            """Windows of which zeros beyond the data are a part, all of one size."""
            widths = _reached(node, x, window, steps, sides)
            grown = op.nn.pad(data, [(0, 0), (0, 0), *widths], const(0, node.typed(data).dtype))
            return _AVERAGE[rank](grown, pool_size=window, strides=steps, padding=0)

        if divisor_override is None:
            return _batched(node, x, rank, pool)
        taps, dtype = float(np.prod(window)), x.type.dtype
        if is_float(dtype):
            return op.multiply(_batched(node, x, rank, sums), const(taps / divisor_override, dtype))
        x = node.value_of(node.scope.spanned(node.of(x, "float64")))  # whole sums are exact in it
        whole = op.round(op.multiply(_batched(node, x, rank, sums), const(taps, "float64")))
        return op.trunc_divide(op.cast(whole, dtype), const(divisor_override, dtype))

    return convert


def _adaptive(rank: int) -> Converter:
    pools: Mapping[int, Callable[..., Expr]] = {
        1: op.nn.adaptive_avg_pool1d, 2: op.nn.adaptive_avg_pool2d, 3: op.nn.adaptive_avg_pool3d,
    }  # fmt: skip

    def convert(node: Node, x: Value, size: Sequence[object]) -> Result:
        """The mean over bins; for results of 1 in each axis a reduction, which needs no bins."""
        wanted = node.sizes(size)
        if all(known(d) == 1 for d in wanted):
            axes = list(range(len(x.type.shape) - rank, len(x.type.shape)))
            if rank == 2 and len(x.type.shape) == 4:
                return op.nn.global_avg_pool2d(node.of(x))
            return op.mean(node.of(x), axis=axes, keepdims=True)
        return _batched(node, x, rank, lambda data: pools[rank](data, wanted))

    return convert


def _adaptive_max(rank: int) -> Converter:
    pools: Mapping[int, Callable[..., Expr]] = {
        1: op.nn.adaptive_max_pool1d, 2: op.nn.adaptive_max_pool2d, 3: op.nn.adaptive_max_pool3d,
    }  # fmt: skip

    def convert(node: Node, x: Value, size: Sequence[object]) -> list[Expr | Value | None]:
        """[maxima of bins, their flat places or None]."""
        wanted = node.sizes(size)
        places = _places_of_bins(node, x, rank) if node.wants(1) else None
        return [_batched(node, x, rank, lambda data: pools[rank](data, wanted)), places]

    return convert


def _places_of_bins(node: Node, x: Value, rank: int) -> Expr:
    """Flat positions of the maxima of bins of several lengths: all taps of each bin side by side,
    those beyond its end as small as can be, and the first of the largest."""
    lead = len(x.type.shape) - rank
    data, low = node.of(x), const(lowest(x.type.dtype), x.type.dtype)
    counts, extents = node.out_shape[lead:], x.type.shape[lead:]
    starts, lengths = [], []
    for at, (count, extent) in enumerate(zip(counts, extents, strict=True)):
        axis = lead + 2 * at  # each axis before has become two
        number, size = op.arange(0, count, 1, dtype="int64"), node.of(extent, "int64")
        out = node.of(count, "int64")
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
    """The place of the largest in each bin of (.., count, length, count, length)."""
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
        later = rank - 1 - axis
        start = op.expand_dims(starts[axis], axis=1, num_newaxis=later) if later else starts[axis]
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
