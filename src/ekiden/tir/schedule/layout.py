"""Layout primitives: transform_layout, transform_block_layout, pad_einsum."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import (
    Analyzer,
    IterMapLevel,
    detect_iter_map,
    injectivity_error,
    inverse_affine_iter_map,
)
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import LT, PrimExpr, Var, const, convert, is_const, logical_and
from ekiden.ir.prim_visitor import free_vars, post_order
from ekiden.ir.range import Range
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.index_map import IndexMap
from ekiden.tir.reduction import match_update
from ekiden.tir.schedule.block_kinds import COMPLETE, REDUCTION, UPDATE, require_kind
from ekiden.tir.schedule.cache import resolve_buffer_and_side
from ekiden.tir.schedule.compute_at import create_moved_nest
from ekiden.tir.schedule.inline import partial_domain_fault
from ekiden.tir.schedule.legality import (
    num_iter_sum_values,
    require_permutable,
    require_sole_writer,
    require_top_level_block,
    require_unconditional,
    single_store,
)
from ekiden.tir.schedule.program import (
    Indices,
    ScheduleProgram,
    add_allocation,
    loops_between,
    refuse,
    replace_accesses,
    replace_buffer,
    serial_loop,
)
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IterKind,
    IterVar,
    PrimFunc,
    Stmt,
)
from ekiden.tir.visitor import StmtMutator, flatten_seq
from ekiden.tir.visitor import substitute as substitute_stmt


class _LayoutRewriter(StmtMutator):
    """A rewriter that remaps a buffer's accesses and simplifies the indices under each block's
    iterators.
    """

    def __init__(self, old: Buffer, new: Buffer, index_map: IndexMap) -> None:
        self._old, self._new, self._map = old, new, index_map

    def visit_block(self, stmt: Block) -> Stmt:
        """Remap the block's accesses, simplified under the bounds of its iterators."""
        analyzer = Analyzer()
        for iter_var in stmt.iter_vars:
            analyzer.bind(iter_var.var, 0, iter_var.extent)

        def map_indices(indices: Indices) -> Indices:
            return tuple(analyzer.simplify(i) for i in self._map.map_indices(indices))

        return replace_accesses(stmt, self._old, self._new, map_indices)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        buffer = self._new if stmt.buffer is self._old else stmt.buffer
        return stmt.with_fields(buffer=buffer, body=self.visit(stmt.body))


def transform_layout(
    program: ScheduleProgram,
    realize: BlockRealize,
    buffer: tuple[str, int] | str | Buffer,
    index_map: IndexMap,
    pad_value: PrimExpr | float | None = None,
    assume_injective_transform: bool = False,
) -> PrimFunc:
    """See `Schedule.transform_layout`."""
    del assume_injective_transform
    step, name = "transform_layout", realize.block.name
    old, _ = resolve_buffer_and_side(step, realize, buffer)
    if len(index_map.initial_indices) != len(old.shape):
        refuse(
            f"{step} {name!r}: {old.name!r} has {len(old.shape)} axes, the map takes "
            f"{len(index_map.initial_indices)} indices",
            realize,
        )
    if old.strides:
        refuse(f"{step} {name!r}: {old.name!r} has strides", realize)
    program.writers(old)  # refuses a buffer that is used outside blocks
    iters = {v: Range(d) for v, d in zip(index_map.initial_indices, old.shape, strict=True)}
    # The map must keep elements apart on the box of the old shape: x = y wherever map(x) = map(y).
    # It need not reach all of the new box. What nothing maps to is padding, and since every access
    # moves by the same map no program can look at it; only an argument may not have any, because
    # its caller lays it out.
    fault = injectivity_error(index_map.final_indices, iters, list(iters))
    if fault is not None:
        refuse(
            f"{step} {name!r}: two elements of {old.name!r} would share a place: {fault}", realize
        )
    exact = detect_iter_map(index_map.final_indices, iters, check_level=IterMapLevel.BIJECTIVE)
    is_whole = not exact.errors and all(is_const(convert(t.base), 0) for t in exact.indices)
    if not is_whole:
        if pad_value is not None:
            refuse(
                f"{step} {name!r}: no block reads the padding of {old.name!r}, so that it needs no "
                "pad_value",
                realize,
            )
        if program.is_param(old):
            refuse(
                f"{step} {name!r}: {old.name!r} is an argument, which cannot be padded: "
                f"{exact.errors[0] if exact.errors else 'it does not begin at 0'}",
                realize,
            )
    shape = (
        tuple(num_iter_sum_values(t) for t in exact.indices)
        if is_whole
        else index_map.map_shape(old.shape)
    )
    new = old.with_fields(shape=tuple(Analyzer().simplify(d) for d in shape))
    params = tuple(new if p is old else p for p in program.func.params)
    body = _LayoutRewriter(old, new, index_map).visit(program.func.body)
    func = program.func.with_fields(params=params, body=body)
    if program.is_param(old):
        _require_inferable_sizes(step, name, func, realize)
    return func


def _require_inferable_sizes(step: str, name: str, func: PrimFunc, realize: BlockRealize) -> None:
    """Require that every symbolic size is still a dimension of an argument."""
    # A kernel reads n from the shape of an argument of shape (n,). From (n // 16, 16) it cannot: an
    # expression is not solved for its variables when the kernel is entered.
    params = func.buffers
    bound_sizes = {d for b in params for d in b.shape if isinstance(d, Var)} | set(func.scalars)
    for size_var in (v for b in params for d in b.shape for v in free_vars(d)):
        if size_var not in bound_sizes:
            refuse(f"{step} {name!r}: no argument would have the size {size_var.name!r}", realize)


def transform_block_layout(
    program: ScheduleProgram, realize: BlockRealize, index_map: IndexMap
) -> PrimFunc:
    """See `Schedule.transform_block_layout`."""
    step, block = "transform_block_layout", realize.block
    name = block.name
    require_kind(step, realize, COMPLETE, REDUCTION, UPDATE)
    loops, nest = _require_one_to_one_loops(step, program, realize)
    if len(index_map.initial_indices) != len(block.iter_vars):
        refuse(
            f"{step} {name!r}: the block has {len(block.iter_vars)} iterators, the map takes "
            f"{len(index_map.initial_indices)} indices",
            realize,
        )
    final = index_map.map_indices([i.var for i in block.iter_vars])
    iters = {i.var: Range(i.extent) for i in block.iter_vars}
    iter_map = detect_iter_map(final, iters, check_level=IterMapLevel.BIJECTIVE)
    if iter_map.errors:
        refuse(f"{step} {name!r}: the map is no bijection: {iter_map.errors[0]}", realize)
    kinds = {i.var: i.kind for i in block.iter_vars}
    new_iters: list[IterVar] = []
    new_loops: list[For] = []
    for n, (total, e) in enumerate(zip(iter_map.indices, final, strict=True)):
        used = {kinds[v] for v in free_vars(e) if v in kinds}
        if len(used) > 1:
            refuse(f"{step} {name!r}: index {n} would be both spatial and reduced", realize)
        if not is_const(convert(total.base), 0):
            refuse(f"{step} {name!r}: index {n} does not begin at 0", realize)
        extent = Analyzer().simplify(num_iter_sum_values(total))
        kind = used.pop() if used else IterKind.SPATIAL
        new_iters.append(IterVar(Var(f"v{n}", extent.dtype), extent, kind))
        new_loops.append(serial_loop(Var(f"ax{n}", extent.dtype), extent))
    if loops:
        require_permutable(step, program, loops)
    # The body is written over the old iterators: they are the inverse of the map at the new ones.
    # Iterators of one value are in no digit of the map, so that the inverse lacks them; they are 0.
    values = dict(inverse_affine_iter_map(iter_map.indices, [i.var for i in new_iters]))
    for iter_var in block.iter_vars:
        values.setdefault(iter_var.var, const(0, iter_var.var.dtype))
    new = block.with_fields(
        iter_vars=tuple(new_iters),
        body=substitute_stmt(block.body, values),
        init=None if block.init is None else substitute_stmt(block.init, values),
    )
    body: Stmt = BlockRealize(tuple(s.loop_var for s in new_loops), const(True), new)
    for loop in reversed(new_loops):
        body = loop.with_fields(body=body)
    return program.replace(nest, body)


def _require_one_to_one_loops(
    step: str, program: ScheduleProgram, realize: BlockRealize
) -> tuple[list[For], Stmt]:
    """Return the plain loops that a block's iterators are bound to one to one, and the nest."""
    name = realize.block.name
    nest = program.outermost_perfect_loop(realize)
    loops = loops_between(nest, realize, program)
    bound = [v for v in realize.iter_values if not is_const(v, 0)]
    analyzer = Analyzer()
    same = len(bound) == len(loops) and {id(v) for v in bound} == {id(s.loop_var) for s in loops}
    if not same:
        refuse(f"{step} {name!r}: its iterators must be loops of its own, one each", realize)
    if not is_const(realize.predicate):
        refuse(f"{step} {name!r}: it runs only under a condition", realize)
    sizes = {id(s.loop_var): s for s in loops}
    for iter_var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        loop = sizes.get(id(value))
        if loop is None:
            continue
        plain = loop.kind is ForKind.SERIAL and not loop.annotations
        covers_iterator = is_const(loop.min, 0) and analyzer.can_prove_equal(
            loop.extent, iter_var.extent
        )
        if not covers_iterator or not plain:
            refuse(
                f"{step} {name!r}: loop {loop.loop_var.name!r} must be a plain one over the whole "
                "iterator",
                loop,
            )
    return loops, nest


def pad_einsum(program: ScheduleProgram, realize: BlockRealize, padding: Sequence[int]) -> PrimFunc:
    """See `Schedule.pad_einsum`."""
    step, block = "pad_einsum", realize.block
    require_top_level_block(step, program, realize)
    name = block.name
    require_kind(step, realize, REDUCTION)
    store = single_store(step, realize)
    _, nest = _require_one_to_one_loops(step, program, realize)
    if program.loops_above(nest):
        refuse(f"{step} {name!r}: it is inside other loops", realize)
    require_unconditional(step, realize)
    require_sole_writer(step, program, realize, store.buffer)
    fault = partial_domain_fault(program, realize)
    if fault is not None:
        refuse(f"{step} {name!r}: it is not known to run for all its iterators: {fault}", realize)
    factors = [int(f) for f in padding]
    if len(factors) != len(block.iter_vars) or any(f < 1 for f in factors):
        refuse(
            f"{step} {name!r}: expected {len(block.iter_vars)} positive factors, got {factors}",
            realize,
        )
    analyzer = Analyzer()
    sizes: dict[Var, PrimExpr] = {}
    for iter_var, factor in zip(block.iter_vars, factors, strict=True):
        sizes[iter_var.var] = analyzer.simplify((iter_var.extent + factor - 1) // factor * factor)
    loads = _require_einsum_loads(step, realize, store, sizes)
    func = program.func
    before: list[Stmt] = []
    new_block = block.with_fields(
        iter_vars=tuple(i.with_fields(extent=sizes[i.var]) for i in block.iter_vars)
    )
    for old, indices in loads.items():
        padded = Buffer(
            program.fresh_buffer_name(f"{old.name}_pad"),
            tuple(sizes[v] for v in indices),
            old.dtype,
        )
        if _same_shape(padded, old):
            continue
        before.append(_create_pad_nest(program, old, padded))
        new_block = _redirect_accesses(new_block, old, padded)
        func = add_allocation(func, padded)
    out = store.buffer
    result = Buffer(
        program.fresh_buffer_name(f"{out.name}_pad"),
        tuple(sizes[v] for v in store.indices if isinstance(v, Var)),
        out.dtype,
    )
    after: list[Stmt] = []
    if not _same_shape(result, out):
        new_block = _redirect_accesses(new_block, out, result)
        func = add_allocation(func, result)
        after.append(_create_unpad_nest(program, out, result))
    moved = create_moved_nest(realize.with_fields(block=new_block), {}, ())
    return ScheduleProgram(func).replace(nest, flatten_seq(*before, moved, *after))


def _same_shape(a: Buffer, b: Buffer) -> bool:
    analyzer = Analyzer()
    return all(analyzer.can_prove_equal(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def _redirect_accesses(block: Block, old: Buffer, new: Buffer) -> Block:
    replaced = replace_buffer(block, old, new)
    assert isinstance(replaced, Block)
    return replaced


def _require_einsum_loads(
    step: str, realize: BlockRealize, store: BufferStore, sizes: dict[Var, PrimExpr]
) -> dict[Buffer, tuple[Var, ...]]:
    """Return the sum's loads, each at iterators alone; require that padding adds nothing to the
    sum.
    """
    name = realize.block.name
    update = match_update(store)
    init = realize.block.init
    zero = isinstance(init, BufferStore) and is_const(init.value, 0)
    if update is None or update[0].symbol != "+" or not zero:
        refuse(f"{step} {name!r}: expected a sum from 0", realize)
    factors = _product_loads(update[1])
    loads: dict[Buffer, tuple[Var, ...]] = {}
    for factor in factors:
        variables = tuple(i for i in factor.indices if isinstance(i, Var))
        if len(set(variables)) != len(factor.indices) or loads.get(factor.buffer, variables) != (
            variables
        ):
            refuse(
                f"{step} {name!r}: {factor.buffer.name!r} must be read at distinct iterators alone",
                realize,
            )
        loads[factor.buffer] = variables
    if not loads or not all(isinstance(i, Var) for i in store.indices):
        refuse(f"{step} {name!r}: the sum must be of products of elements", realize)
    analyzer = Analyzer()
    for i in realize.block.iter_vars:
        grows = not analyzer.can_prove_equal(sizes[i.var], i.extent)
        if i.kind is not IterKind.REDUCE or not grows:
            continue
        # A term that padding adds to the sum is a product with the zeros of every factor that has i
        # among its indices. If all have it the term is 0 * ... * 0, and s + 0 = s: also to the bit,
        # because a sum that begins at +0 is never -0. If some lack it the term is x * 0, which is
        # NaN for infinite x: right for integers only. If all lack it the term is not 0 at all.
        without = [b.name for b, v in loads.items() if i.var not in v]
        if len(without) == len(loads) or (without and not dt.is_int(store.buffer.dtype)):
            refuse(
                f"{step} {name!r}: padding {i.var.name!r} would add {without} times 0, which is "
                "not 0 for an infinity",
                realize,
            )
    return loads


def _product_loads(value: PrimExpr) -> list[BufferLoad]:
    """Return the loads that a product consists of (through casts); none if it is something else."""
    allowed = {"BufferLoad", "Mul", "Cast", "Var"}
    order = post_order(value)
    inside_indices = {
        id(x) for e in order if isinstance(e, BufferLoad) for i in e.indices for x in post_order(i)
    }
    if any(type(e).__name__ not in allowed for e in order if id(e) not in inside_indices):
        return []
    if any(isinstance(e, Var) for e in order if id(e) not in inside_indices):
        return []
    return [e for e in order if isinstance(e, BufferLoad)]


def _create_pad_nest(program: ScheduleProgram, old: Buffer, padded: Buffer) -> Stmt:
    """Return the nest padded[v] = old[v] where v is in bounds, else 0."""
    iters = tuple(
        IterVar(Var(f"v{n}", d.dtype), d, IterKind.SPATIAL) for n, d in enumerate(padded.shape)
    )
    indices = tuple(i.var for i in iters)
    analyzer = Analyzer()
    inside: PrimExpr = const(True)
    for v, small, large in zip(indices, old.shape, padded.shape, strict=True):
        if not analyzer.can_prove_equal(small, large):
            inside = logical_and(inside, LT(v, small, "bool"))
    value = if_then_else(inside, BufferLoad(old, indices, old.dtype), const(0, old.dtype))
    block = Block(program.fresh_block_name(padded.name), iters, BufferStore(padded, value, indices))
    return create_moved_nest(BlockRealize(indices, const(True), block), {}, ())


def _create_unpad_nest(program: ScheduleProgram, out: Buffer, padded: Buffer) -> Stmt:
    """Return the nest out[v] = padded[v]."""
    iters = tuple(
        IterVar(Var(f"v{n}", d.dtype), d, IterKind.SPATIAL) for n, d in enumerate(out.shape)
    )
    indices = tuple(i.var for i in iters)
    body = BufferStore(out, BufferLoad(padded, indices, out.dtype), indices)
    block = Block(program.fresh_block_name(padded.name), iters, body)
    return create_moved_nest(BlockRealize(indices, const(True), block), {}, ())
