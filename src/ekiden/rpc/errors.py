"""RPC errors."""

from __future__ import annotations

from ekiden.runtime import error_from
from ekiden.runtime.errors import FrameError, RPCError, RPCSessionTimeoutError

__all__ = ["FrameError", "RPCError", "RPCSessionTimeoutError", "make_remote_error"]


def make_remote_error(kind: str, message: str, traceback: str) -> RPCError:
    """Return the exception for a remote error: an RPCError that also has the original class, if it
    is known here.
    """
    local_error = error_from(kind, message)
    combined = _combined_error_type(type(local_error))(*local_error.args)
    if traceback:
        combined.add_note("on the other side, most recent call first:\n" + traceback)
    return combined


_COMBINED_ERROR_TYPES: dict[type[Exception], type[RPCError]] = {}


def _combined_error_type(cls: type[Exception]) -> type[RPCError]:
    """Return an exception class derived from both RPCError and `cls`; one of them if it already
    derives from the other.
    """
    if issubclass(cls, RPCError):
        return cls
    if issubclass(RPCError, cls):
        return RPCError
    if cls not in _COMBINED_ERROR_TYPES:
        _COMBINED_ERROR_TYPES[cls] = type(cls.__name__, (RPCError, cls), {"__doc__": cls.__doc__})
    return _COMBINED_ERROR_TYPES[cls]
