"""Local proxies of remote objects: functions, modules, tensors, devices and others."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ekiden.rpc.endpoint import Endpoint, Progress, Request
from ekiden.rpc.errors import FrameError, RPCError
from ekiden.rpc.messages import Kind, ValueTag
from ekiden.rpc.wire_format import MAX_TENSOR_RANK, RemoteTensorType
from ekiden.runtime import BenchmarkResult, DataType, Device, Tensor, cpu, empty, tensor
from ekiden.runtime.devices.device_constructors import RemoteDeviceBase

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Progress",
    "RemoteDevice",
    "RemoteFunction",
    "RemoteModule",
    "RemoteObject",
    "RemoteTensor",
    "SessionProxies",
]  # fmt: skip

TRANSFER_CHUNK_BYTES = 1 << 20
"""Bytes of a piece: what stays in a cache while it is copied from here to there."""
CPU_DEVICE_TYPE = 1
"""DLPack's number of processors."""
_REMOTE_TYPE_STRIDE = 128
"""Kinds of devices from here on are of other machines: no device of this one has such a number."""


class _RemoteHandle:
    """Remote handle, released when its last proxy is gone."""

    def __init__(self, endpoint: Endpoint, handle: int) -> None:
        self.endpoint, self.handle = endpoint, handle

    # A finaliser may run in the middle of another message, so the release is only queued.
    def __del__(self) -> None:
        self.endpoint.queue_release(self.handle)


class RemoteObject(_RemoteHandle):
    """Proxy of a remote object of another class, usable only as an argument."""

    type_key = "runtime.RPCObjectRef"

    def __init__(self, endpoint: Endpoint, handle: int, type_key: str) -> None:
        super().__init__(endpoint, handle)
        self.remote_type_key = type_key


class RemoteFunction(_RemoteHandle):
    """Proxy of a remote function. It takes and returns values and remote objects; local functions
    are passed as callbacks.
    """

    def __call__(self, *args: object) -> object:
        """Call the remote function."""
        return self.endpoint.request(Kind.CALL, self.handle, args)


class RemoteModule(_RemoteHandle):
    """Proxy of a remote module, with the interface of `runtime.Module`."""

    entry_name = ""
    """What functions go by that are the only one of their module, or `main`."""

    def get_function(self, name: str, query_imports: bool = True) -> RemoteFunction:
        """Return a function of the module by name. Raises AttributeError."""
        function = self.endpoint.request(Kind.FUNCTION, self.handle, name)
        if not isinstance(function, RemoteFunction):
            raise AttributeError(f"remote module: no function named {name!r}")
        return function

    def __getitem__(self, name: str) -> RemoteFunction:
        return self.get_function(name)

    def get_global_func(self, name: str) -> RemoteFunction:
        """Return a global function of the remote side by name. Raises AttributeError."""
        function = self.endpoint.request(Kind.FUNCTION, 0, name)
        if not isinstance(function, RemoteFunction):
            raise AttributeError(f"remote module: its side has no function {name!r}")
        return function

    def is_on_same_host(self, device: object) -> bool:
        """Return whether a device belongs to the module's machine."""
        return isinstance(device, RemoteDevice) and device.endpoint is self.endpoint

    def is_beside(self, device: object) -> bool:
        """Return `is_on_same_host(device)`, with a DeprecationWarning."""
        warnings.warn("is_beside is now is_on_same_host", DeprecationWarning, stacklevel=2)
        return self.is_on_same_host(device)

    def implements_function(self, name: str, query_imports: bool = True) -> bool:
        """Return whether the module has a function of this name."""
        return self.endpoint.request(Kind.FUNCTION, self.handle, name) is not None

    def import_module(self, module: RemoteModule) -> None:
        """Import another module of the same side, whose functions are then found too."""
        self.endpoint.request(Kind.IMPORT, self.handle, module.handle)

    def sent(self, given: Tensor) -> RemoteTensor:
        """Copy a local tensor to the remote host."""
        return RemoteDevice.of(self.endpoint, 0, cpu()).array(given)

    @property
    def entry_func(self) -> RemoteFunction:
        """Return the module's only function, or `main`."""
        return self[self.entry_name]

    def __call__(self, *args: object) -> object:
        """Call the module's only function, or `main`."""
        return self.entry_func(*args)

    def time_evaluator(
        self,
        func_name: str,
        dev: Device | None = None,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: int = 0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: int = 0,
        repeats_to_cooldown: int = 1,
        cache_flush_bytes: int = 0,
        f_preproc: str = "",
    ) -> Callable[..., BenchmarkResult]:
        """Return a timer like `Module.time_evaluator`'s, using the remote clock. Raises ValueError
        for invalid counts.
        """
        if number < 1 or repeat < 1 or repeats_to_cooldown < 1:
            requirement = "number, repeat and repeats_to_cooldown must be positive"
            raise ValueError(
                f"time_evaluator: {requirement}, got {number}, {repeat}, {repeats_to_cooldown}"
            )

        def measure_call(*args: object) -> BenchmarkResult:
            """Measure a call with `args`, which is transferred once; the times come as
            little-endian float64 in seconds, one for each repeat.
            """
            times = self.endpoint.request(
                Kind.TIME, self.handle, func_name, number, repeat, min_repeat_ms,
                limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown,
                cache_flush_bytes, f_preproc, args,
            )  # fmt: skip
            return BenchmarkResult(tuple(np.frombuffer(cast(bytes, times), "<f8").tolist()))

        return measure_call


class RemoteDevice(RemoteDeviceBase):
    """Device of the remote side of a session; it equals no local device."""

    endpoint: Endpoint
    remote_device: Device

    @staticmethod
    def of(endpoint: Endpoint, index: int, there: Device) -> RemoteDevice:
        """Return the proxy of a device in session number `index`."""
        proxy = RemoteDevice(_REMOTE_TYPE_STRIDE * (index + 1) + there.type, there.id)
        proxy.endpoint, proxy.remote_device = endpoint, there
        return proxy

    @property
    def exist(self) -> bool:
        """Return whether the session can use the device."""
        # Every machine has a processor: the question would cost a round trip.
        if self.remote_device.type == CPU_DEVICE_TYPE:
            return True
        try:
            return self.remote_device.id < cast(int, self._call_with_device("ek.device.count"))
        except RPCError:
            return False

    def sync(self, stream: object = None) -> None:
        """Wait for the device's pending work."""
        # Calls on the processor return when their work is done.
        if self.remote_device.type != CPU_DEVICE_TYPE:
            self._call_with_device("ek.device.sync")

    def _call_with_device(self, name: str) -> object:
        """Call a remote function with the device."""
        function = self.endpoint.request(Kind.FUNCTION, 0, name)
        assert isinstance(function, RemoteFunction)
        return function(self)

    def empty(self, shape: Sequence[int], dtype: str) -> RemoteTensor:
        """Allocate a tensor on the device. Raises ValueError for an invalid shape."""
        if len(shape) > MAX_TENSOR_RANK or any(size < 0 for size in shape):
            raise ValueError(
                f"empty: sizes from 0 on, at most {MAX_TENSOR_RANK}, expected, got {shape}"
            )
        kind = RemoteTensorType((self.remote_device, str(DataType(dtype)), tuple(shape)))
        allocated = self.endpoint.request(Kind.ALLOC, kind)
        assert isinstance(allocated, RemoteTensor)
        allocated.device = self
        return allocated

    def array(self, source: Tensor | ArrayLike, progress: Progress | None = None) -> RemoteTensor:
        """Copy a local tensor or array to the device."""
        host = source if isinstance(source, Tensor) else tensor(np.asarray(source))
        copy = self.empty(host.shape, host.dtype)
        copy.copyfrom(host, progress)
        return copy

    def __str__(self) -> str:
        return f"remote[{self.type // _REMOTE_TYPE_STRIDE - 1}]:{self.remote_device}"


class RemoteTensor(_RemoteHandle):
    """Proxy of a remote tensor, whose elements are transferred on demand."""

    device: Device

    def __init__(self, endpoint: Endpoint, handle: int, kind: RemoteTensorType) -> None:
        super().__init__(endpoint, handle)
        self.device, self.dtype, self.shape = kind
        self._kind = kind

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the size of the elements in bytes."""
        bits = DataType(self.dtype)
        count = 1
        for size in self.shape:
            count *= size
        # Elements may be narrower than a byte, so the bits are rounded up to bytes.
        return (count * bits.bits * bits.lanes + 7) // 8

    def tensor(self, progress: Progress | None = None) -> Tensor:
        """Copy the elements to a local tensor, in chunks. Raises FrameError if too few bytes
        arrive.
        """
        copy = empty(self.shape, self.dtype)
        to, step = (
            _tensor_bytes(copy).data[: self.nbytes],
            # The answer must fit this side's limit, less 64 bytes for its header.
            min(self.endpoint.channel.limit - 64, TRANSFER_CHUNK_BYTES),
        )

        def chunk_request(at: int, size: int) -> Request:
            """Return the request for a chunk of the tensor."""
            return Kind.READ, (self.handle, at, size)

        if not self.endpoint.fetch_chunks(chunk_request, to, step, progress):
            raise FrameError(f"rpc: all {len(to)} bytes of a tensor expected")
        return copy

    def numpy(self) -> NDArray[Any]:
        """Copy the elements to a local array."""
        return self.tensor().numpy()

    asnumpy = numpy

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[Any]:
        # `copy=False` forbids copies (NumPy 2), but remote memory cannot be viewed.
        if copy is False:
            raise ValueError("a tensor of another machine can only be copied")
        return np.asarray(self.numpy(), cast(Any, dtype))

    def copyfrom(
        self, source: Tensor | ArrayLike, progress: Progress | None = None
    ) -> RemoteTensor:
        """Copy the elements from a local tensor of the same shape and dtype; arrays of another
        dtype are converted. Raises ValueError.
        """
        if not isinstance(source, Tensor):
            source = tensor(np.ascontiguousarray(source, DataType(self.dtype).numpy_dtype))
        if (source.dtype, source.shape) != (self.dtype, self.shape):
            raise ValueError(
                f"copyfrom: {self.dtype}{list(self.shape)} expected,"
                f" got {source.dtype}{list(source.shape)}"
            )
        # Chunks are slices of memory, so a strided source is made contiguous first.
        data, ends = _tensor_bytes(source.contiguous()).data, deque[int]()

        def chunk_requests() -> Iterator[Request]:
            """Yield a request for each chunk, the largest that the other side accepts (64 bytes are
            reserved for the header).
            """
            step = min(self.endpoint.peer_limit - 64, TRANSFER_CHUNK_BYTES)
            for position in range(0, self.nbytes, step):
                piece = data[position : position + step]
                ends.append(position + len(piece))
                yield Kind.WRITE, (self.handle, position, piece)

        def report_progress(answer: object) -> None:
            """Report the bytes that have arrived: answers come in the order of the requests."""
            done = ends.popleft()
            if progress is not None:
                progress(done, self.nbytes)

        self.endpoint.pipeline_requests(chunk_requests(), report_progress)
        return self

    copy_from = copyfrom

    def copyto(self, target: Device | Tensor | RemoteTensor) -> Tensor | RemoteTensor:
        """Copy to a local or remote tensor, or to a new one on a device."""
        if isinstance(target, RemoteDevice):
            target = target.empty(self.shape, self.dtype)
        if isinstance(target, RemoteTensor):
            if target.endpoint is not self.endpoint:
                # Two sessions have no connection to each other, so the data passes through this
                # process.
                return target.copyfrom(self.tensor())
            self.endpoint.request(Kind.COPY, self.handle, target.handle)
            return target
        if isinstance(target, Device):
            return self.tensor().copyto(target)
        target.copyfrom(self.tensor())
        return target

    def __repr__(self) -> str:
        return f"<RemoteTensor {self.dtype}{list(self.shape)} on {self.device}>"


def _tensor_bytes(host: Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a contiguous host tensor, sharing its memory."""
    return cast(NDArray[np.uint8], host.reinterpret("uint8", (host.nbytes,)).numpy())


class SessionProxies:
    """Factory of the proxies of a session, which ends when the last of them is gone."""

    # The reference is weak: a strong one would be a cycle that keeps the session open.
    endpoint: weakref.ref[Endpoint]

    def make_proxy(self, tag: ValueTag, handle: int, about: object) -> object:
        """Return a proxy of a remote object."""
        endpoint = self.endpoint()
        assert endpoint is not None
        match tag:
            case ValueTag.FUNCTION:
                return RemoteFunction(endpoint, handle)
            case ValueTag.MODULE:
                return RemoteModule(endpoint, handle)
            case ValueTag.TENSOR:
                return RemoteTensor(endpoint, handle, cast(RemoteTensorType, about))
        return RemoteObject(endpoint, handle, str(about))

    def remote_handle(self, value: object) -> int | None:
        """Return the handle behind a proxy of this session; None for any other value. Raises
        ValueError for a proxy of another session.
        """
        if not isinstance(value, _RemoteHandle):
            return None
        # Another session numbers its own objects, so the handle would name a wrong one.
        if value.endpoint is not self.endpoint():
            raise ValueError(f"rpc: a {type(value).__name__} of another session cannot cross")
        return value.handle
