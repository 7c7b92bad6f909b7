"""Bit-plane packing of integers into machine words."""

from __future__ import annotations

from ekiden import te
from ekiden.ir.dtype import itemsize
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Var, cast, const
from ekiden.te import Tensor
from ekiden.topi.dimensions import normalize_axis, require_positive, simplify_dim

BITPACK_DTYPES = ("uint8", "uint16", "uint32", "uint64")


def bitpack(
    data: Tensor,
    bits: int = 1,
    pack_axis: int = 1,
    bit_axis: int = 2,
    pack_type: str = "uint32",
    name: str = "QuantizeInput",
) -> Tensor:
    """Pack the lowest `bits` bits of integers into words along `pack_axis`, the first element in
    the highest bit; `bit_axis` of the result counts the bit planes, lowest first. Raises
    ValueError for another word type, and for an axis that is no multiple of its bits.
    """
    if pack_type not in BITPACK_DTYPES:
        allowed = ", ".join(BITPACK_DTYPES)
        raise ValueError(f"bitpack: pack_type must be one of {allowed}, got {pack_type!r}")
    require_positive("bitpack", bits=bits)
    axis_index = normalize_axis(pack_axis, data.ndim, "bitpack")
    plane = normalize_axis(bit_axis, data.ndim + 1, "bitpack")
    width = int(pack_type[4:])
    if bits > 8 * itemsize(data.dtype):
        raise ValueError(f"bitpack: {data.dtype} has no {bits} bits")
    extent = data.shape[axis_index]
    if simplify_dim(extent % width) != 0:
        raise ValueError(f"bitpack: axis {axis_index} must be a multiple of {width}, got {extent}")
    words = [simplify_dim(d // width) if i == axis_index else d for i, d in enumerate(data.shape)]
    k = te.reduce_axis((0, width), "k")

    def pack_word(*i: Var) -> PrimExpr:
        """Pack one bit of each of `width` neighbouring elements into a word."""
        bit = i[plane]
        data_index = [index for n, index in enumerate(i) if n != plane]
        where = [
            index * width + k if n == axis_index else index for n, index in enumerate(data_index)
        ]
        shifted = call_intrin("right_shift", data[where], cast(bit, data.dtype))
        only = cast(call_intrin("bitwise_and", shifted, const(1, data.dtype)), pack_type)
        return te.sum(call_intrin("left_shift", only, cast(width - 1 - k, pack_type)), k)

    return te.compute([*words[:plane], const(bits, "int64"), *words[plane:]], pack_word, name=name)


__all__ = ["bitpack"]
