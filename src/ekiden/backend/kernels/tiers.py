"""Which kernels are general at first, and the fork of this process that makes their own code.

A compilation with tiers decides for each kernel that the cache has not: it has a general form,
which needs no compiler, or it is compiled at once. When the program with the general forms is
whole, the process forks. The parent answers; the child, with the same program in memory, compiles
these kernels, sends each as soon as it is made, and goes on to what a compilation without tiers
gives. A fork before that would have both write to the memory that they share, which is copied page
by page then.
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
from ekiden.codegen.background import Background
from ekiden.codegen.build import unpack_code
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.parallel import Progress, Task, compile_tasks
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.relay.expr import Function
from ekiden.relay.transform.manifest_alloc import tensor_types
from ekiden.runtime.files import Written
from ekiden.runtime.late import LateLog
from ekiden.runtime.late_methods import dataclass
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc

LOG = LateLog(__name__)
USUAL = 64
"""What a dimension that is not known counts as, where kernels are put into an order."""


@dataclass(eq=False, slots=True)
class Tiers:
    """What a compilation with tiers has decided."""

    general: dict[str, bytes] = field(default_factory=dict)
    """Name of a kernel -> its general form."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Name of a kernel that was compiled at once -> why it has no general form."""
    kept: dict[str, bytes] = field(default_factory=dict)
    """The code of those that have it, by key."""
    own: Callable[[], Written] | None = None
    """Gives the artifact with their own code, for who has forked; it calls `compile` again."""
    job: Background | None = None
    """In the fork: whom it is made for."""

    @property
    def is_general(self) -> bool:
        """Whether the program that is made has general kernels."""
        return self.job is None and bool(self.general)

    def begin(self) -> Background:
        """Fork, when the program with general kernels is whole; the fork does not come back. Raises
        OSError where the system lets no process start.
        """
        job = Background.begin()
        if job.is_child:
            self.job = job
            try:
                assert self.own is not None, "compile_model has said what is left to do"
                made = self.own()
            except BaseException as error:
                job.fail(error)
            job.finish(len(made), made.write)
        return job

    def compile(
        self,
        tasks: Sequence[Task],
        forms: Sequence[Function],
        targets: Sequence[Target],
        cache: KernelCache,
        progress: Progress | None,
    ) -> dict[str, bytes]:
        """The code of those tasks that have it, by key: of all of them in the fork."""
        rows = {t.key: (t, form, to) for t, form, to in zip(tasks, forms, targets, strict=True)}
        if self.job is not None:
            return self._own(self.job, tasks, rows, cache)
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
        self.kept = compile_tasks(at_once, cache, progress)
        return self.kept

    def _own(
        self,
        job: Background,
        tasks: Sequence[Task],
        rows: Mapping[str, tuple[Task, Function, Target]],
        cache: KernelCache,
    ) -> dict[str, bytes]:
        """The code of all; that of general ones, those first by which most is won, is sent."""
        counts = Counter(t.key for t in tasks)
        later = [key for key in rows if key not in self.kept]
        later.sort(key=lambda key: -counts[key] * work_of(rows[key][1]))

        def made(task: Task, code: bytes) -> None:
            """Sends a kernel to the process that waits for it. A general form runs on the host
            alone.
            """
            _, own = unpacked(code)
            objects, kernels = unpack_code(own)
            assert not kernels, "kernels of devices have no general form"
            job.send(("kernel", task.name, objects))

        found = self.kept | compile_tasks([rows[key][0] for key in later], cache, None, made)
        return {key: found[key] for key in rows}  # in the order of a compilation without tiers

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
