"""Generated programs mean the same in every form: as text, as JSON, interpreted and compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from generated_programs import Program, programs, with_places
from hypothesis import HealthCheck, Phase, given, note, settings
from road_programs import agree, equal

import ekiden
from ekiden.ir.json import load_json, save_json
from ekiden.ir.structural import structural_digest, structural_equal
from ekiden.relay import IRModule, parse
from ekiden.relay.analysis import find_errors
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.transform import InferType
from ekiden.runtime import cpu
from long_runs import LONG

generated = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # shrinking would compile for minutes
    suppress_health_check=list(HealthCheck),
)
many = settings(generated, max_examples=2000, derandomize=False)
quiet = pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")


@generated
@given(programs())
@quiet
def test_text_and_json_of_a_program_read_back(program: Program) -> None:
    check_text_and_json(program)


def check_text_and_json(program: Program) -> None:
    for module in (program.module, InferType()(program.module)):
        note(module.astext())
        assert find_errors(module) == []
        parsed, loaded = parse(module.astext()), load_json(save_json(module))
        assert isinstance(loaded, IRModule)
        assert structural_equal(parsed, module)
        assert structural_equal(loaded, module)
        assert structural_digest(parsed) == structural_digest(module) == structural_digest(loaded)
        args = program.arguments(1)
        agree(
            Interpreter(parsed).evaluate("main", *args), Interpreter(module).evaluate("main", *args)
        )


@generated
@given(programs())
@quiet
def test_a_compiled_program_is_what_the_interpreter_says(program: Program) -> None:
    check_compiled(program)


def check_compiled(program: Program) -> None:
    note(program.module.astext(show_meta_data=False))
    exe = ekiden.compile(program.module)
    native = ekiden.compile(program.module, executor="aot")
    for seed in range(3):
        args = program.arguments(seed)
        note(f"shapes {[a.shape for a in args]}")
        found = exe(*args)
        agree(found, Interpreter(program.module).evaluate("main", *args))
        equal(native(*args), found)


@settings(generated, max_examples=12)
@given(programs())
@quiet
def test_a_program_over_two_devices_is_what_the_interpreter_says(program: Program) -> None:
    check_placed(program)


def check_placed(program: Program) -> None:
    """Copies, and what cannot be copied: closures in generic code, references."""
    for devices, share in (([cpu(0), cpu(1)], 0.2), ([cpu(1), cpu(0)], 0.6)):
        module = with_places(program.module, devices, share)
        note(module.astext(show_meta_data=False))
        exe = ekiden.compile(module, devices)
        for seed in range(2):
            args = program.arguments(seed)
            agree(exe(*args), Interpreter(program.module).evaluate("main", *args))


@settings(generated, max_examples=30)
@given(programs(depth=2), programs(depth=2))
def test_programs_that_differ_have_different_digests(a: Program, b: Program) -> None:
    equal = structural_equal(a.module, b.module)
    assert equal == (structural_digest(a.module) == structural_digest(b.module))


@pytest.mark.parametrize(
    "check",
    [pytest.param(c, marks=LONG) for c in (check_text_and_json, check_compiled, check_placed)],
)
@quiet
def test_many_programs(check: Callable[[Program], None]) -> None:
    many(given(programs())(lambda program: check(program)))()
