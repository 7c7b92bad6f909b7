"""Common parts of the tiles that micro-kernels replace: rows and columns, the epilogue behind the
sums, and code for each size that a tile may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise, product
from math import prod
from typing import Protocol
from weakref import WeakKeyDictionary

from ekiden.arith.evaluation import evaluate_at
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const, logical_and
from ekiden.ir.prim_visitor import (
    children,
    free_vars,
    post_order,
    rewrite,
    substitute,
)
from ekiden.tir.expr import BufferLoad, broadcast, ramp
from ekiden.tir.schedule.program import (
    PART_EXTENT_BOUND_ANNOTATION,
    ScheduleProgram,
    bound_analyzer,
    refuse,
    unit_loop_values,
)
from ekiden.tir.stmt import BlockRealize, BufferStore, For, IfThenElse, LetStmt, Stmt, seq
from ekiden.tir.tensor_intrin.micro import MicroKernel, Options
from ekiden.tir.transform.buffer_flattening import flat_index
from ekiden.tir.transform.loop_vectorization import Vectorizer
from ekiden.tir.visitor import sub_statements
from ekiden.tir.visitor import substitute as substitute_stmt

MAX_PART_COMBINATIONS = 4096
"""Maximum number of part-size combinations that are enumerated."""
TENSORIZE_PRIMITIVE = "tensorize"


class TileNest(Protocol):
    """Protocol of a matched tile."""

    @property
    def rows(self) -> For:
        """Return the loop over rows."""

    @property
    def columns(self) -> For:
        """Return the loop over columns, directly inside."""

    @property
    def sum(self) -> BlockRealize:
        """Return the block of the sums."""

    @property
    def epilogue(self) -> BlockRealize | None:
        """Return the block behind the sums."""


def statements_outside(root: Stmt, apart: Stmt) -> Iterator[Stmt]:
    """Yield the statements of a program except those inside one of them."""
    stack = [root]
    while stack:
        s = stack.pop()
        if s is not apart:
            yield s
            stack.extend(sub_statements(s))


_SUBSTITUTED_STORE_CACHE: WeakKeyDictionary[BlockRealize, BufferStore] = WeakKeyDictionary()


def substituted_store(realize: BlockRealize) -> BufferStore:
    """Return the single store of a block, its iterators replaced by their bindings; cached by
    block. Refuses a block of more than one store.
    """
    store = _SUBSTITUTED_STORE_CACHE.get(realize)
    if store is None:
        store = _SUBSTITUTED_STORE_CACHE[realize] = _substitute_store(realize)
    return store


def _substitute_store(realize: BlockRealize) -> BufferStore:
    values = dict(zip((i.var for i in realize.block.iter_vars), realize.iter_values, strict=True))
    body = substitute_stmt(realize.block.body, values)
    if not isinstance(body, BufferStore) or body.predicate is not None:
        refuse(
            f"{TENSORIZE_PRIMITIVE}: block {realize.block.name!r} is more than one store", realize
        )
    return body


class TileBuilder:
    """A builder of the statements for all sizes of a tile."""

    nest: TileNest

    def __init__(
        self, program: ScheduleProgram, nest: TileNest, kernel: MicroKernel, options: Options
    ) -> None:
        self.program, self.nest = program, nest
        self.kernel, self.options = kernel, options
        self.enclosing_loops = program.loops_above(nest.rows)
        self.analyzer = bound_analyzer(self.enclosing_loops)
        self.first, self.row = Var("first"), Var("row")
        self.unit_loop_values = unit_loop_values(self.enclosing_loops)
        self.begin, self.column = substitute(nest.columns.min, self.unit_loop_values), Var("column")
        for var, loop in ((self.row, nest.rows), (self.column, nest.columns)):
            self.analyzer.bind(var, 0, max_extent(loop))
        store = substituted_store(nest.sum)
        self.sums, self.indices = store.buffer, store.indices
        self.epilogue_stmt = None if nest.epilogue is None else substituted_store(nest.epilogue)
        self.sum_var = Var("sum", self.sums.dtype)
        if self.epilogue_stmt is not None:
            self.require_elementwise_epilogue(self.epilogue_stmt)

    # Where elements are.

    def flat_index_of(self, load: BufferLoad) -> PrimExpr:
        """Return the flat index of a load, with rows and columns counted from the tile's."""
        return self.flat_index(flat_index(load.buffer, load.indices))

    def flat_index(self, index: PrimExpr) -> PrimExpr:
        """Return a flat index with rows and columns counted from the tile's."""
        return self.analyzer.simplify(substitute(index, self.tile_values()))

    def tile_values(self) -> dict[Var, PrimExpr]:
        """Return the values of loop variables in terms of the tile's rows and columns."""
        return {
            **self.unit_loop_values,
            self.nest.rows.loop_var: self.first + self.row,
            self.nest.columns.loop_var: self.begin + self.column,
        }

    def stride_along(self, flat: PrimExpr, var: Var) -> PrimExpr:
        """Return the stride of a loop variable in a flat index. Refuses where it is not
        constant.
        """
        slope = self.analyzer.slope(flat, var)
        if slope is not None:
            return slope
        stride = self.analyzer.simplify(substitute(flat, {var: var + 1}) - flat)
        if var in free_vars(stride):
            # An index that wraps around is linear within the loop only.
            stride = const(self.analyzer.coefficient(flat, var) or 0)
            if is_const(stride, 0):
                refuse(
                    f"{TENSORIZE_PRIMITIVE}: a step of {var.name!r} does not always move as far",
                    self.nest.sum,
                )
        return stride

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

    # What becomes of a sum.

    def require_elementwise_epilogue(self, store: BufferStore) -> None:
        """Require that the epilogue reads a sum only at its own element."""
        if self.program.is_trusted:
            return
        loops = [*self.enclosing_loops, self.nest.rows, self.nest.columns]
        analyzer = bound_analyzer(loops)
        single = unit_loop_values(loops)
        for e in post_order(store.value, *store.indices):
            if isinstance(e, BufferLoad) and e.buffer is self.sums:
                own_loops = (substitute(i, single) for i in e.indices)
                pairs = zip(own_loops, self.indices, strict=True)
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
        store = self.make_column_dependent(store)
        has_lines = self.may_store_to_lines(store)
        if has_lines:
            store = store.with_fields(indices=tuple(map(self.analyzer.simplify, store.indices)))
        nodes = post_order(store.value, *store.indices)
        # What neither the row nor the sum is part of is the same in all rows of a column.
        moving = _dependent_nodes(nodes, {self.nest.rows.loop_var, self.sum_var})
        columns: dict[tuple[int, int], Vectorizer] = {}
        runs_of_column: dict[tuple[int, int], list[BufferStore]] = {}

        def store_vector(
            row: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None
        ) -> Stmt:
            """Return the store of `value` to the lanes from column `begin + column` on of row
            `first + row`; the mask disables lanes behind the last column.
            """
            lanes = dt.lanes(value.dtype)
            key = (column.value if isinstance(column, IntImm) else 0, lanes)
            if has_lines and isinstance(column, IntImm):
                if key not in runs_of_column:
                    runs_of_column[key] = self.store_runs(store, column.value, lanes)
                if runs := runs_of_column[key]:
                    at: dict[Var, PrimExpr] = {self.nest.rows.loop_var: self.first + row}
                    return seq(*(_at_row(run, value, at) for run in runs))
            is_shared = mask is None and isinstance(column, IntImm)
            vectors = columns.get(key) if is_shared else None
            changed = moving
            if vectors is None:
                base = self.begin + column
                vectors = Vectorizer(self.nest.columns.loop_var, base, lanes, mask)
                changed = nodes
                if is_shared:
                    columns[key] = vectors
            vectors.define(self.sum_var, value)
            vectors.define(self.nest.rows.loop_var, self.first + row)
            vectors.rewrite_nodes(changed)
            return vectors.visit(store)

        return store_vector

    def may_store_to_lines(self, store: BufferStore) -> bool:
        """Return whether a vector of columns of known numbers may be stored to several lines of a
        buffer, as the sums are.
        """
        columns = self.nest.columns
        moves_line = columns.loop_var in free_vars(*store.indices[:-1])
        is_known = isinstance(self.begin, IntImm) and isinstance(columns.extent, IntImm)
        return moves_line and is_known and store.value is self.sum_var

    # A vector of columns is stored to the end of one line and the begin of the next, each under a
    # mask: a scatter of its lanes takes several times as long.
    def store_runs(self, store: BufferStore, column: int, lanes: int) -> list[BufferStore]:
        """Return the stores of the runs of adjacent elements that a vector of sums is stored to, in
        terms of the row's loop variable; empty where the element of a column along the last axis is
        not known.
        """
        columns, begin = self.nest.columns, self.begin
        assert isinstance(begin, IntImm) and isinstance(columns.extent, IntImm)
        var, count = columns.loop_var, min(lanes, columns.extent.value - column)
        *outer_indices, last_index = store.indices
        moving = [*(i for i in outer_indices if var in free_vars(i)), last_index]
        if any(not {*free_vars(i)} <= {var} for i in moving):
            return []
        points = [{var: begin.value + column + lane} for lane in range(count)]
        places = list(zip(*(evaluate_at(i, points) for i in moving), strict=True))
        # A run begins where another line does, or where an element does not follow the one before.
        begins = [
            lane
            for lane, (*line, at) in enumerate(places)
            if not lane or (*line, at - 1) != places[lane - 1]
        ]
        numbers = ramp(const(0), 1, lanes)
        stores: list[BufferStore] = []
        for low, high in pairwise([*begins, count]):
            inside = None if high == lanes else numbers < broadcast(const(high), lanes)
            if low:
                behind = broadcast(const(low - 1), lanes) < numbers
                inside = behind if inside is None else logical_and(inside, behind)
            *line, at = places[low]
            numbers_of_line = iter(line)
            outer = (
                const(next(numbers_of_line)) if var in free_vars(i) else i for i in outer_indices
            )
            address = (*outer, ramp(const(at - low), 1, lanes))
            stores.append(BufferStore(store.buffer, store.value, address, inside))
        return stores

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

    # All sizes.

    @cached_property
    def row_sizes(self) -> Sizes:
        """Return the numbers of rows that a tile may have."""
        return tile_sizes(self.nest.rows, self.enclosing_loops)

    @cached_property
    def column_sizes(self) -> Sizes:
        """Return the numbers of columns that a tile may have."""
        return tile_sizes(self.nest.columns, self.enclosing_loops)

    def max_rows(self) -> int:
        """Return the largest number of rows of a tile."""
        return max(size for size, _ in self.row_sizes(Var("rows")))

    def emit_sizes(self, emit_tile: Callable[[int, int], Stmt]) -> Stmt:
        """Emit a branch per number of rows and of columns."""
        rows, columns = self.row_sizes, self.column_sizes
        row_count, column_count = Var("rows"), Var("columns")
        branches = branch_on_size(
            columns(column_count),
            lambda valid: branch_on_size(rows(row_count), lambda count: emit_tile(count, valid)),
        )
        for name, loop, sizes in (
            (row_count, self.nest.rows, rows),
            (column_count, self.nest.columns, columns),
        ):
            if any(c is not None and name in free_vars(c) for _, c in sizes(name)):
                branches = LetStmt(name, loop.extent, branches)
        return LetStmt(self.first, self.nest.rows.min, branches)


def _at_row(store: BufferStore, value: PrimExpr, row: dict[Var, PrimExpr]) -> BufferStore:
    """Return a store of another value, at the values of variables of a row."""
    indices = tuple(substitute(i, row) for i in store.indices)
    return BufferStore(store.buffer, value, indices, store.predicate)


def _dependent_nodes(nodes: Sequence[PrimExpr], variables: set[Var]) -> list[PrimExpr]:
    """Return the nodes, given in post order, that some of the variables are part of."""
    dependent: dict[int, PrimExpr] = {}
    for node in nodes:
        if node in variables or any(id(child) in dependent for child in children(node)):
            dependent[id(node)] = node
    return list(dependent.values())


def max_extent(loop: For) -> PrimExpr:
    """Return an upper bound of a loop's extent."""
    bound = (loop.annotations or {}).get(PART_EXTENT_BOUND_ANNOTATION)
    if isinstance(bound, int):
        return const(bound)
    return bound if isinstance(bound, PrimExpr) else loop.extent


Sizes = Callable[[PrimExpr], list[tuple[int, PrimExpr | None]]]
"""Function (loop extent by name) -> possible trip counts with their conditions; None for otherwise.
"""


# The trip count of a tile's loop is a constant in its code, so each possible count gets a copy. The
# possible counts are enumerated over the enclosing loops where these are known and not too many;
# otherwise every count up to the bound is possible. Enumeration matters: a panel of 48 columns
# divided among two threads would get 48 copies, of which only those for 48 and 8 ever run.
def tile_sizes(loop: For, above: Sequence[For]) -> Sizes:
    """Return the trip counts that a loop may have, with the conditions under which it has them."""
    extent = loop.extent
    if isinstance(extent, IntImm):
        extent_value = extent.value
        return lambda name: [(extent_value, None)]
    used = free_vars(extent)
    reads = any(isinstance(sub_expr, BufferLoad) for sub_expr in post_order(extent))
    if not reads and (ranges := _enclosing_loop_ranges(used, above)):
        points = (dict(zip(used, at, strict=True)) for at in product(*ranges))
        # Tail sizes are enumerated at compile time: each gets code with constant bounds, whose
        # accumulators the register allocator can keep.
        sizes = [size for size in evaluate_at(extent, points) if size > 0]
        along = (used[0], ranges[0].start) if len(used) == 1 else None
        return lambda name: _conditions_per_size(name, along, sizes)
    bound = max_extent(loop)
    if not isinstance(bound, IntImm):
        refuse(
            f"{TENSORIZE_PRIMITIVE}: loop {loop.loop_var.name!r} may have any number of steps", loop
        )
    limit = bound.value
    return lambda name: [(n, name.equal(n) if n > 1 else None) for n in range(limit, 0, -1)]


def _enclosing_loop_ranges(used: Sequence[Var], above: Sequence[For]) -> list[range]:
    """Return the ranges of variables of enclosing loops; empty where unknown or with more than
    MAX_PART_COMBINATIONS combinations.
    """
    analyzer = bound_analyzer(above)
    bounds = [analyzer.const_int_bound(v) for v in used]
    # NaN or infinite for unknown bounds, which the comparison below rejects.
    combinations = prod(b.max_value - b.min_value + 1 for b in bounds)
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


def branch_on_size(
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


__all__ = [
    "TENSORIZE_PRIMITIVE",
    "Sizes",
    "TileBuilder",
    "TileNest",
    "branch_on_size",
    "max_extent",
    "statements_outside",
    "substituted_store",
    "tile_sizes",
]
