"""`compile()` and `export()`: compile a model, or load it from the artifact cache.

The compiler is imported when there is something to compile.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ekiden import runtime
from ekiden._lazy import LazyModule, load_module
from ekiden._locks import ForkSafeLock
from ekiden.compiler.cache.artifacts import ArtifactCache
from ekiden.compiler.cache.cache_keys import CacheRequest, create_cache_request, is_this_machine
from ekiden.compiler.options import DEFAULT_OPTIONS, CompileOptions
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.registry import find_frontend
from ekiden.ir.pass_context import DEBUG_LEVEL, INFO_LEVEL, time_phase
from ekiden.runtime import Device, environment
from ekiden.runtime.artifact import late_bound
from ekiden.runtime.artifact.metadata import placement_summary
from ekiden.runtime.debug.short_repr import short_repr
from ekiden.runtime.devices.device_constructors import check_devices_present
from ekiden.runtime.errors import CompileError, UnrankedInputError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.files import PathName, check_folder
from ekiden.runtime.lazy_logger import LazyLogger

_LOG = LazyLogger(__name__)

if TYPE_CHECKING:
    from ekiden import target as target_values
    from ekiden.codegen import worker_process
    from ekiden.codegen.parallel import ProgressCallback
    from ekiden.compiler import time_limit, unranked_executable
    from ekiden.compiler.build import CompiledModel, Model
    from ekiden.compiler.export import library
    from ekiden.compiler.tiered_execution import TierUpgrade
    from ekiden.frontend.common.options import Shapes
    from ekiden.runtime.artifact import container_format
    from ekiden.runtime.artifact.chunks import Bytes
    from ekiden.target import virtual_device
    from ekiden.target.virtual_device import Targets
    from ekiden.tune.records import RecordsLike
else:
    container_format = LazyModule("ekiden.runtime.artifact.container_format")
    worker_process = LazyModule("ekiden.codegen.worker_process")
    library = LazyModule("ekiden.compiler.export.library")
    time_limit = LazyModule("ekiden.compiler.time_limit")
    unranked_executable = LazyModule("ekiden.compiler.unranked_executable")
    target_values = LazyModule("ekiden.target")
    virtual_device = LazyModule("ekiden.target.virtual_device")


def compile(
    model: Model,
    *given: Targets | Sequence[object],
    target: Targets = None,
    shape: Shapes | None = None,
    example_inputs: Sequence[object] | None = None,
    example_kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    signature: str = "",
    executor: str = "vm",
    bounds: str = "",
    num_threads: int | None = None,
    size: str = "",
    denormals: str = "keep",
    float_rewrites: str = "",
    tier: str = "full",
    progress: ProgressCallback | None = None,
    decisions: Mapping[str, object] | None = None,
    records: RecordsLike = None,
    byoc: str = "",
    devices: str = "",
    timeout: float | None = None,
) -> Executable:
    """Compile a model to an executable: `compile(model)`, `compile(model, target)`,
    `compile(module, example_inputs, target)`.

    Args:
        model: a path, bytes, an object of a framework (docs/frontends.md), a function of Relay, or
            an IRModule with a function `main`.
        target: what code is made for; "llvm" is this machine. A list of targets gives variants of
            the code, the best first, of which an artifact runs the first that its machine can
            (docs/targets.md). `{cpu(0): "llvm", cpu(1): "llvm"}`, or `[cpu(0), cpu(1)]`, says on
            which devices, of which the first is for what the model does not place (docs/vm.md).
        shape: Shapes of inputs by name, which replace the declared ones; of a Relay program they
            set symbolic and unknown dimensions alone. Where neither it nor the model declares the
            rank of an input, the executable compiles the model for each rank at the first run
            that has it.
        example_inputs: what a module of PyTorch or a function of JAX is traced with, by position.
        example_kwargs: the same by name.
        dynamic_shapes: which dimensions of the examples may be others, as torch.export and
            jax.export have it.
        signature: one of the functions of a model that has several.
        executor: "vm" interprets the bytecode; "aot" adds native code of the functions; "async"
            plans memory for kernels that run at the same time, and runs them so (docs/vm.md).
            Results and errors are the same.
        bounds: "check" makes kernels compare every access of a buffer with its extent, and fail
            with a BoundsError that names kernel, buffer, index and extent: to find out what is
            wrong with one, which is many times slower then (docs/targets.md).
        num_threads: threads that a run has at most; else `runtime.num_threads` says it. No part of
            the artifact.
        size: "small" keeps weights in the artifact as large as they are in the model: of those that
            the fastest kernels take in a larger form it has what these are made of when it is
            loaded (`ekiden inspect` shows the figures, docs/using-models.md).
        denormals: "flush" makes every kernel take subnormal numbers for 0 and give 0 for them, in
            the threads that share it too, and sets back what its caller had set; "keep" keeps them
            but in recurrent layers, whose gates decay through them (docs/targets.md).
        float_rewrites: how far rewrites of floating point may change a result: "exact" (equal
            bits), "rounded" (by the rounding of its terms), "free" (without bound: constants may
            cancel); "" is the context's, "rounded" by default
            (scripts/generate_float_rewrites.py lists the rewrites).
        tier: "quick" gives an executable as soon as the model is typed and planned: kernels are
            general ones at first, which any sizes fit, and each is replaced by its own code as soon
            as that is compiled, by processes beside this one. `exe.wait()` waits for all,
            `exe.tiers` says what runs as what; saving and exporting wait (docs/using-models.md).
            For one target.
        progress: called with (kernels done, kernels in all, name of the one just done); without it
            a bar is shown where standard error is a terminal. The logger "ekiden" says what is done
            and how long it takes: INFO each part, DEBUG each pass and kernel.
        decisions: what is fixed about kernels, by family, kernel or node:
            `{"dense_pack": {"rows": 6}}` (docs/kernels.md).
        records: what tuning has found (a file that `ekiden tune` wrote, `tune.Records`, or a list
            of those), by which kernels are chosen where `decisions` say nothing; by default those
            of EKIDEN_RECORDS, `()` for none. One that does not apply any more is named in a warning
            (docs/tuning.md).
        byoc: the engine that takes what it can of the model ("onnxruntime", "openvino", or one's
            own); "auto" gives an engine that is here those regions that it runs faster than Ekiden,
            as measured on this machine (docs/byoc.md).
        devices: "auto" measures the model on each of the devices of `target`, or of all that are
            here, and over the host and each of them, with operators placed by what they cost, and
            gives the fastest (docs/vm.md).
        timeout: seconds that it may take, else `EKIDEN_COMPILE_TIMEOUT` says it: then it is stopped
            with a CompileLimitError, within moments, or when the step ends that waits outside of
            Python (one kernel's code, one constant).

    Options of passes and instruments come from the current PassContext. A model in a file or bytes
    that was compiled before, by the same compiler with the same options, is mapped from the cache
    (EKIDEN_CACHE_LIMIT), unless instruments watch.

    Raises ImportModelError, UnsupportedError or CompileError, each naming the model's node; a
    CompileError also for an option that the model does not know or that has no such value.
    LoadError where this machine cannot run the code, or has drivers and fewer devices than are
    asked for; `ekiden compile` and `export` write it all the same.
    """
    target, example_inputs = _split_positional(model, given, target, example_inputs)
    options = CompileOptions(
        target, ImportOptions(shape, example_inputs, example_kwargs, dynamic_shapes, signature),
        executor=executor, tier=tier, devices=devices, bounds=bounds, size=size,
        denormals=denormals, float_rewrites=float_rewrites, byoc=byoc, decisions=decisions,
        records=records, num_threads=num_threads, timeout_s=timeout, progress=progress,
    )  # fmt: skip
    try:
        return _compile_executable(model, options)
    except UnrankedInputError as error:

        def of_ranks(ranks: Shapes) -> Executable:
            """Compile for shapes that give the ranks of all inputs."""
            inputs = replace(options.inputs, shape={**(shape or {}), **ranks})
            return _compile_executable(model, replace(options, inputs=inputs))

        return unranked_executable.UnrankedExecutable(
            error.model_inputs, error.model_outputs, of_ranks
        )


def _compile_executable(model: Model, options: CompileOptions) -> Executable:
    """Compile a model, or load it from the cache, within the time limit."""
    upgrade: TierUpgrade | None = None
    artifact: memoryview | runtime.Executable
    with options.context():
        targets = options.targets
        # what `devices` measures says itself what is not here
        if not options.devices and not is_this_machine(targets):
            check_devices_present(
                entry.device for entry in virtual_device.compilation_config(targets).devices
            )
        if options.devices:
            artifact = time_limit.call_with_time_limit(
                options.time_limit_s, lambda: compile_fastest(model, options)
            )
        elif options.tier == "quick":
            artifact, upgrade = time_limit.call_with_time_limit(
                options.time_limit_s, lambda: _compile_quick(model, options)
            )
        else:
            artifact = compile_artifact(model, options)
    program = (
        artifact
        if isinstance(artifact, runtime.Executable)
        else container_format.load_executable(artifact)
    )
    try:
        if options.num_threads is not None:
            program.num_threads = options.num_threads
        compiled = Executable(program, upgrade)
        if compiled.placement:
            _LOG.log(INFO_LEVEL, "compile: %s", compiled.placement)
        return compiled
    except BaseException:
        if upgrade is not None:
            upgrade.stop()
        raise


def export(
    model: Model | Executable,
    path: PathName,
    target: Targets = None,
    *,
    shape: Shapes | None = None,
    example_inputs: Sequence[object] | None = None,
    example_kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    signature: str = "",
    executor: str = "vm",
    cc: str | None = None,
    options: Sequence[str] = (),
    size: str = "",
    denormals: str = "keep",
    float_rewrites: str = "",
    progress: ProgressCallback | None = None,
    records: RecordsLike = None,
) -> None:
    """Compile a model and write it in the format of the path's suffix: `.eki`, `.so`, `.o`, `.c` or
    `.tar`.

    The code need not run on this machine: `target="llvm -mcpu=neoverse-n1"` makes an artifact for
    64-bit Arm; a library for it needs a C compiler for it, `cc`, or the package ziglang. Other
    arguments are those of `compile` and of `Executable.export_library`; an executable is written
    as it is. Raises ExportError for another suffix, before anything is compiled, and what they do.
    """
    compile_options = CompileOptions(
        target, ImportOptions(shape, example_inputs, example_kwargs, dynamic_shapes, signature),
        executor=executor, size=size, denormals=denormals, float_rewrites=float_rewrites,
        records=records, progress=progress,
    )  # fmt: skip
    library.export_format_of(path)
    check_folder(path)
    if isinstance(model, Executable):
        model.wait()
        data: Bytes = late_bound.complete_artifact_bytes(model.raw)
    else:
        with compile_options.context():
            artifact = compile_artifact(model, compile_options)
        data = (
            container_format.artifact_bytes(artifact)
            if isinstance(artifact, runtime.Executable)
            else artifact
        )
        if placement := placement_summary(container_format.artifact_metadata(data)):
            _LOG.log(INFO_LEVEL, "compile: %s", placement)
    library.write_artifact(data, path, cc=cc, options=options)


def _split_positional(
    model: Model,
    positional: Sequence[Targets | Sequence[object]],
    target: Targets,
    example_inputs: Sequence[object] | None,
) -> tuple[Targets, Sequence[object] | None]:
    """Split the positional arguments of a call into target and example inputs; the inputs come
    first. Raises TypeError for too many, CompileError for one input in place of a list.
    """
    remaining = list(positional)
    alone = remaining[0] if remaining and example_inputs is None else example_inputs
    if hasattr(alone, "dtype") and hasattr(alone, "shape") and _accepts_examples(model):
        raise CompileError(
            "compile: example_inputs: a list or a tuple of inputs expected, got one of "
            f"{type(alone).__name__}: compile(model, (x,))"
        )
    if (
        remaining
        and example_inputs is None
        and _are_examples(remaining[0])
        and _accepts_examples(model)
    ):
        first = remaining.pop(0)
        assert isinstance(first, Sequence), "examples are a list or a tuple"
        example_inputs = first
    if len(remaining) > 1 or (remaining and target is not None):
        raise TypeError(
            "compile: one target expected, got "
            f"{short_repr(remaining if target is None else positional)}"
        )
    if remaining:
        target = remaining[0]
    return target, example_inputs


def _accepts_examples(model: Model) -> bool:
    """Return whether a model's shapes and dtypes may be inferred from example inputs."""
    row = find_frontend(model)
    return row is not None and "example_inputs" in row.honoured_options


def _are_examples(argument: Targets | Sequence[object]) -> bool:
    """Return whether a positional argument is a sequence of example inputs and not a target."""
    if not isinstance(argument, (list, tuple)):
        return False
    are_numbers = all(isinstance(item, (int, float)) for item in argument)
    return are_numbers or not all(map(_may_be_targets, argument))


def _may_be_targets(value: object) -> bool:
    """Return whether a value may specify targets: a target, a target with options, devices, or a
    sequence or mapping of those.
    """
    if isinstance(value, Mapping):
        return all(map(_may_be_targets, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_may_be_targets, value))
    targets = (target_values.Target, Device, target_values.VirtualDevice)
    return isinstance(value, (str, int, float, *targets, type(None)))


WORKER_PRELOAD = (
    "ekiden.backend.kernels.build",
    "ekiden.kernels.range_checks",
    "ekiden.kernels.in_place",
    "ekiden.tir.transform.pipeline",
    "ekiden.codegen.llvm.module_emitter",
    "llvmlite.binding",
    "ekiden.topi.nn.activation",
    "ekiden.topi.nn.matrix_products",
    "ekiden.tir.schedule.schedule",
)
"""Modules that worker processes import while this process reads the model, instead of at their
first kernel.
"""
RELAXED_GC_THRESHOLD = 100_000
"""Generation-0 threshold of the garbage collector while compiling; Python's default is 700."""


class _RelaxedGc:
    """Context in which garbage collection runs rarely: a model's objects stay alive, and scanning
    them takes a twentieth of the compile time (Zen 4). It is reentrant and thread-safe.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._entered_threads: list[int] = []
        """Entry count of each thread inside the context."""
        self._saved_threshold = gc.get_threshold()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset_in_child)

    def __enter__(self) -> None:
        with self._lock:
            if not self._entered_threads:
                self._saved_threshold = gc.get_threshold()
                if 0 < self._saved_threshold[0] < RELAXED_GC_THRESHOLD:
                    gc.set_threshold(RELAXED_GC_THRESHOLD, *self._saved_threshold[1:])
            self._entered_threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._entered_threads.remove(threading.get_ident())
            if not self._entered_threads:
                _promote_to_old_generation()
                gc.set_threshold(*self._saved_threshold)

    def _reset_in_child(self) -> None:
        """Reset the thread counts in a forked child, where other threads do not exist."""
        own = [
            thread_id for thread_id in self._entered_threads if thread_id == threading.get_ident()
        ]
        if self._entered_threads and not own:
            gc.set_threshold(*self._saved_threshold)
        self._entered_threads = own


_RELAXED_GC = _RelaxedGc()


_has_frozen = False
"""Whether the program has called gc.freeze; checked once, since counting frozen objects is linear.
"""


def _promote_to_old_generation() -> None:
    """Move all objects to the oldest generation, so that the next allocation does not trigger a
    full scan during the first run.
    """
    global _has_frozen
    if not gc.isenabled() or _has_frozen:
        return
    _has_frozen = gc.get_freeze_count() > 0
    if not _has_frozen:  # what a program has frozen stays so
        gc.freeze()
        gc.unfreeze()


def _import_compiler() -> Any:  # noqa: ANN401
    """Import the compiler with garbage collection disabled, which saves a tenth of the import
    time.
    """
    collects = gc.isenabled()
    with time_phase("load compiler", DEBUG_LEVEL):
        gc.disable()
        try:
            return load_module("ekiden.compiler.build")
        finally:
            if collects:
                gc.enable()
                _promote_to_old_generation()
                if _has_frozen:
                    # Of a server that froze what it had loaded before: its full collections would
                    # walk the compiler's modules, which stay, in the midst of requests.
                    gc.freeze()


def compile_artifact(
    model: Model, options: CompileOptions = DEFAULT_OPTIONS
) -> memoryview | runtime.Executable:
    """Return the artifact of a compilation: the cached executable, or bytes, which may be for
    another machine. Raises CompileLimitError after `options.time_limit_s`.
    """
    return time_limit.call_with_time_limit(
        options.time_limit_s, lambda: _compile_or_cached(model, options)
    )


def _compile_or_cached(model: Model, options: CompileOptions) -> memoryview | runtime.Executable:
    cache, cache_request, cached = _look_up_cache(model, options)
    if cached is not None:
        return cached
    started = time.perf_counter()
    return _store_artifact(cache, cache_request, _compile_model(model, options), started)


def compile_fastest(model: Model, options: CompileOptions) -> runtime.Executable:
    """Compile for the devices on which the model runs fastest, as measured on this machine."""
    auto = load_module("ekiden.compiler.auto_devices")

    def compile_for(targets: Targets) -> runtime.Executable:
        """Compile for the given targets, as one candidate."""
        # the limit of time is that of all candidates together: who called this holds it
        one = replace(options, target=targets, devices="", timeout_s=None)
        artifact = compile_artifact(model, one)
        return (
            artifact
            if isinstance(artifact, runtime.Executable)
            else container_format.load_executable(artifact)
        )

    fastest = auto.compile_fastest_plan(auto.candidate_plans(options.target, model), compile_for)
    assert isinstance(fastest, runtime.Executable)
    return fastest


def _compile_quick(
    model: Model, options: CompileOptions
) -> tuple[runtime.Executable | memoryview, TierUpgrade | None]:
    """Compile with general kernels; return the program and its tier upgrade, None if there is
    nothing to upgrade. Raises CompileError for several targets, and for one whose code this machine
    cannot run.
    """
    cache, cache_request, cached = _look_up_cache(model, options)
    if cached is not None:
        return cached, None
    target = _find_quick_target(options)
    _import_compiler()  # as a phase of its own, and without looking for garbage
    started = time.perf_counter()
    compiled = _compile_model(model, options)
    if compiled.general_program is None:
        return _store_artifact(cache, cache_request, compiled, started), None

    def store_final(final: CompiledModel) -> runtime.Executable:
        """Store the final artifact in the cache, and return the program."""
        cached_program = (
            None
            if cache_request is None
            else cache.put(cache_request, final, compiled.weight_files)
        )
        return (
            container_format.load_executable(final.to_bytes())
            if cached_program is None
            else cached_program
        )

    raw = container_format.load_executable(compiled.to_bytes(), compiled.external_constants)
    compiled.mapped_weight_files.check("compile")
    _log_artifact(len(compiled), started)
    upgrade = load_module("ekiden.compiler.tiered_execution").TierUpgrade
    return raw, upgrade(raw, compiled.general_program, target, store_final, WORKER_PRELOAD)


def _find_quick_target(options: CompileOptions) -> target_values.Target:
    """Return the target of a quick-tier compilation, which must be a single one. Raises
    CompileError for several, and for one whose code this machine cannot run.
    """
    targets = virtual_device.compilation_config(options.targets).primitive_targets
    if len(targets) != 1:
        raise CompileError(f"compile: tier 'quick' takes one target, got {len(targets)}")
    if not targets[0].code_host.serves(target_values.Target.host()):
        raise CompileError(
            f"compile: tier 'quick' answers on this machine, which cannot run code for {targets[0]}"
        )
    return targets[0]


def plan_program(model: Model, options: CompileOptions) -> runtime.Executable:
    """Compile a model with general kernels alone, for what needs no code: types, packed weights and
    the memory plan. Nothing is cached, and the program cannot run, since it has no kernels.

    Raises what `compile` raises with tier "quick".
    """
    options = replace(options, tier="quick")
    with options.context():
        _find_quick_target(options)
        compiled = _compile_model(model, options)
    return container_format.load_executable(compiled.to_bytes(), compiled.external_constants)


def _look_up_cache(
    model: Model, options: CompileOptions
) -> tuple[ArtifactCache, CacheRequest | None, runtime.Executable | None]:
    """Return the cache, the request, and the cached artifact or None."""
    shape: object = options.inputs.shape
    kind = type(shape)
    if shape is not None and not issubclass(kind, Mapping):
        wanted_shape = "a mapping of names of inputs to shapes"
        raise CompileError(f"compile: shape: expected {wanted_shape}, got {kind.__name__}")
    cache = ArtifactCache.default()
    cache_request = create_cache_request(model, options) if cache.is_enabled else None
    cached = cache.get(cache_request) if cache_request is not None else None
    if cached is not None:
        _LOG.log(INFO_LEVEL, "compile: the artifact is in the cache")
    return cache, cache_request, cached


def _compile_model(model: Model, options: CompileOptions) -> CompiledModel:
    """Run the compiler."""
    if options.tier == "full" and environment.num_compile_jobs() > 1:
        worker_process.preload_modules(WORKER_PRELOAD)
    with _RELAXED_GC:
        return cast("CompiledModel", _import_compiler().compile_model(model, options))


def _store_artifact(
    cache: ArtifactCache,
    cache_request: CacheRequest | None,
    compiled: CompiledModel,
    started: float,
) -> memoryview | runtime.Executable:
    """Store an artifact in the cache and load it from there, or return it in memory."""
    cached_artifact = (
        None if cache_request is None else cache.put(cache_request, compiled, compiled.weight_files)
    )
    artifact = compiled.to_bytes() if cached_artifact is None else cached_artifact
    _log_artifact(len(compiled), started)
    return artifact


def _log_artifact(size: int, started: float) -> None:
    took = time.perf_counter() - started
    _LOG.log(INFO_LEVEL, "compile: %.1f MB in %.2f s", size / 1e6, took)
