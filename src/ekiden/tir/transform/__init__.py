"""Lowering: from a scheduled PrimFunc to the form that code generators take.

That form has no blocks, no vectorized or unrolled loops; every access has one flat index (a Ramp or
a vector of offsets for vector accesses); operands agree in dtype; indices of register buffers are
constants.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.transform.compact_buffers import compact_buffers
from ekiden.tir.transform.flatten_buffers import flat_index, flatten_buffers
from ekiden.tir.transform.hoist_invariants import hoist_invariants
from ekiden.tir.transform.lower_blocks import lower_blocks
from ekiden.tir.transform.simplify import simplify
from ekiden.tir.transform.unroll_loops import unroll_loops
from ekiden.tir.transform.vectorize_loops import vectorize_loops

PASSES: list[Callable[[PrimFunc], PrimFunc]] = [
    lower_blocks,
    compact_buffers,
    unroll_loops,  # before vectors: a loop over registers leaves constant indices
    flatten_buffers,  # simplifies everything on the way
    vectorize_loops,  # and this what it makes
    hoist_invariants,  # last: simplifying would undo its grouping
]


TILED_PASSES: list[Callable[[PrimFunc], PrimFunc]] = [
    flatten_buffers,
]
"""For functions with the attribute "tir.tiled": register tiles are written unrolled and in vectors,
with their addresses grouped; hoisting would only raise the number of live values (2 % slower, twice
the compile time).
"""


def lower(func: PrimFunc, target: Target | None = None) -> PrimFunc:
    """Run PASSES (or TILED_PASSES) in order.

    `target` is for passes that need its facts; none does yet.
    """
    for each in TILED_PASSES if (func.attrs or {}).get("tir.tiled") else PASSES:
        func = each(func)
    return func


__all__ = [
    "PASSES",
    "TILED_PASSES",
    "compact_buffers",
    "flat_index",
    "flatten_buffers",
    "hoist_invariants",
    "lower",
    "lower_blocks",
    "simplify",
    "unroll_loops",
    "vectorize_loops",
]
