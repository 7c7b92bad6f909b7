"""Neighbours in memory that a thread of a device accesses as one: how wide an access may be.

    out[i * 4 : +4] = a[i * 4 : +4]   ->   16 bytes at once, where memory begins at a multiple

That an index is a multiple is proven here. Where memory begins only a run knows: what is given to a
kernel may be a part of other memory, so kernels ask and go element by element there.
"""

from __future__ import annotations

from ekiden.arith import Analyzer
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, is_const
from ekiden.tir.expr import Buffer, Ramp

MOST_BYTES = 16
"""Of one access, and what memory begins at a multiple of for any to be."""


def near_bytes(buffer: Buffer, index: PrimExpr) -> int:
    """Bytes of each access of the neighbours at an index, of memory that begins at a multiple of
    MOST_BYTES: more than an element has; 0 where they must be taken one by one."""
    lanes, size = dt.lanes(index.dtype), dt.itemsize(buffer.dtype)
    if not isinstance(index, Ramp) or not is_const(index.stride, 1):
        return 0
    if dt.lanes(buffer.dtype) > 1 or buffer.dtype == "bool" or dt.is_small(buffer.dtype):
        return 0
    known = Analyzer().modular_set(index.base)
    found = MOST_BYTES
    while found > size and not (
        lanes * size % found == 0 and known.coeff * size % found == known.base * size % found == 0
    ):
        found //= 2
    return found if found > size else 0


__all__ = ["MOST_BYTES", "near_bytes"]
