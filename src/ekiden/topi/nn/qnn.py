"""Dtype codes of simulated quantisation (TVM's names)."""

from __future__ import annotations

from typing import Final

SQNN_DTYPE_TO_CODE: Final = {"disable": 0, "int8": 1, "uint8": 2, "int32": 3}
"""Code of each dtype; 0 disables quantisation."""
SQNN_CODE_TO_DTYPE: Final = {number: dtype for dtype, number in SQNN_DTYPE_TO_CODE.items()}

__all__ = ["SQNN_CODE_TO_DTYPE", "SQNN_DTYPE_TO_CODE"]
