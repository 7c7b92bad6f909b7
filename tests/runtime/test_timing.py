"""Time evaluators, and module queries."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ekiden import runtime
from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.runtime.debug.instructions import make_instruction
from ekiden.runtime.errors import InputError
from ekiden.runtime.profile.timing import BenchmarkResult, Evaluator

pytestmark = pytest.mark.quick


@pytest.fixture
def module(tmp_path: Any) -> runtime.Module:  # noqa: ANN401
    """A program of two functions, loaded as a module."""
    functions = [
        VMFunction(n, ("x",), 1, (make_instruction("Ret", src=0),)) for n in ("main", "other")
    ]
    path = tmp_path / "program.eki"
    path.write_bytes(write_executable(functions, [], [], b"", {}))
    return runtime.load_module(path)


@pytest.fixture
def seen() -> Iterator[list[object]]:
    """What the global function `test.timing.prepare` has been called with."""
    calls: list[object] = []
    runtime.register_func("test.timing.prepare", lambda *args: calls.append(args))
    yield calls
    runtime.remove_global_func("test.timing.prepare")


def test_executable_is_a_module(module: runtime.Module) -> None:
    array = np.arange(3.0)
    result: Any = module["main"](array)
    np.testing.assert_array_equal(result.numpy(), array)
    assert (module.kind, module.format) == ("executable", "executable")
    assert module.names() == ["main", "other"]
    assert module.entry_func(5) == module(5) == 5
    assert module.implements_function("other")
    assert not module.implements_function("missing")


def test_executable_module_refuses_imports(module: runtime.Module) -> None:
    assert module.imported_modules == []
    with pytest.raises(ValueError, match="import"):
        module.import_module(module)
    module.clear_imports()
    assert module.imported_modules == []


def test_time_evaluator(module: runtime.Module, seen: list[object]) -> None:
    evaluate = module.time_evaluator(
        "main",
        runtime.cpu(),
        number=5,
        repeat=3,
        f_preproc="test.timing.prepare",
        cache_flush_bytes=1 << 16,
    )
    result = evaluate(np.zeros(4))
    assert len(result.results) == len(seen) == 3
    assert 0 < result.min <= result.median <= result.max < 1
    assert result.min <= result.mean <= result.max
    assert result.std >= 0


def test_time_evaluator_refuses(module: runtime.Module) -> None:
    with pytest.raises(ValueError, match="must be positive, got 0, 1, 1"):
        module.time_evaluator("main", number=0)
    with pytest.raises(ValueError, match=r"a device that is here, got metal\(0\)"):
        module.time_evaluator("main", "metal")
    with pytest.raises(AttributeError, match="no function named 'missing'; there are main, other"):
        module.time_evaluator("missing")


def test_function_that_fails_while_it_is_measured(module: runtime.Module) -> None:
    with pytest.raises(InputError, match="call 'main': 1 arguments expected, got 0"):
        module.time_evaluator("main")()


def evaluator(seconds: list[float], **options: int) -> tuple[Evaluator, list[int]]:
    """One that takes the given times, and the numbers of calls that it asks for."""
    numbers: list[int] = []
    times = iter([0.0, *seconds])

    def run(args: tuple[object, ...], number: int) -> float:
        numbers.append(number)
        return next(times)

    settings = {
        "number": 1,
        "repeat": 1,
        "min_repeat_ms": 0,
        "limit_zero_time_iterations": 100,
        "cooldown_interval_ms": 0,
        "repeats_to_cooldown": 1,
        **options,
    }
    return Evaluator(run, None, **settings), numbers


def test_evaluator_increases_number_until_min_repeat_ms() -> None:
    evaluate, numbers = evaluator([0.001, 0.004, 0.02], min_repeat_ms=10)
    assert evaluate().results == (0.02 / numbers[-1],)
    assert numbers == [1, 1, 11, 28]


def test_evaluator_terminates_with_frozen_clock() -> None:
    evaluate, numbers = evaluator([0.0] * 3, min_repeat_ms=10, limit_zero_time_iterations=3)
    assert evaluate().results == (0.0,)
    assert len(numbers) == 4


def test_statistics_and_their_text() -> None:
    result = BenchmarkResult((0.25, 0.5, 1.5))
    assert (result.mean, result.median, result.min, result.max) == (0.75, 0.5, 0.25, 1.5)
    assert str(result) == (
        "Execution time summary:\n"
        "     mean (ms)   median (ms)      max (ms)      min (ms)      std (ms)\n"
        "      750.0000      500.0000     1500.0000      250.0000      540.0617"
    )
