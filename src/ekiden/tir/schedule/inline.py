"""Inlining primitives: compute_inline and reverse_compute_inline.

    B[i] = A[i] + 1;  C[i] = B[i] * 2      compute_inline(B):           C[i] = (A[i] + 1) * 2
    B[i] = f(i);      C[i] = B[i] * 2      reverse_compute_inline(C):   C[i] = f(i) * 2

compute_inline substitutes the expression at every read, so readers may be of any kind;
reverse_compute_inline moves the only reader's expression into the producer's loops, which requires
that every element is written once and read at its own index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import Analyzer, IterMapLevel, detect_iter_map, inverse_affine_iter_map
from ekiden.ir.prim import LT, PrimExpr, Var, const, convert, is_const, logical_and
from ekiden.ir.prim_visitor import free_vars, post_order, rewrite, substitute
from ekiden.ir.range import Range
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.reduction import is_same_expr
from ekiden.tir.schedule.block_kinds import COMPLETE, require_kind
from ekiden.tir.schedule.coverage_proofs import can_prove_covers
from ekiden.tir.schedule.legality import (
    find_rewriting_producer,
    num_iter_sum_values,
    require_distinct_iterators,
    require_final_inputs,
    require_sole_writer,
    require_top_level_block,
    require_unconditional,
    require_visible,
    single_store,
)
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    accesses_of_buffer,
    block_reads,
    block_writes,
    loop_ranges,
    refuse,
    remove_allocation,
)
from ekiden.tir.stmt import Block, BlockRealize, BufferStore, PrimFunc
from ekiden.tir.visitor import NO_OP, ExprRewriter


def compute_inline(program: ScheduleProgram, realize: BlockRealize) -> PrimFunc:
    """See `Schedule.compute_inline`."""
    step, name = "compute_inline", realize.block.name
    require_top_level_block(step, program, realize)
    store = single_store(step, realize)
    buffer = store.buffer
    if realize.block.init is not None:
        refuse(f"{step} {name!r}: the block is a reduction", realize)
    if program.is_param(buffer):
        refuse(f"{step} {name!r}: {buffer.name!r} is an output", realize)
    require_kind(step, realize, COMPLETE)
    require_sole_writer(step, program, realize, buffer)
    require_final_inputs(step, program, realize)
    require_unconditional(step, realize)
    values = _iterator_positions(step, realize, store)
    readers = program.readers(buffer)
    for reader in readers:
        if not program.precedes(realize, reader):
            refuse(f"{step} {name!r}: block {reader.block.name!r} reads it before", reader)
        if any(a.extents is not None for a in accesses_of_buffer(reader, buffer)):
            refuse(f"{step} {name!r}: block {reader.block.name!r} hands it to a call", reader)

    def inline_load(e: PrimExpr) -> PrimExpr:
        """Replace a read of the buffer by the stored value, with the block's variables replaced by
        the read's indices.
        """
        if isinstance(e, BufferLoad) and e.buffer is buffer:
            index_values = {v: e.indices[n] for v, n in values.items()}
            return substitute(store.value, index_values)
        return e

    func = program.replace(program.outermost_perfect_loop(realize), NO_OP)
    for reader in readers:
        after = ScheduleProgram(func)
        old = after.blocks[reader.block.name].block
        func = after.replace(old, ExprRewriter(inline_load).visit(old))
    return remove_allocation(func, buffer)


def _iterator_positions(step: str, realize: BlockRealize, store: BufferStore) -> dict[Var, int]:
    """Return the index position of each iterator in the written element; iterators of extent 1 need
    none.
    """
    plain = [i for i in store.indices if not is_const(i, 0)]
    variables = require_distinct_iterators(step, realize.block.name, plain)
    position = {v: n for n, i in enumerate(store.indices) for v in variables if i is v}
    for iter_var in realize.block.iter_vars:
        if iter_var.var in position:
            continue
        if iter_var.var in free_vars(store.value):
            refuse(
                f"{step} {realize.block.name!r}: its value depends on {iter_var.var.name!r}, "
                "which no "
                "index of the element is",
                realize,
            )
    return position


def reverse_compute_inline(program: ScheduleProgram, consumer: BlockRealize) -> PrimFunc:
    """See `Schedule.reverse_compute_inline`."""
    step = "reverse_compute_inline"
    require_top_level_block(step, program, consumer)
    store = single_store(step, consumer)
    require_kind(step, consumer, COMPLETE)
    require_unconditional(step, consumer)
    producer, buffer = _sole_producer(step, program, consumer)
    producer_store = single_store(step, producer)
    require_kind(step, producer, COMPLETE)
    require_unconditional(step, producer)
    require_visible(step, program, consumer, producer)
    _require_only_reader(step, program, producer, consumer, buffer)
    require_sole_writer(step, program, consumer, store.buffer)
    _require_final_consumer_inputs(step, program, producer, consumer, buffer)
    _require_full_write(step, program, producer, producer_store)
    values, condition = _solve_consumer_iterators(step, consumer, buffer, producer_store)

    def inline_producer_load(e: PrimExpr) -> PrimExpr:
        """Replace a read of the buffer by the producer's value, and consumer variables by indices
        of the producer's store.
        """
        if isinstance(e, BufferLoad) and e.buffer is buffer:
            return producer_store.value
        return values.get(e, e) if isinstance(e, Var) else e

    new = BufferStore(
        store.buffer,
        rewrite(store.value, inline_producer_load),
        tuple(substitute(i, dict(values)) for i in store.indices),
    )
    outside = dict(
        zip([i.var for i in producer.block.iter_vars], producer.iter_values, strict=True)
    )
    # Elements that the consumer never reads have no place in its result.
    predicate = logical_and(producer.predicate, substitute(condition, outside))
    annotations = {**(producer.block.annotations or {}), **(consumer.block.annotations or {})}
    block = Block(producer.block.name, producer.block.iter_vars, new, None, annotations or None)
    func = program.replace(program.outermost_perfect_loop(consumer), NO_OP)
    after = ScheduleProgram(func)
    func = after.replace(
        after.blocks[producer.block.name], BlockRealize(producer.iter_values, predicate, block)
    )
    return remove_allocation(func, buffer)


def _sole_producer(
    step: str, program: ScheduleProgram, consumer: BlockRealize
) -> tuple[BlockRealize, Buffer]:
    """Return the only plain block that writes what the consumer reads, and the buffer
    between them.
    """
    producers: list[tuple[BlockRealize, Buffer]] = []
    for buffer in block_reads(consumer.block):
        writers = program.writers(buffer)
        if len(writers) == 1 and writers[0] is not consumer and writers[0].block.init is None:
            producers.append((writers[0], buffer))
    if len(producers) != 1:
        refuse(
            f"{step} {consumer.block.name!r}: expected one plain producer, got {len(producers)}",
            consumer,
        )
    return producers[0]


def _require_only_reader(
    step: str,
    program: ScheduleProgram,
    producer: BlockRealize,
    consumer: BlockRealize,
    buffer: Buffer,
) -> None:
    name = consumer.block.name
    require_sole_writer(step, program, producer, buffer)
    if program.is_param(buffer):
        refuse(f"{step} {name!r}: {buffer.name!r} is an argument", consumer)
    other_readers = [x.block.name for x in program.readers(buffer) if x is not consumer]
    if other_readers:
        refuse(f"{step} {name!r}: {buffer.name!r} is read by {other_readers} too", consumer)


def _require_final_consumer_inputs(
    step: str,
    program: ScheduleProgram,
    producer: BlockRealize,
    consumer: BlockRealize,
    buffer: Buffer,
) -> None:
    """Require that the consumer's other inputs are final when the producer runs and that nothing
    reads its output before it.
    """
    name = consumer.block.name
    changing = find_rewriting_producer(program, consumer.block)
    if changing is not None:
        refuse(
            f"{step} {name!r}: what it reads depends on block {changing.block.name!r}, whose "
            "elements change from step to step",
            changing,
        )
    if not program.precedes(producer, consumer):
        refuse(f"{step} {name!r}: its producer does not come before it", consumer)
    for input_buffer in block_reads(consumer.block):
        for writer in program.writers(input_buffer):
            if input_buffer is not buffer and not program.precedes(writer, producer):
                refuse(
                    f"{step} {name!r}: {input_buffer.name!r}, which it reads, is written "
                    "after block "
                    f"{producer.block.name!r}",
                    writer,
                )
    for target in block_writes(consumer.block):
        for reader in program.readers(target):
            if not program.precedes(consumer, reader):
                refuse(
                    f"{step} {name!r}: block {reader.block.name!r} reads {target.name!r} before it",
                    reader,
                )


def _require_full_write(
    step: str, program: ScheduleProgram, producer: BlockRealize, store: BufferStore
) -> None:
    """Require that the producer writes every element of its buffer."""
    name, buffer = producer.block.name, store.buffer
    sizes = {i.var: i.extent for i in producer.block.iter_vars}
    analyzer = Analyzer()
    for index, dim in zip(store.indices, buffer.shape, strict=True):
        covers_axis = isinstance(index, Var) and analyzer.can_prove_equal(sizes[index], dim)
        if not covers_axis and not (is_const(index, 0) and is_const(dim, 1)):
            refuse(f"{step}: block {name!r} does not write all of {buffer.name!r}", producer)
    require_distinct_iterators(step, name, [i for i in store.indices if not is_const(i)])
    fault = partial_domain_fault(program, producer)
    if fault is not None:
        refuse(
            f"{step}: block {name!r} is not known to run for all its iterators: {fault}", producer
        )


def partial_domain_fault(program: ScheduleProgram, realize: BlockRealize) -> str | None:
    """Return why a block may not run for every value of its iterators; None if it does."""
    loops = program.loops_above(realize)
    values = [v for v in realize.iter_values if not is_const(v)]
    iter_map = detect_iter_map(values, loop_ranges(loops), check_level=IterMapLevel.SURJECTIVE)
    if iter_map.errors:
        return iter_map.errors[0]
    analyzer = Analyzer()
    sums = iter(iter_map.indices)
    for iter_var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        low, size = value, const(1)
        if not is_const(value):
            total = next(sums)
            low, size = convert(total.base), num_iter_sum_values(total)
        if not analyzer.can_prove(low <= 0) or not can_prove_covers(
            low, size, iter_var.extent, analyzer
        ):
            return f"{iter_var.var.name!r} does not reach its end"
    return None


def _solve_consumer_iterators(
    step: str, consumer: BlockRealize, buffer: Buffer, store: BufferStore
) -> tuple[Mapping[Var, PrimExpr], PrimExpr]:
    """Return the consumer's iterators in terms of the producer's, and the condition under which the
    consumer has a point.
    """
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
    iter_map = detect_iter_map(first, iters, check_level=IterMapLevel.BIJECTIVE)
    if iter_map.errors:
        refuse(
            f"{step} {name!r}: it must read {buffer.name!r} once per element: {iter_map.errors[0]}",
            consumer,
        )
    analyzer = Analyzer()
    condition: PrimExpr = const(True)
    for total, index, dim in zip(iter_map.indices, store.indices, buffer.shape, strict=True):
        low, size = convert(total.base), num_iter_sum_values(total)
        if not analyzer.can_prove(low >= 0) or not analyzer.can_prove(low + size <= dim):
            refuse(f"{step} {name!r}: some of its points read nothing of {buffer.name!r}", consumer)
        if not analyzer.can_prove_equal(low, const(0)):
            condition = logical_and(condition, index >= low)
        if not analyzer.can_prove_equal(low + size, dim):
            condition = logical_and(condition, LT(index, low + size, "bool"))
    if all(isinstance(i, Var) or is_const(i) for i in first):
        values: dict[Var, PrimExpr] = {
            i: p for i, p in zip(first, store.indices, strict=True) if isinstance(i, Var)
        }
    else:
        values = dict(inverse_affine_iter_map(iter_map.indices, list(store.indices)))
    for iter_var in consumer.block.iter_vars:
        # Iterators of extent 1 occur in no digit of the map, so its inverse lacks them.
        values.setdefault(iter_var.var, const(0))
    return values, condition


def _same_indices(a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> bool:
    return all(is_same_expr(x, y) for x, y in zip(a, b, strict=True))
