"""Matrix products by NumPy's BLAS, with the interface of TVM's `contrib.cblas`, for `te.extern`.

A program that calls them needs Python when it runs: the functions are registered here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ekiden import te
from ekiden.ir.prim import PrimExpr
from ekiden.runtime import Tensor, register_func
from ekiden.runtime.errors import InputError
from ekiden.te.tensor import Tensor as TeTensor
from ekiden.tir.op import call_packed

__all__ = ["batch_matmul", "matmul"]


def matmul(
    lhs: TeTensor, rhs: TeTensor, transa: bool = False, transb: bool = False, **kwargs: object
) -> TeTensor:
    """Return the product of two matrices, computed by BLAS.

    Args:
        lhs: The first factor.
        rhs: The second.
        transa: Whether the first is transposed.
        transb: Whether the second is.
        kwargs: What `te.extern` takes beside.
    """
    shape = (lhs.shape[1 if transa else 0], rhs.shape[0 if transb else 1])
    return _extern("tvm.contrib.cblas.matmul", shape, lhs, rhs, transa, transb, kwargs)


def batch_matmul(
    lhs: TeTensor,
    rhs: TeTensor,
    transa: bool = False,
    transb: bool = False,
    iterative: bool = False,
    **kwargs: object,
) -> TeTensor:
    """Return the products of two batches of matrices, computed by BLAS.

    Args:
        lhs: The first factors.
        rhs: The second.
        transa: Whether the first are transposed.
        transb: Whether the second are.
        iterative: Whether matrices are multiplied one by one; BLAS decides here.
        kwargs: What `te.extern` takes beside.
    """
    shape = (lhs.shape[0], lhs.shape[2 if transa else 1], rhs.shape[1 if transb else 2])
    return _extern("tvm.contrib.cblas.batch_matmul", shape, lhs, rhs, transa, transb, kwargs)


def _extern(
    name: str,
    shape: Sequence[PrimExpr],
    lhs: TeTensor,
    rhs: TeTensor,
    transa: bool,
    transb: bool,
    options: Mapping[str, object],
) -> TeTensor:
    """Return an extern operation that calls a function on both factors and the result."""
    product = te.extern(
        shape,
        [lhs, rhs],
        lambda ins, outs: call_packed(name, ins[0], ins[1], outs[0], transa, transb),
        **{"name": "C", **options},  # type: ignore[arg-type]  # as the caller gives them
    )
    assert isinstance(product, TeTensor)
    return product


def _multiply(lhs: Tensor, rhs: Tensor, out: Tensor, transa: int = 0, transb: int = 0) -> None:
    """Multiply matrices, or batches of them. Raises InputError for another dtype than float32 and
    float64.
    """
    arrays = [lhs.numpy(), rhs.numpy(), out.numpy()]
    dtypes = {str(a.dtype) for a in arrays}
    if len(dtypes) > 1 or not dtypes <= {"float32", "float64"}:
        raise InputError(f"cblas: float32 or float64 expected, got {', '.join(sorted(dtypes))}")
    a, b, c = arrays
    np.matmul(a.swapaxes(-1, -2) if transa else a, b.swapaxes(-1, -2) if transb else b, out=c)


register_func("tvm.contrib.cblas.matmul", _multiply, override=True)
register_func("tvm.contrib.cblas.batch_matmul", _multiply, override=True)
