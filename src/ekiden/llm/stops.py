"""Texts at which an answer ends."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopFilter"]


class StopFilter:
    """Gives text on as it comes, but for what may be the beginning of a text that stops it."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_stopped = False

    def add(self, text: str) -> str:
        """What can be given on now: nothing from the first of the stops on."""
        self._held += text
        found = [at for at in (self._held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.has_stopped = True
            made, self._held = self._held[: min(found)], ""
            return made
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        made, self._held = self._held[:cut], self._held[cut:]
        return made

    def rest(self) -> str:
        """What was held back and stops nothing."""
        made, self._held = self._held, ""
        return made


def _overlap(text: str, stop: str) -> int:
    """How much of the end of a text is the beginning of another."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
