"""Import options: arguments of `ekiden.compile` that concern the model."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TypeAlias

from ekiden.runtime.debug.shown import short_repr
from ekiden.runtime.errors import ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass

Dims: TypeAlias = Sequence[int | str | None]
Shapes: TypeAlias = Mapping[str, Dims | Sequence[Dims] | None]
"""Shapes of inputs by name: numbers, names of symbolic dimensions, None for ones without a name.

A sequence has a list of shapes, and is then given as that many inputs "name.0", "name.1", ...; an
optional input that is never there has None.
"""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Import options that a user states.

    A row of the table of frontends names those it honours; others are rejected before the import.
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
        """Yield the names of the options that are set."""
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None and not (isinstance(value, (str, dict)) and not value):
                yield option.name

    def plain(self) -> dict[str, object]:
        """Return the options that are set, by name; they are part of the artifact cache's key."""
        return {name: getattr(self, name) for name in self.given()}


NO_OPTIONS = ImportOptions()
"""A model as it stands."""


def parse_stated_shape(name: str, shape: object) -> list[int | str | None]:
    """Parse the shape that the option `shape` states for an input: non-negative numbers, names, or
    None (-1) for dynamic.

    Raises ImportModelError for anything else.
    """
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        actual = f"{type(shape).__name__}: {short_repr(shape)}"
        raise ImportModelError(
            f"shape of {name!r}: a sequence of dimensions expected, got {actual}"
        )
    return [_parse_dim(name, dim) for dim in shape]


def _parse_dim(name: str, dim: object) -> int | str | None:
    """Parse one dimension of a stated shape."""
    if dim is None or isinstance(dim, str):
        return dim
    try:
        number = -2 if isinstance(dim, bool) else operator.index(dim)  # type: ignore[arg-type]
    except TypeError:
        number = -2
    if number >= -1:
        return None if number == -1 else number
    expected = "a number from 0 on, a name, or None or -1 for any expected"
    raise ImportModelError(f"shape of {name!r}: {expected}, got {short_repr(dim)}")
