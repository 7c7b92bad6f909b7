"""Every loop program that the tests lower is printed, parsed back and compared, before and after;
`-m quick` leaves that out. Models are compiled each time, not taken from the cache of artifacts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from ekiden import tir
from ekiden.ir.module import IRModule
from ekiden.ir.structural import structural_digest
from ekiden.ir.transform import Pass, PassContext
from ekiden.tir import transform
from processor import pretend

os.environ["EKIDEN_CACHE_LIMIT"] = "0"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that CONTRIBUTING.md names."""
    parser.addoption("--processor", help="run as on a processor of this class (x86-64-v3, ...)")


def pytest_configure(config: pytest.Config) -> None:
    """Before test files are read: some make their targets as they are."""
    if cpu := config.getoption("--processor"):
        pretend(cpu)


class RoundTrip:
    """A pass that changes nothing, and raises where a text does not mean what it came from."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.seconds = 0.0

    def __call__(self, module: IRModule, context: PassContext) -> IRModule:
        started = time.process_time()
        for func in module.functions.values():
            assert isinstance(func, tir.PrimFunc)
            self.check(func)
        self.seconds += time.process_time() - started
        return module

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
    """The text of every PrimFunc met in the tests parses back."""
    if request.config.getoption("markexpr") == "quick":
        yield
        return
    pipelines = (transform.PASSES, transform.TILED_PASSES)
    checked = Pass("RoundTrip", _round_trip)
    for passes in pipelines:
        passes.insert(0, checked)
        passes.append(checked)
    yield
    for passes in pipelines:
        passes.remove(checked)
        passes.remove(checked)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many there were."""
    count = len(_round_trip.seen)
    if count:
        terminalreporter.write_line(
            f"{count} loop programs printed and parsed back ({_round_trip.seconds:.1f} s)"
        )
