"""A cell of the matrix: what it is, running it, and cells that cover all pairs of the axes'
values.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cache

import numpy as np
from choices import Choices
from matrix_axes import EXECUTORS, TARGETS, VIEWS, Built, TargetRow
from matrix_programs import Program, draw_program
from matrix_refusals import documented, no_call, open_fault
from matrix_ways import WAYS, OtherProcessError, Resources
from program_features import FEATURES

from comparison import agree, flatten
from ekiden import opencl
from ekiden.runtime.errors import EkidenError, InternalError
from ekiden.target import Target

AXES = {
    "executor": {row.name: row for row in EXECUTORS},
    "target": {row.name: row for row in TARGETS},
    "way": {row.name: row for row in WAYS},
    "view": {row.name: row for row in VIEWS},
}
"""Axis -> its rows by name."""
AGREES, REFUSED, NO_CALL, OPEN_FAULT = "agrees", "refused", "no call", "open fault"
DIFFERS, FAILED, CRASHED, HUNG = "differs", "failed", "crashed", "hung"
STRAIGHT = {row.name for row in FEATURES if row.is_straight}
FINDS = (DIFFERS, FAILED, CRASHED, HUNG)
"""Outcomes that are faults."""


@dataclass(frozen=True, order=True)
class Cell:
    """A value of each axis, by name."""

    executor: str
    target: str
    way: str
    view: str

    def values(self) -> tuple[str, ...]:
        """Return the values in the order of the axes."""
        return tuple(astuple(self))

    def __str__(self) -> str:
        return " / ".join(self.values())


@dataclass(frozen=True)
class Outcome:
    """What came of a program in a cell; `text` is the sentence of a refusal, or the fault."""

    kind: str
    text: str = ""
    features: tuple[str, ...] = ()


def run_cell(program: Program, cell: Cell, resources: Resources) -> Outcome:
    """Run a program in a cell, and compare what it gives with the interpreter."""
    features = tuple(sorted(program.features))
    if sentence := no_call(cell.values()):
        return Outcome(NO_CALL, sentence, features)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # NumPy's, of the mean of nothing
        try:
            expected = program.expected()
        except Exception:  # the program is at fault, or the interpreter
            return Outcome(FAILED, "interpreter: " + traceback.format_exc(limit=-4), features)
        try:
            results = _results(program, cell, resources)
        except (EkidenError, OtherProcessError) as error:
            return _refused(error, cell, features)
        except (subprocess.TimeoutExpired, TimeoutError) as error:
            return Outcome(HUNG, str(error), features)
        except Exception as error:  # whatever it is, it is a find
            if open_fault(f"{type(error).__name__}: {error}", cell.values(), features):
                return Outcome(OPEN_FAULT, str(error), features)
            return Outcome(FAILED, traceback.format_exc(limit=-6), features)
    try:
        agree(results, expected)
    except AssertionError as error:
        return Outcome(DIFFERS, str(error), features)
    return Outcome(AGREES, "", features)


def _refused(error: Exception, cell: Cell, features: tuple[str, ...]) -> Outcome:
    """Return the outcome of an error: refused, if the sentence is documented for these values."""
    text = str(error)
    if isinstance(error, OtherProcessError) and error.code < 0:
        return Outcome(
            CRASHED, f"signal {-error.code} in another process: {error.stderr}", features
        )
    row = documented(text, cell.values(), features)
    if row is not None and not isinstance(error, InternalError):
        return Outcome(REFUSED, row.sentence, features)
    if open_fault(f"{type(error).__name__}: {text}", cell.values(), features):
        return Outcome(OPEN_FAULT, text, features)
    notes = "\n".join(getattr(error, "__notes__", ()))
    trace = "".join(traceback.format_exception(error, limit=-4))
    return Outcome(FAILED, f"{type(error).__name__}: {text}\n{notes}\n{trace}", features)


def _results(program: Program, cell: Cell, resources: Resources) -> list[list[np.ndarray]]:
    """Compile and run a program as a cell says."""
    executor, target = AXES["executor"][cell.executor], AXES["target"][cell.target]
    way, view = AXES["way"][cell.way], AXES["view"][cell.view]
    chance = random.Random(f"{cell} {sorted(program.features)} {len(program.steps.params)}")
    placed = target.place(program.module)
    module = view.rewrite(placed, chance)
    options = view.options(module, target, chance)
    with view.context(chance):
        built = executor.build(program, module, target, options)
    _check_honoured(built, cell, target)
    calls = program.calls()
    bits = [array.tobytes() for array in flatten(calls)]
    results = way.run(built, calls, resources)
    view.after(built, calls)
    assert [array.tobytes() for array in flatten(calls)] == bits, "an argument was changed"
    return results


def _check_honoured(built: Built, cell: Cell, target: TargetRow) -> None:
    """Raise AssertionError where something else was made than what was asked for."""
    if built.executable is None:
        return
    metadata = built.executable.raw.metadata
    assert metadata["executor"] == built.executor.kind, f"executor is {metadata['executor']}"
    kinds = {device.device_type for device in built.executable.raw.devices}
    is_straight = built.program.features <= STRAIGHT
    has_kernels = any(name.startswith("fused_") for name in built.executable.primitive_ops)
    if target.target == "opencl" and is_straight and has_kernels:
        assert opencl(0).device_type in kinds, f"devices are {kinds}"
    if isinstance(target.target, str) and not target.has_opencl:
        expected, actual = (Target.parse(t) for t in (target.target, built.executable.target))
        assert (expected.kind, expected.cpu) == (actual.kind, actual.cpu), built.executable.target
    assert set(built.executable.tiers) == set(built.executable.primitive_ops)


def covering_stream(seed: int) -> Iterator[Cell]:
    """Yield cells without end, one covering array after another: after any number of cells, each
    pair of values of two axes has been in about as many as the others."""
    for array in itertools.count():
        yield from covering_cells(f"{seed} {array}")


@cache
def _values_here() -> dict[str, list[str]]:
    here = {row.name for row in TARGETS if row.is_here()}
    return {a: [n for n in rows if a != "target" or n in here] for a, rows in AXES.items()}


Pair = tuple[str, str, str, str]
"""Axis, value, axis, value."""


def pairs_of(cell: Cell) -> Iterator[Pair]:
    """Yield the pairs of values of a cell."""
    values = zip(AXES, cell.values(), strict=True)
    for (a, x), (b, y) in itertools.combinations(values, 2):
        yield a, x, b, y


def covering_cells(seed: int | str, attempts: int = 30) -> list[Cell]:
    """Return cells in which each pair of values of two axes is, but for those that are no call: a
    covering array, built greedily (AETG: Cohen, Dalal, Fredman and Patton 1997)."""
    chance, names = random.Random(seed), _values_here()
    axes = list(names)
    open_pairs = {
        (a, x, b, y)
        for a, b in itertools.combinations(axes, 2)
        for x in names[a]
        for y in names[b]
        if not no_call((x, y))
    }
    cells: list[Cell] = []
    while open_pairs:
        candidates = [_through(chance, names, min(open_pairs)) for _ in range(attempts)]
        callable_ones = [c for c in candidates if not no_call(c.values())]
        if not callable_ones:
            open_pairs.discard(min(open_pairs))
            continue
        best = max(callable_ones, key=lambda c: len(open_pairs.intersection(pairs_of(c))))
        open_pairs.difference_update(pairs_of(best))
        cells.append(best)
    return cells


def _through(chance: random.Random, names: dict[str, list[str]], pair: Pair) -> Cell:
    """Draw a cell that has a pair."""
    fixed = {pair[0]: pair[1], pair[2]: pair[3]}
    return Cell(*(fixed.get(axis) or chance.choice(names[axis]) for axis in names))


def program_of(seed: str | None, recorded: Sequence[int] = ()) -> tuple[Program, list[int]]:
    """Return the program of a seed, or of recorded choices, and its choices."""
    choices = Choices(seed, recorded)
    return draw_program(choices), choices.taken
