"""Many models and many callers in one process: results, memory under a cap, calls waited for
later.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.ir.prim import SizeVar
from ekiden.relay.expr import Function
from ekiden.runtime.errors import InputError, MemoryLimitError
from ekiden.runtime.executable.executable import Executable

CALLERS = 8
N = SizeVar("n")


def model(width: int, executor: str) -> Executable:
    rng = np.random.default_rng(width)
    x = relay.var("x", shape=(N, width))
    ends = []
    for _ in range(2):
        y = x
        for _ in range(3):
            weight = rng.standard_normal((width, width)).astype("float32") / np.float32(width)
            y = relay.nn.softmax(relay.nn.dense(y, relay.const(weight)))
        ends.append(y)
    module = ekiden.IRModule.from_expr(Function([x], relay.concatenate(ends, axis=0)))
    return ekiden.compile(module, executor=executor)


@pytest.fixture(scope="module")
def models() -> list[Executable]:
    return [model(32, "vm"), model(48, "async"), model(64, "vm"), model(80, "async")]


@pytest.fixture
def no_limit_afterwards() -> Iterator[None]:
    before = runtime.memory_limit()
    yield
    runtime.memory_limit(before)


def inputs(models: list[Executable], rows: int) -> list[np.ndarray]:
    rng = np.random.default_rng(rows)
    widths = [int(item.inputs[0].shape[1]) for item in models]
    return [rng.standard_normal((rows, width)).astype("float32") for width in widths]


def test_threads_share_models(models: list[Executable]) -> None:
    arguments = {rows: inputs(models, rows) for rows in (1, 7, 150)}
    expected = {
        rows: [m(x).numpy() for m, x in zip(models, xs, strict=True)]
        for rows, xs in arguments.items()
    }

    def call(caller: int) -> None:
        rng = np.random.default_rng(caller)
        for _ in range(40):
            at, rows = int(rng.integers(len(models))), int(rng.choice([1, 7, 150]))
            actual = models[at](arguments[rows][at])
            np.testing.assert_array_equal(actual.numpy(), expected[rows][at])

    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(call, range(CALLERS)))


@pytest.mark.usefixtures("no_limit_afterwards")
def test_memory_limit_holds_across_callers(models: list[Executable]) -> None:
    rows = 3000
    argument = inputs(models, rows)
    expected = [m(x).numpy() for m, x in zip(models, argument, strict=True)]
    results = max(item.nbytes for item in expected)
    runtime.trim_pools()
    limit = runtime.memory_stats().held + 6 * results
    runtime.memory_limit(limit)

    def call(caller: int) -> tuple[int, int]:
        done = refused = 0
        for i in range(12):
            at = (caller + i) % len(models)
            try:
                actual = models[at](argument[at])
            except MemoryLimitError:
                refused += 1
            else:
                done += 1
                np.testing.assert_array_equal(actual.numpy(), expected[at])
                del actual
            assert runtime.memory_stats().held <= limit
        return done, refused

    with ThreadPoolExecutor(CALLERS) as pool:
        done, refused = np.sum(list(pool.map(call, range(CALLERS))), axis=0)
    assert done > 0 and done + refused == CALLERS * 12
    runtime.memory_limit(0)
    for exe, x, y in zip(models, argument, expected, strict=True):
        np.testing.assert_array_equal(exe(x).numpy(), y)


@pytest.mark.usefixtures("no_limit_afterwards")
def test_run_after_memory_limit_error_succeeds(models: list[Executable]) -> None:
    (_, asynchronous, *_), (_, few, *_) = models, inputs(models, 2)
    _, many, *_ = inputs(models, 100_000)
    expected = asynchronous(few).numpy()
    gc.collect()  # what goes meanwhile would make room
    runtime.memory_limit(runtime.memory_stats().in_use + 4_000_000)
    with pytest.raises(MemoryLimitError):
        asynchronous(many)
    np.testing.assert_array_equal(asynchronous(few).numpy(), expected)


def test_run_async_is_awaited_later(models: list[Executable]) -> None:
    exe, x = models[0], inputs(models, 5)[0]
    expected = exe(x).numpy()
    futures = [exe.run_async(x) for _ in range(20)]
    for future in futures:
        np.testing.assert_array_equal(future.result().numpy(), expected)  # type: ignore[attr-defined]

    async def wait() -> object:
        return await asyncio.wrap_future(exe.run_async(x=x))

    np.testing.assert_array_equal(np.asarray(asyncio.run(wait())), expected)
    with pytest.raises(InputError, match="expected 1 inputs"):
        exe.run_async(x, x).result()


def test_gc_freeze_count_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python goes through all of it to count it: tens of milliseconds, of each model compiled. What
    the test run has collected is frozen."""
    counts: list[int] = []
    count = gc.get_freeze_count

    def counted() -> int:
        counts.append(count())
        return counts[-1]

    monkeypatch.setattr(gc, "get_freeze_count", counted)
    x = relay.var("x", shape=(3,))
    for body in (relay.nn.relu(x), relay.exp(x), relay.tanh(x)):
        ekiden.compile(relay.IRModule.from_expr(Function((x,), body, None)))
    assert len(counts) <= 1 and count() > 0


LATE_COMPILER = """
import gc, sys
import ekiden
gc.freeze()  # as a server does before its first model comes
assert "ekiden.compiler.build" not in sys.modules
x = ekiden.relay.var("x", shape=(3,))
ekiden.compile(ekiden.IRModule.from_expr(ekiden.relay.Function([x], ekiden.relay.nn.relu(x))))
tracked = {id(thing) for thing in gc.get_objects()}
assert id(vars(sys.modules["ekiden.compiler.build"])) not in tracked
"""


def test_server_that_compiles_later_never_collects_the_compiler() -> None:
    subprocess.run([sys.executable, "-c", LATE_COMPILER], check=True)
