"""The errors of sessions."""

from __future__ import annotations

from ekiden.runtime import error_from
from ekiden.runtime.errors import FrameError, RPCError, RPCSessionTimeoutError

__all__ = ["FrameError", "RPCError", "RPCSessionTimeoutError", "remote_error"]


def remote_error(kind: str, message: str, traceback: str) -> RPCError:
    """The exception for what the other side raised: of its class, if there is one of that name
    here, and an RPCError."""
    found = error_from(kind, message)
    made = _both(type(found))(*found.args)
    if traceback:
        made.add_note("on the other side, most recent call first:\n" + traceback)
    return made


_MADE: dict[type[Exception], type[RPCError]] = {}


def _both(cls: type[Exception]) -> type[RPCError]:
    """The class of errors that are both; `cls` itself where it is one already."""
    if issubclass(cls, RPCError):
        return cls
    if issubclass(RPCError, cls):
        return RPCError
    if cls not in _MADE:
        _MADE[cls] = type(cls.__name__, (RPCError, cls), {"__doc__": cls.__doc__})
    return _MADE[cls]
