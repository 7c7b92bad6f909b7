"""What a session does for its client: functions, modules, tensors, the files of its folder."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ekiden.rpc.channel import Channel
from ekiden.rpc.endpoint import Endpoint, Service
from ekiden.rpc.errors import FrameError
from ekiden.rpc.far import FarThings
from ekiden.rpc.messages import Kind
from ekiden.rpc.wire import TensorType
from ekiden.runtime import Device, Module, Tensor, empty, get_global_func, load_module
from ekiden.runtime.files import named

__all__ = ["Services", "serve_session"]

Thing = TypeVar("Thing")
_NAME_LIMIT = 255


class Services:
    """The services of one session, whose files lie in `folder`; without one it has none."""

    endpoint: weakref.ref[Endpoint]

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.functions: dict[str, Callable[..., object]] = {
            "tvm.rpc.server.workpath": lambda name: str(self._path(name)),
            "tvm.rpc.server.upload": self._upload_whole,
            "tvm.rpc.server.download": lambda name: self._path(name).read_bytes(),
            "tvm.rpc.server.remove": self.remove,
            "tvm.rpc.server.listdir": lambda path="": ",".join(self.names()),
            "tvm.rpc.server.load_module": self.load,
            "tvm.rpc.server.download_linked_module": self._linked,
        }
        """Functions of the session by TVM's names; all others are the process's."""

    @property
    def _side(self) -> Endpoint:
        found = self.endpoint()
        assert found is not None
        return found

    @property
    def folder(self) -> Path:
        """Where the files of the session lie. Raises ValueError on the side of a client."""
        if self._folder is None:
            raise ValueError("session: a client has no files")
        return self._folder

    def table(self) -> dict[Kind, Service]:
        """What serves each message."""
        return {
            Kind.CALL: self.call,
            Kind.FUNCTION: self.function,
            Kind.LOAD: self.load,
            Kind.ALLOC: self.alloc,
            Kind.WRITE: self.write,
            Kind.READ: self.read,
            Kind.COPY: self.copy,
            Kind.TIME: self.time,
            Kind.UPLOAD: self.upload,
            Kind.DOWNLOAD: self.download,
            Kind.SIZE: lambda name: self._path(name).stat().st_size,
            Kind.REMOVE: self.remove,
            Kind.LIST: self.names,
            Kind.RELEASE: self.release,
            Kind.IMPORT: lambda module, other: self._thing(module, Module).import_module(
                self._thing(other, Module)
            ),
        }

    def _thing(self, handle: int, cls: type[Thing]) -> Thing:
        """The thing of a handle. Raises FrameError for another one."""
        found = self._side.held(handle)
        if not isinstance(found, cls):
            got = type(found).__name__
            raise FrameError(f"rpc: handle {handle} of a {cls.__name__} expected, got a {got}")
        return found

    def call(self, handle: int, arguments: list[object]) -> object:
        """Call a function."""
        found = self._side.held(handle)
        if not callable(found):
            got = type(found).__name__
            raise FrameError(f"rpc: handle {handle} of a function expected, got a {got}")
        return found(*arguments)

    def function(self, module: int, name: str) -> object:
        """A function by name; None if there is none."""
        if module:
            found = self._thing(module, Module)
            chosen = name or entry_of(found)
            return found.get_function(chosen) if found.implements_function(chosen) else None
        return self.functions.get(name) or get_global_func(name, True)

    def load(self, name: str) -> Module:
        """The module in an uploaded file."""
        return load_module(self._path(name))

    def alloc(self, kind: TensorType) -> Tensor:
        """A new tensor."""
        device, dtype, shape = kind
        return empty(shape, dtype, device)

    def write(self, handle: int, offset: int, data: memoryview) -> None:
        """Set elements of a tensor of the host."""
        raw = self._elements(handle, offset, len(data))
        if not raw.flags.writeable:
            raise ValueError("write: the tensor can only be read")
        raw[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def read(self, handle: int, offset: int, size: int) -> memoryview:
        """Elements of a tensor."""
        raw = self._elements(handle, offset, size)
        return raw[offset : offset + size].data

    def copy(self, source: int, target: int) -> None:
        """Copy a tensor to another of its type."""
        self._thing(target, Tensor).copy_from(self._thing(source, Tensor))

    def _elements(self, handle: int, offset: int, size: int) -> NDArray[np.uint8]:
        """The bytes of a tensor, which has as many from `offset` on."""
        tensor = self._thing(handle, Tensor)
        if offset + size > tensor.nbytes:
            raise ValueError(f"tensor: bytes {offset} to {offset + size} of {tensor.nbytes}")
        if tensor.device != Device(1, 0):
            raise ValueError(f"tensor: one of the host expected, got one on {tensor.device}")
        raw = tensor.contiguous().reinterpret("uint8", (tensor.nbytes,)).numpy()
        return cast(NDArray[np.uint8], raw)

    def time(self, module: int, name: str, *rest: object) -> bytes:
        """Seconds of a call, of each repeat."""
        *settings, arguments = cast(list[Any], rest)
        found = self._thing(module, Module)
        evaluator = found.time_evaluator(name or entry_of(found), None, *settings)
        return np.array(evaluator(*arguments).results, "<f8").tobytes()

    def upload(self, name: str, offset: int, data: memoryview) -> None:
        """Write into a file; at 0 begin it anew."""
        path = self._path(name)
        with named("upload", name), open(path, "r+b" if offset else "wb") as file:
            if offset > os.fstat(file.fileno()).st_size:
                raise ValueError(f"upload '{name}': the piece at {offset} lies behind the end")
            file.seek(offset)
            file.write(data)

    def _upload_whole(self, name: str, data: bytes) -> None:
        self.upload(name, 0, memoryview(data))

    def download(self, name: str, offset: int, size: int) -> bytes:
        """Read from a file."""
        with named("download", name), open(self._path(name), "rb") as file:
            file.seek(offset)
            return file.read(min(size, self._side.peer_limit))

    def remove(self, name: str) -> None:
        """Remove a file."""
        with named("remove", name):
            self._path(name).unlink()

    def names(self) -> list[str]:
        """The files there are."""
        return sorted(os.listdir(self.folder))

    def release(self, handles: list[int]) -> None:
        """Let things go."""
        for handle in handles:
            self._side.held(handle)
            del self._side.things[handle]

    def _linked(self, name: str) -> bytes:
        """The shared library that a C compiler of this machine makes of an uploaded archive."""
        raise ValueError(
            f"download_linked_module '{name}': a session may start no compiler; make the library"
            " where the model is compiled: export_library(path, cc='aarch64-linux-gnu-gcc')"
        )

    def _path(self, name: str) -> Path:
        """A file of the session's folder, which has no folders. Raises ValueError."""
        is_plain = name not in ("", ".", "..") and not set(name) & {"/", "\0"}
        if not is_plain or len(name.encode()) > _NAME_LIMIT:
            raise ValueError(f"session: the name of a file without folders expected, got {name!r}")
        return self.folder / name


def entry_of(module: Module) -> str:
    """The name of a module's only function, or `main`."""
    names = module.names()
    return names[0] if len(names) == 1 else "main"


def serve_session(channel: Channel, folder: Path, key: str = "") -> None:
    """Hear HELLO, answer it, and serve until the session ends."""
    far, services = FarThings(), Services(folder)
    endpoint = Endpoint(channel, services.table(), far)
    far.endpoint = services.endpoint = weakref.ref(endpoint)
    kind, body = channel.receive()
    endpoint.hear_hello(kind, body)
    endpoint.say_hello(key)
    endpoint.serve()
