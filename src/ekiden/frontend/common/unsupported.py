"""Exception by which a converter rejects a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")


class Unsupported(Exception):  # noqa: N818 - UnsupportedError is made of these
    """Signal that a converter rejects a node; the importer collects the reasons into one
    UnsupportedError.

    inputs: names of the parameters of `main` whose values would have to be known.
    """

    def __init__(self, reason: str, inputs: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.inputs = tuple(inputs)


def suggest_nearest(name: str, supported: Iterable[str], cutoff: float = 0.75) -> str:
    """Return the suffix of an unknown-operator message that names the closest supported ones."""
    near = difflib.get_close_matches(name, sorted(supported), n=3, cutoff=cutoff)
    return f"; the nearest supported are {', '.join(near)}" if near else ""
