"""How a converter gives up."""

from __future__ import annotations

from collections.abc import Sequence


class Unsupported(Exception):  # noqa: N818 - UnsupportedError is made of these
    """A node that cannot be converted, and why; the importer collects these into one
    UnsupportedError.

    inputs: names of the parameters of `main` whose values would have to be known.
    """

    def __init__(self, reason: str, inputs: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.inputs = tuple(inputs)
