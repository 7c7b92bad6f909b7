"""Structural equality that says where two things differ."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from ekiden.ir.module import IRModule
from ekiden.ir.structural import structural_equal

_CONTEXT = 3


def assert_structural_equal(lhs: object, rhs: object, map_free_vars: bool = False) -> None:
    """Raise ValueError, with the first lines in which their texts differ, unless both mean the
    same.
    """
    if structural_equal(lhs, rhs, map_free_vars):
        return
    raise ValueError(f"structural equality: the two differ\n{_first_difference(lhs, rhs)}")


def _first_difference(lhs: object, rhs: object) -> str:
    left, right = _lines(lhs), _lines(rhs)
    for number, (a, b) in enumerate(zip_longest(left, right, fillvalue="")):
        if a != b:
            before = [f"  {line}" for line in left[max(0, number - _CONTEXT) : number]]
            return "\n".join([*before, f"- {a}", f"+ {b}"])
    return f"both print as\n{lhs}"


def _lines(value: object) -> list[str]:
    if isinstance(value, Mapping):
        return [f"{key}: {each}" for key, each in value.items()]
    text = value.astext(show_meta_data=False) if isinstance(value, IRModule) else str(value)
    return text.splitlines()


__all__ = ["assert_structural_equal"]
