"""Matrix products: dense, matmul, batch_matmul and packed dense.

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
from ekiden.ir.op import Array, OpDef, OpPattern, PrecisionPolicy, register_op
from ekiden.ir.prim import PrimExpr, is_const
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    call_shape_rule,
    check_attrs,
    check_min_rank,
    check_rank,
    check_same_dtype,
    check_tensors,
    raise_type_error,
    unify_dims,
)
from ekiden.relay.op.broadcast import infer_broadcast_shape
from ekiden.relay.op.nn._infer_params import infer_dense_weight
from ekiden.relay.op.nn._macs import count_matmul_macs
from ekiden.topi.dimensions import as_dim, simplify_dim
from ekiden.topi.nn.weight_packing import (
    DOT_WORD_BY_DTYPE,
    PACKED_WEIGHT_KINDS,
    WORD_PAIR_ELEMENTS,
    pack_weight_shape,
    pack_weight_view,
    unpack_dense_weight,
)


@node("relay.attrs.DenseAttrs")
class DenseAttrs(Attrs):
    """Attributes of dense: the number of units (checked if given), and the output dtype ("": the
    data's).
    """

    units: int | None = None
    out_dtype: str = ""


def _dense_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    data, weight = check_tensors("nn.dense", types, 2)
    settings = check_attrs(DenseAttrs, attrs)
    check_min_rank("nn.dense", data, 1, "data")
    check_rank("nn.dense", weight, 2, "weight")
    # The kernels of x86-64's VNNI take unsigned data and signed weights.
    is_bytes = (data.dtype, weight.dtype, settings.out_dtype) == ("uint8", "int8", "int32")
    dtype = "int32" if is_bytes else check_same_dtype("nn.dense", (data, weight))
    unify_dims(
        "nn.dense", data.shape[-1], weight.shape[1], "the last dimensions of 'data' and 'weight'"
    )
    if settings.units is not None:
        unify_dims(
            "nn.dense",
            as_dim(settings.units),
            weight.shape[0],
            "attribute 'units' and rows of 'weight'",
        )
    return TensorType((*data.shape[:-1], weight.shape[0]), settings.out_dtype or dtype)


def _matmul_in_accumulator_dtype(out_dtype: str, a: Array, b: Array) -> Array:
    """Multiply matrices as kernels accumulate: 16-bit floats in float32, others in the result's
    dtype.
    """
    dtype = to_numpy(out_dtype or str(a.dtype))
    # Rounded once, at the end, as kernels do.
    wide = np.dtype("float32") if dtype.itemsize == 2 and dtype.kind in "fV" else dtype
    return np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(dtype, copy=False)


register_op(
    OpDef(
        name="nn.dense",
        channels=(-1, 0),
        precision=PrecisionPolicy.ALWAYS,
        arguments=("data", "weight"),
        attrs=DenseAttrs,
        relation=_dense_relation,
        solve=infer_dense_weight,
        macs=count_matmul_macs,
        reference=lambda attrs, data, weight: _matmul_in_accumulator_dtype(
            attrs.out_dtype, data, weight.T
        ),
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
    return call_op("nn.dense", data, weight, attrs=DenseAttrs(units, out_dtype))


@node("relay.attrs.MatmulAttrs")
class MatmulAttrs(Attrs):
    """Attributes of matmul: those of dense, and whether each operand is transposed."""

    units: int | None = None
    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = False


def _matmul_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    a, b = check_tensors("nn.matmul", types, 2)
    settings = check_attrs(MatmulAttrs, attrs)
    check_min_rank("nn.matmul", a, 2 if settings.transpose_a else 1, "tensor_a")
    check_rank("nn.matmul", b, 2, "tensor_b")
    dtype = check_same_dtype("nn.matmul", (a, b))
    rows = (*a.shape[:-2], a.shape[-1]) if settings.transpose_a else a.shape[:-1]
    inner = a.shape[-2] if settings.transpose_a else a.shape[-1]
    columns, depth = b.shape if settings.transpose_b else b.shape[::-1]
    unify_dims("nn.matmul", inner, depth, "the summed dimensions")
    if settings.units is not None:
        unify_dims("nn.matmul", as_dim(settings.units), columns, "attribute 'units' and 'tensor_b'")
    return TensorType((*rows, columns), settings.out_dtype or dtype)


def _transpose_if(array: Array, transposed: bool) -> Array:
    return np.swapaxes(array, -1, -2) if transposed else array


def _matmul_reference(attrs: MatmulAttrs | BatchMatmulAttrs, a: Array, b: Array) -> Array:
    return _matmul_in_accumulator_dtype(
        attrs.out_dtype, _transpose_if(a, attrs.transpose_a), _transpose_if(b, attrs.transpose_b)
    )


register_op(
    OpDef(
        name="nn.matmul",
        precision=PrecisionPolicy.ALWAYS,
        arguments=("tensor_a", "tensor_b"),
        attrs=MatmulAttrs,
        relation=_matmul_relation,
        solve=infer_dense_weight,
        macs=count_matmul_macs,
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
    """Return the matrix product of tensor_a[..., m, k] and tensor_b[k, n]."""
    return call_op(
        "nn.matmul",
        tensor_a,
        tensor_b,
        attrs=MatmulAttrs(units, out_dtype, transpose_a, transpose_b),
    )


@node("relay.attrs.BatchMatmulAttrs")
class BatchMatmulAttrs(Attrs):
    """Attributes of batch_matmul: output dtype, and whether each operand is transposed (TVM's
    default: the second).
    """

    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = True


def _batch_matmul_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.batch_matmul"
    x, y = check_tensors(name, types, 2)
    settings = check_attrs(BatchMatmulAttrs, attrs)
    check_rank(name, x, 3, "tensor_a")
    check_rank(name, y, 3, "tensor_b")
    is_bytes = (x.dtype, y.dtype, settings.out_dtype) == PACKED_DOT_DTYPES[0]
    dtype = "int32" if is_bytes else check_same_dtype(name, (x, y))
    # The last two dimensions, reversed.
    rows, inner = x.shape[:0:-1] if settings.transpose_a else x.shape[1:]
    columns, depth = y.shape[1:] if settings.transpose_b else y.shape[:0:-1]
    unify_dims(name, inner, depth, "the summed dimensions")
    # A batch of 1 is shared by all others, without copies of it.
    batch = infer_broadcast_shape(name, (TensorType(x.shape[:1]), TensorType(y.shape[:1])))
    return TensorType((*batch, rows, columns), settings.out_dtype or dtype)


register_op(
    OpDef(
        name="nn.batch_matmul",
        precision=PrecisionPolicy.ALWAYS,
        arguments=("tensor_a", "tensor_b"),
        attrs=BatchMatmulAttrs,
        relation=_batch_matmul_relation,
        macs=count_matmul_macs,
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
    """Return the batched matrix product of tensor_a[b, m, k] and the transpose of tensor_b[b, n,
    k].

    A batch of 1 broadcasts.
    """
    return call_op(
        "nn.batch_matmul",
        tensor_a,
        tensor_b,
        attrs=BatchMatmulAttrs(out_dtype, transpose_a, transpose_b),
    )


@node("relay.attrs.DensePackAttrs")
class DensePackAttrs(Attrs):
    """Attributes of contrib_dense_pack: the number of units and the tile width."""

    units: int = 0
    tile: int = 16
    out_dtype: str = ""


PACKED_DOT_DTYPES = (
    ("uint8", "int8", "int32"),
    ("uint8", "int16", "int32"),
    ("int16", "int16", "int32"),
    ("bfloat16", "bfloat16", "float32"),
)
"""Supported (data, weight, result) dtypes of products with weights packed in words."""


def _dense_pack_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.contrib_dense_pack"
    data, weight, *word_indices = check_tensors(name, types, len(types))
    settings = check_attrs(DensePackAttrs, attrs)
    check_min_rank(name, data, 1, "data")
    dtypes = {"data": data.dtype, "weight": weight.dtype}
    is_batched = len(weight.shape) == 5
    if is_batched:
        check_rank(name, data, 3, "data")
        unify_dims(name, data.shape[0], weight.shape[0], "the batches of 'data' and of 'weight'")
        weight = TensorType(weight.shape[1:], weight.dtype)
    if len(weight.shape) == 4:
        if (data.dtype, weight.dtype, settings.out_dtype) not in PACKED_DOT_DTYPES:
            takes = " or ".join(f"{a} and {b} to {c}" for a, b, c in PACKED_DOT_DTYPES)
            raise_type_error(name, f"a weight of words takes {takes}, got {dtypes}")
        word = DOT_WORD_BY_DTYPE[weight.dtype]
        if weight.dtype == "int8" and not word_indices:
            word = WORD_PAIR_ELEMENTS if is_const(weight.shape[3], WORD_PAIR_ELEMENTS) else word
        unify_dims(name, as_dim(word), weight.shape[3], "the elements of a word")
        # Rows with listed places come on top of those for the words of data.
        depth = simplify_dim((weight.shape[1] - _num_index_rows(name, weight, word_indices)) * word)
    else:
        check_rank(name, weight, 3, "weight")
        if word_indices:
            raise_type_error(name, "'places' are of a weight of words, not one of rank 3")
        check_same_dtype(name, (data, weight))
        depth = weight.shape[1]
    if is_batched and word_indices:
        raise_type_error(name, "'places' are of one weight, not of a batch")
    unify_dims(name, data.shape[-1], depth, "the summed dimensions")
    # The last tile is filled up: the attribute has the true number of units.
    tiles = as_dim(-(-settings.units // settings.tile))
    unify_dims(name, tiles, weight.shape[0], "the tiles of attribute 'units' and of 'weight'")
    unify_dims(
        name,
        as_dim(settings.tile),
        weight.shape[2],
        "attribute 'tile' and the third dimension of 'weight'",
    )
    return TensorType((*data.shape[:-1], as_dim(settings.units)), settings.out_dtype or data.dtype)


def _num_index_rows(name: str, weight: TensorType, word_indices: Sequence[TensorType]) -> PrimExpr:
    """Return the number of rows per tile whose word indices are stored."""
    # Without the list every word of the depth is stored.
    if not word_indices:
        return as_dim(0)
    (listed,) = word_indices
    check_rank(name, listed, 2, "places")
    if listed.dtype != "int32" or weight.dtype != "int8":
        dtypes = f"{listed.dtype} and {weight.dtype}"
        raise_type_error(name, f"'places' of int32 and a weight of int8 expected, got {dtypes}")
    unify_dims(name, listed.shape[0], weight.shape[0], "the tiles of 'places' and of 'weight'")
    return listed.shape[1]


def _dense_pack_reference(
    attrs: DensePackAttrs, data: Array, weight: Array, word_indices: Array | None = None
) -> Array:
    if weight.ndim == 5:
        unpacked = np.stack([unpack_dense_weight(matrix, attrs.units) for matrix in weight])
        return _matmul_in_accumulator_dtype(attrs.out_dtype, data, unpacked.swapaxes(1, 2))
    plain = unpack_dense_weight(weight, attrs.units, word_indices)
    return _matmul_in_accumulator_dtype(attrs.out_dtype, data, plain.T)


register_op(
    OpDef(
        name="nn.contrib_dense_pack",
        kernels=("dense_pack",),
        arguments=("data", "weight", "places"),
        optional=1,
        attrs=DensePackAttrs,
        relation=_dense_pack_relation,
        macs=count_matmul_macs,
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
    """Return `dense` with a weight packed by `contrib_pack_weight`: `[ceil(units/tile)][k][tile]`.

    Args:
        data: The data.
        weight: The packed weight.
        units: The true number of results per row.
        tile: The width of a tile.
        out_dtype: The dtype of the result.
        places: `int32[ceil(units/tile)][r]`, for weights of bytes. The last r rows of a tile are
            multiplied with the words of data that these numbers select. Every sum of the products
            of two neighbours must then fit int16, which is not checked.
    """
    args = (data, weight) if places is None else (data, weight, places)
    return call_op("nn.contrib_dense_pack", *args, attrs=DensePackAttrs(units, tile, out_dtype))


@node("relay.attrs.PackWeightAttrs")
class PackWeightAttrs(Attrs):
    """Attributes of contrib_pack_weight: the layer kind ("dense", "conv2d", "group_conv2d"), tile
    width, groups.
    """

    kind: str = "dense"
    tile: int = 16
    groups: int = 1


def _pack_weight_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "nn.contrib_pack_weight"
    (weight,) = check_tensors(name, types, 1)
    settings = check_attrs(PackWeightAttrs, attrs)
    if settings.kind not in PACKED_WEIGHT_KINDS:
        raise_type_error(
            name, f"kind must be one of {', '.join(PACKED_WEIGHT_KINDS)}, got {settings.kind!r}"
        )
    if settings.kind.startswith("dense") or len(weight.shape) != 5:
        check_rank(name, weight, 2 if settings.kind.startswith("dense") else 4, "weight")
    shape = call_shape_rule(
        name, pack_weight_shape, weight.shape, settings.kind, settings.tile, settings.groups
    )
    return TensorType(shape, weight.dtype)


register_op(
    OpDef(
        name="nn.contrib_pack_weight",
        arguments=("weight",),
        attrs=PackWeightAttrs,
        relation=_pack_weight_relation,
        reference=lambda attrs, weight: pack_weight_view(
            weight, attrs.kind, attrs.tile, attrs.groups
        ),
        lower=lambda attrs, inputs, out: [
            topi.nn.pack_weight(inputs[0], attrs.kind, attrs.tile, attrs.groups)
        ],
        pattern=OpPattern.INJECTIVE,
        result="the shape of the packed weight: tiles of `tile` results, the last one padded",
    )
)


def contrib_pack_weight(weight: Expr, kind: str, tile: int, groups: int = 1) -> Call:
    """Pack a weight ([N, K], OIHW or OIDHW) into the panel layout of the packed kernels.

    It is meant to be folded when the weight is constant.
    """
    return call_op("nn.contrib_pack_weight", weight, attrs=PackWeightAttrs(kind, tile, groups))


__all__ = [
    "batch_matmul", "contrib_dense_pack", "contrib_pack_weight", "dense", "matmul",
]  # fmt: skip
