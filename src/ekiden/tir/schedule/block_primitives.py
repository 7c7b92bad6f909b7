"""The schedule primitives on blocks and buffers, as methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.ir.prim import ExprLike
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.expr import Buffer
from ekiden.tir.index_map import IndexMap
from ekiden.tir.schedule import (
    cache,
    compute_at,
    inline,
    layout,
    read_write_at,
    reduction,
    reuse_buffer,
    rolling_buffer,
    rolling_update,
    sampling,
    tensorize,
)
from ekiden.tir.schedule.allocate_at import allocate_at
from ekiden.tir.schedule.cache_index import cache_index
from ekiden.tir.schedule.core import BlockLike, LoopLike, ScheduleState
from ekiden.tir.schedule.decompose_padding import decompose_padding
from ekiden.tir.schedule.program import RefusedError
from ekiden.tir.schedule.reindex_cache import reindex_cache_read, reindex_cache_write
from ekiden.tir.schedule.set_dtype import unsafe_set_dtype
from ekiden.tir.schedule.skip_iterations import skip_turns, skipped_fraction
from ekiden.tir.schedule.skip_zeros import skip_zeros
from ekiden.tir.schedule.trace import BlockRV, LoopRV
from ekiden.tir.stmt import BlockRealize, For

BufferSelector = int | str | Buffer
IndexMapLike = IndexMap | Callable[..., ExprLike | Sequence[ExprLike]]


def _single_block_handle(handles: Sequence[object]) -> BlockRV:
    assert isinstance(handles[0], BlockRV), "a step that makes a block gives its handle"
    return handles[0]


class BlockPrimitives(ScheduleState):
    """The schedule primitives on blocks: a base class of Schedule. A primitive that is refused
    leaves the schedule unchanged.
    """

    # Where blocks are computed.

    def compute_inline(self, block: BlockLike) -> None:
        """Inline a block's expression where its elements are read.

            b[i] = f(i); c[i] = g(b[i])   ->   c[i] = g(f(i))

        A block without readers is removed. Proved: one store at distinct iterators, the only
        writer, what it reads is not written again. Refused otherwise, for reductions and for
        outputs of the function.
        """
        self._run_primitive("compute_inline", inline.compute_inline, (self._block_handle(block),))

    def reverse_compute_inline(self, block: BlockLike) -> None:
        """Inline a block into its only producer.

            b[i] = f(i); c[i] = g(b[i])   ->   c[i] = g(f(i)), in the loops of b

        The remaining block keeps the producer's name and handles. Proved: the producer is plain,
        writes all of its buffer, and has no other reader; the block reads each element of it once
        (at a bijection of its iterators).
        """
        self._run_primitive(
            "reverse_compute_inline", inline.reverse_compute_inline, (self._block_handle(block),)
        )

    def compute_at(
        self,
        block: BlockLike,
        loop: LoopLike,
        preserve_unit_loops: bool = False,
        index: int = -1,
    ) -> None:
        """Move a producer block under a loop: each iteration computes the part of its buffers that
        the iteration reads.

            for i: b[i] = f(i)                      for j:
            for j: c[j] = b[j] + b[j + 1]     ->        for ax in range(2): b[j + ax] = f(j + ax)
                                                        c[j] = b[j] + b[j + 1]

        `index` is the place among the statements of the loop: -1 just before the first reader, -2
        at the start. Proved: the block is complete or a reduction, the only writer, no output; all
        its readers are in the loop, what it reads is final. Parts that steps share are computed
        again in each (see `rolling_buffer`). A buffer of scope "shared" gets what all threads of
        the loops around need; its own loops may then be bound to the same thread axes.
        """
        if self._apply_compute_location(block, loop):
            return
        handles = (self._block_handle(block), self._loop_handle(loop))
        attrs = {"preserve_unit_loops": preserve_unit_loops, "index": index}
        self._run_primitive("compute_at", compute_at.compute_at, handles, attrs, moves=True)

    def reverse_compute_at(
        self,
        block: BlockLike,
        loop: LoopLike,
        preserve_unit_loops: bool = False,
        index: int = -1,
    ) -> None:
        """Move a consumer block under a loop: each iteration computes the part that depends on what
        the iteration has written.

            for i, j: b[i, j] = f(i, j)             for i:
            for i, j: c[i, j] = g(b[i, j])    ->        for j: b[i, j] = f(i, j)
                                                        for j: c[i, j] = g(b[i, j])

        Where loops around reduce, the block runs in their last step alone. Proved: what a step
        writes is final then (no reduction over the loop itself) and a box; the block reads it at
        its own iterators; over all steps it runs for every point (a reduction: once); its other
        inputs are there before the loop.
        """
        if self._apply_compute_location(block, loop):
            return
        handles = (self._block_handle(block), self._loop_handle(loop))
        attrs = {"preserve_unit_loops": preserve_unit_loops, "index": index}
        self._run_primitive(
            "reverse_compute_at", compute_at.reverse_compute_at, handles, attrs, moves=True
        )

    def _apply_compute_location(self, block: BlockLike, loop: LoopLike) -> bool:
        """Apply a result of sample_compute_location that is not a loop (root or inline); return
        whether it was one.
        """
        if not isinstance(loop, LoopRV) or loop not in self._referents:
            return False
        location = self._referents[loop][1]
        if location == sampling.INLINE:
            self.compute_inline(block)
        return location in (sampling.INLINE, sampling.ROOT) and isinstance(location, int)

    # Copies.

    def cache_read(
        self,
        block: BlockLike,
        read_buffer_index: BufferSelector,
        storage_scope: str,
        consumer_blocks: Sequence[BlockLike] | None = None,
    ) -> BlockRV:
        """Stage a buffer that a block reads in a new buffer of another scope; return the block that
        copies.

            c[i] = a[i] * 2   ->   a_local[i] = a[i]; c[i] = a_local[i] * 2

        All readers use the copy, or only `consumer_blocks`. Proved: the buffer is not written after
        the copy is made.
        """
        attrs = self._cache_attrs("read_buffer_index", read_buffer_index, storage_scope)
        if consumer_blocks is not None:
            attrs["consumer_blocks"] = [self._block_handle(b) for b in consumer_blocks]
        handles = (self._block_handle(block),)
        return _single_block_handle(
            self._run_primitive("cache_read", cache.cache_read, handles, attrs, moves=True)
        )

    def cache_write(
        self,
        block: BlockLike,
        write_buffer_index: BufferSelector,
        storage_scope: str,
        consumer_blocks: Sequence[BlockLike] | None = None,
    ) -> BlockRV:
        """Compute a block's result in a new buffer of another scope; return the block that copies
        it back.

            c[i] = f(i)   ->   c_local[i] = f(i); c[i] = c_local[i]

        Readers of the old buffer keep it, except `consumer_blocks`. Proved: the block is the only
        writer, and the copy reads exactly what it has written.
        """
        attrs = self._cache_attrs("write_buffer_index", write_buffer_index, storage_scope)
        if consumer_blocks is not None:
            attrs["consumer_blocks"] = [self._block_handle(b) for b in consumer_blocks]
        handles = (self._block_handle(block),)
        return _single_block_handle(
            self._run_primitive("cache_write", cache.cache_write, handles, attrs, moves=True)
        )

    def _cache_attrs(self, key: str, which: BufferSelector, scope: str) -> dict[str, object]:
        return {key: which.name if isinstance(which, Buffer) else which, "storage_scope": scope}

    def reindex(self, block: BlockLike, buffer: tuple[str, int] | BufferSelector) -> BlockRV:
        """Copy a buffer that a block reads or writes to one that its iterators index directly;
        return the copying block.

            c[i] += a[i + k] * w[k]
            -> reindex("c", ("read", 0))
            a_reindex[i, k] = a[i + k]; c[i] += a_reindex[i, k] * w[k]

        `buffer` is ("read" | "write", number), a name or a buffer. Proved: one pattern of indices,
        not under a condition.
        """
        side = buffer.name if isinstance(buffer, Buffer) else buffer
        attrs = {"buffer": list(side) if isinstance(side, tuple) else side}
        handles = (self._block_handle(block),)
        return _single_block_handle(
            self._run_primitive("reindex", cache.reindex, handles, attrs, moves=True)
        )

    def reindex_cache_read(
        self,
        block: BlockLike,
        read_buffer_index: BufferSelector,
        storage_scope: str,
        index_map: IndexMapLike,
    ) -> BlockRV:
        """Stage a buffer that a block reads in one laid out by an index map of the block's
        iterators.

            c[i, j] = b[i, j]
            -> reindex_cache_read("c", 0, "shared", lambda i, j: (j, i))
            b_reindex[j, i] = b[i, j]; c[i, j] = b_reindex[j, i]

        It is `reindex`, `transform_layout` and `set_scope`. Proved: what they prove.
        """
        attrs = self._cache_attrs("read_buffer_index", read_buffer_index, storage_scope)
        attrs["index_map"] = _convert_index_map(index_map)
        step, handles = reindex_cache_read, (self._block_handle(block),)
        return _single_block_handle(
            self._run_primitive("reindex_cache_read", step, handles, attrs, moves=True)
        )

    def reindex_cache_write(
        self,
        block: BlockLike,
        write_buffer_index: BufferSelector,
        storage_scope: str,
        index_map: IndexMapLike,
    ) -> BlockRV:
        """Compute a block's result in a buffer laid out by an index map of the block's iterators,
        and copy it back afterwards.
        """
        attrs = self._cache_attrs("write_buffer_index", write_buffer_index, storage_scope)
        attrs["index_map"] = _convert_index_map(index_map)
        step, handles = reindex_cache_write, (self._block_handle(block),)
        return _single_block_handle(
            self._run_primitive("reindex_cache_write", step, handles, attrs, moves=True)
        )

    def set_scope(self, block: BlockLike, buffer_index: BufferSelector, storage_scope: str) -> None:
        """Move an intermediate that a block writes to another scope.

        b = alloc(n)   ->   b = alloc(n, scope="local")
        """
        self._run_primitive(
            "set_scope",
            cache.set_scope,
            (self._block_handle(block),),
            self._cache_attrs("buffer_index", buffer_index, storage_scope),
        )

    def unsafe_set_dtype(self, block: BlockLike, buffer_index: BufferSelector, dtype: str) -> None:
        """Store an intermediate that a block writes in another dtype.

        Values are rounded to it, so results change: the one primitive that does not preserve the
        program's meaning.

            b[i] = x; c[i] = b[i]   ->   b[i] = float16(x); c[i] = float32(b[i])
        """
        which = buffer_index.name if isinstance(buffer_index, Buffer) else buffer_index
        attrs = {"buffer_index": which, "dtype": str(dtype)}
        self._run_primitive(
            "unsafe_set_dtype", unsafe_set_dtype, (self._block_handle(block),), attrs
        )

    def storage_align(
        self, block: BlockLike, buffer_index: BufferSelector, axis: int, factor: int, offset: int
    ) -> None:
        """Store an intermediate so that the stride of an axis is k * factor + offset elements.

        b[32, 32]   ->   storage_align("b", 0, axis=0, factor=32, offset=1)   ->   stride 33
        """
        which = buffer_index.name if isinstance(buffer_index, Buffer) else buffer_index
        attrs = {"buffer_index": which, "axis": axis, "factor": factor, "offset": offset}
        self._run_primitive(
            "storage_align", cache.storage_align, (self._block_handle(block),), attrs
        )

    def rolling_buffer(self, block: BlockLike, write_buffer_index: BufferSelector) -> None:
        """Keep a buffer's sliding window in a circular buffer: each iteration of a loop computes
        only the elements that enter the window.

        for j:                                       for j:
                for ax in 3: b[j + ax] = f(j + ax)  ->       for ax in 3: if j == 0 or ax == 2:
                c[j] = b[j] + b[j + 1] + b[j + 2]                b[(j + ax) % 3] = f(j + ax)
                                                             c[j] = b[j % 3] + b[(j + 1) % 3] + ...

        For blocks that `compute_at` computes again and again. Proved: the window moves along one
        axis by a constant pace less than its size, in a serial loop around all uses.
        """
        which = write_buffer_index
        attrs = {"write_buffer_index": which.name if isinstance(which, Buffer) else which}
        handles = (self._block_handle(block),)
        self._run_primitive(
            "rolling_buffer", rolling_buffer.rolling_buffer, handles, attrs, moves=True
        )

    def read_at(
        self,
        loop: LoopLike,
        block: BlockLike,
        read_buffer_index: BufferSelector,
        storage_scope: str,
        pad: int = 0,
        first_use: BlockLike | None = None,
    ) -> BlockRV:
        """Stage the region of a buffer that one iteration of a loop reads in a buffer of that size;
        return the copying block.

            for k: for i, j: c[i] += a[i, k * 8 + j]
            -> for k: a_global[i, j] = a[i, k * 8 + j]; for i, j: c[i] += a_global[i, j]

        `pad` elements follow each row of the copy. Proved: the buffer is not written in the loop,
        and steps read parts of one size. With `first_use` no pass over the region precedes: that
        block copies each element when it reads it, and the blocks behind it read the copy. Proved
        too: in each step it is done before they begin, and reads all that they read.
        """
        attrs = self._cache_attrs("read_buffer_index", read_buffer_index, storage_scope)
        if pad:
            attrs["pad"] = pad
        if first_use is not None:
            attrs["first_use"] = self._block_handle(first_use)
        handles = (self._loop_handle(loop), self._block_handle(block))
        return _single_block_handle(
            self._run_primitive("read_at", read_write_at.read_at, handles, attrs, moves=True)
        )

    def write_at(
        self,
        loop: LoopLike,
        block: BlockLike,
        write_buffer_index: BufferSelector,
        storage_scope: str,
    ) -> BlockRV:
        """Compute the region of a buffer that one iteration of a loop writes in a buffer of that
        size, copied back at the iteration's end; return the copying block.

            for i: for j: c[i, j] = f(i, j)
            -> for i: for j: c_global[j] = f(i, j); for j: c[i, j] = c_global[j]

        Proved: the block is the only writer and finished in each step, nobody reads the buffer in
        the loop, and steps write boxes of one size.
        """
        attrs = self._cache_attrs("write_buffer_index", write_buffer_index, storage_scope)
        handles = (self._loop_handle(loop), self._block_handle(block))
        return _single_block_handle(
            self._run_primitive("write_at", read_write_at.write_at, handles, attrs, moves=True)
        )

    def allocate_at(
        self, loop: LoopLike, block: BlockLike, write_buffer_index: BufferSelector = 0
    ) -> None:
        """Allocate a buffer that a block writes in each iteration of a loop, as large as what the
        iteration uses of it.

            alloc b[64, 8]; for i: b[i, j] = f(i, j); c[i] += b[i, j]
            -> for i: alloc b[1, 8]; b[0, j] = f(i, j); c[i] += b[0, j]

        Proved: nothing outside of the loop uses it, each step first writes all that it reads, and
        steps use parts of one size.
        """
        which = write_buffer_index
        attrs = {"write_buffer_index": which.name if isinstance(which, Buffer) else which}
        handles = (self._loop_handle(loop), self._block_handle(block))
        self._run_primitive("allocate_at", allocate_at, handles, attrs)

    def cache_inplace(
        self, block: BlockLike, read_buffer_index: BufferSelector, storage_scope: str
    ) -> list[BlockRV]:
        """Stage a buffer that a block updates in place: copy it to a new buffer before the block
        and back after it; return both copying blocks.

            c[i] = c[i] + 1   ->   c_local[i] = c[i]; c_local[i] = c_local[i] + 1; c[i] = c_local[i]

        The number is among the buffers that the block reads and writes. Proved: what is copied back
        is what it has written.
        """
        attrs = self._cache_attrs("read_buffer_index", read_buffer_index, storage_scope)
        handles = (self._block_handle(block),)
        block_handles = self._run_primitive(
            "cache_inplace", cache.cache_inplace, handles, attrs, moves=True
        )
        return [_single_block_handle([handle]) for handle in block_handles]

    def cache_index(
        self, block: BlockLike, storage_scope: str, cse_thresh: int = 0
    ) -> list[BlockRV]:
        """Compute the non-trivial indices of a block's accesses once, before it; return the
        computing blocks.

            c[i] = a[i // 4 * 8 + i % 4]   ->   index_var[i] = i // 4 * 8 + i % 4
                                                c[i] = a[index_var[i]]

        Only indices that occur more than `cse_thresh` times. Refused where there are none.
        """
        attrs = {"storage_scope": storage_scope, "cse_thresh": cse_thresh}
        block_handles = self._run_primitive(
            "cache_index", cache_index, (self._block_handle(block),), attrs, moves=True
        )
        return [_single_block_handle([handle]) for handle in block_handles]

    def decompose_padding(self, block: BlockLike, loop: LoopLike) -> BlockRV:
        """Split a padded copy into a constant fill and a copy of the data inside; return the fill's
        block. `loop` and the loops below it, down to the block, are duplicated.

            for i in 10: b[i] = if_then_else(1 <= i and i < 9, a[i - 1], 0)
            -> for i in 10: b[i] = 0; for i in 8: b[i + 1] = a[i]

        Proved: the block chooses between data and a constant by bounds of single loops.
        """
        handles = (self._block_handle(block), self._loop_handle(loop))
        return _single_block_handle(
            self._run_primitive("decompose_padding", decompose_padding, handles)
        )

    def can_decompose_padding(self, block: BlockLike, loop: LoopLike) -> bool:
        """Return whether `decompose_padding` would be accepted."""
        handles = (self._block_handle(block), self._loop_handle(loop))
        program = self._program_of_inputs(handles)
        realize, loop_stmt = (self._resolve_handles(handle) for handle in handles)
        assert isinstance(realize, BlockRealize) and isinstance(loop_stmt, For)
        try:
            decompose_padding(program, realize, loop_stmt)
        except RefusedError:
            return False
        return True

    def skip_zeros(self, block: BlockLike, lanes: int = 1) -> list[BlockRV]:
        """Omit the terms of a sum that a remainder condition makes zero; return the block that
        recomputes non-finite sums, where one is needed.

            for h in 8, k in 4: c[h] += (x[(h + k) // 2] if (h + k) % 2 == 0 else 0) * w[k]
            -> for h_phase in 2, h in 4, k in 2: c_sums[h_phase, h] += x[...] * w[2 * k + h_phase]
               c[h] = c_sums[h % 2, h // 2]; if not all finite: c in full

        The condition may be in the block or in the producer of an element that it reads. Iterators
        of remainders come first. Proved: the loops are one per iterator; the omitted terms are 0. A
        float product with 0 is 0 where the condition covers the whole product, where
        "tir.fast_math" has "nnan ninf", or else where the sums, each factor being in one of them,
        turn out finite: the returned block checks that, in vectors of `lanes`.
        """
        handles = (self._block_handle(block),)
        block_handles = self._run_primitive("skip_zeros", skip_zeros, handles, {"lanes": lanes})
        return [_single_block_handle([handle]) for handle in block_handles]

    def skip_turns(self, block: BlockLike, *loops: LoopLike, lanes: int = 1) -> list[BlockRV]:
        """Skip the iterations of loops that add only zeros to a sum; return the block that checks
        the other factor for non-finite values, where one is needed.

            for d: for o: for c: y[d] += (x[d + o, c] if d + o < 8 else 0) * w[o, c]
            -> skip_turns(y, o)
            for d: for o: if d + o < 8 or not all w finite: for c: y[d] += ...

        The condition may be in the block or in the producer of an element that it reads; it counts
        if it depends on one of the loops and on none inside of it. Proved: the block alone in the
        loops adds to sums that another one initialises; the omitted terms are 0: for floats, where
        the condition covers the product too, where "tir.fast_math" has "nnan ninf", or where all of
        the other factor, an argument of the function, is checked, in vectors of `lanes`. Refused
        where there is no such condition.
        """
        handles = (self._block_handle(block), *map(self._loop_handle, loops))
        block_handles = self._run_primitive("skip_turns", skip_turns, handles, {"lanes": lanes})
        return [_single_block_handle([handle]) for handle in block_handles]

    def share_skipped(self, block: BlockLike, *loops: LoopLike) -> float:
        """Return the fraction of all iterations, from 0 to 1, that `skip_turns` would skip; 0 where
        it would be refused.
        """
        handles = (self._block_handle(block), *map(self._loop_handle, loops))
        program = self._program_of_inputs(handles)
        realize, *loop_stmts = (self._resolve_handles(handle) for handle in handles)
        assert isinstance(realize, BlockRealize)
        try:
            return skipped_fraction(
                program, realize, *(e for e in loop_stmts if isinstance(e, For))
            )
        except RefusedError:
            return 0.0

    def reuse_buffer(self, block: BlockLike, write_buffer_index: BufferSelector) -> None:
        """Store an intermediate in the memory of its only reader's result.

            b[i] = f(i); c[i] = g(b[i])   ->   c[i] = f(i); c[i] = g(c[i])

        Proved: the reader takes each element at the place it writes, of the same type, and once;
        nobody else uses either.
        """
        which = write_buffer_index
        attrs = {"write_buffer_index": which.name if isinstance(which, Buffer) else which}
        self._run_primitive(
            "reuse_buffer", reuse_buffer.reuse_buffer, (self._block_handle(block),), attrs
        )

    # Reductions.

    def decompose_reduction(self, block: BlockLike, loop: LoopLike) -> BlockRV:
        """Move the init of a reduction to a nest of its own before a loop; return the init's block.

            for i: for k: c[i] = 0 at first; c[i] += a[i, k]
            -> decompose_reduction(c, i)
            for i: c[i] = 0
            for i: for k: c[i] += a[i, k]

        Proved: all loops of the sum are in the loop, and each step runs once.
        """
        handles = (self._block_handle(block), self._loop_handle(loop))
        step = reduction.decompose_reduction
        return _single_block_handle(
            self._run_primitive("decompose_reduction", step, handles, moves=True)
        )

    def merge_reduction(self, init: BlockLike, update: BlockLike) -> None:
        """Merge an init block back into its reduction: the inverse of decompose_reduction.

            for i: c[i] = 0
            for i: for k: c[i] += a[i, k]   ->   for i: for k: c[i] = 0 at first; c[i] += a[i, k]

        Proved: the init sets a constant in just what is summed, and nothing uses it between.
        """
        handles = (self._block_handle(init), self._block_handle(update))
        self._run_primitive("merge_reduction", reduction.merge_reduction, handles)

    def rfactor(self, loop: LoopLike, factor_axis: int) -> BlockRV:
        """Factor a reduction over a loop into a partial result per iteration and the reduction of
        those; return the block of partial results.

            for i: for k0, k1: c[i] += a[i, k0 * 4 + k1]
            -> rfactor(k1, 0)
            for i: for k0, k1: c_rf[k1, i] += a[i, k0 * 4 + k1]
            for i: for k1: c[i] += c_rf[k1, i]

        `factor_axis` is where the new buffer has the loop as an axis. Proved: the operator's order
        does not matter, the loop is reduced alone.
        """
        handles = (self._loop_handle(loop),)
        attrs = {"factor_axis": factor_axis}
        return _single_block_handle(
            self._run_primitive("rfactor", reduction.rfactor, handles, attrs, moves=True)
        )

    def rolling_update(self, block: BlockLike, loop: LoopLike) -> list[BlockRV]:
        """Fuse a sum into the loop over which the maximum in its terms runs; return the block that
        keeps the maximum of the iteration before, and the one that corrects the sum.

            for i: for j: m[i] = max(m[i], x[i, j])
            for i: for j: s[i] += exp(x[i, j] - m[i])
            -> rolling_update(s, j)
            for i: for j:
                m_prev[i] = m[i]; m[i] = max(m[i], x[i, j])
                s[i] = s[i] * exp(m_prev[i] - m[i]); s[i] += exp(x[i, j] - m[i])

        The first two of these run from the second iteration on. Inner loops of the sum stay inside:
        split both nests alike to correct once for each tile. Proved: a row of
        `rolling_update.CORRECTIONS` fits a factor of the terms and the operator of the running
        value; an iteration sums over the elements that the running value takes in, so that the
        factor is at most 1 at any time; nothing else uses either in between.
        """
        handles = (self._block_handle(block), self._loop_handle(loop))
        block_handles = self._run_primitive(
            "rolling_update", rolling_update.rolling_update, handles
        )
        return [_single_block_handle([handle]) for handle in block_handles]

    # Layouts.

    def transform_layout(
        self,
        block: BlockLike,
        buffer: tuple[str, int] | BufferSelector,
        index_map: IndexMapLike,
        pad_value: float | None = None,
        *,
        assume_injective_transform: bool = False,
    ) -> None:
        """Change a buffer's layout by an index map, at every access.

            b[i, j]   ->   transform_layout(b, ("write", 0), lambda i, j: (i // 16, j, i % 16))
            b[i // 16, j, i % 16]

        An argument changes its shape: the function accepts and returns the new layout. Proved: no
        two elements share a location; for an argument, that there is no padding.
        """
        side = buffer.name if isinstance(buffer, Buffer) else buffer
        handle = self._block_handle(block)
        attrs: dict[str, object] = {
            "buffer": list(side) if isinstance(side, tuple) else side,
            "index_map": _convert_index_map(index_map),
        }
        if pad_value is not None:
            attrs["pad_value"] = pad_value
        if assume_injective_transform:
            attrs["assume_injective_transform"] = True
        self._run_primitive("transform_layout", layout.transform_layout, (handle,), attrs)

    def transform_block_layout(self, block: BlockLike, index_map: IndexMapLike) -> None:
        """Replace a block's iterators and loops by functions of the old ones.

        for i, j: b[i, j] = f(i, j)
            -> transform_block_layout(b, lambda i, j: (i * 8 + j,))
            for ax0: b[ax0 // 8, ax0 % 8] = f(ax0 // 8, ax0 % 8)

        Proved: the map is a bijection that does not mix spatial and reduced iterators.
        """
        attrs = {"index_map": _convert_index_map(index_map)}
        handles = (self._block_handle(block),)
        self._run_primitive("transform_block_layout", layout.transform_block_layout, handles, attrs)

    def set_axis_separator(
        self,
        block: BlockLike,
        buffer: BufferSelector | tuple[str, int],
        axis_separators: Sequence[int],
    ) -> None:
        """Accept an empty list of axis separators; raise ScheduleError for any: memory has one
        dimension here.
        """
        if axis_separators:
            raise ScheduleError(
                f"set_axis_separator: memory has one dimension, so that {list(axis_separators)}"
                " cannot be honoured"
            )
        self._block_handle(block)

    def unsafe_hide_buffer_access(
        self, block: BlockLike, buf_type: str, buf_index_array: Sequence[int]
    ) -> None:
        """Raise ScheduleError: a block's reads and writes are derived from its body, so that none
        can be hidden.
        """
        raise ScheduleError(
            f"unsafe_hide_buffer_access: the {buf_type} accesses {list(buf_index_array)} cannot be"
            " hidden: what a block reads and writes follows from its body"
        )

    def pad_einsum(self, block: BlockLike, padding: Sequence[int]) -> None:
        """Round the extents of a sum of products up to multiples, with zeros around its inputs.

            for i, j, k in grid(127, 127, 127): c[i, j] += a[i, k] * b[k, j]
            -> pad_einsum(c, [32, 32, 32])
            a_pad = a or 0; b_pad = b or 0
            for i, j, k in grid(128, 128, 128): c_pad[i, j] += a_pad[i, k] * b_pad[k, j]
            c = c_pad[:127, :127]

        Proved: what is added is a product of elements at plain iterators, each padded with 0.
        """
        attrs = {"padding": [int(p) for p in padding]}
        self._run_primitive("pad_einsum", layout.pad_einsum, (self._block_handle(block),), attrs)

    # Tensors.

    def blockize(self, target: LoopLike, preserve_unit_iters: bool = True) -> BlockRV:
        """Turn the block and the loops inside a loop into one block; return it.

            for i_0, i_1 in grid(4, 8): block(vi = i_0 * 8 + i_1)
            -> blockize(i_1)
            for i_0: block_o(vio = i_0): for i_1: block(vi = vio * 8 + i_1)

        The init of a sum moves to the new block. Proved: each iterator parts into a multiple
        outside and a range inside.
        """
        attrs = {"preserve_unit_iters": preserve_unit_iters}
        handles = (self._loop_handle(target),)
        return _single_block_handle(
            self._run_primitive("blockize", tensorize.blockize, handles, attrs)
        )

    def tensorize(
        self,
        block_or_loop: BlockLike | LoopLike,
        tensor_intrin: str,
        preserve_unit_iters: bool = True,
    ) -> None:
        """Replace a loop nest by a tensor instruction whose description matches it.

            for i in range(16): c[i0 + i] += a[i0 + i] * b[i0 + i]   ->   the implementation, over
            the parts of c, a and b that begin at i0

        The intrinsic is one of `tir.TensorIntrin`, or a micro-kernel with its options, as
        "register_tile(l1_prefetch=16)", in place of the loop over a tile's rows: it builds one per
        tile size, and the epilogue of a sum is done in the same registers. For others a loop is
        blockized first. Proved: loops, values and accesses equal the description's.
        """
        handles = (self._block_or_loop(block_or_loop),)
        attrs = {"tensor_intrin": tensor_intrin, "preserve_unit_iters": preserve_unit_iters}
        self._run_primitive("tensorize", tensorize.tensorize, handles, attrs)


def _convert_index_map(mapping: IndexMapLike) -> IndexMap:
    return mapping if isinstance(mapping, IndexMap) else IndexMap.from_func(mapping)
