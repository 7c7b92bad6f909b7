"""Sparse matrix operators (CSR and BSR).

    CSR: data[nnz], indices[nnz], indptr[rows + 1]    row r has indices[indptr[r] : indptr[r + 1]]
    BSR: data[nnz, br, bc]                            the same, of blocks

Both name columns by data, which a run checks before it reads by them. Blocks pay where they are as
wide as vectors, which share one index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import PrecisionPolicy
from ekiden.relay.expr import Call, Constant, Expr, TupleWrapper
from ekiden.relay.op._declare import DtypeKind, call_op
from ekiden.relay.op._declare_topi import declare_topi_op


@node("relay.attrs.SparseDenseAttrs")
class SparseDenseAttrs(Attrs):
    """Attributes of sparse_dense: whether the left operand is the sparse one."""

    sparse_lhs: bool = False


@node("relay.attrs.SparseTransposeAttrs")
class SparseTransposeAttrs(Attrs):
    """Attributes of sparse_transpose (none)."""


@node("relay.attrs.SparseAddAttrs")
class SparseAddAttrs(Attrs):
    """Attributes of sparse_add (none)."""


@node("relay.attrs.SparseConv2DAttrs")
class SparseConv2DAttrs(Attrs):
    """Attributes of sparse_conv2d: data layout, and kernel size 1, or 3 for channels-last data."""

    layout: str = "NHWC"
    kernel_size: int | tuple[int, ...] = 1


class SparseMatrix(Protocol):
    """Sparse matrix in SciPy's form, CSR or BSR."""

    data: object
    indices: object
    indptr: object


_SPARSE_ARGUMENTS = ("sparse_data", "sparse_indices", "sparse_indptr")
_INDEX_DTYPES: Mapping[str, DtypeKind] = {"sparse_indices": "integer", "sparse_indptr": "integer"}

declare_topi_op("nn.sparse_dense", ("dense_data", *_SPARSE_ARGUMENTS),
        lambda attrs, dense, data, indices, indptr: topi.sparse.sparse_dense(
            dense, data, indices, indptr, attrs.sparse_lhs),
        "(m, n): dense_data (m, k) times the transpose of the sparse matrix (n, k)",
        SparseDenseAttrs, takes=_INDEX_DTYPES, refuses=True, costly=True,
        precision=PrecisionPolicy.NEVER)  # fmt: skip
declare_topi_op("nn.sparse_transpose", _SPARSE_ARGUMENTS,
        lambda attrs, *sparse: topi.sparse.sparse_transpose(*sparse),
        "data, indices and indptr of the transpose of a square matrix", SparseTransposeAttrs,
        fields=3, takes=_INDEX_DTYPES, refuses=True, costly=True)  # fmt: skip
declare_topi_op("nn.sparse_add", ("dense_data", *_SPARSE_ARGUMENTS),
        lambda attrs, dense, *sparse: topi.sparse.sparse_add(dense, *sparse),
        "the type of dense_data", SparseAddAttrs, takes=_INDEX_DTYPES, refuses=True,
        costly=True)  # fmt: skip
declare_topi_op(
    "nn.sparse_conv2d",
    ("dense_data", *_SPARSE_ARGUMENTS),
    lambda attrs, dense, data, indices, indptr: topi.sparse.sparse_conv2d(
        dense, data, indices, indptr, attrs.layout, attrs.kernel_size
    ),
    "dense_data's shape with as many channels as the sparse matrix has rows; steps of 1, and"
    " a border of zeros around windows of 3",
    SparseConv2DAttrs,
    takes=_INDEX_DTYPES,
    refuses=True,
    costly=True,
    precision=PrecisionPolicy.NEVER,
)


def _as_exprs(matrix: SparseMatrix | Sequence[Expr]) -> tuple[Expr, Expr, Expr]:
    """Return the matrix's (data, indices, indptr) as expressions."""
    if isinstance(matrix, Sequence):
        data, indices, indptr = matrix
        return data, indices, indptr
    # SciPy's names for CSR and BSR.
    arrays = (matrix.data, matrix.indices, matrix.indptr)
    data, indices, indptr = (Constant(array) for array in arrays)  # type: ignore[arg-type]
    return data, indices, indptr


def sparse_dense(
    dense_mat: Expr, sparse_mat: SparseMatrix | Sequence[Expr], sparse_lhs: bool = False
) -> Call:
    """Return dense [m, k] times the transpose of a sparse matrix [n, k].

    Args:
        dense_mat: The dense matrix.
        sparse_mat: (data, indices, indptr) or SciPy's matrix, in compressed rows (CSR) or blocks of
            them (BSR).
        sparse_lhs: Multiply the sparse matrix with the transpose of the dense one instead.
    """
    attrs = SparseDenseAttrs(sparse_lhs)
    return call_op("nn.sparse_dense", dense_mat, *_as_exprs(sparse_mat), attrs=attrs)


def sparse_transpose(x: SparseMatrix | Sequence[Expr]) -> TupleWrapper:
    """Return (data, indices, indptr) of the transpose of a square CSR matrix."""
    return TupleWrapper(
        call_op("nn.sparse_transpose", *_as_exprs(x), attrs=SparseTransposeAttrs()), 3
    )


def sparse_add(dense_mat: Expr, sparse_mat: SparseMatrix | Sequence[Expr]) -> Call:
    """Return the sum of a dense and a CSR matrix."""
    return call_op("nn.sparse_add", dense_mat, *_as_exprs(sparse_mat), attrs=SparseAddAttrs())


def sparse_conv2d(
    dense_mat: Expr,
    sparse_mat: SparseMatrix | Sequence[Expr],
    layout: str = "NHWC",
    kernel_size: int | tuple[int, ...] = 1,
) -> Call:
    """Return a convolution with a sparse weight [channels, in_channels].

    For windows of 3 the weight is [channels, 3 * 3 * in_channels], in which the channels of one tap
    are neighbours; data is NHWC.
    """
    attrs = SparseConv2DAttrs(layout, kernel_size)
    return call_op("nn.sparse_conv2d", dense_mat, *_as_exprs(sparse_mat), attrs=attrs)


__all__ = ["sparse_add", "sparse_conv2d", "sparse_dense", "sparse_transpose"]
