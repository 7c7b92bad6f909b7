"""Compilation of a module's kernels, once per distinct function, in worker processes, through the
disk cache.

The key of a kernel (codegen/cache.py) says its canonical function, the target, and what decisions
are fixed; the compiler's own sources are part of it, so that no kernel is of another version.
Processes and not threads, as lowering is Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from ekiden.backend.kernels.canonical_form import canonicalize
from ekiden.backend.kernels.kernel_facts import (
    deserialize_entry,
    kernel_facts,
    rename_facts,
    serialize_entry,
)
from ekiden.backend.kernels.lower import (
    Overrides,
    decision_names,
    describe_kernel_name,
    lower_primitive,
    operator_calls,
)
from ekiden.backend.kernels.size_ranges import SizeRange, dispatch_on_size, tuned_size_ranges
from ekiden.backend.kernels.tiered_compilation import (
    FullTierRequest,
    QuickTierCode,
    compile_full_tier,
    compile_quick_tier,
    general_shape_forms,
)
from ekiden.backend.kernels.tuning_records import TuningRecords
from ekiden.codegen import llvm
from ekiden.codegen.build import (
    CODE_GENERATORS,
    CompiledKernel,
    compile_function,
    compile_lowered,
    deserialize_kernel,
    serialize_kernel,
)
from ekiden.codegen.cache import KernelCache, kernel_key, text_key
from ekiden.codegen.common import FLUSH_SUBNORMALS_ATTR
from ekiden.codegen.parallel import LOCAL_COMPILE_LOCK, CompileTask, ProgressCallback, compile_tasks
from ekiden.ir.intrinsic_rules import lowering_rules
from ekiden.ir.op import Op
from ekiden.ir.pass_context import (
    DEBUG_LEVEL,
    DENORMALS_KINDS,
    DENORMALS_OPTION,
    PassContext,
    time_phase,
)
from ekiden.ir.prim import PrimExpr, const
from ekiden.ir.prim import Var as PrimVar
from ekiden.ir.user_extensions import PROCESS_CACHE_SALT
from ekiden.kernels.families import FAMILIES, override_options
from ekiden.relay.expr import Function
from ekiden.relay.op.strategy import version_of
from ekiden.relay.transform.memory.manifest_alloc import flatten_tensor_types
from ekiden.relay.transform.memory_plan import KernelMemoryInfo
from ekiden.runtime.artifact.device_code import DeviceKernel
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir import transform as tir_transform
from ekiden.tir.stmt import PrimFunc


@dataclass(frozen=True, slots=True)
class CompiledKernels:
    """Compiled kernels with the name, canonical form and facts of each requested function, and the
    object files that export them.
    """

    names: list[str]
    forms: list[Function] = field(compare=False)
    facts: list[KernelMemoryInfo]
    objects: list[bytes]
    exports: list[str]
    device_kernels: list[DeviceKernel] = field(default_factory=list)
    """Device kernels that the host code launches."""
    code_by_key: Mapping[str, bytes] = field(default_factory=dict)
    """Compiled code by key, reused when the general kernels are compiled later."""
    general_forms: Mapping[str, bytes] = field(default_factory=dict)
    """General forms by name in the quick tier, which are in no object."""

    def with_shape_kernels(self, programs: Sequence[PrimFunc], target: Target) -> CompiledKernels:
        """Return these kernels together with the shape kernels `programs`, compiled to one object;
        a shape kernel that has a general form is left out where these have general ones.
        """
        forms = general_shape_forms(programs, target) if self.general_forms else {}
        general = {**self.general_forms, **forms}
        programs = [f for f in programs if f.name not in forms]
        if not programs:
            return replace(self, general_forms=general)
        code = _compile_host_programs(programs, target.code_host)
        exports = [*self.exports, *(f.name for f in programs)]
        return replace(self, objects=[*self.objects, code], exports=exports, general_forms=general)

    @time_phase("link")
    def link(
        self, target: Target, objects: Sequence[bytes] = (), exports: Sequence[str] = ()
    ) -> bytes:
        """Link the kernels and other objects, which may call them, into one image; return b""
        without any.
        """
        all_objects = [*self.objects, *objects]
        return (
            llvm.link_image(all_objects, [*self.exports, *exports], target) if all_objects else b""
        )


def _compile_host_programs(programs: Sequence[PrimFunc], target: Target) -> bytes:
    """Compile small host programs to object code through the cache, so that a process whose kernels
    are all cached never loads LLVM (69 MB). The cache key is the emitted text, which contains all
    names that messages show.
    """
    generator, cache = CODE_GENERATORS[target.kind.name], KernelCache.default()
    emitted = next(iter(generator.sources(target).values()))
    # Lowering runs in this process; a background compilation may be in here at the same time.
    with LOCAL_COMPILE_LOCK:
        lowered = [tir_transform.lower(f, target) for f in programs]
        # Keyed by the emitted text, because shape kernels have no canonical Relay function.
        key = text_key(emitted(lowered, target), target, generator.version())
        code = None if PassContext.current().compiles_cached else cache.get(key)
        if code is None:
            code = compile_lowered(lowered, target, "sizes")
            cache.put(key, code)
    return code


def flushes_denormals(target: Target) -> bool:
    """Return whether all kernels must flush subnormal numbers to zero. Raises CompileError for an
    unknown option, and for a target that cannot.
    """
    option = PassContext.current().option(DENORMALS_OPTION)
    if option not in DENORMALS_KINDS:
        kinds = " or ".join(map(repr, DENORMALS_KINDS))
        raise CompileError(f"compile: denormals {kinds} expected, got {option!r}")
    if option == "flush" and not target.has("flush_subnormals"):
        machine = f"a processor of {target.architecture} has no mode for it"
        raise CompileError(f"compile: denormals 'flush': {machine}; target: {target}")
    return option == "flush"


def _compile_kernel(
    function: Function, name: str, target: Target, ranges: Sequence[SizeRange],
    attrs: Mapping[str, object],
) -> bytes:  # fmt: skip
    """Return the facts and object code of a canonical function with additional attributes."""

    def schedule_kernel(overrides: Overrides) -> PrimFunc:
        """Schedule the loop program, whose arguments alias only as tir.in_place states."""
        with time_phase("schedule", DEBUG_LEVEL):
            func = lower_primitive(function, name, target, overrides)
        # the VM gives results memory that no argument has but those of tir.in_place
        return func.with_fields(attrs={**(func.attrs or {}), "tir.noalias": True, **attrs})

    try:
        if len(ranges) == 1:
            code = compile_function(schedule_kernel(ranges[0].overrides), target)
        else:
            lowered = dispatch_on_size(
                ranges, lambda overrides: tir_transform.lower(schedule_kernel(overrides), target)
            )
            code = CompiledKernel(lowered, compile_lowered([lowered], target))
        return serialize_entry(kernel_facts(code.lowered, target), serialize_kernel(code))
    except Exception as error:
        # The innermost context names the kernel best; outer ones add nothing.
        if not getattr(error, "__notes__", None):
            error.add_note(f"while compiling {describe_kernel_name(function, name)}")
        raise


def _schedule_ranges(
    form: Function, decisions: Overrides, recorded: TuningRecords
) -> list[SizeRange]:
    """Return the schedule overrides of a kernel for ranges of its sizes: tuning records, and beyond
    their ranges the user's. A device has one kernel for all sizes, that of the first range.
    """
    names = decision_names(form)
    overrides = {n: fixed for n, fixed in decisions.items() if n in names or n in FAMILIES}
    recorded_ranges = [
        (
            points,
            {**overrides, family: {**fixed, **overrides.get(family, {})}} if family else overrides,
        )
        for points, family, fixed in recorded.applicable_decisions(form)
    ]
    if not recorded_ranges:
        return [SizeRange(None, overrides)]
    # Dispatch on sizes is host code; a device kernel keeps one schedule.
    if recorded.target.kind.has_threads:
        return [SizeRange(None, recorded_ranges[0][1])]
    return tuned_size_ranges(recorded_ranges)


def _compile_task(
    function: Function, target: Target, ranges: Sequence[SizeRange], attrs: Mapping[str, object]
) -> CompileTask:
    names = decision_names(function)
    extra = [
        json.dumps([r.upper, {n: dict(f) for n, f in r.overrides.items()}], sort_keys=True)
        for r in ranges
        if r.overrides or len(ranges) > 1
    ]
    extra += sorted(attrs)
    # User implementations are not part of the function's digest: two processes may register
    # different ones.
    extra += _user_implementation_key(function)
    key = kernel_key(function, target, CODE_GENERATORS[target.kind.name].version(), *extra)
    name = f"{names[0]}_{key[:12]}"
    arguments = (function, name, target, tuple(ranges), dict(attrs))
    # Worker processes know neither of the user's implementations nor of the user's lowering rules.
    is_local = bool(_user_implementation_key(function) or lowering_rules(target.kind.name))
    return CompileTask(key, name, _compile_kernel, arguments, is_local=is_local)


def _user_implementation_key(function: Function) -> tuple[str, ...]:
    """Return the cache-key component of kernels with user implementations: a salt of this process,
    as registrations do not outlive it.
    """
    names = {c.op.name for c in operator_calls(function) if isinstance(c.op, Op)}
    versions = {name: version_of(name) for name in sorted(names)}
    present_versions = {name: version for name, version in versions.items() if version is not None}
    return (f"{PROCESS_CACHE_SALT}:{present_versions}",) if present_versions else ()


GENERAL_KERNEL_FACTS = KernelMemoryInfo(const(0))
"""Facts of a kernel in general form: its compiled code allocates its own workspace."""


def check_decisions(functions: Sequence[Function], decisions: Overrides) -> None:
    """Raise CompileError for a decision about an unknown family or kernel."""
    if set(decisions) <= set(FAMILIES):
        return
    kernel_names = {name: None for function in functions for name in decision_names(function)}
    for name in decisions:
        if name not in FAMILIES and name not in kernel_names:
            kernels = f"{', '.join(kernel_names)}; families: {', '.join(FAMILIES)}"
            raise CompileError(f"decisions: no kernel is called '{name}'; there are: {kernels}")


@time_phase("kernels")
def build_kernels(
    functions: Sequence[Function],
    target: Target | Sequence[Target],
    progress: ProgressCallback | None = None,
    cache: KernelCache | None = None,
    tier: str = "full",
    finishing: FullTierRequest | None = None,
) -> CompiledKernels:
    """Compile primitive functions for a target, or each for its own. Equal functions share a
    kernel. Of tier "quick" some may be general for now: they are in no object; `finishing` then
    asks for the code of these.

    Raises CompileError with the model node of the function that failed, or for a decision or
    another option of the current PassContext that cannot be.
    """
    decisions = override_options()
    check_decisions(functions, decisions)
    with time_phase("kernel keys", DEBUG_LEVEL):
        forms = [canonicalize(function) for function in functions]
    targets = [target] * len(forms) if isinstance(target, Target) else list(target)
    attrs = {
        unique_target: {FLUSH_SUBNORMALS_ATTR: 1} if flushes_denormals(unique_target) else {}
        for unique_target in dict.fromkeys(targets)
    }
    recorded = {request_target: TuningRecords.current(request_target) for request_target in attrs}
    tasks = [
        _compile_task(
            f, key_target, _schedule_ranges(f, decisions, recorded[key_target]), attrs[key_target]
        )
        for f, key_target in zip(forms, targets, strict=True)
    ]
    for kernel_target, records in recorded.items():
        records.report(
            len({t.key for t, own in zip(tasks, targets, strict=True) if own == kernel_target})
        )
    cache = cache or KernelCache.default()
    if finishing is not None:
        tiered = QuickTierCode(compile_full_tier(finishing, tasks, forms, cache), {})
    elif tier == "quick":
        tiered = compile_quick_tier(tasks, forms, targets, cache, progress)
    else:
        tiered = QuickTierCode(compile_tasks(tasks, cache, progress), {})
    compiled = {key: deserialize_entry(code) for key, code in tiered.code.items()}
    facts = [
        rename_facts(compiled[task.key][0], _bind_symbols(form, function))
        if task.key in compiled
        else GENERAL_KERNEL_FACTS
        for task, form, function in zip(tasks, forms, functions, strict=True)
    ]
    exports = list({t.key: t.name for t in tasks if t.key in compiled}.values())
    codes = [deserialize_kernel(code) for _, code in compiled.values()]
    objects = [code for code, _ in codes]
    kernels = [kernel for _, device_kernels in codes for kernel in device_kernels]
    return CompiledKernels(
        [t.name for t in tasks], forms, facts, objects, exports, kernels,
        code_by_key=tiered.code if tiered.general else {}, general_forms=tiered.general,
    )  # fmt: skip


def _bind_symbols(form: Function, function: Function) -> dict[str, PrimExpr]:
    """Return the map from symbols of the canonical form to dimensions of the function."""
    pairs = zip(_signature_dims(form), _signature_dims(function), strict=True)
    return {dim.name: own for dim, own in pairs if isinstance(dim, PrimVar)}


def _signature_dims(function: Function) -> list[PrimExpr]:
    """Return the dimensions of all parameters, then of the results."""
    kinds = [*(p.checked_type for p in function.params), function.body.checked_type]
    return [
        d for kind in kinds for tensor_type in flatten_tensor_types(kind) for d in tensor_type.shape
    ]
