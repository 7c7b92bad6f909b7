"""Give a function its numbers in tensors of no dimension: what callers hold whose values are all
tensors, as Relay's are.

    def f(n: int64, A: Buffer((n,))):       def f(n_given: Buffer(()), A: Buffer((m,))):
        body                            ->      assert n_given[()] == m
                                                n = n_given[()]
                                                body

A size that is a number's too becomes a size of its own, which must equal the number.
"""

from __future__ import annotations

from ekiden.ir.prim import EQ, PrimExpr, SizeVar, Var, binary, cast
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import AssertStmt, LetStmt, PrimFunc, seq
from ekiden.tir.visitor import rename


def numbers_as_tensors(func: PrimFunc) -> PrimFunc:
    """A function whose parameters are all buffers; itself where they are."""
    if not func.scalars:
        return func
    held = {v: Buffer(v.name, (), v.dtype) for v in func.scalars}
    in_shapes = set(free_vars(*(size for b in func.buffers for size in b.sizes())))
    sizes: dict[Var, PrimExpr] = {v: SizeVar(v.name, v.dtype) for v in held if v in in_shapes}
    buffers = {b: _resized(b, sizes) for b in func.buffers}
    body = rename(func.body, {}, buffers)
    for number, buffer in held.items():
        value = BufferLoad(buffer, (), number.dtype)
        body = LetStmt(number, value, body)
        if number in sizes:
            size = sizes[number]
            what = f"{func.name}: {number.name} is {{}}, and the dimension of that name {{}}"
            shown = cast(value, "int64"), cast(size, "int64")
            body = seq(AssertStmt(binary(EQ, value, size), what, "ValueError", shown), body)
    params = tuple(held[p] if isinstance(p, Var) else buffers[p] for p in func.params)
    return func.with_fields(params=params, body=body)


def _resized(buffer: Buffer, sizes: dict[Var, PrimExpr]) -> Buffer:
    def new(e: PrimExpr) -> PrimExpr:
        return substitute(e, sizes)

    if not any(v in sizes for v in free_vars(*buffer.sizes())):
        return buffer
    return buffer.with_fields(
        shape=tuple(map(new, buffer.shape)),
        strides=tuple(map(new, buffer.strides)),
        elem_offset=None if buffer.elem_offset is None else new(buffer.elem_offset),
    )


__all__ = ["numbers_as_tensors"]
