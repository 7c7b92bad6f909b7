"""Lossless conversion of low-bit weights to a block format that kernels read.

A format that no kernel reads is worth keeping small where one that kernels read holds the same
numbers: levels times a scale, if the levels are whole numbers of its range, and float16 holds the
scale. Otherwise the numbers become float32.

Source: Open Compute Project, "Microscaling Formats (MX) Specification" 1.0 (2023), section 5.3.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import Weight
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME

__all__ = ["MXFP4_BLOCK_VALUES", "mxfp4_weight", "quantized_levels_to_weight"]

MXFP4_BLOCK_VALUES = 32
"""Numbers of a scale."""
FP4_LEVELS = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.int16)
"""Twice the magnitudes of E2M1, by its lower three bits; the fourth is the sign."""
MXFP4_LEVELS = np.concatenate([FP4_LEVELS, -FP4_LEVELS])
E8M0_BIAS = 127


def quantized_levels_to_weight(
    name: str, format: str, levels: NDArray[np.int16], scales: NDArray[np.float32]
) -> Weight:
    """Return levels [..., n] times block scales [..., n / size] as a weight, in blocks of `format`
    if that is lossless, else in float32.
    """
    with np.errstate(over="ignore", under="ignore"):
        is_exact = bool((scales.astype("<f2").astype(np.float32) == scales).all())
    if is_exact:
        return Weight(
            name, format, levels.shape, BLOCK_FORMATS_BY_NAME[format].pack(levels, scales)
        )
    size = levels.shape[-1] // scales.shape[-1]
    with np.errstate(over="ignore", invalid="ignore"):  # infinite numbers, as scales say
        return Weight.of(name, levels.astype(np.float32) * np.repeat(scales, size, axis=-1))


def mxfp4_weight(name: str, codes: NDArray[np.uint8], exponents: NDArray[np.uint8]) -> Weight:
    """Convert an MXFP4 tensor to a weight.

    Args:
        name: Its name.
        codes: E2M1 in the lower four bits of each byte, [..., n].
        exponents: E8M0, one for each 32 numbers, [..., n / 32].

    Returns:
        Blocks of q5_0, or float32 where a scale is out of the range of float16.
    """
    # An exponent of 255 is NaN, which every number of its block is then.
    scales = np.ldexp(np.float32(0.5), exponents.astype(np.int32) - E8M0_BIAS).astype(np.float32)
    scales = np.where(exponents == 255, np.float32(np.nan), scales)
    return quantized_levels_to_weight(name, "q5_0", MXFP4_LEVELS[codes], scales)
