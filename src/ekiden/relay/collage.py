"""TVM's Collage (partitioning by measured cost), which is not supported.

`ekiden.byoc` and `relay.transform.MergeComposite` give regions to other compilers by patterns, and
`ekiden.compile` chooses devices by measured cost (docs/guides/devices.md).
"""

from __future__ import annotations


def __getattr__(name: str) -> object:
    """Raise AttributeError that names the alternatives to Collage."""
    raise AttributeError(
        f"relay.collage has no {name!r}: Ekiden does not partition programs by measured cost; give "
        "regions to other compilers by patterns (ekiden.byoc)"
    )
