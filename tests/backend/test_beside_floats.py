"""Whoever compiles or profiles a kernel of integers that is slower than its floats would be, by the
model of kernels, is told so.
"""

from __future__ import annotations

import logging

import pytest

import ekiden
from ekiden.target import Target
from integer_grid import Case

pytestmark = pytest.mark.quick
CONV = Case("linear", channels=512, out=64, size=16)
"""Its sums are too large for Winograd's tiles of 4x4, which its floats have."""


def warnings_of(case: Case, text: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ekiden"):
        ekiden.compile(case.model(), text)
    return [r.getMessage() for r in caplog.records if "kernels of integers" in r.getMessage()]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_DIR", "")


def test_a_class_without_dot_products_is_slower_where_sums_need_small_tiles(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (line,) = warnings_of(CONV, "llvm -mcpu=x86-64-v3", caplog)
    assert "QLinearConv 'y'" in line
    assert "leave these layers in floats" in line


def test_a_class_without_dot_products_is_not_where_sums_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    few = Case("linear", channels=64, out=64, size=16)
    assert not warnings_of(few, "llvm -mcpu=x86-64-v3", caplog)


@pytest.mark.skipif(
    not Target.parse("llvm -mcpu=cascadelake").serves(Target.host()), reason="needs VNNI"
)
def test_a_class_with_dot_products_is_not(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(CONV, "llvm -mcpu=cascadelake", caplog)


def test_kernels_of_microseconds_are_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    small = Case("linear", channels=8, out=8, size=4)
    assert not warnings_of(small, "llvm -mcpu=x86-64-v3", caplog)


def test_a_profile_shows_it() -> None:
    executable = ekiden.compile(CONV.model(), "llvm -mcpu=x86-64-v3")
    report = executable.profile(**CONV.feed(), peak=False)
    (line,) = report.warnings()
    assert "times as long as the same product of floats" in line
    assert line in str(report)
    assert line in report.json()
