"""Tiered compilation: kernels start in general form, and their native code is compiled while the
program runs.

A compilation of tier "quick" decides for each kernel that the cache has not: it has a general form,
which needs no compiler, or it is compiled at once. When the program with the general forms is
whole it answers; then, in a thread of the same process, worker processes compile these kernels,
each is handed over as soon as it is compiled, and what follows gives the program that a compilation
of tier "full" gives. The lowering and LLVM's work, nearly all of it, happen in the workers; the
thread plans memory and writes bytecode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from ekiden.arith import simplify
from ekiden.backend.kernels.flops import count_flops
from ekiden.backend.kernels.general import general_form
from ekiden.backend.kernels.general_shapes import general_shape_form
from ekiden.backend.kernels.kernel_facts import deserialize_entry
from ekiden.codegen.build import deserialize_kernel
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.parallel import CancellationToken, CompileTask, ProgressCallback, compile_tasks
from ekiden.ir.pass_context import notify_product
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.relay.expr import Function
from ekiden.relay.transform.memory.manifest_alloc import flatten_tensor_types
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.lazy_logger import LazyLogger
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc

_LOG = LazyLogger(__name__)
ASSUMED_DYNAMIC_DIM = 64
"""Assumed value of an unknown dimension when ordering kernels by work."""


OnKernel = Callable[[str, bytes], None]
"""Callback (kernel name, object code), called in the finishing thread."""


@dataclass(frozen=True, eq=False, slots=True)
class FullTierRequest:
    """Request for the full tier, native code for every kernel, after a compilation with general
    kernels.
    """

    on_kernel: OnKernel
    cancellation: CancellationToken
    code_by_key: Mapping[str, bytes]
    """Code of kernels that are compiled already, by key."""


@dataclass(frozen=True, eq=False, slots=True)
class QuickTierCode:
    """Code of the quick tier: object code of some kernels by key, general forms of the others by
    name.
    """

    code: Mapping[str, bytes]
    general: Mapping[str, bytes]


def compile_quick_tier(
    tasks: Sequence[CompileTask],
    forms: Sequence[Function],
    targets: Sequence[Target],
    cache: KernelCache,
    progress: ProgressCallback | None,
) -> QuickTierCode:
    """Compile the quick tier: kernels without a general form are compiled, the others get their
    form, unless the cache has their code.
    """
    general: dict[str, bytes] = {}
    rows = {t.key: (t, form, to) for t, form, to in zip(tasks, forms, targets, strict=True)}
    for task, form, target in rows.values():
        # A cached kernel is at hand at once and faster than its general form.
        if cache.get(task.key) is None:
            made_of = general_form(form, target)
            if isinstance(made_of, bytes):
                general[task.name] = made_of
            else:
                _LOG.debug("kernel %s is compiled at once: %s", task.name, made_of)
    if general:
        what = "kernels that are general until their own code is compiled"
        notify_product("general.txt", what, lambda: "\n".join(general) + "\n")
    at_once = [t for t in tasks if t.name not in general]
    return QuickTierCode(compile_tasks(at_once, cache, progress), general)


def compile_full_tier(
    finishing: FullTierRequest,
    tasks: Sequence[CompileTask],
    forms: Sequence[Function],
    cache: KernelCache,
) -> dict[str, bytes]:
    """Compile the full tier and return the code of all kernels by key. Kernels with the largest
    expected gain come first, and each is handed over once it is ready. Raises what compiling
    raises, and CancelledError.
    """
    rows = {t.key: (t, form) for t, form in zip(tasks, forms, strict=True)}
    counts = Counter(t.key for t in tasks)
    pending = [key for key in rows if key not in finishing.code_by_key]
    # A kernel that is called often or works much gains most from its own code.
    pending.sort(key=lambda key: -counts[key] * estimate_work(rows[key][1]))

    def publish_kernel(task: CompileTask, code: bytes) -> None:
        """Publish a compiled kernel to the running program; a general form runs on the host
        only.
        """
        _, packed = deserialize_entry(code)
        objects, kernels = deserialize_kernel(packed)
        assert not kernels, "kernels of devices have no general form"
        finishing.on_kernel(task.name, objects)

    code = {
        **finishing.code_by_key,
        **compile_tasks(
            [rows[key][0] for key in pending], cache, None, publish_kernel, finishing.cancellation
        ),
    }
    finishing.cancellation.check()
    return {key: code[key] for key in rows}  # in the order of a compilation without tiers


def general_shape_forms(programs: Sequence[PrimFunc], target: Target) -> dict[str, bytes]:
    """Return the general forms of size kernels by name, where they have one; they stay general
    until the whole program is compiled.
    """
    general: dict[str, bytes] = {}
    for program in programs:
        made_of = general_shape_form(program, target)
        if isinstance(made_of, bytes):
            general[program.name] = made_of
        else:
            _LOG.debug("kernel %s is compiled at once: %s", program.name, made_of)
    return general


def estimate_work(function: Function) -> int:
    """Estimate a kernel's work in elements, which orders the full tier's compilation."""
    elements = [d for t in flatten_tensor_types(function.body.checked_type) for d in t.shape]
    total: PrimExpr = count_flops(function)
    size: PrimExpr = IntImm(1, "int64")
    for dim in elements:
        size = size * dim
    total_work = total + size
    estimate = simplify(
        substitute(
            total_work, {v: IntImm(ASSUMED_DYNAMIC_DIM, v.dtype) for v in free_vars(total_work)}
        )
    )
    return estimate.value if isinstance(estimate, IntImm) else 0


__all__ = [
    "FullTierRequest",
    "QuickTierCode",
    "compile_full_tier",
    "compile_quick_tier",
    "estimate_work",
    "general_shape_forms",
]  # fmt: skip
