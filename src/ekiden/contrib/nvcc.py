"""Queries of features by CUDA compute capability, with the interface of TVM's `contrib.nvcc`.

NVIDIA's compiler is not called: code for these devices is PTX.
"""

from __future__ import annotations

import re

from ekiden.runtime.errors import InputError
from ekiden.target import Target, TargetLike, target_or_current

__all__ = [
    "get_target_compute_version",
    "have_bf16",
    "have_fp16",
    "have_int8",
    "have_tensorcore",
    "parse_compute_version",
]


def get_target_compute_version(target: TargetLike | None = None) -> str:
    """Return the compute capability of a target, such as "8.0". Raises InputError where its option
    -arch is not set.
    """
    chosen = Target(target) if target is not None else target_or_current()
    match = re.fullmatch(r"sm_(\d+)(\d)a?", str(chosen.attrs.get("arch") or ""))
    if match is None:
        raise InputError(f"compute version of '{chosen}': -arch=sm_... expected")
    return f"{match[1]}.{match[2]}"


def parse_compute_version(compute_version: str) -> tuple[int, int]:
    """Parse a compute capability to (major, minor). Raises InputError."""
    match = re.fullmatch(r"(\d+)\.(\d+)", compute_version)
    if match is None:
        raise InputError(f"compute version: like '8.0' expected, got {compute_version!r}")
    return int(match[1]), int(match[2])


def have_fp16(compute_version: str) -> bool:
    """Return whether a compute capability supports float16."""
    return parse_compute_version(compute_version) >= (5, 3)


def have_int8(compute_version: str) -> bool:
    """Return whether a compute capability supports int8 dot products."""
    return parse_compute_version(compute_version) >= (6, 1)


def have_tensorcore(compute_version: str | None = None, target: TargetLike | None = None) -> bool:
    """Return whether a compute capability, or a target's, supports tensor cores."""
    version = compute_version or get_target_compute_version(target)
    return parse_compute_version(version) >= (7, 0)


def have_bf16(compute_version: str) -> bool:
    """Return whether a compute capability supports bfloat16."""
    return parse_compute_version(compute_version) >= (8, 0)
