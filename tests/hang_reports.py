"""Reports of failures and hangs during a test run, so that an interrupted run has named them."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

GRACE = 60
"""Seconds after a test's timeout until the process is given up."""

_stderr: list[IO[str]] = []
"""Standard error of the process, uncaptured, for the stacks of a test that hangs."""


_timed: list[tuple[pytest.Item, Any]] = []
"""The test whose timer runs, with the settings of pytest-timeout; at most one."""


def open_stderr(config: pytest.Config) -> None:
    """Duplicate the process's standard error, which tests may redirect."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        _stderr.append(os.fdopen(os.dup(2), "w"))
    config.add_cleanup(lambda: _stderr.pop().close())


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:  # noqa: ANN401
    """Exit the process some time after the test's timeout, since Python's own timeout cannot
    interrupt C code; pytest-xdist then reports this test as failed.
    """
    _timed[:] = [(item, settings)]
    if _stderr:
        faulthandler.dump_traceback_later(settings.timeout + GRACE, exit=True, file=_stderr[0])


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> None:
    """Stop the timer of a test that has ended."""
    _timed.clear()
    faulthandler.cancel_dump_traceback_later()


@contextmanager
def timeout(seconds: float) -> Iterator[None]:
    """Give the running test a timeout of its own for a part; afterwards its usual one starts anew.

    For what one test builds and others wait for: it takes minutes on a loaded machine with empty
    caches, and the test that happens to come first is not to blame.
    """
    if not _timed:
        yield
        return
    item, settings = _timed[0]
    hook = item.config.hook
    hook.pytest_timeout_cancel_timer(item=item)
    hook.pytest_timeout_set_timer(item=item, settings=settings._replace(timeout=seconds))
    try:
        yield
    finally:
        hook.pytest_timeout_cancel_timer(item=item)
        hook.pytest_timeout_set_timer(item=item, settings=settings)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure at once in the process that reports; the summary at the end says it again."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        reason = report.longreprtext.strip().splitlines()[-1:] or [""]
        print(f"\n{report.nodeid} ({report.when}): {reason[0]}", file=sys.__stderr__, flush=True)
