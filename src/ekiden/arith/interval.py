"""Interval arithmetic over the extended integers.

Finite ends stay Python's whole numbers, which have any size: a bound that was rounded would prove
what does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

Bound: TypeAlias = float
"""Integer, or plus or minus infinity."""
Interval: TypeAlias = tuple[Bound, Bound]
UNBOUNDED_INTERVAL: Interval = (-math.inf, math.inf)


def multiply_bounds(a: Bound, b: Bound) -> Bound:
    """Return a * b with 0 * inf = 0: an empty term contributes nothing (IEEE's NaN would make every
    bound unknown).
    """
    return 0 if a == 0 or b == 0 else a * b


def multiply_intervals(x: Interval, y: Interval) -> Interval:
    """Return the interval of a product, from the corners of the box."""
    if x[0] == x[1] and type(x[0]) is int:  # a coefficient, as most factors are
        scale = x[0]
        if not scale:
            return 0, 0
        # 0 times an infinity does not occur: the scale is no 0. In order also where y is that of a
        # loop without a step, whose ends are not.
        ends = scale * y[0], scale * y[1]
        return ends if ends[0] <= ends[1] else (ends[1], ends[0])
    corners = [multiply_bounds(a, b) for a in x for b in y]
    return min(corners), max(corners)


def divide_intervals(a: Interval, b: Interval, divide: Callable[[Bound, Bound], Bound]) -> Interval:
    """Return the interval of a quotient whose divisor is non-zero and may be negative."""
    # x / d is monotonic in x, and in d on either side of 0: the extremes are at the ends of x and
    # at the ends of d or the divisors nearest to 0, -1 and 1.
    (low, high), (smallest, largest) = a, b
    if any(map(math.isinf, (low, high, smallest, largest))):
        return UNBOUNDED_INTERVAL
    divisors = [d for d in (smallest, largest) if d]
    divisors += [d for d in (-1, 1) if smallest <= d <= largest]
    ends = [divide(x, d) for x in (low, high) for d in divisors]
    return (min(ends), max(ends)) if ends else UNBOUNDED_INTERVAL


def truncmod_interval(a: Interval, b: Interval) -> Interval:
    """Return the interval of a - truncdiv(a, b) * b: below |b|, with the sign of a."""
    largest = max(abs(b[0]), abs(b[1])) - 1
    return (-min(largest, -a[0]) if a[0] < 0 else 0), (min(largest, a[1]) if a[1] > 0 else 0)


def floordiv_bound(value: Bound, divisor: Bound) -> Bound:
    """Divide a bound, rounding down; infinite bounds stay infinite. The divisor is finite and not
    0.
    """
    return value if math.isinf(value) else value // divisor
