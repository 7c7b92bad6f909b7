"""Scaled dot-product attention: scores, softmax and the product with the values in one kernel.

    for head:  for rows of queries:  scores = q * k^T * scale + bias;  scores = exp(scores - max)
                                     out = (scores * v) / sum

The keys of a head are packed into panels as wide as a register tile (as the right matrix of
kernels.cpu.batch_matmul); only a tile of rows of scores exists at a time, in a small buffer that
stays in L1: a row has all its scores before its softmax, so no online rescaling is needed. Values
are read in place if their rows are whole vectors. Operands may have their axes in any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import (
    Add,
    Div,
    IntImm,
    Max,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
    const,
    is_const,
    maximum,
    minimum,
)  # fmt: skip
from ekiden.kernels.attention.attention_config import AttentionConfig, StridedOperand
from ekiden.kernels.attention.softmax_bounds import exp_of_nonpositive
from ekiden.kernels.cost_model import (
    MAX_PANEL_VECTORS,
    PREFETCH_DISTANCES,
    max_register_rows,
    step_cycles,
)
from ekiden.kernels.cpu.dense import K_UNROLL_FACTORS
from ekiden.kernels.decision import (
    Decision,
    Knob,
    KnobValue,
    Overrides,
    SearchSpace,
    descending_range,
)
from ekiden.kernels.family import Family, known_extent
from ekiden.kernels.micro_kernels.register_tiles import (
    PrefetchFn,
    RegisterTile,
    balanced_row_tiles,
    column_mask,
    emit_register_tile,
)
from ekiden.kernels.micro_kernels.register_transpose import emit_transpose
from ekiden.kernels.micro_kernels.vector_memory import VectorMemory
from ekiden.kernels.prim_builder import create_tiled_function, declare_extern_parameters
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, VectorReduce, ramp
from ekiden.tir.stmt import (
    Allocate,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Prefetch,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.tir.tensor_intrin.micro import SumLoop

DEFAULT_ATTENTION_LANES = 16
"""Vector lanes without a target."""
DEFAULT_PANEL_VECTORS = 4
"""Vectors of a full key panel without a target."""
CACHE_LINE_F32S = 16
"""Float32 elements per cache line."""
DEFAULT_ATTENTION_TILE_ROWS = 6
"""Maximum tile rows for a dynamic number of queries, and the minimum kept for long sequences."""
MAX_ATTENTION_TILE_ROWS = 12
"""Maximum tile rows: more only increase code size."""
ASSUMED_KEYS = 1 << 12
"""Assumed number of keys where it is dynamic."""


@dataclass(frozen=True, slots=True)
class AttentionTiling:
    """Tile sizes of an attention: query rows, vectors of a key panel, prefetch distance into L1
    (steps), unroll factor, value access ("direct" or "copied"), and the axis that threads divide
    ("heads" or "rows").
    """

    rows: int = DEFAULT_ATTENTION_TILE_ROWS
    vectors: int = DEFAULT_PANEL_VECTORS
    prefetch_distance: int = 0
    unroll: int = 1
    value_access: str = "direct"
    parallel_axis: str = "heads"


DEFAULT_TILING = AttentionTiling()
"""Tiling without a target."""


class AttentionKernel(VectorMemory):
    """Builder of an attention kernel on a CPU. `inputs` are query, key, value and an optional bias
    [1 or batch, 1 or heads, 1 or queries, 1 or keys].
    """

    def __init__(
        self,
        heads: AttentionConfig,
        inputs: Sequence[Buffer],
        output: Buffer,
        lanes: int = DEFAULT_ATTENTION_LANES,
        tiling: AttentionTiling = DEFAULT_TILING,
        has_shuffles: bool = False,
    ) -> None:
        self.heads, self.lanes, self.tiling, self.has_shuffles = heads, lanes, tiling, has_shuffles
        operands = zip((*inputs[:3], output), heads.layouts, strict=True)
        self.q, self.k, self.v, self.out = (
            StridedOperand.from_buffer(b, layout) for b, layout in operands
        )
        self.bias = inputs[3] if len(inputs) > 3 else None
        self.queries, self.keys = self.q.dims["s"], self.k.dims["s"]
        self.depth = self.q.dims["d"]
        width = self.v.dims["d"]
        assert isinstance(width, IntImm)
        self.value_width = width.value
        # One row of scores: whole vectors, and one more so that rows do not begin in the same set.
        vectors = (self.keys + (self.lanes - 1)) // self.lanes
        self.stride = simplify((vectors + 1) * self.lanes)
        self.padded_keys = simplify(vectors * self.lanes)
        self.packed_keys = Buffer("keys", (simplify(self.padded_keys * self.depth),))
        columns = -(-self.value_width // self.lanes) * self.lanes
        self.max_tile_rows, self.panel_vectors = tiling.rows, tiling.vectors
        self.scores = Buffer("scores", (simplify(self.stride * self.max_tile_rows),))
        self.inverse_sums = Buffer("totals", (const(self.max_tile_rows),), scope="local")
        self.packed_values = Buffer("values", (simplify(self.keys * columns),))
        self.packed_value_columns = columns

    # Vectors.

    # Copies of keys and values.

    def split_panels(self) -> tuple[PrimExpr, PrimExpr]:
        """Return the number of full key panels, and of the one-vector panels after them."""
        full_panels = simplify(self.keys // (self.panel_vectors * self.lanes))
        return full_panels, simplify(
            (self.padded_keys - full_panels * (self.panel_vectors * self.lanes)) // self.lanes
        )

    def emit_pack_keys(self, base: PrimExpr, kind: ForKind) -> Stmt:
        """Emit the packing of a panel of keys: packed[c * depth + d * width + i] = k[c + i, d],
        zeros past the last key.
        """
        full_panels, narrow = self.split_panels()
        # Row-major keys must be transposed for the panel; keys with contiguous positions are copied
        # by vectors.
        in_rows = is_const(self.k.strides["d"], 1) and not is_const(self.k.strides["s"], 1)

        def loop_over_panels(count: PrimExpr, first: PrimExpr, vectors: int) -> Stmt:
            """Loop over panels of `vectors` vectors: full panels of row-major keys are transposed
            in registers where the target has shuffles, others copied element by element.
            """
            panel = Var("p")
            key = first + panel * (vectors * self.lanes)
            # A panel with padding keys is not transposed in registers: that loads rows without a
            # mask.
            is_whole = vectors == self.panel_vectors or is_const(
                simplify(self.keys % self.lanes), 0
            )
            transposes = in_rows and is_whole and self.has_shuffles
            body = (self._emit_transpose_panel if transposes else self._emit_copy_panel)(
                base, key, vectors
            )
            return For(panel, const(0), count, kind, body, {"grain": 1})

        first_narrow = full_panels * (self.panel_vectors * self.lanes)
        return seq(
            loop_over_panels(full_panels, const(0), self.panel_vectors),
            loop_over_panels(narrow, first_narrow, 1),
        )

    def _emit_transpose_panel(self, base: PrimExpr, key: PrimExpr, vectors: int) -> Stmt:
        """Emit the transposition of a full panel of row-major keys, in square register tiles."""
        width, steps = vectors * self.lanes, self.k.strides
        blocks, block, vector_index = (
            simplify(self.depth // self.lanes),
            Var("block"),
            Var("vector"),
        )
        first = key + vector_index * self.lanes

        def load_row(i: int) -> PrimExpr:
            start = base + (first + i) * steps["s"] + block * self.lanes
            return self.load(self.k.buffer, simplify(start))

        def store_column(n: int, value: PrimExpr) -> Stmt:
            """Store column n of a depth block as a row of the panel."""
            d = block * self.lanes + n
            offset = key * self.depth + d * width + vector_index * self.lanes
            return self.store(self.packed_keys, simplify(offset), value)

        tile = emit_transpose([load_row(i) for i in range(self.lanes)], store_column)
        i, d = Var("i"), Var("d")
        one = self.k.buffer[base + (key + i) * steps["s"] + d]
        copy_one = BufferStore(self.packed_keys, one, (key * self.depth + d * width + i,))
        done = simplify(blocks * self.lanes)
        return seq(
            For(vector_index, const(0), const(vectors), ForKind.SERIAL,
                For(block, const(0), blocks, ForKind.SERIAL, tile)),
            For(i, const(0), const(width), ForKind.SERIAL,
                For(d, done, simplify(self.depth - done), ForKind.SERIAL, copy_one)),
        )  # fmt: skip

    def _emit_copy_panel(self, base: PrimExpr, key: PrimExpr, vectors: int) -> Stmt:
        """Emit the copy of a panel, one depth step at a time."""
        d, steps = Var("d"), self.k.strides
        moves = []
        for v in range(vectors):
            first = key + v * self.lanes
            exact = is_const(simplify(self.keys % self.lanes), 0)
            mask = None if exact else self.lane_bounds_mask(first, self.keys)
            position = base + first * steps["s"] + d * steps["d"]
            value = self.load(self.k.buffer, position, mask, steps["s"])
            to = key * self.depth + d * (vectors * self.lanes) + v * self.lanes
            moves.append(self.store(self.packed_keys, to, value))
        return For(d, const(0), self.depth, ForKind.SERIAL, seq(*moves))

    def reads_values_in_place(self) -> bool:
        """Return whether values are read in place instead of packed."""
        is_whole = (
            is_const(self.v.strides["d"], 1) and self.packed_value_columns == self.value_width
        )
        return is_whole and self.tiling.value_access == "direct"

    def emit_pack_values(self, base: PrimExpr, kind: ForKind) -> Stmt:
        """Emit the packing of values: packed[t * columns + i] = v[t, i], zeros past the last
        column.
        """
        t, steps = Var("t"), self.v.strides
        moves = []
        for first in range(0, self.packed_value_columns, self.lanes):
            position = base + t * steps["s"] + first * steps["d"]
            valid = self.value_width - first
            inside = column_mask(valid, self.lanes) if valid < self.lanes else None
            value = self.load(self.v.buffer, position, inside, steps["d"])
            moves.append(
                self.store(self.packed_values, t * self.packed_value_columns + first, value)
            )
        return For(t, const(0), self.keys, kind, seq(*moves))

    # A tile of rows.

    def num_visible_keys(self, row: PrimExpr) -> PrimExpr:
        """Return the number of keys that a query attends to, counted from the first."""
        return self.heads.num_visible_keys(row, self.queries, self.keys)

    def finish_score(self, b: PrimExpr, h: PrimExpr, row: PrimExpr, key: PrimExpr, value: PrimExpr,
                     is_last: bool) -> PrimExpr:  # fmt: skip
        """Apply scale, softcap, bias and mask to a vector of products; masked keys become -inf."""
        scale = self.heads.scale
        if scale is not None:
            factor = const(scale, "float32")
        else:
            assert isinstance(self.depth, IntImm)
            factor = const(1 / math.sqrt(self.depth.value), "float32")
        vector = value.dtype
        value = Mul(value, self.broadcast_scalar(factor), vector)
        if cap := self.heads.softcap:
            bent = call_intrin("tanh", Mul(value, self.broadcast_scalar(1 / cap), vector))
            value = Mul(bent, self.broadcast_scalar(cap), vector)
        # Padding keys of the last panel and keys behind the causal limit must become -inf.
        is_seen = (
            self.lane_bounds_mask(key, self.num_visible_keys(row))
            if is_last or self.heads.causal
            else None
        )
        if self.bias is not None:
            value = Add(value, self._load_bias(b, h, row, key, is_seen), vector)
        return (
            value
            if is_seen is None
            else Select(is_seen, value, self.broadcast_scalar(-math.inf), vector)
        )

    def _load_bias(self, b: PrimExpr, h: PrimExpr, row: PrimExpr, key: PrimExpr,
                   mask: PrimExpr | None) -> PrimExpr:  # fmt: skip
        assert self.bias is not None
        position: PrimExpr = const(0)
        for index, dim in zip((b, h, row), self.bias.shape, strict=False):
            position = position * dim if is_const(dim, 1) else position * dim + index
        last = self.bias.shape[3]
        # A bias that all keys share is one element: a vector load would read its neighbours.
        if is_const(last, 1) and not is_const(self.keys, 1):
            return self.broadcast_scalar(self.bias[simplify(position)])
        return self.load(self.bias, simplify(position * last + key), mask)

    def emit_scores(self, b: PrimExpr, h: PrimExpr, first: PrimExpr, rows: int) -> Stmt:
        """Emit the scores of a tile of rows, up to the last key that its last row attends to."""
        full_panels, narrow = self.split_panels()
        if self.heads.causal:
            vectors = (self.num_visible_keys(first + (rows - 1)) + (self.lanes - 1)) // self.lanes
            visible_panels = minimum(
                (vectors + (self.panel_vectors - 1)) // self.panel_vectors, full_panels
            )
            # Under a causal mask, panels behind the tile's last row are not computed at all.
            narrow = maximum(
                minimum(vectors - visible_panels * self.panel_vectors, narrow), const(0)
            )
        else:
            visible_panels = full_panels
        first_narrow = full_panels * (self.panel_vectors * self.lanes)
        panel_loops = [self._emit_score_panels(b, h, first, rows, *panel_range)
                 for panel_range in ((visible_panels, const(0), self.panel_vectors),
                     (narrow, first_narrow,
                                                                             1))
                       if not is_const(panel_range[0], 0)]  # fmt: skip
        return seq(*panel_loops)

    def _emit_score_panels(self, b: PrimExpr, h: PrimExpr, first: PrimExpr, rows: int,
                           count: PrimExpr, begin: PrimExpr, vectors: int) -> Stmt:  # fmt: skip
        shape = RegisterTile(rows, vectors, self.lanes, vectors * self.lanes)
        panel = Var("p")
        key = simplify(begin + panel * (vectors * self.lanes))
        steps = self.q.strides
        base = b * steps["b"] + h * steps["h"]
        starts = [base + (first + i) * steps["s"] for i in range(rows)]
        loops = [SumLoop(self.depth, steps["d"], const(vectors * self.lanes))]
        # Only the last narrow panel can hold padding keys, whose scores must be -inf; all others
        # need no mask.
        is_last = vectors == 1 and not is_const(simplify(self.keys % self.lanes), 0)

        def store_score(i: PrimExpr, column: PrimExpr, value: PrimExpr, _: PrimExpr | None) -> Stmt:
            """Scale and mask a score, and store it in the rows' scores."""
            position = key + column
            masked = self.finish_score(b, h, first + i, position, value, is_last)
            return self.store(self.scores, i * self.stride + position, masked)

        prefetch = self._prefetch_step(
            self.packed_keys, const(shape.num_columns), shape.num_columns
        )
        tile = emit_register_tile(
            shape, loops, self.q.buffer, starts, self.packed_keys, key * self.depth, store_score,
            bool(self.heads.softcap), prefetch, self.tiling.unroll,
        )  # fmt: skip
        return For(panel, const(0), count, ForKind.SERIAL, tile)

    def _prefetch_step(self, panel: Buffer, step: PrimExpr, row: int) -> PrefetchFn | None:
        """Return a function that prefetches panel rows, or None for a prefetch distance of 0."""
        if not self.tiling.prefetch_distance:
            return None

        def emit_prefetches(origin: PrimExpr, k: PrimExpr, column: int) -> list[Stmt]:
            """Emit a prefetch for each cache line of the row at the prefetch distance after k."""
            position = origin + (k + self.tiling.prefetch_distance) * step
            return [
                Prefetch(panel, (simplify(position + n),), 3)
                for n in range(0, row, CACHE_LINE_F32S)
            ]

        return emit_prefetches

    def emit_softmax(self, first: PrimExpr, rows: int) -> Stmt:
        """Emit scores = exp(scores - max) for each row of a tile, and totals = 1 / sum."""
        row, i, j = Var("row"), Var("i"), Var("j")
        vector, zero = dt.with_lanes("float32", self.lanes), const(0)
        best, total = (Buffer(n, (const(1),), vector, "register") for n in ("best", "total"))
        start = row * self.stride
        count = simplify(
            (self.num_visible_keys(first + (rows - 1)) + (self.lanes - 1)) // self.lanes
        )
        top, exponentials = Var("top", "float32"), Var("made", vector)
        high = Max(best[zero], self.load(self.scores, start + i * self.lanes), vector)
        highest = For(i, zero, count, ForKind.SERIAL, BufferStore(best, high, (zero,)))
        offset = start + j * self.lanes
        shifted = Sub(self.load(self.scores, offset), self.broadcast_scalar(top), vector)
        keep = LetStmt(exponentials, exp_of_nonpositive(shifted), seq(
            self.store(self.scores, offset, exponentials),
            BufferStore(total, Add(total[zero], exponentials, vector), (zero,)),
        ))  # fmt: skip
        total_sum = Var("total_sum", "float32")
        share = Div(const(1.0, "float32"), total_sum, "float32")
        weigh: Stmt = BufferStore(self.inverse_sums, share, (row,))
        if self.heads.nan_as_zero:  # one NaN makes all of a row so; a tile may see no keys at all
            n = Var("n")
            none = self.store(self.scores, start + n * self.lanes, self.broadcast_scalar(0.0))
            clear = seq(
                For(n, zero, count, ForKind.SERIAL, none),
                BufferStore(self.inverse_sums, const(0.0, "float32"), (row,)),
            )
            weigh = IfThenElse(total_sum > const(0.0, "float32"), weigh, clear)
        weigh = LetStmt(total_sum, VectorReduce(total[zero], "sum", "float32"), weigh)
        second = Allocate(total, seq(
            BufferStore(total, self.broadcast_scalar(0.0), (zero,)),
            For(j, zero, count, ForKind.SERIAL, keep),
            weigh,
        ))  # fmt: skip
        # Two passes over scores that are in L1: the maximum first, then exponentials and their sum.
        # Rescaling on the fly would cost a multiplication per element.
        passes = Allocate(best, seq(
            BufferStore(best, self.broadcast_scalar(-math.inf), (zero,)),
            highest,
            LetStmt(top, VectorReduce(best[zero], "max", "float32"), second),
        ))  # fmt: skip
        return For(row, zero, const(rows), ForKind.SERIAL, passes)

    def emit_weighted_values(
        self, b: PrimExpr, h: PrimExpr, base: PrimExpr, first: PrimExpr, rows: int
    ) -> Stmt:
        """Emit the product of a tile's probabilities with the values."""
        direct = self.reads_values_in_place()
        source = self.v.buffer if direct else self.packed_values
        step = self.v.strides["s"] if direct else const(self.packed_value_columns)
        out = self.out.strides
        starts = [const(i) * self.stride for i in range(rows)]
        origin = b * out["b"] + h * out["h"]
        column_blocks = []
        for column in range(0, self.packed_value_columns, self.panel_vectors * self.lanes):
            vectors = min(self.panel_vectors, (self.packed_value_columns - column) // self.lanes)
            valid = min(vectors * self.lanes, self.value_width - column)
            shape = RegisterTile(rows, vectors, self.lanes, valid)

            def store_normalized(i: PrimExpr, at: PrimExpr, value: PrimExpr, mask: PrimExpr | None,
                                 column: int = column) -> Stmt:  # fmt: skip
                """Scale a vector by the reciprocal of its row's sum, and store it in the result."""
                # The division by the sum is postponed to the result: one multiplication per output
                # element instead of one per score.
                share = Mul(value, self.broadcast_scalar(self.inverse_sums[i]), value.dtype)
                offset = origin + (first + i) * out["s"] + (at + column) * out["d"]
                index = ramp(offset, out["d"], self.lanes)
                return BufferStore(self.out.buffer, share, (index,), mask)

            # Scores behind the keys of the tile's last query were not computed: the sum ends there.
            loops = [SumLoop(self.num_visible_keys(first + (rows - 1)), const(1), step)]
            begin = (base if direct else const(0)) + column
            prefetch = self._prefetch_step(source, step, vectors * self.lanes)
            column_blocks.append(emit_register_tile(
                shape, loops, self.scores, starts, source, begin, store_normalized,
                ahead=prefetch, unroll=self.tiling.unroll,
            ))  # fmt: skip
        return seq(*column_blocks)

    # The whole.

    def emit_head(self, image: PrimExpr, kind: ForKind) -> Stmt:
        """Emit one head: pack its keys and values, then run its tiles of rows."""
        heads, groups = self.q.dims["h"], self.k.dims["h"]
        b, h = Var("b"), Var("h")
        # Grouped-query attention: consecutive heads of queries share a head of keys and values.
        shared = h if heads is groups else simplify(h // simplify(heads // groups))
        k_base, v_base = (b * o.strides["b"] + shared * o.strides["h"] for o in (self.k, self.v))

        def emit_tile(count: int, first: PrimExpr) -> Stmt:
            """Emit scores, softmax and weighted values of a tile of rows; the scores are
            thread-local.
            """
            steps = seq(
                self.emit_scores(b, h, first, count),
                self.emit_softmax(first, count),
                self.emit_weighted_values(b, h, v_base, first, count),
            )
            # Allocated within the tile: each thread has its own scores.
            return Allocate(self.scores, Allocate(self.inverse_sums, steps))

        tiles = balanced_row_tiles(self.queries, self.max_tile_rows, emit_tile, kind)
        copies = [self.emit_pack_keys(k_base, kind)]
        if not self.reads_values_in_place():
            copies.append(self.emit_pack_values(v_base, kind))
        stmt = Allocate(self.packed_keys, seq(*copies, tiles))
        if not self.reads_values_in_place():
            stmt = Allocate(self.packed_values, stmt)
        return LetStmt(b, image // heads, LetStmt(h, image % heads, stmt))

    def emit_kernel(self) -> Stmt:
        """Emit all heads in parallel, or the rows of each head in parallel."""
        images = simplify(self.q.dims["b"] * self.q.dims["h"])
        outer, inner = ForKind.PARALLEL, ForKind.SERIAL
        if self.tiling.parallel_axis == "rows":
            outer, inner = inner, outer
        image = Var("image")
        return For(image, const(0), images, outer, self.emit_head(image, inner), {"grain": 1})


def attention_sizes(
    anchor: te.Tensor,
) -> tuple[AttentionConfig, dict[str, int | None], dict[str, int | None]]:
    """Return the configuration of an attention, and the sizes of its query and value by axis
    letter.
    """
    op = anchor.op
    heads = op.attrs["heads"]
    assert isinstance(heads, AttentionConfig) and isinstance(op, te.ExternOp)
    query, value = (
        dict(zip(heads.layouts[n], map(known_extent, op.inputs[n].shape), strict=True))
        for n in (0, 2)
    )
    return heads, query, value


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Sizes that the default decision depends on: queries, keys, depth, and vectors of a value;
    guesses where they are unknown.
    """

    queries: int | None
    keys: int | None
    depth: int | None
    value_vectors: int
    heads: int | None
    """Heads over all batches."""
    target: Target

    @staticmethod
    def from_anchor(anchor: te.Tensor, target: Target) -> AttentionSizes:
        """Return the sizes of an attention."""
        _, query, value = attention_sizes(anchor)
        width, count = value["d"], query["b"] and query["h"] and query["b"] * query["h"]
        assert width is not None
        columns = -(-width // target.lanes("float32"))
        return AttentionSizes(query["s"], value["s"], query["d"], columns, count, target)

    def tile_rows(self, vectors: int) -> int:
        """Return the query rows of a tile: as many as fit the registers and whose scores fit half
        of L1; few where their number is unknown, since each count is compiled separately.
        """
        limit = min(
            MAX_ATTENTION_TILE_ROWS if self.queries else DEFAULT_ATTENTION_TILE_ROWS,
            max_register_rows(vectors, self.target),
        )
        if self.keys:
            row = 4 * (self.keys + self.target.lanes("float32"))
            limit = min(
                limit, max(DEFAULT_ATTENTION_TILE_ROWS, self.target.caches[0].size // 2 // row)
            )
        return max(1, limit)

    def cycles_per_query(self, vectors: int) -> float:
        """Return the estimated cycles of one query's products, on panels of that many vectors."""
        rows, lanes = self.tile_rows(vectors), self.target.lanes("float32")
        if self.queries:
            # Tiles are balanced, so the rows of an average tile count, not their limit.
            rows = -(-self.queries // -(-self.queries // rows))
        keys, depth = self.keys or ASSUMED_KEYS, self.depth or ASSUMED_KEYS
        full_panels = keys // (vectors * lanes)
        narrow = -(-keys // lanes) - full_panels * vectors
        full, tail_vectors = divmod(self.value_vectors, vectors)

        def panel_step_cycles(wide: int) -> float:
            """Return the cycles of a step of k over a panel of that width."""
            return step_cycles(rows, wide, self.target)

        scores = depth * (full_panels * panel_step_cycles(vectors) + narrow * panel_step_cycles(1))
        mixed = keys * (
            full * panel_step_cycles(vectors)
            + (panel_step_cycles(tail_vectors) if tail_vectors else 0)
        )
        return (scores + mixed) / rows

    def panel_vectors(self) -> int:
        """Return the panel width, in vectors, with the lowest estimated cycles."""
        return min(
            range(MAX_PANEL_VECTORS, 1, -1), key=lambda wide: round(self.cycles_per_query(wide), 6)
        )


def search_space(anchor: te.Tensor, target: Target) -> SearchSpace:
    """Return the search space of an attention."""
    return (
        Knob("vectors", descending_range(MAX_PANEL_VECTORS, 2), "vectors of a panel"),
        Knob("rows", descending_range(max_register_rows(2, target)), "queries of a tile"),
        Knob(
            "l1_prefetch",
            PREFETCH_DISTANCES,
            "L1 prefetch distance of panels, in steps of k",
        ),
        Knob("unroll", K_UNROLL_FACTORS, "unroll factor of k"),
        Knob("values", ("direct", "copied"), "how values are read, if they fill whole vectors"),
        Knob("split", ("heads", "rows"), "what is divided among threads"),
    )


def default_decision(anchor: te.Tensor, target: Target, fixed: Overrides) -> Decision:
    """Return the default decision for an attention."""
    sizes = AttentionSizes.from_anchor(anchor, target)
    vectors = int(fixed.get("vectors", sizes.panel_vectors()))
    has_few_heads = sizes.heads is not None and sizes.heads < target.cores
    chosen: dict[str, KnobValue] = {
        "vectors": vectors,
        "rows": sizes.tile_rows(vectors),
        "l1_prefetch": 0,
        "unroll": 1,
        "values": "direct",
        "split": "rows" if has_few_heads else "heads",
    }
    return Decision.from_mapping({**chosen, **fixed})


def build_attention(
    inputs: list[te.Tensor],
    outputs: list[te.Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of tag "attention"."""
    heads, _, _ = attention_sizes(outputs[0])
    buffers, operands, (result,) = declare_extern_parameters(inputs, outputs)
    tiling = AttentionTiling(
        rows=decision.int_value("rows"),
        vectors=decision.int_value("vectors"),
        prefetch_distance=decision.int_value("l1_prefetch"),
        unroll=decision.int_value("unroll"),
        value_access=str(decision["values"]),
        parallel_axis=str(decision["split"]),
    )
    lanes, shuffles = target.lanes("float32"), target.has("shuffles")
    builder = AttentionKernel(heads, operands, result, lanes, tiling, shuffles)
    return create_tiled_function(name, buffers, builder.emit_kernel(), len(outputs))


FAMILY = Family(
    name="attention",
    build_unscheduled=build_attention,
    unscheduled_reason=(
        "keys are transposed in registers, for which no step exists, and causal limits end loops "
        "at the last row of a tile"
    ),
    search_space=search_space,
    default_decision=default_decision,
    prevents_fusion=True,
)

__all__ = [
    "AttentionKernel",
    "attention_sizes",
    "build_attention",
]
