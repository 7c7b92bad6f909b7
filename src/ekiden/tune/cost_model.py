"""Cost models, which predict how unmeasured candidates compare, from measured ones.

A model sees what a space calls the features of a candidate: numbers that are chosen (rows of a
tile, steps of unrolling, distances of prefetching) under their names, and for words a 1 under
name=word. What one candidate has and another has not is 0 there. It learns the logarithm of the
ratio to the default, so that twice as slow and twice as fast are as far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, TypeAlias

import numpy as np

from ekiden.runtime.errors import CompileError

Features: TypeAlias = Mapping[str, float]
Matrix: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"


class CostModel(Protocol):
    """Cost model that predicts time ratios."""

    def fit(self, rows: Sequence[Features], ratios: Sequence[float]) -> None:
        """Fit to measurements, replacing earlier ones."""

    def predict(self, rows: Sequence[Features]) -> list[float]:
        """Predict log ratios; only their order counts."""


class _FeatureTable:
    """Feature matrix whose columns are the feature names present at construction."""

    def __init__(self, rows: Sequence[Features]) -> None:
        self.names = list(dict.fromkeys(name for row in rows for name in row))

    def to_matrix(self, rows: Sequence[Features]) -> Matrix:
        """Return one row per candidate; unknown features are ignored."""
        values = [[row.get(name, 0.0) for name in self.names] for row in rows]
        return np.array(values, np.float64).reshape(len(rows), len(self.names))


class NearestNeighbours:
    """Kernel regression: a distance-weighted mean of all measurements, over log-scaled features. It
    needs only NumPy, and a dozen measurements are enough.
    """

    def __init__(self, width: float = 0.5) -> None:
        self.bandwidth = width

    def fit(self, rows: Sequence[Features], ratios: Sequence[float]) -> None:
        """Store the measurements, scaled by each feature's spread."""
        self._table = _FeatureTable(rows)
        log_features = np.log2(1 + self._table.to_matrix(rows))
        self._scale = np.where((spread := log_features.std(axis=0)) > 0, spread, 1.0)
        self._known = log_features / self._scale
        self._values = np.log(np.array(ratios))

    def predict(self, rows: Sequence[Features]) -> list[float]:
        """Predict log ratios by a Gaussian kernel over squared distance, with each feature scaled
        by its spread.
        """
        log_features = np.log2(1 + self._table.to_matrix(rows)) / self._scale
        count = max(1, len(self._table.names))
        away = ((log_features[:, None] - self._known[None]) ** 2).sum(axis=2) / count
        # The constant keeps the sum nonzero where all measurements are far away.
        weights = np.exp(-away / self.bandwidth**2) + 1e-9
        return list(map(float, weights @ self._values / weights.sum(axis=1)))


class BoostedTrees:
    """Gradient-boosted trees of LightGBM. Raises CompileError if it is not installed."""

    def __init__(self) -> None:
        try:
            self._library = import_module("lightgbm")
        except ImportError as error:
            raise CompileError(
                "tune: the model of trees needs LightGBM: pip install ekiden[tune]"
            ) from error

    def fit(self, rows: Sequence[Features], ratios: Sequence[float]) -> None:
        """Fit shallow trees: there are hundreds of measurements, not millions."""
        self._table = _FeatureTable(rows)
        options = {
            "objective": "regression", "num_leaves": 15, "min_data_in_leaf": 3,
            "learning_rate": 0.1, "verbosity": -1, "num_threads": 1, "seed": 0,
            "min_data_in_bin": 1,
        }  # fmt: skip
        values = [math.log(r) for r in ratios]
        data = self._library.Dataset(self._table.to_matrix(rows), values)
        self._model = self._library.train(options, data, 100)

    def predict(self, rows: Sequence[Features]) -> list[float]:
        """Predict log ratios with the trees."""
        return [float(v) for v in self._model.predict(self._table.to_matrix(rows))]


__all__ = ["BoostedTrees", "CostModel", "Features", "NearestNeighbours"]
