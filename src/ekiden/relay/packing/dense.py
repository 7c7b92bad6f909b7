"""Packing of dense weights into panels.

nn.dense(%x, W)                       ->  nn.contrib_dense_pack(%x, packed W, units=N, tile=64)
nn.dense(%x u8, W s8)                 ->  the same with four bytes of a row side by side, made so
                                          that sums of two products fit int16 where that is faster;
                                          where bytes are multiplied as int16, two side by side, or
                                          widened to int16
nn.batch_matmul(%x u8, %w s8)         ->  the same with one weight for each of the batch, packed
                                          when it is computed; int16 where bytes are multiplied as
                                          that
nn.batch_matmul(%x s16, %w s16)       ->  the same in words of two
nn.dense(%x bf16, W bf16) in f32      ->  the same with two elements of a row side by side
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ekiden.ir.dtype import itemsize, to_numpy
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Array
from ekiden.ir.prim import is_const
from ekiden.ir.type import TensorType
from ekiden.kernels.cost_model import (
    CACHE_LINE_BYTES,
    are_int16_sums_faster,
    are_int16_weights_faster,
    fills_matrix_unit,
    has_matrix_unit,
    widens_bytes,
)
from ekiden.kernels.family import BYTE_PAIRS, INT16_PAIR_SUMS, MatmulSizes
from ekiden.kernels.micro_kernels.register_tiles import WIDENED_DTYPE
from ekiden.kernels.quantized.int8_dot import split_large_pairs
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Var
from ekiden.relay.op.nn.matrix_products import BatchMatmulAttrs
from ekiden.relay.packing.common import num_rows, panel_width, static_shape, tensor_dtype
from ekiden.relay.transform.language.scope_tree import infer_local_type
from ekiden.target import Target
from ekiden.topi.nn.weight_packing import DOT_WORD_BY_DTYPE, DOT_WORD_CHANNELS, pack_weight

DENSE_PACK_FAMILY = "dense_pack"


def pack_dense(call: Call, target: Target) -> RelayExpr:
    """Pack the weight of a float32 dense layer."""
    weight = call.args[1]
    assert isinstance(weight, Constant)
    units, depth = weight.data.shape
    product = MatmulSizes(num_rows(call), units, depth)
    tile = max(
        panel_width(DENSE_PACK_FAMILY, product, target, call), 1
    )  # of no units a panel is none wide
    packed = op.nn.contrib_pack_weight(weight, kind="dense", tile=tile)
    return op.nn.contrib_dense_pack(call.args[0], packed, units=units, tile=tile).with_fields(
        span=call.span
    )


def pack_int8_dense(call: Call, target: Target) -> RelayExpr:
    """Pack the weight of an int8 or bfloat16 dense layer into dot-product words along k."""
    data, weight = call.args
    assert isinstance(weight, Constant)
    units, depth = weight.data.shape
    missing = -depth % DOT_WORD_BY_DTYPE[tensor_dtype(data)]
    # Both sides are padded with zeros to full words.
    if missing:
        shape = data.checked_type
        assert isinstance(shape, TensorType)
        rows = ((0, 0),) * (len(shape.shape) - 1)
        zero = Constant(np.zeros((), to_numpy(shape.dtype)))
        data = op.nn.pad(data, (*rows, (0, missing)), zero)
        weight = Constant(np.pad(weight.data, ((0, 0), (0, missing))), span=weight.span)
    word = DOT_WORD_BY_DTYPE[tensor_dtype(call.args[0])]
    product = MatmulSizes(num_rows(call), units, -(-depth // word), tensor_dtype(call.args[0]))
    kind = "dense_bf16" if tensor_dtype(call.args[0]) == "bfloat16" else "dense_u8s8"
    out = tensor_dtype(call)
    in_matrices = has_matrix_unit(product.dtype, target) and fills_matrix_unit(product)
    if in_matrices and isinstance(data, Var):
        data = _aligned_rows(data, depth + missing)
    if kind == "dense_u8s8" and (narrowed := _choose_panel(call, weight.data, product, target)):
        tile, words, word_indices = narrowed
        packed = op.nn.contrib_dense_pack(
            data, Constant(words, span=weight.span), units, tile, out, Constant(word_indices)
        )
        return packed.with_fields(span=call.span)
    if kind == "dense_u8s8" and widens_bytes(target):
        kind, product, weight = pair_words(kind, product, weight, target)
    tile = panel_width(DENSE_PACK_FAMILY, product, target, call)
    packed = op.nn.contrib_pack_weight(weight, kind=kind, tile=tile)
    return op.nn.contrib_dense_pack(data, packed, units, tile, out).with_fields(span=call.span)


def _aligned_rows(data: RelayExpr, depth: int) -> RelayExpr:
    """Return a copy of a parameter whose rows are whole cache lines, and others as they are.

    Matrix registers load rows by cache lines, each panel again. Callers' arrays begin at any 16
    bytes, where every load takes two lines (a Xeon with AMX, 128x768x768 of bytes: 93 us, 46 with
    rows at lines, and the copy 2).
    """
    is_whole = depth * itemsize(tensor_dtype(data)) % CACHE_LINE_BYTES == 0
    return infer_local_type(op.copy(data)) if is_whole else data


def pair_words(
    kind: str,
    product: MatmulSizes,
    weight: Constant,
    target: Target,
    assumed_rows: int | None = None,
) -> tuple[str, MatmulSizes, Constant]:
    """Return the packing kind, sizes and weight of a product of words of two bytes, or of int16
    where that is faster.

    Args:
        kind: The kind of words of four.
        product: The sizes of the product, in words of four.
        weight: The weight of int8.
        target: The processor, which multiplies bytes as int16.
        assumed_rows: The number of rows where it is not known.
    """
    paired = paired_sizes(product, BYTE_PAIRS)
    if not are_int16_weights_faster(replace(paired, rows=product.rows or assumed_rows), target):
        return f"{kind}_pairs", paired, weight
    widened = Constant(weight.data.astype(WIDENED_DTYPE), span=weight.span)
    return kind.replace("s8", "s16"), replace(paired, dtype=WIDENED_DTYPE), widened


def paired_sizes(product: MatmulSizes, dtype: str) -> MatmulSizes:
    """Return the sizes of a product in words of four as those in words of two."""
    assert product.depth is not None
    return replace(product, depth=2 * product.depth, dtype=dtype)


def pack_integer_batch_matmul(call: Call, target: Target) -> RelayExpr:
    """Pack the right operand of a batch_matmul of bytes or int16 at run time.

    It is the call itself if their sizes are not known.
    """
    attrs, (data, weight) = call.attrs, call.args
    assert isinstance(attrs, BatchMatmulAttrs)
    shape, data_type = static_shape(weight), data.checked_type
    assert isinstance(data_type, TensorType)
    batch = data_type.shape[0]
    if shape is None or 0 in shape or not is_const(batch, shape[0]):
        return call
    count, *sides = shape
    units, depth = sides if attrs.transpose_b else reversed(sides)
    words = -(-depth // DOT_WORD_CHANNELS)
    product = MatmulSizes(num_rows(call, 1), units, words, "uint8")
    # Packing moves each element anyway, and widens it for little.
    if widens_bytes(target) and tensor_dtype(weight) != WIDENED_DTYPE:
        weight = infer_local_type(op.cast(weight, WIDENED_DTYPE))
    if tensor_dtype(weight) == WIDENED_DTYPE:
        product = paired_sizes(product, WIDENED_DTYPE)
    weight_dtype = tensor_dtype(weight)
    word = DOT_WORD_BY_DTYPE[weight_dtype]
    tile = panel_width(DENSE_PACK_FAMILY, product, target, call)
    if attrs.transpose_a:
        data = infer_local_type(op.transpose(data, (0, 2, 1)))
    if not attrs.transpose_b:
        if units % tile == 0 and depth % word == 0:
            packed = _interleave_rows(weight, (count, depth, units), tile, word)
            product_call = op.nn.contrib_dense_pack(data, packed, units, tile, tensor_dtype(call))
            return product_call.with_fields(span=call.span)
        weight = infer_local_type(op.transpose(weight, (0, 2, 1)))
    missing, none = -depth % word, (0, 0)
    if missing:
        zeros = [Constant(np.zeros((), dtype)) for dtype in (tensor_dtype(data), weight_dtype)]
        data = op.nn.pad(data, (none, none, (0, missing)), zeros[0])
        weight = op.nn.pad(weight, (none, none, (0, missing)), zeros[1])
    depth += missing
    # The batch is packed as the groups of one pointwise convolution.
    plain = op.reshape(weight, (count * units, depth, 1, 1))
    kind_by_dtype = {"int8": "group_conv2d_u8s8", WIDENED_DTYPE: "group_conv2d_u8s16"}
    packed = op.nn.contrib_pack_weight(plain, kind_by_dtype[weight_dtype], tile, count)
    packed = op.reshape(packed, (count, -(-units // tile), depth // word, tile, word))
    product_call = op.nn.contrib_dense_pack(data, packed, units, tile, tensor_dtype(call))
    return product_call.with_fields(span=call.span)


def _interleave_rows(
    weight: RelayExpr, shape: tuple[int, int, int], tile: int, word: int
) -> RelayExpr:
    """Pack [batch][k][columns] to [batch][column // tile][k // word][column % tile][k % word] in
    one pass over whole words and panels.
    """
    count, depth, units = shape
    words = (count, depth // word, word, units // tile, tile)
    return op.transpose(op.reshape(weight, words), (0, 3, 1, 4, 2))


def _choose_panel(
    call: Call, weight: Array, product: MatmulSizes, target: Target
) -> tuple[int, Array, Array] | None:
    """Return (panel width, words, word indices) for a weight, or None.

    Sums of two products fit int16 with it; None means that this is not faster.
    """
    if has_matrix_unit(product.dtype, target):
        return None
    narrow = replace(product, dtype=INT16_PAIR_SUMS)
    tile = panel_width(DENSE_PACK_FAMILY, narrow, target, call)
    words, word_indices = split_large_pairs(pack_weight(weight, "dense_u8s8", tile))
    if not are_int16_sums_faster(word_indices.shape[1], product.depth or 0, target):
        return None
    return tile, words, word_indices
