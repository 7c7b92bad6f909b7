"""The primitives blockize and tensorize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import Analyzer, IterMapLevel, detect_iter_map
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, const, convert, is_const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.expr import LATE_SCOPES, Buffer, BufferAddress, BufferLoad, Ramp, broadcast
from ekiden.tir.predicates import join_conjuncts
from ekiden.tir.schedule.block_kinds import COMPLETE, ORDERED, REDUCTION, UPDATE, require_kind
from ekiden.tir.schedule.descriptions import (
    DescriptionMatcher,
    MismatchError,
    row_major_strides,
)
from ekiden.tir.schedule.legality import num_iter_sum_values, split_domain_guards
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    bound_analyzer,
    loop_ranges,
    loops_between,
    refuse,
    serial_loop,
    uses_any_var,
)
from ekiden.tir.schedule.tensorize_described import tensorize_described_tile
from ekiden.tir.schedule.tensorize_matmul import tensorize_tile
from ekiden.tir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterKind,
    IterVar,
    PrimFunc,
    Stmt,
)
from ekiden.tir.tensor_intrin import TensorIntrin
from ekiden.tir.tensor_intrin.micro import MicroKernel
from ekiden.tir.visitor import ExprRewriter, StmtMutator
from ekiden.tir.visitor import substitute as substitute_stmt


def blockize(
    program: ScheduleProgram, loop: For, preserve_unit_iters: bool = True
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.blockize`."""
    step = "blockize"
    blocks = program.outermost_blocks(loop)
    if len(blocks) != 1:
        names = [b.block.name for b in blocks]
        refuse(f"{step} {loop.loop_var.name!r}: expected one block in the loop, got {names}", loop)
    realize = blocks[0]
    inner = loops_between(loop, realize, program)
    if program.perfect_chain(loop, inner[-1]) is None or inner[-1].body is not realize:
        refuse(f"{step} {loop.loop_var.name!r}: the loop must hold loops and a block alone", loop)
    require_kind(step, realize, COMPLETE, REDUCTION, UPDATE, ORDERED)
    divided = [
        _split_iterator(step, program, realize, i, v, inner)
        for i, v in zip(realize.block.iter_vars, realize.iter_values, strict=True)
    ]
    outer_iters = [d for d in divided if preserve_unit_iters or not is_const(d.outer.extent, 1)]
    dropped: dict[Var, PrimExpr] = {
        d.outer.var: const(0, d.outer.var.dtype) for d in divided if d not in outer_iters
    }
    values = tuple(substitute(d.inner_value, dropped) for d in divided)
    outside, inside = _split_predicate(step, program, realize, divided, inner)
    block = realize.block
    init = None
    if block.init is not None:
        # The init moves out: it runs once per outer block, for all points inside.
        init = _create_outer_init(program, realize, divided, inner, values)
        block = block.with_fields(init=None)
    body: Stmt = BlockRealize(values, substitute(inside, dropped), block)
    for loop_inside in reversed(inner):
        body = loop_inside.with_fields(body=body)
    outer_name = program.fresh_block_name(f"{block.name}_o")
    outer = Block(outer_name, tuple(d.outer for d in outer_iters), body, init)
    outer_realize = BlockRealize(tuple(d.outer_value for d in outer_iters), outside, outer)
    return program.replace(loop, outer_realize), [outer_name]


class _SplitIterator:
    """An iterator divided into outer * size + inner."""

    __slots__ = ("inner_value", "outer", "outer_value")

    def __init__(self, outer: IterVar, outer_value: PrimExpr, inner_value: PrimExpr) -> None:
        self.outer, self.outer_value, self.inner_value = outer, outer_value, inner_value


def _split_iterator(
    step: str,
    program: ScheduleProgram,
    realize: BlockRealize,
    iter_var: IterVar,
    value: PrimExpr,
    inner: Sequence[For],
) -> _SplitIterator:
    name = realize.block.name
    inside = {s.loop_var for s in inner}
    zeros: dict[Var, PrimExpr] = {s.loop_var: s.min for s in inner}
    analyzer = bound_analyzer([*program.loops_above(inner[0]), *inner])
    # With the inner loops at their starts only the outer block's share is left.
    outer_part = analyzer.simplify(substitute(value, zeros))
    inner_part = analyzer.simplify(value - outer_part)
    if any(v not in inside for v in free_vars(inner_part)):
        refuse(
            f"{step}: {iter_var.var.name!r} of block {name!r} does not part into loops outside and "
            "inside",
            realize,
        )
    var = Var(f"{iter_var.var.name}o", iter_var.var.dtype)
    if is_const(inner_part, 0):
        return _SplitIterator(IterVar(var, iter_var.extent, iter_var.kind), outer_part, var)
    iter_map = detect_iter_map(
        [inner_part], loop_ranges(inner), check_level=IterMapLevel.SURJECTIVE
    )
    if iter_map.errors or not is_const(convert(iter_map.indices[0].base), 0):
        refuse(
            f"{step}: what {iter_var.var.name!r} of block {name!r} runs over inside has gaps",
            realize,
        )
    size = analyzer.simplify(num_iter_sum_values(iter_map.indices[0]))
    outer_value = analyzer.simplify(outer_part // size)
    if not analyzer.can_prove_equal(outer_value * size, outer_part):
        refuse(
            f"{step}: {iter_var.var.name!r} of block {name!r} begins at no multiple of what "
            "is inside",
            realize,
        )
    divides_exactly = is_const(analyzer.simplify(iter_var.extent % size), 0)
    extent = Analyzer().simplify(
        iter_var.extent // size if divides_exactly else (iter_var.extent + size - 1) // size
    )
    inner_value = inner_part if is_const(extent, 1) else var * size + inner_part
    return _SplitIterator(IterVar(var, extent, iter_var.kind), outer_value, inner_value)


def _split_predicate(
    step: str,
    program: ScheduleProgram,
    realize: BlockRealize,
    divided: Sequence[_SplitIterator],
    inner: Sequence[For],
) -> tuple[PrimExpr, PrimExpr]:
    """Return the predicate of the outer block and that of the inner one."""
    variables = {s.loop_var for s in inner}
    guards, remaining = split_domain_guards(realize)
    outside = [c for c in (*guards, *remaining) if not uses_any_var(c, variables)]
    if any(uses_any_var(c, variables) for c in remaining):
        refuse(
            f"{step}: block {realize.block.name!r} runs only under a condition on the loops inside",
            realize,
        )
    inside: list[PrimExpr] = []
    if len(outside) < len(guards) + len(remaining):
        around = bound_analyzer(program.loops_above(inner[0]))
        analyzer = bound_analyzer(inner)
        for divided_iter in divided:
            analyzer.bind(divided_iter.outer.var, 0, divided_iter.outer.extent)
        for divided_iter, i in zip(divided, realize.block.iter_vars, strict=True):
            # The outer iterator stays in its domain, and the one inside in what is left of it.
            for guard in (
                divided_iter.outer_value >= 0,
                divided_iter.outer_value < divided_iter.outer.extent,
            ):
                if not around.can_prove(guard):
                    outside.append(guard)
            within = divided_iter.inner_value < i.extent
            if not analyzer.can_prove(within):
                inside.append(within)
    return join_conjuncts(outside), join_conjuncts(inside)


def _create_outer_init(
    program: ScheduleProgram,
    realize: BlockRealize,
    divided: Sequence[_SplitIterator],
    inner: Sequence[For],
    values: Sequence[PrimExpr],
) -> Stmt:
    """Return the init of all inner points, in loops of its own."""
    block = realize.block
    assert block.init is not None
    spatial = [
        (i, v) for i, v in zip(block.iter_vars, values, strict=True) if i.kind is IterKind.SPATIAL
    ]
    used = set(free_vars(*(v for _, v in spatial)))
    spatial_loops = [s for s in inner if s.loop_var in used]
    names: dict[Var, PrimExpr] = {
        s.loop_var: Var(f"{s.loop_var.name}_init", s.loop_var.dtype) for s in spatial_loops
    }
    iters = {i.var: Var(f"{i.var.name}_init", i.var.dtype) for i, _ in spatial}
    as_exprs: dict[Var, PrimExpr] = dict(iters)
    new = Block(
        program.fresh_block_name(f"{block.name}_init"),
        tuple(IterVar(iters[i.var], i.extent, i.kind) for i, _ in spatial),
        substitute_stmt(block.init, as_exprs),
    )
    analyzer = bound_analyzer(inner)
    for divided_iter in divided:
        analyzer.bind(divided_iter.outer.var, 0, divided_iter.outer.extent)
    condition = join_conjuncts(
        substitute(v < i.extent, names) for i, v in spatial if not analyzer.can_prove(v < i.extent)
    )
    nest: Stmt = BlockRealize(tuple(substitute(v, names) for _, v in spatial), condition, new)
    for loop in reversed(spatial_loops):
        var = names[loop.loop_var]
        assert isinstance(var, Var)
        nest = serial_loop(var, loop.extent, nest).with_fields(min=loop.min)
    return nest


# Tensor intrinsics.


class _ImplementationPlacer(ExprRewriter):
    """A rewriter that places an implementation over the buffer regions that its parameters stand
    for.

    Strided parameters get the region's strides, offset variables its offset; a call that is passed
    a parameter is passed the region.
    """

    def __init__(self, regions: Mapping[Buffer, tuple[Buffer, tuple[PrimExpr, ...]]]) -> None:
        super().__init__(self._place_load)
        self._parts = regions
        self._layout = _stride_and_offset_values(regions)

    def _place_load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer in self._parts:
            target, indices = self._region_access(e.buffer, e.indices)
            return BufferLoad(target, indices, e.dtype)
        if isinstance(e, BufferAddress) and e.buffer in self._parts:
            begin = e.indices or tuple(const(0) for _ in e.buffer.shape)
            target, indices = self._region_access(e.buffer, begin)
            lead = len(indices) - len(begin)
            sizes = e.extents or e.buffer.shape
            return e.with_fields(
                buffer=target, indices=indices, extents=(*(const(1),) * lead, *sizes)
            )
        return self._layout.get(e, e) if isinstance(e, Var) else e

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Redirect a store to the buffer region of its parameter."""
        new = super().visit_store(stmt)
        assert isinstance(new, BufferStore)
        if stmt.buffer not in self._parts:
            return new
        target, indices = self._region_access(stmt.buffer, new.indices)
        return new.with_fields(buffer=target, indices=indices)

    def _region_access(
        self, buffer: Buffer, indices: Sequence[PrimExpr]
    ) -> tuple[Buffer, tuple[PrimExpr, ...]]:
        target, offsets = self._parts[buffer]
        lead = len(offsets) - len(indices)
        moved = (_add_vector_offset(i, o) for i, o in zip(indices, offsets[lead:], strict=True))
        return target, (*offsets[:lead], *moved)


def _stride_and_offset_values(
    regions: Mapping[Buffer, tuple[Buffer, tuple[PrimExpr, ...]]],
) -> dict[Var, PrimExpr]:
    """Return the values of the parameters' stride and offset variables from the regions'
    layouts.
    """
    values: dict[Var, PrimExpr] = {}
    for param, (target, offsets) in regions.items():
        start = convert(0 if target.elem_offset is None else target.elem_offset, "int64")
        strides, offset = _region_layout(target, offsets)
        for var, stride in zip(reversed(param.strides), reversed(strides), strict=False):
            if isinstance(var, Var):
                values[var] = stride
        if isinstance(param.elem_offset, Var):
            values[param.elem_offset] = start + offset
    return values


def _region_layout(target: Buffer, offsets: Sequence[PrimExpr]) -> tuple[list[PrimExpr], PrimExpr]:
    """Return the strides of a buffer and the offset of a region in elements; for scopes that later
    passes lay out, as queries that FlattenBuffer resolves.
    """
    if target.scope in LATE_SCOPES:
        address = BufferAddress(target, tuple(offsets), tuple(const(1) for _ in offsets), "")
        axes = range(len(offsets))
        strides = [call_intrin("region_stride", address, const(n), dtype="int64") for n in axes]
        return strides, call_intrin("region_offset", address, dtype="int64")
    strides = list(target.strides) or row_major_strides(target.shape)
    region_offset: PrimExpr = const(0)
    for offset, stride in zip(offsets, strides, strict=True):
        region_offset = region_offset + offset * stride
    return strides, region_offset


def _add_vector_offset(index: PrimExpr, offset: PrimExpr) -> PrimExpr:
    if isinstance(index, Ramp):
        return Ramp(index.base + offset, index.stride, index.lanes, index.dtype)
    lanes = getattr(index, "lanes", 1)
    return index + (offset if lanes == 1 else broadcast(offset, lanes))


def tensorize(
    program: ScheduleProgram,
    target: BlockRealize | For,
    tensor_intrin: str,
    preserve_unit_iters: bool = True,
) -> PrimFunc:
    """See `Schedule.tensorize`."""
    called = MicroKernel.parse(tensor_intrin)
    if called is not None:
        if not isinstance(target, For):
            refuse(f"tensorize with {tensor_intrin!r}: expected the loop over rows", target)
        kernel, options = called
        if kernel.describe is not None:
            return tensorize_described_tile(program, target, kernel, options)
        return tensorize_tile(program, target, kernel, options)
    intrin = TensorIntrin.get(tensor_intrin)
    step = f"tensorize with {tensor_intrin!r}"
    # Refusals point at what the user named, not at the block that blockize creates.
    requested = target
    if isinstance(target, For):
        func, outer_blocks = blockize(program, target, preserve_unit_iters)
        program = ScheduleProgram(func)
        target = program.blocks[outer_blocks[0]]
    block = target.block
    match = DescriptionMatcher(set())
    for iter_var in block.iter_vars:
        match.analyzer.bind(iter_var.var, 0, iter_var.extent)
    try:
        match.match_stmt(intrin.desc.body, block.body)
    except MismatchError as fault:
        refuse(f"{step}: block {block.name!r} is not what it describes: {fault}", requested)
    missing = [b.name for b in intrin.desc.buffers if b not in match.buffer_map]
    if missing:
        refuse(f"{step}: the description does not use {missing}", requested)
    regions = {
        new: match.buffer_map[old]
        for old, new in zip(intrin.desc.buffers, intrin.impl.buffers, strict=True)
    }
    body = _ImplementationPlacer(regions).visit(_copy_with_fresh_loops(intrin.impl.body))
    new = block.with_fields(body=body)
    return program.replace(block, new)


def _copy_with_fresh_loops(body: Stmt) -> Stmt:
    """Return a copy of an implementation with fresh loop variables."""

    class _FreshLoops(StmtMutator):
        def visit_for(self, stmt: For) -> Stmt:
            """Rename the loop variable: one implementation is placed at several sites."""
            new = Var(stmt.loop_var.name, stmt.loop_var.dtype)
            inner = substitute_stmt(self.visit(stmt.body), {stmt.loop_var: new})
            return stmt.with_fields(loop_var=new, body=inner)

    return _FreshLoops().visit(body)
