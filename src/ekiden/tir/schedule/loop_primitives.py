"""The schedule primitives on loops, as methods."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.prim import PrimExpr
from ekiden.tir.schedule import conditions, loops, sampling
from ekiden.tir.schedule.core import BlockLike, LoopLike, ScheduleState
from ekiden.tir.schedule.merge_loops import merge
from ekiden.tir.schedule.trace import BlockRV, ExprRV, LoopRV

Factor = int | PrimExpr | None
_LOOP_HANDLES_EXPECTED_TEXT = "a step that makes loops gives their handles"


def loop_handles(outputs: Sequence[object]) -> list[LoopRV]:
    """Return the outputs of a primitive that creates loops."""
    assert all(isinstance(h, LoopRV) for h in outputs), _LOOP_HANDLES_EXPECTED_TEXT
    return list(outputs)  # type: ignore[arg-type]


class LoopPrimitives(ScheduleState):
    """The schedule primitives on loops: a base class of Schedule. A primitive that is refused
    leaves the schedule unchanged.
    """

    def split(
        self,
        loop: LoopLike,
        factors: Sequence[Factor],
        preserve_unit_iters: bool = True,
        disable_predication: bool = False,
        tail: str = "predicate",
    ) -> list[LoopRV]:
        """Split a loop into a nest of loops.

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

        One factor may be None: it is inferred. Where the factors may exceed the extent, every block
        inside gets a predicate; with `tail="loop"` (first factor None) the tail becomes a loop of
        its own instead; with "short" ([None, n]) the last inner loop is shorter; with "balanced"
        inner extents differ by at most one: [None, n] makes parts of at most n, [n, None] makes n
        parts. `preserve_unit_iters=False` substitutes 0 for loops of one iteration; with
        `disable_predication` the caller guarantees that the factors fit. Refused: factors that
        multiply to less than the extent or are not positive, a loop that is no longer serial.
        """
        attrs = {
            "preserve_unit_iters": preserve_unit_iters,
            "disable_predication": disable_predication,
            "tail": tail,
        }
        inputs = (self._loop_handle(loop), list(factors))
        return loop_handles(self._run_primitive("split", loops.split, inputs, attrs))

    def partition(self, loop: LoopLike, points: Sequence[int | PrimExpr]) -> list[LoopRV]:
        """Partition a loop at given points into consecutive loops with blocks of their own.

            for i in range(10): s(i)
            -> partition(i, [1, 9])
            for i in range(1): s(i); for i in range(8): s_1(1 + i); for i in range(1): s_2(9 + i)

        Then a condition on the loop holds in all of a part, or in none. A point that is not known
        to be behind the one before and in the loop's range is clamped. Refused: a loop that is no
        longer serial.
        """
        inputs = (self._loop_handle(loop), list(points))
        return loop_handles(self._run_primitive("partition", loops.partition, inputs))

    def loop_partition(
        self, loop: LoopLike, factors: Sequence[Factor], preserve_unit_iters: bool = True
    ) -> list[LoopRV]:
        """Partition a loop into consecutive loops of given extents; blocks of later parts are
        renamed.

            for i in range(10): s(i)
            -> loop_partition(i, [2, 3])
            for i_0 in range(2): s(i_0)
            for i_1 in range(3): s_part1(2 + i_1)
            for i_2 in range(5): s_part2(5 + i_2)

        One factor may be None: the remaining iterations; without it the remainder is a part at the
        end. Refused: factors that are not positive, or leave nothing; a loop that is no longer
        serial.
        """
        attrs = {"preserve_unit_iters": preserve_unit_iters}
        inputs = (self._loop_handle(loop), list(factors))
        return loop_handles(
            self._run_primitive("loop_partition", loops.loop_partition, inputs, attrs)
        )

    def enter_postproc(self) -> None:
        """Mark in the trace where postprocessing begins: primitives that make a sampled program
        executable, such as choosing threads; the program stays unchanged.
        """
        self._record_instruction("enter_postproc", (), {}, ())

    def fuse(self, *many: LoopLike, preserve_unit_iters: bool = True) -> LoopRV:
        """Fuse perfectly nested loops into one loop over their product.

            for i, j in grid(n, m): s(i, j)   ->   for f in range(n * m): s(f // m, f % m)

        Refused: something else between them, a range that depends on one of them, a loop that does
        not start at 0 or is no longer serial.
        """
        handles = tuple(self._loop_handle(x) for x in many)
        attrs = {"preserve_unit_iters": preserve_unit_iters}
        return loop_handles(self._run_primitive("fuse", loops.fuse, handles, attrs))[0]

    def partition_by_conditions(self, block: BlockLike, loop: LoopLike) -> list[BlockRV]:
        """Partition a loop into regions in which conditions in a block always hold, and edges in
        which they hold in some iterations; return the block of each region, in order.

            for t in 4: for p in 4: y[t*4 + p] = x[t*4 + p - 1] if t*4 + p >= 1 else 0
            -> partition_by_conditions(y, t)
            for t in 1: for p in 4: y_edge[p] = x[p - 1] if p >= 1 else 0
            for t in 3: for p in 4: y[t*4 + p + 4] = x[t*4 + p + 3]

        Where all is decided, the conditions are left out, and the first such region keeps the names
        of its blocks; others have the suffixes "_edge" and "_inner". Of loops of known extents each
        edge is one iteration, and parts of a split have one size in each region. Otherwise there
        are three regions at most, of which the middle is where linear conditions hold. Refused: no
        condition that depends on the loop, one that is not linear, more than 32 regions.
        """
        handles = (self._block_handle(block), self._loop_handle(loop))
        step = conditions.partition_by_conditions
        outputs = self._run_primitive("partition_by_conditions", step, handles)
        return [handle for handle in outputs if isinstance(handle, BlockRV)]

    def merge(self, *many: LoopLike) -> LoopRV:
        """Merge sibling loops into one loop, and the perfect nests around them into one nest.

            for i: a[i] = f(i)
            for j: b[j] = g(j)      ->   for m: a[m] = f(m); b[m] = g(m)

        Refused: other extents or depths, statements between them, a buffer that one writes and
        another touches, loops that are no longer serial.
        """
        handles = tuple(self._loop_handle(x) for x in many)
        return loop_handles(self._run_primitive("merge", merge, handles))[0]

    def reorder(self, *ordered_loops: LoopLike) -> None:
        """Reorder loops of one nest; loops between them that are not named keep their positions.

            for i, j, k in grid(n, m, l): s   ->   reorder(k, i)   ->   for k, j, i in ...: s

        Proved: every block inside is complete, a reduction or an update; a sum whose loops change
        order runs once for each step, its first step stays first; blocks that share a buffer do so
        within one step. Refused otherwise, and where a range depends on a loop that would be
        inside.
        """
        handles = tuple(self._loop_handle(x) for x in ordered_loops)
        self._run_primitive("reorder", loops.reorder, handles)

    def reorder_block_iter_var(self, block: BlockLike, new_order: Sequence[int]) -> None:
        """Reorder the iterators of a block; its loops stay unchanged.

        with block(vi, vj, vk)   ->   reorder_block_iter_var(b, [2, 0, 1])   ->   block(vk, vi, vj)
        """
        attrs = {"new_order": [int(n) for n in new_order]}
        self._run_primitive(
            "reorder_block_iter_var",
            loops.reorder_block_iter_var,
            (self._block_handle(block),),
            attrs,
        )

    def add_unit_loop(self, block_or_loop: BlockLike | LoopLike) -> LoopRV:
        """Add a loop of one iteration around a block or a loop.

        s   ->   for u in range(1): s
        """
        outputs = self._run_primitive(
            "add_unit_loop", loops.add_unit_loop, (self._block_or_loop(block_or_loop),)
        )
        return loop_handles(outputs)[0]

    def tile(
        self, x: LoopLike, y: LoopLike, x_factor: int, y_factor: int
    ) -> tuple[LoopRV, LoopRV, LoopRV, LoopRV]:
        """Tile two neighbouring loops; return (x_outer, y_outer, x_inner, y_inner).

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
        """Distribute a loop's iterations over threads, at least `grain` to each.

            for i in range(n): s   ->   for i in parallel(n): s

        Proved: no two steps touch one element of a buffer that either writes, or the buffer can be
        each step's own (its step writes what it reads). Refused otherwise: a loop that a sum runs
        over, steps that overlap.
        """
        self._run_primitive(
            "parallel", loops.parallel, (self._loop_handle(loop),), {"grain": grain}
        )

    def vectorize(self, loop: LoopLike, lanes: int | None = None) -> None:
        """Vectorise a loop by `lanes` elements; the tail is masked.

            for i in range(n): s   ->   for i in vectorized(n): s

        Without `lanes`, 16 steps at a time. Proved as for `parallel`.
        """
        attrs = {} if lanes is None else {"lanes": lanes}
        self._run_primitive("vectorize", loops.vectorize, (self._loop_handle(loop),), attrs)

    def unroll(self, loop: LoopLike) -> None:
        """Unroll a loop of constant extent.

        for i in range(3): s(i)   ->   s(0); s(1); s(2)
        """
        self._run_primitive("unroll", loops.unroll, (self._loop_handle(loop),))

    def bind(self, loop: LoopLike, thread_axis: str) -> None:
        """Bind a loop to a thread axis: "blockIdx.x", "threadIdx.y", "vthread", ...

            for i in range(n): s   ->   for i in thread_binding(n, thread="threadIdx.x"): s

        Proved as for `parallel`, except that threads of a block ("threadIdx.x", "y" and "z") may
        reduce: each has a partial sum, and lowering for a GPU combines these. Elsewhere the loop
        runs as a loop. Refused too: an axis already bound in the same nest.
        """
        self._run_primitive(
            "bind", loops.bind, (self._loop_handle(loop),), {"thread_axis": thread_axis}
        )

    def annotate(self, block_or_loop: BlockLike | LoopLike, ann_key: str, ann_val: object) -> None:
        """Set an annotation of a block or a loop; lowering and later steps may read it.

        The value is a number, a string, a sampled number, or lists and mappings of those.
        """
        inputs = (self._block_or_loop(block_or_loop),)
        self._run_primitive(
            "annotate", loops.annotate, inputs, {"ann_key": ann_key, "ann_val": ann_val}
        )

    def unannotate(self, block_or_loop: BlockLike | LoopLike, ann_key: str) -> None:
        """Remove an annotation. Refused if there is none of the name."""
        inputs = (self._block_or_loop(block_or_loop),)
        self._run_primitive("unannotate", loops.unannotate, inputs, {"ann_key": ann_key})

    # Decisions.

    def sample_perfect_tile(
        self,
        loop: LoopLike,
        n: int,
        max_innermost_factor: int = 16,
        decision: Sequence[int] | None = None,
    ) -> list[ExprRV]:
        """Draw n random factors whose product is the loop's extent, for `split`.

        A given decision that does not fit the extent keeps the inner factors that divide it.
        """
        handle = self._loop_handle(loop)
        loop_stmt = self._get_loop(handle)
        sizes = self._with_located_errors(
            lambda: sampling.sample_perfect_tile(
                loop_stmt, n, max_innermost_factor, decision, self._random
            )
        )
        attrs = {"n": n, "max_innermost_factor": max_innermost_factor}
        outputs = self._run_query("sample_perfect_tile", (handle,), attrs, sizes, decision=sizes)
        return list(outputs)  # type: ignore[arg-type]

    def sample_partitioned_tile(
        self,
        loop: LoopLike,
        n: int,
        partition_pos: int = 0,
        innerpart_factor: int = 1,
        decision: Sequence[int] | None = None,
    ) -> list[ExprRV]:
        """Draw n random factors whose product is the loop's extent; `innerpart_factor` divides the
        product of those from `partition_pos` on. Raises ScheduleError where it does not divide
        the extent, and for a decision that does not fit.
        """
        handle = self._loop_handle(loop)
        loop_stmt = self._get_loop(handle)
        constraints = (n, partition_pos, innerpart_factor)
        sizes = self._with_located_errors(
            lambda: sampling.sample_partitioned_tile(
                loop_stmt, *constraints, decision, self._random
            )
        )
        attrs = {"n": n, "partition_pos": partition_pos, "innerpart_factor": innerpart_factor}
        outputs = self._run_query(
            "sample_partitioned_tile", (handle,), attrs, sizes, decision=sizes
        )
        return list(outputs)  # type: ignore[arg-type]

    def sample_categorical(
        self, candidates: Sequence[int], probs: Sequence[float], decision: int | None = None
    ) -> ExprRV:
        """Draw one of the candidates by their probabilities; `decision` is its index."""
        numbers, weights = [int(c) for c in candidates], [float(p) for p in probs]
        which, value = sampling.sample_categorical(numbers, weights, decision, self._random)
        attrs = {"candidates": numbers, "probs": weights}
        outputs = self._run_query("sample_categorical", (), attrs, [value], decision=which)
        assert isinstance(outputs[0], ExprRV)
        return outputs[0]

    def sample_compute_location(self, block: BlockLike, decision: int | None = None) -> LoopRV:
        """Draw a random loop of the block's first reader at which `compute_at` is possible.

        `decision` counts those loops from outside; -1 leaves the block in place, -2 inlines it:
        `compute_at` and `reverse_compute_at` accept both.
        """
        handle = self._block_handle(block)
        realize = self._get_block_realize(handle)
        which, location = self._with_located_errors(
            lambda: sampling.sample_compute_location(
                self._current_program, realize, decision, self._random
            )
        )
        outputs: list[LoopRV | BlockRV | ExprRV]
        if isinstance(location, int):
            outputs = [self._location_handle(location)]
            self._record_instruction("sample_compute_location", (handle,), {}, outputs, which)
        else:
            outputs = self._run_query(
                "sample_compute_location", (handle,), {}, [location], decision=which
            )
        return loop_handles(outputs)[0]
