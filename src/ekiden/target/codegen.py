"""Queries of the code generator, at TVM's import path."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ekiden.runtime.python_subprocess import python_subprocess_command
from ekiden.target.host_detection import host_architecture
from ekiden.target.target import Target

if TYPE_CHECKING:
    import subprocess

    import llvmlite.binding as llvm
else:
    from ekiden._lazy import LazyModule

    llvm = LazyModule("llvmlite.binding")
    subprocess = LazyModule("subprocess")

_INTRINSIC_NAME_PATTERN = re.compile(r"llvm(\.\w+)+", re.ASCII)
_PARSE_CALL_SCRIPT = """
import llvmlite.binding as llvm
call = "define void @f() { call void @%s() ret void }"
try:
    llvm.parse_assembly(call % sys.argv[1])
except RuntimeError as error:
    sys.exit(UNKNOWN if "unknown intrinsic" in str(error) else 0)
"""
_UNKNOWN_INTRINSIC_STATUS = 3
"""Exit status of the parsing process where LLVM has no such intrinsic."""
_PARSE_TIMEOUT_S = 60.0
_intrinsic_names: list[str] = []
"""Names of the numbered intrinsics, from 1."""


def llvm_version_major(allow_none: bool = False) -> int | None:
    """Return the major version of the LLVM that generates code; None, if that is allowed, without
    one.

    Raises ModuleNotFoundError.
    """
    try:
        return int(llvm.llvm_version_info[0])
    except ModuleNotFoundError:
        if allow_none:
            return None
        raise


@functools.cache
def llvm_lookup_intrinsic_id(name: str) -> int:
    """Return a number for an intrinsic of LLVM, 0 where LLVM has none of that name. The overload
    may be left out of the name: "llvm.sqrt", "llvm.sqrt.f32".

    Numbers are those of this process, in the order of the first calls: programs hold names. The
    first call for a name takes some 0.2 s, as LLVM ends the process that parses a call of some
    intrinsics without their operands, and another one does it.

    Raises ModuleNotFoundError without LLVM.
    """
    if not _INTRINSIC_NAME_PATTERN.fullmatch(name):
        return 0
    llvm_version_major()
    # LLVM aborts the process on malformed intrinsic calls, so it parses in another one.
    command = python_subprocess_command(
        _PARSE_CALL_SCRIPT.replace("UNKNOWN", str(_UNKNOWN_INTRINSIC_STATUS)), name
    )
    parsing = subprocess.run(command, capture_output=True, timeout=_PARSE_TIMEOUT_S, check=False)
    if parsing.returncode == _UNKNOWN_INTRINSIC_STATUS:
        return 0
    _intrinsic_names.append(name)
    return len(_intrinsic_names)


def llvm_get_intrinsic_name(intrin_id: int) -> str:
    """Return the name of an intrinsic by the number that `llvm_lookup_intrinsic_id` returned, ""
    for another number."""
    return _intrinsic_names[intrin_id - 1] if 0 < intrin_id <= len(_intrinsic_names) else ""


def llvm_get_system_triple() -> str:
    """Return the triple of this machine."""
    return str(llvm.get_process_triple())


def llvm_get_system_cpu() -> str:
    """Return LLVM's name of this machine's processor."""
    return str(llvm.get_host_cpu_name())


def llvm_get_cpu_features(target: Target | None = None) -> list[str]:
    """Return the features of a target's processor, by default of the current or of this machine."""
    chosen = target or Target.current() or Target("llvm")
    return sorted(chosen._all_features())


def llvm_cpu_has_features(cpu_features: str | Sequence[str], target: Target | None = None) -> bool:
    """Return whether a target's processor has all of the given features."""
    requested = [cpu_features] if isinstance(cpu_features, str) else list(cpu_features)
    return set(requested) <= set(llvm_get_cpu_features(target))


target_has_features = llvm_cpu_has_features

__all__ = [
    "host_architecture",
    "llvm_cpu_has_features",
    "llvm_get_cpu_features",
    "llvm_get_intrinsic_name",
    "llvm_get_system_cpu",
    "llvm_get_system_triple",
    "llvm_lookup_intrinsic_id",
    "llvm_version_major",
    "target_has_features",
]
