"""The primitive unsafe_set_dtype: store an intermediate in another dtype. It is TVM's only
primitive that changes results: values are rounded to the dtype where they are stored.

    b = alloc(n, "float32")             b = alloc(n, "float16")
    b[i] = a[i] * 2.0             ->    b[i] = float16(a[i] * 2.0)
    c[i] = b[i] + 1.0                   c[i] = float32(b[i]) + 1.0
"""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, cast
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.schedule.cache import resolve_buffer
from ekiden.tir.schedule.program import ScheduleProgram, block_writes, refuse
from ekiden.tir.stmt import BlockRealize, BufferStore, PrimFunc, Stmt
from ekiden.tir.visitor import ExprRewriter

SET_DTYPE_PRIMITIVE = "unsafe_set_dtype"


class _DtypeRewriter(ExprRewriter):
    def __init__(self, old: Buffer, new: Buffer) -> None:
        super().__init__(self._cast_load)
        self._old, self._new = old, new

    def _cast_load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer is self._old:
            return cast(BufferLoad(self._new, e.indices), e.dtype)
        if isinstance(e, BufferAddress) and e.buffer is self._old:
            refuse(
                f"{SET_DTYPE_PRIMITIVE} of {self._old.name!r}: it is handed to a call, which knows "
                "its dtype"
            )
        return e

    def rewrite_buffer(self, buffer: Buffer) -> Buffer:
        return self._new if buffer is self._old else buffer

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite old[i] = v to new[i] = cast(v)."""
        if stmt.buffer is not self._old:
            return super().visit_store(stmt)
        value = self.rewrite_expr(stmt.value)
        kind = dt.with_lanes(self._new.dtype, dt.lanes_suffix(value.dtype))
        indices = self.exprs(stmt.indices)
        predicate = None if stmt.predicate is None else self.rewrite_expr(stmt.predicate)
        return BufferStore(self._new, cast(value, kind), indices, predicate)


def unsafe_set_dtype(
    program: ScheduleProgram, realize: BlockRealize, buffer_index: int | str | Buffer, dtype: str
) -> PrimFunc:
    """See `Schedule.unsafe_set_dtype`."""
    name = realize.block.name
    old = resolve_buffer(
        SET_DTYPE_PRIMITIVE, realize, buffer_index, block_writes(realize.block), "writes"
    )
    if program.is_param(old):
        refuse(f"{SET_DTYPE_PRIMITIVE} {name!r}: {old.name!r} is an output", realize)
    if dtype not in dt.SCALAR_BITS or dtype == "handle":
        refuse(
            f"{SET_DTYPE_PRIMITIVE} {name!r}: expected a dtype such as float16, got {dtype!r}",
            realize,
        )
    if old.dtype == dtype:
        return program.func
    retyped = _DtypeRewriter(old, old.with_fields(dtype=dtype))
    return program.func.with_fields(body=retyped.visit(program.func.body))
