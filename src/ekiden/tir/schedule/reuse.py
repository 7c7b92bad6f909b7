"""A primitive on memory: an intermediate that lives in what is made of it.

    t[i] = A[i] + 1;  B[i] = t[i] * 2     reuse_buffer(t):     B[i] = A[i] + 1;  B[i] = B[i] * 2

The one reader must take of each element only the one whose place it writes, once for each: a second
time it would read its own result.
"""

from __future__ import annotations

from ekiden.arith import determines
from ekiden.ir.prim import EQ, PrimExpr, Var, is_const
from ekiden.ir.prim_visitor import free_vars
from ekiden.tir.expr import Buffer
from ekiden.tir.predicates import conditions
from ekiden.tir.reduction import same_expr
from ekiden.tir.schedule.cache import pick_buffer
from ekiden.tir.schedule.check import single_store
from ekiden.tir.schedule.program import (
    Program,
    accesses,
    determining,
    ranges_of,
    refuse,
    replace_buffer,
    unallocated,
    written,
)
from ekiden.tir.stmt import BlockRealize, BufferStore, PrimFunc


def reuse_buffer(
    program: Program, realize: BlockRealize, write_buffer_index: int | str | Buffer
) -> PrimFunc:
    """See `Schedule.reuse_buffer`."""
    step, name = "reuse_buffer", realize.block.name
    old = pick_buffer(step, realize, write_buffer_index, written(realize.block), "writes")
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
    _require_same_place(step, reader, store, old)
    others = [x for x in (*program.writers(new), *program.readers(new)) if x is not reader]
    if others:
        refuse(f"{step} {name!r}: block {others[0].block.name!r} uses {new.name!r} too", others[0])
    _require_once(step, program, reader)
    func = unallocated(program.func, old)
    return func.with_fields(body=replace_buffer(func.body, old, new))


def _require_same_place(step: str, reader: BlockRealize, store: BufferStore, old: Buffer) -> None:
    """The reader takes of the old buffer the element alone whose place it writes."""
    new = store.buffer
    if new.dtype != old.dtype or len(new.shape) != len(old.shape):
        refuse(
            f"{step}: {new.name!r} is {new.dtype} of {len(new.shape)} axes, {old.name!r} "
            f"{old.dtype} of {len(old.shape)}",
            reader,
        )
    extents = list(zip(old.shape, new.shape, strict=True))
    many = [not (is_const(a, 1) and is_const(b, 1)) for a, b in extents]  # of one, all are at 0
    for access in accesses(reader.block.body, old):
        pairs = zip(access.indices, store.indices, many, strict=True)
        if not all(same_expr(a, b) for a, b, is_many in pairs if is_many):
            refuse(
                f"{step}: block {reader.block.name!r} reads {old.name!r} at another place than it "
                f"writes {new.name!r}",
                reader,
            )


def _require_once(step: str, program: Program, reader: BlockRealize) -> None:
    """The reader runs once for each of its points: the second time it would read its result."""
    loops = program.loops_above(reader)
    fixed: set[Var] = set()
    for each in conditions(reader.predicate):
        if isinstance(each, EQ) and not free_vars(each.b):
            fixed.update(v for v in free_vars(each.a) if each.a is v)
    wanted = {s.loop_var for s in loops if not is_const(s.extent, 1)} - fixed
    values: list[PrimExpr] = [v for v in reader.iter_values if not is_const(v)]
    fault = determines(values, ranges_of(loops), determining(loops, wanted))
    if fault is not None:
        refuse(
            f"{step}: block {reader.block.name!r} is not known to run once for each point: {fault}",
            reader,
        )


__all__ = ["reuse_buffer"]
