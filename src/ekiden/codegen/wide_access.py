"""Vectorised contiguous accesses of device kernels, up to 16 bytes: how wide each may be.

    out[i * 4 : +4] = a[i * 4 : +4]   ->   16 bytes at once, where memory begins at a multiple

That an index is a multiple is proven here, once for all languages that kernels are written in
(`device.wide_access`, `llvm.wide_access`). Where memory begins only a run knows: an argument of a
kernel may be a part of other memory, so kernels test its address and fall back to scalars.
"""

from __future__ import annotations

from ekiden.arith import Analyzer
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, is_const
from ekiden.tir.expr import Buffer, Ramp

MAX_ACCESS_BYTES = 16
"""Maximum width of one access in bytes, and the alignment that it requires."""
SHARED_SCOPE = "shared"
"""Scope of block-shared memory, which is sufficiently aligned."""


def vector_access_bytes(buffer: Buffer, index: PrimExpr, is_argument: bool) -> int:
    """Return the width in bytes of a vectorised access to contiguous elements, at most
    MAX_ACCESS_BYTES; 0 where elements are accessed one by one, as in buffers that neither are
    kernel arguments nor shared by a block.
    """
    lanes, size = dt.lanes(index.dtype), dt.itemsize(buffer.dtype)
    if not (is_argument or buffer.scope == SHARED_SCOPE):
        return 0
    if not isinstance(index, Ramp) or not is_const(index.stride, 1):
        return 0
    if dt.lanes(buffer.dtype) > 1 or buffer.dtype == "bool" or dt.is_byte_stored(buffer.dtype):
        return 0
    residue = Analyzer().modular_set(index.base)
    width = MAX_ACCESS_BYTES
    # The number of bytes and the base must be multiples: unaligned wide accesses fault.
    while width > size and not (
        lanes * size % width == 0
        and residue.coeff * size % width == residue.base * size % width == 0
    ):
        width //= 2
    return width if width > size else 0


__all__ = ["MAX_ACCESS_BYTES", "SHARED_SCOPE", "vector_access_bytes"]
