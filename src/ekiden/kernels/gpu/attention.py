"""FlashAttention on GPUs: online softmax over key tiles, so that no row of scores is ever complete
in memory.

A block of threads has some queries of one head, and goes along the keys by tiles:

    load keys and values of the tile into shared memory
    scores: each thread some keys of one query        s[r, c] = q[r] . k[c]
    the running maximum rises from m to m', by which all sums are rescaled
    probabilities: p[r, c] = exp(s[r, c] - m')        total = total * exp(m - m') + sum of p[r]
    results: each thread some columns of one query    acc = acc * exp(m - m') + p[r] . v

Where threads have warps, those of a query exchange the maxima of their own scores
(`block_reduction`); others read all scores of the tile from shared memory. A row that sees no key
has a total of 0, and the result 0 / 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import (
    IntImm,
    PrimExpr,
    Select,
    Var,
    const,
    is_const,
    logical_and,
    maximum,
    minimum,
)
from ekiden.kernels.attention.attention_config import AttentionConfig, StridedOperand
from ekiden.kernels.attention.scaled_dot_product import attention_sizes
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace
from ekiden.kernels.family import Family
from ekiden.kernels.gpu.block_reduction import ThreadGroup
from ekiden.kernels.gpu.launch import serial_loop, thread_loop
from ekiden.kernels.prim_builder import (
    create_tiled_function,
    declare_extern_parameters,
    product_of_dims,
)
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.te.prim_func import wrap_in_allocations
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, PrimFunc, Stmt, seq
from ekiden.tir.transform.thread_sync import STORAGE_SYNC

DEFAULT_QUERY_ROWS, DEFAULT_LANES_PER_QUERY, DEFAULT_KEY_TILE = 16, 16, 32
"""Default queries per block, threads per query, and keys per tile, if shared memory suffices."""
SINGLE_QUERY_THREADS = 64
"""Threads per block, and keys per tile, for a single query."""
MAX_REGISTER_SCORES = 8
"""Maximum scores per thread that are kept in registers."""
MIN_SHARED_BYTES = 1 << 15
"""Assumed shared memory per block where unknown: OpenCL's guaranteed minimum."""
F32_DTYPE = "float32"


def _is_supported(anchor: te.Tensor, target: Target) -> bool:
    """Return whether an anchor is an attention on the kernel's inputs, with constant depth and
    value width.
    """
    op = anchor.op
    if op.tag != "attention" or not isinstance(op, te.ExternOp):
        return False
    _, query, value = attention_sizes(anchor)
    is_known = query["d"] is not None and value["d"] is not None
    return is_known and all(isinstance(t.op, te.PlaceholderOp) for t in op.inputs)


def _search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    return (
        Knob("rows", (32, 16, 8, 4, 2, 1), "queries of a block"),
        Knob("lanes", (64, 32, 16, 8, 4, 2, 1), "threads of a query"),
        Knob("keys", (128, 64, 32, 16, 8, 4, 2, 1), "keys of a tile, a multiple of lanes"),
    )


def _default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return a decision whose tiles fit shared memory; a single query gets as many threads as
    several queries together.
    """
    _, query, value = attention_sizes(anchor)
    depth, width, queries = query["d"], value["d"], query["s"]
    assert depth is not None and width is not None
    rows, lanes, keys = DEFAULT_QUERY_ROWS, DEFAULT_LANES_PER_QUERY, DEFAULT_KEY_TILE
    if queries is not None and queries < rows:
        rows = 2 ** math.ceil(math.log2(max(queries, 1)))
        lanes = min(SINGLE_QUERY_THREADS, DEFAULT_LANES_PER_QUERY * DEFAULT_QUERY_ROWS // rows)
        keys = max(lanes, DEFAULT_KEY_TILE)
    room = int(str(target.attrs.get("max_shared_memory_per_block") or MIN_SHARED_BYTES))
    # Fewer keys per tile cost barriers, fewer rows would cost reuse of keys.
    while keys > 1 and 4 * _shared_elements(rows, keys, depth, width) > room:
        keys //= 2
    lanes = min(lanes, keys)
    while rows * lanes > target.max_num_threads:
        lanes, rows = (lanes // 2, rows) if lanes > rows else (lanes, rows // 2)
    values: dict[str, int | str] = {"rows": rows, "lanes": lanes, "keys": keys}
    return Decision.from_mapping(values | dict(fixed))


def _shared_elements(rows: int, keys: int, depth: int, width: int) -> int:
    """Return the elements of shared memory that a block allocates."""
    return (rows + keys) * (depth + 1) + keys * width + rows * (keys + 1)


class _GpuAttentionKernel:
    """Builder of one FlashAttention kernel for GPUs."""

    def __init__(
        self,
        heads: AttentionConfig,
        inputs: Sequence[Buffer],
        out: Buffer,
        cut: Decision,
        target: Target,
    ) -> None:
        operands = zip((*inputs[:3], out), heads.layouts, strict=True)
        self.heads = heads
        self.q, self.k, self.v, self.out = (
            StridedOperand.from_buffer(b, layout) for b, layout in operands
        )
        self.bias = inputs[3] if len(inputs) > 3 else None
        self.rows, self.lanes, self.tile = (cut.int_value(n) for n in ("rows", "lanes", "keys"))
        if self.tile % self.lanes:
            raise CompileError(
                f"decisions: 'thread_attention' {cut}: keys are no multiple of lanes"
            )
        self.queries, self.keys = self.q.dims["s"], self.k.dims["s"]
        depth, width = self.q.dims["d"], self.v.dims["d"]
        assert isinstance(depth, IntImm) and isinstance(width, IntImm)
        self.depth, self.width = depth.value, width.value
        self.columns = -(-self.width // self.lanes)
        self.block, self.thread = Var("block"), Var("thread")
        self.thread_group = ThreadGroup.create(
            self.thread, self.rows * self.lanes, target, self.lanes
        )
        self.row, self.lane = self.thread // self.lanes, self.thread % self.lanes
        self.tiles_per_head = simplify((self.queries + (self.rows - 1)) // self.rows)
        image = self.block // self.tiles_per_head
        self.b, self.h = image // self.q.dims["h"], image % self.q.dims["h"]
        self.first_query = self.block % self.tiles_per_head * self.rows

        def shared_buffer(name: str, count: int) -> Buffer:
            return Buffer(name, (const(count),), F32_DTYPE, "shared")

        def local_buffer(name: str, count: int = 1) -> Buffer:
            return Buffer(name, (const(count),), F32_DTYPE, "local")

        self.shared_q = shared_buffer("queries", self.rows * (self.depth + 1))
        self.shared_k = shared_buffer("keys", self.tile * (self.depth + 1))
        # Values need no padding: neighbouring threads read neighbouring columns, which are in
        # different banks.
        self.shared_v = shared_buffer("values", self.tile * self.width)
        self.shared_probabilities = shared_buffer("shares", self.rows * (self.tile + 1))
        self.running_max, self.new_max, self.exp_sum, self.dot = map(
            local_buffer, ("best", "next", "total", "dot")
        )
        self.weighted_values = local_buffer("sums", self.columns)
        # More scores of a thread than registers hold go through shared memory.
        self.by_warps = (
            self.thread_group.has_warps and self.tile // self.lanes <= MAX_REGISTER_SCORES
        )
        self.own_scores = local_buffer("scores", self.tile // self.lanes)
        if self.by_warps:
            self.largest = self.thread_group.emit_reduction(
                [self.new_max], lambda a, b: [maximum(a[0], b[0])]
            )

    # Places

    def element_indices(
        self, operand: StridedOperand, h: PrimExpr, s: PrimExpr, d: PrimExpr
    ) -> tuple[PrimExpr, ...]:
        """Return the indices of an operand's element in the order of its layout."""
        named = {"b": self.b, "h": h, "s": s, "d": d}
        return tuple(named[axis] for axis in operand.dims)

    def kv_head(self) -> PrimExpr:
        """Return the KV head of a query head (grouped-query attention)."""
        heads, groups = self.q.dims["h"], self.k.dims["h"]
        return self.h if heads is groups else self.h // simplify(heads // groups)

    def query_index(self) -> PrimExpr:
        """Return the query of a thread, clamped to the last one."""
        return minimum(self.first_query + self.row, self.queries - 1)

    # Statements

    def emit_cooperative_load(
        self, to: Buffer, lines: int, width: int, pitch: int,
        value: Callable[[PrimExpr, PrimExpr], PrimExpr],
    ) -> Stmt:  # fmt: skip
        """Emit the cooperative load of lines into shared memory by all threads of a block.

        Args:
            to: The buffer in shared memory.
            lines: Lines to fill.
            width: Elements of a line.
            pitch: Elements from a line to the next.
            value: Gives the element of a line and a column.
        """
        round_index, threads, count = Var("turn"), self.rows * self.lanes, lines * width
        position = round_index * threads + self.thread
        line, column = position // width, position % width
        store = BufferStore(to, value(line, column), (line * pitch + column,))
        guarded = store if count % threads == 0 else IfThenElse(position < count, store)
        return serial_loop(round_index, -(-count // threads), guarded)

    def emit_prologue(self) -> Stmt:
        """Emit the load of the block's queries into shared memory, and the initialisation of the
        accumulators.
        """
        # Lines of queries and keys are one element longer than the depth, against bank conflicts.
        zeros = [
            self.store_local(self.weighted_values, const(0.0, F32_DTYPE), n)
            for n in range(self.columns)
        ]

        def load_query(line: PrimExpr, d: PrimExpr) -> PrimExpr:
            s = minimum(self.first_query + line, self.queries - 1)
            return BufferLoad(self.q.buffer, self.element_indices(self.q, self.h, s, d), F32_DTYPE)

        return seq(
            self.emit_cooperative_load(
                self.shared_q, self.rows, self.depth, self.depth + 1, load_query
            ),
            self.store_local(self.running_max, const(-math.inf, F32_DTYPE)),
            self.store_local(self.exp_sum, const(0.0, F32_DTYPE)),
            *zeros,
        )

    @staticmethod
    def store_local(to: Buffer, value: PrimExpr, at: int = 0) -> Stmt:
        """Store a value in a thread-local buffer."""
        return BufferStore(to, value, (const(at),))

    @staticmethod
    def load_local(of: Buffer, at: int = 0) -> PrimExpr:
        """Load a value from a thread-local buffer."""
        return BufferLoad(of, (const(at),), F32_DTYPE)

    def load_shared(self, buffer: Buffer, line: PrimExpr, pitch: int, column: PrimExpr) -> PrimExpr:
        """Load an element from shared memory."""
        return BufferLoad(buffer, (line * pitch + column,), F32_DTYPE)

    def emit_key_tile(self, begin: PrimExpr) -> Stmt:
        """Emit the online-softmax update for one tile of keys."""

        def element_loader(operand: StridedOperand) -> Callable[[PrimExpr, PrimExpr], PrimExpr]:
            """Return the function that loads an element of keys or values, by line of the tile and
            column.
            """

            def load_or_zero(line: PrimExpr, d: PrimExpr) -> PrimExpr:
                """Load an element, or 0 past the last key of a partial tile."""
                key = begin + line
                read = BufferLoad(
                    operand.buffer, self.element_indices(operand, self.kv_head(), key, d), F32_DTYPE
                )
                return if_then_else(key < self.keys, read, const(0.0, F32_DTYPE))

            return load_or_zero

        # The first barrier keeps a tile in place until the slowest thread has finished reading it.
        return seq(
            STORAGE_SYNC,
            self.emit_cooperative_load(
                self.shared_k, self.tile, self.depth, self.depth + 1, element_loader(self.k)
            ),
            self.emit_cooperative_load(
                self.shared_v, self.tile, self.width, self.width, element_loader(self.v)
            ),
            STORAGE_SYNC,
            *self.emit_scores(begin),
            self.emit_accumulate(),
        )

    def emit_scores(self, begin: PrimExpr) -> list[Stmt]:
        """Emit the scores of a key tile, and the running maximum."""
        # The first barrier completes the scores, the second keeps them until all threads read them.
        if not self.by_warps:
            return [
                self.emit_thread_scores(begin),
                STORAGE_SYNC,
                self.emit_running_max(),
                STORAGE_SYNC,
            ]
        return [
            self.store_local(self.new_max, self.load_local(self.running_max)),
            self.emit_thread_scores(begin),
            self.largest.body,
        ]

    def emit_thread_scores(self, begin: PrimExpr) -> Stmt:
        """Emit the scores of a thread's query with its keys of the tile."""
        d = Var("d")

        def emit_score(key_index: PrimExpr) -> Stmt:
            """Emit one score, stored in shared memory or, within a warp, in registers."""
            line = key_index * self.lanes + self.lane
            pair = (
                self.load_shared(self.shared_q, self.row, self.depth + 1, d),
                self.load_shared(self.shared_k, line, self.depth + 1, d),
            )
            more = self.store_local(self.dot, self.load_local(self.dot) + pair[0] * pair[1])
            position, score = self.row * (self.tile + 1) + line, self.finish_score(begin + line)
            # A query's keys belong to one warp segment, so the maximum is found by shuffles,
            # without shared memory.
            if self.by_warps:
                own_score = BufferLoad(self.own_scores, (key_index,), F32_DTYPE)
                larger = self.store_local(
                    self.new_max, maximum(self.load_local(self.new_max), own_score)
                )
                store_score = seq(BufferStore(self.own_scores, score, (key_index,)), larger)
            else:
                store_score = BufferStore(self.shared_probabilities, score, (position,))
            return seq(
                self.store_local(self.dot, const(0.0, F32_DTYPE)),
                serial_loop(d, self.depth, more),
                store_score,
            )

        return self.emit_key_loop(emit_score)

    def emit_key_loop(self, body: Callable[[PrimExpr], Stmt]) -> Stmt:
        """Emit `body` for each of a thread's keys of a tile, unrolled where registers are indexed
        by it.
        """
        key_index = Var("turn")
        kind = ForKind.UNROLLED if self.by_warps else ForKind.SERIAL
        return For(key_index, const(0), const(self.tile // self.lanes), kind, body(key_index))

    def finish_score(self, key: PrimExpr) -> PrimExpr:
        """Apply scale, softcap, bias and mask to a product; a masked key becomes -inf."""
        scale = self.heads.scale
        value = self.load_local(self.dot) * const(
            1 / math.sqrt(self.depth) if scale is None else scale, F32_DTYPE
        )
        if cap := self.heads.softcap:
            value = call_intrin("tanh", value * const(1 / cap, F32_DTYPE)) * const(cap, F32_DTYPE)
        if self.bias is not None:
            index = tuple(
                const(0) if is_const(dim, 1) else coordinate
                for coordinate, dim in zip(
                    (self.b, self.h, self.query_index(), minimum(key, self.keys - 1)),
                    self.bias.shape,
                    strict=True,
                )
            )
            value = value + BufferLoad(self.bias, index, F32_DTYPE)
        return Select(
            key < self.heads.num_visible_keys(self.query_index(), self.queries, self.keys),
            value,
            const(-math.inf, F32_DTYPE),
        )

    def emit_running_max(self) -> Stmt:
        """Emit the update of the running maximum, computed by every thread of a query."""
        c = Var("c")
        score = self.load_shared(self.shared_probabilities, self.row, self.tile + 1, c)
        larger = self.store_local(self.new_max, maximum(self.load_local(self.new_max), score))
        return seq(
            self.store_local(self.new_max, self.load_local(self.running_max)),
            serial_loop(c, self.tile, larger),
        )

    def emit_accumulate(self) -> Stmt:
        """Emit the probabilities, and the rescaling and accumulation of the weighted values."""
        base, factor = Var("base", F32_DTYPE), Var("factor", F32_DTYPE)
        c, share = Var("c"), Var("share", F32_DTYPE)
        # exp(-inf - -inf) is NaN: a row that has seen no key uses a base of 0 instead.
        is_empty = self.load_local(self.new_max).equal(const(-math.inf, F32_DTYPE))

        def emit_probability(key_index: PrimExpr) -> Stmt:
            """Emit the probability of one score, relative to the running maximum."""
            line = key_index * self.lanes + self.lane
            score = self.load_shared(self.shared_probabilities, self.row, self.tile + 1, line)
            if self.by_warps:
                score = BufferLoad(self.own_scores, (key_index,), F32_DTYPE)
            index = (self.row * (self.tile + 1) + line,)
            return BufferStore(self.shared_probabilities, call_intrin("exp", score - base), index)

        added: list[Stmt] = [self.store_local(self.exp_sum, self.load_local(self.exp_sum) + share)]
        for n in range(self.columns):
            # Clamped: threads behind the last column repeat it, and emit_results does not store
            # theirs.
            column = minimum(self.lane + n * self.lanes, self.width - 1)
            value = self.load_shared(self.shared_v, c, self.width, column)
            added.append(
                self.store_local(
                    self.weighted_values,
                    self.load_local(self.weighted_values, n) + share * value,
                    n,
                )
            )
        read = self.load_shared(self.shared_probabilities, self.row, self.tile + 1, c)
        # Online softmax: earlier sums are rescaled to the new maximum before this tile's products
        # are added.
        scaled = [
            self.store_local(b, self.load_local(b, n) * factor, n) for b, n in self.accumulators()
        ]
        body = seq(
            self.emit_key_loop(emit_probability),
            *scaled,
            self.store_local(self.running_max, self.load_local(self.new_max)),
            STORAGE_SYNC,
            serial_loop(c, self.tile, LetStmt(share, read, seq(*added))),
        )
        body = LetStmt(factor, call_intrin("exp", self.load_local(self.running_max) - base), body)
        return LetStmt(
            base, Select(is_empty, const(0.0, F32_DTYPE), self.load_local(self.new_max)), body
        )

    def accumulators(self) -> list[tuple[Buffer, int]]:
        """Return the accumulators of a thread's query: weighted values and the sum of
        exponentials.
        """
        return [(self.exp_sum, 0), *((self.weighted_values, n) for n in range(self.columns))]

    def emit_results(self) -> Stmt:
        """Emit the normalisation and the store of a thread's results."""
        query, total = self.first_query + self.row, self.load_local(self.exp_sum)
        stores: list[Stmt] = []
        for n in range(self.columns):
            column = self.lane + n * self.lanes
            value = self.load_local(self.weighted_values, n) / total
            # A total of 0 means that every key was masked.
            if self.heads.nan_as_zero:
                value = Select(total > const(0.0, F32_DTYPE), value, const(0.0, F32_DTYPE))
            index = self.element_indices(self.out, self.h, query, column)
            inside = logical_and(query < self.queries, column < self.width)
            stores.append(IfThenElse(inside, BufferStore(self.out.buffer, value, index)))
        return seq(*stores)

    def emit_kernel(self) -> Stmt:
        """Emit the complete kernel."""
        tile = Var("tile")
        last = minimum(self.first_query + (self.rows - 1), self.queries - 1)
        # Under a causal mask, tiles behind the last query's keys are skipped.
        count = simplify(
            (self.heads.num_visible_keys(last, self.queries, self.keys) + (self.tile - 1))
            // self.tile
        )
        phases = seq(
            self.emit_prologue(),
            serial_loop(tile, count, self.emit_key_tile(tile * self.tile)),
            self.emit_results(),
        )
        local_buffers = [
            self.running_max,
            self.new_max,
            self.exp_sum,
            self.dot,
            self.weighted_values,
        ]
        local_buffers += [self.own_scores] if self.by_warps else []
        inner = thread_loop(
            self.thread,
            self.rows * self.lanes,
            "threadIdx.x",
            wrap_in_allocations(phases, local_buffers),
        )
        shared_buffers = [self.shared_q, self.shared_k, self.shared_v, self.shared_probabilities]
        shared_buffers += self.largest.shared if self.by_warps else []
        blocks = simplify(
            product_of_dims([self.q.dims["b"], self.q.dims["h"], self.tiles_per_head])
        )
        return thread_loop(
            self.block, blocks, "blockIdx.x", wrap_in_allocations(inner, shared_buffers)
        )


def build_attention(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of an attention."""
    heads = outputs[0].op.attrs["heads"]
    assert isinstance(heads, AttentionConfig)
    buffers, operands, (result,) = declare_extern_parameters(inputs, outputs)
    kernel = _GpuAttentionKernel(heads, operands, result, decision, target)
    return create_tiled_function(name, buffers, kernel.emit_kernel(), len(outputs))


FAMILY = Family(
    name="thread_attention",
    is_gpu_family=True,
    needs_barriers=True,
    unscheduled_reason="the online softmax between the two products rescales partial sums",
    accepts=_is_supported,
    search_space=_search_space,
    default_decision=_default_decision,
    build_unscheduled=build_attention,
)
"""GPU counterpart of the CPU family "attention"; targets with serial threads use the default family
"threads".
"""
