"""Vectors of elements at a small stride, loaded as neighbouring contiguous vectors and shuffled.

Nothing is read before the first or beyond the last element: the last load ends at it, since the
next bytes may be on an unmapped page.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.codegen.llvm.builder import FunctionBuilder, Operand
from ekiden.codegen.llvm.types import register_type
from ekiden.ir import dtype as dt

MAX_SHUFFLED_STRIDE = 4
"""Largest stride loaded as contiguous vectors and shuffled; from 5 on a gather is faster."""

LoadWindow = Callable[[int, Operand | None], Operand]
"""Function (offset from the first element, mask or None) -> contiguous vector."""


def is_shufflable(stride: int, lanes: int) -> bool:
    """Return whether a vector of every `stride`-th element is shuffled from contiguous loads; -1 is
    a reversed vector.
    """
    return lanes >= 4 and (stride == -1 or 2 <= stride <= min(MAX_SHUFFLED_STRIDE, lanes))


def emit_strided(
    b: FunctionBuilder, dtype: str, stride: int, mask: Operand | None, load: LoadWindow
) -> Operand:
    """Load the elements at 0, stride, 2 * stride, ...; zero where the mask is off."""
    lanes = dt.lanes(dtype)
    if stride == -1:
        order = list(range(lanes))[::-1]
        bits = dt.with_lanes("bool", lanes)
        # The load returns the lanes in the order of memory, so their mask is reversed too.
        reversed_mask = None if mask is None else emit_shuffle(b, bits, mask, None, order)
        return emit_shuffle(b, dtype, load(1 - lanes, reversed_mask), None, order)
    gathered: Operand | None = None
    for begin, lanes_taken in _contiguous_windows(stride, lanes):
        within = None if mask is None else _window_mask(b, mask, lanes, begin, stride, lanes_taken)
        window = load(begin, within)
        order = [
            lanes + i * stride - begin if i in lanes_taken and gathered is not None
            else i * stride - begin if i in lanes_taken
            else i if i < lanes_taken.start else -1
            for i in range(lanes)
        ]  # fmt: skip
        gathered = emit_shuffle(
            b, dtype, window if gathered is None else gathered, gathered and window, order
        )
    assert gathered is not None
    return gathered


def _contiguous_windows(stride: int, lanes: int) -> list[tuple[int, range]]:
    """Return the contiguous loads that cover a strided access: the offset of each, and the elements
    it provides.
    """
    # The last load ends at the last element: nothing beyond it is read.
    last = stride * (lanes - 1) - (lanes - 1)
    windows: list[tuple[int, range]] = []
    done = 0
    while done < lanes:
        begin = min(done * stride, last)
        end = (begin + lanes - 1) // stride + 1
        windows.append((begin, range(done, min(end, lanes))))
        done = end
    return windows


def _window_mask(
    b: FunctionBuilder, mask: Operand, lanes: int, begin: int, stride: int, lanes_taken: range
) -> Operand:
    """Return the mask of a contiguous load: off in lanes that provide no element."""
    element_of_lane = {i * stride - begin: i for i in lanes_taken}
    bits = dt.with_lanes("bool", lanes)
    # Index `lanes` is the first element of the second operand, which is zero: off.
    order = [element_of_lane.get(lane, lanes) for lane in range(lanes)]
    return emit_shuffle(b, bits, mask, "zeroinitializer", order)


def emit_shuffle(
    b: FunctionBuilder, dtype: str, one: Operand, two: Operand | None, order: list[int]
) -> Operand:
    """Select elements of two vectors by index. -1 is any."""
    kind = register_type(dtype)
    chosen = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in order)
    return b.pure(
        f"shufflevector {kind} {one}, {kind} {two or 'poison'}, <{len(order)} x i32> <{chosen}>"
    )
