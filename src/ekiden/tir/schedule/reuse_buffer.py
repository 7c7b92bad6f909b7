"""The primitive reuse_buffer: store an intermediate in its only reader's output.

    t[i] = A[i] + 1;  B[i] = t[i] * 2     reuse_buffer(t):     B[i] = A[i] + 1;  B[i] = B[i] * 2

The only reader must read of each element only the one at the index it writes, exactly once: a
second time it would read its own result.
"""

from __future__ import annotations

from ekiden.arith import injectivity_error
from ekiden.ir.prim import EQ, PrimExpr, Var, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.tir.expr import Buffer
from ekiden.tir.predicates import split_conjuncts
from ekiden.tir.reduction import is_same_expr
from ekiden.tir.schedule.cache import resolve_buffer
from ekiden.tir.schedule.legality import single_store
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    accesses_of_buffer,
    block_writes,
    determining_vars,
    loop_ranges,
    refuse,
    remove_allocation,
    replace_buffer,
)
from ekiden.tir.stmt import BlockRealize, BufferStore, PrimFunc


def reuse_buffer(
    program: ScheduleProgram, realize: BlockRealize, write_buffer_index: int | str | Buffer
) -> PrimFunc:
    """See `Schedule.reuse_buffer`."""
    step, name = "reuse_buffer", realize.block.name
    old = resolve_buffer(step, realize, write_buffer_index, block_writes(realize.block), "writes")
    if program.is_param(old):
        refuse(f"{step} {name!r}: {old.name!r} is an argument, which has memory", realize)
    writers = program.writers(old)
    readers = [x for x in program.readers(old) if x not in writers]
    if len(readers) != 1:
        names = [x.block.name for x in readers]
        refuse(f"{step} {name!r}: one block must read {old.name!r}, {names} do", realize)
    (reader,) = readers
    store = single_store(step, reader)
    new = store.buffer
    _require_same_element(step, reader, store, old)
    other_users = [x for x in (*program.writers(new), *program.readers(new)) if x is not reader]
    if other_users:
        refuse(
            f"{step} {name!r}: block {other_users[0].block.name!r} uses {new.name!r} too",
            other_users[0],
        )
    _require_single_run(step, program, reader)
    func = remove_allocation(program.func, old)
    return func.with_fields(body=replace_buffer(func.body, old, new))


def _require_same_element(step: str, reader: BlockRealize, store: BufferStore, old: Buffer) -> None:
    """Require that the reader reads only the element of the old buffer at the index it writes."""
    new = store.buffer
    if new.dtype != old.dtype or len(new.shape) != len(old.shape):
        refuse(
            f"{step}: {new.name!r} is {new.dtype} of {len(new.shape)} axes, {old.name!r} "
            f"{old.dtype} of {len(old.shape)}",
            reader,
        )
    extents = list(zip(old.shape, new.shape, strict=True))
    non_unit_axes = [
        not (is_const(a, 1) and is_const(b, 1)) for a, b in extents
    ]  # of one, all are at 0
    for access in accesses_of_buffer(reader.block.body, old):
        pairs = zip(access.indices, store.indices, non_unit_axes, strict=True)
        if not all(is_same_expr(a, b) for a, b, is_many in pairs if is_many):
            refuse(
                f"{step}: block {reader.block.name!r} reads {old.name!r} at another place than it "
                f"writes {new.name!r}",
                reader,
            )


def _require_single_run(step: str, program: ScheduleProgram, reader: BlockRealize) -> None:
    """Require that the reader runs once per point: a second time it would read its own result."""
    loops = program.loops_above(reader)
    fixed: set[Var] = set()
    for condition in split_conjuncts(reader.predicate):
        # A predicate `i == c` fixes a loop variable: the block runs in one of its iterations only.
        if isinstance(condition, EQ) and not free_vars(condition.b):
            fixed.update(v for v in free_vars(condition.a) if condition.a is v)
    loop_vars = {s.loop_var for s in loops if not is_const(s.extent, 1)} - fixed
    values: list[PrimExpr] = [v for v in reader.iter_values if not is_const(v)]
    fault = injectivity_error(values, loop_ranges(loops), determining_vars(loops, loop_vars))
    if fault is not None:
        refuse(
            f"{step}: block {reader.block.name!r} is not known to run once for each point: {fault}",
            reader,
        )


__all__ = ["reuse_buffer"]
