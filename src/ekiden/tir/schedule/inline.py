"""Primitives that put one block's expression into another: compute_inline and its reverse.

    B[i] = A[i] + 1;  C[i] = B[i] * 2      compute_inline(B):           C[i] = (A[i] + 1) * 2
    B[i] = f(i);      C[i] = B[i] * 2      reverse_compute_inline(C):   C[i] = f(i) * 2

compute_inline puts the expression wherever the buffer is read, so each reader may be anything;
reverse_compute_inline takes the one reader's expression into the producer's loops, and so needs
every element made once and read at its own place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import Analyzer, IterMapLevel, detect_iter_map, inverse_affine_iter_map
from ekiden.ir.prim import LT, PrimExpr, Var, const, convert, is_const, logical_and
from ekiden.ir.prim_visitor import free_vars, post_order, rewrite, substitute
from ekiden.ir.range import Range
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.reduction import same_expr
from ekiden.tir.schedule.check import (
    distinct_variables,
    first_changing,
    reached,
    reaches,
    require_final_inputs,
    require_no_conditions,
    require_outermost,
    require_sole_writer,
    single_store,
)
from ekiden.tir.schedule.kinds import COMPLETE, require_kind
from ekiden.tir.schedule.program import (
    Program,
    accesses,
    ranges_of,
    read,
    refuse,
    unallocated,
    written,
)
from ekiden.tir.stmt import Block, BlockRealize, BufferStore, PrimFunc
from ekiden.tir.visitor import NOTHING, ExprRewriter


def compute_inline(program: Program, realize: BlockRealize) -> PrimFunc:
    """See `Schedule.compute_inline`."""
    step, name = "compute_inline", realize.block.name
    require_outermost(step, program, realize)
    store = single_store(step, realize)
    buffer = store.buffer
    if realize.block.init is not None:
        refuse(f"{step} {name!r}: the block is a reduction", realize)
    if program.is_param(buffer):
        refuse(f"{step} {name!r}: {buffer.name!r} is an output", realize)
    require_kind(step, realize, COMPLETE)
    require_sole_writer(step, program, realize, buffer)
    require_final_inputs(step, program, realize)
    require_no_conditions(step, realize)
    values = _by_index(step, realize, store)
    readers = program.readers(buffer)
    for each in readers:
        if not program.before(realize, each):
            refuse(f"{step} {name!r}: block {each.block.name!r} reads it before", each)
        if any(a.extents is not None for a in accesses(each, buffer)):
            refuse(f"{step} {name!r}: block {each.block.name!r} hands it to a call", each)

    def change(e: PrimExpr) -> PrimExpr:
        """A read of the buffer is what was stored there, with the block's variables as the indices
        read say.
        """
        if isinstance(e, BufferLoad) and e.buffer is buffer:
            given = {v: e.indices[n] for v, n in values.items()}
            return substitute(store.value, given)
        return e

    func = program.replace(program.nest(realize), NOTHING)
    for each in readers:
        after = Program(func)
        old = after.blocks[each.block.name].block
        func = after.replace(old, ExprRewriter(change).visit(old))
    return unallocated(func, buffer)


def _by_index(step: str, realize: BlockRealize, store: BufferStore) -> dict[Var, int]:
    """Which index of the written element each iterator is; those of one step are nowhere."""
    plain = [i for i in store.indices if not is_const(i, 0)]
    variables = distinct_variables(step, realize.block.name, plain)
    at = {v: n for n, i in enumerate(store.indices) for v in variables if i is v}
    for each in realize.block.iter_vars:
        if each.var in at:
            continue
        if each.var in free_vars(store.value):
            refuse(
                f"{step} {realize.block.name!r}: its value depends on {each.var.name!r}, which no "
                "index of the element is",
                realize,
            )
    return at


def reverse_compute_inline(program: Program, consumer: BlockRealize) -> PrimFunc:
    """See `Schedule.reverse_compute_inline`."""
    step = "reverse_compute_inline"
    require_outermost(step, program, consumer)
    store = single_store(step, consumer)
    require_kind(step, consumer, COMPLETE)
    require_no_conditions(step, consumer)
    producer, buffer = _sole_producer(step, program, consumer)
    made = single_store(step, producer)
    require_kind(step, producer, COMPLETE)
    require_no_conditions(step, producer)
    _require_only_reader(step, program, producer, consumer, buffer)
    require_sole_writer(step, program, consumer, store.buffer)
    _require_early(step, program, producer, consumer, buffer)
    _require_whole(step, program, producer, made)
    values, condition = _consumer_iterators(step, consumer, buffer, made)

    def change(e: PrimExpr) -> PrimExpr:
        """A read of the buffer is the producer's value; variables of the consumer become indices of
        the producer's store.
        """
        if isinstance(e, BufferLoad) and e.buffer is buffer:
            return made.value
        return values.get(e, e) if isinstance(e, Var) else e

    new = BufferStore(
        store.buffer,
        rewrite(store.value, change),
        tuple(substitute(i, dict(values)) for i in store.indices),
    )
    outside = dict(
        zip([i.var for i in producer.block.iter_vars], producer.iter_values, strict=True)
    )
    predicate = logical_and(producer.predicate, substitute(condition, outside))
    annotations = {**(producer.block.annotations or {}), **(consumer.block.annotations or {})}
    block = Block(producer.block.name, producer.block.iter_vars, new, None, annotations or None)
    func = program.replace(program.nest(consumer), NOTHING)
    after = Program(func)
    func = after.replace(
        after.blocks[producer.block.name], BlockRealize(producer.iter_values, predicate, block)
    )
    return unallocated(func, buffer)


def _sole_producer(
    step: str, program: Program, consumer: BlockRealize
) -> tuple[BlockRealize, Buffer]:
    """The one plain block that writes what the consumer reads, and the buffer between them."""
    found: list[tuple[BlockRealize, Buffer]] = []
    for buffer in read(consumer.block):
        writers = program.writers(buffer)
        if len(writers) == 1 and writers[0] is not consumer and writers[0].block.init is None:
            found.append((writers[0], buffer))
    if len(found) != 1:
        refuse(
            f"{step} {consumer.block.name!r}: expected one plain producer, got {len(found)}",
            consumer,
        )
    return found[0]


def _require_only_reader(
    step: str, program: Program, producer: BlockRealize, consumer: BlockRealize, buffer: Buffer
) -> None:
    name = consumer.block.name
    require_sole_writer(step, program, producer, buffer)
    if program.is_param(buffer):
        refuse(f"{step} {name!r}: {buffer.name!r} is an argument", consumer)
    others = [x.block.name for x in program.readers(buffer) if x is not consumer]
    if others:
        refuse(f"{step} {name!r}: {buffer.name!r} is read by {others} too", consumer)


def _require_early(
    step: str, program: Program, producer: BlockRealize, consumer: BlockRealize, buffer: Buffer
) -> None:
    """What else the consumer reads is there when the producer runs; nothing reads what it writes
    before it does.
    """
    name = consumer.block.name
    changing = first_changing(program, consumer.block)
    if changing is not None:
        refuse(
            f"{step} {name!r}: what it reads depends on block {changing.block.name!r}, whose "
            "elements change from step to step",
            changing,
        )
    if not program.before(producer, consumer):
        refuse(f"{step} {name!r}: its producer does not come before it", consumer)
    for other in read(consumer.block):
        for writer in program.writers(other):
            if other is not buffer and not program.before(writer, producer):
                refuse(
                    f"{step} {name!r}: {other.name!r}, which it reads, is written after block "
                    f"{producer.block.name!r}",
                    writer,
                )
    for target in written(consumer.block):
        for reader in program.readers(target):
            if not program.before(consumer, reader):
                refuse(
                    f"{step} {name!r}: block {reader.block.name!r} reads {target.name!r} before it",
                    reader,
                )


def _require_whole(step: str, program: Program, producer: BlockRealize, made: BufferStore) -> None:
    """The producer writes every element of its buffer."""
    name, buffer = producer.block.name, made.buffer
    sizes = {i.var: i.extent for i in producer.block.iter_vars}
    analyzer = Analyzer()
    for index, dim in zip(made.indices, buffer.shape, strict=True):
        whole = isinstance(index, Var) and analyzer.can_prove_equal(sizes[index], dim)
        if not whole and not (is_const(index, 0) and is_const(dim, 1)):
            refuse(f"{step}: block {name!r} does not write all of {buffer.name!r}", producer)
    distinct_variables(step, name, [i for i in made.indices if not is_const(i)])
    fault = partial_domain(program, producer)
    if fault is not None:
        refuse(
            f"{step}: block {name!r} is not known to run for all its iterators: {fault}", producer
        )


def partial_domain(program: Program, realize: BlockRealize) -> str | None:
    """Why a block may not run for every value of its iterators; None if it does."""
    loops = program.loops_above(realize)
    values = [v for v in realize.iter_values if not is_const(v)]
    made = detect_iter_map(values, ranges_of(loops), check_level=IterMapLevel.SURJECTIVE)
    if made.errors:
        return made.errors[0]
    analyzer = Analyzer()
    sums = iter(made.indices)
    for each, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        low, size = value, const(1)
        if not is_const(value):
            total = next(sums)
            low, size = convert(total.base), reached(total)
        if not analyzer.can_prove(low <= 0) or not reaches(low, size, each.extent, analyzer):
            return f"{each.var.name!r} does not reach its end"
    return None


def _consumer_iterators(
    step: str, consumer: BlockRealize, buffer: Buffer, made: BufferStore
) -> tuple[Mapping[Var, PrimExpr], PrimExpr]:
    """The consumer's iterators in terms of the producer's, and where there is a point of it."""
    name = consumer.block.name
    loads = [
        e
        for e in post_order(consumer.block.body.value)  # type: ignore[attr-defined]
        if isinstance(e, BufferLoad) and e.buffer is buffer
    ]
    first = loads[0].indices
    if not all(_same_indices(e.indices, first) for e in loads):
        refuse(f"{step} {name!r}: it must read {buffer.name!r} at one element per point", consumer)
    iters = {i.var: Range(i.extent) for i in consumer.block.iter_vars}
    found = detect_iter_map(first, iters, check_level=IterMapLevel.BIJECTIVE)
    if found.errors:
        refuse(
            f"{step} {name!r}: it must read {buffer.name!r} once per element: {found.errors[0]}",
            consumer,
        )
    analyzer = Analyzer()
    condition: PrimExpr = const(True)
    for total, index, dim in zip(found.indices, made.indices, buffer.shape, strict=True):
        low, size = convert(total.base), reached(total)
        if not analyzer.can_prove(low >= 0) or not analyzer.can_prove(low + size <= dim):
            refuse(f"{step} {name!r}: some of its points read nothing of {buffer.name!r}", consumer)
        if not analyzer.can_prove_equal(low, const(0)):
            condition = logical_and(condition, index >= low)
        if not analyzer.can_prove_equal(low + size, dim):
            condition = logical_and(condition, LT(index, low + size, "bool"))
    if all(isinstance(i, Var) or is_const(i) for i in first):
        values: dict[Var, PrimExpr] = {
            i: p for i, p in zip(first, made.indices, strict=True) if isinstance(i, Var)
        }
    else:
        values = dict(inverse_affine_iter_map(found.indices, list(made.indices)))
    for each in consumer.block.iter_vars:
        values.setdefault(each.var, const(0))
    return values, condition


def _same_indices(a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> bool:
    return all(same_expr(x, y) for x, y in zip(a, b, strict=True))
