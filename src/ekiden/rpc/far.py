"""Things of the other side, as they are here: functions, modules, tensors, devices, others."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ekiden.rpc.endpoint import Endpoint, Progress, Request
from ekiden.rpc.errors import FrameError, RPCError
from ekiden.rpc.messages import Kind, Tag
from ekiden.rpc.wire import MAX_RANK, TensorType
from ekiden.runtime import BenchmarkResult, DataType, Device, Tensor, cpu, empty, tensor
from ekiden.runtime.devices.named import FarDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FarThings", "Progress", "RemoteDevice", "RemoteFunction", "RemoteModule", "RemoteObject",
    "RemoteTensor",
]  # fmt: skip

PIECE = 1 << 20
"""Bytes of a piece: what stays in a cache while it is copied from here to there."""
HOST = 1
"""DLPack's number of processors."""
_FARTHEST = 128
"""Kinds of devices from here on are of other machines: no device of this one has such a number."""


class _Remote:
    """A handle of the other side; released when nobody has it any more."""

    def __init__(self, endpoint: Endpoint, handle: int) -> None:
        self.endpoint, self.handle = endpoint, handle

    def __del__(self) -> None:
        self.endpoint.drop(self.handle)


class RemoteObject(_Remote):
    """Any other thing: it can be passed back."""

    type_key = "runtime.RPCObjectRef"

    def __init__(self, endpoint: Endpoint, handle: int, type_key: str) -> None:
        super().__init__(endpoint, handle)
        self.remote_type_key = type_key


class RemoteFunction(_Remote):
    """A function of the other side. What it takes and gives are values and things of that side;
    functions of this side cross as callbacks.
    """

    def __call__(self, *args: object) -> object:
        """Call it. Raises what it raises, as an RPCError that is of that class too."""
        return self.endpoint.request(Kind.CALL, self.handle, args)


class RemoteModule(_Remote):
    """A module of the other side, with the face of `runtime.Module`."""

    entry_name = ""
    """What functions go by that are the only one of their module, or `main`."""

    def get_function(self, name: str, query_imports: bool = True) -> RemoteFunction:
        """The function of that name. Raises AttributeError."""
        found = self.endpoint.request(Kind.FUNCTION, self.handle, name)
        if not isinstance(found, RemoteFunction):
            raise AttributeError(f"remote module: no function named {name!r}")
        return found

    def __getitem__(self, name: str) -> RemoteFunction:
        return self.get_function(name)

    def get_global_func(self, name: str) -> RemoteFunction:
        """The global function of that name on the other side. Raises AttributeError."""
        found = self.endpoint.request(Kind.FUNCTION, 0, name)
        if not isinstance(found, RemoteFunction):
            raise AttributeError(f"remote module: its side has no function {name!r}")
        return found

    def is_beside(self, device: object) -> bool:
        """Whether a device is of the same machine."""
        return isinstance(device, RemoteDevice) and device.endpoint is self.endpoint

    def implements_function(self, name: str, query_imports: bool = True) -> bool:
        """Whether there is a function of that name."""
        return self.endpoint.request(Kind.FUNCTION, self.handle, name) is not None

    def import_module(self, module: RemoteModule) -> None:
        """Look for functions in another module of that side, too."""
        self.endpoint.request(Kind.IMPORT, self.handle, module.handle)

    def sent(self, given: Tensor) -> RemoteTensor:
        """A tensor on the other side's host with the elements of one here."""
        return RemoteDevice.of(self.endpoint, 0, cpu()).array(given)

    @property
    def entry_func(self) -> RemoteFunction:
        """Its only function, or `main`."""
        return self[self.entry_name]

    def __call__(self, *args: object) -> object:
        """Call its only function, or `main`."""
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
        """As `Module.time_evaluator`; the clock is that of the other side. Raises ValueError for
        numbers that it does not take."""
        if number < 1 or repeat < 1 or repeats_to_cooldown < 1:
            wanted = "number, repeat and repeats_to_cooldown must be positive"
            raise ValueError(
                f"time_evaluator: {wanted}, got {number}, {repeat}, {repeats_to_cooldown}"
            )

        def evaluate(*args: object) -> BenchmarkResult:
            """Measures one call with `args`, which crosses once; the times come as little-endian
            float64 in seconds, one for each repeat.
            """
            times = self.endpoint.request(
                Kind.TIME, self.handle, func_name, number, repeat, min_repeat_ms,
                limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown,
                cache_flush_bytes, f_preproc, args,
            )  # fmt: skip
            return BenchmarkResult(tuple(np.frombuffer(cast(bytes, times), "<f8").tolist()))

        return evaluate


class RemoteDevice(FarDevice):
    """A device of the other side of a session; no device of this machine equals it."""

    endpoint: Endpoint
    there: Device

    @staticmethod
    def of(endpoint: Endpoint, index: int, there: Device) -> RemoteDevice:
        """The device `there` of session number `index`."""
        made = RemoteDevice(_FARTHEST * (index + 1) + there.type, there.id)
        made.endpoint, made.there = endpoint, there
        return made

    @property
    def exist(self) -> bool:
        """Whether the session can use it."""
        if self.there.type == HOST:
            return True
        try:
            return self.there.id < cast(int, self._asked("ek.device.count"))
        except RPCError:
            return False

    def sync(self, stream: object = None) -> None:
        """Wait for what runs there. Calls on the host are done when they return."""
        if self.there.type != HOST:
            self._asked("ek.device.sync")

    def _asked(self, name: str) -> object:
        """What a function of the other side says of it."""
        function = self.endpoint.request(Kind.FUNCTION, 0, name)
        assert isinstance(function, RemoteFunction)
        return function(self)

    def empty(self, shape: Sequence[int], dtype: str) -> RemoteTensor:
        """A new tensor there. Raises ValueError for what is no shape."""
        if len(shape) > MAX_RANK or any(size < 0 for size in shape):
            raise ValueError(f"empty: sizes from 0 on, at most {MAX_RANK}, expected, got {shape}")
        kind = TensorType((self.there, str(DataType(dtype)), tuple(shape)))
        found = self.endpoint.request(Kind.ALLOC, kind)
        assert isinstance(found, RemoteTensor)
        found.device = self
        return found

    def array(self, source: Tensor | ArrayLike, progress: Progress | None = None) -> RemoteTensor:
        """A new tensor there with the elements of one here."""
        host = source if isinstance(source, Tensor) else tensor(np.asarray(source))
        made = self.empty(host.shape, host.dtype)
        made.copyfrom(host, progress)
        return made

    def __str__(self) -> str:
        return f"remote[{self.type // _FARTHEST - 1}]:{self.there}"


class RemoteTensor(_Remote):
    """A tensor of the other side: elements cross when they are asked for."""

    device: Device

    def __init__(self, endpoint: Endpoint, handle: int, kind: TensorType) -> None:
        super().__init__(endpoint, handle)
        self.device, self.dtype, self.shape = kind
        self._kind = kind

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        bits = DataType(self.dtype)
        count = 1
        for size in self.shape:
            count *= size
        return (count * bits.bits * bits.lanes + 7) // 8

    def tensor(self, progress: Progress | None = None) -> Tensor:
        """A tensor here with the elements, which cross in pieces. Raises FrameError when fewer
        bytes come."""
        made = empty(self.shape, self.dtype)
        to, step = _raw(made).data[: self.nbytes], min(self.endpoint.channel.limit - 64, PIECE)

        def ask(at: int, size: int) -> Request:
            return Kind.READ, (self.handle, at, size)

        if not self.endpoint.fetch(ask, to, step, progress):
            raise FrameError(f"rpc: all {len(to)} bytes of a tensor expected")
        return made

    def numpy(self) -> NDArray[Any]:
        """An array here with the elements."""
        return self.tensor().numpy()

    asnumpy = numpy

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a tensor of another machine can only be copied")
        return np.asarray(self.numpy(), cast(Any, dtype))

    def copyfrom(
        self, source: Tensor | ArrayLike, progress: Progress | None = None
    ) -> RemoteTensor:
        """Set the elements to those of a tensor here, of the same shape and dtype; arrays of
        another dtype are converted. Raises ValueError.
        """
        if not isinstance(source, Tensor):
            source = tensor(np.ascontiguousarray(source, DataType(self.dtype).numpy_dtype))
        if (source.dtype, source.shape) != (self.dtype, self.shape):
            raise ValueError(
                f"copyfrom: {self.dtype}{list(self.shape)} expected,"
                f" got {source.dtype}{list(source.shape)}"
            )
        data, ends = _raw(source.contiguous()).data, deque[int]()

        def requests() -> Iterator[Request]:
            """A request for each piece, the largest that the other side takes (64 bytes for its
            header).
            """
            step = min(self.endpoint.peer_limit - 64, PIECE)
            for at in range(0, self.nbytes, step):
                piece = data[at : at + step]
                ends.append(at + len(piece))
                yield Kind.WRITE, (self.handle, at, piece)

        def take(answer: object) -> None:
            """Reports how much has arrived: answers come in the order of the requests."""
            done = ends.popleft()
            if progress is not None:
                progress(done, self.nbytes)

        self.endpoint.exchange(requests(), take)
        return self

    copy_from = copyfrom

    def copyto(self, target: Device | Tensor | RemoteTensor) -> Tensor | RemoteTensor:
        """Copy to a tensor here or there, or to a new one on a device."""
        if isinstance(target, RemoteDevice):
            target = target.empty(self.shape, self.dtype)
        if isinstance(target, RemoteTensor):
            if target.endpoint is not self.endpoint:
                return target.copyfrom(self.tensor())
            self.endpoint.request(Kind.COPY, self.handle, target.handle)
            return target
        if isinstance(target, Device):
            return self.tensor().copyto(target)
        target.copyfrom(self.tensor())
        return target

    def __repr__(self) -> str:
        return f"<RemoteTensor {self.dtype}{list(self.shape)} on {self.device}>"


def _raw(host: Tensor) -> NDArray[np.uint8]:
    """The elements of a contiguous tensor of the host, as bytes that share its memory."""
    return cast(NDArray[np.uint8], host.reinterpret("uint8", (host.nbytes,)).numpy())


class FarThings:
    """Makes them, for a session: which ends when the last of them has gone."""

    endpoint: weakref.ref[Endpoint]

    def appear(self, tag: Tag, handle: int, about: object) -> object:
        """A thing of the other side."""
        endpoint = self.endpoint()
        assert endpoint is not None
        match tag:
            case Tag.FUNCTION:
                return RemoteFunction(endpoint, handle)
            case Tag.MODULE:
                return RemoteModule(endpoint, handle)
            case Tag.TENSOR:
                return RemoteTensor(endpoint, handle, cast(TensorType, about))
        return RemoteObject(endpoint, handle, str(about))

    def handle_of(self, thing: object) -> int | None:
        """The handle of a thing of the other side of this session. Raises ValueError for one of
        another session.
        """
        if not isinstance(thing, _Remote):
            return None
        if thing.endpoint is not self.endpoint():
            raise ValueError(f"rpc: a {type(thing).__name__} of another session cannot cross")
        return thing.handle
