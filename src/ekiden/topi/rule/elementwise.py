"""One injective computation: each element of the output is written once.

    out[i, j] = max(a[i, j] + b[j], 0)

    for i in parallel: for j in vectors           axes that every access walks as one are fused
    for chunk in parallel: for x in vectors       one long axis
    for i block in parallel: for j: for i         what is read across its rows: blocks of them
    cut where a condition changes                 out[i] = i < 3 ? a[i] : b[i - 3]

What is chosen follows from how elements are accessed (`Nest`), and is not a matter of the target's
facts but for the width of its vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.arith import Analyzer
from ekiden.ir.intrinsic import EXPENSIVE
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import post_order, rewrite, substitute
from ekiden.target import Target
from ekiden.te.inline import is_injective
from ekiden.te.tensor import ComputeOp
from ekiden.tir.expr import BufferLoad
from ekiden.tir.schedule import Schedule
from ekiden.tir.schedule.trace import BlockRV, LoopRV
from ekiden.tir.stmt import BlockRealize, BufferStore, For, PrimFunc
from ekiden.tir.transform.flatten_buffers import flat_index
from ekiden.topi.rule.family import Family, Tensors
from ekiden.topi.rule.injective import BLOCK, STRIP, Nest, Region, at_least
from ekiden.topi.rule.loops import (
    CHUNK,
    GRAIN,
    PARALLEL_STEPS,
    Accesses,
    Axis,
    cost,
    estimate,
    split_points,
    vector_lanes,
)
from ekiden.topi.rule.scheduled import Kernel, if_proved
from ekiden.topi.rule.stages import chosen_stages, own_outputs, stages_of


def sole_stage(outputs: Sequence[te.Tensor]) -> te.Tensor | None:
    """The computation of a group that is one injective computation after inlining."""
    kept = chosen_stages(own_outputs(outputs))
    stages = stages_of(kept)
    if len(stages) != 1 or len(kept) != 1 or not isinstance(stages[0].op, ComputeOp):
        return None
    return stages[0] if is_injective(stages[0]) else None


def start(inputs: Tensors, kernel: Kernel, name: str) -> PrimFunc:
    """The program before: one block."""
    return te.create_prim_func([*inputs, kernel.anchor], name)


def steps(sch: Schedule, kernel: Kernel) -> None:
    """The schedule of an injective computation."""
    blocks = [sch.get_block(kernel.anchor.op.name)]
    for n in range(kernel.anchor.ndim if _has_conditions(kernel.anchor) else 0):
        blocks = [part for block in blocks for part in _cut(sch, block, n, kernel.target)]
    for block in blocks:
        _Part(sch, block, kernel.target).schedule()


def _has_conditions(stage: te.Tensor) -> bool:
    """Whether anything could differ between parts of an axis."""
    op = stage.op
    assert isinstance(op, ComputeOp)
    return any(e.dtype == "bool" for e in post_order(*op.body))


def _region(sch: Schedule, block: BlockRV, analyzer: Analyzer) -> tuple[Region, str, list[LoopRV]]:
    """An element of a block in terms of its loops: (axes, offset and value), its dtype, the
    loops."""
    loops = sch.get_loops(block)
    realize = sch.get_sref(block)
    assert isinstance(realize, BlockRealize)
    store = realize.block.body
    assert isinstance(store, BufferStore)
    axes = []
    for each in loops:
        loop = sch.get(each)
        assert isinstance(loop, For)
        analyzer.bind(loop.loop_var, loop.min, loop.extent)
        axes.append(Axis(loop.loop_var, loop.extent))
    iters = (i.var for i in realize.block.iter_vars)
    values: dict[Var, PrimExpr] = dict(zip(iters, realize.iter_values, strict=True))

    def change(e: PrimExpr) -> PrimExpr:
        if isinstance(e, Var):
            return values.get(e, e)
        if isinstance(e, BufferLoad) and len(e.indices) != 1:
            at = flat_index(e.buffer, e.indices) if e.indices else const(0)
            return BufferLoad(e.buffer, (analyzer.simplify(at),), e.dtype)
        return e

    index = flat_index(store.buffer, store.indices) if store.indices else const(0)
    index = analyzer.simplify(substitute(index, values))
    region = Region(tuple(axes), index, analyzer.simplify(rewrite(store.value, change)))
    return region, store.buffer.dtype, loops


def _cut(sch: Schedule, block: BlockRV, n: int, target: Target) -> list[BlockRV]:
    """The block cut along an axis where a condition changes; along the last one not into less than
    vectors, which work under masks, unless that would scatter what they load."""
    analyzer = Analyzer()
    region, dtype, loops = _region(sch, block, analyzer)
    axis = region.axes[n]
    others = {a.var for a in region.axes if a is not axis}
    points = split_points([region.value], axis, others, analyzer)
    if len(points) == 2:
        return [block]
    loads = Accesses([], [region.value]).loads
    lanes = vector_lanes(target, dtype, [x.dtype for x in loads])
    picked = any(e.dtype == "bool" for e in post_order(*(i for x in loads for i in x.indices)))
    walks = n == len(region.axes) - 1 and analyzer.coefficient(region.index, axis.var) == 1
    points = at_least(points, lanes if walks and not picked else 1)
    if len(points) == 2:
        return [block]
    if n:
        sch.reorder(loops[n], *loops[:n])
    parts = sch.partition(loops[n], points[1:-1])
    blocks = [block, *(each for part in parts[1:] for each in sch.get_child_blocks(part))]
    for each in blocks if n else ():
        here = sch.get_loops(each)
        sch.reorder(*here[1 : n + 1], here[0])
    return blocks


class _Part:
    """The steps for one block, which no condition cuts."""

    def __init__(self, sch: Schedule, block: BlockRV, target: Target) -> None:
        self.sch = sch
        self.analyzer = Analyzer()
        region, dtype, loops = _region(sch, block, self.analyzer)
        self.nest = nest = Nest(dtype, region, self.analyzer, target)
        groups: list[list[LoopRV]] = [[]]
        for axis, loop in zip(region.axes, loops, strict=True):
            groups[-1].append(loop)
            if not is_const(nest.joined.get(axis.var, axis.var), 0):
                groups.append([])
        *whole, left = groups
        if whole:
            whole[-1] += left
        fused = [sch.fuse(*g) if len(g) > 1 else g[0] for g in whole]
        self.loops = {a.var: loop for a, loop in zip(nest.axes, fused, strict=True)}

    def loop(self, axis: Axis) -> LoopRV:
        """The loop over an axis."""
        return self.loops[axis.var]

    def schedule(self) -> None:
        """The order of loops, then which run as vectors, and which in parallel."""
        nest = self.nest
        if not nest.axes:
            return
        inner = nest.vector_axis()
        walked = nest.strided_axis(inner)
        if walked is not None:
            self.transposed(inner, walked)
            return
        outer = [a for a in nest.axes if a is not inner]
        if not outer:
            self.chunks(inner, cost([nest.value]), [])
            return
        last = nest.axes[-1]
        inside: list[Axis] = []
        if inner is not last:
            inside, outer = [last], [a for a in outer if a is not last]
        elif nest.picks(inner, outer[-1]):
            if len(outer) == 1:
                rows = estimate([outer[0].extent]) * cost([nest.value])
                self.chunks(inner, min(rows, CHUNK // (4 * nest.lanes)), outer)
                return
            inside, outer = [outer[-1]], outer[:-1]
        if inside:
            self.sch.reorder(self.loop(inner), self.loop(inside[0]))
        work = estimate([a.extent for a in nest.axes if a not in outer]) * cost([nest.value])
        if_proved(self.sch.vectorize, self.loop(inner), nest.lanes)
        self.parallel([(a, self.loop(a)) for a in outer], work)

    def chunks(self, axis: Axis, weight: int, inside: Sequence[Axis]) -> None:
        """A single long axis: chunks in parallel, vectors inside, other loops in those."""
        loop = self.loop(axis)
        if isinstance(axis.extent, IntImm) and axis.extent.value * weight <= GRAIN:
            if inside:
                self.sch.reorder(loop, *(self.loop(a) for a in inside))
            if_proved(self.sch.vectorize, loop, self.nest.lanes)
            return
        chunk, loop = self.sch.split(loop, [None, CHUNK // weight], tail="short")
        if inside:
            self.sch.reorder(chunk, loop, *(self.loop(a) for a in inside))
        if_proved(self.sch.vectorize, loop, self.nest.lanes)
        if_proved(self.sch.parallel, chunk, GRAIN // CHUNK)

    def transposed(self, inner: Axis, walked: Axis) -> None:
        """Blocks of `walked`; inside, neighbours along `inner`: cache lines are read whole before
        others come. One element at a time, but vectors where elements take long to compute: a
        gather costs more than as many loads (512x21x200: 4.8 to 2.1 ms, 1024x1024: 1.0 to 0.66).
        """
        sch, nest = self.sch, self.nest
        outer = [a for a in nest.axes if a is not inner and a is not walked]
        blocks, at = sch.split(self.loop(walked), [None, BLOCK], tail="short")
        along = self.loop(inner)
        is_short = isinstance(inner.extent, IntImm) and inner.extent.value <= BLOCK
        values = post_order(nest.value)
        heavy = any(isinstance(e, Intrinsic) and e.op in EXPENSIVE for e in values)
        order = (at, along) if is_short and not heavy else (along, at)
        sch.reorder(*(self.loop(a) for a in outer), blocks, *order)
        if heavy:
            if_proved(sch.vectorize, along, nest.lanes)
        else:
            self.strips(at, along, is_short)
        steps = self.analyzer.simplify((walked.extent + (BLOCK - 1)) // BLOCK)
        pairs = [(a, self.loop(a)) for a in outer]
        self.parallel(
            [*pairs, (Axis(Var("blocks"), steps), blocks)], BLOCK * estimate([inner.extent])
        )

    def strips(self, at: LoopRV, along: LoopRV, is_short: bool) -> None:
        """STRIP elements along an axis per row of a block, then the rest of them."""
        sch = self.sch
        block = sch.get_child_blocks(along)[0]
        _, each = sch.split(along, [None, STRIP], tail="loop")
        if not is_short:
            sch.reorder(at, each)
        sch.unroll(each)
        del block

    def parallel(self, outer: Sequence[tuple[Axis, LoopRV]], work: int) -> None:
        """The outer axes fused and parallel when there is enough work: `work` elements in a step of
        all of them."""
        extents = [a.extent for a, _ in outer]
        known = all(isinstance(e, IntImm) for e in extents)
        if not outer or (known and estimate(extents) * work <= GRAIN):
            return
        count = 1
        while count < len(outer) and estimate(extents[:count]) < PARALLEL_STEPS:
            count += 1
        first = [loop for _, loop in outer[:count]]
        joint = self.sch.fuse(*first) if count > 1 else first[0]
        step = max(1, work * estimate(extents[count:]))
        if_proved(self.sch.parallel, joint, max(1, GRAIN // step))


FAMILY = Family(
    name="elementwise",
    accepts=lambda anchor: False,
    steps=steps,
    start=start,
    is_group=True,
    writes_rows=True,
)
"""Chosen for what it is as a whole: `sole_stage`."""

__all__ = ["FAMILY", "sole_stage"]
