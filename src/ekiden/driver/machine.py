"""Whether an artifact can run on this machine: code for a processor must not end in an illegal
instruction.
"""

from __future__ import annotations

from ekiden.runtime.errors import CompileError, LoadError
from ekiden.target import Target, cpuinfo

VECTOR_LEVELS = {512: "x86-64-v4", 256: "x86-64-v3", 128: "x86-64-v2"}
"""Vector bits of a target -> the level whose flags its code may use."""


def needed_flags(target: Target) -> set[str]:
    """The flags of /proc/cpuinfo that code for a target relies on; those of AArch64 have it all."""
    if target.architecture == "aarch64":
        return set()
    level = target.cpu if target.cpu in cpuinfo.LEVELS else VECTOR_LEVELS[target.vector_bits]
    extra = {flag for flag, name in cpuinfo.EXTRA_FEATURES.items() if name in target.features}
    return {*cpuinfo.LEVELS[level], *extra}


def check_machine(text: object, flags: set[str] | None = None) -> None:
    """Raise LoadError naming what this machine lacks to run code for a target, given as text."""
    if not isinstance(text, str):
        raise LoadError("load executable: metadata: the target expected as text")
    try:
        target = Target.parse(text)
    except CompileError as error:
        raise LoadError(f"load executable: metadata: {error}") from error
    here = Target.host().architecture
    if target.architecture != here:
        raise LoadError(
            f"load executable: it was compiled for {target.architecture}: this machine is {here}"
        )
    if flags is None:
        flags = set(cpuinfo.read_cpuinfo().get("flags", "").split())
    missing = sorted(needed_flags(target) - flags)
    if missing:
        lacks = f"this machine lacks {', '.join(missing)}"
        raise LoadError(f"load executable: it was compiled for {target.cpu}: {lacks}")
