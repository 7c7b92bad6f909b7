"""How products of bytes are computed, four steps of k at a time: words of four neighbours.

    dot4_u8s8   acc + a0*b0 + a1*b1 + a2*b2 + a3*b3          one instruction, or shifts and products
    madd_s16    acc + (a0*b0 + a2*b2) + (a1*b1 + a3*b3)      two sums of two products of int16

Both are exact for all bytes: 255 * -128 twice is far from the end of int32. For the second the data
are widened once, in the order of the sums, so that a tile broadcasts pairs as they lie; weights
stay bytes, an eighth of what data of a tile read, and are widened by shifts where they are loaded.
Without the first a product of words took 28 operations, the second takes 4.
"""

from __future__ import annotations

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Cast, PrimExpr, Var, const
from ekiden.target import Target
from ekiden.tir.expr import Buffer, broadcast, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, Stmt
from ekiden.topi.nn.weights import WORD
from ekiden.topi.rule.decision import Choice, Decision, Space
from ekiden.topi.rule.tiles import span

DOT4, MADD = "dot4_u8s8", "madd_s16"
EVEN = 0x00FF00FF
"""The bytes 0 and 2 of a word."""
GRAIN = 1 << 14
"""Bytes from which a thread of its own is worth having: widening them takes about as long as
calling one."""


def dots(target: Target) -> tuple[str, ...]:
    """How a target can multiply words of bytes, the best first: the first way there always is, if
    not as an instruction."""
    if not target.has(MADD):
        return (DOT4,)
    return (DOT4, MADD) if target.has(DOT4) else (MADD, DOT4)


def dot_space(weight: te.Tensor, target: Target) -> Space:
    """The choice of a kernel whose weight may be of bytes."""
    if weight.dtype != "int8":
        return ()
    return (Choice("dot", dots(target), "how words of four bytes are multiplied"),)


def pairs_of(data: Buffer, decision: Decision) -> Buffer | None:
    """Where data are widened to, if they are: the same elements, but of each word the first and the
    third come first."""
    if decision.get("dot") != MADD:
        return None
    return Buffer("pairs", data.shape, "int16")


def widen(data: Buffer, pairs: Buffer, rows: PrimExpr, length: PrimExpr, lanes: int) -> Stmt:
    """Copy bytes to `pairs`; rows of `length`, which words divide, in parallel."""
    row, words = Var("row"), simplify(length // WORD)

    def body(at: PrimExpr, many: int) -> Stmt:
        first = (row * words + at) * WORD
        wide = f"int64x{many}" if many > 1 else "int64"
        word = f"int32x{many}" if many > 1 else "int32"

        def number(value: int) -> PrimExpr:
            return broadcast(const(value, "int64"), many) if many > 1 else const(value, "int64")

        load = data[ramp(first, 1, WORD * many)].with_fields(dtype=f"uint8x{WORD * many}")
        value = Cast(call_intrin("reinterpret", load, dtype=word), wide)
        even = call_intrin("bitwise_and", value, number(EVEN), dtype=wide)
        odd = call_intrin("right_shift", value, number(8), dtype=wide)
        odd = call_intrin("bitwise_and", odd, number(EVEN), dtype=wide)
        odd = call_intrin("left_shift", odd, number(32), dtype=wide)
        both = call_intrin("bitwise_or", even, odd, dtype=wide)
        made = call_intrin("reinterpret", both, dtype=f"int16x{WORD * many}")
        return BufferStore(pairs, made, (ramp(first, 1, WORD * many),))

    inside = span(words, lanes, body)
    grain = max(1, GRAIN // size) if (size := _known(length)) else 1
    return For(row, const(0), rows, ForKind.PARALLEL, inside, {"grain": grain})


def _known(length: PrimExpr) -> int:
    value = getattr(length, "value", 0)
    return value if isinstance(value, int) else 0


__all__ = ["DOT4", "MADD", "dot_space", "dots", "pairs_of", "widen"]
