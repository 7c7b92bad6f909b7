"""Unique names: the first to ask for a name has it, later ones get numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable


class NameUniquer:
    """Names in use, and the last number behind each.

    `fresh("x")` returns "x", then "x_1", "x_2", ... Constant time a name, however often it was
    asked for.
    """

    __slots__ = ("_last_number",)

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._last_number = dict.fromkeys(reserved, 0)

    def __contains__(self, name: str) -> bool:
        return name in self._last_number

    def reserve(self, name: str) -> None:
        """Mark a name as used, even if it is already."""
        self._last_number.setdefault(name, 0)

    def release(self, name: str) -> None:
        """Let a name be used again."""
        self._last_number.pop(name, None)

    def fresh(self, hint: str) -> str:
        """Return and reserve a name that is not used: the hint, with a number if needed."""
        numbers = self._last_number
        name = hint
        while name in numbers:
            numbers[hint] += 1
            name = f"{hint}_{numbers[hint]}"
        numbers[name] = 0
        return name
