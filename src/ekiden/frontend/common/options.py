"""What is asked of an import: the arguments of `ekiden.compile` that are about the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

Dims: TypeAlias = Sequence[int | str | None]
Shapes: TypeAlias = Mapping[str, Dims | Sequence[Dims] | None]
"""Shapes of inputs by name: numbers, names of symbolic dimensions, None for ones without a name.

A sequence has a list of shapes, and is then given as that many inputs "name.0", "name.1", ...; an
optional input that is never there has None.
"""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a user says of a model. A row of the table of frontends names those it honours; others
    that are given are refused before anything is imported.
    """

    shape: Shapes | None = None
    """Replaces the declared shapes of inputs by name."""
    example_inputs: Sequence[object] | None = None
    """Arguments that the model is traced with: what they are not told to be, it is."""
    example_kwargs: Mapping[str, object] | None = None
    """Further arguments by name."""
    dynamic_shapes: object = None
    """Which dimensions of the example inputs may be others, in the framework's own words."""
    signature: str = ""
    """Which of the functions of a model that has several."""

    def given(self) -> Iterator[str]:
        """The names of what is asked for."""
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not (isinstance(value, (str, dict)) and not value):
                yield each.name

    def plain(self) -> dict[str, object]:
        """What is asked for, by name: a part of the key under which artifacts are kept."""
        return {name: getattr(self, name) for name in self.given()}


NO_OPTIONS = ImportOptions()
"""A model as it stands."""
