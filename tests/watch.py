"""What a test run says of itself while it goes on: a run that is cut off has told what failed."""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import IO, Any

import pytest

GRACE = 60
"""Seconds after its timeout in which a test may still fail by itself."""

_stderr: list[IO[str]] = []
"""Where the stacks of a test that is stuck are written, as no test's output is."""


def open_stderr(config: pytest.Config) -> None:
    """Keep the standard error of the process, whatever becomes of the descriptor in tests."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        _stderr.append(os.fdopen(os.dup(2), "w"))
    config.add_cleanup(lambda: _stderr.pop().close())


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:  # noqa: ANN401
    """Python's timeout waits for the code in C that hangs; after it the process is given up, which
    pytest-xdist reports as the failure of this test."""
    if _stderr:
        faulthandler.dump_traceback_later(settings.timeout + GRACE, exit=True, file=_stderr[0])


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """The test has ended."""
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure at once in the process that reports; the summary at the end says it again."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        reason = report.longreprtext.strip().splitlines()[-1:] or [""]
        print(f"\n{report.nodeid} ({report.when}): {reason[0]}", file=sys.__stderr__, flush=True)
