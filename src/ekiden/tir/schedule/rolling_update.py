"""The primitive rolling_update: fuse a sum into the loop over which its maximum runs, and correct
the sum whenever the maximum changes.

    for i, j0, j1: m[i] = max(m[i], x[i, j])
    for i, j0, d, j1: o[i, d] += exp(x[i, j] - m[i]) * v[j, d]

    -> rolling_update(o, j0)
    for i, j0:
        m_prev[i] = m[i]                                    where j0 > 0
        for j1: m[i] = max(m[i], x[i, j])
        for d: o[i, d] = o[i, d] * exp(m_prev[i] - m[i])    where j0 > 0
        for d, j1: o[i, d] += exp(x[i, j] - m[i]) * v[j, d]

Online softmax (Milakov and Gimelshein 2018) is this step for a sum of ones, FlashAttention (Dao et
al. 2022) for a sum of values.

A correction is a row of CORRECTIONS: which factor of a term it is for, and what the sum is
multiplied by. It is right where sums distribute over it and where no intermediate sum is larger
than its final terms allow: the exponent compares each element with the extreme of the same
elements, so that each factor is at most 1 at any time. An extreme that is still its initial value
has seen nothing that counts: such sums begin again at 0 (their terms may be exp(-inf + inf), which
is no number). Where the extreme did not change the sum stays, of infinities too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import (
    EQ,
    Add,
    BinaryExpr,
    Intrinsic,
    Max,
    Min,
    Mul,
    PrimExpr,
    Sub,
    Var,
    const,
    fold_binary,
    is_const,
)
from ekiden.ir.prim_visitor import free_vars, post_order, substitute
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.reduction import is_same_expr, match_update
from ekiden.tir.schedule.block_kinds import (
    REDUCTION,
    reduce_loops,
    reduce_values,
    require_kind,
    spatial_values,
)
from ekiden.tir.schedule.legality import require_sole_writer, require_top_level_block, single_store
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    add_allocation,
    bound_analyzer,
    iter_outermost_blocks,
    loops_between,
    refuse,
    serial_loop,
    substitute_loop_vars,
    wrap_in_loops,
)
from ekiden.tir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterKind,
    IterVar,
    PrimFunc,
    SeqStmt,
    Stmt,
)
from ekiden.tir.visitor import buffers_read, buffers_written, flatten_seq


@dataclass(frozen=True, slots=True)
class Correction:
    """Rescaling rule of sums that follow a running extreme, as in online softmax."""

    reducer: type[BinaryExpr]
    """Reducer of the running value."""
    intrinsic: str
    """Intrinsic of the factor."""
    element_first: bool
    """Whether its argument is the element less the running value, else the reverse."""


CORRECTIONS = (
    Correction(Max, "exp", element_first=True),  # exp(x - max)
    Correction(Min, "exp", element_first=False),  # exp(min - x)
)
"""Factors that sums are corrected for; each is at most 1, as x is among the extreme's elements."""


@dataclass(frozen=True, slots=True)
class _RunningReduction:
    """A running value: its block in the loop, its buffer, index and term, its init, and the row of
    its correction.
    """

    realize: BlockRealize
    store: BufferStore
    term: PrimExpr
    init: PrimExpr
    correction: Correction


def rolling_update(
    program: ScheduleProgram, realize: BlockRealize, loop: For
) -> tuple[PrimFunc, list[str]]:
    """See `Schedule.rolling_update`."""
    step = f"rolling_update {realize.block.name!r}"
    require_top_level_block("rolling_update", program, realize)
    require_kind("rolling_update", realize, REDUCTION)
    store = single_store("rolling_update", realize)
    require_sole_writer("rolling_update", program, realize, store.buffer)
    update = match_update(store)
    init = realize.block.init
    if update is None or update[0] is not Add or not _starts_at_zero(init):
        refuse(f"{step}: it is no sum that begins at 0", realize)
    running, argument, load = _match_running_value(step, program, realize, loop, update[1])
    nest = _match_nests(step, program, realize, loop)
    _require_same_elements(step, program, realize, loop, running, (argument, load), nest)
    previous = Buffer(
        program.fresh_buffer_name(f"{running.store.buffer.name}_prev"),
        running.store.buffer.shape,
        running.store.buffer.dtype,
    )
    names = [
        program.fresh_block_name(previous.name),
        program.fresh_block_name(f"{realize.block.name}_rescale"),
    ]
    inner = substitute_loop_vars(nest[-1].body, _loop_map(program, loop, nest))
    keep = _copy_block(names[0], running, previous, loop)
    rescale = _rescale_nest(names[1], program, realize, store, running, previous, loop, nest)
    around = _perfect_nest_to(program, loop)
    body = flatten_seq(keep, loop.body, rescale, inner)
    fused = wrap_in_loops(around[:-1], loop.with_fields(body=body))
    above = program.parent_of(around[0])
    assert isinstance(above, SeqStmt)
    beside = (s for s in above.seq if s is not nest[0])
    statements = flatten_seq(*(fused if s is around[0] else s for s in beside))
    return add_allocation(program.replace(above, statements), previous), names


def _starts_at_zero(init: Stmt | None) -> bool:
    return isinstance(init, BufferStore) and is_const(init.value, 0)


def _factors(e: PrimExpr) -> list[PrimExpr]:
    stack, factors = [e], list[PrimExpr]()
    while stack:
        top = stack.pop()
        if isinstance(top, Mul):
            stack += [top.a, top.b]
        else:
            factors.append(top)
    return factors


def _match_running_value(
    step: str, program: ScheduleProgram, realize: BlockRealize, loop: For, term: PrimExpr
) -> tuple[_RunningReduction, PrimExpr, BufferLoad]:
    """Return the running value that a term is corrected for, the element that the factor compares
    with it, and the load of the running value.
    """
    written = {b: x for x in iter_outermost_blocks(loop.body) for b in buffers_written(x.block)}
    loads = [e for e in post_order(term) if isinstance(e, BufferLoad) and e.buffer in written]
    if len(loads) != 1:
        refuse(
            f"{step}: expected one element in a term that loop {loop.loop_var.name!r} computes, "
            f"got {[e.buffer.name for e in loads]}",
            realize,
        )
    (load,) = loads
    producer = written[load.buffer]
    require_kind("rolling_update", producer, REDUCTION)
    require_sole_writer("rolling_update", program, producer, load.buffer)
    store = single_store("rolling_update", producer)
    update, init = match_update(store), producer.block.init
    if update is None or not isinstance(init, BufferStore):
        refuse(f"{step}: {load.buffer.name!r} is no sum, maximum or minimum", producer)
    for factor in _factors(term):
        for row in CORRECTIONS:
            argument = _match_factor(factor, row, load) if update[0] is row.reducer else None
            if argument is not None:
                return (
                    _RunningReduction(producer, store, update[1], init.value, row),
                    argument,
                    load,
                )
    forms = ", ".join(map(_format_correction, CORRECTIONS))
    refuse(f"{step}: no factor of a term can be corrected; those are {forms}", realize)


def _match_factor(factor: PrimExpr, row: Correction, load: BufferLoad) -> PrimExpr | None:
    """Return the element that a factor compares with the running value, or None."""
    if not isinstance(factor, Intrinsic) or factor.op != row.intrinsic:
        return None
    (difference,) = factor.args
    if not isinstance(difference, Sub):
        return None
    sides = (difference.a, difference.b) if row.element_first else (difference.b, difference.a)
    return sides[0] if sides[1] is load else None


def _format_correction(row: Correction) -> str:
    name = row.reducer.__name__.lower()
    return f"{row.intrinsic}(x - {name})" if row.element_first else f"{row.intrinsic}({name} - x)"


def _match_nests(
    step: str, program: ScheduleProgram, realize: BlockRealize, loop: For
) -> list[For]:
    """Return the block's loops that the loops around the running value, and `loop`, stand for."""
    around = _perfect_nest_to(program, loop)
    outer = len(program.loops_above(around[0]))
    loops = program.loops_above(realize)[outer : outer + len(around)]
    same = len(loops) == len(around) and all(
        a.kind is b.kind
        and is_same_expr(a.extent, b.extent)
        and is_const(a.min, 0)
        and is_const(b.min, 0)
        for a, b in zip(around, loops, strict=True)
    )
    if not same or any(a.body is not b for a, b in pairwise(loops)):
        refuse(
            f"{step}: its outer loops are not those of loop {loop.loop_var.name!r}, perfectly "
            "nested and of the same sizes from 0 on",
            realize,
        )
    above = program.parent_of(around[0])
    if not isinstance(above, SeqStmt) or program.parent_of(loops[0]) is not above:
        refuse(f"{step}: its loops must stand beside those of {loop.loop_var.name!r}", realize)
    order = [id(s) for s in above.seq]
    first, last = order.index(id(around[0])), order.index(id(loops[0]))
    if first > last:
        refuse(f"{step}: it must come behind loop {loop.loop_var.name!r}", realize)
    written, touched = set(buffers_written(loops[0])), set(buffers_read(loops[0]))
    for stmt in above.seq[first:last]:
        extra = set(buffers_written(stmt)) & touched if stmt is not around[0] else set()
        clash = extra | (written & (set(buffers_read(stmt)) | set(buffers_written(stmt))))
        for buffer in clash:
            refuse(f"{step}: {buffer.name!r} is used between the loops", stmt)
    return loops


def _perfect_nest_to(program: ScheduleProgram, loop: For) -> list[For]:
    nest = [loop]
    above = program.parent_of(loop)
    while isinstance(above, For):
        nest.append(above)
        above = program.parent_of(above)
    return nest[::-1]


def _loop_map(program: ScheduleProgram, loop: For, nest: Sequence[For]) -> dict[Var, PrimExpr]:
    around = _perfect_nest_to(program, loop)
    return {a.loop_var: b.loop_var for a, b in zip(nest, around, strict=True)}


def _require_same_elements(
    step: str,
    program: ScheduleProgram,
    realize: BlockRealize,
    loop: For,
    running: _RunningReduction,
    factor: tuple[PrimExpr, BufferLoad],
    nest: Sequence[For],
) -> None:
    """Require that each iteration of the loop sums over the elements that the running value has
    just taken in, and reads the running value of its own.
    """
    argument, load = factor
    producer, around = running.realize, _perfect_nest_to(program, loop)
    inner_m = loops_between(loop, producer, program)[1:]
    inner_l = [s for s in loops_between(nest[0], realize, program) if s not in nest]
    reduced_m, reduced_l = reduce_loops(producer, inner_m), reduce_loops(realize, inner_l)
    outside = {s.loop_var for s in around[:-1]}
    if reduce_loops(producer, around) != [loop] or not (
        set(free_vars(*spatial_values(producer))) <= outside
    ):
        refuse(
            f"{step}: loop {loop.loop_var.name!r} must be the outermost one that "
            f"{producer.block.name!r} reduces over, inside all of its others",
            loop,
        )
    moving = {nest[-1].loop_var, *(s.loop_var for s in reduced_l)}
    if moving & set(free_vars(*spatial_values(realize))):
        refuse(f"{step}: iterations of {nest[-1].loop_var.name!r} have sums of their own", realize)
    others = [b for b in buffers_read(realize.block) if b is not load.buffer]
    for buffer in set(others) & set(buffers_written(around[0])):
        refuse(f"{step}: {buffer.name!r} is computed in loop {loop.loop_var.name!r}", realize)
    to_loop = _loop_map(program, loop, nest)
    to_loop |= {a.loop_var: b.loop_var for a, b in zip(reduced_l, reduced_m, strict=False)}
    analyzer = bound_analyzer([*around, *inner_m, *inner_l])

    def same(a: PrimExpr, b: PrimExpr) -> bool:
        return analyzer.can_prove_equal(substitute(a, to_loop), b)

    reads = [substitute(i, _bindings(realize)) for i in load.indices]
    writes = [substitute(i, _bindings(producer)) for i in running.store.indices]
    if not all(map(same, reads, writes)):
        refuse(f"{step}: it reads {load.buffer.name!r} of other steps", realize)
    matched = (
        len(reduced_l) == len(reduced_m)
        and all(is_same_expr(a.extent, b.extent) for a, b in zip(reduced_l, reduced_m, strict=True))
        and len(reduce_values(realize)) == len(reduce_values(producer))
        and all(map(same, reduce_values(realize), reduce_values(producer)))
        and is_same_expr(substitute(realize.predicate, to_loop), producer.predicate)
        and set(free_vars(producer.predicate)) <= {loop.loop_var, *(s.loop_var for s in reduced_m)}
    )
    if not matched:
        refuse(
            f"{step}: a step of {loop.loop_var.name!r} does not sum over what "
            f"{producer.block.name!r} takes in",
            realize,
        )
    # In terms of the producer's iterators: the spatial ones by the indices, the others in order.
    pairs = [
        *zip(_reduce_vars(realize), _reduce_vars(producer), strict=True),
        *zip(load.indices, running.store.indices, strict=True),
    ]
    element = substitute(argument, {a: b for a, b in pairs if isinstance(a, Var)})
    if not is_same_expr(element, running.term):
        refuse(
            f"{step}: {argument!r} is not what {producer.block.name!r} takes the "
            f"{running.correction.reducer.__name__.lower()} of",
            realize,
        )


def _reduce_vars(realize: BlockRealize) -> list[Var]:
    return [i.var for i in realize.block.iter_vars if i.kind is IterKind.REDUCE]


def _spatial_iters(realize: BlockRealize) -> tuple[list[IterVar], dict[Var, PrimExpr]]:
    """Return fresh spatial iterators of a block, and their variables by the old ones."""
    old = [i for i in realize.block.iter_vars if i.kind is IterKind.SPATIAL]
    names = {i.var: Var(i.var.name, i.var.dtype) for i in old}
    return [IterVar(names[i.var], i.extent, i.kind) for i in old], dict(names)


def _copy_block(name: str, running: _RunningReduction, previous: Buffer, loop: For) -> BlockRealize:
    """Return the block that keeps the running value of the previous iteration."""
    iters, names = _spatial_iters(running.realize)
    indices = tuple(substitute(i, names) for i in running.store.indices)
    current = running.store.buffer
    body = BufferStore(previous, BufferLoad(current, indices, current.dtype), indices)
    values = tuple(spatial_values(running.realize))
    return BlockRealize(values, loop.loop_var > 0, Block(name, tuple(iters), body))


def _rescale_nest(
    name: str,
    program: ScheduleProgram,
    realize: BlockRealize,
    store: BufferStore,
    running: _RunningReduction,
    previous: Buffer,
    loop: For,
    nest: Sequence[For],
) -> Stmt:
    """Return the block that corrects the sums, in loops of its own over those of the step."""
    iters, names = _spatial_iters(realize)
    # The running value's index, which only outer loops move, in terms of those loops.
    bindings = _bindings(running.realize)
    at = [substitute(i, bindings) for i in running.store.indices]
    current = running.store.buffer
    new, old = (BufferLoad(b, tuple(at), current.dtype) for b in (current, previous))
    indices = tuple(substitute(i, names) for i in store.indices)
    total = BufferLoad(store.buffer, indices, store.buffer.dtype)
    row = running.correction
    difference = old - new if row.element_first else new - old
    factor = call_intrin(row.intrinsic, difference, dtype=current.dtype)
    scaled = if_then_else(
        fold_binary(EQ, old, running.init), const(0, total.dtype), fold_binary(Mul, total, factor)
    )
    value = if_then_else(fold_binary(EQ, new, old), total, scaled)
    block = Block(name, tuple(iters), BufferStore(store.buffer, value, indices))
    spatial = spatial_values(realize)
    inner = [s for s in loops_between(nest[0], realize, program) if s not in nest]
    used = set(free_vars(*spatial))
    loops = [s for s in inner if s.loop_var in used]
    fresh: dict[Var, PrimExpr] = {s.loop_var: Var(s.loop_var.name, s.loop_var.dtype) for s in loops}
    moved = {**_loop_map(program, loop, nest), **fresh}
    stmt: Stmt = BlockRealize(
        tuple(substitute(v, moved) for v in spatial), loop.loop_var > 0, block
    )
    for s in reversed(loops):
        var = fresh[s.loop_var]
        assert isinstance(var, Var)
        stmt = serial_loop(var, substitute(s.extent, moved), stmt).with_fields(
            min=substitute(s.min, moved)
        )
    return stmt


def _bindings(realize: BlockRealize) -> dict[Var, PrimExpr]:
    return dict(zip((i.var for i in realize.block.iter_vars), realize.iter_values, strict=True))


__all__ = ["CORRECTIONS", "Correction", "rolling_update"]
