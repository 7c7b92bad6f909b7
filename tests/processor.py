"""Which processors a test's code is made for. What a test holds must hold on each of them, so
`pytest --processor x86-64-v3` runs all tests as on a machine of that class.
"""

from __future__ import annotations

import pytest

from ekiden.target import Target, cpuinfo

BELOW = tuple(cpuinfo.LEVELS)[:-1]
"""Classes of x86-64 from the newest to the oldest that most code is made for."""


def pretend(cpu: str) -> None:
    """Make this process take its machine for the processor `cpu`, one of a class of which it is.

    The cores and caches stay. Other processes started by tests see the machine itself, and so do
    NumPy and the engines that results are compared with. Raises UsageError for a processor whose
    code this machine does not run.
    """
    info = cpuinfo.read_cpuinfo()
    flags, wanted = info.get("flags", "").split(), cpuinfo.ABILITIES.get(cpu)
    if wanted is None or not set(wanted) <= set(flags):
        there = ", ".join(n for n, needs in cpuinfo.LEVELS.items() if set(needs) <= set(flags))
        raise pytest.UsageError(f"--processor: expected one of {there}, got {cpu!r}")
    hidden = " ".join(f for f in flags if f in wanted or f not in cpuinfo.KNOWN)
    read = cpuinfo.read_cpuinfo

    def masked(text: str | None = None) -> dict[str, str]:
        if text is not None:
            return read(text)
        return {**info, "flags": hidden, "vendor_id": ""}  # a known vendor has names of its own

    cpuinfo.read_cpuinfo = masked
    Target.host.cache_clear()  # type: ignore[attr-defined]


def processors() -> list[str]:
    """Targets: this machine, and each lesser class whose code it runs."""
    host = Target.host()
    levels = [f"llvm -mcpu={name}" for name in BELOW if name != host.cpu]
    return ["llvm", *(text for text in levels if Target.parse(text).serves(host))]
