"""Tensorisation into micro-kernels: match a loop nest as a tile of a matrix product and replace it.

    for i, j:                                      one tile of each size that the loops may have:
      for k: with block d                     ->   if t < 3: <the micro-kernel of 9 rows>
      with block out: out[i, j] = f(d[i, j])       else: <the micro-kernel of 8 rows>

Proved: the block is a sum of products, one factor invariant in the columns, the other in the rows;
it runs over all of its loops; the epilogue reads each sum at its own element, and no other block
reads it.

A block in front of the sum, in the same loops, may copy the second factor for those that read it
later (`read_at` with `first_use`): the tile makes the copy.

A second part of the sum (`Schedule.partition`) may follow the first, whose elements of the first
factor are looked up in a table:

      for n: with block d_1: d[i, j] += a[i, table[n]] * b[k + n, j]

Proved: it continues the same sums (its init never runs), and one element of the table, which
neither rows nor columns move, gives the index.
"""

from __future__ import annotations

from dataclasses import replace

from ekiden.ir.prim import EQ, Cast, IntImm, Mul, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferLoad, broadcast
from ekiden.tir.reduction import match_update
from ekiden.tir.schedule.block_kinds import REDUCTION, classify_block, reduce_loops, require_kind
from ekiden.tir.schedule.linear_conditions import match_term_if
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    accesses_of_buffer,
    block_reads,
    block_writes,
    bound_analyzer,
    refuse,
    remove_allocation,
    unit_loop_values,
    wrap_in_loops,
)
from ekiden.tir.schedule.tensorize_gather import match_gather
from ekiden.tir.schedule.tensorize_tile import (
    TENSORIZE_PRIMITIVE,
    Sizes,
    TileBuilder,
    branch_on_size,
    max_extent,
    statements_outside,
    substituted_store,
)
from ekiden.tir.schedule.tile_conditions import bounds_of_sum_loops
from ekiden.tir.stmt import BlockRealize, BufferStore, For, LetStmt, PrimFunc, SeqStmt, Stmt
from ekiden.tir.tensor_intrin.micro import (
    MatmulTileNest,
    MicroKernel,
    Options,
    PanelCopy,
    PartialSums,
    SumLoop,
    count_float_ops,
)
from ekiden.tir.transform.buffer_flattening import flat_index
from ekiden.tir.transform.loop_vectorization import Vectorizer


@dataclass(frozen=True, slots=True)
class _MatmulTile:
    """A matched tile of a matrix product: its loops, the sum, the part of the sum whose elements
    are looked up, with its loops, and the epilogue.
    """

    rows: For
    columns: For
    loops: tuple[For, ...]
    sum: BlockRealize
    gather_loops: tuple[For, ...]
    gather: BlockRealize | None
    epilogue: BlockRealize | None
    copy: BlockRealize | None = None

    @property
    def blocks(self) -> list[BlockRealize]:
        """Return the blocks of the tile."""
        return [x for x in (self.copy, self.sum, self.gather, self.epilogue) if x is not None]


def tensorize_tile(
    program: ScheduleProgram, rows_loop: For, kernel: MicroKernel, options: Options
) -> PrimFunc:
    """Return the function with a nest replaced by a micro-kernel; see `Schedule.tensorize`."""
    nest = _match_tile(rows_loop)
    tiles = MatmulTileBuilder(program, nest, kernel, options).emit_tiles()
    func = program.replace(rows_loop, tiles)
    (sums,) = block_writes(nest.sum.block)
    # Sums that stay where they are may be used by others: nothing is taken from them.
    if nest.epilogue is not None and sums not in block_writes(nest.epilogue.block):
        users = [*program.writers(sums), *program.readers(sums)]
        others = [x for x in users if x not in nest.blocks]
        if not all(_initializes_or_continues_sum(program, sums, x) for x in others):
            refuse(f"{TENSORIZE_PRIMITIVE}: {sums.name!r} is used by other blocks too", rows_loop)
        if not others and not program.is_param(sums) and not _outer_reduction_loops(program, nest):
            # The sums now live in registers only; their buffer has no other reader.
            func = remove_allocation(func, sums)
    has_blocks = any(isinstance(s, BlockRealize) for s in statements_outside(func.body, tiles))
    func = func.with_attr("tir.tiled", 1)
    # Of several tiles the last one leaves no block.
    return (
        func.with_attr("tir.has_blocks", 1) if has_blocks else func.without_attr("tir.has_blocks")
    )


# A tile's sums stay in registers, so the buffer of sums is never written. Blocks in other regions
# of the loop may use the same buffer only if they initialize it, or read what the block right
# before them wrote in the same iteration.
def _initializes_or_continues_sum(
    program: ScheduleProgram, sums: Buffer, user: BlockRealize
) -> bool:
    """Return whether a block is a reduction with an init, or reads only the element that the
    reduction right before it wrote in the same iteration.
    """
    if program.is_trusted:
        return True
    if sums in block_writes(user.block):
        return classify_block(user.block).kind == REDUCTION
    around = program.parent_of(user)
    order = around.seq if isinstance(around, SeqStmt) else ()
    position = next((n for n, s in enumerate(order) if s is user), 0)
    before: Stmt | None = order[position - 1] if position else None
    loops = []
    while isinstance(before, For):
        loops.append(before)
        before = before.body
    if not isinstance(before, BlockRealize) or sums not in block_writes(before.block):
        return False
    if classify_block(before.block).kind != REDUCTION or reduce_loops(before, loops) != loops:
        return False
    above = program.loops_above(user)
    analyzer, single = bound_analyzer(above), unit_loop_values(above)
    written = [substitute(i, single) for i in substituted_store(before).indices]
    return all(
        analyzer.can_prove_equal(substitute(x, single), y)
        for access in accesses_of_buffer(user, sums)
        for x, y in zip(access.indices, written, strict=True)
    )


def _match_tile(rows: For) -> _MatmulTile:
    """Return the matched tile under its loop over rows."""
    columns = rows.body
    if not isinstance(columns, For):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: expected a loop over columns in {rows.loop_var.name!r}", rows
        )
    inside = columns.body.seq if isinstance(columns.body, SeqStmt) else (columns.body,)
    nest, copy = _without_copy(inside[0])
    loops, realize = match_sum_nest(rows, columns, nest)
    epilogue = inside[-1] if len(inside) > 1 else None
    gather_loops: tuple[For, ...] = ()
    gather: BlockRealize | None = None
    if len(inside) > 1 and isinstance(inside[1], For):
        gather_loops, gather = match_sum_nest(rows, columns, inside[1])
        epilogue = inside[2] if len(inside) > 2 else None
    if len(inside) > len([x for x in (realize, gather, epilogue) if x is not None]):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: expected loops of a sum in {columns.loop_var.name!r}", columns
        )
    if epilogue is not None and not isinstance(epilogue, BlockRealize):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: expected a block behind the sum {realize.block.name!r}",
            epilogue,
        )
    return _MatmulTile(rows, columns, loops, realize, gather_loops, gather, epilogue, copy)


def _without_copy(nest: Stmt) -> tuple[Stmt, BlockRealize | None]:
    """Return a nest without the block in front of its sum, and that block, if there is one."""
    loops: list[For] = []
    inner = nest
    while isinstance(inner, For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, SeqStmt) or len(inner.seq) != 2:
        return nest, None
    copy, sums = inner.seq
    return (wrap_in_loops(loops, sums), copy) if isinstance(copy, BlockRealize) else (nest, None)


def match_sum_nest(rows: For, columns: For, nest: Stmt) -> tuple[tuple[For, ...], BlockRealize]:
    """Return the loops of a nest of a sum and its block."""
    loops: list[For] = []
    inner = nest
    while isinstance(inner, For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, BlockRealize) or not loops:
        refuse(
            f"{TENSORIZE_PRIMITIVE}: expected loops of a sum in {columns.loop_var.name!r}", columns
        )
    require_kind(TENSORIZE_PRIMITIVE, inner, REDUCTION)
    reducing = reduce_loops(inner, [rows, columns, *loops])
    if reducing != loops or not is_const(inner.predicate, 1):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: the loops inside must be all that {inner.block.name!r} sums "
            "over",
            columns,
        )
    return tuple(loops), inner


def _outer_reduction_loops(program: ScheduleProgram, nest: _MatmulTile) -> list[For]:
    return reduce_loops(nest.sum, program.loops_above(nest.rows))


@dataclass(frozen=True, slots=True)
class _Factor:
    """A factor of the products: an element, and its flat index in a tile."""

    load: BufferLoad
    index: PrimExpr


class MatmulTileBuilder(TileBuilder):
    """A builder of the statements for all sizes of a tile."""

    nest: _MatmulTile

    def __init__(
        self, program: ScheduleProgram, nest: _MatmulTile, kernel: MicroKernel, options: Options
    ) -> None:
        super().__init__(program, nest, kernel, options)
        self.tile_origin: dict[Var, PrimExpr] = {s.loop_var: const(0) for s in nest.loops}
        self.conditions: list[PrimExpr] = []
        if kernel.is_elementwise:
            self.tile_origin[self.column] = const(0)
            if nest.gather is not None:
                refuse(f"{TENSORIZE_PRIMITIVE}: {kernel.name!r} looks no element up", nest.gather)
        for sum_loop in (*nest.loops, *nest.gather_loops):
            self.analyzer.bind(sum_loop.loop_var, sum_loop.min, sum_loop.extent)
        self.a, self.b = self.match_factors(substituted_store(nest.sum), nest.sum)
        self.copy = None if nest.copy is None else self.match_copy(nest.copy)

    # What the sum is of.

    # a[i, k] * b[k, j] in either order: what rows do not move is the panel that a tile loads
    # vectors of, what columns do not move is broadcast. A factor that moves with both is no product
    # of matrices. Flat indices decide: in a tile of a panel, `j // 16` does not move.
    def match_factors(self, store: BufferStore, realize: BlockRealize) -> tuple[_Factor, _Factor]:
        """Return the factor of the product that is invariant in the columns and the one invariant
        in the rows.
        """
        update = match_update(store)
        init = realize.block.init
        starts = isinstance(init, BufferStore) and is_const(init.value, 0)
        value = None if update is None else update[1]
        if value is not None and self.kernel.takes_conditions:
            self.conditions, value = match_term_if(value)
            moving = {self.nest.columns.loop_var} & set(free_vars(*self.conditions))
            if moving:
                refuse(
                    f"{TENSORIZE_PRIMITIVE}: terms of {realize.block.name!r} are under a condition "
                    "on its columns",
                    realize,
                )
        if not starts or not isinstance(value, Mul):
            refuse(
                f"{TENSORIZE_PRIMITIVE}: block {realize.block.name!r} is no sum of products",
                realize,
            )
        loads = [_strip_casts(e) for e in (value.a, value.b)]
        factors = [_Factor(e, self.flat_index_of(e)) for e in loads if isinstance(e, BufferLoad)]
        if len(factors) < 2:
            refuse(f"{TENSORIZE_PRIMITIVE}: {value!r} is no product of elements", realize)
        x, y = factors
        if self._moves_both(x, y):
            x, y = y, x
        if self._moves_both(x, y):
            refuse(
                f"{TENSORIZE_PRIMITIVE}: both factors of {value!r} move with rows or columns",
                realize,
            )
        return x, y

    def _moves_both(self, x: _Factor, y: _Factor) -> bool:
        """Return whether the second factor moves with the rows, or the first one with the columns
        in a product of matrices.
        """
        moves_columns = not self.kernel.is_elementwise and self.column in free_vars(x.index)
        return moves_columns or self.row in free_vars(y.index)

    # A copy that the first of the tile's rows makes of each element of the second factor, where the
    # tile reads it. Nothing in the tile reads what is copied, so it does not matter which row does.
    def match_copy(self, copy: BlockRealize) -> PanelCopy:
        """Return the copy of the second factor that a block in front of the sum makes."""
        name, rows, tile = copy.block.name, self.nest.rows, self.nest
        store = substituted_store(copy)
        if not self.kernel.makes_copies or self.conditions or tile.gather is not None:
            refuse(f"{TENSORIZE_PRIMITIVE}: {self.kernel.name!r} makes no copy {name!r}", copy)
        is_first = is_const(copy.predicate, 1) and is_const(rows.extent, 1)
        if isinstance(copy.predicate, EQ):
            sides = copy.predicate.a, copy.predicate.b
            is_first = sides[0] is rows.loop_var and self.analyzer.can_prove_equal(
                sides[1], rows.min
            )
        load, panel = store.value, self.b.load.buffer
        if not is_first or not isinstance(load, BufferLoad) or load.buffer is not panel:
            refuse(
                f"{TENSORIZE_PRIMITIVE}: block {name!r} is no copy of {panel.name!r} by the first "
                "row",
                copy,
            )
        origin: dict[Var, PrimExpr] = {self.row: const(0)}
        if not self.program.is_trusted and not self.analyzer.can_prove_equal(
            substitute(self.flat_index_of(load), origin), self.b.index
        ):
            refuse(f"{TENSORIZE_PRIMITIVE}: {name!r} copies what the sum does not read", copy)
        others = [x for x in tile.blocks if x is not copy]
        touched = {b for x in others for b in (*block_reads(x.block), *block_writes(x.block))}
        if store.buffer in touched or reduce_loops(tile.sum, self.enclosing_loops):
            refuse(f"{TENSORIZE_PRIMITIVE}: the tile reads what {name!r} copies", copy)
        to = self.analyzer.simplify(
            substitute(self.flat_index(flat_index(store.buffer, store.indices)), origin)
        )
        if not is_const(self.stride_along(to, self.column), 1):
            refuse(f"{TENSORIZE_PRIMITIVE}: {name!r} does not copy to adjacent columns", copy)
        base = substitute(to, {**self.tile_origin, self.column: const(0)})
        strides = tuple(self.stride_along(to, s.loop_var) for s in tile.loops)
        return PanelCopy(store.buffer, self.analyzer.simplify(base), strides)

    def load_partial_sums(self, row: PrimExpr, column: PrimExpr, lanes: int) -> PrimExpr:
        """Return a vector of stored partial sums."""
        vectors = Vectorizer(self.nest.columns.loop_var, self.begin + column, lanes)
        vectors.define(self.nest.rows.loop_var, self.first + row)
        # of the only column the place may be written without it: its sum in every lane
        held = vectors.rewrite_expr(BufferLoad(self.sums, self.indices, self.sums.dtype))
        return broadcast(held, lanes)

    def match_partial_sums(self) -> PartialSums | None:
        """Return the partial sums that a tile continues if an outer loop also reduces, or None."""
        outer = reduce_loops(self.nest.sum, self.enclosing_loops)
        ending = self.nest.epilogue
        used = set() if ending is None else set(free_vars(ending.predicate))
        if ending is not None and not used <= {s.loop_var for s in outer}:
            refuse(
                f"{TENSORIZE_PRIMITIVE}: block {ending.block.name!r} runs only under a condition",
                ending,
            )
        if not outer:
            return None
        if len(outer) > 1:
            refuse(
                f"{TENSORIZE_PRIMITIVE}: one loop outside may sum too, there are {len(outer)}",
                self.nest.sum,
            )
        last = const(True) if ending is None else ending.predicate
        keep = self.vector_store_emitter(BufferStore(self.sums, self.sum_var, self.indices))
        # An outer reduction loop blocks k for the cache: sums are spilled between its iterations,
        # and the epilogue runs in the last one.
        return PartialSums(outer[0].loop_var > 0, self.load_partial_sums, keep, last)

    # All tiles.

    def emit_tiles(self) -> Stmt:
        """Emit a branch per tile size; a kernel that accepts any number of rows gets one per number
        of columns.
        """
        common = self.size_independent_nest(self.a.index, self.b.index)
        start = substitute(self.a.index, self.tile_origin)
        if self.kernel.accepts_any_rows:
            return self.emit_tiles_of_any_rows(common, start, self.column_sizes)
        row_offsets = self.analyzer.values_at(start, self.row, self.max_rows())

        def emit_tile(count: int, valid: int) -> Stmt:
            """Emit the tile of `count` rows and `valid` columns."""
            nest = replace(common, rows=count, columns=valid, a_rows=row_offsets[:count])
            return self.write(nest)

        return self.emit_sizes(emit_tile)

    def write(self, tile: MatmulTileNest) -> Stmt:
        """Return the statements of one tile."""
        assert self.kernel.write is not None, self.kernel.name
        return self.kernel.write(tile, self.options)

    def emit_tiles_of_any_rows(
        self, common: MatmulTileNest, start: PrimExpr, columns: Sizes
    ) -> Stmt:
        """Return a branch per number of columns."""
        max_rows = max_extent(self.nest.rows)
        if not isinstance(max_rows, IntImm):
            name = self.nest.rows.loop_var.name
            refuse(
                f"{TENSORIZE_PRIMITIVE}: loop {name!r} may have any number of steps", self.nest.rows
            )
        begin = self.analyzer.simplify(substitute(start, {self.row: const(0)}))
        stride = self.stride_along(start, self.row)
        row_extent = self.nest.rows.extent
        nest = replace(
            common, rows=max_rows.value, row_loop=row_extent, a_rows=(begin,), a_stride=stride
        )
        column_count = Var("columns")
        branches = branch_on_size(
            columns(column_count),
            lambda valid: self.write(replace(nest, columns=valid)),
        )
        if any(c is not None and column_count in free_vars(c) for _, c in columns(column_count)):
            branches = LetStmt(column_count, self.nest.columns.extent, branches)
        return LetStmt(self.first, self.nest.rows.min, branches)

    def size_independent_nest(self, a: PrimExpr, b: PrimExpr) -> MatmulTileNest:
        """Return the nest without sizes that tiles of all sizes share: operands, strides, loops."""
        bounds = bounds_of_sum_loops(
            self.conditions, self.first, self.row, self.nest.rows, self.nest.loops, self.analyzer
        )
        loops = tuple(
            SumLoop(
                extent,
                self.stride_along(a, s.loop_var),
                self.stride_along(b, s.loop_var),
                begin,
                rows,
            )
            for s, (begin, extent, rows) in zip(self.nest.loops, bounds, strict=True)
        )
        a_column = self.stride_along(a, self.column)
        if not isinstance(a_column, IntImm):
            refuse(
                f"{TENSORIZE_PRIMITIVE}: columns of {self.a.load.buffer.name!r} do not lie in "
                "order",
                self.nest.sum,
            )
        column = self.stride_along(b, self.column)
        if not isinstance(column, IntImm):
            refuse(
                f"{TENSORIZE_PRIMITIVE}: columns of {self.b.load.buffer.name!r} do not lie in "
                "order",
                self.nest.sum,
            )
        base = self.analyzer.simplify(substitute(b, {**self.tile_origin, self.column: const(0)}))
        gather = None if self.nest.gather is None else match_gather(self, self.nest.gather)
        # Products by elements have no panel that several tiles read.
        number, following = (
            (None, const(0)) if self.kernel.is_elementwise else self.panel_position(base)
        )
        finish = self.epilogue_store()
        return MatmulTileNest(
            dtype=self.sums.dtype,
            rows=0,
            columns=0,
            a=self.a.load.buffer,
            a_rows=(),
            b=self.b.load.buffer,
            b_base=base,
            b_columns=column.value,
            b_width=self.readable_columns(),
            loops=loops,
            store=self.vector_store_emitter(finish),
            epilogue_flops=count_float_ops(finish.value),
            partial_sums=self.match_partial_sums(),
            gather=gather,
            facts=dict(self.nest.sum.block.annotations or {}),
            panel_position=number,
            next_panel_offset=following,
            a_columns=a_column.value,
            copy=self.copy,
        )

    def readable_columns(self) -> int:
        """Return how many columns of the second factor may be read from the first one on: to the
        end of their axis if the tile begins at its start; 0 if unknown.
        """
        values = {**self.unit_loop_values, self.nest.columns.loop_var: self.begin + self.column}
        indices = [substitute(i, values) for i in self.b.load.indices]
        moved = [n for n, i in enumerate(indices) if self.column in free_vars(i)]
        along = [n for n in moved if not self.is_column_invariant(indices[n])]
        # The index of a single column may be written without it.
        if not moved and is_const(self.nest.columns.extent, 1):
            along = [len(indices) - 1]
        if len(along) != 1:
            return 0
        first = self.analyzer.simplify(substitute(indices[along[0]], {self.column: const(0)}))
        extent = self.b.load.buffer.shape[along[0]]
        return extent.value if is_const(first, 0) and isinstance(extent, IntImm) else 0

    def is_column_invariant(self, index: PrimExpr) -> bool:
        """Return whether an index is the same for all columns of a tile."""
        return self.column not in free_vars(self.analyzer.simplify(index))


def _strip_casts(e: PrimExpr) -> PrimExpr:
    return e.value if isinstance(e, Cast) else e


__all__ = ["MatmulTileBuilder", "match_sum_nest", "tensorize_tile"]
