"""Random programs under random schedules equal NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from schedule_programs import KINDS, TensorProgram, random_program, random_steps

import ekiden
from ekiden import tir
from ekiden.ir.structural import structural_equal
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.transform import lower
from long_runs import LONG, alike

USUAL, WHOLE = 3, 120
GROUP = 25
"""Programs in each of so many groups."""
NATIVE_EVERY = 5
"""One program of so many is compiled and run natively as well."""


def scheduled(seed: int) -> tuple[TensorProgram, tir.Schedule, dict[str, int]]:
    """A program under random steps, and how many of each kind were accepted."""
    source = random.Random(seed)
    program = random_program(source)
    sch = tir.Schedule(program.func, seed=seed, error_render_level="fast")
    accepted, _ = random_steps(sch, source, source.randint(4, 24))
    return program, sch, accepted


@alike(2)
@pytest.mark.parametrize(
    "group", [pytest.param(n, marks=() if n < USUAL else LONG) for n in range(WHOLE)]
)
def test_random_schedules_mean_the_same(group: int) -> None:
    accepted: dict[str, int] = {}
    for seed in range(group * GROUP, (group + 1) * GROUP):
        program, sch, done = scheduled(seed)
        for kind, count in done.items():
            accepted[kind] = accepted.get(kind, 0) + count
        arguments, expected = program.arguments(seed)
        run_prim_func(tir.verify(lower(sch.func)), *arguments)
        check(arguments, expected, f"seed {seed}")
        if seed % NATIVE_EVERY == 0:
            arguments, expected = program.arguments(seed + 1)
            ekiden.build(sch.func)["main"](*arguments)
            check(arguments, expected, f"native, seed {seed}")
    assert sum(accepted.values()) > 3 * GROUP, accepted
    assert len(accepted) > len(KINDS) // 2, accepted


def check(arguments: list[object], expected: list[object], what: str) -> None:
    """The outputs, which are the last arguments, are as expected, to the bit."""
    for actual, expected_value in zip(arguments[-len(expected) :], expected, strict=True):
        np.testing.assert_array_equal(actual, expected_value, err_msg=what)


@pytest.mark.parametrize("seed", range(12))
def test_traces_of_random_schedules_replay(seed: int) -> None:
    program, sch, _ = scheduled(seed)
    text = str(sch.func)
    replayed = tir.Schedule(program.func)
    sch.trace.apply_to_schedule(replayed)
    assert str(replayed.func) == text
    from_json = tir.Schedule(program.func)
    tir.Trace.apply_json_to_schedule(sch.trace.as_json(), from_json)
    assert str(from_json.func) == text
    short = tir.Schedule(program.func)
    sch.trace.simplified().apply_to_schedule(short)
    assert str(short.func) == text
    as_python: dict[str, object] = {}
    exec(str(sch.trace), as_python)
    written = tir.Schedule(program.func)
    as_python["apply_trace"](written)  # type: ignore[operator]
    assert str(written.func) == text


@pytest.mark.parametrize("seed", range(24))
def test_trusted_steps_make_the_program_of_checked_ones(seed: int) -> None:
    program, sch, _ = scheduled(seed)
    trusted = tir.Schedule(program.func, seed=seed, proofs="trusted")
    sch.trace.apply_to_schedule(trusted)
    assert structural_equal(trusted.func, sch.func, map_free_vars=True)
    assert str(trusted.trace) == str(sch.trace)
