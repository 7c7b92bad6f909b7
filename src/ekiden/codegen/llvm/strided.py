"""Vectors of elements a few places apart: neighbouring vectors, and shuffles that pick from them.

Nothing is read beyond the first and last element wanted: the last load ends there.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.codegen.llvm.builder import Builder, Operand
from ekiden.codegen.llvm.types import register_type
from ekiden.ir import dtype as dt

LONGEST = 4
"""Distance up to which neighbouring vectors are read; a gather is ahead from 5 on."""

Load = Callable[[int, Operand | None], Operand]
"""(offset from the first element wanted, mask or None) -> the vector that begins there."""


def is_near(stride: int, lanes: int) -> bool:
    """Whether a vector of every `stride`-th element is made here; -1 is a vector reversed."""
    return lanes >= 4 and (stride == -1 or 2 <= stride <= min(LONGEST, lanes))


def emit_strided(b: Builder, dtype: str, stride: int, mask: Operand | None, load: Load) -> Operand:
    """The elements at 0, stride, 2 * stride, ... from the first one; zero where the mask is off."""
    lanes = dt.lanes(dtype)
    if stride == -1:
        order = list(range(lanes))[::-1]
        bits = dt.with_lanes("bool", lanes)
        kept = None if mask is None else shuffle(b, bits, mask, None, order)
        return shuffle(b, dtype, load(1 - lanes, kept), None, order)
    found: Operand | None = None
    for begin, taken in _windows(stride, lanes):
        within = None if mask is None else _spread(b, mask, lanes, begin, stride, taken)
        part = load(begin, within)
        order = [
            lanes + i * stride - begin if i in taken and found is not None
            else i * stride - begin if i in taken
            else i if i < taken.start else -1
            for i in range(lanes)
        ]  # fmt: skip
        found = shuffle(b, dtype, part if found is None else found, found and part, order)
    assert found is not None
    return found


def _windows(stride: int, lanes: int) -> list[tuple[int, range]]:
    """(where a vector begins, which elements are taken from it) until all are."""
    last = stride * (lanes - 1) - (lanes - 1)
    found: list[tuple[int, range]] = []
    done = 0
    while done < lanes:
        begin = min(done * stride, last)
        end = (begin + lanes - 1) // stride + 1
        found.append((begin, range(done, min(end, lanes))))
        done = end
    return found


def _spread(
    b: Builder, mask: Operand, lanes: int, begin: int, stride: int, taken: range
) -> Operand:
    """The mask of a vector of neighbours: off where nothing is taken from."""
    places = {i * stride - begin: i for i in taken}
    bits = dt.with_lanes("bool", lanes)
    order = [places.get(lane, lanes) for lane in range(lanes)]
    return shuffle(b, bits, mask, "zeroinitializer", order)


def shuffle(b: Builder, dtype: str, one: Operand, two: Operand | None, order: list[int]) -> Operand:
    """Elements of two vectors by number; -1 is any."""
    kind = register_type(dtype)
    chosen = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in order)
    return b.pure(
        f"shufflevector {kind} {one}, {kind} {two or 'poison'}, <{len(order)} x i32> <{chosen}>"
    )
