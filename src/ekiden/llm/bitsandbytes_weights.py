"""Decoder of weights quantised by bitsandbytes: 4 bits by a table (nf4, fp4), and int8 with scales
of rows.

    NAME.weight                 uint8 [n / 2, 1]: two numbers a byte, the upper bits first
    NAME.weight.absmax          of each block of numbers: float32, or uint8 with double quantisation
    NAME.weight.quant_map       float32 [16], what the codes stand for
    NAME.weight.nested_absmax   float32, nested_quant_map float32 [256]: those of absmax
    NAME.weight.quant_state.bitsandbytes__nf4   JSON: shape, blocksize, nested_blocksize and _offset

Source: bitsandbytes (functional.py, QuantState); Dettmers and others, "QLoRA" (2023).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import Weight, tensor_bytes
from ekiden.runtime.errors import LoadError

__all__ = ["BITSANDBYTES_ENDS", "BITSANDBYTES_MARKS", "decode_bitsandbytes"]

Arrays = Callable[[str], NDArray[Any]]
"""Returns a tensor of a weight by the end of its name. Raises KeyError."""
STATE = "weight.quant_state.bitsandbytes__"
QUANT_TYPES = ("nf4", "fp4")
ROW_SCALES = "SCB"
BITSANDBYTES_MARKS = (*(STATE + kind for kind in QUANT_TYPES), ROW_SCALES)
BITSANDBYTES_ENDS = (
    "weight", *BITSANDBYTES_MARKS, "weight.absmax", "weight.quant_map", "weight.nested_absmax",
    "weight.nested_quant_map", "weight_format",
)  # fmt: skip
MAX_INT8 = 127


def decode_bitsandbytes(name: str, arrays: Arrays) -> Weight:
    """Return a weight of 4 or 8 bits in float32. Raises LoadError for tensors that do not fit."""
    for kind in QUANT_TYPES:
        try:
            raw = arrays(STATE + kind)
        # The key names the type, so a missing key means another type.
        except KeyError:
            continue
        return _decode_table(name, _read_state(name, raw), arrays)
    values, scales = arrays("weight"), np.asarray(arrays(ROW_SCALES), np.float32).reshape(-1)
    if values.ndim != 2 or values.dtype != np.int8 or len(scales) != len(values):
        raise LoadError(f"'{name}': int8 {values.shape}, scales {scales.shape} do not fit")
    # LLM.int8() stores the largest magnitude of each row, which the level 127 represents.
    return Weight.of(name, values.astype(np.float32) * (scales[:, None] / np.float32(MAX_INT8)))


def _read_state(name: str, raw: NDArray[Any]) -> Mapping[str, Any]:
    """Parse the quantisation state of a weight. Raises LoadError."""
    try:
        state = json.loads(np.asarray(raw, np.uint8).tobytes())
    # Deeply nested JSON overflows the parser's recursion.
    except (ValueError, RecursionError) as error:
        raise LoadError(f"'{name}': its state is no JSON: {error}") from error
    if not isinstance(state, dict):
        raise LoadError(f"'{name}': its state: an object expected, got {state!r:.80}")
    return state


def _positive(name: str, state: Mapping[str, Any], key: str) -> int:
    value = state.get(key)
    # `isinstance` would accept True as a number.
    if type(value) is not int or value < 1:
        raise LoadError(f"'{name}': its state: '{key}': a number above 0 expected, got {value!r}")
    return value


def _decode_table(name: str, state: Mapping[str, Any], arrays: Arrays) -> Weight:
    """Dequantise 4-bit codes by a lookup table and block scales (nf4, fp4)."""
    shape = state.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise LoadError(f"'{name}': its state: 'shape': sizes expected, got {shape!r}")
    count = tensor_bytes(shape, 1, f"'{name}'")
    block = _positive(name, state, "blocksize")
    packed = np.asarray(arrays("weight")).reshape(-1).view(np.uint8)
    table = np.asarray(arrays("weight.quant_map"), np.float32)
    scales = _block_scales(name, state, arrays)
    if len(packed) != -(-count // 2) or len(scales) != -(-count // block) or table.shape != (16,):
        raise LoadError(
            f"'{name}': {len(packed)} bytes, {len(scales)} scales and {table.size} levels do not"
            f" fit a shape {tuple(shape)} in blocks of {block}"
        )
    # The high nibble holds the first value, unlike in GGUF; an odd count leaves one nibble unused.
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)[:count]
    values = table[codes] * _repeat_scales(scales, block, count)
    return Weight.of(name, values.reshape(shape))


def _block_scales(name: str, state: Mapping[str, Any], arrays: Arrays) -> NDArray[np.float32]:
    """Return the scale of each block, which may itself be quantised (double quantisation)."""
    stored = np.asarray(arrays("weight.absmax")).reshape(-1)
    if stored.dtype != np.uint8:
        return stored.astype(np.float32)
    block, offset = _positive(name, state, "nested_blocksize"), state.get("nested_offset")
    if not isinstance(offset, (int, float)) or isinstance(offset, bool):
        raise LoadError(f"'{name}': its state: 'nested_offset': a number expected, got {offset!r}")
    table = np.asarray(arrays("weight.nested_quant_map"), np.float32)
    scales = np.asarray(arrays("weight.nested_absmax"), np.float32).reshape(-1)
    if table.shape != (256,) or len(scales) != -(-len(stored) // block):
        raise LoadError(f"'{name}': {len(scales)} scales of {len(stored)} scales do not fit")
    # Double quantisation stores the scales less their mean, the offset.
    scaled = table[stored] * _repeat_scales(scales, block, len(stored))
    return np.asarray(scaled + np.float32(offset), np.float32)


def _repeat_scales(scales: NDArray[np.float32], block: int, num_values: int) -> NDArray[np.float32]:
    """Return the scale of each value; a block may be longer than all values together."""
    return np.repeat(scales, min(block, num_values))[:num_values]
