"""What threads of a warp hand each other from register to register.

    tvm_warp_shuffle_down(mask, x[0], 16, 32, 32)   ->   __shfl_down_sync(mask, x[0], 16, 32)

LowerIntrin has left words of 32 bits. Masks are words too, so that warps have 32 threads.
"""

from __future__ import annotations

from ekiden.ir.intrinsic import SHUFFLES, WARP, WHOLE_WARP
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

ACTIVE = "tvm_warp_activemask"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call: the threads that take part as bits, the value, the lane or how far away it is, how
    many neighbours exchange."""

    mask: PrimExpr
    value: PrimExpr
    lane: PrimExpr
    width: int


def is_exchange(e: PrimExpr) -> bool:
    """Whether an expression is what another thread has, or which threads there are."""
    return isinstance(e, Intrinsic) and (e.op in SHUFFLES or e.op == ACTIVE)


def operands_of(e: PrimExpr) -> tuple[PrimExpr, ...]:
    """What a call is given that is evaluated: sizes are not."""
    assert isinstance(e, Intrinsic)
    return e.args[:3]


def exchange_of(e: Intrinsic) -> Exchange:
    """What a call of SHUFFLES says. Raises CompileError for neighbours or warps that cannot be."""
    mask, value, lane, width, warp = e.args
    if not isinstance(warp, IntImm) or warp.value != WARP:
        raise CompileError(f"{e.op}: warps have {WARP} threads, got {warp}")
    powers = [1 << n for n in range(WARP.bit_length())]
    if not isinstance(width, IntImm) or width.value not in powers:
        listed = ", ".join(map(str, powers))
        raise CompileError(f"{e.op}: neighbours that exchange are {listed}, got {width}")
    return Exchange(mask, value, lane, width.value)


def takes_all(exchange: Exchange) -> bool:
    """Whether all threads that are there take part."""
    mask = exchange.mask
    if isinstance(mask, Intrinsic):
        return mask.op == ACTIVE
    return isinstance(mask, IntImm) and mask.value == WHOLE_WARP


__all__ = [
    "ACTIVE", "Exchange", "exchange_of", "is_exchange", "operands_of", "takes_all",
]  # fmt: skip
