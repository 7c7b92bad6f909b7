"""Primitives on blocks: each is a function from a PrimFunc to a PrimFunc that means the same."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import PrimExpr, Var, const, logical_and
from ekiden.ir.prim_visitor import free_vars, rewrite, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.regions import Range, accesses, region
from ekiden.tir.schedule.tree import (
    find_block,
    find_loop,
    insert_before,
    loops_above,
    nest_of,
    remove_allocation,
    replace,
    replace_buffer,
    require,
    rewrite_each,
    single_store,
    written_buffer,
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
from ekiden.tir.visitor import NOTHING, buffers_read, buffers_written, sequence, walk
from ekiden.tir.visitor import substitute as substitute_stmt


def compute_inline(func: PrimFunc, name: str) -> PrimFunc:
    """b[i] = f(i); c[i] = g(b[i])   ->   c[i] = g(f(i))"""
    realize = find_block(func, name)
    store = single_store(realize)
    buffer, variables = store.buffer, _distinct_variables(name, store.indices)
    require(realize.block.init is None, f"compute_inline {name!r}: the block is a reduction")
    require(buffer not in func.params, f"compute_inline {name!r}: {buffer.name!r} is an output")
    removed = replace(func, nest_of(func, realize), NOTHING)
    _require_sole_writer(func, "compute_inline", realize, buffer)

    def change(e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer is buffer:
            return substitute(store.value, dict(zip(variables, e.indices, strict=True)))
        return e

    return remove_allocation(removed.with_fields(body=rewrite_each(removed.body, change)), buffer)


def _require_sole_writer(func: PrimFunc, step: str, realize: BlockRealize, buffer: Buffer) -> None:
    """A part of a buffer's elements (the rest of a split, an init) may be written by another block:
    then refuse.
    """
    writers = [
        s.block.name
        for s in walk(func.body)
        if isinstance(s, BlockRealize) and buffer in buffers_written(s)
    ]
    alone = writers == [realize.block.name]
    require(alone, f"{step} {realize.block.name!r}: {buffer.name!r} is written by all of {writers}")


def _distinct_variables(name: str, indices: Sequence[PrimExpr]) -> list[Var]:
    variables = [i for i in indices if isinstance(i, Var)]
    plain = len(set(variables)) == len(indices)
    require(plain, f"block {name!r}: its elements must be indexed by distinct iterators")
    return variables


def reverse_compute_inline(func: PrimFunc, name: str) -> PrimFunc:
    """b[i] = f(i); c[i] = g(b[i])   ->   c[i] = g(f(i)), in b's loops"""
    consumer = find_block(func, name)
    store = single_store(consumer)
    found = [p for p in _producers(func, consumer) if p.block.init is None]
    require(
        len(found) == 1,
        f"reverse_compute_inline {name!r}: expected one plain producer, got {len(found)}",
    )
    producer = found[0]
    made = single_store(producer)
    _require_sole_writer(func, "reverse_compute_inline", producer, made.buffer)
    _require_sole_writer(func, "reverse_compute_inline", consumer, store.buffer)
    loads = [a for a in accesses(consumer.block.body, made.buffer) if not a.is_store]
    variables = _distinct_variables(name, loads[0].indices)
    require(
        all(a.indices == loads[0].indices for a in loads)
        and set(free_vars(*store.indices)) <= set(variables),
        f"reverse_compute_inline {name!r}: it must read {made.buffer.name!r} once per element",
    )
    values = dict(zip(variables, made.indices, strict=True))

    def change(e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer is made.buffer:
            return made.value
        return values.get(e, e) if isinstance(e, Var) else e

    new = BufferStore(
        store.buffer,
        rewrite(store.value, change),
        tuple(substitute(i, values) for i in store.indices),
    )
    without = replace(func, nest_of(func, consumer), NOTHING)
    block = producer.block.with_fields(name=consumer.block.name, body=new)
    return remove_allocation(
        replace(without, producer, producer.with_fields(block=block)), made.buffer
    )


def _producers(func: PrimFunc, consumer: BlockRealize) -> list[BlockRealize]:
    """The blocks that write what a block reads."""
    read = set(buffers_read(consumer.block.body)) - set(buffers_written(consumer.block.body))
    blocks = [s for s in walk(func.body) if isinstance(s, BlockRealize)]
    return [b for b in blocks if b is not consumer and read & set(buffers_written(b.block.body))]


def _moved_nest(realize: BlockRealize, ranges: dict[Var, Range], analyzer: Analyzer) -> Stmt:
    """The block in loops of its own over the ranges its iterators need."""
    loops: list[For] = []
    values: list[PrimExpr] = []
    predicate: PrimExpr = const(True)
    for each in realize.block.iter_vars:
        needed = ranges.get(each.var, Range(const(0), each.extent))
        loop = For(Var(each.var.name), const(0), needed.extent, ForKind.SERIAL, NOTHING)
        analyzer.bind(loop.loop_var, 0, needed.extent)
        value = analyzer.simplify(needed.low + loop.loop_var)
        for inside in (value >= 0, value < each.extent):
            if not analyzer.can_prove(inside):
                predicate = logical_and(predicate, inside)
        loops.append(loop)
        values.append(value)
    nest: Stmt = BlockRealize(tuple(values), predicate, realize.block)
    for loop in reversed(loops):
        nest = loop.with_fields(body=nest)
    return nest


def _around(func: PrimFunc, loop: For) -> list[For]:
    return [*loops_above(func, loop), loop]


def _bound(loops: Sequence[For]) -> Analyzer:
    analyzer = Analyzer()
    for each in loops:
        analyzer.bind(each.loop_var, each.min, each.extent)
    return analyzer


def compute_at(func: PrimFunc, name: str, loop: Var) -> PrimFunc:
    """Compute, at the start of each step of a loop, the part of a block's buffer that the step
    reads.
    """
    realize = find_block(func, name)
    store_buffer = written_buffer(realize)
    require(
        store_buffer not in func.params, f"compute_at {name!r}: {store_buffer.name!r} is an output"
    )
    _require_sole_writer(func, "compute_at", realize, store_buffer)
    without = replace(func, nest_of(func, realize), NOTHING)
    place = find_loop(without, loop)
    inside = accesses(place.body, store_buffer)
    require(
        bool(inside), f"compute_at {name!r}: loop {loop.name!r} does not read {store_buffer.name!r}"
    )
    complete = len(inside) == len(accesses(without.body, store_buffer))
    require(
        complete,
        f"compute_at {name!r}: {store_buffer.name!r} is read outside loop {loop.name!r} too",
    )
    outer = _around(without, place)
    needed = region(store_buffer, inside, outer)
    variables = _distinct_variables(name, _indices_of(realize, store_buffer))
    nest = _moved_nest(realize, dict(zip(variables, needed, strict=True)), _bound(outer))
    return replace(without, place, place.with_fields(body=sequence(nest, place.body)))


def _indices_of(realize: BlockRealize, buffer: Buffer) -> tuple[PrimExpr, ...]:
    return next(
        s.indices
        for s in walk(realize.block.body)
        if isinstance(s, BufferStore) and s.buffer is buffer
    )


def reverse_compute_at(func: PrimFunc, name: str, loop: Var) -> PrimFunc:
    """Compute, at the end of each step of a loop, the part of a block that what the step wrote
    allows.
    """
    realize = find_block(func, name)
    require(realize.block.init is None, f"reverse_compute_at {name!r}: the block is a reduction")
    without = replace(func, nest_of(func, realize), NOTHING)
    place = find_loop(without, loop)
    written = [b for b in buffers_written(place.body) if b in buffers_read(realize.block.body)]
    require(
        len(written) == 1,
        f"reverse_compute_at {name!r}: loop {loop.name!r} must write one of its inputs",
    )
    made = [a for a in accesses(place.body, written[0]) if a.is_store]
    elsewhere = len(made) < sum(a.is_store for a in accesses(without.body, written[0]))
    require(
        not elsewhere,
        f"reverse_compute_at {name!r}: {written[0].name!r} is written outside the loop too",
    )
    _require_sole_writer(func, "reverse_compute_at", realize, written_buffer(realize))
    outer = _around(without, place)
    given = region(written[0], made, outer)
    reads = [a for a in accesses(realize.block.body, written[0]) if not a.is_store]
    variables = _distinct_variables(name, reads[0].indices)
    same = all(a.indices == reads[0].indices for a in reads)
    require(
        same, f"reverse_compute_at {name!r}: it must read {written[0].name!r} at its own iterators"
    )
    _require_whole(name, place, outer)
    nest = _moved_nest(realize, dict(zip(variables, given, strict=True)), _bound(outer))
    return replace(without, place, place.with_fields(body=sequence(place.body, nest)))


def _require_whole(name: str, place: For, outer: Sequence[For]) -> None:
    """What a step wrote must be final: no reduction over the loop itself or one around it."""
    around = {s.loop_var for s in outer}
    for s in walk(place):
        if isinstance(s, BlockRealize):
            pairs = zip(s.block.iter_vars, s.iter_values, strict=True)
            reduced = free_vars(*(v for i, v in pairs if i.kind is IterKind.REDUCE))
            carried = around.isdisjoint(reduced)
            require(
                carried,
                f"reverse_compute_at {name!r}: block {s.block.name!r} is not finished in a step",
            )


def cache_write(func: PrimFunc, name: str, scope: str) -> tuple[PrimFunc, str]:
    """The block writes a new buffer in `scope`, and a block after it, whose name is given back,
    copies to the old one.
    """
    realize = find_block(func, name)
    old = written_buffer(realize)
    _require_sole_writer(func, "cache_write", realize, old)
    new = Buffer(f"{old.name}_{scope}", old.shape, old.dtype, scope)
    nest = nest_of(func, realize)
    iters = tuple(IterVar(Var(f"v{n}"), d, IterKind.SPATIAL) for n, d in enumerate(old.shape))
    at = tuple(i.var for i in iters)
    copy = BlockRealize(
        at,
        const(True),
        Block(f"{name}_copy", iters, BufferStore(old, BufferLoad(new, at, old.dtype), at)),
    )
    moved = _moved_nest(copy, {}, Analyzer())
    changed = replace(func, nest, sequence(replace_buffer(nest, old, new), moved))
    return changed.with_fields(body=Allocate(new, changed.body)), f"{name}_copy"


def set_scope(func: PrimFunc, name: str, scope: str) -> PrimFunc:
    """Put the intermediate that a block writes in another scope."""
    old = written_buffer(find_block(func, name))
    require(old not in func.params, f"set_scope {name!r}: {old.name!r} is an output")
    return func.with_fields(body=replace_buffer(func.body, old, old.with_fields(scope=scope)))


def decompose_reduction(func: PrimFunc, name: str, loop: Var) -> tuple[PrimFunc, str]:
    """The block's init in a nest of its own before a loop that holds all its reduction loops; gives
    its block's name.
    """
    realize = find_block(func, name)
    block = realize.block
    require(block.init is not None, f"decompose_reduction {name!r}: the block is not a reduction")
    assert block.init is not None
    place = find_loop(func, loop)
    above = {s.loop_var for s in loops_above(func, place)}
    pairs = list(zip(block.iter_vars, realize.iter_values, strict=True))
    reduced = free_vars(*(v for i, v in pairs if i.kind is IterKind.REDUCE))
    outside = [v.name for v in reduced if v in above]
    require(
        not outside,
        f"decompose_reduction {name!r}: loops {outside} outside {loop.name!r} reduce too",
    )
    spatial = [(i, v) for i, v in pairs if i.kind is IterKind.SPATIAL]
    inner = [
        s
        for s in walk(place)
        if isinstance(s, For) and any(s.loop_var in free_vars(v) for _, v in spatial)
    ]
    renamed: dict[Var, PrimExpr] = {s.loop_var: Var(s.loop_var.name) for s in inner}
    iters = {i.var: Var(i.var.name) for i, _ in spatial}
    body = substitute_stmt(block.init, dict(iters))
    made = Block(
        f"{name}_init", tuple(IterVar(iters[i.var], i.extent, i.kind) for i, _ in spatial), body
    )
    nest: Stmt = BlockRealize(
        tuple(substitute(v, renamed) for _, v in spatial), realize.predicate, made
    )
    for each in reversed(inner):
        var = renamed[each.loop_var]
        assert isinstance(var, Var)
        nest = For(var, each.min, each.extent, ForKind.SERIAL, nest)
    update = replace(func, realize, realize.with_fields(block=block.with_fields(init=None)))
    return insert_before(update, find_loop(update, loop), nest), f"{name}_init"


def annotate_block(func: PrimFunc, name: str, key: str, value: object) -> PrimFunc:
    """Set one annotation of a block."""
    old = find_block(func, name)
    block = old.block.with_fields(annotations={**(old.block.annotations or {}), key: value})
    return replace(func, old, old.with_fields(block=block))
