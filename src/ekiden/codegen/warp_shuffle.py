"""Warp shuffles: values that the threads of a warp exchange from register to register.

    tvm_warp_shuffle_down(mask, x[0], 16, 32, 32)   ->   __shfl_down_sync(mask, x[0], 16, 32)

LowerIntrin has left words of 32 bits. Masks are words too, so that warps have 32 threads.
"""

from __future__ import annotations

from ekiden.ir.intrinsic import FULL_WARP_MASK, WARP_SHUFFLES, WARP_SIZE
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

ACTIVE_MASK_OP = "tvm_warp_activemask"


@dataclass(frozen=True, slots=True)
class WarpShuffle:
    """Warp shuffle: the mask of participating threads, the value, the lane or its distance, and the
    width of a segment.
    """

    mask: PrimExpr
    value: PrimExpr
    lane: PrimExpr
    width: int


def is_warp_shuffle(e: PrimExpr) -> bool:
    """Return whether an expression is a warp shuffle or the mask of active threads."""
    return isinstance(e, Intrinsic) and (e.op in WARP_SHUFFLES or e.op == ACTIVE_MASK_OP)


def evaluated_operands(e: PrimExpr) -> tuple[PrimExpr, ...]:
    """Return the operands of a shuffle that are evaluated; sizes are constants."""
    assert isinstance(e, Intrinsic)
    return e.args[:3]


def parse_warp_shuffle(e: Intrinsic) -> WarpShuffle:
    """Return the shuffle that a call of WARP_SHUFFLES describes. Raises CompileError for an invalid
    segment width or warp size.
    """
    mask, value, lane, width, warp = e.args
    if not isinstance(warp, IntImm) or warp.value != WARP_SIZE:
        raise CompileError(f"{e.op}: warps have {WARP_SIZE} threads, got {warp}")
    powers = [1 << n for n in range(WARP_SIZE.bit_length())]
    if not isinstance(width, IntImm) or width.value not in powers:
        listed = ", ".join(map(str, powers))
        raise CompileError(f"{e.op}: neighbours that exchange are {listed}, got {width}")
    return WarpShuffle(mask, value, lane, width.value)


def is_full_warp(exchange: WarpShuffle) -> bool:
    """Return whether all active threads of the warp take part."""
    mask = exchange.mask
    if isinstance(mask, Intrinsic):
        return mask.op == ACTIVE_MASK_OP
    return isinstance(mask, IntImm) and mask.value == FULL_WARP_MASK


__all__ = [
    "ACTIVE_MASK_OP",
    "WarpShuffle",
    "evaluated_operands",
    "is_full_warp",
    "is_warp_shuffle",
    "parse_warp_shuffle",
]  # fmt: skip
