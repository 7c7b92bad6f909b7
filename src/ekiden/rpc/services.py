"""Functions that the serving side offers to a session: the runtime's C server (runtime/rpc) on
connections that Python accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ekiden.rpc.channel import FrameChannel, Stream
from ekiden.rpc.endpoint import Endpoint
from ekiden.rpc.messages import DEFAULT_MAX_FRAME_BYTES
from ekiden.runtime import load_module, serve_session
from ekiden.runtime.files import rewrite_os_errors

__all__ = ["receive_hello", "serve_client"]

_MAX_FILE_NAME_BYTES = 255


def receive_hello(
    stream: Stream, seconds: float | None = None
) -> tuple[Endpoint, int, str, list[object]]:
    """Receive HELLO and nothing beyond it; return the endpoint, the time limit in milliseconds, the
    key and the constructor. Raises RPCError.
    """
    channel = FrameChannel(stream, ahead=0)
    endpoint = Endpoint(channel)
    return (endpoint, *endpoint.receive_hello(*channel.receive(seconds)))


def serve_client(stream: int, peer_limit: int, folder: Path, key: str) -> None:
    """Answer HELLO on a descriptor, and serve until the session ends."""
    functions = _tvm_functions(folder)
    serve_session(
        stream, os.fsencode(folder), key.encode(), DEFAULT_MAX_FRAME_BYTES, peer_limit, functions
    )


def _tvm_functions(folder: Path) -> dict[str, Callable[..., object]]:
    """Return the functions of a session under TVM's names; all others are the process's."""

    def session_path(name: str) -> Path:
        """Return the path of a session's file. Raises ValueError for a name that could escape its
        folder.
        """
        is_plain = name not in ("", ".", "..") and not set(name) & {"/", "\0"}
        if not is_plain or len(name.encode()) > _MAX_FILE_NAME_BYTES:
            raise ValueError(f"session: the name of a file without folders expected, got {name!r}")
        return folder / name

    def remove_file(name: str) -> None:
        with rewrite_os_errors("remove", name):
            session_path(name).unlink()

    return {
        "tvm.rpc.server.workpath": lambda name: str(session_path(name)),
        "tvm.rpc.server.upload": lambda name, data: session_path(name).write_bytes(data) and None,
        "tvm.rpc.server.download": lambda name: session_path(name).read_bytes(),
        "tvm.rpc.server.remove": remove_file,
        "tvm.rpc.server.listdir": lambda name="": ",".join(sorted(os.listdir(folder))),
        "tvm.rpc.server.load_module": lambda name: load_module(session_path(name)),
        "tvm.rpc.server.download_linked_module": _reject_linking,
    }


def _reject_linking(name: str) -> bytes:
    """Raise ValueError: linking an uploaded archive needs a compiler, which a session may not
    start.
    """
    raise ValueError(
        f"download_linked_module '{name}': a session may start no compiler; make the library"
        " where the model is compiled: export_library(path, cc='aarch64-linux-gnu-gcc')"
    )
