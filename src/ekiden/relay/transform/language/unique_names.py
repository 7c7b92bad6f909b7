"""Unique names within a module."""

from __future__ import annotations


def unique_name(name: str, taken: set[str]) -> str:
    """Return `name`, or the first of `name1`, `name2`, ... that is free, and mark it as taken."""
    number, chosen = 0, name
    while chosen in taken:
        number += 1
        chosen = f"{name}{number}"
    taken.add(chosen)
    return chosen
