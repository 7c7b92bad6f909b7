"""JSON log lines on standard error: what happened, to which model, how long it took.

A line never holds what a client sent: no tensor, text, token, header, address or name of its
choosing. Of an error it has the class and the places in the code, not the message, which may quote
data.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import TextIO

__all__ = ["SEVERITY_BY_LEVEL", "JsonLog"]

SEVERITY_BY_LEVEL = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class JsonLog:
    """Log of JSON lines on standard error. A line that cannot be written is dropped, so that
    requests do not fail because of it.
    """

    def __init__(self, level: str = "info", stream: TextIO | None = None) -> None:
        self.level = SEVERITY_BY_LEVEL[level]
        self._stream = stream

    def write(self, level: str, event: str, **fields: object) -> None:
        """Write one line, unless its level is below the threshold."""
        if SEVERITY_BY_LEVEL[level] < self.level:
            return
        row = {"time": round(time.time(), 3), "level": level, "event": event, **fields}
        try:
            stream = self._stream or sys.stderr
            if stream is not None:  # as where a program was started without one
                stream.write(json.dumps(row) + "\n")
                stream.flush()
        except (OSError, ValueError):  # a full disk, a closed pipe
            pass

    def log_request(self, model: str, outcome: str, seconds: float) -> None:
        """Log an answered request."""
        if self.level <= SEVERITY_BY_LEVEL["debug"]:
            milliseconds = round(seconds * 1e3, 3)
            self.write("debug", "request", model=model, outcome=outcome, ms=milliseconds)

    def log_failure(self, model: str, error: BaseException) -> None:
        """Log a request that failed with an internal error."""
        cause = error.__cause__ or error
        frames = traceback.extract_tb(cause.__traceback__)[-6:]
        frame_locations = [
            f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames
        ]
        self.write(
            "error", "failed", model=model, error=type(cause).__name__, places=frame_locations
        )


class LogForwarder(logging.Handler):
    """Log handler that forwards library logs: only the logger and severity, not the message."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line for a record."""
        level = "error" if record.levelno >= logging.ERROR else "warning"
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        location = f"{record.filename}:{record.lineno}"
        self._log.write(level, "library", logger=record.name, place=location, error=kind)
