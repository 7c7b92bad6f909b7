"""Import options, the arguments of `ekiden.compile` that concern the model."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeAlias

from ekiden._lazy import LazyModule
from ekiden.runtime.debug.short_repr import short_repr
from ekiden.runtime.errors import CompileError, ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.ir import prim
else:
    # An answer from the cache parses no shape, and must not load the compiler.
    prim = LazyModule("ekiden.ir.prim")

Dims: TypeAlias = Sequence[int | str | None]
Shapes: TypeAlias = Mapping[str, Dims | Sequence[Dims] | None]
"""Shapes of inputs by name: numbers, names of symbolic dimensions, None for ones without a name.

A sequence has a list of shapes, and is then given as that many inputs "name.0", "name.1", ...; an
optional input that is never there has None.
"""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Import options of a user, such as input shapes and example inputs.

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

    def set_option_names(self) -> Iterator[str]:
        """Yield the names of the options that are set."""
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None and not (isinstance(value, (str, dict)) and not value):
                yield option.name

    def to_dict(self) -> dict[str, object]:
        """Return the options that are set, by name; they are part of the artifact cache's key."""
        return {name: getattr(self, name) for name in self.set_option_names()}


def check_convert_config(
    function: str, config: Mapping[str, object] | None, known_keys: Sequence[str]
) -> None:
    """Check TVM's `convert_config`, whose entries choose between forms of a product that are one
    kernel here.

    Args:
        function: the importer, for the message.
        config: what the user states.
        known_keys: the entries that TVM's importer has; each is True or False.

    Raises:
        CompileError: an entry is unknown or no bool.
    """
    for key, value in (config or {}).items():
        if key not in known_keys or not isinstance(value, bool):
            expected = f"expected {' or '.join(known_keys)}, True or False"
            raise CompileError(f"{function}: convert_config: {expected}; got {key!r}: {value!r}")


NO_OPTIONS = ImportOptions()
"""A model as it stands."""


def parse_shape_option(name: str, shape: object) -> list[int | str | None]:
    """Parse the shape that the option `shape` states for an input: non-negative numbers, names
    (`relay.SizeVar` as well), or None (-1, `relay.Any()`) for dynamic.

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
        if isinstance(dim, prim.AnyDim):
            return None
        if isinstance(dim, prim.SizeVar):
            return dim.name
        number = dim.value if isinstance(dim, prim.IntImm) else -2
    if number >= -1:
        return None if number == -1 else number
    expected = "a number from 0 on, a name, or None or -1 for any expected"
    raise ImportModelError(f"shape of {name!r}: {expected}, got {short_repr(dim)}")
