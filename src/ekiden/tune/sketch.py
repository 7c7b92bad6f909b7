"""Sketches, schedules of a program derived by rules with sampled numbers left open: ways to
schedule any block, derived by rules, each with numbers left to be sampled.

A rule looks at one block and gives the schedules that it may have; rules are applied to all blocks,
the last first, and every combination is a sketch. What a sketch samples (tiles, vectors, unrolling)
stands as decisions in its trace, and changing those is what search does. `rules` has the rules.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import lru_cache
from typing import cast

from ekiden import tir
from ekiden.ir.hashes import sha256
from ekiden.runtime.errors import CompileError, ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.schedule.sampling import sample_categorical
from ekiden.tir.schedule.trace import SAMPLING_KINDS, BlockRV, Instruction, Trace
from ekiden.tir.stmt import PrimFunc
from ekiden.tune.blocks import has_block, resolve_block
from ekiden.tune.candidate import Candidate
from ekiden.tune.features import program_features
from ekiden.tune.program import DEFAULT_RULE_NAME
from ekiden.tune.rules import DEFAULT_RULES, SketchRule

MAX_SKETCHES = 48
"""Maximum number of sketches of a computation, sampled from each kind."""


@dataclass(frozen=True, slots=True)
class Sketch:
    """Sketch of a program: a schedule template with the rules applied to each block, and
    the trace.
    """

    name: str
    trace: Trace


def generate_sketches(
    func: PrimFunc, target: Target, rules: Sequence[SketchRule] = ()
) -> list[Sketch]:
    """Return every combination of the rules' variants, last block first, as traces with random
    sampled numbers. A block whose rules all refuse is left unscheduled.
    """
    first = tir.Schedule(func, seed=1, error_render_level="none")
    partial = [("", first)]
    # Consumers first: whether a producer is inlined or computed at a loop depends on its reader.
    for block in reversed(block_names(func)):
        following = [
            (f"{name} {step}".strip(), derived)
            for name, schedule in partial
            for step, derived in _apply_first_rule(schedule, block, target, rules or DEFAULT_RULES)
        ]
        # An even stride keeps some variant of every kind when combinations explode.
        partial = following[:: -(-len(following) // MAX_SKETCHES)]
    return [Sketch(name, s.trace) for name, s in partial if len(s.trace.simplified())]


def _apply_first_rule(
    schedule: tir.Schedule, block: str, target: Target, rules: Sequence[SketchRule]
) -> list[tuple[str, tir.Schedule]]:
    """Return the variants that the first matching rule gives for a block."""
    if not has_block(schedule, block):  # a step for another has made an instruction of it
        return [("", schedule)]
    for rule in rules:
        variants = rule(schedule, block, target)
        if variants:
            return [(f"{block}:{rule.__name__}{n}", variant) for n, variant in enumerate(variants)]
    return [("", schedule)]


def block_names(func: PrimFunc) -> list[str]:
    """Return the blocks of a program, producers first."""
    schedule = tir.Schedule(func)
    blocks: list[BlockRV] = []
    waiting = list(schedule.get_output_blocks())
    while waiting:
        block = waiting.pop(0)
        blocks.append(block)
        waiting.extend(schedule.get_producers(block))
    names = [resolve_block(schedule, b).name for b in blocks]
    return list(dict.fromkeys(reversed(names)))


@dataclass(frozen=True)
class TraceSpace:
    """Search space of a loop program's schedules, as traces: a few traces, each with varying
    decisions.
    """

    func: PrimFunc
    traces: tuple[Trace, ...]
    names: tuple[str, ...] = ()
    """Names of the traces, sketch0, ... by default."""
    _candidate_cache: dict[bytes, Candidate | str] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Candidate of each decided trace by digest, or the reason of its rejection."""

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", tuple(f"sketch{n}" for n in range(len(self.traces))))

    @property
    def default(self) -> Candidate:
        """Return the unsearched program."""
        return Candidate(DEFAULT_RULE_NAME)

    def sample(self, source: random.Random) -> Candidate:
        """Return a random trace with every number redrawn."""
        position = source.randrange(len(self.traces))
        trace = self.traces[position]
        return self._resample(self.names[position], trace, _sampling_instructions(trace), source)

    def mutate(self, candidate: Candidate, source: random.Random) -> Candidate:
        """Redraw one number; for the default, return a random candidate."""
        if candidate.rule == DEFAULT_RULE_NAME:
            return self.sample(source)
        trace = Trace.from_json(candidate.choice)
        sampled = _sampling_instructions(trace)
        if not sampled:
            return self.sample(source)
        return self._resample(candidate.rule, trace, [source.choice(sampled)], source)

    def cross(self, a: Candidate, b: Candidate, source: random.Random) -> Candidate:
        """Combine two candidates of the same trace, taking each number from either; else return one
        of the two.
        """
        if a.rule != b.rule or a.rule == DEFAULT_RULE_NAME:
            return source.choice((a, b))
        one, second = Trace.from_json(a.choice), Trace.from_json(b.choice)
        pairs = zip(one.insts, second.insts, strict=False)
        inherited = {
            first_step: second.decisions[second_step]
            for first_step, second_step in pairs
            if first_step.kind in SAMPLING_KINDS
            and second_step in second.decisions
            and source.random() < 0.5
        }
        return self._cached_candidate(
            a.rule, Trace(list(one.insts), {**one.decisions, **inherited})
        )

    def _resample(
        self, name: str, trace: Trace, which: Sequence[Instruction], source: random.Random
    ) -> Candidate:
        """Redraw some numbers of a trace. Categorical choices are drawn without replaying the
        schedule, so that repeated candidates are cheap to recognize.
        """
        # A categorical value is drawn without a schedule, so that an equal trace is found in the
        # cache; factors depend on loop extents.
        if all(i.kind == SAMPLE_CATEGORICAL for i in which):
            drawn = {i: _draw_category(i, source) for i in which}
            return self._cached_candidate(
                name, Trace(list(trace.insts), {**trace.decisions, **drawn})
            )
        return self._apply_trace(name, trace, which, source)

    def _cached_candidate(self, name: str, trace: Trace) -> Candidate:
        """Return the candidate of a fully decided trace, cached. Raises CompileError if it does not
        apply.
        """
        # A digest: traces are kilobytes, and a long search settles many of them.
        key = sha256(f"{name} {trace_text(trace)}".encode()).digest()
        if key not in self._candidate_cache:
            try:
                self._candidate_cache[key] = self._apply_trace(name, trace, (), random.Random(0))
            except CompileError as error:
                self._candidate_cache[key] = str(error)
        settled = self._candidate_cache[key]
        if isinstance(settled, str):
            raise CompileError(settled)
        return settled

    def _apply_trace(
        self, name: str, trace: Trace, which: Sequence[Instruction], source: random.Random
    ) -> Candidate:
        """Apply a trace to the program and return its candidate. Raises CompileError if it does not
        apply.
        """

        def provide_decision(
            inst: Instruction, inputs: object, attrs: object, decision: object
        ) -> object:
            """Return the decision to replay, or None for one to draw again."""
            del inputs, attrs
            return None if inst in which else decision

        schedule = tir.Schedule(self.func, seed=source.randrange(1, 1 << 30),
                                error_render_level="none")  # fmt: skip
        try:
            trace.apply_to_schedule(schedule, decision_provider=provide_decision)
        except ScheduleError as error:
            raise CompileError(f"tune: {name}: {error}") from error
        return Candidate(name, trace_text(schedule.trace))

    def features(self, candidate: Candidate) -> Mapping[str, float]:
        """Return the features of its program, which transfer to other tasks."""
        return _program_features(self.func, candidate.choice)

    def refusal(self, candidate: Candidate) -> str:
        """Return why a trace does not apply to the program; empty if it does."""
        if candidate.rule == DEFAULT_RULE_NAME:
            return ""
        try:
            schedule = tir.Schedule(self.func, error_render_level="none")
            Trace.from_json(candidate.choice).apply_to_schedule(schedule)
        except ScheduleError as error:
            return str(error)
        return ""


SAMPLE_CATEGORICAL = "sample_categorical"


def _sampling_instructions(trace: Trace) -> list[Instruction]:
    return [i for i in trace.insts if i.kind in SAMPLING_KINDS]


def _draw_category(inst: Instruction, source: random.Random) -> int:
    """Draw the index of a categorical step's value."""
    values = cast("Sequence[int]", inst.attrs["candidates"])
    weights = cast("Sequence[float]", inst.attrs["probs"])
    return sample_categorical(values, weights, None, source)[0]


def trace_text(trace: Trace) -> str:
    """Serialize a trace as a candidate's choice."""
    return json.dumps(trace.simplified().as_json(), separators=(",", ":"))


@lru_cache(1 << 14)
def _program_features(func: PrimFunc, choice: str) -> Mapping[str, float]:
    """Return the features of the scheduled program; of the unscheduled one for an empty choice, or
    steps that do not apply.
    """
    schedule = tir.Schedule(func, error_render_level="none")
    if choice:
        with suppress(ScheduleError):
            Trace.from_json(choice).apply_to_schedule(schedule)
    return program_features(schedule.func)
