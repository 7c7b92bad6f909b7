"""Transposed convolutions in NHWC or NDHWC with packed weights, as one unstrided convolution per
phase.

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
from functools import partial

from ekiden import te
from ekiden.arith import prove_equal, simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.kernels.conv_geometry import ConvGeometry, transposed_axes_of, transposed_geometry
from ekiden.kernels.cost_model import (
    PREFETCH_DISTANCES,
    LoopBlocking,
    choose_panel_width,
    max_register_rows,
    panel_width_knob,
    tile_rows,
)
from ekiden.kernels.cpu.conv2d import ConvKernel, WeightPanel
from ekiden.kernels.cpu.dense import K_UNROLL_FACTORS
from ekiden.kernels.cpu.depthwise import DepthwiseKernel
from ekiden.kernels.cpu.depthwise import default_decision as depthwise_default
from ekiden.kernels.cpu.depthwise import search_space as depthwise_space
from ekiden.kernels.cpu.window_taps import ResultRanges, TapRanges
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace, descending_range
from ekiden.kernels.family import Family, MatmulSizes, known_extent
from ekiden.kernels.micro_kernels.epilogue import operands_of
from ekiden.kernels.micro_kernels.register_tiles import balanced_row_tiles
from ekiden.kernels.prim_builder import LetBindings, kernel_builder, wrap_in_lets
from ekiden.kernels.spaces.conv import is_short_line
from ekiden.kernels.stages import has_known_weights
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.stmt import For, ForKind, IfThenElse, Stmt
from ekiden.tir.tensor_intrin.micro import SumLoop

TRANSPOSED_CONV_TAG = "conv_transpose_pack"
ASSUMED_OUTPUT_PIXELS = 1 << 12
"""Assumed number of output pixels where it is dynamic."""
CHANNELS_LAST_LAYOUTS = ("NHWC", "NDHWC")
"""Supported channels-last layouts."""


def is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether a kernel of this module covers a transposed convolution."""
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
    """Phase of a transposed convolution (output position modulo stride): its number of taps, and
    the offsets of its first data element and first tap.
    """

    output_position: tuple[PrimExpr, ...]
    taps: tuple[PrimExpr, ...]
    data_offset: PrimExpr
    first_tap: PrimExpr


class _PhasedOutput:
    """The results of a transposed convolution by phase (output position modulo stride); each phase
    is a convolution without strides.
    """

    def __init__(self, anchor: te.Tensor) -> None:
        self.anchor, self.axes = anchor, transposed_axes_of(anchor)
        self.geometry = transposed_geometry(anchor, self.axes)
        self.number = math.prod(axis.num_phases for axis in self.axes)
        self.taps = math.prod(axis.kernel for axis in self.axes)

    def phase_at(self, index: PrimExpr, steps: list[PrimExpr]) -> _Phase:
        """Return the phase of an index, for data with the given pixel strides."""
        position: list[PrimExpr] = []
        for axis in reversed(self.axes):
            position.insert(0, simplify(index % axis.num_phases))
            index = simplify(index // axis.num_phases)
        origin = first = const(0)
        for axis, at, step in zip(self.axes, position, steps, strict=True):
            origin = simplify(origin + axis.first_element(at) * step)
            first = simplify(first * axis.kernel + axis.first_tap(at))
        taps = tuple(axis.num_taps(at) for axis, at in zip(self.axes, position, strict=True))
        return _Phase(tuple(position), taps, origin, first)

    def tap_loops(self, at: _Phase, steps: list[PrimExpr], weights: PrimExpr) -> list[SumLoop]:
        """Return the tap loops of a phase, with a weight stride of `weights` per tap."""
        tap_loops: list[SumLoop] = []
        for axis, taps, step in reversed(list(zip(self.axes, at.taps, steps, strict=True))):
            tap_loops.insert(
                0,
                SumLoop(taps, simplify(step * -axis.data_step), simplify(weights * axis.tap_step)),
            )
            weights = simplify(weights * axis.kernel)
        return tap_loops

    def emit_guarded_store(
        self,
        at: _Phase,
        result_index: list[PrimExpr],
        emit_position: Callable[[list[PrimExpr], PrimExpr], Stmt],
    ) -> Stmt:
        """Emit `emit_position(indices, offset)` for one output position of a phase, guarded where
        phases differ in extent.
        """
        n, *inner, channel = self.geometry.result_indices(result_index)
        steps = zip(inner, self.axes, at.output_position, strict=True)
        indices = [n, *(q * axis.stride + phase for q, axis, phase in steps), channel]
        flat: PrimExpr = const(0)
        for index, extent in zip(indices, self.anchor.shape, strict=True):
            flat = flat * extent + index
        stmt = emit_position(indices, flat)
        sizes = operands_of(self.anchor)[0].shape[1:-1]
        extents = self.anchor.shape[1:-1]
        for index, axis, size, extent in zip(indices[1:-1], self.axes, sizes, extents, strict=True):
            # All phases have as many positions: if strides do not divide the extent, some are
            # outside.
            if not prove_equal(axis.num_positions(size) * axis.stride, extent):
                stmt = IfThenElse(index < extent, stmt)
        return stmt


@dataclass(frozen=True, slots=True)
class _PhasePanel(WeightPanel):
    """A panel of weights for one phase."""

    phase: _Phase


class _TransposedConvKernel(ConvKernel):
    """Builder of one transposed convolution kernel."""

    def conv_geometry(self) -> ConvGeometry:
        """Return the geometry of the convolutions of all phases."""
        self.output = _PhasedOutput(self.anchor)
        return self.output.geometry

    def num_taps(self) -> int:
        """Return the number of kernel taps of the weight."""
        return self.output.taps

    def has_flattened_pixels(self) -> bool:
        """Return whether lines are too short for good tiles."""
        return is_short_line(self.geometry.out[2])

    def parallelizes_panels(self, panels: int) -> bool:
        """Return whether the parallel loop is the one over panels: weights larger than the data are
        then read once.
        """
        depth = self.geometry.depth.size
        pixels = known_extent(simplify(math.prod(self.geometry.data[1:], start=depth)))
        weights = known_extent(simplify(self.group_in * (self.taps * self.channels)))
        assert weights is not None, "weights are known"
        return panels >= self.target.cores and pixels is not None and weights >= pixels

    def reduction_loops(self, panel: WeightPanel, taps: TapRanges) -> list[SumLoop]:
        """Return the tap loops of a phase, then the channel loop."""
        assert isinstance(panel, _PhasePanel)
        assert not taps
        per_tap = self.group_in * self.width
        tap_loops = self.output.tap_loops(
            panel.phase, self.geometry.data_strides(self.slice_stride), per_tap
        )
        return [*_without_unit_loops(tap_loops), self.channel_loop(1)]

    def bind_taps_in_bounds(
        self, positions: ResultRanges, results: int = 1
    ) -> tuple[LetBindings, TapRanges]:
        """Return no restriction: every window covers the taps of all phases."""
        return [], {}

    def emit_line_tiles(
        self, panel: WeightPanel, n: PrimExpr, y: PrimExpr, offset: PrimExpr
    ) -> Stmt:
        """Emit the tiles of one line of a phase."""
        names, lets = _bind_panel(panel)
        return wrap_in_lets(lets, super().emit_line_tiles(names, n, y, offset))

    def emit_flat_tile(
        self, rows: int, first: PrimExpr, panel: WeightPanel, number: PrimExpr | None = None
    ) -> Stmt:
        """Emit a tile of a phase's results, across line ends."""
        names, lets = _bind_panel(panel)
        return wrap_in_lets(lets, super().emit_flat_tile(rows, first, names, number))

    def emit_store(
        self,
        output_index: list[PrimExpr],
        flat: PrimExpr,
        value: PrimExpr,
        mask: PrimExpr | None,
        panel: WeightPanel,
    ) -> Stmt:
        """Emit the store of results at their phase's output positions."""
        assert isinstance(panel, _PhasePanel)
        return self.output.emit_guarded_store(
            panel.phase,
            output_index,
            lambda indices, at: self.epilogue.emit_store(indices, at, value, mask),
        )

    def group_panels(self) -> list[tuple[int, Callable[[PrimExpr], WeightPanel]]]:
        """Return the weight panels of all phases."""
        return [self._panels_of_phases(*panel_part) for panel_part in super().group_panels()]

    def _panels_of_phases(
        self, panels: int, make: Callable[[PrimExpr], WeightPanel]
    ) -> tuple[int, Callable[[PrimExpr], WeightPanel]]:
        def panel_at(index: PrimExpr) -> WeightPanel:
            """Return the panel of a phase; the phase's taps are contiguous in the weight, after
            those of earlier phases.
            """
            at = self.output.phase_at(
                index // panels, self.geometry.data_strides(self.slice_stride)
            )
            panel = make(index % panels)
            offset = panel.offset + at.first_tap * (self.group_in * self.width)
            start = simplify(panel.channel + at.data_offset)
            return _PhasePanel(offset, panel.column, start, panel.num_columns, at)

        return panels * self.output.number, panel_at


def _bind_panel(panel: WeightPanel) -> tuple[_PhasePanel, list[tuple[Var, PrimExpr]]]:
    """Return a panel whose expressions are bound to variables, and the bindings, so that each is
    computed once.
    """
    assert isinstance(panel, _PhasePanel)
    lets: list[tuple[Var, PrimExpr]] = []

    def bind_value(name: str, value: PrimExpr) -> PrimExpr:
        """Return a variable for a value that is not constant."""
        if isinstance(value, IntImm):
            return value
        lets.append((Var(name), value))
        return lets[-1][0]

    position = tuple(bind_value("phase", coordinate) for coordinate in panel.phase.output_position)
    taps = tuple(bind_value("taps", tap_count) for tap_count in panel.phase.taps)
    offset, channel = bind_value("weights", panel.offset), bind_value("start", panel.channel)
    at = replace(panel.phase, output_position=position, taps=taps)
    column = bind_value("column", panel.column)
    return replace(panel, offset=offset, column=column, channel=channel, phase=at), lets


def _without_unit_loops(loops: list[SumLoop]) -> list[SumLoop]:
    """Return the loops without those of one iteration."""
    return [k for k in loops if not (isinstance(k.extent, IntImm) and k.extent.value == 1)]


class _TransposedDepthwiseKernel(DepthwiseKernel):
    """Builder of one transposed depthwise kernel."""

    def conv_geometry(self) -> ConvGeometry:
        """Return the geometry of the convolutions of all phases."""
        self.output = _PhasedOutput(self.anchor)
        return self.output.geometry

    def emit_line(
        self, n: PrimExpr, y: PrimExpr, start: PrimExpr, channel: PrimExpr, columns: int
    ) -> Stmt:
        """Emit one line of every phase for some channels."""
        width, index, steps = (
            self.geometry.out[2],
            Var("phase"),
            self.geometry.data_strides(self.slice),
        )
        at = self.output.phase_at(index, steps)
        loops = self.output.tap_loops(at, steps, const(self.channels))
        weights = at.first_tap * self.channels + channel

        def emit_phase_tiles(pixels: int, first: PrimExpr) -> Stmt:
            """Return tiles of pixels of one phase."""

            def store_vector(
                p: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None
            ) -> Stmt:
                """Store a vector of a pixel's channels at its phase's position in the result."""
                return self.output.emit_guarded_store(
                    at,
                    [n, y, first + p, channel + column],
                    lambda indices, at: self.epilogue.emit_store(indices, at, value, mask),
                )

            base = start + channel + at.data_offset + first * self.channels
            return self.emit_tile(pixels, columns, base, weights, loops, store_vector)

        lines = balanced_row_tiles(width, self.pixels, emit_phase_tiles)
        return For(index, const(0), const(self.output.number), ForKind.SERIAL, lines)


def _panel_and_depth(anchor: te.Tensor) -> tuple[int, int]:
    """Return the columns of a weight panel and the input channels of a group."""
    weight = operands_of(anchor)[1]
    depth = known_extent(weight.shape[-2])
    assert depth is not None, "weights are known"
    return int(str(anchor.op.attrs["tile"])), depth


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of a transposed convolution."""
    panel, _ = _panel_and_depth(anchor)
    rows = descending_range(max_register_rows(-(-panel // target.lanes("float32")), target))
    return (
        Knob("panel", (panel,), "columns of a panel of weights", is_early=True),
        Knob("rows", rows, "pixels of a tile"),
        Knob(
            "l1_prefetch",
            PREFETCH_DISTANCES,
            "L1 prefetch distance of a panel, in steps of k",
        ),
        Knob("unroll", K_UNROLL_FACTORS, "unroll factor of k"),
    )


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision for a transposed convolution."""
    panel, depth = _panel_and_depth(anchor)
    product = MatmulSizes(ASSUMED_OUTPUT_PIXELS, panel, depth)
    rows = int(fixed.get("rows", tile_rows(-(-panel // target.lanes("float32")), product, target)))
    l1_prefetch = int(fixed.get("l1_prefetch", 0))
    unroll = fixed.get(
        "unroll", LoopBlocking(product, panel, rows, target).unroll_factor("panel", l1_prefetch)
    )
    return Decision.from_mapping(
        {"panel": panel, "rows": rows, "l1_prefetch": l1_prefetch, "unroll": unroll}
    )


FAMILIES = (
    Family(
        name=TRANSPOSED_CONV_TAG,
        accepts=is_supported,
        search_space=search_space,
        default_decision=default_decision,
        build_unscheduled=kernel_builder(partial(_TransposedConvKernel, tag=TRANSPOSED_CONV_TAG)),
        unscheduled_reason="each phase of pixels has its own taps, and border pixels may have none",
        default_panel_width=choose_panel_width,
        panel_width_knob=panel_width_knob,
    ),
    Family(
        name="depthwise_conv_transpose",
        accepts=is_supported,
        search_space=depthwise_space,
        default_decision=depthwise_default,
        build_unscheduled=kernel_builder(
            partial(_TransposedDepthwiseKernel, tag="depthwise_conv_transpose")
        ),
        unscheduled_reason="each phase of pixels has its own taps, and border pixels may have none",
    ),
)
