"""Random scheduling decisions: tile sizes, categorical choices, compute locations."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from ekiden.ir.prim import IntImm, Var
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.schedule.compute_at import compute_at
from ekiden.tir.schedule.inline import compute_inline
from ekiden.tir.schedule.program import RefusedError, ScheduleProgram, block_writes, refuse
from ekiden.tir.stmt import BlockRealize, For

ROOT, INLINE = -1, -2
"""ROOT: compute location: in place, at the block's own loops. INLINE: compute location: inlined
into the readers.
"""


def sample_perfect_tile(
    loop: For,
    n: int,
    max_innermost_factor: int,
    decision: Sequence[int] | None,
    source: random.Random,
) -> list[int]:
    """Return n factors whose product is the extent, the last at most `max_innermost_factor`."""
    name = loop.loop_var.name
    if not isinstance(loop.extent, IntImm) or loop.extent.value < 1:
        refuse(f"sample_perfect_tile {name!r}: the extent must be a positive constant", loop)
    extent = int(loop.extent.value)
    if n < 1:
        refuse(f"sample_perfect_tile {name!r}: expected at least one factor, got {n}", loop)
    if decision is not None:
        return _adapt_decision(extent, n, [int(d) for d in decision], name, loop)
    return _sample_factors(extent, n, max_innermost_factor, source)


def _adapt_decision(extent: int, n: int, decision: list[int], name: str, loop: For) -> list[int]:
    """Return a decision adapted to this extent: a replay on another size keeps the inner factors
    that divide it.
    """
    if len(decision) != n or any(d < 1 for d in decision):
        refuse(f"sample_perfect_tile {name!r}: expected {n} positive factors, got {decision}", loop)
    factors: list[int] = []
    remaining = extent
    # Inner factors first: the outermost takes what is left.
    for wanted_factor in reversed(decision[1:]):
        factor = wanted_factor if remaining % wanted_factor == 0 else 1
        factors.append(factor)
        remaining //= factor
    return [remaining, *reversed(factors)]


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _sample_factors(extent: int, n: int, limit: int, source: random.Random) -> list[int]:
    """Return random factors: each prime factor goes to a random position; the last is at most the
    limit.
    """
    if n == 1:
        return [extent]
    last = source.choice([d for d in _divisors(extent) if d <= max(limit, 1)])
    factors = [1] * (n - 1) + [last]
    remaining, prime = extent // last, 2
    while remaining > 1:
        while remaining % prime == 0:
            factors[source.randrange(n - 1)] *= prime
            remaining //= prime
        # Beyond the square root the remainder is prime itself: trial division jumps to it.
        prime += 1 if prime * prime <= remaining else max(remaining - prime, 1)
    return factors


def sample_partitioned_tile(
    loop: For,
    n: int,
    partition_pos: int,
    innerpart_factor: int,
    decision: Sequence[int] | None,
    source: random.Random,
) -> list[int]:
    """Return n factors whose product is the extent; `innerpart_factor` divides the product of those
    from `partition_pos` on.
    """
    name = f"sample_partitioned_tile {loop.loop_var.name!r}"
    if not isinstance(loop.extent, IntImm) or loop.extent.value < 1:
        refuse(f"{name}: the extent must be a positive constant", loop)
    extent = int(loop.extent.value)
    if not 0 <= partition_pos < n:
        refuse(f"{name}: a place below {n} expected, got {partition_pos}", loop)
    if innerpart_factor < 1 or extent % innerpart_factor:
        refuse(f"{name}: {innerpart_factor} does not divide the extent {extent}", loop)
    if decision is not None:
        given_factors = [int(d) for d in decision]
        fits = (
            len(given_factors) == n
            and min(given_factors) > 0
            and math.prod(given_factors) == extent
        )
        if not fits or math.prod(given_factors[partition_pos:]) % innerpart_factor:
            refuse(f"{name}: {given_factors} does not fit", loop)
        return given_factors
    outer_extent = extent // innerpart_factor
    factors = _sample_factors(outer_extent, n, outer_extent, source)
    inner = _sample_factors(innerpart_factor, n - partition_pos, innerpart_factor, source)
    later = [a * b for a, b in zip(factors[partition_pos:], inner, strict=True)]
    return [*factors[:partition_pos], *later]


def sample_categorical(
    candidates: Sequence[int],
    probs: Sequence[float],
    decision: int | None,
    source: random.Random,
) -> tuple[int, int]:
    """Return (index, value) of a candidate. Raises ScheduleError unless there is one probability
    per candidate and the decision is one of them.
    """
    if len(candidates) != len(probs) or not candidates:
        raise ScheduleError(
            f"sample_categorical: expected as many probabilities as candidates, got {len(probs)} "
            f"for {len(candidates)}"
        )
    if decision is None:
        decision = source.choices(range(len(candidates)), list(probs))[0]
    if not 0 <= decision < len(candidates):
        raise ScheduleError(
            f"sample_categorical: there is no candidate {decision} of {len(candidates)}"
        )
    return decision, candidates[decision]


def possible_compute_locations(program: ScheduleProgram, realize: BlockRealize) -> list[Var | int]:
    """Return where a block can be computed: in place, inlined in its readers, or at a loop of its
    first reader.
    """
    locations: list[Var | int] = [ROOT]
    if _is_accepted(partial(compute_inline, program, realize)):
        locations.append(INLINE)
    readers = [
        r for b in block_writes(realize.block) for r in program.readers(b) if r is not realize
    ]
    if not readers:
        return locations
    locations.extend(
        loop.loop_var
        for loop in program.loops_above(readers[0])
        if _is_accepted(partial(compute_at, program, realize, loop))
    )
    return locations


def _is_accepted(step: Callable[[], object]) -> bool:
    """Return whether a primitive is accepted: run it and discard the result."""
    try:
        # A dry run: primitives return a new function and change nothing, so the result can be
        # dropped.
        step()
    except RefusedError:
        return False
    return True


def sample_compute_location(
    program: ScheduleProgram, realize: BlockRealize, decision: int | None, source: random.Random
) -> tuple[int, Var | int]:
    """Return (index of the loop of the first reader from outside, or ROOT or INLINE; the
    location).
    """
    locations = possible_compute_locations(program, realize)
    numbered: dict[int, Var | int] = {}
    readers = [
        r for b in block_writes(realize.block) for r in program.readers(b) if r is not realize
    ]
    order = [s.loop_var for s in program.loops_above(readers[0])] if readers else []
    for location in locations:
        numbered[location if isinstance(location, int) else order.index(location)] = location
    if decision is None:
        decision = source.choice(sorted(numbered))
    if decision not in numbered:
        refuse(
            f"sample_compute_location {realize.block.name!r}: place {decision} is not one of "
            f"{sorted(numbered)}",
            realize,
        )
    return decision, numbered[decision]
