"""Program on another machine behind the interface of a virtual machine: its calls run there, and
their results stay there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from ekiden.runtime.binding._core import ADT, Device, Tensor, tensor
from ekiden.runtime.devices.device_constructors import RemoteDeviceBase
from ekiden.runtime.errors import InputError, UnsupportedError
from ekiden.runtime.executor.aot_executor import RemoteModule
from ekiden.runtime.profile.timing import BenchmarkResult

_MAX_ARGUMENT_NESTING = 64
"""Containers inside of each other that are looked into; messages take fewer."""


class RemoteExecutable:
    """Proxy of an executable, and of its virtual machine, on another machine."""

    metadata: Mapping[str, object] = MappingProxyType({})
    source = "program of another machine"

    def __init__(self, program: RemoteModule, device: object) -> None:
        """Wrap a remote program; `device` is one of that machine, or a list of them. Raises
        InputError for another device.
        """
        is_many = isinstance(device, (list, tuple)) and not isinstance(device, Device)
        device_list = cast(Sequence[object], device) if is_many else (device,)
        for requested in device_list:
            if requested is not None and not isinstance(requested, RemoteDeviceBase):
                raise InputError(
                    f"VirtualMachine: the program is on another machine, and {requested} is not"
                )
        self.program = program

    def params(self, name: str) -> list[str]:
        """Return the names of a function's parameters."""
        return [str(parameter) for parameter in self.program["get_input_names"](name)]

    def invoke(self, name: str, *args: object) -> object:
        """Call a function; arrays and tensors of this machine are sent."""
        return self.program[name](*map(self._to_remote, args))

    def _to_remote(self, value: object, depth: int = 0) -> object:
        """Copy the arrays and tensors in a value, at any depth of containers, to the other machine.
        One that is nested deeper than messages take is left for them to refuse.
        """
        if isinstance(value, (tuple, list)) and depth <= _MAX_ARGUMENT_NESTING:
            items = [self._to_remote(item, depth + 1) for item in value]
            if isinstance(value, ADT):
                return ADT(value.tag, items)
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict) and depth <= _MAX_ARGUMENT_NESTING:
            return {key: self._to_remote(item, depth + 1) for key, item in value.items()}
        if isinstance(value, np.ndarray):
            value = tensor(value)
        return self.program.sent(value) if isinstance(value, Tensor) else value

    def limit(self, steps: int | None = None, seconds: float | None = None) -> None:
        """Raise UnsupportedError: sessions have limits of their own."""
        raise UnsupportedError("limit: sessions have time limits: see ekiden.rpc")

    def benchmark(self, name: str, args: tuple[object, ...], **options: Any) -> BenchmarkResult:  # noqa: ANN401
        """Measure a call by the remote machine's clock, in seconds."""
        times = self.program.time_evaluator(name, **options)(*map(self._to_remote, args))
        assert isinstance(times, BenchmarkResult)
        return times


def remote_executable(module: object, device: object) -> RemoteExecutable | None:
    """Return the proxy for a module of another machine; None for anything else."""
    is_far = hasattr(module, "sent") and hasattr(module, "time_evaluator")
    return RemoteExecutable(module, device) if is_far else None  # type: ignore[arg-type]  # has both


__all__ = ["RemoteExecutable", "remote_executable"]
