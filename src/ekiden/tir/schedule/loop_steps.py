"""The steps on loops, as methods."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import PrimExpr
from ekiden.tir.schedule import loops, sampling
from ekiden.tir.schedule.core import BlockLike, LoopLike, Steps
from ekiden.tir.schedule.merge import merge
from ekiden.tir.schedule.trace import BlockRV, ExprRV, LoopRV

Factor = int | PrimExpr | None
_LOOPS = "a step that makes loops gives their handles"


def loop_handles(made: Sequence[object]) -> list[LoopRV]:
    """The outputs of a step that makes loops."""
    assert all(isinstance(h, LoopRV) for h in made), _LOOPS
    return list(made)  # type: ignore[arg-type]


class LoopSteps(Steps):
    """Steps on loops. What every one of them refuses leaves the schedule as it was."""

    def split(
        self,
        loop: LoopLike,
        factors: Sequence[Factor],
        preserve_unit_iters: bool = True,
        disable_predication: bool = False,
        tail: str = "predicate",
    ) -> list[LoopRV]:
        """Loops over the digits of a loop.

            for i in range(10): s(i)
            -> split(i, [None, 4])
            for i_0, i_1 in grid(3, 4): with s where i_0 * 4 + i_1 < 10
            -> split(i, [None, 4], tail="loop")
            for i_0, i_1 in grid(2, 4): s(i_0 * 4 + i_1)
            for i in range(2): s_tail(8 + i)
            -> split(i, [None, 4], tail="short")
            for i_0 in range(3): for i_1 in range(i_0 * 4, min(i_0 * 4 + 4, 10)): s(i_1)
            -> split(i, [None, 4], tail="balanced")
            for i_0 in range(3): parts of 4, 3 and 3 steps, the longer ones first

        One factor may be None: as many steps as it takes. Where the factors may exceed the extent,
        every block inside gets a condition; with `tail="loop"` (first factor None) the rest becomes
        a copy of its own instead; with "short" ([None, n]) the last part is shorter; with
        "balanced" parts differ by at most one step: [None, n] gives parts of at most n, [n, None]
        gives n of them. `preserve_unit_iters=False` puts 0 for loops of one step;
        `disable_predication` is the caller's word that the factors fit.
        Refused: factors that multiply to less than the extent or are not positive, a loop that is
        no longer serial.
        """
        attrs = {
            "preserve_unit_iters": preserve_unit_iters,
            "disable_predication": disable_predication,
            "tail": tail,
        }
        given = (self._loop(loop), list(factors))
        return loop_handles(self._run("split", loops.split, given, attrs))

    def partition(self, loop: LoopLike, points: Sequence[int | PrimExpr]) -> list[LoopRV]:
        """Loops over what lies between points, one after the other, with blocks of their own.

            for i in range(10): s(i)
            -> partition(i, [1, 9])
            for i in range(1): s(i); for i in range(8): s_1(1 + i); for i in range(1): s_2(9 + i)

        So that a condition on the loop holds in all of a part, or in none. A point that is not
        known to lie behind the one before, and in the loop's range, is moved there. Refused: a loop
        that is no longer serial.
        """
        given = (self._loop(loop), list(points))
        return loop_handles(self._run("partition", loops.partition, given))

    def loop_partition(
        self, loop: LoopLike, factors: Sequence[Factor], preserve_unit_iters: bool = True
    ) -> list[LoopRV]:
        """Loops over parts of a loop, one after the other; blocks of later parts are renamed.

            for i in range(10): s(i)
            -> loop_partition(i, [2, 3])
            for i_0 in range(2): s(i_0)
            for i_1 in range(3): s_part1(2 + i_1)
            for i_2 in range(5): s_part2(5 + i_2)

        One factor may be None: what the others leave; without it the rest is a part at the end.
        Refused: factors that are not positive, or leave nothing; a loop that is no longer serial.
        """
        attrs = {"preserve_unit_iters": preserve_unit_iters}
        given = (self._loop(loop), list(factors))
        return loop_handles(self._run("loop_partition", loops.loop_partition, given, attrs))

    def enter_postproc(self) -> None:
        """Mark in the trace where steps begin that make a found program run, such as choosing
        threads; the program stays as it is.
        """
        self._record("enter_postproc", (), {}, ())

    def fuse(self, *many: LoopLike, preserve_unit_iters: bool = True) -> LoopRV:
        """One loop over the product of loops that lie directly in each other.

            for i, j in grid(n, m): s(i, j)   ->   for f in range(n * m): s(f // m, f % m)

        Refused: something else between them, a range that depends on one of them, a loop that does
        not start at 0 or is no longer serial.
        """
        given = tuple(self._loop(x) for x in many)
        attrs = {"preserve_unit_iters": preserve_unit_iters}
        return loop_handles(self._run("fuse", loops.fuse, given, attrs))[0]

    def merge(self, *many: LoopLike) -> LoopRV:
        """One loop for loops side by side; loops around them, alone in each other, are merged too.

            for i: a[i] = f(i)
            for j: b[j] = g(j)      ->   for m: a[m] = f(m); b[m] = g(m)

        Refused: other extents or depths, statements between them, a buffer that one writes and
        another touches, loops that are no longer serial.
        """
        given = tuple(self._loop(x) for x in many)
        return loop_handles(self._run("merge", merge, given))[0]

    def reorder(self, *ordered_loops: LoopLike) -> None:
        """Loops of one nest in the given order; others between them stay where they are.

            for i, j, k in grid(n, m, l): s   ->   reorder(k, i)   ->   for k, j, i in ...: s

        Proved: every block inside is complete, a reduction or an update; a sum whose loops change
        order runs once for each step, its first step stays first; blocks that share a buffer do so
        within one step. Refused otherwise, and where a range depends on a loop that would be
        inside.
        """
        given = tuple(self._loop(x) for x in ordered_loops)
        self._run("reorder", loops.reorder, given)

    def reorder_block_iter_var(self, block: BlockLike, new_order: Sequence[int]) -> None:
        """The iterators of a block in another order; loops stay as they are.

        with block(vi, vj, vk)   ->   reorder_block_iter_var(b, [2, 0, 1])   ->   block(vk, vi, vj)
        """
        attrs = {"new_order": [int(n) for n in new_order]}
        self._run(
            "reorder_block_iter_var",
            loops.reorder_block_iter_var,
            (self._block(block),),
            attrs,
        )

    def add_unit_loop(self, block_or_loop: BlockLike | LoopLike) -> LoopRV:
        """A loop of one step around a block or a loop.

        s   ->   for u in range(1): s
        """
        made = self._run("add_unit_loop", loops.add_unit_loop, (self._place_of(block_or_loop),))
        return loop_handles(made)[0]

    def tile(
        self, x: LoopLike, y: LoopLike, x_factor: int, y_factor: int
    ) -> tuple[LoopRV, LoopRV, LoopRV, LoopRV]:
        """Two neighbouring loops as tiles: (x_outer, y_outer, x_inner, y_inner).

            for x, y in grid(n, m): s
            -> tile(x, y, a, b)
            for x_0, y_0, x_1, y_1 in grid(n / a, m / b, a, b): s

        It is split, split and reorder, and recorded so.
        """
        xo, xi = self.split(x, [None, x_factor])
        yo, yi = self.split(y, [None, y_factor])
        self.reorder(xo, yo, xi, yi)
        return xo, yo, xi, yi

    def parallel(self, loop: LoopLike, grain: int = 1) -> None:
        """Share a loop's steps between threads, at least `grain` to each.

            for i in range(n): s   ->   for i in parallel(n): s

        Proved: no two steps touch one element of a buffer that either writes, or the buffer can be
        each step's own (its step writes what it reads). Refused otherwise: a loop that a sum runs
        over, steps that overlap.
        """
        self._run("parallel", loops.parallel, (self._loop(loop),), {"grain": grain})

    def vectorize(self, loop: LoopLike, lanes: int | None = None) -> None:
        """Run a loop `lanes` steps at a time; a rest is masked.

            for i in range(n): s   ->   for i in vectorized(n): s

        Without `lanes`, 16 steps at a time.
        Proved as for `parallel`.
        """
        attrs = {} if lanes is None else {"lanes": lanes}
        self._run("vectorize", loops.vectorize, (self._loop(loop),), attrs)

    def unroll(self, loop: LoopLike) -> None:
        """Write a loop of constant extent out.

        for i in range(3): s(i)   ->   s(0); s(1); s(2)
        """
        self._run("unroll", loops.unroll, (self._loop(loop),))

    def bind(self, loop: LoopLike, thread_axis: str) -> None:
        """Run the steps of a loop on a thread axis: "blockIdx.x", "threadIdx.y", "vthread", ...

            for i in range(n): s   ->   for i in thread_binding(n, thread="threadIdx.x"): s

        Proved as for `parallel`, but that threads of a block ("threadIdx.x", "y" and "z") may
        reduce: each has a part of the sum, and lowering for a device combines these. Elsewhere the
        loop runs as a loop. Refused too: an axis that a loop of the same nest has.
        """
        self._run("bind", loops.bind, (self._loop(loop),), {"thread_axis": thread_axis})

    def annotate(self, block_or_loop: BlockLike | LoopLike, ann_key: str, ann_val: object) -> None:
        """Set an annotation of a block or a loop; lowering and later steps may read it.

        The value is a number, a string, a sampled number, or lists and mappings of those.
        """
        given = (self._place_of(block_or_loop),)
        self._run("annotate", loops.annotate, given, {"ann_key": ann_key, "ann_val": ann_val})

    def unannotate(self, block_or_loop: BlockLike | LoopLike, ann_key: str) -> None:
        """Take an annotation away. Refused if there is none of the name."""
        given = (self._place_of(block_or_loop),)
        self._run("unannotate", loops.unannotate, given, {"ann_key": ann_key})

    # Decisions.

    def sample_perfect_tile(
        self,
        loop: LoopLike,
        n: int,
        max_innermost_factor: int = 16,
        decision: Sequence[int] | None = None,
    ) -> list[ExprRV]:
        """n numbers whose product is the loop's extent, drawn at random; for `split`.

        A given decision that does not fit the extent keeps the inner factors that divide it.
        """
        handle = self._loop(loop)
        found = self._get_loop(handle)
        sizes = self._told_by(
            lambda: sampling.perfect_tile(found, n, max_innermost_factor, decision, self._random)
        )
        attrs = {"n": n, "max_innermost_factor": max_innermost_factor}
        made = self._query("sample_perfect_tile", (handle,), attrs, sizes, decision=sizes)
        return list(made)  # type: ignore[arg-type]

    def sample_partitioned_tile(
        self,
        loop: LoopLike,
        n: int,
        partition_pos: int = 0,
        innerpart_factor: int = 1,
        decision: Sequence[int] | None = None,
    ) -> list[ExprRV]:
        """n numbers whose product is the loop's extent, drawn at random; `innerpart_factor` divides
        the product of those from `partition_pos` on. Raises ScheduleError where it does not divide
        the extent, and for a decision that does not fit.
        """
        handle = self._loop(loop)
        found = self._get_loop(handle)
        wanted = (n, partition_pos, innerpart_factor)
        sizes = self._told_by(
            lambda: sampling.partitioned_tile(found, *wanted, decision, self._random)
        )
        attrs = {"n": n, "partition_pos": partition_pos, "innerpart_factor": innerpart_factor}
        made = self._query("sample_partitioned_tile", (handle,), attrs, sizes, decision=sizes)
        return list(made)  # type: ignore[arg-type]

    def sample_categorical(
        self, candidates: Sequence[int], probs: Sequence[float], decision: int | None = None
    ) -> ExprRV:
        """One of the candidates, by their probabilities; `decision` is its number."""
        numbers, weights = [int(c) for c in candidates], [float(p) for p in probs]
        which, value = sampling.categorical(numbers, weights, decision, self._random)
        attrs = {"candidates": numbers, "probs": weights}
        made = self._query("sample_categorical", (), attrs, [value], decision=which)
        assert isinstance(made[0], ExprRV)
        return made[0]

    def sample_compute_location(self, block: BlockLike, decision: int | None = None) -> LoopRV:
        """A loop of the block's first reader at which `compute_at` is possible, at random.

        `decision` counts those loops from outside; -1 leaves the block where it is, -2 inlines it:
        `compute_at` and `reverse_compute_at` understand both.
        """
        handle = self._block(block)
        found = self._get_block_realize(handle)
        which, place = self._told_by(
            lambda: sampling.compute_location(self._program, found, decision, self._random)
        )
        made: list[LoopRV | BlockRV | ExprRV]
        if isinstance(place, int):
            made = [self._special(place)]
            self._record("sample_compute_location", (handle,), {}, made, which)
        else:
            made = self._query("sample_compute_location", (handle,), {}, [place], decision=which)
        return loop_handles(made)[0]
