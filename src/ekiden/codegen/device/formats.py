"""Code formats of device kernels, by target kind."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.target import Target
from ekiden.target.kinds import TARGET_KINDS

KERNEL_FORMATS: Mapping[str, str] = {
    kind.name: "ptx" if kind.name == "nvptx" else kind.name
    for kind in TARGET_KINDS.values()
    if kind.has_threads and kind.has_generator
}
"""Default kernel code format of each target kind."""
ALL_KERNEL_FORMATS = frozenset(KERNEL_FORMATS.values()).union(
    *(kind.triples.values() for kind in TARGET_KINDS.values())
)
"""All code formats of kernels."""


def kernel_format(target: Target) -> str:
    """Return the code format of a target's kernels."""
    return target.kind.triples.get(
        str(target.attrs.get("mtriple")), KERNEL_FORMATS[target.kind.name]
    )


__all__ = ["ALL_KERNEL_FORMATS", "KERNEL_FORMATS", "kernel_format"]
