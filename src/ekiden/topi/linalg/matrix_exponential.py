"""Matrix exponential by scaling and squaring of a Taylor series.

C. Moler, C. Van Loan: Nineteen Dubious Ways to Compute the Exponential of a Matrix, Twenty-Five
Years Later (SIAM Review, 2003), method 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.prim import PrimExpr, Select, cast, const, logical_and
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.linalg.row_matrix import RowMatrix, iter_batch, matrix_dims, working_dtype

TAYLOR_TERMS_BY_DTYPE = {"float32": 10, "float64": 17}
"""Taylor terms for matrices of norm up to 1/2, with a remainder below rounding."""
MAX_HALVINGS = 1100
"""Maximum number of halvings, which suffices for every finite matrix."""


def matrix_exp(data: Tensor) -> Tensor:
    """Return the exponentials of the square matrices in the last two axes. Raises ValueError for
    matrices that are not square.
    """
    batch, size, _ = matrix_dims("matrix_exp", data, square=True)
    dtype = working_dtype(data)

    def emit_matrix_exp(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit one matrix per iteration: halve it until the series converges fast, evaluate the
        series by Horner's scheme, square as often (Moler and Van Loan 2003, scaling and
        squaring).
        """
        ib = IRBuilder()
        source, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with iter_batch(ib, batch) as position:
            scaled, result, scratch = (RowMatrix(ib, dtype, size, size) for _ in range(3))
            scaled.emit_fill(lambda i, j: source[(*position, i, j)])
            halvings = _emit_scaling(ib, scaled)
            result.emit_fill(lambda i, j: _identity_element(i, j, dtype))
            with ib.for_range(
                0, TAYLOR_TERMS_BY_DTYPE[dtype], "term"
            ) as term:  # 1 + part / n (1 + part / ...)
                _emit_multiply(ib, scratch, scaled, result)
                order = ib.let("order", cast(TAYLOR_TERMS_BY_DTYPE[dtype] - term, dtype))
                result.emit_fill(
                    lambda i, j: _identity_element(i, j, dtype) + scratch[i, j] / order
                )
            with ib.for_range(0, halvings[0], "squaring"):
                _emit_multiply(ib, scratch, result, result)
                result.emit_fill(lambda i, j: scratch[i, j])
            with ib.for_range(0, size, "i") as i, ib.for_range(0, size, "j") as j:
                out[(*position, i, j)] = result[i, j]
        return ib.get()

    return te.extern_op([data.shape], [data], emit_matrix_exp, [data.dtype], name="matrix_exp")[0]


def _identity_element(i: PrimExpr, j: PrimExpr, dtype: str) -> PrimExpr:
    return Select(i.equal(j), const(1, dtype), const(0, dtype), dtype)


def _emit_scaling(ib: IRBuilder, scaled: RowMatrix) -> BufferVar:
    """Emit the halvings of a matrix until its infinity norm is at most 1/2; return their number."""
    dtype = scaled.dtype
    norm, count = (ib.allocate(kind, 2, name, "local") for kind, name in
                   ((dtype, "norm"), ("int64", "count")))  # fmt: skip
    norm[0], norm[1], count[0] = const(0, dtype), const(1, dtype), 0
    with ib.for_range(0, scaled.count, "i") as i:
        total = ib.allocate(dtype, 1, "total", "local")
        total[0] = const(0, dtype)
        with ib.for_range(0, scaled.size, "j") as j:
            total[0] = total[0] + te.abs(scaled[i, j])
        norm[0] = te.max(norm[0], total[0])
    with ib.while_loop(logical_and(norm[0] * norm[1] > 0.5, count[0] < MAX_HALVINGS)):
        norm[1] = norm[1] * const(0.5, dtype)
        count[0] = count[0] + 1
    # Scaling by a power of two rounds nothing, short of underflow.
    scaled.emit_fill(lambda i, j: scaled[i, j] * norm[1])
    return count


def _emit_multiply(ib: IRBuilder, to: RowMatrix, a: RowMatrix, b: RowMatrix) -> None:
    """Emit to = a * b."""
    with ib.for_range(0, to.count, "i") as i:
        with to.iter_columns() as j:
            to[i, j] = const(0, to.dtype)
        with ib.for_range(0, b.count, "k") as k:
            share = ib.let("share", a[i, k])
            with to.iter_columns() as j:
                to[i, j] = to[i, j] + share * b[k, j]
