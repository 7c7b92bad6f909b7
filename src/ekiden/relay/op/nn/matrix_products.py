"""Matrix products.

    nn.dense         y[.., n] = sum over k of x[.., k] w[n, k]            w as PyTorch keeps it
    nn.matmul        y[.., m, n] = sum over k of a[.., m, k] b[k, n]      flags transpose either
    nn.batch_matmul  the same for each of a batch, the second transposed by default (TVM's)

`out_dtype` is that of the result and of no cast behind it: products of int8 are summed in int32,
those of 16-bit floats in float32, and rounded once. Overflow of integers wraps around.

Of a weight that is known, packing makes nn.contrib_dense_pack with [ceil(n / tile)][k][tile]: a
tile is a row of vector registers, and a kernel reads the weight as one stream. Words put the 4
bytes, or 2 bfloat16, that one instruction multiplies beside each other: [..][k / word][tile][word].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, Precision, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    agree,
    attempt,
    attrs_of,
    call,
    fail,
    one_dtype,
    rank_at_least,
    rank_is,
    tensors,
)
from ekiden.relay.op.broadcast import broadcast_types
from ekiden.relay.op.nn._solve import matrix
from ekiden.relay.op.nn._work import of_product
from ekiden.topi.dimensions import as_dim, tidy
from ekiden.topi.nn.weights import (
    PACKED_KINDS,
    WORD_BY_DTYPE,
    pack_weight_shape,
    packed_view,
    unpack_dense_weight,
)


@node("relay.attrs.DenseAttrs")
class DenseAttrs(Attrs):
    """The number of results per row, if it is to be checked, and the result's dtype (none: the
    data's)."""

    units: int | None = None
    out_dtype: str = ""


def _dense_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = tensors("nn.dense", types, 2)
    settings = attrs_of(DenseAttrs, attrs)
    rank_at_least("nn.dense", data, 1, "data")
    rank_is("nn.dense", weight, 2, "weight")
    is_bytes = (data.dtype, weight.dtype, settings.out_dtype) == ("uint8", "int8", "int32")
    dtype = "int32" if is_bytes else one_dtype("nn.dense", (data, weight))
    agree("nn.dense", data.shape[-1], weight.shape[1], "the last dimensions of 'data' and 'weight'")
    if settings.units is not None:
        agree(
            "nn.dense",
            as_dim(settings.units),
            weight.shape[0],
            "attribute 'units' and rows of 'weight'",
        )
    return TensorType((*data.shape[:-1], weight.shape[0]), settings.out_dtype or dtype)


def _product(out_dtype: str, a: Array, b: Array) -> Array:
    """Return the product as kernels sum it: 16-bit floats in float32, all else in the result's
    type.
    """
    dtype = to_numpy(out_dtype or str(a.dtype))
    wide = np.dtype("float32") if dtype.itemsize == 2 and dtype.kind in "fV" else dtype
    return np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(dtype, copy=False)


register_op(
    OpDef(
        name="nn.dense",
        channels=(-1, 0),
        precision=Precision.ALWAYS,
        arguments=("data", "weight"),
        attrs=DenseAttrs,
        relation=_dense_relation,
        solve=matrix,
        macs=of_product,
        reference=lambda attrs, data, weight: _product(attrs.out_dtype, data, weight.T),
        lower=lambda attrs, inputs, out: [
            topi.nn.dense(inputs[0], inputs[1], None, attrs.out_dtype)
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., units): data's shape with its last dimension replaced by the rows of weight",
    )
)


def dense(data: Expr, weight: Expr, units: int | None = None, out_dtype: str = "") -> Call:
    """Return data[..., k] times the transpose of weight[units, k].

    Operands are of one dtype, or uint8 and int8 with int32 results.
    """
    return call("nn.dense", data, weight, attrs=DenseAttrs(units, out_dtype))


@node("relay.attrs.MatmulAttrs")
class MatmulAttrs(Attrs):
    """As DenseAttrs, with whether each side is transposed."""

    units: int | None = None
    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = False


def _matmul_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    a, b = tensors("nn.matmul", types, 2)
    settings = attrs_of(MatmulAttrs, attrs)
    rank_at_least("nn.matmul", a, 2 if settings.transpose_a else 1, "tensor_a")
    rank_is("nn.matmul", b, 2, "tensor_b")
    dtype = one_dtype("nn.matmul", (a, b))
    rows = (*a.shape[:-2], a.shape[-1]) if settings.transpose_a else a.shape[:-1]
    inner = a.shape[-2] if settings.transpose_a else a.shape[-1]
    columns, depth = b.shape if settings.transpose_b else b.shape[::-1]
    agree("nn.matmul", inner, depth, "the summed dimensions")
    if settings.units is not None:
        agree("nn.matmul", as_dim(settings.units), columns, "attribute 'units' and 'tensor_b'")
    return TensorType((*rows, columns), settings.out_dtype or dtype)


def _swap(array: Array, transposed: bool) -> Array:
    return np.swapaxes(array, -1, -2) if transposed else array


def _matmul_reference(attrs: MatmulAttrs | BatchMatmulAttrs, a: Array, b: Array) -> Array:
    return _product(attrs.out_dtype, _swap(a, attrs.transpose_a), _swap(b, attrs.transpose_b))


register_op(
    OpDef(
        name="nn.matmul",
        precision=Precision.ALWAYS,
        arguments=("tensor_a", "tensor_b"),
        attrs=MatmulAttrs,
        relation=_matmul_relation,
        solve=matrix,
        macs=of_product,
        reference=_matmul_reference,
        lower=lambda attrs, inputs, out: [
            topi.nn.matmul(
                inputs[0],
                inputs[1],
                out_dtype=attrs.out_dtype,
                transpose_a=attrs.transpose_a,
                transpose_b=attrs.transpose_b,
            )
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., m, n) of tensor_a[..., m, k] and tensor_b[k, n], after the transpositions",
    )
)


def matmul(
    tensor_a: Expr,
    tensor_b: Expr,
    units: int | None = None,
    out_dtype: str = "",
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Call:
    """Return the product of tensor_a[..., m, k] and the matrix tensor_b[k, n]."""
    return call(
        "nn.matmul",
        tensor_a,
        tensor_b,
        attrs=MatmulAttrs(units, out_dtype, transpose_a, transpose_b),
    )


@node("relay.attrs.BatchMatmulAttrs")
class BatchMatmulAttrs(Attrs):
    """The result's dtype and whether each side is transposed (TVM's default: the second one)."""

    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = True


def _batch_matmul_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.batch_matmul"
    x, y = tensors(name, types, 2)
    settings = attrs_of(BatchMatmulAttrs, attrs)
    rank_is(name, x, 3, "tensor_a")
    rank_is(name, y, 3, "tensor_b")
    is_bytes = (x.dtype, y.dtype, settings.out_dtype) == WORDS[0]
    dtype = "int32" if is_bytes else one_dtype(name, (x, y))
    rows, inner = x.shape[:0:-1] if settings.transpose_a else x.shape[1:]
    columns, depth = y.shape[1:] if settings.transpose_b else y.shape[:0:-1]
    agree(name, inner, depth, "the summed dimensions")
    batch = broadcast_types(name, (TensorType(x.shape[:1]), TensorType(y.shape[:1])))
    return TensorType((*batch, rows, columns), settings.out_dtype or dtype)


register_op(
    OpDef(
        name="nn.batch_matmul",
        precision=Precision.ALWAYS,
        arguments=("tensor_a", "tensor_b"),
        attrs=BatchMatmulAttrs,
        relation=_batch_matmul_relation,
        macs=of_product,
        reference=_matmul_reference,
        lower=lambda attrs, inputs, out: [
            topi.nn.batch_matmul(
                inputs[0],
                inputs[1],
                out_dtype=attrs.out_dtype,
                transpose_a=attrs.transpose_a,
                transpose_b=attrs.transpose_b,
            )
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(batch, m, n) of [batch, m, k] and [batch, k, n], after the transpositions; a "
        "batch of 1 broadcasts",
    )
)


def batch_matmul(
    tensor_a: Expr,
    tensor_b: Expr,
    out_dtype: str = "",
    transpose_a: bool = False,
    transpose_b: bool = True,
) -> Call:
    """Return a matrix product per batch: tensor_a[b, m, k] times tensor_b[b, n, k] transposed.

    A batch of 1 broadcasts.
    """
    return call(
        "nn.batch_matmul",
        tensor_a,
        tensor_b,
        attrs=BatchMatmulAttrs(out_dtype, transpose_a, transpose_b),
    )


@node("relay.attrs.DensePackAttrs")
class DensePackAttrs(Attrs):
    """The true number of results per row, and the width of a tile."""

    units: int = 0
    tile: int = 16
    out_dtype: str = ""


WORDS = (("uint8", "int8", "int32"), ("bfloat16", "bfloat16", "float32"))
"""Of products whose weight is packed in words: data, weight, result."""


def _dense_pack_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.contrib_dense_pack"
    data, weight, *word_indices = tensors(name, types, len(types))
    settings = attrs_of(DensePackAttrs, attrs)
    rank_at_least(name, data, 1, "data")
    dtypes = {"data": data.dtype, "weight": weight.dtype}
    is_batched = len(weight.shape) == 5
    if is_batched:
        rank_is(name, data, 3, "data")
        agree(name, data.shape[0], weight.shape[0], "the batches of 'data' and of 'weight'")
        weight = TensorType(weight.shape[1:], weight.dtype)
    if len(weight.shape) == 4:
        if (data.dtype, weight.dtype, settings.out_dtype) not in WORDS:
            takes = " or ".join(f"{a} and {b} to {c}" for a, b, c in WORDS)
            fail(name, f"a weight of words takes {takes}, got {dtypes}")
        word = WORD_BY_DTYPE[weight.dtype]
        agree(name, as_dim(word), weight.shape[3], "the elements of a word")
        depth = tidy((weight.shape[1] - _listed(name, weight, word_indices)) * word)
    else:
        rank_is(name, weight, 3, "weight")
        if word_indices:
            fail(name, "'places' are of a weight of words, not one of rank 3")
        one_dtype(name, (data, weight))
        depth = weight.shape[1]
    if is_batched and word_indices:
        fail(name, "'places' are of one weight, not of a batch")
    agree(name, data.shape[-1], depth, "the summed dimensions")
    tiles = as_dim(-(-settings.units // settings.tile))
    agree(name, tiles, weight.shape[0], "the tiles of attribute 'units' and of 'weight'")
    agree(
        name,
        as_dim(settings.tile),
        weight.shape[2],
        "attribute 'tile' and the third dimension of 'weight'",
    )
    return TensorType((*data.shape[:-1], as_dim(settings.units)), settings.out_dtype or data.dtype)


def _listed(name: str, weight: TensorType, word_indices: Sequence[TensorType]) -> PrimExpr:
    """Return how many rows of a tile have their word indices listed."""
    if not word_indices:
        return as_dim(0)
    (listed,) = word_indices
    rank_is(name, listed, 2, "places")
    if listed.dtype != "int32" or weight.dtype != "int8":
        dtypes = f"{listed.dtype} and {weight.dtype}"
        fail(name, f"'places' of int32 and a weight of int8 expected, got {dtypes}")
    agree(name, listed.shape[0], weight.shape[0], "the tiles of 'places' and of 'weight'")
    return listed.shape[1]


def _dense_pack_reference(
    attrs: DensePackAttrs, data: Array, weight: Array, word_indices: Array | None = None
) -> Array:
    if weight.ndim == 5:
        unpacked = np.stack([unpack_dense_weight(matrix, attrs.units) for matrix in weight])
        return _product(attrs.out_dtype, data, unpacked.swapaxes(1, 2))
    plain = unpack_dense_weight(weight, attrs.units, word_indices)
    return _product(attrs.out_dtype, data, plain.T)


register_op(
    OpDef(
        name="nn.contrib_dense_pack",
        kernels=("dense_pack",),
        arguments=("data", "weight", "places"),
        optional=1,
        attrs=DensePackAttrs,
        relation=_dense_pack_relation,
        macs=of_product,
        reference=_dense_pack_reference,
        lower=lambda attrs, inputs, out: [
            topi.nn.dense_pack(
                inputs[0],
                inputs[1],
                attrs.units,
                attrs.tile,
                attrs.out_dtype,
                inputs[2] if len(inputs) > 2 else None,
            )
        ],
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
        result="(..., units)",
    )
)


def contrib_dense_pack(
    data: Expr,
    weight: Expr,
    units: int,
    tile: int,
    out_dtype: str = "",
    places: Expr | None = None,
) -> Call:
    """Return `dense` with a weight that `contrib_pack_weight` packed:
    `[ceil(units/tile)][k][tile]`.

    Args:
        data: The data.
        weight: The packed weight.
        units: The true number of results per row.
        tile: The width of a tile.
        out_dtype: The dtype of the result.
        places: `int32[ceil(units/tile)][r]`, for weights of bytes. The last r rows of a tile are
            multiplied with the words of data that these numbers select. Every sum of the products
            of
            two neighbours must then fit int16, which is not checked.
    """
    args = (data, weight) if places is None else (data, weight, places)
    return call("nn.contrib_dense_pack", *args, attrs=DensePackAttrs(units, tile, out_dtype))


@node("relay.attrs.PackWeightAttrs")
class PackWeightAttrs(Attrs):
    """What the weight is of ("dense", "conv2d", "group_conv2d"), the width of a tile, and the
    number of groups."""

    kind: str = "dense"
    tile: int = 16
    groups: int = 1


def _pack_weight_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.contrib_pack_weight"
    (weight,) = tensors(name, types, 1)
    settings = attrs_of(PackWeightAttrs, attrs)
    if settings.kind not in PACKED_KINDS:
        fail(name, f"kind must be one of {', '.join(PACKED_KINDS)}, got {settings.kind!r}")
    if settings.kind.startswith("dense") or len(weight.shape) != 5:
        rank_is(name, weight, 2 if settings.kind.startswith("dense") else 4, "weight")
    shape = attempt(
        name, pack_weight_shape, weight.shape, settings.kind, settings.tile, settings.groups
    )
    return TensorType(shape, weight.dtype)


register_op(
    OpDef(
        name="nn.contrib_pack_weight",
        arguments=("weight",),
        attrs=PackWeightAttrs,
        relation=_pack_weight_relation,
        reference=lambda attrs, weight: packed_view(weight, attrs.kind, attrs.tile, attrs.groups),
        lower=lambda attrs, inputs, out: [
            topi.nn.pack_weight(inputs[0], attrs.kind, attrs.tile, attrs.groups)
        ],
        pattern=OpPattern.INJECTIVE,
        result="the shape of the packed weight: tiles of `tile` results, the last one padded",
    )
)


def contrib_pack_weight(weight: Expr, kind: str, tile: int, groups: int = 1) -> Call:
    """Return a weight ([N, K], OIHW or OIDHW) in the layout of the packed kernels.

    It is meant to be folded when the weight is constant.
    """
    return call("nn.contrib_pack_weight", weight, attrs=PackWeightAttrs(kind, tile, groups))


__all__ = [
    "batch_matmul", "contrib_dense_pack", "contrib_pack_weight", "dense", "matmul",
]  # fmt: skip
