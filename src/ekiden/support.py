"""Information about this installation, at TVM's path."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import ekiden


def libinfo() -> dict[str, str]:
    """Return facts about the installation, under TVM's names where they exist."""
    return {
        "TVM_VERSION": "0.16.0",
        "EKIDEN_VERSION": ekiden.__version__,
        "LLVM_VERSION": _version("llvmlite"),
        "PYTHON_VERSION": platform.python_version(),
        "MACHINE": platform.machine(),
        "SYSTEM": platform.system(),
        "USE_LLVM": "ON" if _version("llvmlite") != "OFF" else "OFF",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "OFF"


def print_libinfo() -> None:
    """Print the facts of `libinfo`; `ekiden doctor` checks more."""
    for name, value in libinfo().items():
        print(f"{name}: {value}")


__all__ = ["libinfo", "print_libinfo"]
