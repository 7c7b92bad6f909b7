"""Sketches: ways to schedule any block, derived by rules, each with numbers left to be sampled.

A rule looks at one block and gives the schedules that it may have; rules are applied to all blocks,
the last first, and every combination is a sketch. What a sketch samples (tiles, vectors, unrolling)
stands as decisions in its trace, and changing those is what search does.

    inline     an injective block in its readers, or vectors over it where it is
    tile       a reduction over a tile of registers: rows, vectors, which loop is outside
    rfactor    a reduction to few elements by several sums
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ekiden import tir
from ekiden.ir.prim import IntImm
from ekiden.runtime.errors import CompileError, ScheduleError
from ekiden.target import Target
from ekiden.tir.schedule.trace import SAMPLING, BlockRV, Instruction, LoopRV, Trace
from ekiden.tir.stmt import Block, For, IterKind, PrimFunc
from ekiden.tune.candidate import Candidate
from ekiden.tune.program import DEFAULT

Rule: TypeAlias = Callable[[tir.Schedule, str, Target], "list[tir.Schedule] | None"]
"""(schedule, name of a block, target) -> the schedules it may have; None for a block that is not
this rule's. The schedule that is given stays as it is."""
ROWS = tuple(range(1, 15))
"""Of a tile of registers."""
VECTORS = (1, 2, 3, 4)
UNROLLS = (1, 2, 4)
MOST_SKETCHES = 48
SUMS = (2, 4, 8)
"""Vectors of sums that a reduction to few elements has."""


def _extent(schedule: tir.Schedule, loop: LoopRV) -> int:
    found = schedule.get(loop)
    assert isinstance(found, For), found
    return int(found.extent.value) if isinstance(found.extent, IntImm) else 0


def block_of(schedule: tir.Schedule, handle: BlockRV) -> Block:
    """The block that a handle stands for."""
    found = schedule.get(handle)
    assert isinstance(found, Block), found
    return found


def _kinds(schedule: tir.Schedule, name: str) -> list[IterKind]:
    return [v.kind for v in block_of(schedule, schedule.get_block(name)).iter_vars]


def _is_reduction(schedule: tir.Schedule, name: str) -> bool:
    return IterKind.REDUCE in _kinds(schedule, name)


def _even(candidates: Sequence[int]) -> list[float]:
    return [1.0 / len(candidates)] * len(candidates)


def inline(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """An injective block that another reads: in its readers; and as it is, in vectors."""
    if _is_reduction(schedule, name):
        return None
    block = schedule.get_block(name)
    if not schedule.get_consumers(block):
        return None
    found = [_vectors(schedule.copy(), name, target)]
    inlined = schedule.copy()
    try:
        inlined.compute_inline(inlined.get_block(name))
        found.insert(0, inlined)
    except ScheduleError:  # an output, or read by what cannot take it
        pass
    return found


def spread(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """Any other injective block: vectors over its last axis, threads over its first."""
    if _is_reduction(schedule, name):
        return None
    return [_vectors(schedule.copy(), name, target)]


def _vectors(schedule: tir.Schedule, name: str, target: Target) -> tir.Schedule:
    loops = schedule.get_loops(schedule.get_block(name))
    if not loops:
        return schedule
    lanes = target.lanes("float32")
    if _extent(schedule, loops[-1]) >= lanes:
        outer, lane = schedule.split(loops[-1], factors=[None, lanes])
        schedule.vectorize(lane)
        loops = [*loops[:-1], outer]
    _threads(schedule, loops)
    return schedule


def _threads(schedule: tir.Schedule, loops: Sequence[LoopRV]) -> None:
    """The first loop of several turns is shared by threads."""
    for loop in loops:
        if _extent(schedule, loop) > 1:
            schedule.parallel(loop)
            return


def tile(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """A reduction with an element per turn of some loops: its sums stay in registers, rows of
    vectors of them; for each loop that rows may be of, with columns or rows outside."""
    kinds = _kinds(schedule, name)
    loops = schedule.get_loops(schedule.get_block(name))
    if len(kinds) != len(loops) or IterKind.REDUCE not in kinds:
        return None
    spatial = [i for i, k in enumerate(kinds) if k is not IterKind.REDUCE]
    lanes = target.lanes("float32")
    if not spatial or _extent(schedule, loops[spatial[-1]]) < lanes:
        return None
    rows = [i for i in spatial[:-1] if _extent(schedule, loops[i]) > 1]
    found: list[tir.Schedule] = []
    for row in [*rows[-2:], -1] if rows else [-1]:
        for outside in ("rows", "columns") if row >= 0 else ("rows",):
            for packs in (False, True) if outside == "columns" else (False,):
                copy = schedule.copy()
                try:
                    _tile(copy, name, row, outside == "columns", packs, lanes)
                    found.append(copy)
                except ScheduleError:
                    continue
    return found or None


def _tile(
    schedule: tir.Schedule, name: str, row: int, columns_first: bool, packs: bool, lanes: int
) -> None:
    block = schedule.get_block(name)
    kinds = _kinds(schedule, name)
    out = schedule.cache_write(block, 0, "register")
    loops = schedule.get_loops(block)
    spatial = [loops[i] for i, k in enumerate(kinds) if k is not IterKind.REDUCE]
    reduced = [loops[i] for i, k in enumerate(kinds) if k is IterKind.REDUCE]
    widths = _widths(_extent(schedule, spatial[-1]), lanes)
    vectors = schedule.sample_categorical(widths, _even(widths))
    column_tile, vector, lane = schedule.split(spatial[-1], factors=[None, vectors, lanes])
    outer, inner = [*spatial[:-1], column_tile], [vector, lane]
    if row >= 0:
        heights = [r for r in ROWS if r <= _extent(schedule, loops[row])]
        rows = schedule.sample_categorical(heights, _even(heights))
        at = spatial.index(loops[row])
        outer[at], row_loop = schedule.split(loops[row], factors=[None, rows])
        inner.insert(0, row_loop)
        schedule.unroll(row_loop)
        if columns_first:
            outer.insert(0, outer.pop())
    unroll = schedule.sample_categorical(UNROLLS, _even(UNROLLS))
    last, step = schedule.split(reduced[-1], factors=[None, unroll])
    schedule.reorder(*outer, *reduced[:-1], last, step, *inner)
    schedule.unroll(step)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    schedule.reverse_compute_at(out, outer[-1], preserve_unit_loops=True)
    copied = schedule.get_loops(out)
    inside = copied[len(schedule.get_loops(block)) - len(reduced) - 1 - len(inner) :]
    _copy_out(schedule, inside, lanes)
    if packs:
        panel = schedule.cache_read(block, 1, "global")
        schedule.compute_at(panel, outer[0], preserve_unit_loops=True)
        _, lane = schedule.split(schedule.get_loops(panel)[-1], factors=[None, lanes])
        schedule.vectorize(lane)
    schedule.decompose_reduction(block, reduced[0] if len(reduced) > 1 else last)
    _threads(schedule, outer)


def _widths(extent: int, lanes: int) -> list[int]:
    """Vectors of a tile: those that leave no columns over, else those that fit. A tile wider than
    its row is all masks, which takes LLVM minutes."""
    fitting = [v for v in VECTORS if v * lanes <= extent]
    return [v for v in fitting if extent % (v * lanes) == 0] or fitting


def _copy_out(schedule: tir.Schedule, loops: Sequence[LoopRV], lanes: int) -> None:
    """What is in registers, to where it belongs."""
    vector, lane = schedule.split(loops[-1], factors=[None, lanes])
    schedule.unroll(vector)
    schedule.vectorize(lane)
    for loop in loops[:-1]:
        schedule.unroll(loop)


def rfactor(schedule: tir.Schedule, name: str, target: Target) -> list[tir.Schedule] | None:
    """A reduction to few elements: all its terms in one loop, cut into vectors of sums."""
    kinds = _kinds(schedule, name)
    block = schedule.get_block(name)
    loops = schedule.get_loops(block)
    if len(kinds) != len(loops) or IterKind.REDUCE not in kinds:
        return None
    reduced = [x for x, k in zip(loops, kinds, strict=True) if k is IterKind.REDUCE]
    total = 1
    for loop in reduced:
        total *= _extent(schedule, loop)
    lanes = target.lanes("float32")
    if total < 8 * lanes:
        return None
    copy = schedule.copy()
    try:
        _rfactor(copy, name, lanes)
    except ScheduleError:
        return None
    return [copy]


def _rfactor(schedule: tir.Schedule, name: str, lanes: int) -> None:
    kinds = _kinds(schedule, name)
    block = schedule.get_block(name)
    pairs = zip(schedule.get_loops(block), kinds, strict=True)
    reduced = [x for x, k in pairs if k is IterKind.REDUCE]
    fused = schedule.fuse(*reduced) if len(reduced) > 1 else reduced[0]
    sums = schedule.sample_categorical(SUMS, _even(SUMS))
    outer, several, lane = schedule.split(fused, factors=[None, sums, lanes])
    inner = schedule.fuse(several, lane)
    part = schedule.rfactor(inner, 0)
    loops = schedule.get_loops(part)
    several, lane = schedule.split(loops[-1], factors=[None, lanes])
    schedule.unroll(several)
    schedule.vectorize(lane)
    schedule.decompose_reduction(part, loops[-2])
    del outer


RULES: list[Rule] = [inline, tile, rfactor, spread]
"""Those that sketches are made by, the first that takes a block: a user may add more."""


def sketches(func: PrimFunc, target: Target, rules: Sequence[Rule] = ()) -> list[Trace]:
    """All combinations of what the rules give for each block, the last block first, as traces whose
    sampled numbers are random. Rules may refuse: then a block stays as it is."""
    first = tir.Schedule(func, seed=1, error_render_level="none")
    names = _names(first)
    partial = [first]
    for name in reversed(names):
        following: list[tir.Schedule] = []
        for schedule in partial:
            following.extend(_applied(schedule, name, target, rules or RULES))
        partial = following[:MOST_SKETCHES]
    return [s.trace for s in partial if len(s.trace.simplified())]


def _applied(
    schedule: tir.Schedule, name: str, target: Target, rules: Sequence[Rule]
) -> list[tir.Schedule]:
    for rule in rules:
        found = rule(schedule, name, target)
        if found:
            return found
    return [schedule]


def _names(schedule: tir.Schedule) -> list[str]:
    blocks: list[BlockRV] = []
    waiting = list(schedule.get_output_blocks())
    while waiting:
        block = waiting.pop(0)
        blocks.append(block)
        waiting.extend(schedule.get_producers(block))
    found = [block_of(schedule, b).name for b in blocks]
    return list(dict.fromkeys(reversed(found)))


@dataclass(frozen=True)
class TraceSpace:
    """The schedules of a loop program: some traces, each with other decisions."""

    func: PrimFunc
    traces: tuple[Trace, ...]
    names: tuple[str, ...] = ()
    """Of the traces; "sketch0", ... where they have none."""

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", tuple(f"sketch{n}" for n in range(len(self.traces))))

    @property
    def default(self) -> Candidate:
        """The program without search."""
        return Candidate(DEFAULT)

    def sample(self, source: random.Random) -> Candidate:
        """One of the traces, with all its numbers drawn again."""
        at = source.randrange(len(self.traces))
        return self._drawn(self.names[at], self.traces[at], None, source)

    def mutate(self, candidate: Candidate, source: random.Random) -> Candidate:
        """One number drawn again; of the default a random one."""
        if candidate.rule == DEFAULT:
            return self.sample(source)
        trace = Trace.from_json(candidate.choice)
        sampled = [i for i in trace.insts if i.kind in SAMPLING]
        if not sampled:
            return self.sample(source)
        return self._drawn(candidate.rule, trace, source.choice(sampled), source)

    def cross(self, a: Candidate, b: Candidate, source: random.Random) -> Candidate:
        """Of two with the same trace, each number from one of them; else one of the two."""
        if a.rule != b.rule or a.rule == DEFAULT:
            return source.choice((a, b))
        one, other = Trace.from_json(a.choice), Trace.from_json(b.choice)
        pairs = zip(one.insts, other.insts, strict=False)
        taken = {
            mine: other.decisions[theirs]
            for mine, theirs in pairs
            if mine.kind in SAMPLING and theirs in other.decisions and source.random() < 0.5
        }
        return self._made(a.rule, Trace(list(one.insts), {**one.decisions, **taken}))

    def _drawn(
        self, name: str, trace: Trace, which: Instruction | None, source: random.Random
    ) -> Candidate:
        def provide(inst: Instruction, inputs: object, attrs: object, decision: object) -> object:
            del inputs, attrs
            return None if which is None or inst is which else decision

        schedule = tir.Schedule(self.func, seed=source.randrange(1, 1 << 30),
                                error_render_level="none")  # fmt: skip
        try:
            trace.apply_to_schedule(schedule, decision_provider=provide)
        except ScheduleError as error:
            raise CompileError(f"tune: {name}: {error}") from error
        return Candidate(name, _text(schedule.trace))

    def _made(self, name: str, trace: Trace) -> Candidate:
        return self._drawn(name, trace, Instruction("", (), {}, ()), random.Random(0))

    def features(self, candidate: Candidate) -> dict[str, float]:
        """Which trace it is, and the numbers that it samples, in order."""
        if candidate.rule == DEFAULT:
            return {DEFAULT: 1.0}
        trace = Trace.from_json(candidate.choice)
        drawn = [_first(trace.decisions.get(i)) for i in trace.insts if i.kind in SAMPLING]
        return {candidate.rule: 1.0, **{f"number{n}": float(v) for n, v in enumerate(drawn)}}

    def refusal(self, candidate: Candidate) -> str:
        """A trace that does not apply to the program."""
        if candidate.rule == DEFAULT:
            return ""
        if candidate.rule not in self.names:
            return f"there is no sketch '{candidate.rule}'; there are {', '.join(self.names)}"
        try:
            schedule = tir.Schedule(self.func, error_render_level="none")
            Trace.from_json(candidate.choice).apply_to_schedule(schedule)
        except ScheduleError as error:
            return str(error)
        return ""


def _text(trace: Trace) -> str:
    return json.dumps(trace.simplified().as_json(), separators=(",", ":"))


def _first(decision: object) -> int:
    """A number that stands for a decision: of factors the last."""
    if isinstance(decision, (list, tuple)):
        return int(decision[-1])
    return int(str(decision)) if decision is not None else 0
