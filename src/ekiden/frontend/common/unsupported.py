"""How a converter gives up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule

if TYPE_CHECKING:
    import difflib
else:
    difflib = LazyModule("difflib")


class Unsupported(Exception):  # noqa: N818 - UnsupportedError is made of these
    """A node that cannot be converted, and why; the importer collects these into one
    UnsupportedError.

    inputs: names of the parameters of `main` whose values would have to be known.
    """

    def __init__(self, reason: str, inputs: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.inputs = tuple(inputs)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.75) -> str:
    """What follows an operator that is not known, in a message: those of the nearest names."""
    near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=cutoff)
    return f"; the nearest supported are {', '.join(near)}" if near else ""
