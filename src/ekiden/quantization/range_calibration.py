"""Calibration methods that choose a quantization range from a histogram: the calibration methods
that choose one from a histogram of values.

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

__all__ = ["RANGE_METHODS", "Histogram", "RangeMethod", "scale_and_zero_point"]

NUM_HISTOGRAM_BINS = 2048
NUM_UINT8_LEVELS = 256
NUM_CANDIDATE_RANGES = 96
"""Ranges that a search tries."""
MIN_MEAN_BIN_COUNT = 64
"""Values in a bin on average, where distributions are compared."""
ATOM_COUNT_RATIO = 4
"""How many times as many values as in the bins around it, half of them at least, a bin has that
stands for one value."""
PERCENTILE_FRACTION = 0.9999
"""The share of values that the method "percentile" keeps."""


@dataclass(slots=True)
class Histogram:
    """Histogram of values between two bounds fixed in advance."""

    low: float
    high: float
    counts: Array = field(default_factory=lambda: np.zeros(NUM_HISTOGRAM_BINS, np.float64))

    def add(self, values: Array) -> None:
        """Count values, ignoring those that are not finite."""
        if self.high > self.low:
            added, _ = np.histogram(values, NUM_HISTOGRAM_BINS, (self.low, self.high))
            self.counts += added

    @property
    def bin_centers(self) -> Array:
        """Return the centre of each bin."""
        width = (self.high - self.low) / NUM_HISTOGRAM_BINS
        return self.low + width * (np.arange(NUM_HISTOGRAM_BINS) + 0.5)


def _minmax_range(histogram: Histogram) -> tuple[float, float]:
    """Return the full range."""
    return histogram.low, histogram.high


def _percentile_range(histogram: Histogram) -> tuple[float, float]:
    """Return the central range that contains PERCENTILE_FRACTION of the values."""
    share = np.cumsum(histogram.counts) / max(histogram.counts.sum(), 1.0)
    first = int(np.searchsorted(share, (1.0 - PERCENTILE_FRACTION) / 2))
    last = int(np.searchsorted(share, 1.0 - (1.0 - PERCENTILE_FRACTION) / 2))
    width = (histogram.high - histogram.low) / NUM_HISTOGRAM_BINS
    return histogram.low + width * first, histogram.low + width * (
        min(last, NUM_HISTOGRAM_BINS - 1) + 1
    )


def _make_range_search(
    loss: Callable[[Histogram, float, float], float],
) -> Callable[..., tuple[float, float]]:
    """Return a range method that shrinks both bounds towards 0 by the fraction of least loss."""

    def find_range(histogram: Histogram) -> tuple[float, float]:
        """Return the shrunk (low, high) of least loss among fractions from 1 to 0.1."""
        shares = np.linspace(1.0, 0.1, NUM_CANDIDATE_RANGES)
        losses = [
            loss(histogram, histogram.low * share, histogram.high * share) for share in shares
        ]
        best = float(shares[int(np.argmin(losses))])
        return histogram.low * best, histogram.high * best

    return find_range


def _quantization_error(histogram: Histogram, low: float, high: float) -> float:
    """Return the squared error of rounding to 256 levels between two bounds, including the clipping
    error.
    """
    step = max(high - low, 1e-30) / (NUM_UINT8_LEVELS - 1)
    x = histogram.bin_centers
    inside = np.clip(np.round((x - low) / step), 0, NUM_UINT8_LEVELS - 1) * step + low
    return float((histogram.counts * (x - inside) ** 2).sum())


def _kl_divergence(histogram: Histogram, low: float, high: float) -> float:
    """Return the Kullback-Leibler divergence from the clipped distribution to its quantized form.
    Values outside the bounds count at the bounds in one distribution and are lost in the other,
    so that clipping has a cost. Bins are merged until each holds MIN_MEAN_BIN_COUNT values on
    average, since sparsely filled bins would look like quantization loss. Values that stand for
    many elements, such as the exact 0 of Relu, are ignored.
    """
    merged = NUM_HISTOGRAM_BINS
    # Nearly empty bins make the estimated divergence noise; merge them to MIN_MEAN_BIN_COUNT on
    # average.
    while merged > NUM_UINT8_LEVELS and histogram.counts.sum() < merged * MIN_MEAN_BIN_COUNT:
        merged //= 2
    counts = _suppress_atoms(histogram.counts.reshape(merged, -1).sum(axis=1))
    x = histogram.bin_centers.reshape(merged, -1).mean(axis=1)
    # The bin of 0 is ignored, because zero is always represented exactly.
    counts[int(np.argmin(np.abs(x)))] = 0.0
    keep = (x >= low) & (x <= high)
    inside = counts[keep]
    if not inside.any():
        return float("inf")
    reference = inside.copy()
    # As in TensorRT's entropy calibration: clipped mass counts at the boundary bins of the
    # reference.
    reference[0] += counts[x < low].sum()
    reference[-1] += counts[x > high].sum()
    # Spread the bins within the bounds evenly over the levels.
    level = np.arange(len(inside)) * min(NUM_UINT8_LEVELS, len(inside)) // len(inside)
    used = inside > 0
    sums = np.bincount(level, inside, NUM_UINT8_LEVELS)
    filled = np.bincount(level, used, NUM_UINT8_LEVELS)
    quantised = np.where(used, sums[level] / np.maximum(filled[level], 1.0), 0.0)
    p, q = reference / reference.sum(), quantised / quantised.sum()
    both = p > 0
    return float((p[both] * np.log(p[both] / np.maximum(q[both], 1e-9))).sum())


def _suppress_atoms(counts: Array) -> Array:
    """Clip outlier bins to the largest bin within two levels of them: a layer outputs its bias
    wherever its input is 0, as in an image's border.
    """
    near = NUM_HISTOGRAM_BINS // NUM_UINT8_LEVELS
    around = np.lib.stride_tricks.sliding_window_view(np.pad(counts, near, "edge"), 2 * near + 1)
    usual = np.median(around, axis=1)
    return np.asarray(np.where(usual > 0, np.minimum(counts, ATOM_COUNT_RATIO * usual), counts))


@dataclass(frozen=True, slots=True)
class RangeMethod:
    """Calibration method that chooses a range from a histogram."""

    name: str
    find_range: Callable[[Histogram], tuple[float, float]]
    meaning: str


# fmt: off
RANGE_METHODS = {row.name: row for row in (
    #      name          range                      meaning
    RangeMethod("minmax",     _minmax_range,                   "all values"),
    RangeMethod("percentile", _percentile_range,               "the middle 99.99 % of it"),
    RangeMethod("entropy", _make_range_search(_kl_divergence), "least Kullback-Leibler divergence"),
    RangeMethod("mse",       _make_range_search(_quantization_error),   "least mean squared error"),
)}
# fmt: on


def scale_and_zero_point(low: float, high: float) -> tuple[np.float32, np.uint8]:
    """Return the scale and uint8 zero point of a range, extended to include 0 so that zero padding
    stays exact.
    """
    # Zero padding must be exact, so 0 has to be one of the levels.
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / (NUM_UINT8_LEVELS - 1))
    # A subnormal scale would overflow in its reciprocal.
    if not np.isfinite(scale) or scale <= np.finfo(np.float32).tiny:
        return np.float32(1.0), np.uint8(0)
    return scale, np.uint8(np.clip(np.round(-low / scale), 0, NUM_UINT8_LEVELS - 1))
