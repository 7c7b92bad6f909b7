"""Tensorisation into micro-kernels: match a loop nest as a tile of a matrix product and replace it.

    for i, j:                                      one tile of each size that the loops may have:
      for k: with block d                     ->   if t < 3: <the micro-kernel of 9 rows>
      with block out: out[i, j] = f(d[i, j])       else: <the micro-kernel of 8 rows>

Proved: the block is a sum of products, one factor invariant in the columns, the other in the rows;
it runs over all of its loops; the epilogue reads each sum at its own element, and no other block
reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from ekiden.arith import evaluate
from ekiden.ir import dtype as dt
from ekiden.ir.prim import Cast, FloatImm, IntImm, Mul, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, post_order, rewrite, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferLoad, broadcast
from ekiden.tir.reduction import match_update
from ekiden.tir.schedule.kinds import REDUCTION, classify_block, reduce_loops, require_kind
from ekiden.tir.schedule.linear_conditions import match_term_if
from ekiden.tir.schedule.program import (
    PART_EXTENT_BOUND_ANNOTATION,
    ScheduleProgram,
    accesses_of_buffer,
    block_writes,
    bound_analyzer,
    refuse,
    remove_allocation,
    unit_loop_values,
)
from ekiden.tir.schedule.tile_conditions import bounds_of_sum_loops
from ekiden.tir.stmt import (
    BlockRealize,
    BufferStore,
    For,
    IfThenElse,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
)
from ekiden.tir.tensor_intrin.micro import (
    MatmulTileNest,
    MicroKernel,
    Options,
    PartialSums,
    SumLoop,
)
from ekiden.tir.transform.flat_buffers import flat_index
from ekiden.tir.transform.loop_vectorization import Vectorizer
from ekiden.tir.visitor import sub_statements
from ekiden.tir.visitor import substitute as substitute_stmt

MAX_PART_COMBINATIONS = 4096
"""Maximum number of part-size combinations that are enumerated."""
TENSORIZE_PRIMITIVE = "tensorize"


@dataclass(frozen=True, slots=True)
class _MatmulTile:
    """A matched tile of a matrix product: its loops, the sum, and the epilogue."""

    rows: For
    columns: For
    loops: tuple[For, ...]
    sum: BlockRealize
    epilogue: BlockRealize | None


def tensorize_tile(
    program: ScheduleProgram, rows_loop: For, kernel: MicroKernel, options: Options
) -> PrimFunc:
    """Return the function with a nest replaced by a micro-kernel; see `Schedule.tensorize`."""
    nest = _match_tile(rows_loop)
    tiles = _TileBuilder(program, nest, kernel, options).emit_tiles()
    func = program.replace(rows_loop, tiles)
    (sums,) = block_writes(nest.sum.block)
    inside = [nest.sum, *([nest.epilogue] if nest.epilogue is not None else [])]
    users = [*program.writers(sums), *program.readers(sums)]
    if nest.epilogue is not None and sums not in block_writes(nest.epilogue.block):
        if any(x not in inside and not _uses_sums_of_its_own(program, sums, x) for x in users):
            _refuse(rows_loop, f"{sums.name!r} is used by other blocks too")
        is_last = all(x in inside for x in users)
        if is_last and not program.is_param(sums) and not _outer_reduction_loops(program, nest):
            # The sums now live in registers only; their buffer has no other reader.
            func = remove_allocation(func, sums)
    has_blocks = any(isinstance(s, BlockRealize) for s in _statements_outside(func.body, tiles))
    func = func.with_attr("tir.tiled", 1)
    # Of several tiles the last one leaves no block.
    return (
        func.with_attr("tir.has_blocks", 1) if has_blocks else func.without_attr("tir.has_blocks")
    )


# The sums of a tile stay in registers. Blocks of other regions of a loop use the same buffer: that
# is no matter where what they read of it was written right before, in the same step of their loops.
def _uses_sums_of_its_own(program: ScheduleProgram, sums: Buffer, user: BlockRealize) -> bool:
    """Return whether a block is a sum with an init, or reads the element that the sum right before
    it, in the same loops, has written.
    """
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
    written = [substitute(i, single) for i in _substituted_store(before).indices]
    return all(
        analyzer.can_prove_equal(substitute(x, single), y)
        for access in accesses_of_buffer(user, sums)
        for x, y in zip(access.indices, written, strict=True)
    )


def _statements_outside(root: Stmt, apart: Stmt) -> Iterator[Stmt]:
    """Yield the statements of a program except those inside one of them."""
    stack = [root]
    while stack:
        s = stack.pop()
        if s is not apart:
            yield s
            stack.extend(sub_statements(s))


def _refuse(stmt: Stmt, message: str) -> None:
    refuse(f"{TENSORIZE_PRIMITIVE}: {message}", stmt)


def _match_tile(rows: For) -> _MatmulTile:
    """Return the matched tile under its loop over rows."""
    columns = rows.body
    if not isinstance(columns, For):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: expected a loop over columns in {rows.loop_var.name!r}", rows
        )
    inside = columns.body.seq if isinstance(columns.body, SeqStmt) else (columns.body,)
    loops: list[For] = []
    inner = inside[0]
    while isinstance(inner, For):
        loops.append(inner)
        inner = inner.body
    epilogue = inside[1] if len(inside) == 2 else None
    if not isinstance(inner, BlockRealize) or not loops or len(inside) > 2:
        refuse(
            f"{TENSORIZE_PRIMITIVE}: expected loops of a sum in {columns.loop_var.name!r}", columns
        )
    if epilogue is not None and not isinstance(epilogue, BlockRealize):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: expected a block behind the sum {inner.block.name!r}", epilogue
        )
    require_kind(TENSORIZE_PRIMITIVE, inner, REDUCTION)
    reducing = reduce_loops(inner, [rows, columns, *loops])
    if reducing != loops or not is_const(inner.predicate, 1):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: the loops inside must be all that {inner.block.name!r} sums "
            "over",
            columns,
        )
    return _MatmulTile(rows, columns, tuple(loops), inner, epilogue)


def _outer_reduction_loops(program: ScheduleProgram, nest: _MatmulTile) -> list[For]:
    return reduce_loops(nest.sum, program.loops_above(nest.rows))


def _substituted_store(realize: BlockRealize) -> BufferStore:
    """Return the single store of a block, its iterators replaced by their bindings."""
    values = dict(zip((i.var for i in realize.block.iter_vars), realize.iter_values, strict=True))
    body = substitute_stmt(realize.block.body, values)
    if not isinstance(body, BufferStore) or body.predicate is not None:
        refuse(
            f"{TENSORIZE_PRIMITIVE}: block {realize.block.name!r} is more than one store", realize
        )
    return body


class _TileBuilder:
    """A builder of the statements for all sizes of a tile."""

    def __init__(
        self, program: ScheduleProgram, nest: _MatmulTile, kernel: MicroKernel, options: Options
    ) -> None:
        self.program, self.nest = program, nest
        self.kernel, self.options = kernel, options
        self.enclosing_loops = program.loops_above(nest.rows)
        self.analyzer = bound_analyzer(self.enclosing_loops)
        self.first, self.row = Var("first"), Var("row")
        self.unit_loop_values = unit_loop_values(self.enclosing_loops)
        self.begin, self.column = substitute(nest.columns.min, self.unit_loop_values), Var("column")
        for var, loop in ((self.row, nest.rows), (self.column, nest.columns)):
            self.analyzer.bind(var, 0, _max_extent(loop))
        self.tile_origin: dict[Var, PrimExpr] = {s.loop_var: const(0) for s in nest.loops}
        if self.kernel.is_elementwise:
            self.tile_origin[self.column] = const(0)
        for sum_loop in nest.loops:
            self.analyzer.bind(sum_loop.loop_var, sum_loop.min, sum_loop.extent)
        store = _substituted_store(nest.sum)
        self.sums, self.indices = store.buffer, store.indices
        self.conditions: list[PrimExpr] = []
        self.a, self.b = self.match_factors(store)
        self.epilogue_stmt = None if nest.epilogue is None else _substituted_store(nest.epilogue)
        self.sum_var = Var("sum", self.sums.dtype)
        if self.epilogue_stmt is not None:
            self.require_elementwise_epilogue(self.epilogue_stmt)

    # What the sum is of.

    # a[i, k] * b[k, j] in either order: what rows do not move is the panel that a tile loads
    # vectors of, what columns do not move is broadcast. A factor that moves with both is no product
    # of matrices.
    def match_factors(self, store: BufferStore) -> tuple[BufferLoad, BufferLoad]:
        """Return the factor of the product that is invariant in the columns and the one invariant
        in the rows.
        """
        update = match_update(store)
        init = self.nest.sum.block.init
        starts = isinstance(init, BufferStore) and is_const(init.value, 0)
        value = None if update is None else update[1]
        if value is not None and self.kernel.is_elementwise:
            self.conditions, value = match_term_if(value)
        if not starts or not isinstance(value, Mul):
            refuse(
                f"{TENSORIZE_PRIMITIVE}: block {self.nest.sum.block.name!r} is no sum of products",
                self.nest.sum,
            )
        loads = [_strip_casts(e) for e in (value.a, value.b)]
        x, y = (e if isinstance(e, BufferLoad) else None for e in loads)
        if x is None or y is None:
            refuse(f"{TENSORIZE_PRIMITIVE}: {value!r} is no product of elements", self.nest.sum)
        if self._moves_both(x, y):
            x, y = y, x
        if self._moves_both(x, y):
            refuse(
                f"{TENSORIZE_PRIMITIVE}: both factors of {value!r} move with rows or columns",
                self.nest.sum,
            )
        return x, y

    def _moves_both(self, x: BufferLoad, y: BufferLoad) -> bool:
        """Return whether the second factor moves with the rows, or the first one with the columns
        in a product of matrices.
        """
        i, j = self.nest.rows.loop_var, self.nest.columns.loop_var
        moves_columns = not self.kernel.is_elementwise and j in free_vars(*x.indices)
        return moves_columns or i in free_vars(*y.indices)

    def flat_index_of(self, load: BufferLoad) -> PrimExpr:
        """Return the flat index of a load, with rows and columns counted from the tile's."""
        values = {
            **self.unit_loop_values,
            self.nest.rows.loop_var: self.first + self.row,
            self.nest.columns.loop_var: self.begin + self.column,
        }
        return self.analyzer.simplify(substitute(flat_index(load.buffer, load.indices), values))

    def stride_along(self, flat: PrimExpr, var: Var) -> PrimExpr:
        """Return the stride of a loop variable in a flat index. Refuses where it is not
        constant.
        """
        moved = substitute(flat, {var: var + 1}) - flat
        stride = self.analyzer.simplify(moved)
        if var in free_vars(stride):
            # what wraps around is known not to within the loop
            stride = const(self.analyzer.coefficient(flat, var) or 0)
            if is_const(stride, 0):
                refuse(
                    f"{TENSORIZE_PRIMITIVE}: a step of {var.name!r} does not always move as far",
                    self.nest.sum,
                )
        return stride

    # What becomes of a sum.

    def require_elementwise_epilogue(self, store: BufferStore) -> None:
        """Require that the epilogue reads a sum only at its own element."""
        loops = [*self.enclosing_loops, self.nest.rows, self.nest.columns]
        analyzer = bound_analyzer(loops)
        single = unit_loop_values(loops)
        for e in post_order(store.value, *store.indices):
            if isinstance(e, BufferLoad) and e.buffer is self.sums:
                mine = (substitute(i, single) for i in e.indices)
                pairs = zip(mine, self.indices, strict=True)
                if not all(analyzer.can_prove_equal(a, substitute(b, single)) for a, b in pairs):
                    refuse(
                        f"{TENSORIZE_PRIMITIVE}: what follows reads {self.sums.name!r} elsewhere",
                        self.nest.epilogue,
                    )

    def epilogue_store(self) -> BufferStore:
        """Return the epilogue's store with the sum replaced by a variable."""
        if self.epilogue_stmt is None:
            return BufferStore(self.sums, self.sum_var, self.indices)

        def replace_sum(e: PrimExpr) -> PrimExpr:
            held = isinstance(e, BufferLoad) and e.buffer is self.sums
            return self.sum_var if held else e

        return self.epilogue_stmt.with_fields(value=rewrite(self.epilogue_stmt.value, replace_sum))

    def vector_store_emitter(
        self, store: BufferStore
    ) -> Callable[[PrimExpr, PrimExpr, PrimExpr, PrimExpr | None], Stmt]:
        """Return a function that vectorises a store of one element."""

        def store_vector(
            row: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None
        ) -> Stmt:
            """Return the store of `value` to the lanes from column `begin + column` on of row
            `first + row`; the mask disables lanes behind the last column.
            """
            lanes = dt.lanes(value.dtype)
            base = self.begin + column
            vectors = Vectorizer(self.nest.columns.loop_var, base, lanes, mask)
            vectors.define(self.sum_var, value)
            vectors.define(self.nest.rows.loop_var, self.first + row)
            return vectors.visit(self.make_column_dependent(store))

        return store_vector

    def make_column_dependent(self, store: BufferStore) -> BufferStore:
        """Return a store whose index depends on the column.

        For a single column the index may be written without it: out[i, 0] -> out[i, 0 + (j - the
        first j)], of which the mask enables the first lane only.
        """
        j = self.nest.columns.loop_var
        if j in free_vars(*store.indices):
            return store
        if not is_const(self.nest.columns.extent, 1):
            refuse(
                f"{TENSORIZE_PRIMITIVE}: all columns are stored to one of {store.buffer.name!r}",
                self.nest.sum,
            )
        *leading, last = store.indices
        return store.with_fields(indices=(*leading, last + (j - self.begin)))

    def load_partial_sums(self, row: PrimExpr, column: PrimExpr, lanes: int) -> PrimExpr:
        """Return a vector of stored partial sums."""
        vectors = Vectorizer(self.nest.columns.loop_var, self.begin + column, lanes)
        vectors.define(self.nest.rows.loop_var, self.first + row)
        # of the only column the place may be written without it: its sum in every lane
        held = vectors.rewrite_expr(BufferLoad(self.sums, self.indices, self.sums.dtype))
        return broadcast(held, lanes)

    def match_partial_sums(self) -> PartialSums | None:
        """Return how partial sums are continued where an outer loop reduces too, else None."""
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
        columns = _tile_sizes(self.nest.columns, self.enclosing_loops)
        a = self.flat_index_of(self.a)
        common = self.common_tile(a, self.flat_index_of(self.b))
        start = substitute(a, self.tile_origin)
        if self.kernel.accepts_any_rows:
            return self.emit_tiles_of_any_rows(common, start, columns)
        rows = _tile_sizes(self.nest.rows, self.enclosing_loops)
        row_count, column_count = Var("rows"), Var("columns")
        max_rows = max(size for size, _ in rows(row_count))
        simplify = self.analyzer.simplify
        row_offsets = [simplify(substitute(start, {self.row: const(n)})) for n in range(max_rows)]

        def emit_tile(count: int, valid: int) -> Stmt:
            nest = replace(common, rows=count, columns=valid, a_rows=row_offsets[:count])
            return self.kernel.write(nest, self.options)

        branches = _branch_on_size(
            columns(column_count),
            lambda valid: _branch_on_size(rows(row_count), lambda count: emit_tile(count, valid)),
        )
        for name, loop, sizes in (
            (row_count, self.nest.rows, rows),
            (column_count, self.nest.columns, columns),
        ):
            if any(c is not None and name in free_vars(c) for _, c in sizes(name)):
                branches = LetStmt(name, loop.extent, branches)
        return LetStmt(self.first, self.nest.rows.min, branches)

    def emit_tiles_of_any_rows(
        self, common: MatmulTileNest, start: PrimExpr, columns: Sizes
    ) -> Stmt:
        """Return a branch per number of columns."""
        max_rows = _max_extent(self.nest.rows)
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
        branches = _branch_on_size(
            columns(column_count),
            lambda valid: self.kernel.write(replace(nest, columns=valid), self.options),
        )
        if any(c is not None and column_count in free_vars(c) for _, c in columns(column_count)):
            branches = LetStmt(column_count, self.nest.columns.extent, branches)
        return LetStmt(self.first, self.nest.rows.min, branches)

    def common_tile(self, a: PrimExpr, b: PrimExpr) -> MatmulTileNest:
        """Return what tiles of all sizes have in common, as a MatmulTileNest of no size."""
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
                f"{TENSORIZE_PRIMITIVE}: columns of {self.a.buffer.name!r} do not lie in order",
                self.nest.sum,
            )
        column = self.stride_along(b, self.column)
        if not isinstance(column, IntImm):
            refuse(
                f"{TENSORIZE_PRIMITIVE}: columns of {self.b.buffer.name!r} do not lie in order",
                self.nest.sum,
            )
        base = self.analyzer.simplify(substitute(b, {**self.tile_origin, self.column: const(0)}))
        # Products by elements have no panel that several tiles read.
        number, following = (
            (None, const(0)) if self.kernel.is_elementwise else self.panel_position(base)
        )
        finish = self.epilogue_store()
        return MatmulTileNest(
            dtype=self.sums.dtype,
            rows=0,
            columns=0,
            a=self.a.buffer,
            a_rows=(),
            b=self.b.buffer,
            b_base=base,
            b_columns=column.value,
            b_width=self.readable_columns(),
            loops=loops,
            store=self.vector_store_emitter(finish),
            epilogue_flops=_count_float_ops(finish.value),
            partial_sums=self.match_partial_sums(),
            panel_position=number,
            next_panel_offset=following,
            a_columns=a_column.value,
        )

    def readable_columns(self) -> int:
        """Return how many columns of the second factor may be read from the first one on: to the
        end of their axis if the tile begins at its start; 0 if unknown.
        """
        values = {**self.unit_loop_values, self.nest.columns.loop_var: self.begin + self.column}
        indices = [substitute(i, values) for i in self.b.indices]
        moved = [n for n, i in enumerate(indices) if self.column in free_vars(i)]
        along = [n for n in moved if not self.is_column_invariant(indices[n])]
        if len(along) != 1:
            return 0
        first = self.analyzer.simplify(substitute(indices[along[0]], {self.column: const(0)}))
        extent = self.b.buffer.shape[along[0]]
        return extent.value if is_const(first, 0) and isinstance(extent, IntImm) else 0

    def is_column_invariant(self, index: PrimExpr) -> bool:
        """Return whether an index is the same for all columns of a tile."""
        return self.column not in free_vars(self.analyzer.simplify(index))

    def panel_position(self, base: PrimExpr) -> tuple[PrimExpr | None, PrimExpr]:
        """Return the tile's number within its panel, if the tiles are the enclosing loop's
        iterations, and the offset of the next panel.
        """
        if len(self.enclosing_loops) < 2:
            return None, const(0)
        panels, tiles = self.enclosing_loops[-2:]
        used = free_vars(base)
        if tiles.loop_var in used or panels.loop_var not in used:
            return None, const(0)
        return tiles.loop_var, self.stride_along(base, panels.loop_var)


def _strip_casts(e: PrimExpr) -> PrimExpr:
    return e.value if isinstance(e, Cast) else e


def _count_float_ops(value: PrimExpr) -> int:
    """Return the number of float operations in an expression."""
    plain = (BufferLoad, Var, IntImm, FloatImm)
    return sum(dt.is_float(e.dtype) for e in post_order(value) if not isinstance(e, plain))


def _max_extent(loop: For) -> PrimExpr:
    """Return an upper bound of a loop's extent."""
    bound = (loop.annotations or {}).get(PART_EXTENT_BOUND_ANNOTATION)
    if isinstance(bound, int):
        return const(bound)
    return bound if isinstance(bound, PrimExpr) else loop.extent


Sizes = Callable[[PrimExpr], list[tuple[int, PrimExpr | None]]]
"""Function (loop extent by name) -> possible trip counts with their conditions; None for otherwise.
"""


# A tile's row count is a constant in its code, so each that may come is written. Which may is found
# by evaluating the extent for every step of the loops around that it depends on, where these are
# known and together not too many; else every number up to the most is one: of a panel of 48 columns
# in runs for two threads that was 48 kernels where two, of 48 and 8, were ever run.
def _tile_sizes(loop: For, above: Sequence[For]) -> Sizes:
    extent = loop.extent
    if isinstance(extent, IntImm):
        extent_value = extent.value
        return lambda name: [(extent_value, None)]
    used = free_vars(extent)
    reads = any(isinstance(sub_expr, BufferLoad) for sub_expr in post_order(extent))
    if not reads and (ranges := _enclosing_loop_ranges(used, above)):
        every = (dict(zip(used, at, strict=True)) for at in product(*ranges))
        # Tail sizes are enumerated at compile time: each gets code with constant bounds, whose
        # accumulators the register allocator can keep.
        sizes = [s for at in every if (s := int(evaluate(extent, at))) > 0]
        along = (used[0], ranges[0].start) if len(used) == 1 else None
        return lambda name: _conditions_per_size(name, along, sizes)
    max_extent = _max_extent(loop)
    if not isinstance(max_extent, IntImm):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: loop {loop.loop_var.name!r} may have any number of steps", loop
        )
    limit = max_extent.value
    return lambda name: [(n, name.equal(n) if n > 1 else None) for n in range(limit, 0, -1)]


def _enclosing_loop_ranges(used: Sequence[Var], above: Sequence[For]) -> list[range]:
    """Return the ranges of variables of enclosing loops; empty where unknown or with more than
    MAX_PART_COMBINATIONS combinations.
    """
    analyzer = bound_analyzer(above)
    bounds = [analyzer.const_int_bound(v) for v in used]
    combinations = prod(
        b.max_value - b.min_value + 1 for b in bounds
    )  # of infinities no number, too
    return (
        [range(int(b.min_value), int(b.max_value) + 1) for b in bounds]
        if combinations <= MAX_PART_COMBINATIONS
        else []
    )


def _conditions_per_size(
    name: PrimExpr, along: tuple[Var, int] | None, sizes: Sequence[int]
) -> list[tuple[int, PrimExpr | None]]:
    """Return (size, condition): two consecutive sizes by where the second begins, others by the
    extent's value. `along`: the only loop that the size depends on, and its begin.
    """
    kinds = list(dict.fromkeys(sizes))
    if len(kinds) == 1:
        return [(kinds[0], None)]
    border = sizes.index(kinds[1])
    if along is not None and len(kinds) == 2 and kinds[0] not in sizes[border:]:
        var, low = along
        return [(kinds[0], var < low + border), (kinds[1], None)]
    return [*((n, name.equal(n)) for n in kinds[:-1]), (kinds[-1], None)]


def _branch_on_size(
    sizes: Sequence[tuple[int, PrimExpr | None]], make: Callable[[int], Stmt]
) -> Stmt:
    """Return the branches over the sizes that a loop may have."""
    branches: Stmt | None = None
    for size, condition in reversed(sizes):
        stmt = make(size)
        branches = (
            stmt if condition is None or branches is None else IfThenElse(condition, stmt, branches)
        )
    assert branches is not None
    return branches


__all__ = ["tensorize_tile"]
