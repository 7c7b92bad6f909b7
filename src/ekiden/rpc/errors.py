"""RPC errors."""

from __future__ import annotations

from ekiden.runtime import error_from
from ekiden.runtime.errors import FrameError, RPCError, RPCSessionTimeoutError

__all__ = ["FrameError", "RPCError", "RPCSessionTimeoutError", "remote_error"]


def remote_error(kind: str, message: str, traceback: str) -> RPCError:
    """Return the exception for a remote error: an RPCError that also has the original class, if it
    is known here.
    """
    local_error = error_from(kind, message)
    combined = _combined_type(type(local_error))(*local_error.args)
    if traceback:
        combined.add_note("on the other side, most recent call first:\n" + traceback)
    return combined


_COMBINED_TYPES: dict[type[Exception], type[RPCError]] = {}


def _combined_type(cls: type[Exception]) -> type[RPCError]:
    """Return an exception class derived from both RPCError and `cls`; one of them if it already
    derives from the other.
    """
    if issubclass(cls, RPCError):
        return cls
    if issubclass(RPCError, cls):
        return RPCError
    if cls not in _COMBINED_TYPES:
        _COMBINED_TYPES[cls] = type(cls.__name__, (RPCError, cls), {"__doc__": cls.__doc__})
    return _COMBINED_TYPES[cls]
