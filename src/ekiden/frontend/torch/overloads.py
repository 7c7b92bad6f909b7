"""Operator overloads of the installed PyTorch by name.

PyTorch adds and removes operators between versions (2.14 has no `aten::cholesky`), so that tables
of operators name them by texts and hold those alone that this PyTorch has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch

_Row = TypeVar("_Row")


def find_overload(name: str) -> torch._ops.OpOverload | None:
    """Return the overload `operator.overload` of aten, or None where this PyTorch does not have
    it.
    """
    operator, _, overload = name.rpartition(".")
    packet = getattr(torch.ops.aten, operator, None)
    return getattr(packet, overload, None)


def existing_overloads(names: Iterable[str]) -> tuple[torch._ops.OpOverload, ...]:
    """Return the overloads of the names that this PyTorch has."""
    return tuple(overload for name in names if (overload := find_overload(name)) is not None)


def overload_table(rows: Mapping[str, _Row]) -> dict[torch._ops.OpOverload, _Row]:
    """Return a table by overload name as one by overload, without those this PyTorch does not
    have.
    """
    return {
        overload: row for name, row in rows.items() if (overload := find_overload(name)) is not None
    }
