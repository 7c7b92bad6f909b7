"""Random sparse matrices under TVM's name. Needs scipy."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np


def random_bsr_matrix(
    m: int, n: int, bs_r: int, bs_c: int, density: float, dtype: str = "float32"
) -> Any:  # noqa: ANN401  scipy is loaded when it is used
    """Return a random m x n `scipy.sparse.bsr_matrix` with normally distributed blocks of bs_r x
    bs_c, as many at random positions as hold `density` of the elements, and one more. Draws from
    `numpy.random`. Raises ValueError for blocks that do not divide the matrix.
    """
    if m % bs_r or n % bs_c:
        raise ValueError(f"random_bsr_matrix: {bs_r}x{bs_c} blocks do not divide {m}x{n}")
    rows, columns = m // bs_r, n // bs_c
    count = min(int(int(density * m * n) / (bs_r * bs_c)) + 1, rows * columns)
    chosen = np.sort(np.random.choice(rows * columns, count, replace=False))
    data = np.random.randn(count, bs_r, bs_c).astype(dtype)
    starts = np.searchsorted(chosen // columns, np.arange(rows + 1))
    sparse = import_module("scipy.sparse")
    return sparse.bsr_matrix((data, chosen % columns, starts), shape=(m, n))


__all__ = ["random_bsr_matrix"]
