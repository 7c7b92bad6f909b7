"""Guessing how candidates compare before they are built, from those that were measured.

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
    """What guesses ratios."""

    def fit(self, rows: Sequence[Features], ratios: Sequence[float]) -> None:
        """Learn from what was measured: forgets what it knew."""

    def predict(self, rows: Sequence[Features]) -> list[float]:
        """Guesses; only their order counts."""


class _Table:
    """Features as columns, by the names that were there when it was made."""

    def __init__(self, rows: Sequence[Features]) -> None:
        self.names = list(dict.fromkeys(name for row in rows for name in row))

    def matrix(self, rows: Sequence[Features]) -> Matrix:
        """A row for each; what has a name of its own is left out."""
        found = [[row.get(name, 0.0) for name in self.names] for row in rows]
        return np.array(found, np.float64).reshape(len(rows), len(self.names))


class Neighbours:
    """The mean of those measured, the nearer the more it counts; numbers by their logarithms.

    Needs nothing but NumPy, and a dozen measurements are enough.
    """

    def __init__(self, width: float = 0.5) -> None:
        self.width = width

    def fit(self, rows: Sequence[Features], ratios: Sequence[float]) -> None:
        """Keep them."""
        self._table = _Table(rows)
        known = np.log2(1 + self._table.matrix(rows))
        self._scale = np.where((spread := known.std(axis=0)) > 0, spread, 1.0)
        self._known = known / self._scale
        self._values = np.log(np.array(ratios))

    def predict(self, rows: Sequence[Features]) -> list[float]:
        """Weights fall with the square of the distance, a feature counts by its spread."""
        asked = np.log2(1 + self._table.matrix(rows)) / self._scale
        count = max(1, len(self._table.names))
        away = ((asked[:, None] - self._known[None]) ** 2).sum(axis=2) / count
        weights = np.exp(-away / self.width**2) + 1e-9
        return list(map(float, weights @ self._values / weights.sum(axis=1)))


class Trees:
    """Boosted trees of LightGBM. Raises CompileError where it is not installed."""

    def __init__(self) -> None:
        try:
            self._library = import_module("lightgbm")
        except ImportError as error:
            raise CompileError(
                "tune: the model of trees needs LightGBM: pip install ekiden[tune]"
            ) from error

    def fit(self, rows: Sequence[Features], ratios: Sequence[float]) -> None:
        """Shallow trees: there are hundreds of measurements, not millions."""
        self._table = _Table(rows)
        options = {
            "objective": "regression", "num_leaves": 15, "min_data_in_leaf": 3,
            "learning_rate": 0.1, "verbosity": -1, "num_threads": 1, "seed": 0,
            "min_data_in_bin": 1,
        }  # fmt: skip
        values = [math.log(r) for r in ratios]
        data = self._library.Dataset(self._table.matrix(rows), values)
        self._model = self._library.train(options, data, 100)

    def predict(self, rows: Sequence[Features]) -> list[float]:
        """What the trees say."""
        return [float(v) for v in self._model.predict(self._table.matrix(rows))]


__all__ = ["CostModel", "Features", "Neighbours", "Trees"]
