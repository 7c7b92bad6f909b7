"""Transposed convolutions in NHWC or NDHWC with packed weights, in register tiles.

    out[n, y*sy + i*dy - top, x*sx + j*dx - left, o] += data[n, y, x, c] * weight[c, o, i, j]

The results at one phase, stride * q + phase on each axis, are an ordinary convolution over q with
the taps that reach them (geometry.py): no tap is multiplied with a zero between the data. The loops
are those of conv2d.py, where a panel of weights belongs to one phase, and results are stored with
the stride.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ekiden import te
from ekiden.arith import prove_equal, simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.kernels.cost_model import (
    PREFETCH_DISTANCES,
    Blocking,
    most_rows,
    panel_choice,
    panel_width,
    tile_rows,
)
from ekiden.kernels.cpu.conv2d import ConvKernel, Panel
from ekiden.kernels.cpu.dense import UNROLL_FACTORS
from ekiden.kernels.cpu.depthwise import DepthwiseKernel
from ekiden.kernels.cpu.depthwise import default as depthwise_default
from ekiden.kernels.cpu.depthwise import space as depthwise_space
from ekiden.kernels.cpu.windows import ResultRanges, TapRanges
from ekiden.kernels.decision import Decision, Fixed, Knob, Space, descending
from ekiden.kernels.family import Family, Product, size_of
from ekiden.kernels.geometry import Geometry, phases_of, transposed_geometry
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.prefetch import Lets, bound
from ekiden.kernels.micro_kernels.register_tiles import KLoop, balanced_rows
from ekiden.kernels.spaces.conv import is_short
from ekiden.kernels.stages import has_known_weights
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.stmt import For, ForKind, IfThenElse, PrimFunc, Stmt

TRANSPOSED_CONV_TAG = "conv_transpose_pack"
ASSUMED_PIXELS = 1 << 12
"""What the number of pixels is taken for."""
CHANNELS_LAST_LAYOUTS = ("NHWC", "NDHWC")
"""Layouts with the channels last."""


def accepts(anchor: te.Tensor, target: Target) -> bool:
    """Return whether the rules of this file cover a transposed convolution of packed weights."""
    attrs = anchor.op.attrs
    data, weight = operands_of(anchor)
    if not has_known_weights(anchor) or {data.dtype, weight.dtype, anchor.dtype} != {"float32"}:
        return False
    return (
        attrs["data_layout"] == attrs["out_layout"]
        and attrs["data_layout"] in CHANNELS_LAST_LAYOUTS
    )


@dataclass(frozen=True, slots=True)
class _Phase:
    """A phase: the position of its results on each axis, its number of taps, the offset of its
    first data, and the index of its first tap.
    """

    place: tuple[PrimExpr, ...]
    taps: tuple[PrimExpr, ...]
    origin: PrimExpr
    first: PrimExpr


class _PhasedOutput:
    """The results of a transposed convolution by phase (output position modulo stride); each phase
    is a convolution without strides.
    """

    def __init__(self, anchor: te.Tensor) -> None:
        self.anchor, self.axes = anchor, phases_of(anchor)
        self.geometry = transposed_geometry(anchor, self.axes)
        self.number = math.prod(axis.number for axis in self.axes)
        self.taps = math.prod(axis.kernel for axis in self.axes)

    def phase(self, index: PrimExpr, steps: list[PrimExpr]) -> _Phase:
        """Return a phase by its index, for a source with the given pixel strides."""
        position: list[PrimExpr] = []
        for axis in reversed(self.axes):
            position.insert(0, simplify(index % axis.number))
            index = simplify(index // axis.number)
        origin = first = const(0)
        for axis, at, step in zip(self.axes, position, steps, strict=True):
            origin = simplify(origin + axis.origin(at) * step)
            first = simplify(first * axis.kernel + axis.first(at))
        taps = tuple(axis.taps(at) for axis, at in zip(self.axes, position, strict=True))
        return _Phase(tuple(position), taps, origin, first)

    def loops(self, at: _Phase, steps: list[PrimExpr], weights: PrimExpr) -> list[KLoop]:
        """Return the tap loops of a phase, with a weight stride of `weights` per tap."""
        tap_loops: list[KLoop] = []
        for axis, taps, step in reversed(list(zip(self.axes, at.taps, steps, strict=True))):
            tap_loops.insert(
                0, KLoop(taps, simplify(step * -axis.move), simplify(weights * axis.step))
            )
            weights = simplify(weights * axis.kernel)
        return tap_loops

    def store(
        self,
        at: _Phase,
        result_index: list[PrimExpr],
        keep: Callable[[list[PrimExpr], PrimExpr], Stmt],
    ) -> Stmt:
        """Return `keep(indices, offset)` for a position within a phase's results, guarded where the
        last results of some phases are outside.
        """
        n, *inner, channel = self.geometry.place(result_index)
        steps = zip(inner, self.axes, at.place, strict=True)
        indices = [n, *(q * axis.stride + phase for q, axis, phase in steps), channel]
        flat: PrimExpr = const(0)
        for index, extent in zip(indices, self.anchor.shape, strict=True):
            flat = flat * extent + index
        stmt = keep(indices, flat)
        sizes = operands_of(self.anchor)[0].shape[1:-1]
        extents = self.anchor.shape[1:-1]
        for index, axis, size, extent in zip(indices[1:-1], self.axes, sizes, extents, strict=True):
            if not prove_equal(axis.count(size) * axis.stride, extent):
                stmt = IfThenElse(index < extent, stmt)
        return stmt


@dataclass(frozen=True, slots=True)
class _PhasePanel(Panel):
    """A panel of weights for one phase."""

    at: _Phase


class _Transposed(ConvKernel):
    """A builder of one transposed convolution kernel."""

    def find_geometry(self) -> Geometry:
        """Return the geometry of the convolutions of all phases."""
        self.output = _PhasedOutput(self.anchor)
        return self.output.geometry

    def count_taps(self) -> int:
        """Return the number of kernel taps of the weight."""
        return self.output.taps

    def is_flat(self) -> bool:
        """Return whether lines are too short for good tiles."""
        return is_short(self.geometry.out[2])

    def by_panels(self, panels: int) -> bool:
        """Return whether threads share the panels: weights larger than the data are read once."""
        depth = self.geometry.depth.size
        pixels = size_of(simplify(math.prod(self.geometry.data[1:], start=depth)))
        weights = size_of(simplify(self.group_in * (self.taps * self.channels)))
        assert weights is not None, "weights are known"
        return panels >= self.target.cores and pixels is not None and weights >= pixels

    def k_loops(self, panel: Panel, taps: TapRanges) -> list[KLoop]:
        """Return the tap loops of a phase, then the channel loop."""
        assert isinstance(panel, _PhasePanel)
        assert not taps
        per_tap = self.group_in * self.width
        tap_loops = self.output.loops(panel.at, self.geometry.steps(self.slice), per_tap)
        return [*_without_unit_loops(tap_loops), self.channel_loop(1)]

    def taps_inside(self, positions: ResultRanges, results: int = 1) -> tuple[Lets, TapRanges]:
        """Return no restriction: windows hold the taps of all phases."""
        return [], {}

    def line_tiles(self, panel: Panel, n: PrimExpr, y: PrimExpr, offset: PrimExpr) -> Stmt:
        """Return one line of a phase."""
        names, lets = _named(panel)
        return bound(lets, super().line_tiles(names, n, y, offset))

    def flat_tile(
        self, rows: int, first: PrimExpr, panel: Panel, number: PrimExpr | None = None
    ) -> Stmt:
        """Return a tile of a phase's results, across line ends."""
        names, lets = _named(panel)
        return bound(lets, super().flat_tile(rows, first, names, number))

    def keep(
        self,
        output_index: list[PrimExpr],
        flat: PrimExpr,
        value: PrimExpr,
        mask: PrimExpr | None,
        panel: Panel,
    ) -> Stmt:
        """Store results at their phase."""
        assert isinstance(panel, _PhasePanel)
        return self.output.store(
            panel.at,
            output_index,
            lambda indices, at: self.epilogue.store(indices, at, value, mask),
        )

    def parts(self) -> list[tuple[int, Callable[[PrimExpr], Panel]]]:
        """Return the panels of all phases."""
        return [self._of_phases(*panel_part) for panel_part in super().parts()]

    def _of_phases(
        self, panels: int, make: Callable[[PrimExpr], Panel]
    ) -> tuple[int, Callable[[PrimExpr], Panel]]:
        def phase_panel(index: PrimExpr) -> Panel:
            """Return a panel of a phase: the phase's taps are contiguous in the weight, so its
            panel begins behind those of earlier phases.
            """
            at = self.output.phase(index // panels, self.geometry.steps(self.slice))
            panel = make(index % panels)
            offset = panel.offset + at.first * (self.group_in * self.width)
            start = simplify(panel.channel + at.origin)
            return _PhasePanel(offset, panel.column, start, panel.valid, at)

        return panels * self.output.number, phase_panel


def _named(panel: Panel) -> tuple[_PhasePanel, list[tuple[Var, PrimExpr]]]:
    """Return a panel with its values bound to variables, and the bindings: each is computed once,
    not in every step of k.
    """
    assert isinstance(panel, _PhasePanel)
    lets: list[tuple[Var, PrimExpr]] = []

    def named(name: str, value: PrimExpr) -> PrimExpr:
        """Return a variable for a value that is not constant."""
        if isinstance(value, IntImm):
            return value
        lets.append((Var(name), value))
        return lets[-1][0]

    position = tuple(named("phase", coordinate) for coordinate in panel.at.place)
    taps = tuple(named("taps", tap_count) for tap_count in panel.at.taps)
    offset, channel = named("weights", panel.offset), named("start", panel.channel)
    at = replace(panel.at, place=position, taps=taps)
    column = named("column", panel.column)
    return replace(panel, offset=offset, column=column, channel=channel, at=at), lets


def _without_unit_loops(loops: list[KLoop]) -> list[KLoop]:
    """Return the loops without those over one tap."""
    return [k for k in loops if not (isinstance(k.extent, IntImm) and k.extent.value == 1)]


class _TransposedDepthwise(DepthwiseKernel):
    """The builder of one transposed depthwise kernel."""

    def find_geometry(self) -> Geometry:
        """Return the geometry of the convolutions of all phases."""
        self.output = _PhasedOutput(self.anchor)
        return self.output.geometry

    def line(
        self, n: PrimExpr, y: PrimExpr, start: PrimExpr, channel: PrimExpr, mask: PrimExpr | None
    ) -> Stmt:
        """Return one line of every phase for one vector of channels."""
        width, index, steps = self.geometry.out[2], Var("phase"), self.geometry.steps(self.slice)
        at = self.output.phase(index, steps)
        loops = self.output.loops(at, steps, const(self.channels))
        weights = at.first * self.channels + channel

        def body(pixels: int, first: PrimExpr) -> Stmt:
            """Return tiles of pixels of one phase."""

            def store(p: int, value: PrimExpr) -> Stmt:
                """Store a pixel's vector at its phase's position in the result."""
                result_index = [n, y, first + p, channel]
                return self.output.store(
                    at,
                    result_index,
                    lambda indices, at: self.epilogue.store(indices, at, value, mask),
                )

            base = start + channel + at.origin + first * self.channels
            return self.tile(pixels, base, weights, mask, loops, store)

        lines = balanced_rows(width, self.pixels, body)
        return For(index, const(0), const(self.output.number), ForKind.SERIAL, lines)


def conv_transpose(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of tag "conv_transpose_pack"."""
    return _Transposed(inputs, outputs, target, TRANSPOSED_CONV_TAG, decision).function(name)


def depthwise_conv_transpose(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of tag "depthwise_conv_transpose"."""
    kernel = _TransposedDepthwise(inputs, outputs, target, "depthwise_conv_transpose", decision)
    return kernel.function(name)


def _panel_and_depth(anchor: te.Tensor) -> tuple[int, int]:
    """Return the columns of a panel and the input channels of a group."""
    weight = operands_of(anchor)[1]
    depth = size_of(weight.shape[-2])
    assert depth is not None, "weights are known"
    return int(str(anchor.op.attrs["tile"])), depth


def space(anchor: te.Tensor, target: Target) -> Space:
    """Return the search space of a transposed convolution."""
    panel, _ = _panel_and_depth(anchor)
    rows = descending(most_rows(-(-panel // target.lanes("float32")), target))
    return (
        Knob("panel", (panel,), "columns of a panel of weights", is_early=True),
        Knob("rows", rows, "pixels of a tile"),
        Knob(
            "own", PREFETCH_DISTANCES, "steps by which a panel is brought to the first cache ahead"
        ),
        Knob("unroll", UNROLL_FACTORS, "steps of k that stand one after the other"),
    )


def default(anchor: te.Tensor, target: Target, fixed: Fixed) -> Decision:
    """Return the default decision for a transposed convolution."""
    panel, depth = _panel_and_depth(anchor)
    product = Product(ASSUMED_PIXELS, panel, depth)
    rows = int(fixed.get("rows", tile_rows(-(-panel // target.lanes("float32")), product, target)))
    own = int(fixed.get("own", 0))
    unroll = fixed.get("unroll", Blocking(product, panel, rows, target).unroll("panel", own))
    return Decision.of({"panel": panel, "rows": rows, "own": own, "unroll": unroll})


FAMILIES = (
    Family(
        name=TRANSPOSED_CONV_TAG,
        accepts=accepts,
        space=space,
        default=default,
        build=conv_transpose,
        why="pixels of each phase take taps of their own, and some at borders none",
        panel=panel_width,
        panels=panel_choice,
    ),
    Family(
        name="depthwise_conv_transpose",
        accepts=accepts,
        space=depthwise_space,
        default=depthwise_default,
        build=depthwise_conv_transpose,
        why="pixels of each phase take taps of their own, and some at borders none",
    ),
)
