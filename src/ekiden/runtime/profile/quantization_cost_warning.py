"""Predicted slowdown of a quantised program over its float form, from the cycles in kernel
metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MIN_SLOWDOWN = 1.1
"""Times as long from which a quantised kernel or program is reported: the model is not nearer than
that."""


def quantized_slowdown_warning(calls: Iterable[Mapping[str, object]]) -> str:
    """Return a warning if the cost model predicts the quantised calls to be slower than their float
    form, because of range and rounding work; else "".

    Args:
        calls: The metadata of the kernel of each call, of which "cycles" are read.
    """
    costs = [
        pair for call in calls if (pair := parse_kernel_cycles(call.get("cycles"))) is not None
    ]
    int8_cycles, floats = (sum(cost[n] for cost in costs) for n in range(2))
    passes = sum(cost[0] for cost in costs if not cost[1])
    is_quantized = any(cost[1] and cost[0] != cost[1] for cost in costs)
    # Where products alone are slower, their kernels are reported.
    has_costly_passes = passes >= (MIN_SLOWDOWN - 1) * floats
    if not (is_quantized and has_costly_passes and int8_cycles >= MIN_SLOWDOWN * floats):
        return ""
    return (
        f"the quantised program takes {int8_cycles / floats:.1f} times as long as its floats by "
        f"the model: finding ranges and rounding takes {passes / int8_cycles:.0%} of it; leave "
        f"layers of few products in floats, or quantise statically"
    )


def parse_kernel_cycles(cycles: object) -> tuple[int, int] | None:
    """Return the predicted cycles in a kernel's metadata; None if there are none."""
    if not isinstance(cycles, (list, tuple)):
        return None
    int8_cycles, floats = cycles
    return int(int8_cycles), int(floats)


__all__ = ["MIN_SLOWDOWN", "parse_kernel_cycles", "quantized_slowdown_warning"]
