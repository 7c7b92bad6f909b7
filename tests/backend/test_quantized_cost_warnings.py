"""Warnings, while compiling and in profiles, about quantized kernels that the cost model predicts
to be slower than their float form.
"""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import ekiden
from ekiden import relay
from integer_grid import Case

pytestmark = [pytest.mark.quick, pytest.mark.slow]
CONV = Case("linear", channels=512, out=64, size=16)
"""Its sums are too large for Winograd's tiles of 4x4, which its floats have."""


def export_messages(case: Case, text: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Export a program for a class that this machine need not have; return what was logged."""
    caplog.clear()
    with TemporaryDirectory() as folder, caplog.at_level(logging.WARNING, "ekiden"):
        ekiden.export(case.model(), Path(folder, "model.eki"), target=text)
    return [r.getMessage() for r in caplog.records]


def warnings_of(case: Case, text: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    return [m for m in export_messages(case, text, caplog) if "kernels of integers" in m]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_DIR", "")


def test_warning_without_dot_products_where_sums_need_small_tiles(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (line,) = warnings_of(CONV, "llvm -mcpu=x86-64-v3", caplog)
    assert "QLinearConv 'y'" in line
    assert "leave these layers in floats" in line


def test_no_warning_without_dot_products_where_sums_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    few = Case("linear", channels=64, out=64, size=16)
    assert not warnings_of(few, "llvm -mcpu=x86-64-v3", caplog)


def test_no_warning_with_dot_products(caplog: pytest.LogCaptureFixture) -> None:
    assert not warnings_of(CONV, "llvm -mcpu=cascadelake", caplog)


def test_no_warning_for_microsecond_kernels(caplog: pytest.LogCaptureFixture) -> None:
    small = Case("linear", channels=8, out=8, size=4)
    assert not warnings_of(small, "llvm -mcpu=x86-64-v3", caplog)


def test_profile_warns_of_slow_quantized_kernel() -> None:
    executable = ekiden.compile(CONV.model(), "llvm -mcpu=x86-64-v3")
    report = executable.profile(**CONV.feed(), peak=False)
    (line,) = report.warnings()
    assert "times as long as the same product of floats" in line
    assert line in str(report)
    assert line in report.json()


FEW_PRODUCTS = Case("dynamic", channels=32, out=16, size=56, window=1)
"""Finding the range of its data and rounding them takes about as long as its products."""


def slowdown_of(case: Case, text: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = export_messages(case, text, caplog)
    return [m for m in messages if "the quantised program takes" in m]


@pytest.mark.parametrize("text", ["llvm -mcpu=x86-64-v3", "llvm -mcpu=x86-64-v4"])
def test_warning_where_range_cost_exceeds_matmul_savings(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = slowdown_of(FEW_PRODUCTS, text, caplog)
    assert "times as long as its floats by the model" in line
    assert "finding ranges and rounding" in line


def test_no_warning_where_matmuls_dominate_rounding(
    caplog: pytest.LogCaptureFixture,
) -> None:
    many = Case("dynamic", channels=256, out=256, size=28, window=3)
    assert not slowdown_of(many, "llvm -mcpu=x86-64-v3", caplog)


def test_no_warning_for_float_programs(caplog: pytest.LogCaptureFixture) -> None:
    x = relay.var("x", shape=(1, 64, 28, 28))
    weight = relay.const(np.ones((64, 64, 3, 3), np.float32))
    body = relay.max(relay.nn.conv2d(x, weight, padding=(1, 1)))
    with caplog.at_level(logging.WARNING, "ekiden"):
        ekiden.compile(ekiden.IRModule.from_expr(relay.Function([x], body)), "llvm")
    assert not caplog.records


def test_profile_warns_of_slow_quantized_program() -> None:
    executable = ekiden.compile(FEW_PRODUCTS.model(), "llvm -mcpu=x86-64-v3")
    report = executable.profile(**FEW_PRODUCTS.feed(), peak=False)
    (line,) = [w for w in report.warnings() if "the quantised program takes" in w]
    assert line in str(report)
    assert line in report.json()
