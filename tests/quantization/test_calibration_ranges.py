"""Calibration ranges from histograms, and quantisation parameters."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden.quantization import RANGE_METHODS
from ekiden.quantization.range_calibration import Histogram, scale_and_zero_point

RNG = np.random.default_rng(0)


def histogram(values: np.ndarray) -> Histogram:
    result = Histogram(float(values.min()), float(values.max()))
    result.add(values)
    return result


def error(values: np.ndarray, bounds: tuple[float, float]) -> float:
    """The mean squared error of bytes between bounds."""
    scale, point = scale_and_zero_point(*bounds)
    levels = np.clip(np.round(values / scale) + float(point), 0, 255)
    return float((((levels - float(point)) * scale - values) ** 2).mean())


@pytest.mark.parametrize("name", RANGE_METHODS)
def test_ranges_stay_within_observed_values(name: str) -> None:
    values = RNG.standard_normal(100_000)
    low, high = RANGE_METHODS[name].find_range(histogram(values))
    assert values.min() <= low < -1.0 and 1.0 < high <= values.max() + 1e-9


def test_outliers_are_clipped_if_error_drops() -> None:
    values = np.append(RNG.standard_normal(1_000_000), [60.0])
    seen = histogram(values)
    whole = error(values, RANGE_METHODS["minmax"].find_range(seen))
    for name in ("mse", "percentile", "entropy"):
        assert RANGE_METHODS[name].find_range(seen)[1] < 50.0
    assert error(values, RANGE_METHODS["mse"].find_range(seen)) < 0.6 * whole


def test_frequent_values_do_not_shrink_the_range() -> None:
    """As the results of a layer for a border of 0: its biases."""
    rng = np.random.default_rng(1)
    smooth = np.abs(rng.standard_normal(200_000))
    atoms = np.repeat(rng.uniform(0, 1, 16), 10_000)
    _, high = RANGE_METHODS["entropy"].find_range(histogram(np.concatenate([smooth, atoms])))
    assert high > 0.7 * smooth.max()


@pytest.mark.parametrize(
    ("low", "high", "point"),
    [(0.0, 2.55, 0), (-2.55, 0.0, 255), (1.0, 2.55, 0), (-1.28, 1.27, 128)],
)
def test_zero_is_one_of_the_levels(low: float, high: float, point: int) -> None:
    scale, result = scale_and_zero_point(low, high)
    assert scale == np.float32(0.01) and result == point


def test_constant_tensor_has_a_valid_range() -> None:
    assert scale_and_zero_point(0.0, 0.0) == (1.0, 0)
    seen = histogram(np.full(10, 3.0))
    for row in RANGE_METHODS.values():
        low, high = row.find_range(seen)
        assert error(np.array([3.0]), (low, high)) < 1e-4
