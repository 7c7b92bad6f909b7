"""Program of one session: started afresh and ahead of its client, inside its sandbox.

It prepares (imports, libraries, functions of the server's owner, device drivers), applies the last
sandbox restrictions, reports that it is ready, and waits for a connection. Only this process reads
what its client sends.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ekiden.rpc.errors import RPCError
from ekiden.rpc.function_pickle import deserialize_function
from ekiden.rpc.sandbox import Limits, restrict_process
from ekiden.rpc.services import serve_client
from ekiden.runtime import device, load_module, memory_limit, register_func
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["FAILED", "READY", "UINT32_STRUCT", "SessionTask", "run_session"]

READY, FAILED = b"ready", b"failed:"
"""What the program says when it waits for a client, or why it does not."""
UINT32_STRUCT = struct.Struct("<I")
"""Descriptor of the control socket: it passes the isolation bits, then with the connection the
largest message that the client accepts."""
_CONTROL_DESCRIPTOR = 3
_DRIVER_NAMES = ("cuda", "opencl", "vulkan", "rocm", "metal")


@dataclass(frozen=True, slots=True)
class SessionTask:
    """Task of a session's program, as plain data."""

    key: str
    folder: str
    limits: Limits
    has_sandbox: bool
    libraries: tuple[str, ...]
    functions: dict[str, bytes]
    """Functions of the server's owner by name, as `portable.serialize_function` has them."""
    unavailable_functions: dict[str, str]
    """Those that cannot be had here, and why."""
    prepare: bytes | None
    """The owner's `server_init_callback`."""


def run_session(task: SessionTask) -> None:
    """Prepare, wait for a client, and serve it until the session ends."""
    control = socket.socket(fileno=_CONTROL_DESCRIPTOR)
    try:
        _prepare_session(task, *UINT32_STRUCT.unpack(control.recv(UINT32_STRUCT.size)))
    except BaseException as error:
        control.send(FAILED + f"{type(error).__name__}: {error}".encode()[:4000])
        raise
    # Sent only behind the sandbox: no client's byte is read before.
    control.send(READY)
    data, numbers, _, _ = socket.recv_fds(control, UINT32_STRUCT.size, 1)
    control.close()
    if data and numbers:
        serve_client(numbers[0], UINT32_STRUCT.unpack(data)[0], Path(task.folder), task.key)


def _prepare_session(task: SessionTask, isolation: int) -> None:
    for library in task.libraries:
        load_module(library)
    for name, data in task.functions.items():
        try:
            function = deserialize_function(data)
        except Exception as error:  # of a module that a session cannot import
            function = _unavailable_function(name, f"{type(error).__name__}: {error}")
        register_func(name, function, override=True)
    for name, reason in task.unavailable_functions.items():
        register_func(name, _unavailable_function(name, reason), override=True)
    if task.prepare is not None:
        deserialize_function(task.prepare)()
    # The only folder that the session may write.
    os.environ["EKIDEN_CACHE_DIR"] = task.folder
    if task.has_sandbox:
        for name in _DRIVER_NAMES:  # what they open, they could not open later
            with suppress(Exception):
                _ = device(name, 0).exist
        for leftover in Path(task.folder).iterdir():  # by a driver: a client finds an empty folder
            leftover.unlink()
        memory_limit(task.limits.memory)
        # Last, because loading libraries and drivers needs calls that the sandbox forbids.
        restrict_process(task.limits, isolation)


def _unavailable_function(name: str, reason: str) -> Callable[..., object]:
    """Return a stand-in for a function that is unavailable here."""

    def raise_unavailable(*_: object) -> object:
        raise RPCError(f"'{name}': {reason}")

    return raise_unavailable
