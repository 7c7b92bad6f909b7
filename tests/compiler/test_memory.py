"""Run memory: predicted, measured, retained between runs, and limited over concurrent runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.cli import main
from ekiden.ir.prim import PrimExpr, SizeVar
from ekiden.relay import op
from ekiden.runtime.devices.memory import memory_bound
from ekiden.runtime.errors import MemoryLimitError


@pytest.fixture(autouse=True)
def no_limit() -> Iterator[None]:
    yield
    runtime.memory_limit(0)


def chain(*shape: int | PrimExpr, length: int = 4) -> ekiden.Executable:
    """Matrix products, so that nothing is fused away, on one thread: each thread more keeps a
    workspace of its own, and how many there are is the machine's.
    """
    x = relay.var("x", relay.tensor_type(shape))
    y: relay.Expr = x
    for _ in range(length):
        y = op.nn.relu(op.nn.dense(y, relay.const(np.eye(64, dtype=np.float32))))
    module = relay.IRModule.from_expr(relay.Function((x,), y, None))
    return ekiden.compile(module, num_threads=1)


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).random((n, 64), np.float32)


def test_static_program_uses_predicted_memory() -> None:
    exe = chain(1000, 64)
    assert exe.peak_memory == 3 * 1000 * 64 * 4  # two places in turn, and the result
    x = runtime.tensor(rows(1000))
    exe(x)
    runtime.trim_pools()
    before = runtime.memory_stats().in_use
    runtime.reset_peak_memory()
    exe(x)
    needed = runtime.memory_stats().peak - before
    assert exe.peak_memory <= needed <= exe.peak_memory * 9 / 8 + 2 * 4096 + (2 << 20)


def test_data_dependent_peak_memory_is_not_predicted() -> None:
    assert chain(SizeVar("n"), 64).peak_memory is None


def test_inspect_tells_the_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exe = chain(10, 64)
    exe.save(tmp_path / "chain.eki")
    assert ekiden.load(tmp_path / "chain.eki").peak_memory == exe.peak_memory
    assert main(["inspect", str(tmp_path / "chain.eki")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"Peak memory of a run: {exe.peak_memory} bytes, inputs and weights aside"


def test_only_growth_allocates_where_shapes_vary() -> None:
    """Each new largest shape asks once for what it needs; all others ask for nothing."""
    exe = chain(SizeVar("n"), 64)
    inputs = {n: runtime.tensor(rows(n)) for n in (7, 100, 1000)}
    for n in (1000, 7, 100):
        exe(inputs[n])
    before = runtime.allocation_count()
    for n in (7, 1000, 100, 7, 1000, 1000, 100, 7):
        exe(inputs[n])
    assert runtime.allocation_count() == before


def test_arena_grows_to_larger_shape() -> None:
    exe = chain(SizeVar("n"), 64)
    runtime.trim_pools()
    before = runtime.memory_stats().in_use
    for n in range(100, 3000, 100):
        exe(rows(n))
    kept = runtime.memory_stats().in_use - before
    assert kept < 3 * 3000 * 64 * 4 * 9 / 8 + (2 << 20)  # not the sum of all sizes


def test_run_beyond_the_limit_is_one_clean_error() -> None:
    exe = chain(SizeVar("n"), 64)
    exe(rows(10))
    runtime.trim_pools()
    held = runtime.memory_stats().held
    assert runtime.memory_limit(held + 8_000_000) == 0
    message = r"\d+ bytes expected within the limit of \d+, of which \d+ are in use"
    with pytest.raises(ekiden.RunError, match=message):
        exe(rows(100_000))
    with pytest.raises(MemoryError):
        exe(rows(100_000))
    assert runtime.memory_stats().held <= held + 8_000_000 + (1 << 16)
    x = rows(100)
    np.testing.assert_allclose(exe(x).numpy(), x, rtol=1e-6)


def test_idle_models_release_memory_for_running_one() -> None:
    """Three models whose arenas do not fit under the limit together."""
    models = [chain(4000 + i, 64, length=3) for i in range(3)]
    inputs = [rows(4000 + i) for i in range(3)]
    runtime.trim_pools()
    need = models[0].peak_memory
    assert need is not None
    limit = runtime.memory_stats().held + int(1.7 * need) + (3 << 20)
    runtime.memory_limit(limit)
    for _ in range(3):
        for model, x in zip(models, inputs, strict=True):
            np.testing.assert_allclose(model(x).numpy(), x, rtol=1e-6)
            assert runtime.memory_stats().held <= limit + (1 << 16)


def test_many_callers_under_a_limit_get_results_or_a_clean_error() -> None:
    raw = chain(SizeVar("n"), 64).raw
    executables = [ekiden.Executable(raw) for _ in range(4)]
    for exe in executables:
        exe(rows(10))
    runtime.trim_pools()
    limit = runtime.memory_stats().held + 6_000_000
    runtime.memory_limit(limit)
    wrong: list[str] = []
    good = [0] * len(executables)

    def work(index: int) -> None:
        for n in range(500, 4500, 500):
            x = rows(n)
            try:
                result = executables[index](x)
            except MemoryLimitError:
                continue
            if not np.allclose(result.numpy(), x):
                wrong.append(f"{index}: {n}")
            good[index] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(executables))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []
    assert any(good)
    assert runtime.memory_stats().held <= limit + (1 << 16)


def test_limit_comes_from_the_environment() -> None:
    program = (
        "from ekiden import runtime\n"
        "print(runtime.memory_limit())\n"
        "try: runtime.empty((1 << 20,))\n"
        "except MemoryError as error: print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "EKIDEN_MEMORY_LIMIT": "3M"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert result[0] == str(3 << 20)
    assert result[1].startswith(
        "allocate memory: 4194304 bytes expected within the limit of 3145728"
    )


def test_smallest_of_nested_memory_bounds_holds() -> None:
    first, second = memory_bound(50_000_000), memory_bound(40_000_000)
    first.__enter__()
    second.__enter__()
    assert runtime.memory_limit() == 40_000_000
    first.__exit__(None, None, None)
    assert runtime.memory_limit() == 40_000_000
    with memory_bound(90_000_000):
        assert runtime.memory_limit() == 40_000_000
    second.__exit__(None, None, None)
    assert runtime.memory_limit() == 0
