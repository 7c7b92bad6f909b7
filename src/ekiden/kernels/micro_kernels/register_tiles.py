"""Register tile: the micro-kernel of dense layers, convolutions and batched matrix products.

A tile is `rows` x `vectors` accumulators kept in registers while k runs; each step of k loads one
row of a weight panel (`vectors` vectors), and per tile row one scalar that is broadcast and
multiplied in:

    acc[i, v] = fma(broadcast(a[i, k]), b[k, v], acc[i, v])

Data of uint8 and a panel of int8 go four steps of k at a time: a word of four bytes is broadcast, a
panel row holds four bytes for each column, and the accumulators are int32:

    acc[i, v] = dot4(broadcast(word of a[i, 4 k]), words of b[4 k, v], acc[i, v])

or by instructions that take more than one step of that (int8_dot.py): `madd_u8s8`, or with data
widened to int16, as two sums of two products:

    acc[i, v] = madd(broadcast(pair of a[i, 4 k]), pairs of b[4 k, v], acc[i, v])

Data and panels of bfloat16 go two steps of k at a time in the same way, into float32; those of
int16 into int32. Panels beside data of int16 may also hold words of two bytes, which are widened
where they are loaded.

Rows are balanced: M rows are cut into tiles whose row counts differ by at most one, so that a
remainder costs under 2 % (Ekiden measures: 8x48 and 6x64 tiles on Zen 5 keep 97-99 % of the peak
for M of 9 to 61, cut with remainders 80-95 %).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import (
    Add,
    Cast,
    IntImm,
    PrimExpr,
    Var,
    cast,
    const,
    fold_binary,
    logical_and,
    minimum,
)
from ekiden.kernels.micro_kernels.sum_loops import emit_sum_loops
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt, seq
from ekiden.tir.tensor_intrin.micro import GatherLoop, PanelCopy, PartialSums, StoreVector, SumLoop
from ekiden.topi.nn.weight_packing import DOT_WORD_BY_DTYPE, WORD_PAIR_ELEMENTS

LANES_OF_256_BITS = 8
"""Float32 lanes of 256 bits; some cores split wider vectors in two operations."""
WIDENED_DTYPE = "int16"
"""Dtype of bytes widened to int16 pairs (int8_dot.py). Beside panels of it words of two are
multiplied, beside panels of bytes two of them.
"""
DOT_INSTRUCTION_BY_DTYPE = {"int8": "dot4_u8s8", "bfloat16": "dot2_bf16", WIDENED_DTYPE: "madd_s16"}
"""Dot-product instruction by panel dtype."""
MAX_DYNAMIC_TILE_ROWS = 6
"""Maximum tile rows for a dynamic number of rows."""


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Register tile of `rows` by `vectors` of `lanes`, whose first `num_columns` columns are
    stored.
    """

    rows: int
    vectors: int
    lanes: int
    num_columns: int
    dtype: str = "float32"
    """Accumulator dtype: int32 for byte operands."""
    dot: str = ""
    """Dot-product instruction, if not the one of DOT_INSTRUCTION_BY_DTYPE."""
    chains: int = 1
    """Accumulators per result that consecutive steps alternate between, to hide the latency."""
    word: int = 0
    """Elements of the panel's words, if not those of DOT_WORD_BY_DTYPE."""

    @property
    def num_vectors(self) -> int:
        """Return the number of result vectors."""
        return self.rows * self.vectors

    @property
    def vector_dtype(self) -> str:
        """Return the dtype of an accumulator."""
        return dt.with_lanes(self.dtype, self.lanes)

    def vector_mask(self, v: int) -> PrimExpr | None:
        """Return the mask of a vector's stored lanes, or None for all."""
        num_valid = self.num_columns - v * self.lanes
        return None if num_valid >= self.lanes else column_mask(num_valid, self.lanes)

    def accumulator_buffer(self) -> Buffer:
        """Return the register buffer of the accumulators."""
        return Buffer(
            "acc", (const(self.num_vectors * self.chains),), self.vector_dtype, "register"
        )


def max_tile_rows(vectors: int, target: Target) -> int:
    """Return the maximum rows of a tile that fits the registers beside a panel row and a broadcast;
    at most 12, since code size grows.
    """
    return max(1, min(12, (target.registers - 1 - vectors) // vectors))


def narrowest_lanes(valid: int, target: Target) -> int:
    """Return the vector lanes of a panel with `valid` used columns: 256-bit vectors where those
    suffice. No core is slower at that, those that cut a wide vector in two are twice as fast (Zen
    4, 3x39 taps of 8 channels into 8: 11.7 to 9.5 ms; 7x3 of 32 into 1: 2.9 to 1.8).
    """
    lanes = target.lanes("float32")
    return lanes // 2 if lanes > LANES_OF_256_BITS and 2 * valid <= lanes else lanes


PrefetchFn = Callable[[PrimExpr, PrimExpr, int], list[Stmt]]
"""Function (panel offset of the innermost loop's first step, step, unrolled index) -> prefetches.
"""


def emit_register_tile(
    tile: RegisterTile,
    loops: Sequence[SumLoop],
    a: Buffer,
    a_rows: Sequence[PrimExpr],
    b: Buffer,
    b_base: PrimExpr,
    store: StoreVector,
    has_staging_buffer: bool = False,
    ahead: PrefetchFn | None = None,
    unroll: int = 1,
    partial_sums: PartialSums | None = None,
    gather: GatherLoop | None = None,
    copy: PanelCopy | None = None,
) -> Stmt:
    """Emit a register tile: initialise the accumulators, loop over k, store the results.

    With `has_staging_buffer` the results pass through a small buffer, and `store` is emitted once,
    in a loop of an outlined function, instead of once per accumulator: for expensive epilogues.

    Args:
        tile: The shape.
        loops: The loops of k.
        a: The data.
        a_rows: The flat offset of each row at k = 0.
        b: The panels.
        b_base: The flat offset of the panel at k = 0.
        store: Stores a vector of results.
        has_staging_buffer: Whether results pass through a buffer.
        ahead: The prefetches of an iteration.
        unroll: The unroll factor of the innermost loop.
        partial_sums: Loads and stores of the partial sums of chunks of k.
        gather: Iterations that look their element of the data up, behind the loops.
        copy: The copy of the panel that is made as it is read.
    """
    acc = tile.accumulator_buffer()
    zero = broadcast(const(0, tile.dtype), tile.lanes)
    begin = (
        [zero] * tile.num_vectors
        if partial_sums is None
        else _load_initial_sums(tile, partial_sums)
    )
    # Only the first chain continues earlier sums; the others are added to it at the end.
    begin += [zero] * (tile.num_vectors * (tile.chains - 1))
    clear = [BufferStore(acc, value, (const(i),)) for i, value in enumerate(begin)]
    # Each unrolled step of k adds to its own chain, so there are at least as many steps as chains.
    steps = max(unroll, tile.chains)
    multiply = seq(
        _emit_k_nest(tile, loops, acc, a, a_rows, b, b_base, ahead, steps, copy),
        *_emit_chain_sums(tile, acc),
    )
    if gather is not None:
        multiply = seq(multiply, _emit_gather_nest(tile, gather, acc, a, a_rows, b))
    if not has_staging_buffer:
        ending = seq(*_emit_stores(tile, acc, store))
        if partial_sums is not None:
            ending = IfThenElse(
                partial_sums.is_last, ending, seq(*_emit_stores(tile, acc, partial_sums.store))
            )
        return Allocate(acc, seq(*clear, multiply, ending))
    # A long epilogue would need the accumulators' registers: the sums are spilled to L1 once, and
    # the epilogue runs as a loop.
    stage = Buffer("stage", (const(tile.num_vectors * tile.lanes),), tile.dtype, "local")
    keep_sums = seq(
        *(
            BufferStore(stage, acc[i], (ramp(const(i * tile.lanes), 1, tile.lanes),))
            for i in range(tile.num_vectors)
        )
    )
    finish = _emit_staged_stores(tile, stage, store)
    if partial_sums is not None:
        keep_sums = IfThenElse(
            partial_sums.is_last, keep_sums, seq(*_emit_stores(tile, acc, partial_sums.store))
        )
        finish = IfThenElse(partial_sums.is_last, finish)
    return Allocate(stage, seq(Allocate(acc, seq(*clear, multiply, keep_sums)), finish))


def _emit_chain_sums(tile: RegisterTile, acc: Buffer) -> list[Stmt]:
    """Emit the tree sum of each result's accumulators into the first."""
    stores: list[Stmt] = []
    count = tile.chains
    while count > 1:
        # Pairwise sums take log2(chains) dependent additions.
        half = -(-count // 2)
        for n in range(tile.num_vectors * (count - half)):
            total = fold_binary(Add, acc[n], acc[n + tile.num_vectors * half])
            stores.append(BufferStore(acc, total, (const(n),)))
        count = half
    return stores


def _load_initial_sums(tile: RegisterTile, partial_sums: PartialSums) -> list[PrimExpr]:
    """Return the initial partial sum of each accumulator: that of the previous chunk of k, or 0 in
    the first chunk.
    """
    has_previous = broadcast(partial_sums.has_partial_sums, tile.lanes)
    zero = broadcast(const(0, tile.dtype), tile.lanes)

    def load_or_zero(row: int, v: int) -> PrimExpr:
        """Load a partial sum; the mask keeps the first chunk from reading what is not stored."""
        mask = tile.vector_mask(v)
        load_mask = has_previous if mask is None else logical_and(has_previous, mask)
        value = partial_sums.load(const(row), const(v * tile.lanes), tile.lanes)
        return if_then_else(load_mask, value, zero)

    return [load_or_zero(i, v) for i in range(tile.rows) for v in range(tile.vectors)]


def _emit_staged_stores(tile: RegisterTile, stage: Buffer, store: StoreVector) -> Stmt:
    row, vector = Var("row"), Var("vector")
    full_vectors, tail_width = divmod(tile.num_columns, tile.lanes)

    def store_vector(at: PrimExpr, mask: PrimExpr | None) -> Stmt:
        """Store one vector of a staged row."""
        stage_index = ramp((row * tile.vectors + at) * tile.lanes, 1, tile.lanes)
        value = stage[stage_index].with_fields(dtype=tile.vector_dtype)
        return store(row, at * tile.lanes, value, mask)

    loops = (
        [For(vector, const(0), const(full_vectors), ForKind.SERIAL, store_vector(vector, None))]
        if full_vectors
        else []
    )
    masked = (
        [store_vector(const(full_vectors), column_mask(tail_width, tile.lanes))]
        if tail_width
        else []
    )
    return For(row, const(0), const(tile.rows), ForKind.SERIAL, seq(*loops, *masked), {"apart": 1})


def column_mask(valid: int, lanes: int) -> PrimExpr:
    """Return a mask of the first `valid` lanes."""
    return ramp(const(0), 1, lanes) < broadcast(const(valid), lanes)


def _emit_k_nest(
    tile: RegisterTile,
    loops: Sequence[SumLoop],
    acc: Buffer,
    a: Buffer,
    a_rows: Sequence[PrimExpr],
    b: Buffer,
    b_base: PrimExpr,
    ahead: PrefetchFn | None,
    unroll: int,
    copy: PanelCopy | None,
) -> Stmt:
    *outer, inner = loops

    def emit_inner(values: Sequence[PrimExpr], tile_rows: Sequence[int]) -> Stmt:
        """Emit the innermost loop for the rows that have terms in its iterations."""
        a_step: PrimExpr = const(0)
        b_step = b_base
        for value, loop in zip(values, outer, strict=True):
            a_step = a_step + value * loop.a_stride
            b_step = b_step + value * loop.b_stride
        a_step = a_step + inner.begin * inner.a_stride
        b_step = b_step + inner.begin * inner.b_stride

        def emit_step(k: PrimExpr, unrolled_index: int) -> Stmt:
            """Emit one step of k for the rows, with its prefetches."""
            rows = {i: a_rows[i] + a_step + k * inner.a_stride for i in tile_rows}
            # Consecutive steps use different chains, so that no FMA waits for the one before it.
            chain = unrolled_index % tile.chains
            at = b_step + k * inner.b_stride
            steps = [] if ahead is None else ahead(b_step, k, unrolled_index)
            if copy is not None:
                to = copy.base
                for value, stride in zip((*values, inner.begin + k), copy.strides, strict=True):
                    to = to + value * stride
                steps = [*steps, *_emit_panel_copy(tile, b, at, copy.buffer, to)]
            return seq(*steps, _emit_k_step(tile, acc, a, rows, b, at, chain))

        return _unrolled_loop(inner.extent, unroll, emit_step)

    return emit_sum_loops(outer, tile.rows, emit_inner, has_inner_loop=True)


def _emit_panel_copy(
    tile: RegisterTile, b: Buffer, at: PrimExpr, to: Buffer, to_index: PrimExpr
) -> list[Stmt]:
    """Emit the copy of a row of the panel, the columns that are stored."""
    return [
        BufferStore(
            to,
            _load_panel_vector(tile, b, at, v),
            (ramp(to_index + v * tile.lanes, 1, tile.lanes),),
            tile.vector_mask(v),
        )
        for v in range(tile.vectors)
    ]


def _emit_gather_nest(
    tile: RegisterTile,
    gather: GatherLoop,
    acc: Buffer,
    a: Buffer,
    a_rows: Sequence[PrimExpr],
    b: Buffer,
) -> Stmt:
    n, index = Var("n"), Var("place")
    rows = {i: row + index * gather.a_stride for i, row in enumerate(a_rows)}
    body = _emit_k_step(tile, acc, a, rows, b, gather.b_base + n * gather.b_stride)
    value = cast(gather.table[gather.table_begin + n], "int64")
    return For(n, const(0), gather.extent, ForKind.SERIAL, LetStmt(index, value, body))


def _unrolled_loop(extent: PrimExpr, unroll: int, step: Callable[[PrimExpr, int], Stmt]) -> Stmt:
    """Return a loop over steps, unrolled by `unroll`.

    The remainder follows if the number of iterations is known; else nothing is unrolled.
    """
    k = Var("k")
    # A dynamic extent is not unrolled: the number of steps left over would be unknown here.
    if unroll == 1 or not isinstance(extent, IntImm):
        return For(k, const(0), extent, ForKind.SERIAL, step(k, 0))
    num_groups, num_tail = divmod(extent.value, unroll)
    group = seq(*(step(k * unroll + n, n) for n in range(unroll)))
    tail = [step(const(num_groups * unroll + n), n) for n in range(num_tail)]
    return seq(For(k, const(0), const(num_groups), ForKind.SERIAL, group), *tail)


def _emit_k_step(
    tile: RegisterTile,
    acc: Buffer,
    a: Buffer,
    a_index: Mapping[int, PrimExpr],
    b: Buffer,
    b_index: PrimExpr,
    chain: int = 0,
) -> Stmt:
    """Emit one step of k: the products of a panel row with the data of some rows of the tile."""
    is_paired = a.dtype == WIDENED_DTYPE and WORD_PAIR_ELEMENTS in (tile.word, _word_size(b.dtype))
    is_halved = a.dtype == WIDENED_DTYPE and not is_paired
    # madd adds two int16 products per lane: a word of four bytes takes two of them.
    halves = (0, 1) if is_halved else (0,)
    columns = {
        (v, h): Var(f"b{v}_{h}", tile.vector_dtype) for v in range(tile.vectors) for h in halves
    }
    dot = (
        DOT_INSTRUCTION_BY_DTYPE[WIDENED_DTYPE]
        if is_halved or is_paired
        else tile.dot or DOT_INSTRUCTION_BY_DTYPE.get(b.dtype)
    )
    steps: list[Stmt] = []
    if is_paired:
        assert dot is not None
        assert len(a_index) == tile.rows, "words of int16 have terms for all rows"
        rows = [_broadcast_data(tile, a, index) for index in a_index.values()]
        panel_row = [columns[v, 0] for v in range(tile.vectors)]
        steps = [_emit_int16_k_step(tile, acc, chain * tile.num_vectors, rows, panel_row, dot)]
    for i in () if steps else a_index:
        scalars = {h: Var(f"a{i}_{h}", tile.vector_dtype) for h in halves}
        # Both halves of a sum at once: a compiler would keep the first ones of a row apart.
        updates = [
            _emit_accumulate(
                dot, acc, chain * tile.num_vectors + i * tile.vectors + v, scalars[h], columns[v, h]
            )
            for v in range(tile.vectors)
            for h in halves
        ]
        row = seq(*updates)
        # Data were widened in the order b0 b2 b1 b3: the odd bytes' partners begin at element 2.
        for h in reversed(halves):
            row = LetStmt(scalars[h], _broadcast_data(tile, a, a_index[i] + 2 * h), row)
        steps.append(row)
    # A panel row is loaded once and stays in registers for all rows of the tile.
    body = seq(*steps)
    for (v, h), column in reversed(columns.items()):
        value = _load_panel_vector(tile, b, b_index, v)
        body = LetStmt(column, value if len(halves) == 1 else _widen_half(tile, value, h), body)
    return body


def _widen_half(tile: RegisterTile, words: PrimExpr, half: int) -> PrimExpr:
    """Return the even or the odd bytes of words, widened to int16 pairs."""
    pairs = dt.with_lanes("int16", 2 * tile.lanes)
    by = broadcast(const(8, "int16"), 2 * tile.lanes)
    value = call_intrin("reinterpret", words, dtype=pairs)
    # Left then right shift extends the sign of the even byte; the odd one needs only the right
    # shift.
    if half == 0:
        value = call_intrin("left_shift", value, by, dtype=pairs)
    value = call_intrin("right_shift", value, by, dtype=pairs)
    return call_intrin("reinterpret", value, dtype=tile.vector_dtype)


def _broadcast_data(tile: RegisterTile, a: Buffer, index: PrimExpr) -> PrimExpr:
    """Broadcast a row's data word to every lane."""
    word = _word_size(a.dtype)
    if word == 1:
        return broadcast(a[index], tile.lanes)
    word_vector = a[ramp(index, 1, word)].with_fields(dtype=dt.with_lanes(a.dtype, word))
    return broadcast(call_intrin("reinterpret", word_vector, dtype=tile.dtype), tile.lanes)


def _load_panel_vector(tile: RegisterTile, b: Buffer, index: PrimExpr, v: int) -> PrimExpr:
    """Load a vector of a panel row."""
    word = tile.word or _word_size(b.dtype)
    if word == 1:
        return b[ramp(index + v * tile.lanes, 1, tile.lanes)].with_fields(dtype=tile.vector_dtype)
    count = tile.lanes * word
    row: PrimExpr = b[ramp(index + v * count, 1, count)].with_fields(
        dtype=dt.with_lanes(b.dtype, count)
    )
    if word != _word_size(b.dtype):
        row = Cast(row, dt.with_lanes(WIDENED_DTYPE, count))
    return call_intrin("reinterpret", row, dtype=tile.vector_dtype)


def _word_size(panel_dtype: str) -> int:
    """Return the elements of the words that panels of a dtype have by default; 1 for no words."""
    return DOT_WORD_BY_DTYPE.get(panel_dtype, 1)


def _emit_accumulate(dot: str | None, acc: Buffer, index: int, a: PrimExpr, b: PrimExpr) -> Stmt:
    args = ("fma", a, b, acc[index]) if dot is None else (dot, acc[index], a, b)
    return BufferStore(acc, call_intrin(*args, dtype=acc.dtype), (const(index),))


def _emit_int16_k_step(
    tile: RegisterTile,
    acc: Buffer,
    first_sum: int,
    rows: Sequence[PrimExpr],
    columns: Sequence[Var],
    dot: str,
) -> Stmt:
    """Emit one step of k of words of int16: two products, then the two additions to their sums.

    Where a product and its addition alternate, the addition takes the unit that the next product
    waits for (Zen 4, tiles of 13x2 by AVX-512: 168 GOP/s one by one, 188 in this order).

    Args:
        tile: The shape.
        acc: The sums.
        first_sum: The sum of the first row and vector.
        rows: The words of data of each row, broadcast.
        columns: The vectors of the panel row.
        dot: The instruction that multiplies.
    """
    # Tiles of an odd number of vectors pair the last one of a row with the first of the next.
    rows_per_group = 1 + tile.vectors % 2
    groups: list[Stmt] = []
    for begin in range(0, tile.rows, rows_per_group):
        group_rows = range(begin, min(begin + rows_per_group, tile.rows))
        scalars = {i: Var(f"a{i}", tile.vector_dtype) for i in group_rows}
        updates = [
            (first_sum + i * tile.vectors + v, scalars[i], column)
            for i in group_rows
            for v, column in enumerate(columns)
        ]
        pairs = [updates[n : n + 2] for n in range(0, len(updates), 2)]
        group = seq(*(_emit_product_pair(acc, pair, dot) for pair in pairs))
        for i, scalar in scalars.items():
            group = LetStmt(scalar, rows[i], group)
        groups.append(group)
    return seq(*groups)


def _emit_product_pair(
    acc: Buffer, updates: Sequence[tuple[int, PrimExpr, PrimExpr]], dot: str
) -> Stmt:
    """Emit one or two products (index of the sum, two factors), then their additions to sums."""
    zero = broadcast(const(0, dt.element_dtype(acc.dtype)), dt.lanes(acc.dtype))
    products = [Var(f"p{n}", acc.dtype) for n in range(len(updates))]
    values: list[PrimExpr] = list(products)
    # The first addition waits for both products.
    if len(products) == 2:
        values[0] = call_intrin("in_order", *products, dtype=acc.dtype)
    additions = [
        BufferStore(acc, fold_binary(Add, acc[index], value), (const(index),))
        for (index, _, _), value in zip(updates, values, strict=True)
    ]
    stmt = seq(*additions)
    for product, (_, a, b) in zip(products, updates, strict=True):
        stmt = LetStmt(product, call_intrin(dot, zero, a, b, dtype=acc.dtype), stmt)
    return stmt


def _emit_stores(tile: RegisterTile, acc: Buffer, store: StoreVector) -> list[Stmt]:
    stores = []
    for i in range(tile.rows):
        for v in range(tile.vectors):
            value = acc[i * tile.vectors + v]
            stores.append(store(const(i), const(v * tile.lanes), value, tile.vector_mask(v)))
    return stores


def balanced_row_tiles(
    total: PrimExpr,
    limit: int,
    body: Callable[[int, PrimExpr], Stmt],
    kind: ForKind = ForKind.SERIAL,
    index: Var | None = None,
) -> Stmt:
    """Return a loop over tiles that cover [0, total), whose sizes differ by at most one and do not
    exceed `limit`.

    Where the total is not known, tiles have at most MAX_DYNAMIC_TILE_ROWS rows: there is code
    for every number of rows.

    Args:
        total: The rows.
        limit: The most rows of a tile.
        body: Takes the rows and the first row of a tile.
        kind: The kind of the loop.
        index: The variable that counts tiles.
    """
    index = Var("t") if index is None else index
    if isinstance(total, IntImm):
        return _static_row_tiles(total.value, limit, body, index, kind)
    # Every candidate is a copy of the tile: code size bounds their number.
    limit = min(limit, MAX_DYNAMIC_TILE_ROWS)
    tiles, base, extra, rows, first = (Var(n) for n in ("tiles", "base", "extra", "rows", "first"))
    choice: Stmt = body(1, first)
    for candidate in range(2, limit + 1):
        # Rows must be constant in each copy, so that accumulators are registers and not an array.
        choice = IfThenElse(rows.equal(candidate), body(candidate, first), choice)
    # The first total % tiles tiles have one row more than the others.
    is_long = call_intrin("if_then_else", index < extra, const(1), const(0))
    tile_body = LetStmt(
        rows, base + is_long, LetStmt(first, index * base + minimum(index, extra), choice)
    )
    loop = For(index, const(0), tiles, kind, tile_body)
    # Evaluated only under `tiles > 0` below: without rows this would divide by 0.
    divided = LetStmt(base, total // tiles, LetStmt(extra, total % tiles, loop))
    count = simplify((total + (limit - 1)) // limit)
    return LetStmt(tiles, count, IfThenElse(tiles > 0, divided))


def stepped_row_tiles(
    total: PrimExpr, sizes: Sequence[int], body: Callable[[int, PrimExpr], Stmt], kind: ForKind
) -> Stmt:
    """Return loops over tiles of decreasing sizes that cover a dynamic [0, total); the last size is
    1.

    Less code than `balanced_row_tiles`, and slower where few rows are left over.
    """
    # Tiles of one row cover any remainder.
    assert sizes[-1] == 1, sizes
    begin: PrimExpr = const(0)
    loops: list[tuple[Var, PrimExpr, Stmt]] = []
    for i, size in enumerate(sizes):
        count, index = Var(f"tiles{size}"), Var("t")
        # Only the largest size runs in parallel: all smaller tiles cover fewer rows than one of it.
        loop = For(
            index,
            const(0),
            count,
            kind if i == 0 else ForKind.SERIAL,
            body(size, begin + index * size),
        )
        loops.append((count, (total - begin) // size, loop))
        begin = begin + count * size
    stmt = seq(*(loop for _, _, loop in loops))
    for count, value, _ in reversed(loops):
        stmt = LetStmt(count, value, stmt)
    return stmt


def _static_row_tiles(
    total: int,
    limit: int,
    body: Callable[[int, PrimExpr], Stmt],
    index: Var,
    kind: ForKind,
) -> Stmt:
    count = -(-total // limit)
    # max(count, 1) keeps divmod defined where there are no rows.
    base, extra = divmod(total, max(count, 1))
    first = Var("first")
    # The first `extra` tiles have a row more, so that sizes differ by at most one.
    short = body(max(base, 1), first)
    choice = IfThenElse(index < extra, body(base + 1, first), short) if extra else short
    start = LetStmt(first, index * base + minimum(index, const(extra)), choice)
    return For(index, const(0), const(count), kind, start)


def vector_loop_with_tail(
    count: PrimExpr, lanes: int, body: Callable[[PrimExpr, int], Stmt]
) -> Stmt:
    """Emit `body(first, lanes)` over [0, count) in full vectors, then `body(i, 1)` for the tail."""
    main, tail = Var("i"), Var("j")
    num_vectors = simplify(count // lanes)
    vectors = For(main, const(0), num_vectors, ForKind.SERIAL, body(main * lanes, lanes))
    remainder = simplify(count - num_vectors * lanes)
    if isinstance(remainder, IntImm) and remainder.value == 0:
        return vectors
    return seq(
        vectors, For(tail, const(0), remainder, ForKind.SERIAL, body(num_vectors * lanes + tail, 1))
    )


__all__ = [
    "RegisterTile",
    "balanced_row_tiles",
    "column_mask",
    "emit_register_tile",
    "max_tile_rows",
    "narrowest_lanes",
    "stepped_row_tiles",
    "vector_loop_with_tail",
]
