"""A driver of the kind "webgpu" over the package wgpu: a table of functions of Python, registered
as anybody may register one. Memory has addresses that nothing lies at."""

from __future__ import annotations

import bisect
import ctypes
import functools
import re
import struct
from collections.abc import Callable
from typing import Any

from ekiden import runtime

WEBGPU, CPU = 15, 1
BASE, ALIGN, LINE = 1 << 44, 256, 65535
P, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


REGISTERED: list[Driver] = []
"""The runtime keeps their tables for as long as the process."""


class Place(ctypes.Structure):
    """ek_device."""

    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class Given(ctypes.Structure):
    """ek_launch_arg."""

    _fields_ = (("memory", P), ("number", ctypes.c_int64), ("size", ctypes.c_int32))


class Launch(ctypes.Structure):
    """ek_launch."""

    _fields_ = (
        ("blocks", ctypes.c_int64 * 3),
        ("threads", ctypes.c_int64 * 3),
        ("args", ctypes.POINTER(Given)),
        ("n_args", ctypes.c_int32),
    )


F = ctypes.CFUNCTYPE
OUT = ctypes.POINTER(P)
KINDS: tuple[tuple[str, Any], ...] = (
    ("alloc", F(INT, Place, SIZE, SIZE, ctypes.c_char_p, OUT)),
    ("free", F(None, Place, P, SIZE)),
    ("copy", F(INT, P, Place, P, Place, SIZE, P)),
    ("count", F(INT, ctypes.POINTER(ctypes.c_int32))),
    *((name, P) for name in ("attribute", "stream_new", "stream_free", "synchronize", "event_new",
                             "event_wait", "event_time", "event_free")),
    ("load", F(INT, Place, ctypes.c_char_p, ctypes.c_char_p, P, SIZE, OUT)),
    ("unload", P),
    ("kernel", F(INT, Place, P, ctypes.c_char_p, OUT)),
    ("launch", F(INT, Place, P, P, ctypes.POINTER(Launch))),
)  # fmt: skip


class Table(ctypes.Structure):
    """ek_device_table."""

    _fields_ = (("name", ctypes.c_char_p), *KINDS)


class Driver:
    """The device of an adapter, its memory and its pipelines."""

    def __init__(self, device: Any) -> None:  # noqa: ANN401
        self.device, self.queue = device, device.queue
        self.library = ctypes.CDLL(str(runtime.library_path()))
        self.next = BASE
        self.starts: list[int] = []
        self.buffers: dict[int, Any] = {}
        self.modules: list[Any] = []
        self.pipelines: list[Any] = []
        self.launches = 0
        result = {n: getattr(self, n) for n, kind in KINDS if kind is not P}
        kept = {n: dict(KINDS)[n](self._safe(f)) for n, f in result.items()}
        self.table = Table(name=b"wgpu", **kept)

    def register(self) -> None:
        """Makes it the driver of "webgpu"."""
        REGISTERED.append(self)
        if self.library.ek_device_register(WEBGPU, ctypes.byref(self.table)) != 0:
            raise AssertionError("webgpu has a driver already")

    def _safe(self, function: Callable[..., None]) -> Callable[..., int]:
        @functools.wraps(function)
        def run(*args: Any) -> int:  # noqa: ANN401
            try:
                function(*args)
            except Exception as error:
                text = f"webgpu(0): {error}".encode()
                self.library.ek_error(b"DeviceError", b"%s", text)
                return -1
            return 0

        return run

    def _new(self, size: int) -> Any:  # noqa: ANN401
        import wgpu

        usage = wgpu.BufferUsage
        flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        return self.device.create_buffer(size=max(-(-size // 16) * 16, 16), usage=flags)

    def alloc(self, device: Place, size: int, _align: int, _scope: bytes, out: Any) -> None:  # noqa: ANN401
        """Memory at an address of its own."""
        if device.id != 0:
            raise ValueError(f"there is one device, got number {device.id}")
        address, self.next = self.next, self.next + -(-(size + 1) // ALIGN) * ALIGN
        self.buffers[address] = self._new(size)
        self.starts.append(address)
        out[0] = address

    def free(self, _device: Place, data: int, _size: int) -> None:
        """Takes the memory back."""
        self.buffers.pop(data).destroy()
        self.starts.remove(data)

    def at(self, address: int) -> tuple[Any, int]:
        """The memory that an address lies in, and how far."""
        start = self.starts[bisect.bisect_right(self.starts, address) - 1]
        return self.buffers[start], address - start

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the device."""
        buffer, at = self.at(address)
        low = at // 4 * 4
        whole = self.queue.read_buffer(buffer, low, -(-(at + size) // 4) * 4 - low)
        return bytes(whole)[at - low : at - low + size]

    def write(self, address: int, data: bytes) -> None:
        """Bytes to the device, whose copies are of whole words."""
        buffer, at = self.at(address)
        low, high = at // 4 * 4, -(-(at + len(data)) // 4) * 4
        if (low, high) != (at, at + len(data)):
            whole = bytearray(self.queue.read_buffer(buffer, low, high - low))
            whole[at - low : at - low + len(data)] = data
            data = bytes(whole)
        self.queue.write_buffer(buffer, low, data)

    def copy(
        self, source: int, source_device: Place, to: int, to_device: Place, size: int, _stream: int
    ) -> None:
        """Through the host, whichever way."""
        if size == 0:
            return
        is_here = source_device.type == CPU
        data = ctypes.string_at(source, size) if is_here else self.read(source, size)
        if to_device.type == CPU:
            ctypes.memmove(to, data, size)
        else:
            self.write(to, data)

    def count(self, out: Any) -> None:  # noqa: ANN401
        """One."""
        out[0] = 1

    def load(
        self,
        _device: Place,
        kind: bytes,
        name: bytes,
        code: int,
        size: int,
        out: Any,  # noqa: ANN401
    ) -> None:
        """Compiles WGSL."""
        if kind != b"webgpu":
            raise ValueError(f"WGSL expected, got {kind.decode()}")
        text = ctypes.string_at(code, size).decode()
        try:
            result = self.device.create_shader_module(code=text)
        except Exception as error:
            raise ValueError(f"kernel '{name.decode()}' is refused: {error}") from error
        read = {int(n) for n in re.findall(r"@binding\((\d+)\) var<storage, read>", text)}
        self.modules.append((result, read))
        out[0] = len(self.modules)

    def kernel(self, _device: Place, module: int, name: bytes, out: Any) -> None:  # noqa: ANN401
        """A pipeline."""
        result, read = self.modules[module - 1]
        compute = {"module": result, "entry_point": name.decode()}
        pipeline = self.device.create_compute_pipeline(layout="auto", compute=compute)
        self.pipelines.append((pipeline, read))
        out[0] = len(self.pipelines)

    def launch(self, _device: Place, _stream: int, kernel: int, launch: Any) -> None:  # noqa: ANN401
        """A line of blocks, folded; what is read of memory that is written too is a copy."""
        import wgpu

        self.launches += 1
        pipeline, read = self.pipelines[kernel - 1]
        blocks, argument = launch[0].blocks, launch[0].args[: launch[0].n_args]
        total = blocks[0] * blocks[1] * blocks[2]
        numbers, bound = list(blocks), []
        places = [self.at(g.memory) for g in argument if g.size == 0]
        written = [buffer for at, (buffer, _) in enumerate(places) if at not in read]
        if len(set(map(id, written))) != len(written):
            raise ValueError("two results of a kernel lie in one memory")
        encoder = self.device.create_command_encoder()
        for g in argument:
            if g.size:
                numbers.append(g.number)
                continue
            buffer, at = places[len(bound)]
            numbers.append(at // 4)
            if len(bound) in read and any(buffer is item for item in written):
                twin = self._new(buffer.size)
                encoder.copy_buffer_to_buffer(buffer, 0, twin, 0, buffer.size)
                buffer = twin
            bound.append(buffer)
        if any(not -(1 << 31) <= n < 1 << 31 for n in (*numbers, total)):
            raise ValueError(f"a size of more than 32 bits: {max(numbers)}")
        data = struct.pack(f"<{len(numbers)}i", *numbers)
        usage = wgpu.BufferUsage.UNIFORM
        data += bytes(-len(data) % 16)
        bound.append(self.device.create_buffer_with_data(data=data, usage=usage))
        entries = [{"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
                   for i, b in enumerate(bound)]  # fmt: skip
        layout = pipeline.get_bind_group_layout(0)
        group = self.device.create_bind_group(layout=layout, entries=entries)
        work = encoder.begin_compute_pass()
        work.set_pipeline(pipeline)
        work.set_bind_group(0, group)
        work.dispatch_workgroups(min(total, LINE), -(-total // LINE))
        work.end()
        self.queue.submit([encoder.finish()])
