"""Which processors a test's code is made for. What a test holds must hold on each of them, so
`pytest --processor x86-64-v3` runs all tests as on a machine of that class.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ekiden.target import Target, facts, target
from ekiden.target.processors import PROCESSORS

LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
"""Classes of x86-64 from the newest to the oldest that most code is made for."""


def pretend(cpu: str) -> None:
    """Make this process take its machine for the processor `cpu`, one of a class of which it is.

    The cores and caches stay. Other processes started by tests see the machine itself, and so do
    NumPy and the engines that results are compared with. Raises UsageError for a processor whose
    code this machine does not run.
    """
    real, expected = facts.host_facts(), PROCESSORS.get(cpu)
    if expected is None or not Target(cpu=cpu).serves(Target.host()):
        there = ", ".join(n for n in LEVELS if Target(cpu=n).serves(Target.host()))
        raise pytest.UsageError(f"--processor: expected one of {there}, got {cpu!r}")
    masked = replace(real, processor=cpu, features=(), core=expected.core)
    facts.host_facts = lambda: masked  # type: ignore[assignment]
    target._host_machine.cache_clear()


def processors() -> list[str]:
    """Targets: this machine, and each lesser class whose code it runs."""
    host = Target.host()
    levels = [f"llvm -mcpu={name}" for name in LEVELS if name != host.cpu]
    return ["llvm", *(text for text in levels if Target.parse(text).serves(host))]
