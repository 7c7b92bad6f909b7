"""Expressions that only loop programs have: loads and vectors."""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.node import Node, node
from ekiden.ir.prim import ExprLike, PrimExpr, Var, convert


@node("tir.Buffer")
class Buffer(Node):
    """A typed region of memory with a shape; identity tells two apart.

    scope: "global" (an argument, or a per-call workspace when allocated), "local" (small, on the
    stack), "register" (every index is constant after unrolling; becomes SSA values, never memory).
    strides: in elements, empty for row-major.
    """

    name: str
    shape: tuple[PrimExpr, ...]
    dtype: str = "float32"
    scope: str = "global"
    strides: tuple[PrimExpr, ...] = ()

    def __getitem__(self, indices: ExprLike | tuple[ExprLike, ...]) -> BufferLoad:
        many = indices if isinstance(indices, tuple) else (indices,)
        return BufferLoad(self, tuple(convert(i, "int64") for i in many), self.dtype)


@node("tir.BufferLoad")
class BufferLoad(PrimExpr):
    """An element; a vector if the last index is a Ramp (contiguous or strided) or another vector
    (gather).

    After flattening a buffer has one index. A buffer of vector dtype (register scope) gives a
    vector per element.
    """

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    dtype: str


@node("tir.Ramp")
class Ramp(PrimExpr):
    """The vector base, base + stride, ... of `lanes` elements."""

    base: PrimExpr
    stride: PrimExpr
    lanes: int
    dtype: str


@node("tir.Broadcast")
class Broadcast(PrimExpr):
    """`value` in every lane."""

    value: PrimExpr
    lanes: int
    dtype: str


@node("tir.Reduce")
class VectorReduce(PrimExpr):
    """Combine the lanes of a vector into a scalar; kind is "sum", "max", "min" or "prod"."""

    value: PrimExpr
    kind: str
    dtype: str


def ramp(base: PrimExpr, stride: ExprLike, lanes: int) -> PrimExpr:
    """A Ramp; the base itself for one lane."""
    return (
        base
        if lanes == 1
        else Ramp(base, convert(stride, base.dtype), lanes, dt.with_lanes(base.dtype, lanes))
    )


def broadcast(value: PrimExpr, lanes: int) -> PrimExpr:
    """A Broadcast; the value itself for one lane or if it already has the lanes."""
    if lanes == 1 or dt.lanes(value.dtype) == lanes:
        return value
    return Broadcast(value, lanes, dt.with_lanes(value.dtype, lanes))


__all__ = ["Broadcast", "Buffer", "BufferLoad", "Ramp", "Var", "VectorReduce", "broadcast", "ramp"]
