#!/usr/bin/env python3
"""Fit the polynomials of `codegen/llvm/math_*.py`, and print the errors of those in the tree.

    scripts/fit_polynomials.py          relative error of each polynomial, as a power of two
    scripts/fit_polynomials.py --fit    new coefficients too, constant term first

The fit is minimax: Remez's exchange, weighted so that the relative error of the whole function is
equal at all extrema (Muller, "Elementary Functions", chapter 3). mpmath computes with 50 digits;
coefficients are rounded to float64 at the end. The coefficients in the tree were fitted further
in the arithmetic of their type, so a new fit agrees with them in error and not in every digit.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ekiden.codegen.llvm import math_erf, math_exp, math_log, math_trig

mp: Any = importlib.import_module("mpmath")
Number: TypeAlias = Any
"""Number of mpmath, which has no types."""
NUM_ERROR_SAMPLES = 2000
NUM_EXCHANGES = 12


@dataclass(frozen=True)
class Fit:
    """Polynomial in `argument(x)` that approximates `target(x)` on [low, high].

    `weight(x)` times the polynomial's error is the relative error of the function of which the
    polynomial is a part.
    """

    name: str
    coefficients: Sequence[float]
    low: Number
    high: Number
    target: Callable[[Number], Number]
    argument: Callable[[Number], Number]
    weight: Callable[[Number], Number]

    def error(self, coefficients: Sequence[Number], x: Number) -> Number:
        """Return the weighted error at x."""
        value = mp.polyval(list(reversed(coefficients)), self.argument(x))
        return (value - self.target(x)) * self.weight(x)

    def samples(self) -> list[Number]:
        """Return Chebyshev points of the interval, dense where errors of a fit are extreme."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        count = NUM_ERROR_SAMPLES
        return [middle - half * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / count) for i in range(count)]

    def max_error(self, coefficients: Sequence[Number]) -> Number:
        """Return the largest weighted error."""
        return max(abs(self.error(coefficients, x)) for x in self.samples())

    def remez(self) -> list[Number]:
        """Return minimax coefficients by Remez's exchange."""
        count = len(self.coefficients)
        points = self.samples()
        step = (len(points) - 1) / count
        nodes = [points[round(i * step)] for i in range(count + 1)]
        coefficients: list[Number] = []
        for _ in range(NUM_EXCHANGES):
            rows = [
                [self.argument(x) ** k for k in range(count)] + [(-1) ** i / self.weight(x)]
                for i, x in enumerate(nodes)
            ]
            solution = mp.lu_solve(mp.matrix(rows), mp.matrix([self.target(x) for x in nodes]))
            coefficients = list(solution)[:count]
            nodes = self._extrema(coefficients, points, count + 1)
        return coefficients

    def _extrema(
        self, coefficients: Sequence[Number], points: Sequence[Number], count: int
    ) -> list[Number]:
        """Return the largest error of each run of equal sign; the runs alternate by definition."""
        extrema: list[tuple[Number, Number]] = []
        for x in points:
            error = self.error(coefficients, x)
            if extrema and (error > 0) == (extrema[-1][0] > 0):
                extrema[-1] = max(extrema[-1], (error, x), key=lambda pair: abs(pair[0]))
            else:
                extrema.append((error, x))
        # Of too many runs the smallest one lies at an end of the interval.
        while len(extrema) > count:
            extrema.pop(0 if abs(extrema[0][0]) < abs(extrema[-1][0]) else -1)
        return [x for _, x in extrema]


def fits() -> list[Fit]:
    """Return the polynomials of the emitters of exp, log, sin, cos and erf."""
    half_ln2, quarter_pi, tiny = mp.log(2) / 2, mp.pi / 4, mp.mpf("1e-6")
    sqrt2, one = mp.sqrt(2), mp.mpf(1)
    rows: list[Fit] = []
    for kind in ("float32", "float64"):
        rows += [
            Fit(f"exp {kind}", math_exp.EXP_POLYNOMIAL[kind], -half_ln2, half_ln2,
                lambda x: (mp.expm1(x) - x) / x**2, lambda x: x, lambda x: x**2 / mp.exp(x)),
            Fit(f"sin {kind}", math_trig.SIN_POLYNOMIAL[kind], tiny, quarter_pi,
                lambda x: (mp.sin(x) - x) / x**3, lambda x: x**2, lambda x: x**3 / mp.sin(x)),
            Fit(f"cos {kind}", math_trig.COS_POLYNOMIAL[kind], tiny, quarter_pi,
                lambda x: (mp.cos(x) - 1 + x**2 / 2) / x**4, lambda x: x**2,
                lambda x: x**4 / mp.cos(x)),
        ]  # fmt: skip
    return [
        *rows,
        Fit("log float32", math_log.LOG_POLYNOMIAL_FLOAT32, 1 / sqrt2 - 1, sqrt2 - 1,
            lambda x: (mp.log1p(x) - x + x**2 / 2) / x**3, lambda x: x,
            lambda x: x**3 / mp.log1p(x)),
        Fit("log float64", math_log.LOG_POLYNOMIAL_FLOAT64, tiny, mp.mpf("0.1716"),
            lambda x: (2 * mp.atanh(x) - 2 * x) / x**3, lambda x: x**2,
            lambda x: x**3 / (2 * mp.atanh(x))),
        Fit("erf float64", math_erf.ERF_SERIES, tiny, one,
            lambda x: mp.erf(x) / x, lambda x: x**2, lambda x: x / mp.erf(x)),
        Fit("log erfc float64", math_erf.LOG_ERFC_POLYNOMIAL, one, mp.mpf(6),
            lambda x: mp.log(mp.erfc(x)), lambda x: (x - 1) / 5,
            lambda x: mp.erfc(x) / mp.erf(x)),
    ]  # fmt: skip


def main() -> None:
    """Print the error of each polynomial, and with `--fit` that of a new fit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fit", action="store_true", help="fit new coefficients")
    parser.add_argument("names", nargs="*", help="those whose names begin so (all)")
    options = parser.parse_args()
    mp.mp.dps = 50
    for row in fits():
        if options.names and not row.name.startswith(tuple(options.names)):
            continue
        error = row.max_error([mp.mpf(c) for c in row.coefficients])
        print(
            f"{row.name:18} degree {len(row.coefficients) - 1:2}  2^{float(mp.log(error, 2)):.1f}"
        )
        if options.fit:
            coefficients = [float(c) for c in row.remez()]
            fitted = row.max_error([mp.mpf(c) for c in coefficients])
            print(f"{'':18} fitted      2^{float(mp.log(fitted, 2)):.1f}  {coefficients}")


if __name__ == "__main__":
    main()
