"""The formats of kernels of devices."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.target.kinds import KINDS

FORMATS: Mapping[str, str] = {
    kind.name: "ptx" if kind.name == "nvptx" else kind.name
    for kind in KINDS.values()
    if kind.has_threads and kind.has_generator
}
"""Kind of target -> the format that its kernels are in."""

__all__ = ["FORMATS"]
