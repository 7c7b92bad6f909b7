"""Cost of a quantised program beside its floats, by the cycles that metadata give its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MIN_SLOWDOWN = 1.1
"""Times as long from which a quantised kernel or program is reported: the model is not nearer than
that."""


def quantized_slowdown(calls: Iterable[Mapping[str, object]]) -> str:
    """Return a sentence where calls take longer than those of the float program by the model, since
    ranges and rounding do; "" where they do not.

    Args:
        calls: The metadata of the kernel of each call, of which "cycles" are read.
    """
    costs = [pair for call in calls if (pair := cycles_of(call.get("cycles"))) is not None]
    own, floats = (sum(cost[n] for cost in costs) for n in range(2))
    passes = sum(cost[0] for cost in costs if not cost[1])
    is_quantized = any(cost[1] and cost[0] != cost[1] for cost in costs)
    # Where products alone are slower, their kernels are reported.
    has_costly_passes = passes >= (MIN_SLOWDOWN - 1) * floats
    if not (is_quantized and has_costly_passes and own >= MIN_SLOWDOWN * floats):
        return ""
    return (
        f"the quantised program takes {own / floats:.1f} times as long as its floats by the model:"
        f" finding ranges and rounding takes {passes / own:.0%} of it; leave layers of few products"
        f" in floats, or quantise statically"
    )


def cycles_of(cycles: object) -> tuple[int, int] | None:
    """Return the cycles that metadata have of a kernel, if any."""
    if not isinstance(cycles, (list, tuple)):
        return None
    own, floats = cycles
    return int(own), int(floats)


__all__ = ["MIN_SLOWDOWN", "cycles_of", "quantized_slowdown"]
