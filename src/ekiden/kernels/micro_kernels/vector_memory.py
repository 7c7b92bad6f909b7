"""Loads and stores of vectors of neighbouring elements, with masks for the lanes behind an end."""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import Cast, PrimExpr, const
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import BufferStore, Stmt


def load_vector(
    buffer: Buffer,
    at: PrimExpr,
    lanes: int,
    mask: PrimExpr | None = None,
    stride: PrimExpr | int = 1,
) -> PrimExpr:
    """Return a load of `lanes` elements, `stride` apart, 0 where the mask is off."""
    vector = BufferLoad(buffer, (ramp(at, stride, lanes),), dt.with_lanes(buffer.dtype, lanes))
    if mask is None:
        return vector
    # `if_then_else`, unlike Select, does not read lanes whose mask is off.
    return if_then_else(mask, vector, broadcast(const(0, buffer.dtype), lanes))


def load_as_float32(
    buffer: Buffer, at: PrimExpr, lanes: int, mask: PrimExpr | None = None
) -> PrimExpr:
    """Return a load of neighbouring elements as float32, 0 where the mask is off."""
    kind, load = dt.with_lanes("float32", lanes), load_vector(buffer, at, lanes)
    value = load if buffer.dtype == "float32" else Cast(load, kind)
    return value if mask is None else if_then_else(mask, value, broadcast(const(0.0), lanes))


class VectorMemory:
    """Base class of what is computed in vectors of `lanes` elements."""

    __slots__ = ()
    lanes: int

    def load(
        self,
        buffer: Buffer,
        at: PrimExpr,
        mask: PrimExpr | None = None,
        stride: PrimExpr | int = 1,
    ) -> PrimExpr:
        """Load a vector, 0 where the mask is off."""
        return load_vector(buffer, at, self.lanes, mask, stride)

    def store(
        self, buffer: Buffer, at: PrimExpr, value: PrimExpr, mask: PrimExpr | None = None
    ) -> Stmt:
        """Store a vector."""
        return BufferStore(buffer, value, (ramp(at, 1, self.lanes),), mask)

    def broadcast_scalar(self, value: PrimExpr | float) -> PrimExpr:
        """Broadcast a scalar to every lane."""
        number = value if isinstance(value, PrimExpr) else const(value, "float32")
        return broadcast(number, self.lanes)

    def lane_bounds_mask(self, first: PrimExpr, limit: PrimExpr) -> PrimExpr:
        """Return the mask of lanes whose index, counted from `first`, is below `limit`."""
        return ramp(first, 1, self.lanes) < broadcast(limit, self.lanes)


__all__ = ["VectorMemory", "load_as_float32", "load_vector"]
