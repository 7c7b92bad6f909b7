"""Convolutions in NHWC with packed constant weights, as matrix products over output pixels.

    out[n, y, x, o] = sum over i, j, c of data[n, y*sy + i*dy - top, x*sx + j*dx - left, c] *
    weight[o // tile, i, j, c, o % tile]

The rows of a register tile are neighbouring output pixels. A 1x1 convolution without stride and
padding is a dense layer over all pixels. Others read from a copy of the data with its border of
zeros (none is made without padding): then every tap of every pixel is an address at a constant
distance. Without dilation the taps of one kernel row are contiguous, so k is two loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, logical_and
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.topi.rule.dense import make_buffers
from ekiden.topi.rule.epilogue import Epilogue, find_anchor, operands_of
from ekiden.topi.rule.tiles import (
    KLoop,
    Tile,
    balanced_rows,
    compute_tile,
    fitting_lanes,
    max_rows,
    span,
)

NARROW = 12
"""Lines of at most this many pixels share tiles (7x7x512 3x3: 83 % of the peak by lines)."""


def _ints(value: object) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(v) for v in value)


@dataclass(frozen=True, slots=True)
class Geometry:
    """The numbers of one convolution. Strides, dilation, kernel as (y, x); padding as (top, left,
    bottom, right)."""

    data: tuple[PrimExpr, ...]
    out: tuple[PrimExpr, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int | PrimExpr, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def is_padded(self) -> bool:
        """Whether any tap can fall outside the data."""
        return any(self.padding)

    @property
    def is_pointwise(self) -> bool:
        """Whether output pixels are input pixels, one to one and in order."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not self.is_padded

    def padded(self) -> tuple[PrimExpr, ...]:
        """Height and width of the data as it is read: with zeros around it."""
        top, left, bottom, right = self.padding
        return simplify(self.data[1] + top + bottom), simplify(self.data[2] + left + right)


def geometry_of(anchor: te.Tensor) -> Geometry:
    """The geometry of a convolution's tensor expression, from its attributes."""
    attrs = anchor.op.attrs
    data, _ = operands_of(anchor)
    return Geometry(
        data=data.shape,
        out=anchor.shape,
        kernel=_ints(attrs["kernel_size"]),
        strides=_ints(attrs["strides"]),
        padding=_ints(attrs["padding"]),
        dilation=_ints(attrs["dilation"]),
        groups=int(str(attrs["groups"])),
    )


class _Conv:
    """One convolution kernel being built."""

    def __init__(
        self, inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, tag: str
    ) -> None:
        self.anchor = find_anchor(outputs, tag)
        self.buffers = make_buffers(inputs, outputs)
        attrs = self.anchor.op.attrs
        data, weight = operands_of(self.anchor)
        self.data, self.weight = self.buffers[data], self.buffers[weight]
        self.geometry = geometry_of(self.anchor)
        self.width = int(str(attrs["tile"]))
        self.channels = int(str(attrs["channels"]))
        self.lanes, self.target = target.lanes("float32"), target
        self.epilogue = Epilogue(self.anchor, outputs[0], self.buffers)
        self.group_in = weight.shape[-2]
        self.group_out = self.channels // self.geometry.groups
        self.source = self.data  # or the padded copy

    def k_loops(self) -> list[KLoop]:
        """The reduction: kernel rows, then taps and channels, as one loop where they are
        contiguous."""
        (kh, kw), (dy, dx), width = self.geometry.kernel, self.geometry.dilation, const(self.width)
        pixel = self.geometry.data[3]
        row = self.geometry.padded()[1] * pixel
        if self.geometry.is_pointwise or (kh, kw) == (1, 1):
            return [KLoop(self.group_in, const(1), width)]
        per_tap = self.group_in * self.width
        rows = [KLoop(const(kh), row * dy, per_tap * kw)] if kh > 1 else []
        if kw == 1:
            return [*rows, KLoop(self.group_in, const(1), width)]
        if dx == 1 and self.geometry.groups == 1:
            return [*rows, KLoop(self.group_in * kw, const(1), width)]
        return [*rows, KLoop(const(kw), pixel * dx, per_tap), KLoop(self.group_in, const(1), width)]

    def tile(
        self,
        rows: int,
        indices: Callable[[PrimExpr], list[PrimExpr]],
        a_rows: list[PrimExpr],
        out: PrimExpr,
        panel: Panel,
    ) -> Stmt:
        """A tile of pixels: `a_rows` are their data offsets, `out` is the number of the first."""
        lanes = fitting_lanes(panel.valid, self.target)
        shape = Tile(rows, -(-panel.valid // lanes), lanes, panel.valid)

        def store(i: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
            at = panel.column + column
            return self.epilogue.store(
                [*indices(i), at], (out + i) * self.channels + at, value, mask
            )

        return compute_tile(
            shape,
            self.k_loops(),
            self.source,
            a_rows,
            self.weight,
            panel.offset,
            store,
            not self.epilogue.is_light,
        )

    def is_flat(self) -> bool:
        """Whether tiles run over all output pixels: pointwise, or lines too short to be cut into
        good tiles."""
        width = self.geometry.out[2]
        return self.geometry.is_pointwise or (isinstance(width, IntImm) and width.value <= NARROW)

    def pixel(self, at: PrimExpr) -> list[PrimExpr]:
        """(image, line, column) of an output pixel by its number."""
        _, height, width, _ = self.geometry.out
        area = simplify(height * width)
        return [at // area, at % area // width, at % width]

    def flat_tile(self, rows: int, first: PrimExpr, panel: Panel) -> Stmt:
        """A tile of output pixels from number `first`, wherever their lines end."""
        pixel = self.geometry.data[3]

        def indices(i: PrimExpr) -> list[PrimExpr]:
            return self.pixel(first + i)

        if self.geometry.is_pointwise:
            a_rows = [first * pixel + panel.channel + pixel * i for i in range(rows)]
            return self.tile(rows, indices, a_rows, first, panel)
        starts = [Var(f"row{i}") for i in range(rows)]
        made = self.tile(rows, indices, list(starts), first, panel)
        for i in reversed(range(rows)):
            made = LetStmt(starts[i], self.start(*indices(const(i))) + panel.channel, made)
        return made

    def start(self, n: PrimExpr, y: PrimExpr, x: PrimExpr) -> PrimExpr:
        """The data offset of the first tap of an output pixel."""
        sy, sx = self.geometry.strides
        height, width = self.geometry.padded()
        return ((n * height + y * sy) * width + x * sx) * self.geometry.data[3]

    def pixel_rows(self, panel: Panel) -> int:
        """Rows of a tile for a panel."""
        return max_rows(-(-panel.valid // self.lanes), self.target)

    def flat_tiles(self, panel: Panel, kind: ForKind) -> Stmt:
        """All output pixels as one run (pointwise)."""
        n, height, width, _ = self.geometry.out
        total = simplify(n * height * width)
        return balanced_rows(
            total,
            self.pixel_rows(panel),
            lambda rows, first: self.flat_tile(rows, first, panel),
            kind,
        )

    def line_tiles(self, panel: Panel, line: PrimExpr) -> Stmt:
        """One line of output pixels; lines are numbered over the batch."""
        _, height, width, _ = self.geometry.out
        sy, sx = self.geometry.strides
        padded_height, padded_width = self.geometry.padded()
        pixel = self.geometry.data[3]
        n, y = line // height, line % height
        start = ((n * padded_height + y * sy) * padded_width) * pixel + panel.channel

        def body(rows: int, first: PrimExpr) -> Stmt:
            base, step = start + first * (pixel * sx), simplify(pixel * sx)
            a_rows = [base + step * i for i in range(rows)]
            return self.tile(rows, lambda i: [n, y, first + i], a_rows, line * width + first, panel)

        return balanced_rows(width, self.pixel_rows(panel), body)

    def panel_region(self, panels: int, make: Callable[[PrimExpr], Panel]) -> Stmt:
        """All pixels of some panels: threads share out the panels, or with too few of them the
        lines."""
        _, height, _, _ = self.geometry.out
        lines = simplify(self.geometry.out[0] * height)
        line, index = Var("line"), Var("p")
        flat = self.is_flat()
        if panels >= self.target.cores and self.is_weight_heavy():
            panel = make(index)
            inside = (
                self.flat_tiles(panel, ForKind.SERIAL)
                if flat
                else For(line, const(0), lines, ForKind.SERIAL, self.line_tiles(panel, line))
            )
            return For(index, const(0), const(panels), ForKind.PARALLEL, inside, {"grain": 1})
        if flat:
            return self.flat_with_panels(panels, make)
        inside = For(
            index, const(0), const(panels), ForKind.SERIAL, self.line_tiles(make(index), line)
        )
        return For(line, const(0), lines, ForKind.PARALLEL, inside, {"grain": 1})

    def flat_with_panels(self, panels: int, make: Callable[[PrimExpr], Panel]) -> Stmt:
        """Tiles of pixels outside, panels inside."""
        n, height, width, _ = self.geometry.out
        total, index = simplify(n * height * width), Var("p")
        panel = make(index)

        def body(rows: int, first: PrimExpr) -> Stmt:
            return For(
                index, const(0), const(panels), ForKind.SERIAL, self.flat_tile(rows, first, panel)
            )

        return balanced_rows(total, self.pixel_rows(panel), body, ForKind.PARALLEL)

    def is_weight_heavy(self) -> bool:
        """Whether the weights are larger than the data of an image: then each panel should be read
        once."""
        _, height, width, channels = self.geometry.data
        if not all(isinstance(d, IntImm) for d in (height, width, channels)):
            return False
        pixels = height.value * width.value * channels.value  # type: ignore[attr-defined]
        kh, kw = self.geometry.kernel
        taps = self.group_in.value * kh * kw * self.channels  # type: ignore[attr-defined]
        return bool(taps >= pixels)

    def groups_region(self) -> Stmt:
        """Whole panels, then the last one if it is narrower; for every group."""
        whole, rest = divmod(self.group_out, self.width)
        parts = []
        if whole:
            parts.append(self._per_group(whole, 0, self.width))
        if rest:
            parts.append(self._per_group(1, whole, rest))
        return seq(*parts)

    def _per_group(self, panels: int, first: int, valid: int) -> Stmt:
        (kh, kw), groups = self.geometry.kernel, self.geometry.groups
        size = simplify(self.group_in * (kh * kw * self.width))
        per_group = -(-self.group_out // self.width)

        def make(index: PrimExpr) -> Panel:
            group, within = index // panels, index % panels + first
            if groups == 1:
                group, within = const(0), index + first
            offset = simplify((group * per_group + within) * size)
            column = simplify(group * self.group_out + within * self.width)
            return Panel(offset, column, simplify(group * self.group_in), valid)

        return self.panel_region(panels * groups, make)

    def body(self) -> Stmt:
        """The kernel: the padded copy if needed, then all tiles."""
        if not self.geometry.is_padded:
            return self.groups_region()
        height, width = self.geometry.padded()
        shape = (self.geometry.data[0], height, width, self.geometry.data[3])
        self.source = Buffer("padded", shape, "float32")
        return Allocate(
            self.source,
            seq(pad_copy(self.data, self.source, self.geometry, self.lanes), self.groups_region()),
        )


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of weights: its offset, the output channel of its first column, the first input
    channel, columns in use."""

    offset: PrimExpr
    column: PrimExpr
    channel: PrimExpr
    valid: int


def pad_copy(data: Buffer, padded: Buffer, geometry: Geometry, lanes: int) -> Stmt:
    """padded[n, y, x, c] = data[n, y - top, x - left, c], zero around it; lines in parallel."""
    n, height, width, channels = geometry.data
    padded_height, padded_width = geometry.padded()
    top, left, _, right = geometry.padding
    line, source = Var("line"), Var("source")
    row = simplify(padded_width * channels)
    image, y = line // padded_height, line % padded_height

    def zeros(start: PrimExpr, count: PrimExpr) -> Stmt:
        def body(first: PrimExpr, many: int) -> Stmt:
            return BufferStore(
                padded, broadcast(const(0.0, "float32"), many), (ramp(start + first, 1, many),)
            )

        return span(simplify(count), lanes, body)

    def copy(start: PrimExpr, origin: PrimExpr, count: PrimExpr) -> Stmt:
        def body(first: PrimExpr, many: int) -> Stmt:
            load = data[ramp(origin + first, 1, many)]
            return BufferStore(
                padded,
                load.with_fields(dtype=f"float32x{many}" if many > 1 else "float32"),
                (ramp(start + first, 1, many),),
            )

        return span(simplify(count), lanes, body)

    at = line * row
    inside = seq(
        zeros(at, left * channels),
        copy(at + left * channels, source, width * channels),
        zeros(at + (left + width) * channels, right * channels),
    )
    origin = ((image * height) + (y - top)) * (width * channels)
    is_inside = logical_and(y >= top, y < height + top)
    each = IfThenElse(is_inside, LetStmt(source, origin, inside), zeros(at, row))
    return For(line, const(0), simplify(n * padded_height), ForKind.PARALLEL, each, {"grain": 8})


def conv2d_nhwc_pack(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
) -> PrimFunc:
    """The rule for tag "conv2d_nhwc_pack"."""
    kernel = _Conv(inputs, outputs, target, "conv2d_nhwc_pack")
    return PrimFunc(
        (*kernel.buffers.values(),),
        kernel.body(),
        {"global_symbol": name, "num_outputs": len(outputs), "tir.tiled": 1},
    )


def group_conv2d_nhwc_pack(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
) -> PrimFunc:
    """The rule for tag "group_conv2d_nhwc_pack"."""
    kernel = _Conv(inputs, outputs, target, "group_conv2d_nhwc_pack")
    return PrimFunc(
        (*kernel.buffers.values(),),
        kernel.body(),
        {"global_symbol": name, "num_outputs": len(outputs), "tir.tiled": 1},
    )
