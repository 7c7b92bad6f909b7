"""Matrix products with int4 weights, which have a scale and a zero point per block of a row.

plain    weight uint8 [N][blocks][block / 2], the number of the lower k in the lower half of a byte;
         scale float32 and point uint8 [N][blocks]
packed   weight int32 [panels][blocks][block / 8][64]: in each word the numbers k to k + 3 in the
         lower halves of its bytes, k + 4 to k + 7 in the upper ones; scale and point
         [panels][blocks][64]; rows of the last panel that are none have scale 0
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.te import Tensor
from ekiden.topi.dimensions import as_dim

ROWS_PER_PANEL = 64
"""Weight rows packed together."""
VALUES_PER_WORD = 8
"""Int4 values per word, a divisor of the block."""


def unpack_nibbles(packed: Array) -> Array:
    """Unpack [..., n] bytes to [..., 2 n] int4 values, low nibble first."""
    halves: Array = np.stack((packed & np.uint8(15), packed >> np.uint8(4)), axis=-1)
    return halves.reshape(*packed.shape[:-1], -1)


def pack_nibbles(weight: Array, scale: Array, point: Array) -> tuple[Array, Array, Array]:
    """Pack an int4 weight into panels."""
    missing = -len(weight) % ROWS_PER_PANEL
    levels = _split_into_panels(unpack_nibbles(weight), missing)  # [panels][64][blocks][block]
    words = levels.reshape(*levels.shape[:3], -1, 2, VALUES_PER_WORD // 2)
    bytes_ = words[..., 0, :] | words[..., 1, :] << np.uint8(4)
    packed = np.ascontiguousarray(bytes_).view("<i4")[..., 0].transpose(0, 2, 3, 1)
    scales, points = (
        _split_into_panels(x, missing).transpose(0, 2, 1).copy() for x in (scale, point)
    )
    return packed.astype(np.int32), scales, points


def _split_into_panels(rows: Array, missing: int) -> Array:
    padded = np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1)))
    return padded.reshape(-1, ROWS_PER_PANEL, *rows.shape[1:])


def unpack_panels(packed: Array) -> Array:
    """Unpack a packed weight: [rows of all panels][blocks][block]."""
    bytes_ = np.ascontiguousarray(packed.transpose(0, 3, 1, 2)).astype("<i4")[..., None]
    bytes_ = bytes_.view(np.uint8)
    levels = np.concatenate((bytes_ & np.uint8(15), bytes_ >> np.uint8(4)), axis=-1)
    return levels.reshape(-1, levels.shape[2], levels.shape[3] * VALUES_PER_WORD)


def dense_nibbles(data: Tensor, weight: Tensor, scale: Tensor, point: Tensor) -> Tensor:
    """Multiply data[..., k] by the transpose of an unpacked int4 weight; the last block may be
    partial.
    """
    block = weight.shape[2] * 2
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def sum_over_k(*i: Var) -> PrimExpr:
        """Return the sum over k of data * (level - zero point) * scale; the low nibble of a byte
        comes first.
        """
        indices = (i[-1], k // block)
        byte = cast(weight[(*indices, k % block // 2)], "int32")
        level = _extract_nibbles(byte, cast(k % 2 * 4, "int32"))
        weighed = cast(level - cast(point[indices], "int32"), data.dtype) * scale[indices]
        return te.sum(data[(*i[:-1], k)] * weighed, k)

    return te.compute((*data.shape[:-1], weight.shape[0]), sum_over_k, name="dense_nibbles")


def _extract_nibbles(word: PrimExpr, shift: PrimExpr) -> PrimExpr:
    shifted = call_intrin("right_shift", word, shift, dtype="int32")
    return call_intrin("bitwise_and", shifted, const(15, "int32"), dtype="int32")


def dense_nibbles_pack(inputs: Sequence[Tensor], units: int) -> Tensor:
    """Multiply int8 data[..., k] (quantised per block) by the transpose of a packed int4 weight."""
    data, step, _, weight, scale, point = inputs
    block = weight.shape[2] * VALUES_PER_WORD
    k = te.reduce_axis((0, data.shape[-1]), "k")

    def sum_over_k(*i: Var) -> PrimExpr:
        """Return the sum over int8 words: a word's low nibbles hold the first half of a group, its
        high nibbles the second.
        """
        panel, row, position = i[-1] // ROWS_PER_PANEL, i[-1] % ROWS_PER_PANEL, k // block
        shift = k % (VALUES_PER_WORD // 2) * 8 + k % VALUES_PER_WORD // (VALUES_PER_WORD // 2) * 4
        word = weight[panel, position, k % block // VALUES_PER_WORD, row]
        level = _extract_nibbles(word, cast(shift, "int32")) - cast(
            point[panel, position, row], "int32"
        )
        product = cast(cast(data[(*i[:-1], k)], "int32") * level, "float32")
        return te.sum(product * step[(*i[:-1], position)] * scale[panel, position, row], k)

    attrs = {"inputs": tuple(inputs), "units": units}
    return te.compute(
        (*data.shape[:-1], as_dim(units)),
        sum_over_k,
        name="dense_nibbles_pack",
        tag="dense_nibbles_pack",
        attrs=attrs,
    )


__all__ = ["dense_nibbles", "dense_nibbles_pack"]
