"""How far results in float32 may be from exact ones: what the arithmetic allows, whatever the order
of sums (Higham, Accuracy and Stability of Numerical Algorithms, 3.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
UNIT = 2.0**-24
"""Half the distance from 1 to the next number: the relative error of one rounding."""
LEAST = 2.0**-149
"""The smallest number above 0: the absolute error of a result that is subnormal."""

# fmt: off
ULP: dict[str, tuple[float, float, float, float]] = {   # ulp in float32, in float64, range
    "exp":     (1.0, 1.5, -87.0, 88.0),
    "log":     (1.5, 1.5, 1e-30, 1e30),
    "sqrt":    (0.51, 0.51, 0.0, 1e30),
    "rsqrt":   (1.5, 1.5, 1e-30, 1e30),
    "tanh":    (2.5, 3.0, -12.0, 12.0),
    "sigmoid": (3.0, 3.5, -80.0, 80.0),
    "erf":     (6.0, 4.0, -5.0, 5.0),
    "sin":     (0.6, 1.5, -1e4, 1e4),
    "cos":     (0.6, 1.5, -1e4, 1e4),
}
# fmt: on
"""What our functions are held to (tests/codegen/test_math.py)."""


def gamma(roundings: int) -> float:
    """The relative error of a result that was rounded so often on its way."""
    return roundings * UNIT / (1 - roundings * UNIT)


def product(a: Array, b: Array) -> tuple[Array, Array]:
    """The exact product of matrices (or of stacks of them) of float32, but for float64's own
    rounding, and how far a float32 sum of its products may be from it: each product is rounded
    once, and passes as many sums as there are products.
    """
    left, right = a.astype(np.float64), b.astype(np.float64)
    depth = a.shape[-1]
    return left @ right, gamma(depth + 1) * (np.abs(left) @ np.abs(right)) + (depth + 1) * LEAST


def expect_within(actual: Array, wanted: Array, bound: Array | float) -> None:
    """Fail, naming the worst element, where a result is further from the exact one than allowed."""
    assert actual.shape == wanted.shape
    excess = np.abs(actual.astype(np.float64) - wanted) - bound
    if excess.size and not (excess <= 0).all():  # what is no number fails
        at = np.unravel_index(int(np.argmax(np.where(np.isnan(excess), np.inf, excess))),
                              excess.shape)  # fmt: skip
        allowed = np.broadcast_to(bound, excess.shape)[at]
        where = tuple(map(int, at))
        raise AssertionError(f"{actual[at]!r} at {where}: {wanted[at]!r} +- {allowed:.3g} expected")
