"""Virtual machine with TVM's interface: inputs are set once, and outputs are returned on request.

machine = VirtualMachine(executable, ekiden.cpu())
y = machine.invoke("main", x)

machine.set_input("main", x)
machine.run()
(y,) = machine.get_outputs()
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import numpy as np

from ekiden.runtime.artifact.metadata import tensor_infos
from ekiden.runtime.binding._core import Executable, Module, Object, Tensor, cpu, tensor, wait_for
from ekiden.runtime.binding._core import VirtualMachine as Machine
from ekiden.runtime.cached_property import cached_property
from ekiden.runtime.debug.debugger import CodeLocation, Stepper
from ekiden.runtime.devices.device_constructors import check_devices
from ekiden.runtime.errors import InputError, UnsupportedError
from ekiden.runtime.executable.output_buffers import (
    direct_buffers,
    invoke_into,
    is_same_memory,
    result_sites,
)
from ekiden.runtime.executable.remote_program import RemoteExecutable, remote_executable
from ekiden.runtime.executable.vm_pool import executor_kind
from ekiden.runtime.profile.timing import BenchmarkResult, Evaluator

_NUMBER_DTYPES = {bool: "bool", int: "int32", float: "float32"}


TVM_ALLOCATORS = (None, 1, 2, "naive", "pooled")
"""TVM's names and numbers of its allocators."""


def _check_allocator(memory_cfg: object) -> None:
    kinds = memory_cfg.values() if isinstance(memory_cfg, dict) else (memory_cfg,)
    for kind in kinds:
        if kind not in TVM_ALLOCATORS:
            raise InputError(
                f"VirtualMachine: expected the allocator 'naive' or 'pooled', got {kind!r}"
            )


class VirtualMachine:
    """Virtual machine of an executable, local or in an RPC session (ekiden.rpc)."""

    def __init__(
        self,
        exe: object,
        device: object = None,
        memory_cfg: object = None,
        *,
        executor: str | None = None,
    ) -> None:
        """Create a machine.

        Args:
            exe: the executable.
            device: the device that it was compiled for, or a list of them.
            memory_cfg: TVM's choice of an allocator, "naive" or "pooled", for one device or a
                dictionary of several; it has no effect, since memory is planned at compile time.
            executor: "async" runs independent kernels concurrently, "vm" one after another; by
                default what the executable was compiled for.

        Raises:
            InputError: for another device.
            ValueError: for an unknown allocator or executor.
        """
        _check_allocator(memory_cfg)
        raw = getattr(exe, "raw", exe)
        self._inputs: dict[str, dict[int, object]] = {}
        self._outputs: object = None
        self._wanted: dict[str, Sequence[Tensor]] = {}
        self.module: Executable | RemoteExecutable
        self._machine: Machine | RemoteExecutable
        if (far := remote_executable(raw, device)) is not None:
            self.module = self._machine = far
            return
        if isinstance(raw, Module) and "get_executable" in raw:
            raw = raw["get_executable"]()
        if not isinstance(raw, Executable):
            raise TypeError(f"VirtualMachine: expected an executable, got {type(exe).__name__}")
        check_devices("VirtualMachine", device, raw.devices)
        self.module = raw
        self._machine = Machine(raw, executor or executor_kind(raw))

    def invoke(self, func_name: str, *args: object, **kwargs: object) -> object:
        """Call a function with arrays, tensors, numbers or tuples of them, by position or name."""
        if kwargs or (not args and func_name in self._inputs):
            if kwargs:
                self.set_input(func_name, *args, **kwargs)
            return self._invoke(func_name, self._collect_inputs(func_name))
        return self._invoke(func_name, [_to_argument(a) for a in args])

    def limit(self, steps: int | None = None, seconds: float | None = None) -> None:
        """Stop later calls after `steps` instructions or `seconds` with a RunLimitError; None for
        no limit. Raises ValueError for what is not positive.
        """
        self._machine.limit(steps, seconds)

    def run(self, *args: object, **kwargs: object) -> object:
        """Call `main`, with what `set_input` set where no arguments are given."""
        if args or kwargs:
            return self.invoke("main", *args, **kwargs)
        return self.invoke_stateful("main")

    def invoke_stateful(self, func_name: str, *args: object, **kwargs: object) -> object:
        """Call a function with the given arguments, or with those stored by `set_input`."""
        if args or kwargs:
            self.set_input(func_name, *args, **kwargs)
        return self._invoke(func_name, self._collect_inputs(func_name))

    def invoke_with_outputs(
        self, func_name: str, input_args: dict[str, object], output_args: Sequence[Tensor]
    ) -> None:
        """Call a function with arguments by name; its outputs are written to tensors of the caller
        (`set_outputs`).
        """
        self.set_input(func_name, **input_args)
        self.set_outputs(func_name, *output_args)
        self.invoke_stateful(func_name)

    def set_outputs(self, func_name: str, *outputs: Tensor) -> None:
        """Set the tensors that the next call of a function writes its outputs to; their number must
        match, else that call raises InputError.

        In a program without branches its kernels write there themselves, where a tensor is
        contiguous, on the host and apart from all that the call reads; elsewhere outputs are copied
        in the end.
        """
        self._wanted[func_name] = outputs

    def _invoke_into(
        self, func_name: str, destinations: Sequence[Tensor], args: Sequence[object]
    ) -> object:
        """Call a function whose outputs are written to preset tensors."""
        direct = self._direct_buffers(func_name, destinations, args)
        returned = (
            invoke_into(self._machine, direct, func_name, args)
            if isinstance(self._machine, Machine)
            else self._machine.invoke(func_name, *args)
        )
        outputs = list(returned) if isinstance(returned, tuple) else [returned]
        if len(outputs) != len(destinations):
            counts = f"{len(outputs)} outputs expected, got {len(destinations)}"
            raise InputError(f"{func_name}: {counts}")
        for index, (result, to) in enumerate(zip(outputs, destinations, strict=True)):
            if not (direct and is_same_memory(cast(Tensor, result), to)):
                cast(Tensor, result).copyto(to)  # or one of another machine, to one there
            outputs[index] = to  # which owns the memory, where `made` lies in it
        return tuple(outputs) if isinstance(returned, tuple) else outputs[0]

    def _direct_buffers(
        self, func_name: str, destinations: Sequence[Tensor], args: Sequence[object]
    ) -> Sequence[object]:
        """Return the output buffers that kernels can write directly."""
        if isinstance(self.module, RemoteExecutable) or any(
            t.device != cpu() for t in destinations
        ):
            return ()
        return direct_buffers(
            result_sites(self.module, len(destinations), func_name), destinations, args
        )

    def set_input(self, func_name: str, *args: object, **kwargs: object) -> None:
        """Set all inputs of a function, by position or name. Raises InputError."""
        inputs = {i: _to_argument(a) for i, a in enumerate(args)}
        for name, value in kwargs.items():
            inputs[self._input_index(name, func_name)] = _to_argument(value)
        self._inputs[func_name] = inputs

    def set_one_input(
        self, func_name: str, name_or_index: str | int = "", value: object = None, **named: object
    ) -> None:
        """Set one input of a function, by position, name or keyword. Raises InputError for a name
        that there is not, ValueError for more or less than one input."""
        pairs = (
            [*named.items()] if name_or_index == "" else [(name_or_index, value), *named.items()]
        )
        if len(pairs) != 1:
            raise ValueError(f"set_one_input: expected one input, got {len(pairs)}")
        name_or_index, value = pairs[0]
        is_name = isinstance(name_or_index, str)
        position = (
            self._input_index(str(name_or_index), func_name) if is_name else int(name_or_index)
        )
        self._inputs.setdefault(func_name, {})[position] = _to_argument(value)

    def get_input_index(self, input_name: str, func_name: str = "main") -> int:
        """Return the position of an input, -1 for an unknown name."""
        names = self._names(func_name)
        return names.index(input_name) if input_name in names else -1

    def get_outputs(self) -> list[object]:
        """Return the outputs of the last call as a list."""
        outputs = self._outputs
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    def benchmark(
        self,
        device: object,
        *args: object,
        func_name: str = "main",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: int | None = None,
        limit_zero_time_iterations: int = 100,
        end_to_end: bool = False,
        cooldown_interval_ms: int = 0,
        repeats_to_cooldown: int = 1,
        **kwargs: object,
    ) -> BenchmarkResult:
        """Measure a call in seconds; each repeat is the mean of `number` calls, after one warm-up
        call. A call ends when its result is computed. `end_to_end` has no effect: arguments are
        on the host.
        """
        if kwargs:
            self.set_input(func_name, *args, **kwargs)
        arguments = self._collect_inputs(func_name) if kwargs else [_to_argument(a) for a in args]
        if isinstance(self.module, RemoteExecutable):
            return self.module.benchmark(
                func_name, tuple(arguments), number=number, repeat=repeat,
                min_repeat_ms=min_repeat_ms or 0,
                limit_zero_time_iterations=limit_zero_time_iterations,
                cooldown_interval_ms=cooldown_interval_ms,
                repeats_to_cooldown=repeats_to_cooldown,
            )  # fmt: skip
        check_devices("benchmark", device, self.module.devices)

        def run(values: tuple[object, ...], count: int) -> float:
            """Return the seconds of `count` calls until their last result is computed: devices run
            asynchronously.
            """
            start = time.perf_counter()
            for _ in range(count):
                result = self._machine.invoke(func_name, *values)
            wait_for(result)
            return time.perf_counter() - start

        measure = Evaluator(
            run, None, number, repeat, min_repeat_ms or 0, limit_zero_time_iterations,
            cooldown_interval_ms, repeats_to_cooldown,
        )  # fmt: skip
        return measure(*arguments)

    @cached_property
    def stepper(self) -> Stepper:
        """Return the debugger, whose methods the next ones abbreviate. Raises UnsupportedError for
        a program on another machine.
        """
        if isinstance(self.module, RemoteExecutable):
            raise UnsupportedError("step: the program runs on another machine")
        return Stepper(self.module)

    def start(self, func_name: str = "main", *args: object) -> None:
        """Pause before the first instruction of a function; see `Stepper`."""
        self.stepper.start(func_name, *map(_to_argument, args))

    def step(self, count: int = 1) -> bool:
        """Run `count` instructions; return whether the call has ended."""
        return self.stepper.step(count)

    def resume(self) -> bool:
        """Run to the next breakpoint; return whether the call has ended."""
        return self.stepper.resume()

    def registers(self, frame: int = 0) -> list[object]:
        """Return the values in the registers of a frame; 0 is the innermost."""
        return self.stepper.registers(frame)

    def where(self) -> CodeLocation:
        """Return the next instruction."""
        return self.stepper.where()

    def set_breakpoint(
        self, function: str = "main", instruction: int | None = None, *, source: str | None = None
    ) -> list[CodeLocation]:
        """Set a breakpoint at an instruction, or at the instructions made from a model node."""
        return self.stepper.set_breakpoint(function, instruction, source=source)

    def _invoke(self, func_name: str, args: Sequence[object]) -> object:
        destinations = self._wanted.pop(func_name, None)
        self._outputs = (
            self._machine.invoke(func_name, *args)
            if destinations is None
            else self._invoke_into(func_name, destinations, args)
        )
        return self._outputs

    def _names(self, func_name: str) -> list[str]:
        if func_name == "main" and "main" in self.module.metadata:
            inputs, _ = tensor_infos(self.module.metadata, self.module.source)
            return [info.name for info in inputs]
        return self.module.params(func_name)

    def _input_index(self, name: str, func_name: str) -> int:
        names = self._names(func_name)
        if name not in names:
            raise InputError(f"{func_name}: no input is named '{name}'; there are {names}")
        return names.index(name)

    def _collect_inputs(self, func_name: str) -> list[object]:
        inputs = self._inputs.get(func_name, {})
        count = len(self._names(func_name)) or len(inputs)
        missing = [i for i in range(count) if i not in inputs]
        if missing:
            raise InputError(f"{func_name}: input {missing[0]} is not set")
        return [inputs[i] for i in range(count)]


def _to_argument(value: object) -> object:
    """Return an argument for the machine; Python numbers become int32 and float32, as in TVM."""
    if isinstance(value, (int, float)):
        return tensor(np.asarray(value, _NUMBER_DTYPES[type(value)]))
    if isinstance(value, (tuple, list)):
        return type(value)(map(_to_argument, value)) if type(value) in (tuple, list) else value
    return value if isinstance(value, Object) else tensor(value)  # type: ignore[arg-type]


__all__ = ["Executable", "VirtualMachine"]
