"""Errors of the polynomials of exp, log, sin, cos and erf."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpmath")
SCRIPT = Path(__file__).parents[2] / "scripts" / "fit_polynomials.py"
MAX_ERROR_BITS = {
    "exp float32": -28.1,
    "sin float32": -37.4,
    "cos float32": -32.9,
    "log float32": -30.2,
    "exp float64": -59.8,
    "sin float64": -57.0,
    "cos float64": -59.5,
    "log float64": -61.5,
    "erf float64": -54.6,
    "log erfc float64": -57.6,
}


def test_polynomials_have_the_stated_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("fit_polynomials", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fit_polynomials", script)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "NUM_ERROR_SAMPLES", 100)
    with script.mp.workdps(40):
        errors = {f.name: script.mp.log(f.max_error(f.coefficients), 2) for f in script.fits()}
    assert {n: e for n, e in errors.items() if e > MAX_ERROR_BITS[n]} == {}
    assert set(errors) == set(MAX_ERROR_BITS)
