"""Transposed convolutions in NHWC with packed weights, in register tiles.

    out[n, y*sy + i*dy - top, x*sx + j*dx - left, o] += data[n, y, x, c] * weight[c, o, i, j]

The results at one phase, stride * q + phase on each axis, are an ordinary convolution over q with
the taps that reach them (geometry.py): no tap is multiplied with a zero between the data. The loops
are those of conv2d.py, where a panel of weights is one of a phase, and results are stored at every
stride-th place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ekiden import te
from ekiden.arith import prove_equal, simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, logical_and
from ekiden.target import Target
from ekiden.tir.stmt import For, ForKind, IfThenElse, PrimFunc, Stmt
from ekiden.topi.rule.conv2d import NARROW, Conv, Panel
from ekiden.topi.rule.depthwise import PIXELS, Depthwise
from ekiden.topi.rule.epilogue import operands_of
from ekiden.topi.rule.geometry import Geometry, Phases, phases_of, transposed_geometry
from ekiden.topi.rule.stages import has_known_weights
from ekiden.topi.rule.tiles import KLoop, balanced_rows


def accepts(anchor: te.Tensor) -> bool:
    """Whether the rules of this file cover a transposed convolution of packed weights."""
    attrs = anchor.op.attrs
    data, weight = operands_of(anchor)
    if not has_known_weights(anchor) or {data.dtype, weight.dtype, anchor.dtype} != {"float32"}:
        return False
    return attrs["data_layout"] == attrs["out_layout"] == "NHWC"


@dataclass(frozen=True, slots=True)
class _At:
    """A phase: where its results are, its taps as loops over data and weights, and the offsets of
    the first tap in both, in pixels and taps."""

    place: tuple[PrimExpr, ...]
    taps: tuple[PrimExpr, ...]
    origin: PrimExpr
    first: PrimExpr


class _Output:
    """The places of results."""

    def __init__(self, anchor: te.Tensor, axes: tuple[Phases, ...], geometry: Geometry) -> None:
        self.anchor, self.axes, self.geometry = anchor, axes, geometry
        self.number = 1
        for axis in axes:
            self.number *= axis.stride

    def phase(self, index: PrimExpr) -> _At:
        """A phase by its number."""
        place: list[PrimExpr] = []
        for axis in reversed(self.axes):
            place.insert(0, simplify(index % axis.stride))
            index = simplify(index // axis.stride)
        origin = first = const(0)
        sizes = self.geometry.padded()
        for axis, at, size in zip(self.axes, place, sizes, strict=True):
            origin = simplify(origin * size + axis.origin(at))
            first = simplify(first * axis.kernel + axis.first(at))
        taps = tuple(axis.taps(at) for axis, at in zip(self.axes, place, strict=True))
        return _At(tuple(place), taps, origin, first)

    def loops(self, at: _At, pixel: PrimExpr, weights: PrimExpr) -> list[KLoop]:
        """Rows of taps, and the taps of a row, where a pixel and a tap are so many elements."""
        made: list[KLoop] = []
        sizes = self.geometry.padded()
        for axis, taps, size in reversed(list(zip(self.axes, at.taps, sizes, strict=True))):
            made.insert(0, KLoop(taps, simplify(pixel * -axis.move), simplify(weights * axis.step)))
            pixel, weights = simplify(pixel * size), simplify(weights * axis.kernel)
        return made

    def spread(self, at: _At, place: list[PrimExpr]) -> list[PrimExpr]:
        """The place of a result by that among the results of its phase."""
        n, *inner, channel = place
        steps = zip(inner, self.axes, at.place, strict=True)
        return [n, *(q * axis.stride + phase for q, axis, phase in steps), channel]

    def guarded(self, place: list[PrimExpr], store: Callable[[PrimExpr], Stmt]) -> Stmt:
        """`store(offset)` for a place, if it is inside: the last results of some phases are not."""
        flat: PrimExpr = const(0)
        inside: PrimExpr | None = None
        for at, extent in zip(place, self.anchor.shape, strict=True):
            flat = flat * extent + at
        counts = self.geometry.out
        for i, axis in enumerate(self.axes, 1):
            if not prove_equal(counts[i] * axis.stride, self.anchor.shape[i]):
                test = place[i] < self.anchor.shape[i]
                inside = test if inside is None else logical_and(inside, test)
        made = store(flat)
        return made if inside is None else IfThenElse(inside, made)


@dataclass(frozen=True, slots=True)
class _PhasePanel(Panel):
    """A panel of weights for one phase."""

    at: _At


class _Transposed(Conv):
    """One kernel being built."""

    def find_geometry(self) -> Geometry:
        """The numbers of the convolutions of all phases."""
        axes = phases_of(self.anchor)
        geometry = transposed_geometry(self.anchor, axes)
        self.output = _Output(self.anchor, axes, geometry)
        return geometry

    def count_taps(self) -> int:
        """Of the weight."""
        return _taps(self.output.axes)

    def is_flat(self) -> bool:
        """Whether lines are too short to be cut into good tiles."""
        width = self.geometry.out[2]
        return isinstance(width, IntImm) and width.value <= NARROW

    def k_loops(self, panel: Panel) -> list[KLoop]:
        """The taps of a phase, then channels."""
        assert isinstance(panel, _PhasePanel)
        per_tap = self.group_in * self.width
        taps = self.output.loops(panel.at, self.geometry.data[3], per_tap)
        return [*_several(taps), KLoop(self.group_in, const(1), const(self.width))]

    def keep(
        self,
        place: list[PrimExpr],
        flat: PrimExpr,
        value: PrimExpr,
        mask: PrimExpr | None,
        panel: Panel,
    ) -> Stmt:
        """Store results at their phase."""
        assert isinstance(panel, _PhasePanel)
        at = self.output.spread(panel.at, place)
        return self.output.guarded(at, lambda offset: self.epilogue.store(at, offset, value, mask))

    def parts(self) -> list[tuple[int, Callable[[PrimExpr], Panel]]]:
        """The panels of all phases."""
        return [self._of_phases(*part) for part in super().parts()]

    def _of_phases(
        self, panels: int, make: Callable[[PrimExpr], Panel]
    ) -> tuple[int, Callable[[PrimExpr], Panel]]:
        def made(index: PrimExpr) -> Panel:
            at, panel = self.output.phase(index // panels), make(index % panels)
            offset = panel.offset + at.first * (self.group_in * self.width)
            start = panel.channel + at.origin * self.geometry.data[3]
            return _PhasePanel(offset, panel.column, simplify(start), panel.valid, at)

        return panels * self.output.number, made


def _several(loops: list[KLoop]) -> list[KLoop]:
    """Without loops over one tap."""
    return [k for k in loops if not (isinstance(k.extent, IntImm) and k.extent.value == 1)]


def _taps(axes: tuple[Phases, ...]) -> int:
    made = 1
    for axis in axes:
        made *= axis.kernel
    return made


class _TransposedDepthwise(Depthwise):
    """One depthwise kernel being built."""

    tag = "depthwise_conv2d_transpose"

    def find_geometry(self) -> Geometry:
        """The numbers of the convolutions of all phases."""
        axes = phases_of(self.anchor)
        geometry = transposed_geometry(self.anchor, axes)
        self.output = _Output(self.anchor, axes, geometry)
        return geometry

    def line(
        self, n: PrimExpr, y: PrimExpr, start: PrimExpr, channel: PrimExpr, mask: PrimExpr | None
    ) -> Stmt:
        """One line of every phase for one vector of channels."""
        width, index = self.geometry.out[2], Var("phase")
        at = self.output.phase(index)
        loops = self.output.loops(at, const(self.channels), const(self.channels))
        weights = at.first * self.channels + channel

        def body(pixels: int, first: PrimExpr) -> Stmt:
            def store(p: int, value: PrimExpr) -> Stmt:
                place = self.output.spread(at, [n, y, first + p, channel])
                return self.output.guarded(
                    place, lambda offset: self.epilogue.store(place, offset, value, mask)
                )

            base = start + channel + (at.origin + first) * self.channels
            return self.tile(pixels, base, weights, mask, loops, store)

        lines = balanced_rows(width, PIXELS, body)
        return For(index, const(0), const(self.output.number), ForKind.SERIAL, lines)


def conv2d_transpose(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
) -> PrimFunc:
    """The rule for tag "conv2d_transpose_pack"."""
    kernel = _Transposed(inputs, outputs, target, "conv2d_transpose_pack")
    attrs = {"global_symbol": name, "num_outputs": len(outputs), "tir.tiled": 1}
    return PrimFunc((*kernel.buffers.values(),), kernel.body(), attrs)


def depthwise_conv2d_transpose(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
) -> PrimFunc:
    """The rule for tag "depthwise_conv2d_transpose"."""
    kernel = _TransposedDepthwise(inputs, outputs, target)
    attrs = {"global_symbol": name, "num_outputs": len(outputs), "tir.tiled": 1}
    return PrimFunc((*kernel.buffers.values(),), kernel.body(), attrs)
