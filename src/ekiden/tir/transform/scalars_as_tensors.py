"""Conversion of scalar parameters to zero-dimensional tensors, for callers such as Relay that pass
tensors only.

    def f(n: int64, A: Buffer((n,))):       def f(n_given: Buffer(()), A: Buffer((m,))):
        body                            ->      assert n_given[()] == m
                                                n = n_given[()]
                                                body

A size that is also a scalar parameter becomes a size variable of its own, which must equal the
scalar.
"""

from __future__ import annotations

from ekiden.ir.prim import EQ, PrimExpr, SizeVar, Var, cast, fold_binary
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import AssertStmt, LetStmt, PrimFunc, seq
from ekiden.tir.visitor import rename


def numbers_as_tensors(func: PrimFunc) -> PrimFunc:
    """Return a function whose parameters are all buffers; the function itself if they already
    are.
    """
    if not func.scalars:
        return func
    scalar_buffers = {v: Buffer(v.name, (), v.dtype) for v in func.scalars}
    in_shapes = set(free_vars(*(size for b in func.buffers for size in b.sizes())))
    # Sizes are bound from shapes at entry, before any statement can load the scalar.
    sizes: dict[Var, PrimExpr] = {
        v: SizeVar(v.name, v.dtype) for v in scalar_buffers if v in in_shapes
    }
    buffers = {b: _substitute_sizes(b, sizes) for b in func.buffers}
    body = rename(func.body, {}, buffers)
    for number, buffer in scalar_buffers.items():
        value = BufferLoad(buffer, (), number.dtype)
        body = LetStmt(number, value, body)
        if number in sizes:
            size = sizes[number]
            message = f"{func.name}: {number.name} is {{}}, and the dimension of that name {{}}"
            shown = cast(value, "int64"), cast(size, "int64")
            body = seq(AssertStmt(fold_binary(EQ, value, size), message, "ValueError", shown), body)
    params = tuple(scalar_buffers[p] if isinstance(p, Var) else buffers[p] for p in func.params)
    return func.with_fields(params=params, body=body)


def _substitute_sizes(buffer: Buffer, sizes: dict[Var, PrimExpr]) -> Buffer:
    def substitute_size(e: PrimExpr) -> PrimExpr:
        return substitute(e, sizes)

    if not any(v in sizes for v in free_vars(*buffer.sizes())):
        return buffer
    return buffer.with_fields(
        shape=tuple(map(substitute_size, buffer.shape)),
        strides=tuple(map(substitute_size, buffer.strides)),
        elem_offset=None if buffer.elem_offset is None else substitute_size(buffer.elem_offset),
    )


__all__ = ["numbers_as_tensors"]
