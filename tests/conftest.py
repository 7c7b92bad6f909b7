"""One in 60 of the loop programs that the tests lower is printed, parsed back and compared,
before and after; `--texts 1` takes each, `-m quick` none. Models are compiled each time, not taken
from the cache of artifacts; kernels are cached for the run, in one folder for all its workers, each
of which compiles by itself. `-m long` runs what is left out otherwise.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import seeding
from ekiden import tir
from ekiden.ir.intrinsic_rules import RULE_ATTR
from ekiden.ir.module import IRModule
from ekiden.ir.op import OP_ATTRS
from ekiden.ir.structural import structural_digest
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.op.strategy import COMPUTE_ATTR, SCHEDULE_ATTR, STRATEGY_ATTR
from ekiden.tir import transform
from fake_drivers import disposable_cuda, disposable_cuda_devices, fake_cuda, fake_cuda_libraries
from hang_reports import (
    open_stderr,
    pytest_runtest_logreport,
    pytest_timeout_cancel_timer,
    pytest_timeout_set_timer,
)
from long_runs import give_time, mark_what_is_not_shared
from processor import pretend
from shared_files import folder_of_run
from web_runtime import web_runtime

__all__ = [
    "disposable_cuda",
    "disposable_cuda_devices",
    "fake_cuda",
    "fake_cuda_libraries",
    "pytest_runtest_logreport",
    "pytest_timeout_cancel_timer",
    "pytest_timeout_set_timer",
    "web_runtime",
]

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or hundreds of processes read all sources anew
os.environ["EKIDEN_CACHE_LIMIT"] = "0"
os.environ.setdefault("EKIDEN_COMPILE_JOBS", "1")
os.environ.setdefault("EKIDEN_SCHEDULE_PROOFS", "checked")  # what is shipped is applied without


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that CONTRIBUTING.md names."""
    parser.addoption("--processor", help="run as on a processor of this class (x86-64-v3, ...)")
    parser.addoption(
        "--texts",
        type=int,
        metavar="N",
        help="print and parse back one in N loop programs; 60, or each with -m long",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before test files are read: some make their targets as they are. Workers of pytest-xdist take
    files in the order of collection, not those with the most tests first."""
    config.option.loadscopereorder = False
    config.option.maxworkerrestart = "0"  # by a second worker, the run might wait for ever
    open_stderr(config)
    config.pluginmanager.register(seeding)
    if cpu := config.getoption("--processor"):
        pretend(cpu)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For `-m quick`, what has no such test is not even imported."""
    if config.option.markexpr != "quick" or not collection_path.match("test_*.py"):
        return None
    return True if "mark.quick" not in collection_path.read_text() else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: garbage is not looked for in it, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, None, None]:
    """Leave out what takes long, unless `-m` says something about it, and of the quick group what
    is slow; then, whatever order the others are brought into, begin with the files that no worker
    should be alone with at the end."""
    mark_what_is_not_shared(items)
    give_time(items)
    if "long" not in config.option.markexpr:
        leave_out(config, items, "long")
    if config.option.markexpr == "quick":
        leave_out(config, items, "slow")
    yield
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


def leave_out(config: pytest.Config, items: list[pytest.Item], mark: str) -> None:
    """As pytest leaves out what `-m` does not ask for."""
    dropped = [item for item in items if item.get_closest_marker(mark)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if not item.get_closest_marker(mark)]


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of compiled kernels: the caller's, or one that the run's workers share."""
    if chosen := os.environ.get("EKIDEN_CACHE_DIR"):
        yield Path(chosen)
        return
    folder = folder_of_run(tmp_path_factory) / "kernels"
    os.environ["EKIDEN_CACHE_DIR"] = str(folder)
    yield folder
    del os.environ["EKIDEN_CACHE_DIR"]


def user_rules() -> dict[str, dict[str, object]]:
    """Return the rules of operators that users alone register, by table: with one for an operator,
    its kernels have other names and are compiled in this process.
    """
    tables = (STRATEGY_ATTR, COMPUTE_ATTR, SCHEDULE_ATTR)
    return {
        name: dict(rules)
        for name, rules in OP_ATTRS.items()
        if name in tables or name.endswith(f".{RULE_ATTR}")
    }


@pytest.fixture(autouse=True)
def registered_rules() -> Iterator[None]:
    """Implementations and lowering rules that a test registers end with it: the next one compares
    its kernels with those of another process, or counts on workers that compile them."""
    before = user_rules()
    yield
    after = user_rules()
    if after != before:
        for name in after:
            OP_ATTRS[name] = before.get(name, {})


class RoundTrip:
    """A pass that changes nothing, and raises where a text does not mean what it came from."""

    def __init__(self) -> None:
        self.one_in = 1
        self.met: Counter[str] = Counter()
        """Test -> programs met in it."""
        self.seen: set[str] = set()
        self.seconds = 0.0

    def __call__(self, module: IRModule, context: PassContext) -> IRModule:
        started = time.process_time()
        for func in module.functions.values():
            assert isinstance(func, tir.PrimFunc)
            if self.is_chosen():
                self.check(func)
        self.seconds += time.process_time() - started
        return module

    def is_chosen(self) -> bool:
        """Whether this program is in the share: the same ones of a test, whatever ran before it."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        self.met[test] += 1
        return zlib.crc32(f"{test} {self.met[test]}".encode()) % self.one_in == 0

    def check(self, func: tir.PrimFunc) -> None:
        """Print and parse a function that was not met before."""
        digest = structural_digest(func)
        if digest in self.seen:
            return
        self.seen.add(digest)
        text = func.script()
        back = tir.parse(text)
        assert isinstance(back, tir.PrimFunc)
        assert structural_digest(back) == digest, f"{text}\nparses as\n{back.script()}"


_round_trip = RoundTrip()


@pytest.fixture(autouse=True, scope="session")
def text_round_trip(request: pytest.FixtureRequest) -> Iterator[None]:
    """The texts of PrimFuncs met in the tests parse back."""
    marks = request.config.getoption("markexpr")
    if marks == "quick":
        yield
        return
    _round_trip.one_in = request.config.getoption("texts") or (1 if "long" in marks else 60)
    pipelines = (transform.PASSES, transform.TILED_PASSES)
    checked = Pass("RoundTrip", _round_trip)
    for passes in pipelines:
        passes.insert(0, checked)
        passes.append(checked)
    yield
    for passes in pipelines:
        passes.remove(checked)
        passes.remove(checked)


_counts: list[tuple[int, float]] = []
"""Of each worker: loop programs seen, and seconds."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells its count to the process that reports."""
    count = (len(_round_trip.seen), _round_trip.seconds)
    if (message := getattr(session.config, "workeroutput", None)) is not None:
        message["round_trips"] = count
    else:
        _counts.append(count)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 - of pytest-xdist
    """Take a worker's count; one that died has none."""
    _counts.append(tuple(getattr(node, "workeroutput", {}).get("round_trips", (0, 0.0))))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many there were."""
    count, seconds = (sum(column) for column in zip(*_counts, strict=True)) if _counts else (0, 0.0)
    if count:
        terminalreporter.write_line(
            f"{count} loop programs printed and parsed back ({seconds:.1f} s)"
        )
