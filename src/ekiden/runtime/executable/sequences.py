"""Python lists of tensors as the sequences of a program (see ekiden.relay.op.sequence) and back,
and what values of sum types hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ekiden import runtime
from ekiden.runtime.errors import RunError

if TYPE_CHECKING:
    import numpy.typing as npt

_CONS, _NIL = 0, 1


def from_list(values: Iterable[object], element: Callable[[int, object], object]) -> runtime.ADT:
    """A sequence of `element(position, value)` for each value: the last one comes first."""
    made = runtime.ADT(_NIL, ())
    for position, value in enumerate(values):
        made = runtime.ADT(_CONS, (element(position, value), made))
    return made


def to_maps(rows: npt.NDArray[Any], keys: Sequence[int | str]) -> list[dict[int | str, object]]:
    """The rows of a matrix as dictionaries. Raises RunError where there is not a key for each of
    their elements.
    """
    if rows.ndim != 2 or rows.shape[1] != len(keys):
        raise RunError(f"expected a matrix with rows of {len(keys)}, got the shape {rows.shape}")
    return [dict(zip(keys, row, strict=True)) for row in rows.tolist()]


def to_list(value: object) -> list[object]:
    """The elements of a sequence. Raises RunError for what is none."""
    found: list[object] = []
    while isinstance(value, tuple) and len(value) == 2:
        found.append(value[0])
        value = value[1]
    if not isinstance(value, tuple) or value:
        raise RunError(f"expected a sequence, got {type(value).__name__}")
    return found[::-1]


def held(value: object) -> object:
    """Return what a value of a sum type holds. Raises RunError for what is none."""
    if not isinstance(value, tuple) or len(value) != 1:
        raise RunError(f"expected a value of one of several ranks, got {type(value).__name__}")
    content: object = value[0]
    return content
