"""Ranges of tensors from what was seen of them: a histogram, and the methods that cut it.

The methods are those of the literature: the whole range; the middle share of all values; the cut
whose quantised distribution is nearest by Kullback and Leibler's measure (TensorRT); the cut with
the least mean squared error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

import numpy as np

from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["METHODS", "Histogram", "Method", "scale_and_point"]

BINS = 2048
LEVELS = 256
CUTS = 96
"""Ranges that a search tries."""
OF_BIN = 64
"""Values in a bin on average, where distributions are compared."""
ATOM = 4
"""How many times as many values as in the bins around it, half of them at least, a bin has that
stands for one value."""
MIDDLE = 0.9999
"""The share of values that the method "percentile" keeps."""


@dataclass(slots=True)
class Histogram:
    """Counts of values between two bounds that are known before."""

    low: float
    high: float
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.float64))

    def add(self, values: Array) -> None:
        """Count values; those that are not finite are left out."""
        if self.high > self.low:
            found, _ = np.histogram(values, BINS, (self.low, self.high))
            self.counts += found

    @property
    def centres(self) -> Array:
        """The middle of each bin."""
        width = (self.high - self.low) / BINS
        return self.low + width * (np.arange(BINS) + 0.5)


def _minmax(seen: Histogram) -> tuple[float, float]:
    return seen.low, seen.high


def _percentile(seen: Histogram) -> tuple[float, float]:
    share = np.cumsum(seen.counts) / max(seen.counts.sum(), 1.0)
    first = int(np.searchsorted(share, (1.0 - MIDDLE) / 2))
    last = int(np.searchsorted(share, 1.0 - (1.0 - MIDDLE) / 2))
    width = (seen.high - seen.low) / BINS
    return seen.low + width * first, seen.low + width * (min(last, BINS - 1) + 1)


def _search(loss: Callable[[Histogram, float, float], float]) -> Callable[..., tuple[float, float]]:
    """The cut of the range, towards 0 from both sides, that has the least loss."""

    def find(seen: Histogram) -> tuple[float, float]:
        """(low, high) of the share of the range, of CUTS from all to a tenth, with the least
        loss."""
        shares = np.linspace(1.0, 0.1, CUTS)
        losses = [loss(seen, seen.low * share, seen.high * share) for share in shares]
        best = float(shares[int(np.argmin(losses))])
        return seen.low * best, seen.high * best

    return find


def _squared_error(seen: Histogram, low: float, high: float) -> float:
    """The mean squared error of rounding to the levels between two bounds, and of cutting."""
    step = max(high - low, 1e-30) / (LEVELS - 1)
    x = seen.centres
    inside = np.clip(np.round((x - low) / step), 0, LEVELS - 1) * step + low
    return float((seen.counts * (x - inside) ** 2).sum())


def _divergence(seen: Histogram, low: float, high: float) -> float:
    """How far the distribution of the levels is from that of the values, cut to the bounds.

    Values outside are counted at the bounds in one distribution and lost in the other, so that a
    cut has its price. Bins are merged until each has OF_BIN values on average: what few values
    leave empty would look like a loss of the levels. Values that stand for many elements are left
    out: 0, which Relu gives, is exact in all; others move with their level, however wide it is, but
    would look lost where it is shared, and the cut that is least wide the best.
    """
    merged = BINS
    while merged > LEVELS and seen.counts.sum() < merged * OF_BIN:
        merged //= 2
    counts = _without_atoms(seen.counts.reshape(merged, -1).sum(axis=1))
    x = seen.centres.reshape(merged, -1).mean(axis=1)
    counts[int(np.argmin(np.abs(x)))] = 0.0
    keep = (x >= low) & (x <= high)
    inside = counts[keep]
    if not inside.any():
        return float("inf")
    wanted = inside.copy()
    wanted[0] += counts[x < low].sum()
    wanted[-1] += counts[x > high].sum()
    level = np.arange(len(inside)) * min(LEVELS, len(inside)) // len(inside)
    used = inside > 0
    sums = np.bincount(level, inside, LEVELS)
    filled = np.bincount(level, used, LEVELS)
    found = np.where(used, sums[level] / np.maximum(filled[level], 1.0), 0.0)
    p, q = wanted / wanted.sum(), found / found.sum()
    both = p > 0
    return float((p[both] * np.log(p[both] / np.maximum(q[both], 1e-9))).sum())


def _without_atoms(counts: Array) -> Array:
    """Counts of which none stands out from those of two levels around it: a layer gives its bias
    wherever its input is 0, as in the border of pictures."""
    near = BINS // LEVELS
    around = np.lib.stride_tricks.sliding_window_view(np.pad(counts, near, "edge"), 2 * near + 1)
    usual = np.median(around, axis=1)
    return np.asarray(np.where(usual > 0, np.minimum(counts, ATOM * usual), counts))


@dataclass(frozen=True, slots=True)
class Method:
    """A way to choose a range."""

    name: str
    find: Callable[[Histogram], tuple[float, float]]
    meaning: str


# fmt: off
METHODS = {row.name: row for row in (
    #      name          range                      meaning
    Method("minmax",     _minmax,                   "all that was seen"),
    Method("percentile", _percentile,               "the middle 99.99 % of it"),
    Method("entropy",    _search(_divergence),      "least Kullback-Leibler divergence"),
    Method("mse",        _search(_squared_error),   "least mean squared error"),
)}
# fmt: on


def scale_and_point(low: float, high: float) -> tuple[np.float32, np.uint8]:
    """The scale and the zero point of unsigned bytes for a range, which 0 is made a part of: a
    padding of 0 stays exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / (LEVELS - 1))
    if not np.isfinite(scale) or scale <= np.finfo(np.float32).tiny:
        return np.float32(1.0), np.uint8(0)
    return scale, np.uint8(np.clip(np.round(-low / scale), 0, LEVELS - 1))
