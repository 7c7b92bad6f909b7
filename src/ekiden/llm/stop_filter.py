"""Streaming search for stop strings."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopFilter", "suffix_overlap"]


class StopFilter:
    """Streaming filter that holds back text that may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_stopped = False

    def feed(self, text: str) -> str:
        """Append text and return what can be emitted; nothing from the first stop string on."""
        self._held += text
        positions = [
            position
            for position in (self._held.find(stop) for stop in self._stops)
            if position >= 0
        ]
        if positions:
            self.has_stopped = True
            released, self._held = self._held[: min(positions)], ""
            return released
        # Text that may begin a stop string is held back until it is decided.
        keep = max((suffix_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released

    def flush(self) -> str:
        """Return the held-back text at the end of the response."""
        released, self._held = self._held, ""
        return released


def suffix_overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of a text that is a prefix of a stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
