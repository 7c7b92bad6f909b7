"""Tensorisation into micro-kernels that have a description: the program of one result.

    for i, j:                                                    one tile of each size:
      for b:                                                ->     all rows and columns at once, in
        for k: with block s: s[i, j, b] += a[i, k] * w(j, k)       registers, and the epilogue
        with block d: d[i, j] += f(s[i, j, b], ...)
      with block out: out[i, j] = g(d[i, j])

Proved: loops, values, starts of the sums and accesses equal those of the description; no other
block uses the inner sums; the epilogue reads each result at its own element.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.schedule.block_kinds import REDUCTION, reduce_values, require_kind
from ekiden.tir.schedule.descriptions import (
    DescriptionMatcher,
    MismatchError,
    row_major_strides,
)
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    block_writes,
    iter_outermost_blocks,
    refuse,
    remove_allocation,
)
from ekiden.tir.schedule.tensorize_tile import (
    TENSORIZE_PRIMITIVE,
    TileBuilder,
    statements_outside,
)
from ekiden.tir.stmt import Allocate, BlockRealize, For, PrimFunc, SeqStmt, Stmt
from ekiden.tir.tensor_intrin.micro import (
    DescribedTile,
    MicroKernel,
    Operand,
    Options,
    count_float_ops,
)
from ekiden.tir.transform.buffer_flattening import flat_index
from ekiden.tir.visitor import StmtMutator
from ekiden.tir.visitor import substitute as substitute_stmt


@dataclass(frozen=True, slots=True)
class _DescribedNest:
    """A matched tile: its loops, the statement of one result, its blocks, and the epilogue."""

    rows: For
    columns: For
    result: Stmt
    blocks: tuple[BlockRealize, ...]
    epilogue: BlockRealize | None

    @property
    def sum(self) -> BlockRealize:
        """Return the block of the results."""
        return self.blocks[-1]


def tensorize_described_tile(
    program: ScheduleProgram, rows_loop: For, kernel: MicroKernel, options: Options
) -> PrimFunc:
    """Return the function with a nest replaced by a micro-kernel that has a description; see
    `Schedule.tensorize`.
    """
    nest = _match_nest(rows_loop)
    builder = _DescribedTileBuilder(program, nest, kernel, options)
    tiles = builder.emit_tiles()
    func = program.replace(rows_loop, tiles)
    inside = [*nest.blocks, *([] if nest.epilogue is None else [nest.epilogue])]
    inner_sums = {b for x in nest.blocks[:-1] for b in block_writes(x.block)}
    unused = list(inner_sums)
    (results,) = block_writes(nest.sum.block)
    if nest.epilogue is not None and results not in block_writes(nest.epilogue.block):
        unused.append(results)
    for buffer in unused:
        users = [*program.writers(buffer), *program.readers(buffer)]
        if any(x not in inside for x in users) or program.is_param(buffer):
            refuse(f"{TENSORIZE_PRIMITIVE}: {buffer.name!r} is used by other blocks too", rows_loop)
        # What is in registers has no memory.
        func = remove_allocation(func, buffer)
    has_blocks = any(isinstance(s, BlockRealize) for s in statements_outside(func.body, tiles))
    return func.with_attr({"tir.tiled": 1, **({"tir.has_blocks": 1} if has_blocks else {})})


def _match_nest(rows: For) -> _DescribedNest:
    """Return the tile under its loop over rows."""
    columns = rows.body
    if not isinstance(columns, For):
        name = rows.loop_var.name
        refuse(f"{TENSORIZE_PRIMITIVE}: expected a loop over columns in {name!r}", rows)
    inside = columns.body.seq if isinstance(columns.body, SeqStmt) else (columns.body,)
    result, *ending = inside
    blocks = tuple(iter_outermost_blocks(result))
    epilogue = ending[0] if ending else None
    if not blocks or len(ending) > 1 or not isinstance(epilogue, BlockRealize | None):
        name = columns.loop_var.name
        refuse(
            f"{TENSORIZE_PRIMITIVE}: expected the loops of a result in {name!r} and one block "
            "behind",
            columns,
        )
    for block in blocks:
        require_kind(TENSORIZE_PRIMITIVE, block, REDUCTION)
    return _DescribedNest(rows, columns, result, blocks, epilogue)


class _TileMatcher(DescriptionMatcher):
    """A matcher that compares where sums begin, too."""

    def match_stmt(self, desc: Stmt, actual: Stmt) -> None:
        """Match statements, and of blocks their inits and reduction iterators."""
        if isinstance(desc, BlockRealize) and isinstance(actual, BlockRealize):
            self._match_start(desc, actual)
        super().match_stmt(desc, actual)

    def _match_start(self, desc: BlockRealize, actual: BlockRealize) -> None:
        name = actual.block.name
        if not is_const(actual.predicate, 1):
            raise MismatchError(f"block {name!r} runs only under a condition")
        expected, given = reduce_values(desc), reduce_values(actual)
        # An init runs where all reduction iterators are 0.
        same = len(expected) == len(given) and all(
            self.analyzer.can_prove_equal(substitute(d, self.var_map), a)
            for d, a in zip(expected, given, strict=True)
        )
        if not same:
            raise MismatchError(f"block {name!r} sums over other loops")
        if desc.block.init is None or actual.block.init is None:
            if desc.block.init is not actual.block.init:
                raise MismatchError(f"block {name!r} has no such init")
            return
        starts = (x.with_fields(block=_block_of_init(x)) for x in (desc, actual))
        super().match_stmt(*starts)


def _block_of_init(realize: BlockRealize) -> Stmt:
    init = realize.block.init
    assert init is not None
    return realize.block.with_fields(body=init, init=None)


def _without_unit_loops(root: Stmt) -> Stmt:
    """Return a statement whose loops of one iteration are replaced by their bodies."""

    class _UnitLoops(StmtMutator):
        def visit_for(self, stmt: For) -> Stmt:
            """Replace the loop's variable by its only value."""
            if not is_const(stmt.extent, 1):
                return super().visit_for(stmt)
            return substitute_stmt(self.visit(stmt.body), {stmt.loop_var: stmt.min})

    return _UnitLoops().visit(root)


class _DescribedTileBuilder(TileBuilder):
    """A builder of the statements for all sizes of a tile that a description fits."""

    nest: _DescribedNest

    def __init__(
        self, program: ScheduleProgram, nest: _DescribedNest, kernel: MicroKernel, options: Options
    ) -> None:
        super().__init__(program, nest, kernel, options)
        self.description = kernel.description(options)
        self.matched = self.match_description()

    def match_description(self) -> dict[Buffer, tuple[Buffer, tuple[PrimExpr, ...]]]:
        """Return the buffer that each one of the description stands for, with the indices of its
        first element.
        """
        body: Stmt = self.description.body
        while isinstance(body, Allocate):
            body = body.body
        matcher = _TileMatcher(set())
        matcher.analyzer = self.analyzer
        single: dict[Var, PrimExpr] = {}
        if is_const(self.nest.rows.extent, 1):
            single |= {self.row: const(0), self.first: self.nest.rows.min}
        if is_const(self.nest.columns.extent, 1):
            single[self.column] = const(0)
        # A scalar parameter is the column within the tile.
        column = substitute(self.column, single)
        matcher.var_map.update(dict.fromkeys(self.description.scalars, column))
        values = {
            var: substitute(substitute(value, single), self.unit_loop_values)
            for var, value in self.tile_values().items()
        }
        actual = substitute_stmt(_without_unit_loops(self.nest.result), values)
        try:
            matcher.match_stmt(_without_unit_loops(body), actual)
        except MismatchError as fault:
            refuse(
                f"{TENSORIZE_PRIMITIVE}: block {self.nest.sum.block.name!r} is not what "
                f"{self.kernel.name!r} describes: {fault}",
                self.nest.sum,
            )
        return matcher.buffer_map

    def emit_tiles(self) -> Stmt:
        """Emit a branch per tile size."""
        write, finish = self.kernel.write_described, self.epilogue_store()
        assert write is not None, self.kernel.name
        operands = self.operands()
        panel, num_panels = self.panel_loop(operands)
        facts = {k: v for b in self.nest.blocks for k, v in (b.block.annotations or {}).items()}
        total: PrimExpr = const(1)
        for extent in self.sums.shape[:-1]:
            total = total * extent

        def emit_tile(rows: int, columns: int) -> Stmt:
            """Emit the tile of one size."""
            tile = DescribedTile(
                dtype=self.sums.dtype,
                rows=rows,
                columns=columns,
                operands=operands,
                store=self.vector_store_emitter(finish),
                epilogue_flops=count_float_ops(finish.value),
                first=self.first,
                total_rows=self.analyzer.simplify(total),
                panel=panel,
                num_panels=num_panels,
                facts=facts,
            )
            return write(tile, self.options)

        return self.emit_sizes(emit_tile)

    def operands(self) -> dict[str, Operand]:
        """Return the description's parameters, but its result, by name."""
        *params, _ = self.description.buffers
        return {param.name: self.operand(param) for param in params}

    def operand(self, param: Buffer) -> Operand:
        """Return the part of a buffer that a parameter stands for."""
        buffer, indices = self.matched[param]
        flat = self.analyzer.simplify(flat_index(buffer, indices))
        column_stride, row_stride = (self.stride_along(flat, v) for v in (self.column, self.row))
        strides = row_major_strides(buffer.shape)[len(indices) - len(param.shape) :]
        distances = [column_stride, row_stride, *map(self.analyzer.simplify, strides)]
        if not all(isinstance(s, IntImm) for s in distances):
            refuse(
                f"{TENSORIZE_PRIMITIVE}: elements of {buffer.name!r} are not constant distances "
                "apart",
                self.nest.sum,
            )
        column, row, *axes = (s.value for s in distances if isinstance(s, IntImm))
        origin = substitute(flat, {self.column: const(0), self.row: const(0)})
        first = self.analyzer.simplify(origin)
        rows = [first + n * row for n in range(self.max_rows())]
        return Operand(buffer, rows, column, tuple(axes))

    def panel_loop(self, operands: Mapping[str, Operand]) -> tuple[PrimExpr | None, PrimExpr]:
        """Return the innermost loop outside that moves an operand of columns, and its extent."""
        moved = {
            v for x in operands.values() if x.column_stride for v in free_vars(x.row_offsets[0])
        }
        for loop in reversed(self.enclosing_loops):
            if loop.loop_var in moved:
                return loop.loop_var, loop.extent
        return None, const(1)


__all__ = ["tensorize_described_tile"]
