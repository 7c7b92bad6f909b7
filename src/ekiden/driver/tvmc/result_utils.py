"""Summaries of the outputs of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekiden.driver.tvmc.model import TVMCResult

__all__ = ["get_top_results"]


def get_top_results(result: TVMCResult, max_results: int) -> np.ndarray[Any, Any]:
    """Return two rows about output_0, of [2, max_results]: the indices of its largest values in
    flat order, and those values, largest first.
    """
    output = result.get_output("output_0")
    order = np.argsort(output, axis=None)[::-1][:max_results]
    return np.array((order, output.flatten()[order]))
