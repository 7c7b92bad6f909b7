"""Inputs of a model whose rank is not known: a run says it, and is compiled for it."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.runtime.errors import UnrankedInputError


def check_ranks(
    label: str,
    inputs: Sequence[tuple[str, str, tuple[int | str, ...] | None]],
    outputs: Sequence[tuple[str, str]],
) -> None:
    """Raise UnrankedInputError where an input has no rank.

    Args:
        label: The model, as messages have it.
        inputs: (name, dtype, shape) of each, the shape None where nothing says its rank.
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
