"""Artifacts of models: from the artifact cache, or from the compiler.

The compiler is imported when there is something to compile.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ekiden import runtime
from ekiden._lazy import LazyModule, load_module
from ekiden.compiler.cache.artifacts import CacheEntry, open_cache_entry
from ekiden.compiler.options import CompileOptions
from ekiden.compiler.relaxed_gc import RELAXED_GC, load_without_gc
from ekiden.compiler.time_limit import limit_time
from ekiden.frontend.registry import ModelSource
from ekiden.ir.pass_context import DEBUG_LEVEL, INFO_LEVEL, time_phase
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.lazy_logger import LazyLogger

_LOG = LazyLogger(__name__)

if TYPE_CHECKING:
    from ekiden import target as target_values
    from ekiden.codegen import worker_process
    from ekiden.compiler import auto_devices
    from ekiden.compiler.build import CompiledModel, GeneralProgram
    from ekiden.compiler.tiered_execution import TierUpgrade
    from ekiden.runtime.artifact import container_format
    from ekiden.runtime.artifact.chunks import Bytes
    from ekiden.target import virtual_device
    from ekiden.target.virtual_device import Targets
else:
    auto_devices = LazyModule("ekiden.compiler.auto_devices")
    container_format = LazyModule("ekiden.runtime.artifact.container_format")
    worker_process = LazyModule("ekiden.codegen.worker_process")
    target_values = LazyModule("ekiden.target")
    virtual_device = LazyModule("ekiden.target.virtual_device")


@dataclass(frozen=True, slots=True)
class Artifact:
    """Artifact of a model: its bytes, which may be for another machine, or the program, if it is
    loaded already.
    """

    contents: memoryview | runtime.Executable
    upgrade: TierUpgrade | None = None
    """Upgrade of a program with general kernels to specialised ones, which its owner must stop."""

    def load(self) -> runtime.Executable:
        """Return the program, loaded from the bytes if need be."""
        if isinstance(self.contents, runtime.Executable):
            return self.contents
        return container_format.load_executable(self.contents)

    def to_bytes(self) -> Bytes:
        """Return the bytes of the artifact."""
        if isinstance(self.contents, memoryview):
            return self.contents
        return container_format.artifact_bytes(self.contents)


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


@limit_time
def compile_artifact(source: ModelSource, options: CompileOptions) -> Artifact:
    """Return the artifact of a model from the cache, or compile it; with `options.devices`, for the
    devices on which the model runs fastest.

    Raises CompileLimitError after `options.time_limit_s`, CompileError where the targets do not
    suit tier "quick", and what compiling raises.
    """
    if options.devices:
        return _compile_fastest(source, options)
    return _load_or_compile(source, options)


def _load_or_compile(source: ModelSource, options: CompileOptions) -> Artifact:
    entry = open_cache_entry(source, options)
    cached = entry.load()
    if cached is not None:
        return Artifact(cached)
    target = _find_quick_target(options) if options.tier == "quick" else None
    started = time.perf_counter()
    compiled = _run_compiler(source, options)
    artifact = (
        _store(entry, compiled)
        if compiled.general_program is None or target is None
        else _start_upgrade(entry, compiled, compiled.general_program, target)
    )
    seconds = time.perf_counter() - started
    _LOG.log(INFO_LEVEL, "compile: %.1f MB in %.2f s", len(compiled) / 1e6, seconds)
    return artifact


def _store(entry: CacheEntry, compiled: CompiledModel) -> Artifact:
    """Store an artifact in the cache and load it from there, or return it in memory."""
    cached = entry.save(compiled, compiled.weight_files)
    return Artifact(compiled.to_bytes() if cached is None else cached)


def _start_upgrade(
    entry: CacheEntry,
    compiled: CompiledModel,
    general_program: GeneralProgram,
    target: target_values.Target,
) -> Artifact:
    """Load a program with general kernels, and start the compilation of the specialised ones, whose
    artifact is stored in the cache.
    """

    def store_final(final: CompiledModel) -> runtime.Executable:
        """Store the final artifact, and return its program."""
        cached = entry.save(final, compiled.weight_files)
        return container_format.load_executable(final.to_bytes()) if cached is None else cached

    program = container_format.load_executable(compiled.to_bytes(), compiled.external_constants)
    compiled.mapped_weight_files.check_unchanged("compile")
    tier_upgrade = load_module("ekiden.compiler.tiered_execution").TierUpgrade
    return Artifact(
        program, tier_upgrade(program, general_program, target, store_final, WORKER_PRELOAD)
    )


def _compile_fastest(source: ModelSource, options: CompileOptions) -> Artifact:
    """Compile for the devices on which the model runs fastest, as measured on this machine."""

    def compile_for(targets: Targets) -> runtime.Executable:
        """Compile for the targets of one candidate; the time limit is that of all together."""
        return _load_or_compile(source, replace(options, target=targets, devices="")).load()

    plans = auto_devices.candidate_plans(options.target, source.model)
    return Artifact(auto_devices.compile_fastest_plan(plans, compile_for))


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


def plan_program(source: ModelSource, options: CompileOptions) -> runtime.Executable:
    """Compile a model with general kernels alone, for what needs no code: types, packed weights and
    the memory plan. Nothing is cached, and the program cannot run, since it has no kernels.

    Raises what `compile` raises with tier "quick".
    """
    options = replace(options, tier="quick")
    with options.context():
        _find_quick_target(options)
        compiled = _run_compiler(source, options)
    return container_format.load_executable(compiled.to_bytes(), compiled.external_constants)


def _run_compiler(source: ModelSource, options: CompileOptions) -> CompiledModel:
    with time_phase("load compiler", DEBUG_LEVEL):
        compiler = load_without_gc("ekiden.compiler.build")
    if options.tier == "full" and environment.num_compile_jobs() > 1:
        worker_process.preload_modules(WORKER_PRELOAD)
    with RELAXED_GC:
        compiled: CompiledModel = compiler.compile_model(source, options)
        return compiled
