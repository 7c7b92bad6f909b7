"""Compute int64 arithmetic between int32 vectors in even and odd halves (PMULDQ), as requantisation
needs.

    cast(cast(x, int64) * cast(y, int64) >> 31, int32)        of 8 lanes
    ->  even(x) * even(y) >> 31, odd(x) * odd(y) << 1         of 4 lanes of int64 each,
        whose lower and upper words in turn are the result

PMULDQ multiplies the even int32 elements of two vectors, so that neither widening nor narrowing
moves elements between lanes; LLVM widens contiguous halves, which takes cross-lane shuffles. A
product of operands that are not known to be sign-extended int32 takes three multiplications
instead of one.
"""

from __future__ import annotations

from collections.abc import Iterator

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, shuffle
from ekiden.ir.prim import Add, Cast, IntImm, Intrinsic, Mul, PrimExpr, Sub, const, fold_binary
from ekiden.tir.expr import Broadcast, broadcast

INT32_BITS = 32
"""Bits of an element."""
MAX_INT64_NODES = 24
"""Maximum number of int64 nodes examined; requantisation has fewer."""
SHIFT_OPS = frozenset(("left_shift", "right_shift"))


def split_even_odd(e: Cast) -> PrimExpr | None:
    """Rewrite an int32 vector of int64 arithmetic to even and odd halves (PMULDQ); return None for
    other arithmetic or without a product.
    """
    lanes = dt.lanes(e.dtype)
    if (
        dt.element_dtype(e.dtype) != "int32"
        or dt.element_dtype(e.value.dtype) != "int64"
        or lanes % 2
    ):
        return None
    nodes = list(_int64_nodes(e.value))
    if len(nodes) > MAX_INT64_NODES or not any(isinstance(n, Mul) for n in nodes):
        return None
    if not all(_is_leaf(n) or isinstance(n, (Add, Sub, Mul)) or _is_shift(n) for n in nodes):
        return None
    low, odd = _even_lower_words(_even_or_odd_lanes(e.value, 0)), _even_or_odd_lanes(e.value, 1)
    if any(isinstance(n, Mul) and (_is_uniform(n.a) or _is_uniform(n.b)) for n in nodes):
        # The odd results are in the even words of `odd`: lane i is its word i - 1.
        return shuffle(
            low, _even_lower_words(odd), [i + (lanes - 1) * (i % 2) for i in range(lanes)]
        )
    return shuffle(low, _odd_lower_words(odd), [i + lanes * (i % 2) for i in range(lanes)])


def _int64_nodes(root: PrimExpr) -> Iterator[PrimExpr]:
    """Yield the int64 nodes below an expression, at most MAX_INT64_NODES + 1 of them."""
    stack = [root]
    # One node above the limit tells the caller that the expression is too large.
    for _ in range(MAX_INT64_NODES + 1):
        if not stack:
            return
        e = stack.pop()
        yield e
        if isinstance(e, (Add, Sub, Mul)):
            stack += [e.a, e.b]
        elif isinstance(e, Intrinsic) and _is_shift(e):
            stack += e.args


def _is_shift(e: PrimExpr) -> bool:
    return isinstance(e, Intrinsic) and e.op in SHIFT_OPS


def _is_uniform(e: PrimExpr) -> bool:
    """Return whether all lanes hold the same value. LLVM would shift such a factor left for the
    whole product, and it would no longer be an int32.
    """
    return isinstance(e, Broadcast)


def _is_leaf(e: PrimExpr) -> bool:
    """Return whether an operand is uniform, or an int32 extended to int64."""
    return _is_uniform(e) or (isinstance(e, Cast) and dt.element_dtype(e.value.dtype) == "int32")


def _even_or_odd_lanes(e: PrimExpr, odd: int) -> PrimExpr:
    """Return the even or odd elements of an expression whose nodes `_int64_nodes` yields; recursion
    is bounded by MAX_INT64_NODES.
    """
    half = dt.lanes(e.dtype) // 2
    if isinstance(e, Broadcast):
        return broadcast(e.value, half)
    if isinstance(e, Cast):
        words = call_intrin("reinterpret", e.value, dtype=dt.with_lanes("int64", half))
        # The odd int32 is the upper half already; the even one moves there so that its sign
        # extends.
        moved = words if odd else _shift_halves("left_shift", words, INT32_BITS)
        return _shift_halves("right_shift", moved, INT32_BITS)
    if isinstance(e, (Add, Sub, Mul)):
        return fold_binary(type(e), _even_or_odd_lanes(e.a, odd), _even_or_odd_lanes(e.b, odd))
    assert isinstance(e, Intrinsic)
    return call_intrin(e.op, *(_even_or_odd_lanes(a, odd) for a in e.args))


def _shift_halves(op: str, e: PrimExpr, by: int) -> PrimExpr:
    if not by:
        return e
    return call_intrin(op, e, broadcast(const(by, dt.element_dtype(e.dtype)), dt.lanes(e.dtype)))


def _shift_distance(e: PrimExpr) -> int | None:
    """Return the constant right shift of all lanes if the remaining bits fit a word, else None."""
    if not (isinstance(e, Intrinsic) and e.op == "right_shift"):
        return None
    by = e.args[1].value if isinstance(e.args[1], Broadcast) else e.args[1]
    return by.value if isinstance(by, IntImm) and 0 <= by.value <= INT32_BITS else None


def _even_lower_words(e: PrimExpr) -> PrimExpr:
    """Return an int32 vector whose even elements are the lower words. The sign that is shifted in
    does not reach them, and few processors have an arithmetic int64 shift.
    """
    by = _shift_distance(e)
    if by is not None:
        assert isinstance(e, Intrinsic)
        bits = call_intrin("reinterpret", e.args[0], dtype=_unsigned(e.dtype))
        e = _shift_halves("right_shift", bits, by)
    return _as_int32_lanes(e)


def _odd_lower_words(e: PrimExpr) -> PrimExpr:
    """Return an int32 vector whose odd elements are the lower words."""
    by = _shift_distance(e)
    if by is None:
        # The odd lanes of the result are the upper words, so the lower word moves up.
        return _as_int32_lanes(_shift_halves("left_shift", e, INT32_BITS))
    assert isinstance(e, Intrinsic)
    # The result is bits `by` to `by` + 31: a left shift moves them to the upper word.
    return _as_int32_lanes(_shift_halves("left_shift", e.args[0], INT32_BITS - by))


def _unsigned(dtype: str) -> str:
    return dt.with_lanes("uint64", dt.lanes(dtype))


def _as_int32_lanes(e: PrimExpr) -> PrimExpr:
    return call_intrin("reinterpret", e, dtype=dt.with_lanes("int32", 2 * dt.lanes(e.dtype)))
