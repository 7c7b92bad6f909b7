"""Weight rounding algorithms (nearest, GPTQ, coordinate descent): the nearest, or those with the
least error of the layer's result on data.

The squared error of a row e = q s - w is e G e^T (see `grams`). GPTQ (Frantar and others, 2022)
takes one column after another, and lets the columns that are still to come make up for its error.
The other way goes on from there: one weight of each row at a time, the one that is worth most,
becomes the integer beside it, as long as that makes the error less. It is the question of AdaRound
(Nagel and others, 2020), up or down, by its measure, answered by descent.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["ROUNDING_METHODS", "RoundingMethod", "weighted_squared_error"]

HESSIAN_DAMPING = 0.01
"""Of the mean of G's diagonal, added to it: what data do not say is not made up."""
MAX_COORDINATE_MOVES = 2
"""Of the columns of a row: how many moves it makes at most."""
LevelRange = tuple[int, int]
"""The least and the largest integer."""
GPTQ_BLOCK_COLUMNS = 128
"""Columns whose error goes to those behind them in one product."""


def weighted_squared_error(error: Array, gram: Array) -> float:
    """Return sum(E G * E), the squared output error of a weight error E [rows, columns] with the
    Gram matrix G.
    """
    return float(np.einsum("ij,jk,ik->", error, gram, error, optimize=True))


def _round_to_nearest(weight: Array, scale: Array, ends: LevelRange, gram: Array | None) -> Array:
    return np.asarray(np.clip(np.round(weight / scale), *ends))


def _damp_diagonal(gram: Array) -> Array:
    mean = float(np.diagonal(gram).mean()) or 1.0
    return gram + np.eye(len(gram)) * (HESSIAN_DAMPING * mean)


def _round_gptq(weight: Array, scale: Array, ends: LevelRange, gram: Array | None) -> Array:
    """Round by GPTQ: column by column, the rounding error is propagated to the columns not rounded
    yet.
    """
    assert gram is not None, "a recipe of this rounding has data"
    order = np.argsort(-np.diagonal(gram), kind="stable")  # what costs most is rounded first
    # Frantar et al., "GPTQ" (2023), algorithm 1: the upper Cholesky factor of the inverse Hessian.
    inverse = np.linalg.inv(_damp_diagonal(gram[np.ix_(order, order)]))
    factor = np.linalg.cholesky((inverse + inverse.T) / 2).T
    remaining, scale = weight[:, order].astype(np.float64), scale[:, order]
    levels = np.empty_like(remaining)
    columns = remaining.shape[1]
    for start in range(0, columns, GPTQ_BLOCK_COLUMNS):
        end = min(start + GPTQ_BLOCK_COLUMNS, columns)
        errors = np.empty((len(remaining), end - start))
        for position in range(start, end):
            step = scale[:, position]
            levels[:, position] = np.clip(np.round(remaining[:, position] / step), *ends)
            error = (remaining[:, position] - levels[:, position] * step) / factor[
                position, position
            ]
            remaining[:, position:end] -= np.outer(error, factor[position, position:end])
            errors[:, position - start] = error
        # Lazy batch update: one matrix product per block instead of a rank-1 update per column.
        remaining[:, end:] -= errors @ factor[start:end, end:]
    back = np.empty_like(levels)
    back[:, order] = levels
    return back


def _round_coordinate_descent(
    weight: Array, scale: Array, ends: LevelRange, gram: Array | None
) -> Array:
    """Refine GPTQ's levels by coordinate descent: moves of single levels by one step that reduce
    the error.
    """
    levels = _round_gptq(weight, scale, ends, gram)
    assert gram is not None, "a recipe of this rounding has data"
    cost = _damp_diagonal(gram)
    own = np.diagonal(cost) * scale**2
    slope = (levels * scale - weight) @ cost
    rows = np.arange(len(levels))
    for _ in range(MAX_COORDINATE_MOVES * levels.shape[1]):
        direction = np.where(slope * scale > 0, -1.0, 1.0)
        gain = 2 * direction * scale * slope + own
        gain[(levels + direction < ends[0]) | (levels + direction > ends[1])] = 0.0
        best = gain.argmin(axis=1)
        # A threshold relative to the diagonal keeps rounding noise from cycling between two levels.
        better = gain[rows, best] < -1e-9 * own[rows, best]
        if not better.any():
            break
        chosen, columns = rows[better], best[better]
        levels[chosen, columns] += direction[chosen, columns]
        step = direction[chosen, columns] * scale[chosen, columns]
        slope[chosen] += step[:, None] * cost[columns]
    return levels


@dataclass(frozen=True, slots=True)
class RoundingMethod:
    """Method that rounds a weight [rows, columns] with steps `scale` to integers within a range."""

    name: str
    round_weight: Callable[[Array, Array, LevelRange, Array | None], Array]
    needs_data: bool
    meaning: str


# fmt: off
ROUNDING_METHODS = {row.name: row for row in (
    #        name       levels    data   meaning
    RoundingMethod("nearest", _round_to_nearest,         False, "each by itself"),
    RoundingMethod("gptq",    _round_gptq, True, "later columns compensate for errors"),
    RoundingMethod("learned", _round_coordinate_descent, True,
        "gptq's, moved one by one while the error falls"),
)}
# fmt: on
