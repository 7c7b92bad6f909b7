"""Compile the kernels of a module: once per distinct function, in parallel processes, through
the disk cache.

The key of a kernel (codegen/cache.py) says its canonical function, the target, and what decisions
are fixed; the compiler's own sources are part of it, so that no kernel is of another version.
Processes and not threads, as lowering is Python.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from ekiden.backend.kernels.canonical import canonicalize
from ekiden.backend.kernels.facts import facts_of, packed, renamed, unpacked
from ekiden.backend.kernels.lower import Given, described, lower_primitive, names_of, operator_calls
from ekiden.backend.kernels.ranges import Range, joined, ranges_of
from ekiden.backend.kernels.recorded import Recorded
from ekiden.backend.kernels.tiers import (
    Finishing,
    TieredCode,
    compile_rest,
    compile_without_form,
    general_shape_forms,
)
from ekiden.codegen import llvm
from ekiden.codegen.build import (
    GENERATORS,
    Code,
    compile_function,
    compile_lowered,
    pack_code,
    unpack_code,
)
from ekiden.codegen.cache import KernelCache, kernel_key, text_key
from ekiden.codegen.common import FLUSH
from ekiden.codegen.parallel import LOCK, Progress, Task, compile_tasks
from ekiden.ir.op import Op
from ekiden.ir.pass_context import DEBUG, DENORMALS, DENORMALS_KINDS, PassContext, phase
from ekiden.ir.prim import PrimExpr, const
from ekiden.ir.prim import Var as PrimVar
from ekiden.kernels.families import FAMILIES, given_decisions
from ekiden.relay.expr import Function
from ekiden.relay.op.strategy import version_of
from ekiden.relay.transform.memory.manifest_alloc import tensor_types
from ekiden.relay.transform.memory_plan import KernelFacts
from ekiden.runtime.artifact.device_code import DeviceKernel
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir import transform as tir_transform
from ekiden.tir.stmt import PrimFunc


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled kernels: the name, the canonical form and the facts of each function asked for, and
    objects that export them all.
    """

    names: list[str]
    forms: list[Function] = field(compare=False)
    facts: list[KernelFacts]
    objects: list[bytes]
    exports: list[str]
    device: list[DeviceKernel] = field(default_factory=list)
    """Kernels of devices that their code launches."""
    code: Mapping[str, bytes] = field(default_factory=dict)
    """What was compiled, by key: for who compiles the general ones later."""
    general: Mapping[str, bytes] = field(default_factory=dict)
    """Of a compilation of tier "quick" the general forms, by name; these are in no object."""

    def beside(self, programs: Sequence[PrimFunc], target: Target) -> Kernels:
        """Return these, and kernels of sizes in one object, exported under their own names; where
        these have general ones, only those kernels of sizes that have no general form.
        """
        forms = general_shape_forms(programs, target) if self.general else {}
        general = {**self.general, **forms}
        programs = [f for f in programs if f.name not in forms]
        if not programs:
            return replace(self, general=general)
        code = _compile_together(programs, target.code_host)
        exports = [*self.exports, *(f.name for f in programs)]
        return replace(self, objects=[*self.objects, code], exports=exports, general=general)

    @phase("link")
    def link(
        self, target: Target, objects: Sequence[bytes] = (), exports: Sequence[str] = ()
    ) -> bytes:
        """One image of them, and of other objects, which may call them; empty without any."""
        parts = [*self.objects, *objects]
        return llvm.link(parts, [*self.exports, *exports], target) if parts else b""


def _compile_together(programs: Sequence[PrimFunc], target: Target) -> bytes:
    """The object code of small programs that run on the host, through the cache: a process that
    finds all of its kernels there brings no LLVM into memory, which has 69 MB.

    They are told by the text that is emitted of them, as it has all names that messages show.
    """
    generator, cache = GENERATORS[target.kind.name], KernelCache.default()
    emitted = next(iter(generator.sources(target).values()))
    with LOCK:
        lowered = [tir_transform.lower(f, target) for f in programs]
        key = text_key(emitted(lowered, target), target, generator.version())
        code = None if PassContext.current().compiles_cached else cache.get(key)
        if code is None:
            code = compile_lowered(lowered, target, "sizes")
            cache.put(key, code)
    return code


def flush_asked(target: Target) -> bool:
    """Whether all kernels shall take subnormal numbers for 0. Raises CompileError for an option
    that is not one, and for a target that cannot do so."""
    asked = PassContext.current().option(DENORMALS)
    if asked not in DENORMALS_KINDS:
        kinds = " or ".join(map(repr, DENORMALS_KINDS))
        raise CompileError(f"compile: denormals {kinds} expected, got {asked!r}")
    if asked == "flush" and not target.has("flush_subnormals"):
        machine = f"a processor of {target.architecture} has no mode for it"
        raise CompileError(f"compile: denormals 'flush': {machine}; target: {target}")
    return asked == "flush"


def _compile(
    function: Function, name: str, target: Target, ranges: Sequence[Range],
    attrs: Mapping[str, object],
) -> bytes:  # fmt: skip
    """The facts and the object code of a function in canonical form, with more attributes."""

    def scheduled(given: Given) -> PrimFunc:
        """The loop program, whose arguments share no bytes but those that tir.in_place names."""
        with phase("schedule", DEBUG):
            func = lower_primitive(function, name, target, given)
        # the VM gives results memory that no argument has but those of tir.in_place
        return func.with_fields(attrs={**(func.attrs or {}), "tir.noalias": True, **attrs})

    try:
        if len(ranges) == 1:
            code = compile_function(scheduled(ranges[0].given), target)
        else:
            lowered = joined(ranges, lambda given: tir_transform.lower(scheduled(given), target))
            code = Code(lowered, compile_lowered([lowered], target))
        return packed(facts_of(code.lowered, target), pack_code(code))
    except Exception as error:
        if not getattr(error, "__notes__", None):
            error.add_note(f"while compiling {described(function, name)}")
        raise


def _given(form: Function, decisions: Given, recorded: Recorded) -> list[Range]:
    """What is said about a kernel: by records, for ranges of its sizes, and beyond them by the
    user. A device has one kernel for all sizes, that of the first."""
    names = names_of(form)
    given = {n: fixed for n, fixed in decisions.items() if n in names or n in FAMILIES}
    found = [
        (points, {**given, family: {**fixed, **given.get(family, {})}} if family else given)
        for points, family, fixed in recorded.fixed_for(form)
    ]
    if not found:
        return [Range(None, given)]
    if recorded.target.kind.has_threads:
        return [Range(None, found[0][1])]
    return ranges_of(found)


def _task(
    function: Function, target: Target, ranges: Sequence[Range], attrs: Mapping[str, object]
) -> Task:
    names = names_of(function)
    extra = [
        json.dumps([r.most, {n: dict(f) for n, f in r.given.items()}], sort_keys=True)
        for r in ranges
        if r.given or len(ranges) > 1
    ]
    extra += sorted(attrs)
    extra += _own_versions(function)
    key = kernel_key(function, target, GENERATORS[target.kind.name].version(), *extra)
    name = f"{names[0]}_{key[:12]}"
    arguments = (function, name, target, tuple(ranges), dict(attrs))
    return Task(key, name, _compile, arguments, is_local=bool(_own_versions(function)))


def _own_versions(function: Function) -> tuple[str, ...]:
    """What tells kernels with a user's implementations from all others: they are those of this
    process and of what is registered now."""
    names = {c.op.name for c in operator_calls(function) if isinstance(c.op, Op)}
    found = {name: version_of(name) for name in sorted(names)}
    own = {name: version for name, version in found.items() if version is not None}
    return (f"{PROCESS}:{own}",) if own else ()


GENERAL = KernelFacts(const(0))
"""Of a kernel that is general for now: its own code takes what memory it needs elsewhere."""
PROCESS = os.urandom(16).hex()
"""What no other process has."""


def check_decisions(functions: Sequence[Function], decisions: Given) -> None:
    """Raises CompileError for a decision about what is neither a family nor one of the kernels."""
    if set(decisions) <= set(FAMILIES):
        return
    known = {name: None for function in functions for name in names_of(function)}
    for name in decisions:
        if name not in FAMILIES and name not in known:
            kernels = f"{', '.join(known)}; families: {', '.join(FAMILIES)}"
            raise CompileError(f"decisions: no kernel is called '{name}'; there are: {kernels}")


@phase("kernels")
def build_kernels(
    functions: Sequence[Function],
    target: Target | Sequence[Target],
    progress: Progress | None = None,
    cache: KernelCache | None = None,
    tier: str = "full",
    finishing: Finishing | None = None,
) -> Kernels:
    """Compile primitive functions for a target, or each for its own. Equal functions share a
    kernel. Of tier "quick" some may be general for now: they are in no object; `finishing` then
    asks for the code of these.

    Raises CompileError with the model node of the function that failed, or for a decision or
    another option of the current PassContext that cannot be.
    """
    decisions = given_decisions()
    check_decisions(functions, decisions)
    with phase("kernel keys", DEBUG):
        forms = [canonicalize(function) for function in functions]
    targets = [target] * len(forms) if isinstance(target, Target) else list(target)
    attrs = {each: {FLUSH: 1} if flush_asked(each) else {} for each in dict.fromkeys(targets)}
    recorded = {each: Recorded.current(each) for each in attrs}
    tasks = [
        _task(f, each, _given(f, decisions, recorded[each]), attrs[each])
        for f, each in zip(forms, targets, strict=True)
    ]
    for each, found in recorded.items():
        found.report(len({t.key for t, own in zip(tasks, targets, strict=True) if own == each}))
    cache = cache or KernelCache.default()
    if finishing is not None:
        tiered = TieredCode(compile_rest(finishing, tasks, forms, cache), {})
    elif tier == "quick":
        tiered = compile_without_form(tasks, forms, targets, cache, progress)
    else:
        tiered = TieredCode(compile_tasks(tasks, cache, progress), {})
    made = {key: unpacked(each) for key, each in tiered.code.items()}
    facts = [
        renamed(made[task.key][0], _symbols(form, function)) if task.key in made else GENERAL
        for task, form, function in zip(tasks, forms, functions, strict=True)
    ]
    exports = list({t.key: t.name for t in tasks if t.key in made}.values())
    codes = [unpack_code(code) for _, code in made.values()]
    objects = [code for code, _ in codes]
    kernels = [kernel for _, each in codes for kernel in each]
    return Kernels(
        [t.name for t in tasks], forms, facts, objects, exports, kernels,
        code=tiered.code if tiered.general else {}, general=tiered.general,
    )  # fmt: skip


def _symbols(form: Function, function: Function) -> dict[str, PrimExpr]:
    """Symbol of the canonical form -> what it is in the function."""
    pairs = zip(_dims(form), _dims(function), strict=True)
    return {dim.name: own for dim, own in pairs if isinstance(dim, PrimVar)}


def _dims(function: Function) -> list[PrimExpr]:
    """The dimensions of all parameters, then of the results."""
    kinds = [*(p.checked_type for p in function.params), function.body.checked_type]
    return [d for kind in kinds for each in tensor_types(kind) for d in each.shape]
