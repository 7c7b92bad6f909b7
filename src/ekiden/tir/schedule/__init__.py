"""Schedule: transforms a PrimFunc of blocks by primitives that keep its meaning, and remembers
which.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import Var
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.schedule import blocks, loops
from ekiden.tir.schedule.tree import find_block, loops_above
from ekiden.tir.stmt import ForKind, PrimFunc


class Schedule:
    """A function being scheduled. Blocks are named by their name, loops by their variable; both
    stay valid.

    Each primitive checks that it keeps the meaning and raises ScheduleError saying why not, leaving
    the function as it was. `func` is the current form, `trace` the steps so far as lines of Python.
    """

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.trace: list[str] = []
        self._names: dict[Var, str] = {}

    def get_block(self, name: str) -> str:
        """The name itself, if there is such a block."""
        return find_block(self.func, name).block.name

    def get_loops(self, block: str) -> list[Var]:
        """The variables of the loops around a block, outermost first."""
        found = [s.loop_var for s in loops_above(self.func, find_block(self.func, block))]
        self._record("get_loops", found, block)
        return found

    def split(self, loop: Var, factors: Sequence[int | None]) -> list[Var]:
        """Loops over the factors; the first may be None.

        A rest that may be left becomes a loop of its own after them.
        """
        self.func, made = loops.split(self.func, loop, factors)
        self._record("split", made, loop, list(factors))
        return made

    def fuse(self, *many: Var) -> Var:
        """One loop over the product of nested loops."""
        self.func, made = loops.fuse(self.func, many)
        self._record("fuse", [made], *many)
        return made

    def reorder(self, *many: Var) -> None:
        """Put loops of one nest in this order."""
        self.func = loops.reorder(self.func, many)
        self._record("reorder", [], *many)

    def parallel(self, loop: Var, grain: int = 1) -> None:
        """Share a loop's steps between threads, at least `grain` to each."""
        self.func = loops.set_kind(self.func, loop, ForKind.PARALLEL, {"grain": grain})
        self._record("parallel", [], loop, grain)

    def vectorize(self, loop: Var, lanes: int = 16) -> None:
        """Run a loop `lanes` steps at a time; a rest is masked."""
        self.func = loops.set_kind(self.func, loop, ForKind.VECTORIZED, {"lanes": lanes})
        self._record("vectorize", [], loop, lanes)

    def unroll(self, loop: Var) -> None:
        """Write out a loop of constant extent."""
        self.func = loops.set_kind(self.func, loop, ForKind.UNROLLED)
        self._record("unroll", [], loop)

    def compute_inline(self, block: str) -> None:
        """Put a block's expression where its elements are read."""
        self.func = blocks.compute_inline(self.func, block)
        self._record("compute_inline", [], block)

    def reverse_compute_inline(self, block: str) -> None:
        """Put a block's expression into the loops of its only producer."""
        self.func = blocks.reverse_compute_inline(self.func, block)
        self._record("reverse_compute_inline", [], block)

    def compute_at(self, block: str, loop: Var) -> None:
        """Compute what each step of a loop reads of a block at the start of the step."""
        self.func = blocks.compute_at(self.func, block, loop)
        self._record("compute_at", [], block, loop)

    def reverse_compute_at(self, block: str, loop: Var) -> None:
        """Compute what each step of a loop makes possible of a block at the end of the step."""
        self.func = blocks.reverse_compute_at(self.func, block, loop)
        self._record("reverse_compute_at", [], block, loop)

    def cache_write(self, block: str, scope: str) -> str:
        """Write a block's result to a buffer in `scope` first; gives the copying block's name."""
        self.func, made = blocks.cache_write(self.func, block, scope)
        self._record("cache_write", [], block, scope)
        return made

    def set_scope(self, block: str, scope: str) -> None:
        """Move the intermediate that a block writes to another scope."""
        self.func = blocks.set_scope(self.func, block, scope)
        self._record("set_scope", [], block, scope)

    def decompose_reduction(self, block: str, loop: Var) -> str:
        """Give a reduction's init a nest of its own before a loop; gives its block's name."""
        self.func, made = blocks.decompose_reduction(self.func, block, loop)
        self._record("decompose_reduction", [], block, loop)
        return made

    def annotate(self, place: str | Var, key: str, value: object) -> None:
        """Set an annotation of a block (by name) or a loop (by variable)."""
        if isinstance(place, str):
            self.func = blocks.annotate_block(self.func, place, key, value)
        else:
            self.func = loops.annotate_loop(self.func, place, key, value)
        self._record("annotate", [], place, key, value)

    def _record(self, step: str, made: Sequence[Var], *arguments: object) -> None:
        names = [self._name(v) for v in made]
        text = ", ".join(self._name(a) if isinstance(a, Var) else repr(a) for a in arguments)
        left = (
            ""
            if not names
            else ", ".join(names) + (", = " if len(names) == 1 and step != "fuse" else " = ")
        )
        self.trace.append(f"{left}sch.{step}({text})")

    def _name(self, var: Var) -> str:
        return self._names.setdefault(var, f"l{len(self._names)}")


__all__ = ["Schedule", "ScheduleError"]
