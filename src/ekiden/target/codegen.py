"""Facts of the code generator at TVM's place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ekiden.target.probe import architecture
from ekiden.target.target import Target

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    from ekiden._lazy import LazyModule

    llvm = LazyModule("llvmlite.binding")


def llvm_version_major(allow_none: bool = False) -> int | None:
    """Return the major version of the LLVM that makes code; None, if that is allowed, without one.

    Raises ModuleNotFoundError.
    """
    try:
        return int(llvm.llvm_version_info[0])
    except ModuleNotFoundError:
        if allow_none:
            return None
        raise


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
    """Return whether a target's processor has all of some features."""
    wanted = [cpu_features] if isinstance(cpu_features, str) else list(cpu_features)
    return set(wanted) <= set(llvm_get_cpu_features(target))


target_has_features = llvm_cpu_has_features

__all__ = [
    "architecture",
    "llvm_cpu_has_features",
    "llvm_get_cpu_features",
    "llvm_get_system_cpu",
    "llvm_get_system_triple",
    "llvm_version_major",
    "target_has_features",
]
