"""Tensorizing into micro-kernels: the tile that a nest of a program is, and what takes its place.

    for i, j:                                      one tile of each size that the loops may have:
      for k: with block d                     ->   if t < 3: <the micro-kernel of 9 rows>
      with block out: out[i, j] = f(d[i, j])       else: <the micro-kernel of 8 rows>

What is proved: the block is a sum of products, one factor of which the columns do not move and the
other the rows do not; it runs over all of its loops; what follows takes each sum at its own place,
and nobody else does.
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
from ekiden.tir.expr import BufferLoad, broadcast
from ekiden.tir.reduction import update_of
from ekiden.tir.schedule.kinds import REDUCTION, reduce_loops, require_kind
from ekiden.tir.schedule.program import (
    MOST,
    Program,
    bound_analyzer,
    refuse,
    single_steps,
    unallocated,
    written,
)
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
from ekiden.tir.tensor_intrin.micro import MicroKernel, Options, Part, SumLoop, TileNest
from ekiden.tir.transform.flatten_buffers import flat_index
from ekiden.tir.transform.vectorize_loops import Vectorizer
from ekiden.tir.visitor import sub_statements
from ekiden.tir.visitor import substitute as substitute_stmt

MANY = 4096
"""Most parts of a loop whose sizes are all looked at."""
STEP = "tensorize"


@dataclass(frozen=True, slots=True)
class _Nest:
    """What was found of a tile: its loops, the sum, and what follows it."""

    rows: For
    columns: For
    loops: tuple[For, ...]
    sum: BlockRealize
    ending: BlockRealize | None


def tensorize_tile(program: Program, place: For, kernel: MicroKernel, options: Options) -> PrimFunc:
    """The function with a micro-kernel in the place of a nest; see `Schedule.tensorize`."""
    nest = _nest_of(place)
    made = _Tiles(program, nest, kernel, options).stmt()
    func = program.replace(place, made)
    (sums,) = written(nest.sum.block)
    inside = [nest.sum, *([nest.ending] if nest.ending is not None else [])]
    users = [*program.writers(sums), *program.readers(sums)]
    if nest.ending is not None and sums not in written(nest.ending.block):
        if any(x not in inside for x in users):
            _refuse(place, f"{sums.name!r} is used by other blocks too")
        if not program.is_param(sums) and not _outer_sums(program, nest):
            func = unallocated(func, sums)
    left = any(isinstance(s, BlockRealize) for s in _around(func.body, made))
    return func.with_attr({"tir.tiled": 1, **({"tir.has_blocks": 1} if left else {})})


def _around(root: Stmt, apart: Stmt) -> Iterator[Stmt]:
    """The statements of a program but those inside one of them."""
    stack = [root]
    while stack:
        s = stack.pop()
        if s is not apart:
            yield s
            stack.extend(sub_statements(s))


def _refuse(place: Stmt, message: str) -> None:
    refuse(f"{STEP}: {message}", place)


def _nest_of(rows: For) -> _Nest:
    """The parts of a tile under its loop over rows."""
    columns = rows.body
    if not isinstance(columns, For):
        refuse(f"{STEP}: expected a loop over columns in {rows.loop_var.name!r}", rows)
    inside = columns.body.seq if isinstance(columns.body, SeqStmt) else (columns.body,)
    loops: list[For] = []
    at = inside[0]
    while isinstance(at, For):
        loops.append(at)
        at = at.body
    ending = inside[1] if len(inside) == 2 else None
    if not isinstance(at, BlockRealize) or not loops or len(inside) > 2:
        refuse(f"{STEP}: expected loops of a sum in {columns.loop_var.name!r}", columns)
    if ending is not None and not isinstance(ending, BlockRealize):
        refuse(f"{STEP}: expected a block behind the sum {at.block.name!r}", ending)
    require_kind(STEP, at, REDUCTION)
    reducing = reduce_loops(at, [rows, columns, *loops])
    if reducing != loops or not is_const(at.predicate, 1):
        refuse(f"{STEP}: the loops inside must be all that {at.block.name!r} sums over", columns)
    return _Nest(rows, columns, tuple(loops), at, ending)


def _outer_sums(program: Program, nest: _Nest) -> list[For]:
    return reduce_loops(nest.sum, program.loops_above(nest.rows))


def _opened(realize: BlockRealize) -> BufferStore:
    """The one store of a block, its iterators being what they are bound to."""
    values = dict(zip((i.var for i in realize.block.iter_vars), realize.iter_values, strict=True))
    body = substitute_stmt(realize.block.body, values)
    if not isinstance(body, BufferStore) or body.predicate is not None:
        refuse(f"{STEP}: block {realize.block.name!r} is more than one store", realize)
    return body


class _Tiles:
    """The statements of all sizes of a tile."""

    def __init__(
        self, program: Program, nest: _Nest, kernel: MicroKernel, options: Options
    ) -> None:
        self.program, self.nest = program, nest
        self.kernel, self.options = kernel, options
        self.above = program.loops_above(nest.rows)
        self.analyzer = bound_analyzer(self.above)
        self.first, self.row = Var("first"), Var("row")
        self.single = single_steps(self.above)
        self.begin, self.column = substitute(nest.columns.min, self.single), Var("column")
        for var, loop in ((self.row, nest.rows), (self.column, nest.columns)):
            self.analyzer.bind(var, 0, _most(loop))
        self.zeros: dict[Var, PrimExpr] = {s.loop_var: const(0) for s in nest.loops}
        for each in nest.loops:
            self.analyzer.bind(each.loop_var, each.min, each.extent)
        store = _opened(nest.sum)
        self.sums, self.indices = store.buffer, store.indices
        self.a, self.b = self.factors(store)
        self.ending = None if nest.ending is None else _opened(nest.ending)
        self.element = Var("sum", self.sums.dtype)
        if self.ending is not None:
            self.check_ending(self.ending)

    # What the sum is of.

    # a[i, k] * b[k, j] in either order: what rows do not move is the panel that a tile loads
    # vectors of, what columns do not move is broadcast. A factor that moves with both is no product
    # of matrices.
    def factors(self, store: BufferStore) -> tuple[BufferLoad, BufferLoad]:
        """The element of a product that columns do not move, and the one that rows do not."""
        update = update_of(store)
        init = self.nest.sum.block.init
        starts = isinstance(init, BufferStore) and is_const(init.value, 0)
        value = None if update is None else update[1]
        if not starts or not isinstance(value, Mul):
            refuse(
                f"{STEP}: block {self.nest.sum.block.name!r} is no sum of products", self.nest.sum
            )
        loads = [_load_of(e) for e in (value.a, value.b)]
        x, y = (e if isinstance(e, BufferLoad) else None for e in loads)
        if x is None or y is None:
            refuse(f"{STEP}: {value!r} is no product of elements", self.nest.sum)
        i, j = self.nest.rows.loop_var, self.nest.columns.loop_var
        if j in free_vars(*x.indices) or i in free_vars(*y.indices):
            x, y = y, x
        if j in free_vars(*x.indices) or i in free_vars(*y.indices):
            refuse(f"{STEP}: both factors of {value!r} move with rows or columns", self.nest.sum)
        return x, y

    def flat(self, load: BufferLoad) -> PrimExpr:
        """Where an element is, rows and columns counted from those of the tile."""
        at = {
            **self.single,
            self.nest.rows.loop_var: self.first + self.row,
            self.nest.columns.loop_var: self.begin + self.column,
        }
        return self.analyzer.simplify(substitute(flat_index(load.buffer, load.indices), at))

    def step(self, flat: PrimExpr, var: Var) -> PrimExpr:
        """How far a step of a loop moves. Refuses where that is not always as far."""
        moved = substitute(flat, {var: var + 1}) - flat
        made = self.analyzer.simplify(moved)
        if var in free_vars(made):
            # what wraps around is known not to within the loop
            made = const(self.analyzer.coefficient(flat, var) or 0)
            if is_const(made, 0):
                refuse(f"{STEP}: a step of {var.name!r} does not always move as far", self.nest.sum)
        return made

    # What becomes of a sum.

    def check_ending(self, store: BufferStore) -> None:
        """What follows takes a sum in its own place alone."""
        loops = [*self.above, self.nest.rows, self.nest.columns]
        known = bound_analyzer(loops)
        single = single_steps(loops)
        for e in post_order(store.value, *store.indices):
            if isinstance(e, BufferLoad) and e.buffer is self.sums:
                mine = (substitute(i, single) for i in e.indices)
                pairs = zip(mine, self.indices, strict=True)
                if not all(known.can_prove_equal(a, substitute(b, single)) for a, b in pairs):
                    refuse(
                        f"{STEP}: what follows reads {self.sums.name!r} elsewhere",
                        self.nest.ending,
                    )

    def finish(self) -> BufferStore:
        """The store of what is made of a sum, which is a variable."""
        if self.ending is None:
            return BufferStore(self.sums, self.element, self.indices)

        def change(e: PrimExpr) -> PrimExpr:
            held = isinstance(e, BufferLoad) and e.buffer is self.sums
            return self.element if held else e

        return self.ending.with_fields(value=rewrite(self.ending.value, change))

    def placed(
        self, store: BufferStore
    ) -> Callable[[PrimExpr, PrimExpr, PrimExpr, PrimExpr | None], Stmt]:
        """A store of one element as one of vectors."""

        def place(row: PrimExpr, column: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
            """The store of `value`, lanes from column `begin + column` on of row `first + row`; the
            mask leaves out lanes behind the last column.
            """
            lanes = dt.lanes(value.dtype)
            base = self.begin + column
            vectors = Vectorizer(self.nest.columns.loop_var, base, lanes, mask)
            vectors.define(self.element, value)
            vectors.define(self.nest.rows.loop_var, self.first + row)
            return vectors.visit(self.of_columns(store))

        return place

    def of_columns(self, store: BufferStore) -> BufferStore:
        """A store whose place is that of a column. That of the only one may be written without it:
        out[i, 0] -> out[i, 0 + (j - the first j)], of which the mask leaves the first lane."""
        j = self.nest.columns.loop_var
        if j in free_vars(*store.indices):
            return store
        if not is_const(self.nest.columns.extent, 1):
            refuse(f"{STEP}: all columns are stored to one of {store.buffer.name!r}", self.nest.sum)
        *leading, last = store.indices
        return store.with_fields(indices=(*leading, last + (j - self.begin)))

    def load(self, row: PrimExpr, column: PrimExpr, lanes: int) -> PrimExpr:
        """A vector of sums that were kept."""
        vectors = Vectorizer(self.nest.columns.loop_var, self.begin + column, lanes)
        vectors.define(self.nest.rows.loop_var, self.first + row)
        # of the only column the place may be written without it: its sum in every lane
        held = vectors.expr(BufferLoad(self.sums, self.indices, self.sums.dtype))
        return broadcast(held, lanes)

    def part(self) -> Part | None:
        """What sums of a part begin with, if a loop outside sums too."""
        outer = reduce_loops(self.nest.sum, self.above)
        ending = self.nest.ending
        used = set() if ending is None else set(free_vars(ending.predicate))
        if ending is not None and not used <= {s.loop_var for s in outer}:
            refuse(f"{STEP}: block {ending.block.name!r} runs only under a condition", ending)
        if not outer:
            return None
        if len(outer) > 1:
            refuse(f"{STEP}: one loop outside may sum too, there are {len(outer)}", self.nest.sum)
        last = const(True) if ending is None else ending.predicate
        keep = self.placed(BufferStore(self.sums, self.element, self.indices))
        return Part(outer[0].loop_var > 0, self.load, keep, last)

    # All tiles.

    def stmt(self) -> Stmt:
        """A branch for each size of a tile; for a kernel that takes any number of rows, for each
        number of columns."""
        columns = _sizes(self.nest.columns, self.above)
        a = self.flat(self.a)
        common = self.common(a, self.flat(self.b))
        start = substitute(a, self.zeros)
        if self.kernel.any_rows:
            return self.of_any_rows(common, start, columns)
        rows = _sizes(self.nest.rows, self.above)
        many, wide = Var("rows"), Var("columns")
        most = max(size for size, _ in rows(many))
        simplify = self.analyzer.simplify
        places = [simplify(substitute(start, {self.row: const(n)})) for n in range(most)]

        def one(count: int, valid: int) -> Stmt:
            nest = replace(common, rows=count, columns=valid, a_rows=places[:count])
            return self.kernel.write(nest, self.options)

        made = _chosen(
            columns(wide), lambda valid: _chosen(rows(many), lambda count: one(count, valid))
        )
        for name, loop, sizes in ((many, self.nest.rows, rows), (wide, self.nest.columns, columns)):
            if any(c is not None and name in free_vars(c) for _, c in sizes(name)):
                made = LetStmt(name, loop.extent, made)
        return LetStmt(self.first, self.nest.rows.min, made)

    def of_any_rows(self, common: TileNest, start: PrimExpr, columns: Sizes) -> Stmt:
        """A branch for each number of columns."""
        most = _most(self.nest.rows)
        if not isinstance(most, IntImm):
            name = self.nest.rows.loop_var.name
            refuse(f"{STEP}: loop {name!r} may have any number of steps", self.nest.rows)
        begin = self.analyzer.simplify(substitute(start, {self.row: const(0)}))
        stride = self.step(start, self.row)
        many = self.nest.rows.extent
        nest = replace(common, rows=most.value, many=many, a_rows=(begin,), a_stride=stride)
        wide = Var("columns")
        made = _chosen(
            columns(wide),
            lambda valid: self.kernel.write(replace(nest, columns=valid), self.options),
        )
        if any(c is not None and wide in free_vars(c) for _, c in columns(wide)):
            made = LetStmt(wide, self.nest.columns.extent, made)
        return LetStmt(self.first, self.nest.rows.min, made)

    def common(self, a: PrimExpr, b: PrimExpr) -> TileNest:
        """What tiles of all sizes have in common, as one of no size."""
        loops = tuple(
            SumLoop(s.extent, self.step(a, s.loop_var), self.step(b, s.loop_var))
            for s in self.nest.loops
        )
        column = self.step(b, self.column)
        if not isinstance(column, IntImm):
            refuse(f"{STEP}: columns of {self.b.buffer.name!r} do not lie in order", self.nest.sum)
        base = self.analyzer.simplify(substitute(b, {**self.zeros, self.column: const(0)}))
        number, following = self.numbered(base)
        finish = self.finish()
        return TileNest(
            dtype=self.sums.dtype,
            rows=0,
            columns=0,
            a=self.a.buffer,
            a_rows=(),
            b=self.b.buffer,
            b_base=base,
            b_columns=column.value,
            b_width=self.width(),
            loops=loops,
            store=self.placed(finish),
            work=_work(finish.value),
            part=self.part(),
            number=number,
            following=following,
        )

    def width(self) -> int:
        """How many columns of the second factor may be read from the first one on: to the end of
        the axis that they run along, if the tile begins at its start; 0 if that is not known."""
        at = {**self.single, self.nest.columns.loop_var: self.begin + self.column}
        indices = [substitute(i, at) for i in self.b.indices]
        moved = [n for n, i in enumerate(indices) if self.column in free_vars(i)]
        along = [n for n in moved if not self.stays(indices[n])]
        if len(along) != 1:
            return 0
        first = self.analyzer.simplify(substitute(indices[along[0]], {self.column: const(0)}))
        extent = self.b.buffer.shape[along[0]]
        return extent.value if is_const(first, 0) and isinstance(extent, IntImm) else 0

    def stays(self, index: PrimExpr) -> bool:
        """Whether an index is the same for all columns of a tile."""
        return self.column not in free_vars(self.analyzer.simplify(index))

    def numbered(self, base: PrimExpr) -> tuple[PrimExpr | None, PrimExpr]:
        """Which of the tiles of a panel it is, if they are the steps of the loop around, and where
        the panel of the next step of the loop around that begins."""
        if len(self.above) < 2:
            return None, const(0)
        panels, tiles = self.above[-2:]
        used = free_vars(base)
        if tiles.loop_var in used or panels.loop_var not in used:
            return None, const(0)
        return tiles.loop_var, self.step(base, panels.loop_var)


def _load_of(e: PrimExpr) -> PrimExpr:
    return e.value if isinstance(e, Cast) else e


def _work(value: PrimExpr) -> int:
    """Float operations of an expression."""
    plain = (BufferLoad, Var, IntImm, FloatImm)
    return sum(dt.is_float(e.dtype) for e in post_order(value) if not isinstance(e, plain))


def _most(loop: For) -> PrimExpr:
    """No more steps than a loop ever has."""
    most = (loop.annotations or {}).get(MOST)
    if isinstance(most, int):
        return const(most)
    return most if isinstance(most, PrimExpr) else loop.extent


Sizes = Callable[[PrimExpr], list[tuple[int, PrimExpr | None]]]
"""(a loop's extent by name) -> (steps it may have, when it has them); None for otherwise."""


# A tile's row count is a constant in its code, so each that may come is written. Which may is found
# by evaluating the extent for every step of the loops around that it depends on, where these are
# known and together not too many; else every number up to the most is one: of a panel of 48 columns
# in runs for two threads that was 48 kernels where two, of 48 and 8, were ever run.
def _sizes(loop: For, above: Sequence[For]) -> Sizes:
    extent = loop.extent
    if isinstance(extent, IntImm):
        whole = extent.value
        return lambda name: [(whole, None)]
    used = free_vars(extent)
    reads = any(isinstance(each, BufferLoad) for each in post_order(extent))
    if not reads and (ranges := _ranges(used, above)):
        every = (dict(zip(used, at, strict=True)) for at in product(*ranges))
        sizes = [s for at in every if (s := int(evaluate(extent, at))) > 0]
        along = (used[0], ranges[0].start) if len(used) == 1 else None
        return lambda name: _runs(name, along, sizes)
    most = _most(loop)
    if not isinstance(most, IntImm):
        refuse(f"{STEP}: loop {loop.loop_var.name!r} may have any number of steps", loop)
    limit = most.value
    return lambda name: [(n, name.equal(n) if n > 1 else None) for n in range(limit, 0, -1)]


def _ranges(used: Sequence[Var], above: Sequence[For]) -> list[range]:
    """What variables of the loops around may be; none where that is not known, or are too many."""
    analyzer = bound_analyzer(above)
    bounds = [analyzer.const_int_bound(v) for v in used]
    many = prod(b.max_value - b.min_value + 1 for b in bounds)  # of infinities no number, too
    return [range(int(b.min_value), int(b.max_value) + 1) for b in bounds] if many <= MANY else []


def _runs(
    name: PrimExpr, along: tuple[Var, int] | None, sizes: Sequence[int]
) -> list[tuple[int, PrimExpr | None]]:
    """Two sizes, one behind the other, by where the second begins; others by their number. `along`:
    the one loop that they follow, and where it begins.
    """
    kinds = list(dict.fromkeys(sizes))
    if len(kinds) == 1:
        return [(kinds[0], None)]
    border = sizes.index(kinds[1])
    if along is not None and len(kinds) == 2 and kinds[0] not in sizes[border:]:
        var, low = along
        return [(kinds[0], var < low + border), (kinds[1], None)]
    return [*((n, name.equal(n)) for n in kinds[:-1]), (kinds[-1], None)]


def _chosen(sizes: Sequence[tuple[int, PrimExpr | None]], make: Callable[[int], Stmt]) -> Stmt:
    """The statement of the size that a loop has."""
    made: Stmt | None = None
    for size, condition in reversed(sizes):
        one = make(size)
        made = one if condition is None or made is None else IfThenElse(condition, one, made)
    assert made is not None
    return made


__all__ = ["tensorize_tile"]
