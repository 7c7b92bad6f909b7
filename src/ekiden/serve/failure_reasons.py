"""Table of failure reasons of requests, with their HTTP, gRPC and OpenAI codes: one row for each
way, with the status of each protocol.
"""

from __future__ import annotations

from ekiden.runtime.errors import (
    BoundsError,
    DeviceError,
    EkidenError,
    InputError,
    InternalError,
    MemoryLimitError,
    RequestError,
    RunError,
    RunLimitError,
)
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FailureReason:
    """Failure reason of a request, with its status code in each protocol."""

    name: str
    http: int
    grpc: str
    """The name of gRPC's code."""
    openai: str
    """The `type` of OpenAI's error object."""


# fmt: off
FAILURE_REASONS = {row.name: row for row in (
    #      name              HTTP  gRPC                   OpenAI
    FailureReason("malformed",       400, "INVALID_ARGUMENT",    "invalid_request_error"),
    FailureReason("unauthenticated", 401, "UNAUTHENTICATED",     "authentication_error"),
    FailureReason("forbidden",       403, "PERMISSION_DENIED",   "permission_error"),
    FailureReason("unknown",         404, "NOT_FOUND",           "not_found_error"),
    FailureReason("method",          405, "UNIMPLEMENTED",       "invalid_request_error"),
    FailureReason("slow",            408, "DEADLINE_EXCEEDED",   "invalid_request_error"),
    FailureReason("conflict",        409, "FAILED_PRECONDITION", "invalid_request_error"),
    FailureReason("too_large",       413, "RESOURCE_EXHAUSTED",  "invalid_request_error"),
    FailureReason("media",           415, "INVALID_ARGUMENT",    "invalid_request_error"),
    FailureReason("unprocessable",   422, "INVALID_ARGUMENT",    "invalid_request_error"),
    FailureReason("busy",            429, "RESOURCE_EXHAUSTED",  "rate_limit_error"),
    FailureReason("failed",          500, "INTERNAL",            "server_error"),
    FailureReason("memory",          503, "RESOURCE_EXHAUSTED",  "server_error"),
    FailureReason("not_ready",       503, "UNAVAILABLE",         "server_error"),
    FailureReason("stopping",        503, "UNAVAILABLE",         "server_error"),
    FailureReason("deadline",        504, "DEADLINE_EXCEEDED",   "timeout_error"),
)}
# fmt: on

_REASON_BY_CLASS: tuple[tuple[type[Exception], str], ...] = (
    (InputError, "malformed"),
    (MemoryLimitError, "memory"),
    (RunLimitError, "deadline"),
    (BoundsError, "failed"),
    (DeviceError, "failed"),
    (RunError, "unprocessable"),  # what a program refuses of its data: an index, two sizes
    (InternalError, "failed"),
)
"""The first class that an error is of says its reason."""


def to_request_error(error: BaseException) -> RequestError:
    """Convert an error to the one reported to the client. Errors that are not Ekiden's reveal no
    details.
    """
    if isinstance(error, RequestError):
        return error
    reason = next((name for kind, name in _REASON_BY_CLASS if isinstance(error, kind)), "failed")
    retry = 1.0 if reason == "memory" else 0.0
    shows = isinstance(error, EkidenError) and reason != "failed"
    return RequestError(str(error) if shows else "the server failed", reason, retry)
