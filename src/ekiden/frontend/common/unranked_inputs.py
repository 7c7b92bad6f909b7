"""Model inputs of unknown rank, which is determined at run time, when the model is compiled
for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ekiden.frontend.common.options import parse_shape_option
from ekiden.runtime.errors import UnrankedInputError

StatedInput: TypeAlias = tuple[str, str, tuple[int | str, ...] | None]
"""(name, dtype, shape) of an input; the shape is None where nothing says its rank."""


def format_user_shape(name: str, dims: object) -> tuple[int | str, ...] | None:
    """Format an input's shape for display; None without a shape."""
    if dims is None:
        return None
    return tuple("?" if d is None else d for d in parse_shape_option(name, dims))


def check_ranks(
    label: str, inputs: Sequence[StatedInput], outputs: Sequence[tuple[str, str]]
) -> None:
    """Raise UnrankedInputError where an input has no rank.

    Args:
        label: The model, as messages have it.
        inputs: What is said of each.
        outputs: (name, dtype) of each.
    """
    names = [name for name, _, shape in inputs if shape is None]
    if not names:
        return
    listed = ", ".join(map(repr, names))
    shapes = ", ".join(f"{name!r}: ..." for name in names)
    have = f"input {listed} has no shape" if len(names) == 1 else f"inputs {listed} have none"
    raise UnrankedInputError(
        f"import {label}: {have}; give one with shape={{{shapes}}}", tuple(inputs), tuple(outputs)
    )
