"""Depthwise convolutions that read their data where they lie, without a copy with zeros around it.

A line of results leaves out the rows of taps that fall outside of the data, and so do pixels at its
ends with single taps: which of them is known for every tile at an end. Such a kernel is bound by
memory, and a copy is as much of it as the convolution (3x3 with strides of two, 112x112x96 on Zen
3: 372 us with a copy).

    tile       pixels x vectors of sums in registers; the vectors fill a line of the cache
    for row of taps from the first inside of the data to the last
        for tap of the row: of the pixels whose tap is inside

Where pixels lie such a distance apart that those of a line of results drive each other out of the
first-level cache (512 channels: two of its 64 sets take all), the channels of a tile are copied
from the lines of data that a few lines of results read, so that pixels are neighbours:

    for band of lines: for group of channels
        near[row, x, c] = data[n, first + row, x, group + c]
        for line of the band: the tiles above, of near

Each element is then brought once, not once for each row of taps (14x14x512 on Zen 3: 3x3 64 and 47
us, 5x5 150 and 104).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, const, maximum, minimum
from ekiden.kernels.cost_model import LINE, is_crowded
from ekiden.kernels.cpu.depthwise import Depthwise
from ekiden.kernels.cpu.depthwise import default as copied_default
from ekiden.kernels.cpu.depthwise import space as copied_space
from ekiden.kernels.decision import Choice, Decision, Fixed, Space
from ekiden.kernels.family import Family, size_of
from ekiden.kernels.geometry import FLAT, Geometry, geometry_of
from ekiden.kernels.micro_kernels.epilogue import find_anchor, operands_of
from ekiden.kernels.micro_kernels.prefetch import bound
from ekiden.kernels.micro_kernels.register_tiles import column_mask
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, LetStmt, PrimFunc, Stmt, seq

TAG = "depthwise_conv_nhwc"
MOST_TAPS = 512
"""Multiply-adds that stand one after the other at the ends of a line: more only cost code."""


@dataclass(frozen=True, slots=True)
class Across:
    """A line of results: how many, and which of the data their taps read."""

    width: int
    size: int
    kernel: int
    stride: int
    dilation: int
    left: int

    @staticmethod
    def of(geometry: Geometry) -> Across | None:
        """None where the length of a line is not known, or it is empty."""
        width, size = size_of(geometry.out[2]), size_of(geometry.data[2])
        left = geometry.padding[1]
        if not width or not size or not isinstance(left, int):
            return None
        step = geometry.kernel[1], geometry.strides[1], geometry.dilation[1]
        return Across(width, size, *step, left)

    def inside(self, first: int, pixels: int) -> list[list[int]]:
        """For each tap of a row, which of some pixels read data by it."""
        starts = [(first + p) * self.stride - self.left for p in range(pixels)]
        return [
            [p for p, x in enumerate(starts) if 0 <= x + tap * self.dilation < self.size]
            for tap in range(self.kernel)
        ]

    def is_inside(self, first: int, pixels: int) -> bool:
        """Whether all taps of some pixels read data."""
        return all(len(each) == pixels for each in self.inside(first, pixels))

    def tiles(self, most: int) -> list[tuple[int, int]]:
        """First pixel and pixels of tiles whose sizes differ by at most one."""
        count = max(1, -(-self.width // most))
        base, extra = divmod(self.width, count)
        firsts = [i * base + min(i, extra) for i in range(count)]
        return [(first, base + (i < extra)) for i, first in enumerate(firsts)]

    def taps_at_ends(self, most: int) -> int:
        """Multiply-adds of tiles that have taps outside."""
        ends = [tile for tile in self.tiles(most) if not self.is_inside(*tile)]
        return sum(len(each) for tile in ends for each in self.inside(*tile))


class InPlace(Depthwise):
    """One kernel being built, of lines of a known length."""

    def __init__(
        self,
        inputs: list[te.Tensor],
        outputs: list[te.Tensor],
        target: Target,
        decision: Decision,
        across: Across,
    ) -> None:
        super().__init__(inputs, outputs, target, TAG, decision)
        self.across, self.wide = across, decision.number("vectors")
        self.near = decision.number("near")
        self.pitch = self.wide * self.lanes if self.near else self.channels
        """Elements from a pixel of what is read to the next."""

    def body(self) -> Stmt:
        """All lines in parallel, or bands of them."""
        n, height, _, _ = self.geometry.out
        if self.near:
            return self.bands(n, height)
        line, size = Var("line"), self.geometry.data[1]

        def of_line(y: PrimExpr, top: PrimExpr, first: PrimExpr, rows: PrimExpr) -> Stmt:
            """Its groups, which read where the data lie."""
            image = simplify(line // height)
            start = (image * size + top) * self.across.size * self.channels
            return self.groups(
                lambda channel, masks: self.pixels_of(
                    line, [image, y], start + channel, first, rows, channel, masks
                )
            )

        inside = self.taps_inside(line % height, of_line)
        return For(line, const(0), simplify(n * height), ForKind.PARALLEL, inside, {"grain": 2})

    def taps_inside(
        self, y: PrimExpr, body: Callable[[PrimExpr, PrimExpr, PrimExpr, PrimExpr], Stmt]
    ) -> Stmt:
        """`body(line of results, line of the data of its first tap that is inside, which row of
        taps that is, how many rows are inside)`."""
        _, window, _ = self.geometry.windows
        at, first, rows = Var("y"), Var("first"), Var("rows")
        top = at * window.stride - window.before
        inside = body(at, top + first * window.dilation, first, rows)
        lets = [(at, y), *zip((first, rows), window.taps(at, at), strict=True)]
        return bound(lets, inside)

    def groups(self, body: Callable[[PrimExpr, Sequence[PrimExpr | None]], Stmt]) -> Stmt:
        """`body(first channel, masks)` for groups of vectors of channels, then the rest of them."""
        group = Var("group")
        whole, rest = divmod(self.channels, self.wide * self.lanes)
        parts: list[Stmt] = []
        if whole:
            inside = body(group * (self.wide * self.lanes), [None] * self.wide)
            parts.append(For(group, const(0), const(whole), ForKind.SERIAL, inside))
        if rest:
            full, part = divmod(rest, self.lanes)
            masks: list[PrimExpr | None] = [None] * full
            if part:
                masks.append(column_mask(part, self.lanes))
            parts.append(body(const(whole * self.wide * self.lanes), masks))
        return seq(*parts)

    def bands(self, n: PrimExpr, height: PrimExpr) -> Stmt:
        """Bands of lines in parallel, each group of channels copied for all lines of a band."""
        (sy, _), top = self.geometry.strides, self.geometry.padding[0]
        reach, size = self.geometry.reach[0], self.geometry.data[1]
        per_image = simplify((height + (self.near - 1)) // self.near)
        band, line = Var("band"), Var("line")
        image, y, count, low, high = (Var(v) for v in ("image", "y0", "count", "low", "high"))
        shape = (const((self.near - 1) * sy + reach), const(self.across.size), const(self.pitch))
        self.source = Buffer("near", shape, "float32")

        def of_group(channel: PrimExpr, masks: Sequence[PrimExpr | None]) -> Stmt:
            """The copy, then its lines."""

            def of_line(at: PrimExpr, row: PrimExpr, first: PrimExpr, rows: PrimExpr) -> Stmt:
                """A line of results, whose taps begin in a row of the copy."""
                start = (row - low) * (self.across.size * self.pitch)
                return self.pixels_of(
                    image * height + at, [image, at], start, first, rows, channel, masks
                )

            lines = For(line, const(0), count, ForKind.SERIAL, self.taps_inside(y + line, of_line))
            return seq(self.copied((image * size + low), high - low, channel, masks), lines)

        inside: Stmt = Allocate(self.source, self.groups(of_group))
        lets = [
            (image, band // per_image),
            (y, band % per_image * self.near),
            (count, simplify(minimum(const(self.near), height - y))),
            (low, simplify(maximum(const(0), y * sy - top))),
            (high, simplify(minimum(size, (y + count - 1) * sy - top + reach))),
        ]
        for name, value in reversed(lets):
            inside = LetStmt(name, value, inside)
        return For(band, const(0), simplify(n * per_image), ForKind.PARALLEL, inside, {"grain": 1})

    def copied(
        self, first: PrimExpr, rows: PrimExpr, channel: PrimExpr, masks: Sequence[PrimExpr | None]
    ) -> Stmt:
        """The channels of a group from whole lines of data on, pixel by pixel."""
        pixel, size = Var("pixel"), self.across.size
        moves = [
            BufferStore(
                self.source,
                self.load(self.data, (first * size + pixel) * self.channels + channel + at, mask),
                (ramp(pixel * self.pitch + at, 1, self.lanes),),
            )
            for at, mask in zip(range(0, self.pitch, self.lanes), masks, strict=False)
        ]
        return For(pixel, const(0), rows * size, ForKind.SERIAL, seq(*moves))

    def pixels_of(
        self,
        line: PrimExpr,
        at: list[PrimExpr],
        start: PrimExpr,
        first: PrimExpr,
        rows: PrimExpr,
        channel: PrimExpr,
        masks: Sequence[PrimExpr | None],
    ) -> Stmt:
        """The tiles of a line for some vectors of channels: those at the ends one by one."""
        width, kw = self.across.width, self.across.kernel
        weights = first * (kw * self.channels) + channel
        """`start` is where the taps of the first pixel begin, of the first of these channels."""

        def tile(x: PrimExpr, pixels: int, inside: list[list[int]] | None) -> Stmt:
            """Pixels from x on; `inside` says which have which taps, if not all have all."""
            move = x * self.across.stride - self.across.left
            base = start + move * self.pitch
            acc, sums = self.sums(pixels, base, weights, rows, masks, inside)
            stores = [
                self.epilogue.store(
                    self.geometry.place([*at, x + p, channel + v * self.lanes]),
                    (line * width + x + p) * self.channels + channel + v * self.lanes,
                    acc[p * len(masks) + v],
                    mask,
                )
                for p in range(pixels)
                for v, mask in enumerate(masks)
            ]
            return Allocate(acc, seq(sums, *stores))

        return seq(*(
            tile(const(x), pixels, self.across.inside(x, pixels))
            if count == 1 and not self.across.is_inside(x, pixels)
            else _repeated(x, pixels, count, tile)
            for x, pixels, count in self.runs()
        ))  # fmt: skip

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """First pixel, pixels and number of tiles that have the same code."""
        tiles = self.across.tiles(self.pixels)
        alike = groupby(
            tiles, key=lambda t: t[1] if self.across.is_inside(*t) else (t[0], "at an end")
        )
        for _, group in alike:
            (x, pixels), *more = group
            yield x, pixels, 1 + len(more)

    def sums(
        self,
        pixels: int,
        base: PrimExpr,
        weights: PrimExpr,
        rows: PrimExpr,
        masks: Sequence[PrimExpr | None],
        inside: list[list[int]] | None,
    ) -> tuple[Buffer, Stmt]:
        """Sums of pixels and vectors over all taps that read data."""
        wide, across = len(masks), self.across
        kind = dt.with_lanes("float32", self.lanes)
        acc = Buffer("acc", (const(pixels * wide),), kind, "register")
        row, tap = Var("row"), Var("tap")
        start = base + row * (self.geometry.dilation[0] * across.size * self.pitch)
        at = weights + row * (across.kernel * self.channels)

        def of_tap(tap: PrimExpr, those: Sequence[int]) -> Stmt:
            """What a tap adds to the sums of some pixels."""
            step = start + tap * (across.dilation * self.pitch)
            taps = [Var(f"w{v}", kind) for v in range(wide)]
            adds: list[Stmt] = []
            for p in those:
                for v, mask in enumerate(masks):
                    place = step + (p * across.stride * self.pitch + v * self.lanes)
                    sum_ = p * wide + v
                    value = self.load(self.source, place, mask)
                    added = call_intrin("fma", value, taps[v], acc[sum_], dtype=kind)
                    adds.append(BufferStore(acc, added, (const(sum_),)))
            found = seq(*adds)
            for v, mask in reversed(list(enumerate(masks))):
                weight = self.load(self.weight, at + tap * self.channels + v * self.lanes, mask)
                found = LetStmt(taps[v], weight, found)
            return found

        if inside is None:
            each = of_tap(tap, range(pixels))
            taps: Stmt = For(tap, const(0), const(across.kernel), ForKind.SERIAL, each)
        else:
            taps = seq(*(of_tap(const(t), those) for t, those in enumerate(inside) if those))
        zero = broadcast(const(0.0, "float32"), self.lanes)
        clear = [BufferStore(acc, zero, (const(i),)) for i in range(pixels * wide)]
        return acc, seq(*clear, For(row, const(0), rows, ForKind.SERIAL, taps))


def _repeated(
    x: int,
    pixels: int,
    count: int,
    tile: Callable[[PrimExpr, int, list[list[int]] | None], Stmt],
) -> Stmt:
    """Tiles that follow each other, all of whose taps read data."""
    index = Var("t")
    if count == 1:
        return tile(const(x), pixels, None)
    return For(
        index, const(0), const(count), ForKind.SERIAL, tile(index * pixels + x, pixels, None)
    )


def _across(anchor: te.Tensor, most: int) -> Across | None:
    """The lines of a convolution that is computed in place; None for one that is not."""
    geometry = geometry_of(anchor)
    data, _ = operands_of(anchor)
    top = geometry.padding[0]
    if geometry.depth is not FLAT or data.dtype != "float32" or not isinstance(top, int):
        return None
    across = Across.of(geometry)
    return across if across and across.taps_at_ends(most) <= MOST_TAPS else None


def depthwise_conv(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """The rule for tag "depthwise_conv_nhwc"."""
    across = _across(find_anchor(outputs, TAG), decision.number("pixels"))
    if across is None:
        return Depthwise(inputs, outputs, target, TAG, decision).function(name)
    return InPlace(inputs, outputs, target, decision, across).function(name)


def space(anchor: te.Tensor, target: Target) -> Space:
    """What may be chosen for a depthwise convolution."""
    doc = "vectors of channels of a tile, where data are read in place"
    widths = tuple(range(1, _most_vectors(anchor, target) + 1))
    bands = "lines of results for which the channels of a tile are copied; 0 copies none"
    return (
        *copied_space(anchor, target),
        Choice("vectors", widths, doc),
        Choice("near", tuple(range(_most_lines(anchor, target) + 1)), bands),
    )


def _most_vectors(anchor: te.Tensor, target: Target) -> int:
    """Vectors of channels that there are, of those that a line of the cache has."""
    channels = size_of(anchor.shape[-1])
    assert channels is not None, "weights are known"
    lanes = target.lanes("float32")
    return max(1, min(-(-channels // lanes), LINE // (4 * lanes)))


def _most_lines(anchor: te.Tensor, target: Target) -> int:
    """Lines of results that read what half of the first-level cache holds of a tile's channels."""
    geometry = geometry_of(anchor)
    height, width = size_of(geometry.out[1]), size_of(geometry.data[2])
    if not height or not width:
        return 0
    row = width * _most_vectors(anchor, target) * 4 * target.lanes("float32")
    rows = target.l1 // 2 // row
    return max(0, min(height, (rows - geometry.reach[0]) // geometry.strides[0] + 1))


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """As many sums as of a copy's tile, of one vector of channels: each vector of weights is then
    read for the most pixels. Where the first-level cache does not keep what a line of results reads
    until the next vector, all that a line of the cache brings is used at once (3x3 with strides of
    two, 112x112x96 on Zen 3: 298 and 228 us; where it does, 5x5 of 14x14x672: 86 and 107).
    """
    sums = copied_default(anchor, target, {}).number("pixels")
    geometry, most = geometry_of(anchor), _most_vectors(anchor, target)
    read = geometry.kernel[0] * (size_of(geometry.data[2]) or 0)
    is_kept = not is_crowded(read, int(str(anchor.op.attrs["groups"])), target)
    vectors = int(fixed.get("vectors", 1 if is_kept else most))
    pixels = int(fixed.get("pixels", max(1, sums // vectors)))
    if "pixels" not in fixed and _across(anchor, pixels) is None:
        pixels = sums
    near = int(fixed.get("near", 0 if is_kept else _near(anchor, target)))
    return Decision.of({"pixels": pixels, "vectors": vectors, "near": near})


def _near(anchor: te.Tensor, target: Target) -> int:
    """Lines of bands of equal size; 0 where they do not halve how often the data are brought: a
    copy is a load and a store of its own (28x28x256 with strides of two: 38 us, copied 46)."""
    geometry, most = geometry_of(anchor), _most_lines(anchor, target)
    height, images = size_of(geometry.out[1]) or 0, size_of(geometry.out[0]) or 1
    most = min(most, -(-images * height // target.cores))  # each core has a band
    if not most:
        return 0
    lines, stride = -(-height // -(-height // most)), geometry.strides[0]
    brought = lines * stride + geometry.reach[0] - stride
    return lines if 2 * brought <= lines * geometry.kernel[0] else 0


FAMILY = Family(
    name=TAG,
    space=space,
    default=default,
    build=depthwise_conv,
    why="pixels at borders leave out taps: no step cuts a nest by which of its terms there are",
    writes_rows=True,
)
