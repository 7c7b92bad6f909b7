"""Loggers that import `logging` when they have something to log."""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["LazyLogger"]

_WARNING_LEVEL = 30
"""Minimum level that `logging` prints without configuration."""


class LazyLogger:
    """Logger that imports `logging` when the first message is logged. A program that has not
    imported `logging` has no handlers for levels below warnings; the import takes a tenth of a
    cache hit.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def log(self, level: int, message: str, *values: object) -> None:
        """Log a message at a level, as from the caller's line."""
        self._emit(level, message, values)

    def debug(self, message: str, *values: object) -> None:
        """Log a message at level DEBUG."""
        self._emit(10, message, values)

    def info(self, message: str, *values: object) -> None:
        """Log a message at level INFO."""
        self._emit(20, message, values)

    def warning(self, message: str, *values: object) -> None:
        """Log a message at level WARNING."""
        self._emit(_WARNING_LEVEL, message, values)

    def error(self, message: str, *values: object) -> None:
        """Log a message at level ERROR."""
        self._emit(40, message, values)

    def _emit(self, level: int, message: str, values: tuple[object, ...]) -> None:
        if "logging" in sys.modules or level >= _WARNING_LEVEL:
            # Python's own import: Ekiden's waits for other threads that import something.
            logger = import_module("logging").getLogger(self._name)
            logger.log(level, message, *values, stacklevel=3)
