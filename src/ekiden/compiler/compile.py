"""compile(): from a model to an executable, by the compiler or from the cache of artifacts.

The compiler is imported when there is something to compile.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from ekiden import runtime
from ekiden._lazy import LazyModule, load_module
from ekiden.compiler.cache.artifacts import ArtifactCache
from ekiden.compiler.cache.keys import Request, is_this_machine, request
from ekiden.frontend.common.options import NO_OPTIONS, ImportOptions
from ekiden.frontend.table import frontend_of
from ekiden.ir.pass_context import (
    DEBUG,
    DECISIONS,
    DENORMALS,
    DENORMALS_KINDS,
    ENGINE,
    FLOAT_REWRITES,
    FLOAT_REWRITES_KINDS,
    INFO,
    RECORDS,
    SIZE,
    PassContext,
    phase,
    with_options,
)
from ekiden.runtime import Device, environment
from ekiden.runtime.artifact import late_bound
from ekiden.runtime.artifact.metadata import placement_text
from ekiden.runtime.debug.shown import shown
from ekiden.runtime.devices.named import check_here
from ekiden.runtime.errors import CompileError, UnrankedInputError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.files import PathName, check_folder
from ekiden.runtime.forks import Lock
from ekiden.runtime.logs import LazyLogger

LOG = LazyLogger(__name__)

if TYPE_CHECKING:
    from ekiden import target as target_values
    from ekiden.backend.kernels.tiers import Tiers
    from ekiden.codegen import worker_process
    from ekiden.codegen.parallel import Progress
    from ekiden.compiler import time_limit, unranked
    from ekiden.compiler.build import Compiled, Model
    from ekiden.compiler.export import library
    from ekiden.compiler.tiers import Upgrade
    from ekiden.frontend.common.options import Shapes
    from ekiden.runtime.artifact import frame
    from ekiden.runtime.artifact.pieces import Bytes
    from ekiden.target import virtual_device
    from ekiden.target.virtual_device import Targets
    from ekiden.tune.records import RecordsLike
else:
    frame = LazyModule("ekiden.runtime.artifact.frame")
    worker_process = LazyModule("ekiden.codegen.worker_process")
    library = LazyModule("ekiden.compiler.export.library")
    time_limit = LazyModule("ekiden.compiler.time_limit")
    unranked = LazyModule("ekiden.compiler.unranked")
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
    progress: Progress | None = None,
    decisions: Mapping[str, object] | None = None,
    records: RecordsLike = None,
    byoc: str = "",
    devices: str = "",
    timeout: float | None = None,
) -> Executable:
    """Compile a model: a path, bytes, an object of a framework (docs/frontends.md), a function
    of Relay, or an IRModule with a function `main`: `compile(model)`, `compile(model, target)`,
    `compile(module, example_inputs)`, `compile(module, example_inputs, target)`; both by name too.

    `target` "llvm" is this machine; a list of targets gives variants of the code, the best first,
    of which an artifact runs the first that its machine can (docs/targets.md).
    `{cpu(0): "llvm", cpu(1): "llvm"}`, or `[cpu(0), cpu(1)]`, says on which devices, of which the
    first is for what the model does not place (docs/vm.md).
    `shape` replaces the declared shapes of inputs by name. Where neither it nor the model says the
    rank of an input, the executable compiles the model for each rank at the first run that has it.
    `example_inputs` are what a module of PyTorch or a function of JAX is traced with,
    `example_kwargs` such by name, and `dynamic_shapes` says which of their dimensions may be
    others, as torch.export and jax.export have it. `signature` names one of the functions of a
    model that has several. An option that a model does not know is a CompileError.
    `executor` "aot" adds native code of the functions to their bytecode, which "vm" interprets;
    "async" plans memory for kernels that run at the same time, and runs them so (docs/vm.md);
    results and errors are the same.
    `bounds` "check" makes kernels compare every access of a buffer with its extent, and fail with
    a BoundsError that names kernel, buffer, index and extent: to find out what is wrong with one,
    which is many times slower then (docs/targets.md).
    `num_threads` is how many threads a run has at most (ValueError for what is no number of them);
    else `runtime.num_threads` says it. No part of the artifact.
    `size` "small" keeps weights in the artifact as large as they are in the model: of those that
    the fastest kernels take in a larger form it has what these are made of when it is loaded
    (`ekiden inspect` shows the figures, docs/using-models.md).
    `denormals` "flush" makes every kernel take subnormal numbers for 0 and give 0 for them, in the
    threads that share it too, and sets back what its caller had set; "keep" keeps them but in
    recurrent layers, whose gates decay through them (docs/targets.md).
    `float_rewrites` is how far rewrites of floating point may change a result: "exact" (equal
    bits), "rounded" (by the rounding of its terms), "free" (without bound: constants may cancel);
    "" is the context's, "rounded" by default (docs/float-rewrites.md).
    `tier` "quick" gives an executable as soon as the model is typed and planned: kernels are
    general ones at first, which any sizes fit, and each is replaced by its own code as soon as that
    is compiled, by processes beside this one. `exe.wait()` waits for all, `exe.tiers` says what
    runs as what; saving and exporting wait (docs/using-models.md). For one target.
    `progress` is called with (kernels done, kernels in all, name of the one just done); without it
    a bar is shown where standard error is a terminal. The logger "ekiden" says what is done and how
    long it takes: INFO each part, DEBUG each pass and kernel.
    `decisions` fixes what is chosen about kernels, by family, kernel or node:
    `{"dense_pack": {"rows": 6}}` (docs/kernels.md). `records` is what tuning has found (a file that
    `ekiden tune` wrote, `tune.Records`, or a list of those), which kernels are chosen by where
    `decisions` say nothing; by default those of EKIDEN_RECORDS, `()` for none. One that does not
    apply any more is named in a warning (docs/tuning.md).
    `byoc` is the engine that takes what it can of the model ("onnxruntime", "openvino", or one's
    own); "auto" gives an engine that is here those regions that it runs faster than Ekiden, as
    measured on this machine (docs/byoc.md).
    `devices` "auto" measures the model on each of the devices of `target`, or of all that are here,
    and over the host and each of them, with operators placed by what they cost, and gives the
    fastest (docs/vm.md). Options and instruments come from the current PassContext.

    `timeout` is the most seconds that it may take, else `EKIDEN_COMPILE_TIMEOUT` says it: then it
    is stopped with a CompileLimitError, within moments, or when the step ends that waits outside
    of Python (one kernel's code, one constant).

    A model in a file or bytes that was compiled before, by the same compiler with the same options,
    is mapped from the cache (EKIDEN_CACHE_LIMIT), unless instruments watch.
    Raises ImportModelError, UnsupportedError or CompileError; each names the model's node.
    LoadError where this machine cannot run the code, or has drivers and fewer devices than are
    asked for; `ekiden compile` and `export` write it all the same.
    """
    _check_texts(
        signature=signature, executor=executor, bounds=bounds, size=size, denormals=denormals,
        tier=tier, byoc=byoc, devices=devices, float_rewrites=float_rewrites,
    )  # fmt: skip
    target, example_inputs = _placed(model, given, target, example_inputs)
    if tier not in TIERS:
        raise CompileError(f"compile: tier 'full' or 'quick' expected, got {shown(tier)}")
    if devices not in DEVICES:
        raise CompileError(f"compile: devices 'auto' or '' expected, got {shown(devices)}")
    if devices and (bounds or tier == "quick"):
        raise CompileError("compile: devices 'auto' takes neither bounds nor tier 'quick'")
    seconds = _time_limit(timeout)

    def executable(shapes: Shapes | None) -> Executable:
        """The executable for these shapes of inputs."""
        asked = ImportOptions(shapes, example_inputs, example_kwargs, dynamic_shapes, signature)
        upgrade: Upgrade | None = None
        made: memoryview | runtime.Executable
        with _chosen(size, denormals, decisions, records, byoc, float_rewrites):
            to = virtual_device.with_bounds(target, bounds) if bounds else target
            if not devices and not is_this_machine(to):  # `devices` says itself what is not here
                check_here(each.device for each in virtual_device.compilation_config(to).devices)
            if devices:
                made = time_limit.call_within(
                    seconds, lambda: compile_fastest(model, target, asked, executor, progress)
                )
            elif tier == "quick":
                made, upgrade = time_limit.call_within(
                    seconds, lambda: compile_quick(model, to, asked, executor, progress)
                )
            else:
                made = compile_artifact(model, to, asked, executor, progress, seconds)
        found = made if isinstance(made, runtime.Executable) else frame.executable_of(made)
        try:
            if num_threads is not None:
                found.num_threads = num_threads
            compiled = Executable(found, upgrade)
            if compiled.placement:
                LOG.log(INFO, "compile: %s", compiled.placement)
            return compiled
        except BaseException:
            if upgrade is not None:
                upgrade.stop()
            raise

    try:
        return executable(shape)
    except UnrankedInputError as error:
        return unranked.UnrankedExecutable(
            error.model_inputs,
            error.model_outputs,
            lambda ranks: executable({**(shape or {}), **ranks}),
        )


def _time_limit(timeout: float | None) -> float | None:
    """Return the most seconds of a compilation, None for any. Raises CompileError for what is no
    number above 0."""
    seconds = environment.compile_timeout() if timeout is None else timeout
    if seconds is None:
        return None
    given: object = seconds  # whatever the caller's types say
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not given > 0:
        raise CompileError(f"compile: timeout: seconds above 0 expected, got {seconds!r}")
    return float(seconds)


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
    progress: Progress | None = None,
    records: RecordsLike = None,
) -> None:
    """Compile a model and write it as the suffix of `path` says: `.eki`, `.so`, `.o`, `.c`, `.tar`.

    The code need not run on this machine: `target="llvm -mcpu=neoverse-n1"` makes an artifact for
    64-bit Arm; a library for it needs a C compiler for it, `cc`, or the package ziglang. Other
    arguments are those of `compile` and of `Executable.export_library`; an executable is written
    as it is. Raises ExportError for another suffix, before anything is compiled, and what they do.
    """
    _check_texts(signature=signature, executor=executor, size=size, denormals=denormals)
    library.format_of(path)
    check_folder(path)
    if isinstance(model, Executable):
        model.wait()
        data: Bytes = late_bound.whole(model.raw)
    else:
        asked = ImportOptions(shape, example_inputs, example_kwargs, dynamic_shapes, signature)
        with _chosen(size, denormals, records=records, float_rewrites=float_rewrites):
            found = compile_artifact(model, target, asked, executor, progress)
        data = frame.file_of(found) if isinstance(found, runtime.Executable) else found
        if placement := placement_text(frame.metadata_of(data)):
            LOG.log(INFO, "compile: %s", placement)
    library.write_artifact(data, path, cc=cc, options=options)


def _check_texts(**options: object) -> None:
    """Raise CompileError for an option that is no text."""
    for name, value in options.items():
        if not isinstance(value, str):
            raise CompileError(f"compile: {name}: a text expected, got {shown(value)}")


def _placed(
    model: Model,
    given: Sequence[Targets | Sequence[object]],
    target: Targets,
    example_inputs: Sequence[object] | None,
) -> tuple[Targets, Sequence[object] | None]:
    """The target and the example inputs of a call: `given` are those that stand in places, the
    inputs first. Raises TypeError for too many, CompileError for one input in place of a list.
    """
    rest = list(given)
    alone = rest[0] if rest and example_inputs is None else example_inputs
    if hasattr(alone, "dtype") and hasattr(alone, "shape") and _takes_examples(model):
        raise CompileError(
            "compile: example_inputs: a list or a tuple of inputs expected, got one of "
            f"{type(alone).__name__}: compile(model, (x,))"
        )
    if rest and example_inputs is None and _are_examples(rest[0]) and _takes_examples(model):
        first = rest.pop(0)
        assert isinstance(first, Sequence), "examples are a list or a tuple"
        example_inputs = first
    if len(rest) > 1 or (rest and target is not None):
        raise TypeError(
            f"compile: one target expected, got {shown(rest if target is None else given)}"
        )
    if rest:
        target = rest[0]
    return target, example_inputs


def _takes_examples(model: Model) -> bool:
    """Whether a model's sizes and types may be those of examples."""
    row = frontend_of(model)
    return row is not None and "example_inputs" in row.options


def _are_examples(given: Targets | Sequence[object]) -> bool:
    """Whether what stands in the place of targets is a sequence of anything else, of numbers, which
    are no targets by themselves, or of nothing.
    """
    if not isinstance(given, (list, tuple)):
        return False
    are_numbers = all(isinstance(each, (int, float)) for each in given)
    return are_numbers or not all(map(_says_targets, given))


def _says_targets(each: object) -> bool:
    """Whether it may be a target, or one with its options, or devices with theirs: a mapping that
    holds anything else is an example of a model that takes one.
    """
    if isinstance(each, Mapping):
        return all(map(_says_targets, each.values()))
    if isinstance(each, (list, tuple)):
        return all(map(_says_targets, each))
    targets = (target_values.Target, Device, target_values.VirtualDevice)
    return isinstance(each, (str, int, float, *targets, type(None)))


SIZES = ("", "small")
DEVICES = ("", "auto")
TIERS = ("full", "quick")
"""What a model is ready with: the code of its own of every kernel, or general kernels."""


def _chosen(
    size: str,
    denormals: str,
    decisions: Mapping[str, object] | None = None,
    records: RecordsLike = None,
    byoc: str = "",
    float_rewrites: str = "",
) -> AbstractContextManager[object]:
    """The current context, with the options for the size of weights and for kernels."""
    if size not in SIZES:
        raise CompileError(f"compile: size 'small' or '' expected, got {shown(size)}")
    if denormals not in DENORMALS_KINDS:
        kinds = " or ".join(map(repr, DENORMALS_KINDS))
        raise CompileError(f"compile: denormals {kinds} expected, got {shown(denormals)}")
    if float_rewrites not in ("", *FLOAT_REWRITES_KINDS):
        kinds = ", ".join(map(repr, FLOAT_REWRITES_KINDS))
        raise CompileError(
            f"compile: float_rewrites one of {kinds} expected, got {shown(float_rewrites)}"
        )
    config: dict[str, object] = {SIZE: size} if size else {}
    if float_rewrites:
        config[FLOAT_REWRITES] = float_rewrites
    if denormals != "keep":
        config[DENORMALS] = denormals
    if byoc:
        config[ENGINE] = byoc
    if decisions is not None and not isinstance(decisions, Mapping):
        raise CompileError(f"compile: decisions: a mapping expected, got {shown(decisions)}")
    if decisions:
        config[DECISIONS] = dict(decisions)
    config |= records_config(records)
    return with_options(config) if config else nullcontext()


def records_config(records: RecordsLike) -> dict[str, object]:
    """The options that records are; those of the environment where there are none given. Raises
    OSError, LoadError, InputError for what holds none."""
    if records is None:
        if RECORDS in PassContext.current().config or not (given := environment.records()):
            return {}
        records = list(given)
    reader = load_module("ekiden.tune.records")
    found = reader.records_of(records).by_sizes()
    return {RECORDS: found} if found else {}


WORKER_MODULES = (
    "ekiden.backend.kernels.build",
    "ekiden.kernels.checks",
    "ekiden.kernels.in_place",
    "ekiden.tir.transform.pipeline",
    "ekiden.codegen.llvm.emit",
    "llvmlite.binding",
    "ekiden.topi.nn.activation",
    "ekiden.topi.nn.dense",
    "ekiden.tir.schedule.schedule",
)
"""What processes that compile kernels import while this one reads the model: what each of them
would import at its first kernel otherwise."""
RARELY = 100_000
"""New objects after which garbage is looked for while compiling; Python's own number is 700."""


class _Rarely:
    """While this is entered, garbage is looked for rarely: what is made of a model stays, and to
    look through it takes a twentieth of compiling (Zen 4). Threads may enter it at the same time;
    whoever leaves it last sets back what the first found.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside: list[int] = []
        """The threads that are, each as often as it has entered."""
        self._before = gc.get_threshold()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._without_others)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = gc.get_threshold()
                if 0 < self._before[0] < RARELY:
                    gc.set_threshold(RARELY, *self._before[1:])
            self._inside.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside.remove(threading.get_ident())
            if not self._inside:
                _stays()
                gc.set_threshold(*self._before)

    def _without_others(self) -> None:
        """In the child of a fork: threads that were inside are not there to leave it."""
        own = [each for each in self._inside if each == threading.get_ident()]
        if self._inside and not own:
            gc.set_threshold(*self._before)
        self._inside = own


_RARELY = _Rarely()


_has_frozen = False
"""Whether the program was seen to freeze objects; Python counts them one by one to tell."""


def _stays() -> None:
    """Count what was made up to now as old, as if garbage had been looked for: at the next object
    Python would look through all of it, in the middle of the first answer.
    """
    global _has_frozen
    if not gc.isenabled() or _has_frozen:
        return
    _has_frozen = gc.get_freeze_count() > 0
    if not _has_frozen:  # what a program has frozen stays so
        gc.freeze()
        gc.unfreeze()


def _compiler() -> Any:  # noqa: ANN401
    """The module that compiles. Garbage is not looked for while it is imported: what modules make
    stays, and looking through it takes a tenth of the time."""
    collects = gc.isenabled()
    with phase("load compiler", DEBUG):
        gc.disable()
        try:
            return load_module("ekiden.compiler.build")
        finally:
            if collects:
                gc.enable()
                _stays()


def compile_artifact(
    model: Model,
    target: Targets,
    options: ImportOptions = NO_OPTIONS,
    executor: str = "vm",
    progress: Progress | None = None,
    seconds: float | None = None,
) -> memoryview | runtime.Executable:
    """What `compile` makes: as it was found in the cache, or the bytes of the artifact, which need
    not be for this machine. Raises CompileLimitError after `seconds`, or as many as the environment
    says.
    """
    if seconds is None:
        seconds = environment.compile_timeout()
    return time_limit.call_within(
        seconds, lambda: _artifact_of(model, target, options, executor, progress)
    )


def _artifact_of(
    model: Model,
    target: Targets,
    options: ImportOptions,
    executor: str,
    progress: Progress | None,
) -> memoryview | runtime.Executable:
    cache, wanted, found = _cached(model, target, options, executor)
    if found is not None:
        return found
    started = time.perf_counter()
    made = _compiled(model, target, options, executor, progress)
    return _kept(cache, wanted, made, started)


def compile_fastest(
    model: Model,
    target: Targets,
    options: ImportOptions,
    executor: str,
    progress: Progress | None,
) -> runtime.Executable:
    """What `compile` makes for the devices on which it runs fastest, as measured here."""
    auto = load_module("ekiden.compiler.auto_devices")

    def compiled(targets: Targets) -> runtime.Executable:
        """The executable for some targets, whose times are compared."""
        made = compile_artifact(model, targets, options, executor, progress)
        if isinstance(made, runtime.Executable):
            return made
        return frame.executable_of(made)

    found = auto.fastest(auto.candidates(target, model), compiled)
    assert isinstance(found, runtime.Executable)
    return found


def compile_quick(
    model: Model,
    target: Targets,
    options: ImportOptions,
    executor: str,
    progress: Progress | None,
) -> tuple[runtime.Executable | memoryview, Upgrade | None]:
    """What `compile` makes with general kernels, and what follows the compilation of their own
    code; None where there is none to be made. Raises CompileError for several targets, and for one
    whose code this machine cannot run."""
    cache, wanted, found = _cached(model, target, options, executor)
    if found is not None:
        return found, None
    targets = virtual_device.compilation_config(target).primitive_targets
    if len(targets) != 1:
        raise CompileError(f"compile: tier 'quick' takes one target, got {len(targets)}")
    if not targets[0].code_host.serves(target_values.Target.host()):
        raise CompileError(
            f"compile: tier 'quick' answers on this machine, which cannot run code for {targets[0]}"
        )
    _compiler()  # as a phase of its own, and without looking for garbage
    tiers = load_module("ekiden.backend.kernels.tiers").Tiers()
    started = time.perf_counter()
    made = _compiled(model, target, options, executor, progress, tiers)
    if not tiers.is_general:
        return _kept(cache, wanted, made, started), None

    def store(final: Compiled) -> runtime.Executable:
        """Return the final program, from the cache where that keeps it."""
        kept = None if wanted is None else cache.put(wanted, final, made.weight_files)
        return frame.executable_of(final.joined()) if kept is None else kept

    raw = frame.executable_of(made.joined(), made.apart)
    made.files.check("compile")
    _log_made(len(made), started)
    upgrade = load_module("ekiden.compiler.tiers").Upgrade
    return raw, upgrade(raw, tiers, targets[0], store, WORKER_MODULES)


def _cached(
    model: Model, target: Targets, options: ImportOptions, executor: str
) -> tuple[ArtifactCache, Request | None, runtime.Executable | None]:
    """The cache, what is asked of it, and what it has."""
    shape: object = options.shape
    kind = type(shape)
    if shape is not None and not issubclass(kind, Mapping):
        wanted_shape = "a mapping of names of inputs to shapes"
        raise CompileError(f"compile: shape: expected {wanted_shape}, got {kind.__name__}")
    cache = ArtifactCache.default()
    wanted = request(model, target, options, executor) if cache.is_used else None
    found = cache.get(wanted) if wanted is not None else None
    if found is not None:
        LOG.log(INFO, "compile: the artifact is in the cache")
    return cache, wanted, found


def _compiled(
    model: Model,
    target: Targets,
    options: ImportOptions,
    executor: str,
    progress: Progress | None,
    tiers: Tiers | None = None,
) -> Compiled:
    """What the compiler makes."""
    if tiers is None and environment.compile_jobs() > 1:
        worker_process.prepare(WORKER_MODULES)
    with _RARELY:
        build = _compiler()
        made = build.compile_model(model, target, options, executor, progress=progress, tiers=tiers)
    return cast("Compiled", made)


def _kept(
    cache: ArtifactCache, wanted: Request | None, made: Compiled, started: float
) -> memoryview | runtime.Executable:
    """An artifact as the cache has it from now on, or in memory."""
    found = None if wanted is None else cache.put(wanted, made, made.weight_files)
    whole = made.joined() if found is None else found
    _log_made(len(made), started)
    return whole


def _log_made(size: int, started: float) -> None:
    took = time.perf_counter() - started
    LOG.log(INFO, "compile: %.1f MB in %.2f s", size / 1e6, took)
