"""`compile()` and `export()`: compile a model, or load it from the artifact cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.compiler.artifact import compile_artifact
from ekiden.compiler.cache.cache_keys import is_this_machine
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.registry import ModelSource, identify_model
from ekiden.ir.pass_context import INFO_LEVEL
from ekiden.runtime import Device
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
    from ekiden.codegen.parallel import ProgressCallback
    from ekiden.compiler import unranked_executable
    from ekiden.compiler.build import Model
    from ekiden.compiler.export import library
    from ekiden.frontend.common.options import Shapes
    from ekiden.runtime.artifact import container_format
    from ekiden.runtime.artifact.chunks import Bytes
    from ekiden.target import virtual_device
    from ekiden.target.virtual_device import Targets
    from ekiden.tune.records import RecordsLike
else:
    container_format = LazyModule("ekiden.runtime.artifact.container_format")
    library = LazyModule("ekiden.compiler.export.library")
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
        model: A path, bytes, an object of a framework (docs/frontends.md), a Relay function, or an
            IRModule with a function `main`.
        target: Target of the generated code; "llvm" is this machine. A list of targets generates
            variants of the code, the best first; a machine runs the first variant that it
            supports (docs/targets.md). `{cpu(0): "llvm", cpu(1): "llvm"}` or `[cpu(0), cpu(1)]`
            also chooses the devices; the first is that of operators without a device
            (docs/vm.md).
        shape: Shapes of inputs by name, which replace the declared ones; of a Relay program, they
            set only symbolic and unknown dimensions. If neither `shape` nor the model declares the
            rank of an input, the model is compiled for each rank at the first run that has it.
        example_inputs: Positional inputs with which a PyTorch module or JAX function is traced.
        example_kwargs: Keyword inputs with which it is traced.
        dynamic_shapes: Dimensions of the examples that may vary, in the form of torch.export and
            jax.export.
        signature: Name of the function to compile, for a model that has several.
        executor: "vm" interprets the bytecode; "aot" adds native code for the functions; "async"
            plans memory for kernels that run concurrently, and runs them so (docs/vm.md). Results
            and errors are the same.
        bounds: "check" compares every buffer access with the extent and raises a BoundsError that
            names kernel, buffer, index and extent. Kernels are many times slower: for debugging
            (docs/targets.md).
        num_threads: Maximum number of threads of a run; by default `runtime.num_threads`. Not part
            of the artifact.
        size: "small" stores weights in the artifact as large as in the model: those that the
            fastest kernels require in a larger form are expanded when the artifact is loaded
            (docs/using-models.md; `ekiden inspect` shows the sizes).
        denormals: "flush" makes every kernel read and write subnormal numbers as 0 in all threads
            of a run, and restores the caller's mode; "keep" computes with them, except in
            recurrent layers, whose gates decay through them (docs/targets.md).
        float_rewrites: How far rewrites of floating-point expressions may change a result: "exact"
            (equal bits), "rounded" (by the rounding of its terms), "free" (unbounded: constants may
            cancel). "" is the context's, by default "rounded"
            (scripts/generate_float_rewrites.py lists the rewrites).
        tier: "quick" returns an executable as soon as the model is typed and planned. It starts
            with general kernels, which serve all sizes; each is replaced by specialised code as
            soon as other processes have compiled it. `exe.wait()` waits for all of them,
            `exe.tiers` lists the state of each; saving and exporting wait (docs/using-models.md).
            For one target.
        progress: Callback (kernels done, total kernels, name of the last one); without it, a bar
            is shown where standard error is a terminal. The logger "ekiden" reports steps and
            times: INFO the phases, DEBUG passes and kernels.
        decisions: Overrides of kernel decisions by family, kernel or node:
            `{"dense_pack": {"rows": 6}}` (docs/kernels.md).
        records: Tuning records (a file that `ekiden tune` wrote, `tune.Records`, or a list of
            those), which choose kernels that `decisions` does not; by default those of
            EKIDEN_RECORDS, `()` for none. Records that no longer apply are named in a warning
            (docs/tuning.md).
        byoc: Engine that runs the regions of the model that it supports ("onnxruntime", "openvino",
            or a registered one); "auto" gives installed engines the regions that they run faster
            than Ekiden, as measured on this machine (docs/byoc.md).
        devices: "auto" measures the model on each device of `target`, or on all devices of this
            machine, and on the host together with each of them, and returns the fastest
            (docs/vm.md).
        timeout: Time limit in seconds; by default EKIDEN_COMPILE_TIMEOUT. The compilation ends with
            a CompileLimitError within moments, or when a step ends that waits outside of Python
            (one kernel's code, one constant).

    Pass options and instruments come from the current PassContext. A model in a file or bytes that
    was compiled before, by the same compiler with the same options, is mapped from the cache
    (EKIDEN_CACHE_LIMIT), unless instruments are active.

    Returns:
        The executable, loaded and ready to run.

    Raises:
        ImportModelError: For a model that cannot be read.
        UnsupportedError: For nodes that cannot be imported; lists all of them.
        CompileError: For a model that cannot be compiled, naming its node, and for an option that
            the model does not have or whose value is unknown.
        CompileLimitError: At the time limit.
        LoadError: If this machine cannot run the code, or has drivers but fewer devices than the
            targets require; `ekiden compile` and `export` write such an artifact.
    """
    source = identify_model(model)
    target, example_inputs = _split_positional(source, given, target, example_inputs)
    options = CompileOptions(
        target, ImportOptions(shape, example_inputs, example_kwargs, dynamic_shapes, signature),
        executor=executor, tier=tier, devices=devices, bounds=bounds, size=size,
        denormals=denormals, float_rewrites=float_rewrites, byoc=byoc, decisions=decisions,
        records=records, num_threads=num_threads, timeout_s=timeout, progress=progress,
    )  # fmt: skip
    try:
        return _compile_executable(source, options)
    except UnrankedInputError as error:

        def compile_for_ranks(shapes: Shapes) -> Executable:
            """Compile for shapes that give the ranks of all inputs."""
            inputs = replace(options.inputs, shape={**(shape or {}), **shapes})
            return _compile_executable(source, replace(options, inputs=inputs))

        return unranked_executable.UnrankedExecutable(
            error.model_inputs, error.model_outputs, compile_for_ranks
        )


def _compile_executable(source: ModelSource, options: CompileOptions) -> Executable:
    """Compile a model, or load it from the cache, and wrap the program for its user."""
    with options.context():
        _check_devices(options)
        artifact = compile_artifact(source, options)
    try:
        program = artifact.load()
        if options.num_threads is not None:
            program.num_threads = options.num_threads
        executable = Executable(program, artifact.upgrade)
        if executable.placement:
            _LOG.log(INFO_LEVEL, "compile: %s", executable.placement)
        return executable
    except BaseException:
        if artifact.upgrade is not None:
            artifact.upgrade.stop()
        raise


def _check_devices(options: CompileOptions) -> None:
    """Raise LoadError for a device of the targets that this machine lacks; with `devices`, the
    measurement reports it.
    """
    targets = options.targets
    if not options.devices and not is_this_machine(targets):
        config = virtual_device.compilation_config(targets)
        check_devices_present(entry.device for entry in config.devices)


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

    The code may be for another machine: `target="llvm -mcpu=neoverse-n1"` generates it for 64-bit
    Arm; a library then requires a C compiler for that machine, `cc`, or the package ziglang. Other
    arguments are those of `compile` and of `Executable.export_library`. An executable is written
    unchanged.

    Raises ExportError for another suffix, before anything is compiled, and what `compile` and
    `Executable.export_library` raise.
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
            data = compile_artifact(identify_model(model), compile_options).to_bytes()
        if placement := placement_summary(container_format.artifact_metadata(data)):
            _LOG.log(INFO_LEVEL, "compile: %s", placement)
    library.write_artifact(data, path, cc=cc, options=options)


def _split_positional(
    source: ModelSource,
    positional: Sequence[Targets | Sequence[object]],
    target: Targets,
    example_inputs: Sequence[object] | None,
) -> tuple[Targets, Sequence[object] | None]:
    """Split the positional arguments of a call into target and example inputs; the inputs come
    first. Raises TypeError for too many, CompileError for one input in place of a list.
    """
    remaining = list(positional)
    alone = remaining[0] if remaining and example_inputs is None else example_inputs
    if hasattr(alone, "dtype") and hasattr(alone, "shape") and source.accepts_examples:
        raise CompileError(
            "compile: example_inputs: a list or a tuple of inputs expected, got one of "
            f"{type(alone).__name__}: compile(model, (x,))"
        )
    if (
        remaining
        and example_inputs is None
        and _are_examples(remaining[0])
        and source.accepts_examples
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
