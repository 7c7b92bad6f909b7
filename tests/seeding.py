"""A test sees the same random numbers whatever ran before it, in whatever order.

Generators that test files hold go back to their beginning before each test, PyTorch's too, and
hypothesis draws the same examples each time: what fails in a run fails again by itself. Under the
marker `long` hypothesis looks for new examples.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

TESTS = Path(__file__).parent

_beginnings: dict[int, tuple[np.random.BitGenerator, Mapping[str, Any]]] = {}
"""Of each generator that a module under `tests` holds, by identity: its state when it was made."""
_read: set[str] = set()
"""Modules whose generators are known."""
_met = 0
"""How many modules there were when they were last looked through: thousands, before each test."""


def pytest_configure(config: pytest.Config) -> None:
    """Before test files are read: what they ask of hypothesis builds on the profile, by which no
    test fails for the time that it takes."""
    slow = [HealthCheck.too_slow]
    settings.register_profile("new", deadline=None, suppress_health_check=slow)
    settings.register_profile("repeatable", settings.get_profile("new"), derandomize=True,
                              database=None)  # fmt: skip
    is_long = "long" in config.option.markexpr
    settings.load_profile("new" if is_long else "repeatable")
    if not is_long and hasattr(providers, "_get_local_constants"):
        # Newer ones parse every module that is loaded for numbers to draw: other ones after other
        # tests, and seconds of each worker.
        providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What fixtures of a module draw begins there too."""
    del item
    rewind()


@pytest.fixture(autouse=True)
def seeded_generators() -> None:
    """After the fixtures of the module, which only the first of its tests makes."""
    rewind()


def rewind() -> None:
    """Each generator back to its beginning."""
    global _met
    if _met != len(sys.modules):
        for name in sys.modules.keys() - _read:
            _read.add(name)
            note_generators(sys.modules[name])
        _met = len(sys.modules)
    for bits, state in _beginnings.values():
        bits.state = state
    if torch := sys.modules.get("torch"):
        rewind_torch(torch)


def rewind_torch(torch: ModuleType) -> None:
    """As torch.manual_seed(0), which takes milliseconds where no accelerator was used yet: it keeps
    the stack of its caller for each kind of them."""
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


def note_generators(module: ModuleType) -> None:
    """Those that a module of tests holds."""
    if TESTS not in Path(getattr(module, "__file__", None) or "/").parents:
        return
    for value in vars(module).values():
        if isinstance(value, np.random.Generator):
            bits = value.bit_generator
            _beginnings[id(bits)] = (bits, type(bits)(bits.seed_seq).state)
