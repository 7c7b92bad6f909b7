"""Which kernels are general at first, and how their own code is made while the program answers.

A compilation with tiers decides for each kernel that the cache has not: it has a general form,
which needs no compiler, or it is compiled at once. When the program with the general forms is
whole it answers, and `finish`, in a thread of the same process, has worker processes compile these
kernels, hands over each as soon as it is compiled, and goes on to what a compilation without tiers
gives. The lowering and LLVM's work, nearly all of it, happen in the workers; the thread plans
memory and writes bytecode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from ekiden.arith import simplify
from ekiden.backend.kernels.facts import unpacked
from ekiden.backend.kernels.flops import count_flops
from ekiden.backend.kernels.general import general_form
from ekiden.backend.kernels.general_shapes import general_shapes
from ekiden.codegen.build import unpack_code
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.parallel import Cancellation, Progress, Task, compile_tasks
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.relay.expr import Function
from ekiden.relay.transform.memory.manifest_alloc import tensor_types
from ekiden.runtime.files import Written
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.logs import LazyLogger
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc

LOG = LazyLogger(__name__)
USUAL = 64
"""What a dimension that is not known counts as, where kernels are put into an order."""


OnKernel = Callable[[str, bytes], None]
"""Called with the name of a kernel and its object code, in the thread that finishes."""


@dataclass(eq=False, slots=True)
class Finishing:
    """A request for the program with every kernel's own code."""

    on_kernel: OnKernel
    cancellation: Cancellation


@dataclass(eq=False, slots=True)
class Tiers:
    """What a compilation with tiers has decided."""

    general: dict[str, bytes] = field(default_factory=dict)
    """Name of a kernel -> its general form."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Name of a kernel that was compiled at once -> why it has no general form."""
    code: dict[str, bytes] = field(default_factory=dict)
    """The code of those that have it, by key."""
    compile_own: Callable[[], Written] | None = None
    """Returns the artifact with their own code; it calls `compile` again."""
    finishing: Finishing | None = None
    """From `finish` on: for whom kernels get their own code."""

    @property
    def is_general(self) -> bool:
        """Whether the program that is compiled has general kernels."""
        return self.finishing is None and bool(self.general)

    def finish(self, on_kernel: OnKernel, cancellation: Cancellation) -> Written:
        """Return the artifact in which every kernel has its own code. Raises what compiling raises,
        and CancelledError."""
        assert self.compile_own is not None, "compile_model has said what is left to do"
        self.finishing = Finishing(on_kernel, cancellation)
        artifact = self.compile_own()
        cancellation.check()
        return artifact

    def compile(
        self,
        tasks: Sequence[Task],
        forms: Sequence[Function],
        targets: Sequence[Target],
        cache: KernelCache,
        progress: Progress | None,
    ) -> dict[str, bytes]:
        """Return the code of those tasks that have it, by key: of all of them once finishing."""
        rows = {t.key: (t, form, to) for t, form, to in zip(tasks, forms, targets, strict=True)}
        if self.finishing is not None:
            return self._compile_rest(self.finishing, tasks, rows, cache)
        for task, form, target in rows.values():
            if cache.get(task.key) is None:
                made_of = general_form(form, target)
                if isinstance(made_of, bytes):
                    self.general[task.name] = made_of
                else:
                    self.reasons[task.name] = made_of
        for name, reason in self.reasons.items():
            LOG.debug("kernel %s is compiled at once: %s", name, reason)
        at_once = [t for t in tasks if t.name not in self.general]
        self.code = compile_tasks(at_once, cache, progress)
        return self.code

    def _compile_rest(
        self,
        finishing: Finishing,
        tasks: Sequence[Task],
        rows: Mapping[str, tuple[Task, Function, Target]],
        cache: KernelCache,
    ) -> dict[str, bytes]:
        """Return the code of all; general ones are compiled in the order of what is won by it, and
        handed over one by one."""
        counts = Counter(t.key for t in tasks)
        rest = [key for key in rows if key not in self.code]
        rest.sort(key=lambda key: -counts[key] * work_of(rows[key][1]))

        def hand_over(task: Task, code: bytes) -> None:
            """Give a kernel to the program that runs; a general form runs on the host alone."""
            _, packed = unpacked(code)
            objects, kernels = unpack_code(packed)
            assert not kernels, "kernels of devices have no general form"
            finishing.on_kernel(task.name, objects)

        code = self.code | compile_tasks(
            [rows[key][0] for key in rest], cache, None, hand_over, finishing.cancellation
        )
        finishing.cancellation.check()
        return {key: code[key] for key in rows}  # in the order of a compilation without tiers

    def without_general(self, programs: Sequence[PrimFunc], target: Target) -> list[PrimFunc]:
        """Those kernels of sizes that have no general form; the forms of the others are kept. They
        stay general until the whole program is there.
        """
        left = []
        for each in programs:
            made_of = general_shapes(each, target)
            if isinstance(made_of, bytes):
                self.general[each.name] = made_of
            else:
                LOG.debug("kernel %s is compiled at once: %s", each.name, made_of)
                left.append(each)
        return left


def work_of(function: Function) -> int:
    """How much a kernel does, roughly: what its general form loses grows with it."""
    elements = [d for t in tensor_types(function.body.checked_type) for d in t.shape]
    total: PrimExpr = count_flops(function)
    size: PrimExpr = IntImm(1, "int64")
    for each in elements:
        size = size * each
    whole = total + size
    found = simplify(substitute(whole, {v: IntImm(USUAL, v.dtype) for v in free_vars(whole)}))
    return found.value if isinstance(found, IntImm) else 0


__all__ = ["Tiers", "work_of"]
