"""Executable: a compiled model, ready to run. Importing this needs no compiler."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, cast, overload

import numpy as np

from ekiden import runtime
from ekiden._lazy import LazyModule, load_module
from ekiden.runtime.artifact import late_bound
from ekiden.runtime.artifact.metadata import (
    ANY_RANK_PREFIX,
    CALL_CLOSURE_FUNCTION,
    INITIAL_STATE_FUNCTION,
    OBJECT_DTYPE,
    SEQUENCE_OF_MAPS_PREFIX,
    SEQUENCE_PREFIX,
    STRING_DTYPE,
    TensorInfo,
    placement_summary,
    predicted_peak_memory,
    target_variants,
    tensor_infos,
)
from ekiden.runtime.cached_property import cached_property
from ekiden.runtime.compiler_import import compiler_module
from ekiden.runtime.devices.device_constructors import devices_without_driver
from ekiden.runtime.errors import ExportError, InputError, MissingSymbolError, RunError
from ekiden.runtime.executable.formats import ARTIFACT_SUFFIX, MODEL_FILE_KINDS
from ekiden.runtime.executable.state import make_program_state
from ekiden.runtime.executable.vm_pool import VMPool, executor_kind, submit
from ekiden.runtime.files import File, PathName, write_path_or_stream

if TYPE_CHECKING:
    import pathlib
    from concurrent.futures import Future

    from ekiden.runtime.artifact import container_format
    from ekiden.runtime.debug import disassemble
    from ekiden.runtime.executable import closures, conversions, output_buffers, outputs, pytree
    from ekiden.runtime.executable.output_buffers import OutputBuffer
    from ekiden.runtime.executable.outputs import BoundRun
    from ekiden.runtime.executable.upgrade import Upgrade
    from ekiden.runtime.profile import html
    from ekiden.runtime.profile import report as profiling
else:
    disassemble = LazyModule("ekiden.runtime.debug.disassemble")
    closures = LazyModule("ekiden.runtime.executable.closures")
    conversions = LazyModule("ekiden.runtime.executable.conversions")
    pytree = LazyModule("ekiden.runtime.executable.pytree")
    outputs = LazyModule("ekiden.runtime.executable.outputs")
    output_buffers = LazyModule("ekiden.runtime.executable.output_buffers")
    container_format = LazyModule("ekiden.runtime.artifact.container_format")
    pathlib = LazyModule("pathlib")
    html = LazyModule("ekiden.runtime.profile.html")
    profiling = LazyModule("ekiden.runtime.profile.report")


class LoadedProgram:
    """Loaded program: an executable, its machines, and the allocation sites of its results."""

    def __init__(self, raw: runtime.Executable) -> None:
        self.raw = raw
        self._sites: tuple[int | None, ...] | None = None

    @cached_property
    def vm_pool(self) -> VMPool:
        """Return the pool of virtual machines that run the program. Raises LoadError if a constant
        or library is missing.
        """
        return VMPool(self.raw, executor_kind(self.raw))

    def result_sites(self, count: int) -> tuple[int | None, ...]:
        """Return `output_buffers.result_sites` for `count` results, cached."""
        if self._sites is None:
            self._sites = output_buffers.result_sites(self.raw, count)
        return self._sites


class HotSwap:
    """Reference to the program that an executable and its sessions run now; an upgrade swaps it."""

    def __init__(self, program: LoadedProgram) -> None:
        self.program = program

    def start_upgrade(self, upgrade: Upgrade) -> None:
        """Start an upgrade and swap in its program; the upgrade stops when nothing references this
        object any more.
        """
        # The upgrade's thread must not keep an executable alive that nobody uses any more.
        weak_self = weakref.ref(self)

        def swap_in(raw: runtime.Executable) -> None:
            """Swap in the faster program if this is still referenced: the upgrade's thread must not
            keep it alive.
            """
            alive = weak_self()
            if alive is not None:
                alive._swap(raw)

        upgrade.start(swap_in)
        weakref.finalize(self, upgrade.stop)

    def _swap(self, raw: runtime.Executable) -> None:
        _copy_thread_setting(self.program.raw, raw)
        program = LoadedProgram(raw)
        program.vm_pool  # noqa: B018  # before any call needs them
        self.program = program


def _copy_thread_setting(old: runtime.Executable, new: runtime.Executable) -> None:
    """Copy the thread setting of an executable to its replacement."""
    threads = runtime.get_global_func("ek.executable.num_threads")
    if own := threads(old):
        threads(new, own)


class Executable:
    """A compiled model: call it with arrays, save it, look into it.

    Arguments are NumPy arrays, anything with DLPack, or ekiden.Tensor, and where the inputs are
    parts of arguments (`params['w']`) what holds them; the result is one Tensor, or a tuple of
    them. Any threads may call it at once: each call has a machine of its own, and they
    share the threads of the pool and what `memory_limit` allows.
    """

    def __init__(self, raw: runtime.Executable, upgrade: Upgrade | None = None) -> None:
        """Wrap a loaded executable; `upgrade` compiles the kernels that are general for now."""
        self._held = HotSwap(LoadedProgram(raw))
        self.inputs, self.outputs = tensor_infos(raw.metadata, raw.source)
        self._kept = make_program_state(
            raw.metadata, lambda: self._vm_pool.invoke(INITIAL_STATE_FUNCTION)
        )
        if self._kept is not None:
            count = len(self._kept.names)
            self.inputs, self.outputs = self.inputs[:-count], self.outputs[:-count]
        self._positions = {info.name: i for i, info in enumerate(self.inputs)}
        names = [info.name for info in self.inputs]
        has_steps = any(mark in name for name in names for mark in ".[")
        self._nesting = pytree.PytreeInputs.from_input_names(names) if has_steps else None
        self._takes_tensors = not any(
            _is_object_input(i) or i.dtype == OBJECT_DTYPE for i in self.inputs
        )
        self._gives_objects = any(_is_object_input(o) for o in self.outputs)
        self._gives_functions = any(name.startswith(CALL_CLOSURE_FUNCTION) for name in raw.globals)
        if not late_bound.unbound_constants(raw) and not devices_without_driver(raw.devices):
            # Linking starts now instead of in the first run, which would be slow.
            with suppress(MissingSymbolError):  # it may be exported, and linked there
                self._program.vm_pool  # noqa: B018  # links it now, and says what is missing
        self._upgrade = upgrade
        if upgrade is not None:
            self._held.start_upgrade(upgrade)

    @property
    def raw(self) -> runtime.Executable:
        """Return the running program; it is replaced when all kernels have their own code
        (`wait`).
        """
        return self._program.raw

    @property
    def _program(self) -> LoadedProgram:
        return self._held.program

    @property
    def _vm_pool(self) -> VMPool:
        return self._program.vm_pool

    @property
    def tiers(self) -> dict[str, str]:
        """Return for each kernel "general", if it still runs as a kernel for any sizes, or
        "compiled" for its own code.
        """
        if self._upgrade is None:
            return dict.fromkeys(self.raw.primitives, "compiled")
        return self._upgrade.tiers

    def wait(self, timeout: float | None = None) -> None:
        """Wait until every kernel has its own compiled code (`compile(..., tier="quick")`), at most
        `timeout` seconds; the executable then equals one compiled without tiers.

        Raises TimeoutError, and what compiling in the background raised: the general kernels go on
        then.
        """
        if self._upgrade is not None:
            self._upgrade.wait(timeout)

    def _await_upgrade(self) -> runtime.Executable:
        """Return the program with the code of all kernels."""
        self.wait()
        return self.raw

    def __call__(
        self, *args: object, out: object = None, timeout: object = None, **named: object
    ) -> runtime.Tensor | tuple[runtime.Tensor, ...]:
        """Run `main`. An input or output that is a sequence is a list of tensors, one that is a
        tensor of strings an array of str, a sequence of maps a list of dictionaries.

        `out` is an array or tensor where the result is to stand, and then what is given back; of
        several outputs a sequence or a mapping by name of such, None for those that are dropped.
        The last kernels write there, and nothing is copied, where it is contiguous and apart from
        the arguments; what stands there after an error is not said.

        `timeout` is in seconds: the run is stopped then, before its next kernel, with a
        RunLimitError, and the executable is as it was. Inputs of these two names come first.

        Raises InputError for a wrong name, number, dtype, rank or dimension, RunError if the run
        fails.
        """
        if timeout is not None and "timeout" in self._positions:
            named, timeout = {**named, "timeout": timeout}, None
        if out is not None:
            return self._run_into(args, named, out, timeout)
        result = self._run(self._check_arguments(args, named), timeout)
        return result  # type: ignore[return-value]  # also lists, functions and data

    def _run_into(
        self, args: tuple[object, ...], named: dict[str, object], out: object, timeout: object
    ) -> runtime.Tensor | tuple[runtime.Tensor, ...]:
        """Run a call with `out`; an input of that name takes precedence."""
        if "out" in self._positions:
            values = self._check_arguments(args, {**named, "out": out})
            return self._run(values, timeout)  # type: ignore[return-value]
        output_arrays = outputs.output_destinations(self.outputs, out)
        values = self._check_arguments(args, named)
        # One program for the whole call: an upgrade in between moves the allocation sites.
        program = self._program
        direct = self._direct_outputs(program, output_arrays, values)
        result = self._run(values, timeout, direct, program)
        return outputs.write_results(self.outputs, result, output_arrays, out)  # type: ignore[return-value]

    def _direct_outputs(
        self,
        program: LoadedProgram,
        output_arrays: Sequence[OutputBuffer | None],
        values: Sequence[object],
    ) -> list[object]:
        """Return the outputs that kernels write in place; see `VMPool.invoke`."""
        if self._kept is not None or self._gives_objects or self._gives_functions:
            return []
        return output_buffers.direct_buffers(
            program.result_sites(len(self.outputs)), output_arrays, values
        )

    def bind(self, *args: object, out: object = None, **named: object) -> BoundRun:
        """Return a run that reads the given arrays whenever it is called, and writes to `out`;
        everything is checked once. Raises InputError as a call does, and for an array that
        cannot be read in place: not contiguous or not aligned.
        """
        if self._kept is not None:
            raise InputError(
                "bind: the program keeps state between runs: call the executable instead"
            )
        read = self._check_arguments(args, named)
        values = [runtime.tensor(v) if isinstance(v, np.ndarray) else v for v in read]
        sources = self._order_inputs(args, named)
        for info, value, source in zip(self.inputs, values, sources, strict=True):
            if isinstance(value, runtime.Tensor) and not _shares_memory(value, source):
                expected = "a contiguous array, which each run can read where it stands"
                raise InputError(f"bind: input '{info.name}': expected {expected}")
        runtime.get_global_func("ek.executable.check")(self.raw, self.raw.index("main"), *values)
        output_arrays = None if out is None else outputs.output_destinations(self.outputs, out)
        planned: list[tuple[LoadedProgram, list[object]]] = []

        def call() -> object:
            """Run once; direct outputs are planned again after an upgrade, since another program
            may allocate its results elsewhere.
            """
            program = self._program
            if not planned or planned[0][0] is not program:
                direct = (
                    []
                    if output_arrays is None
                    else self._direct_outputs(program, output_arrays, values)
                )
                planned[:] = [(program, direct)]
            result = self._run(values, output_buffers=planned[0][1], program=program)
            return (
                result
                if output_arrays is None
                else outputs.write_results(self.outputs, result, output_arrays, out)
            )

        names = [info.name for info in self.inputs]
        return outputs.BoundRun(call, dict(zip(names, values, strict=True)))

    def _check_arguments(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        """Check the arguments of a run and convert them to what the virtual machine accepts."""
        ordered = self._order_inputs(args, named) if named or self._nesting is not None else args
        if len(ordered) != len(self.inputs):
            expected = f"expected {len(self.inputs)} inputs ({self._names()})"
            raise InputError(f"run: {expected}, got {len(ordered)}")
        if self._takes_tensors:
            # The fast path in C reports no input by name; the slow path below finds the wrong one.
            try:
                return runtime.run_arguments(ordered)
            except (TypeError, ValueError, RuntimeError, BufferError):
                pass  # what is wrong is said of the input below
        return [
            conversions.to_vm_argument(info, v)
            for info, v in zip(self.inputs, ordered, strict=True)
        ]

    def _run(
        self,
        values: Sequence[object],
        timeout: object = None,
        output_buffers: Sequence[object] = (),
        program: LoadedProgram | None = None,
    ) -> object:
        """Run `main` and return its result as Python values. `output_buffers` belong to
        `program`.
        """
        machines = (program or self._held.program).vm_pool
        if self._kept is None:
            result = machines.run(values, timeout, output_buffers)
        else:
            result = self._kept.run(machines.run, values, timeout)
        if type(result) is runtime.ADT and len(self.outputs) != 1:
            result = tuple(result)  # outputs; values inside them have the tag of tuples, 0
        if self._gives_objects:
            result = self._convert_outputs(result)
        if self._gives_functions:
            result = closures.wrap_closures(result, machines)
        return result

    @property
    def state(self) -> dict[str, runtime.Tensor]:
        """Return the current state that the program carries across runs, by name; most programs
        have none. Runs of a stateful program are serialised.
        """
        return {} if self._kept is None else self._kept.snapshot()

    def set_state(self, values: Mapping[str, object]) -> None:
        """Restore values that `state` returned, here or in another process."""
        if self._kept is not None:
            self._kept.restore(values)
        elif values:
            raise InputError("state: the program keeps no state between runs")

    def session(self) -> Executable:
        """Return an executable of the same program with separate state. Code, weights and machines
        are shared.
        """
        # Shares the program and its machines; only the state is its own.
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__)
        clone._kept = None if self._kept is None else self._kept.with_initial_values()
        return clone

    def reset_state(self) -> None:
        """Reset the state to the initial one."""
        if self._kept is not None:
            self._kept.reset()

    def run_async(self, *args: object, **named: object) -> Future[object]:
        """Start a run; arguments are those of a call and must not change until it has ended.

        `.result()` of what is returned waits for it, and gives or raises what the call would;
        `asyncio.wrap_future` awaits it. As many run at once as the pool has threads.
        """
        return submit(lambda: self(*args, **named))

    def _convert_outputs(self, result: object) -> object:
        """Return the outputs with sequences as lists, and strings as arrays."""
        values = result if len(self.outputs) > 1 else (result,)
        if not isinstance(values, tuple) or len(values) != len(self.outputs):
            raise RunError(f"run: {len(self.outputs)} outputs expected, as METADATA has them")
        pairs = zip(self.outputs, values, strict=True)
        converted = [conversions.from_vm_result(info, value) for info, value in pairs]
        return converted[0] if len(converted) == 1 else tuple(converted)

    def _names(self) -> str:
        return ", ".join(f"'{i.name}'" for i in self.inputs)

    def _order_inputs(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        """Order the inputs of a call; inputs that are leaves of container arguments are extracted.
        Fewer positional values than inputs are allowed.
        """
        if self._nesting is not None and self._nesting.passes_containers(args, named):
            return self._nesting.flatten(args, named)
        if not named:
            return list(args)
        values: dict[int, object] = dict(enumerate(args))
        for name, value in named.items():
            if name not in self._positions:
                raise InputError(f"run: no input is named '{name}'; there are {self._names()}")
            position = self._positions[name]
            if position in values:
                raise InputError(f"run: input '{name}' is given twice")
            values[position] = value
        missing = [i.name for position, i in enumerate(self.inputs) if position not in values]
        if missing:
            names = ", ".join(f"'{m}'" for m in missing)
            raise InputError(f"run: input {names} is missing; there are {self._names()}")
        return [values[i] for i in range(len(values))]

    def profile(self, *args: object, peak: bool = True, **named: object) -> profiling.Report:
        """Run `main` and report where the time went; arguments are those of a call.

        With `peak` the report says what share of the machine's measured limits each kernel reaches;
        measuring takes 0.3 s and the compiler, and is left out where that is missing.
        """
        arguments = self._order_inputs(args, named)
        self(*arguments)
        values = [
            conversions.to_vm_argument(info, v)
            for info, v in zip(self.inputs, arguments, strict=True)
        ]
        values += [] if self._kept is None else self._kept.snapshot().values()
        tiers = self.tiers if self._upgrade is not None else {}
        return profiling.profile(
            self.raw, "main", values, peak=_measured_peak() if peak else None, tiers=tiers
        )

    def jit(self, calls: int = 0) -> None:
        """Compile the bytecode to native code in this process, as `executor="aot"` does in the
        artifact: all functions now, or each after `calls` calls.

        Needs the compiler. Machines of this executable that run go on as they are.
        """
        compiler = compiler_module("ekiden.backend.aot.jit", "jit")
        executable = self._await_upgrade()
        if calls == 0:
            compiler.compile_functions(executable, executable.globals)
        else:
            compiler.compile_when_hot(executable, calls)

    @overload
    def save(self, path: File) -> None: ...

    @overload
    def save(self) -> tuple[bytearray, runtime.Module]: ...

    def save(self, path: File | None = None) -> tuple[bytearray, runtime.Module] | None:
        """Write one file that `ekiden.load` reads: at a path, where it appears whole or not at all,
        or into a file that is open for bytes. Raises ExportError for the suffix of another kind.

        Without a path, as in TVM: the bytecode alone and the module that has its kernels, for
        `runtime.vm.Executable.load_exec`.
        """
        if path is None:
            complete = late_bound.complete_artifact_bytes(self._await_upgrade())
            number = self.variants.index(self.target) + 1 if len(self.variants) > 1 else 0
            return bytearray(container_format.strip_kernels(complete, number)), self.module
        suffix = pathlib.Path(path).suffix if isinstance(path, (str, os.PathLike)) else ""
        if suffix in MODEL_FILE_KINDS and suffix != ARTIFACT_SUFFIX:
            kinds = (
                f"save writes an artifact (.eki); export_library writes {MODEL_FILE_KINDS[suffix]}"
            )
            raise ExportError(f"save '{path}': {kinds}")
        program = self._await_upgrade()
        write_path_or_stream(path, lambda file: late_bound.write_complete_artifact(program, file))
        return None

    def move_late_bound_consts(self, path: PathName, byte_limit: int = 0) -> None:
        """Move the constants of `byte_limit` bytes and more to a file; the executable waits for
        them, and artifacts saved from now on lack them. They can be moved once; LoadError.
        """
        runtime.save_params(path, self.get_late_bound_consts(byte_limit))

    def get_late_bound_consts(self, byte_limit: int = 0) -> dict[str, runtime.Tensor]:
        """Move the constants of `byte_limit` bytes and more out of the executable and return them
        by name.
        """
        executable = self._await_upgrade()
        raw, moved = late_bound.split_constants(executable, byte_limit)
        _copy_thread_setting(executable, raw)
        self._held = HotSwap(LoadedProgram(raw))
        return moved

    def load_late_bound_consts(self, path: PathName) -> None:
        """Bind the late-bound constants from a file, which is mapped.

        Raises LoadError where names are missing or unknown; ValueError for another shape or dtype.
        """
        self.raw.load_late_bound_consts(path)

    def load_late_bound_consts_from_map(self, constants: Mapping[str, object]) -> None:
        """Bind late-bound constants from arrays or tensors by name."""
        self.raw.load_late_bound_consts_from_map(constants)

    def export_library(
        self,
        path: PathName,
        *,
        cc: str | None = None,
        options: Sequence[str] = (),
        fcompile: object = None,
        name: str = "",
    ) -> None:
        """Write one shared library with the model and the runtime inside, for programs in any
        language; see ekiden.compiler.export.library.export_library. Needs the compiler's
        package, and raises MissingCompilerError without.
        """
        library = compiler_module("ekiden.compiler.export.library", "export_library")
        library.export_library(
            self._await_upgrade(), path, cc=cc, options=options, fcompile=fcompile, name=name
        )

    @property
    def num_threads(self) -> int:
        """Return the maximum number of threads of a run, the caller's included. Setting it raises
        ValueError for what is no number from 1 to 256.
        """
        return self.raw.num_threads

    @num_threads.setter
    def num_threads(self, number: int) -> None:
        """Return the most threads of a run, the caller's own included: `runtime.num_threads` unless
        it is set. Setting it raises ValueError for anything but a number from 1 to 256.
        """
        self.raw.num_threads = number

    @property
    def target(self) -> str:
        """Return the target of the running code."""
        return str(self.raw.metadata.get("target", ""))

    @property
    def variants(self) -> tuple[str, ...]:
        """Return the targets that the artifact has code for, best first; `target` is one
        of them.
        """
        return target_variants(self.raw.metadata)

    @property
    def placement(self) -> str:
        """Return a line with the number of kernels on each device, and why some run on the host, by
        operator; "" if the program has no device but the host.
        """
        return placement_summary(self.raw.metadata)

    @property
    def weight_bytes(self) -> tuple[int | None, int]:
        """Return the bytes of the model's weights (None if the artifact does not say) and of the
        constants in memory once it is loaded: some kernels take weights in a larger, faster
        form.
        """
        model_bytes = self.raw.metadata.get("weights")
        held = sum(c.nbytes for c in self.raw.constants if c is not None)
        return (model_bytes if isinstance(model_bytes, int) else None), held

    @property
    def stored_weight_bytes(self) -> int:
        """Return the bytes of the constants in the artifact; with `size="small"` others are derived
        from them when it is loaded.
        """
        constants = container_format.unpack_constants_section(
            container_format.artifact_bytes(self._await_upgrade())
        )
        return sum(c.nbytes for c in constants if not c.is_computed_at_load)

    @property
    def peak_memory(self) -> int | None:
        """Return the predicted peak in bytes of a run's tensors and workspaces, without inputs and
        weights; None where it depends on the run. `runtime.memory_stats` has the measured one.
        """
        return predicted_peak_memory(self.raw.metadata)

    @property
    def globals(self) -> list[str]:
        """Return the names of the functions (TVM's name, as those of the next two)."""
        return self.raw.globals

    @property
    def primitive_ops(self) -> list[str]:
        """Return the names of the primitives."""
        return self.raw.primitives

    @property
    def module(self) -> runtime.Module:
        """Return the functions and kernels of the executable as a module."""
        module = runtime.get_global_func("ek.executable.module")(self._await_upgrade())
        assert isinstance(module, runtime.Module)
        return module

    @property
    def lib(self) -> runtime.Module:
        """Return the module with the kernels."""
        return self.module

    @property
    def mod(self) -> Executable:
        """Return the executable, on which `export_library` is called as in TVM."""
        return self

    def get_function_params(self, func_name: str) -> list[str]:
        """Return the names of a function's parameters."""
        return self.raw.params(func_name)

    @property
    def constants(self) -> str:
        """Return a line for each constant: its dtype and shape."""
        numbered = enumerate(self.raw.constants)
        return "\n".join(f"Const[{i}]: {_constant_text(c)}" for i, c in numbered)

    @property
    def stats(self) -> str:
        """Return a summary as text: constants, functions and primitives by number."""
        tables = (("globals", self.globals), ("primitives", self.primitive_ops))
        lists = [
            f"{what} (#{len(names)}): " + ", ".join(f"{n}[{i}]" for i, n in enumerate(names))
            for what, names in tables
        ]
        return "\n".join([f"constants (#{len(self.raw.constants)}):", self.constants, *lists])

    @property
    def bytecode(self) -> str:
        """Return the bytecode as text."""
        return self.disassemble()

    def disassemble(self) -> str:
        """Return the bytecode as text."""
        return disassemble.disassemble(self.raw)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled and copied as its artifact; `num_threads` is no part of that."""
        return _unpickle_executable, (
            type(self),
            bytes(late_bound.complete_artifact_bytes(self._await_upgrade())),
        )

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"Executable(({inputs}) -> ({outputs}))"

    def _repr_html_(self) -> str:
        ports = [("input", i) for i in self.inputs] + [("output", o) for o in self.outputs]
        rows = [(w, i.name, i.dtype, ", ".join(map(str, i.shape))) for w, i in ports]
        shown = html.table_html(
            ("", "name", "dtype", "shape"), rows, f"Executable for {self.target}"
        )
        return shown + html.details_html("bytecode", html.preformatted_html(self.disassemble()))


@cache
def _measured_peak() -> profiling.MachinePeak | None:
    try:
        module = load_module("ekiden.compiler.machine_peak")
    except ImportError:  # a machine that only runs models
        return None
    return cast("profiling.MachinePeak", module.measure_peak())


def _is_object_input(info: TensorInfo) -> bool:
    return info.dtype == STRING_DTYPE or info.dtype.startswith(
        (SEQUENCE_PREFIX, SEQUENCE_OF_MAPS_PREFIX, ANY_RANK_PREFIX)
    )


def _constant_text(constant: runtime.Tensor | None) -> str:
    if constant is None:
        return "late-bound"
    return f"{constant.dtype}[{', '.join(map(str, constant.shape))}]"


def _shares_memory(tensor: runtime.Tensor, source: object) -> bool:
    """Return whether a tensor shares the memory of the array that it was made from."""
    return tensor.nbytes == 0 or np.may_share_memory(tensor.numpy(), np.asarray(source))


def _unpickle_executable(kind: type[Executable], data: bytes) -> Executable:
    return kind(runtime.Executable.from_bytes(data))
