"""Matrix products as tensor expressions, tagged for the kernel families.

out[m, n] = sum over k of a[m, k] b[n, k], in the dtype of the result: operands are cast before they
are multiplied, so that products of bytes are integers, and of 16-bit floats numbers of float32.
What a tag promises (rows that are contiguous in k, a weight in panels) its family counts on.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Var, cast, const, is_const
from ekiden.te import Tensor
from ekiden.te.tensor import BLOCK_ANNOTATIONS_ATTR
from ekiden.topi.broadcast import broadcast_indices
from ekiden.topi.dimensions import as_dim, broadcast_shape
from ekiden.topi.nn.weight_packing import DOT_WORD_BY_KIND, INT16_PAIR_SUMS_FACT, pack_weight_shape


def _transpose_indices(indices: Sequence[PrimExpr], transposed: bool) -> tuple[PrimExpr, ...]:
    """Return indices into a matrix (or a batch of them) that is stored transposed."""
    return (*indices[:-2], indices[-1], indices[-2]) if transposed else tuple(indices)


def _with_bias(product: Tensor, bias: Tensor | None) -> Tensor:
    """Add a vector along the last axis, if there is one."""
    if bias is None:
        return product
    return te.compute(
        product.shape,
        lambda *i: product[i] + cast(bias[i[-1]], product.dtype),
        name="bias_add",
        tag="broadcast",
    )


def dense(
    data: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: str | None = None
) -> Tensor:
    """Multiply data[..., k] by the transpose of weight[n, k], plus bias[n]."""
    dtype = out_dtype or data.dtype
    k = te.reduce_axis((0, weight.shape[1]), "k")
    product = te.compute(
        (*data.shape[:-1], weight.shape[0]),
        lambda *i: te.sum(cast(data[(*i[:-1], k)], dtype) * cast(weight[i[-1], k], dtype), k),
        name="dense",
        tag="dense",
        attrs={"inputs": (data, weight)},
    )
    return _with_bias(product, bias)


def dense_pack(
    data: Tensor,
    weight: Tensor,
    units: int,
    tile: int,
    out_dtype: str = "",
    places: Tensor | None = None,
) -> Tensor:
    """Compute `dense` with the weight packed as `[ceil(units/tile)][k][tile]`, or in words of
    adjacent inputs as `[...][k/word][tile][word]`, optionally with leading batch axes. With word
    indices (`[ceil(units/tile)][r]`) the last r rows of a tile are multiplied by the words of
    data that they name, and sums of two adjacent products fit int16.
    """
    dtype = out_dtype or data.dtype
    word = weight.shape[-1] if len(weight.shape) >= 4 else as_dim(1)
    batch = len(weight.shape) - 4 if len(weight.shape) >= 4 else 0
    k = te.reduce_axis((0, weight.shape[batch + 1] * word), "k")
    words = data.shape[-1] // word

    def load_data(column: PrimExpr) -> PrimExpr:
        """Load the data element of step k; residual words at the end of a panel load the word that
        `places` names.
        """
        step = k // word
        if places is None or is_const(places.shape[1], 0):
            return k
        word_index = cast(places[column // tile, step - words], "int64")
        return if_then_else(step < words, step, word_index) * word + k % word

    def sum_over_k(*i: Var) -> PrimExpr:
        """Return the sum over k; the weight's index has as many axes as its layout."""
        weight_index = (*i[:batch], i[-1] // tile, k // word, i[-1] % tile, k % word)
        factor = weight[weight_index[: len(weight.shape)]]
        return te.sum(cast(data[(*i[:-1], load_data(i[-1]))], dtype) * cast(factor, dtype), k)

    attrs: dict[str, object] = {"inputs": (data, weight), "units": units, "tile": tile}
    if places is not None:
        attrs["places"] = places
        attrs[BLOCK_ANNOTATIONS_ATTR] = {INT16_PAIR_SUMS_FACT: 1}
    return te.compute(
        (*data.shape[:-1], as_dim(units)),
        sum_over_k,
        name="dense_pack",
        tag="dense_pack",
        attrs=attrs,
    )


def matmul(
    tensor_a: Tensor,
    tensor_b: Tensor,
    bias: Tensor | None = None,
    out_dtype: str | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Tensor:
    """Multiply a[..., m, k] by the matrix b[k, n], plus bias[n]; either may be stored
    transposed.
    """
    a, b = tensor_a, tensor_b
    dtype = out_dtype or a.dtype
    columns, depth = b.shape if transpose_b else b.shape[::-1]
    k = te.reduce_axis((0, depth), "k")
    rows = (*a.shape[:-2], a.shape[-1]) if transpose_a else a.shape[:-1]

    def sum_over_k(*i: Var) -> PrimExpr:
        """Sum the products over k, in the accumulation dtype."""
        lhs = a[_transpose_indices((*i[:-1], k), transpose_a)]
        return te.sum(
            cast(lhs, dtype) * cast(b[_transpose_indices((k, i[-1]), transpose_b)], dtype), k
        )

    attrs = {"inputs": (a, b), "transpose_a": transpose_a, "transpose_b": transpose_b}
    product = te.compute((*rows, columns), sum_over_k, name="matmul", tag="matmul", attrs=attrs)
    return _with_bias(product, bias)


def batch_matmul(
    tensor_a: Tensor,
    tensor_b: Tensor,
    oshape: Sequence[PrimExpr] | None = None,
    out_dtype: str | None = None,
    transpose_a: bool = False,
    transpose_b: bool = True,
) -> Tensor:
    """Multiply a matrix per batch; a batch of 1 broadcasts. The second matrices are [n, k] by
    default. (`oshape` is TVM's; the shape follows from the inputs.) Raises ValueError if the
    batches do not broadcast.
    """
    a, b = tensor_a, tensor_b
    dtype = out_dtype or a.dtype
    batch = broadcast_shape(a.shape[:1], b.shape[:1])
    if batch is None:
        raise ValueError(f"batch_matmul: batches {a.shape[0]} and {b.shape[0]} do not broadcast")
    rows, depth = (a.shape[2], a.shape[1]) if transpose_a else a.shape[1:]
    columns = b.shape[1] if transpose_b else b.shape[2]
    k = te.reduce_axis((0, depth), "k")

    def sum_over_k(n: Var, y: Var, x: Var) -> PrimExpr:
        """Return the sum over k; a batch of 1 is shared."""
        (left_batch,) = broadcast_indices((n,), a.shape[:1], batch)
        (right_batch,) = broadcast_indices((n,), b.shape[:1], batch)
        factors = (
            a[_transpose_indices((left_batch, y, k), transpose_a)],
            b[_transpose_indices((right_batch, k, x), transpose_b)],
        )
        return te.sum(cast(factors[0], dtype) * cast(factors[1], dtype), k)

    attrs = {"inputs": (a, b), "transpose_a": transpose_a, "transpose_b": transpose_b}
    return te.compute(
        (*batch, rows, columns), sum_over_k, name="batch_matmul", tag="batch_matmul", attrs=attrs
    )


def pack_weight(weight: Tensor, kind: str, tile: int, groups: int) -> Tensor:
    """Return a weight ([N, K], OIHW or OIDHW) in the layout of the packed kernels, its last tile
    zero-padded.
    """
    shape = pack_weight_shape(weight.shape, kind, tile, groups)
    is_grouped = kind.startswith("group_")
    per_group = weight.shape[0] // groups if is_grouped else weight.shape[0]
    plain, word = kind.startswith("dense"), DOT_WORD_BY_KIND.get(kind)

    def load_packed_element(*i: Var) -> PrimExpr:
        """Return a packed element: the panel's row within the tile, 0 after the group's
        last row.
        """
        indices: tuple[PrimExpr, ...]
        group, indices = (i[0], i[1:]) if is_grouped else (as_dim(0), i)
        if word:
            *outer, step, row, word_element = indices
            indices = (*outer, step * word + word_element, row)
        within = indices[0] * tile + indices[-1]
        inner = indices[1:-1] if plain else (indices[-2], *indices[1:-2])
        load = weight[(group * per_group + within, *inner)]
        return if_then_else(within < per_group, load, const(0, weight.dtype))

    return te.compute(shape, load_packed_element, name="pack_weight", tag="injective")


__all__ = ["batch_matmul", "dense", "dense_pack", "matmul", "pack_weight"]
