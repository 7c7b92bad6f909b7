"""Specialisation of functions to given sizes and scalars: `func.specialize({n: 16, A:
tir.decl_buffer((16, 8))})`.

    def f(n: int32, A: Buffer((n, m))): for i in range(n): ..
    ->  def f(A: Buffer((16, 8))): for i in range(16): ..      with n = 16, m = 8
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.arith import prove_equal, simplify
from ekiden.ir.prim import ExprLike, PrimExpr, Var, cast, convert
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.visitor import rename


def specialized(func: PrimFunc, param_map: Mapping[Buffer | Var, Buffer | ExprLike]) -> PrimFunc:
    """Return the function for given values of its scalars and sizes, and layouts of its buffers.

    A key is a scalar parameter (which is then removed), a variable of a buffer's sizes, or a
    buffer, whose value is a buffer of the wanted sizes. Raises ValueError for an unknown key,
    another dtype or rank, and sizes that differ from constant ones.
    """
    values: dict[Var, PrimExpr] = {}
    substitutable = {*func.scalars, *(v for b in func.buffers for v in free_vars(*b.sizes()))}
    for key, value in param_map.items():
        if isinstance(key, Buffer) and isinstance(value, Buffer):
            _match_buffer_shape(func, key, value, values)
        elif isinstance(key, Var) and key in substitutable and not isinstance(value, Buffer):
            values[key] = cast(convert(value, key.dtype), key.dtype)
        else:
            raise ValueError(f"specialize {func.name!r}: it has no {key!r} that {value!r} fits")
    buffers = {b: _specialize_buffer(b, values) for b in func.buffers}
    params = (buffers[p] if isinstance(p, Buffer) else p for p in func.params)
    body = rename(func.body, values, buffers)
    return func.with_fields(params=tuple(p for p in params if p not in values), body=body)


def _match_buffer_shape(
    func: PrimFunc, param_buffer: Buffer, target: Buffer, values: dict[Var, PrimExpr]
) -> None:
    """Record the values of a parameter's size variables in a target buffer."""
    subject = f"specialize {func.name!r}: buffer {param_buffer.name!r}"
    if param_buffer not in func.buffers:
        raise ValueError(f"{subject} is no parameter")
    if param_buffer.dtype != target.dtype or len(param_buffer.shape) != len(target.shape):
        raise ValueError(f"{subject} is of {param_buffer.dtype} and {len(param_buffer.shape)} axes")
    pairs = list(zip(param_buffer.shape, target.shape, strict=True))
    pairs += zip(param_buffer.strides, target.strides, strict=False)
    if param_buffer.elem_offset is not None and target.elem_offset is not None:
        pairs.append((param_buffer.elem_offset, target.elem_offset))
    for a, b in pairs:
        if isinstance(a, Var) and a not in values:
            values[a] = cast(convert(b, a.dtype), a.dtype)
        elif not prove_equal(substitute(a, values), b):
            raise ValueError(f"{subject} has the size {a}, not {b}")


def _specialize_buffer(buffer: Buffer, values: dict[Var, PrimExpr]) -> Buffer:
    if values.keys().isdisjoint(free_vars(*buffer.sizes())):
        return buffer

    def substitute_size(e: PrimExpr) -> PrimExpr:
        return simplify(substitute(e, values))

    return buffer.with_fields(
        shape=tuple(map(substitute_size, buffer.shape)),
        strides=tuple(map(substitute_size, buffer.strides)),
        elem_offset=None if buffer.elem_offset is None else substitute_size(buffer.elem_offset),
    )


PrimFunc.specializer = staticmethod(specialized)

__all__ = ["specialized"]
