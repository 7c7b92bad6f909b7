"""LU and Cholesky decompositions, and their solvers; determinants, triangular systems."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Not, PrimExpr, Select, Var, cast, const, logical_and
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import are_equal_dims, as_dim, simplify_dim
from ekiden.topi.linalg.row_matrix import (
    RowMatrix,
    batched_shapes,
    iter_batch,
    matrix_dims,
    working_dtype,
)


def _emit_pivot_search(ib: IRBuilder, work: RowMatrix, k: Var) -> PrimExpr:
    """Emit the search for the row, from k on, with the largest absolute value in column k (partial
    pivoting).
    """
    pivot = ib.allocate("int64", 1, "pivot", "local")
    pivot[0] = k
    with ib.for_range(k + 1, work.count, "i") as i:
        # The strict comparison selects the first of equal magnitudes, as LAPACK does.
        larger = te.abs(work[i, k]) > te.abs(work[pivot[0], k])
        pivot[0] = Select(larger, i, pivot[0], "int64")
    return ib.let("at", pivot[0])


def _emit_elimination(ib: IRBuilder, work: RowMatrix, k: Var, top: PrimExpr) -> None:
    """Emit the elimination of column k below row k; the multipliers are stored in its place."""
    with ib.for_range(k + 1, work.count, "i") as i:
        share = ib.let("share", work[i, k] / top)
        work.emit_axpy(i, k, share, k + 1)
        work[i, k] = share


def det(data: Tensor) -> Tensor:
    """Return the determinants of the matrices in the last two axes by elimination with partial
    pivoting; floats below float32 are widened. Raises ValueError for matrices that are not
    square.
    """
    batch, size, _ = matrix_dims("det", data, square=True)
    dtype = working_dtype(data)

    def emit_det(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit one matrix per iteration: the product of pivots, negated at each row exchange. A
        zero pivot makes it 0 without a division.
        """
        ib = IRBuilder()
        source, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with iter_batch(ib, batch) as position:
            work = RowMatrix(ib, dtype, size, size)
            work.emit_fill(lambda i, j: source[(*position, i, j)])
            total = ib.allocate(dtype, 1, "total", "local")
            total[0] = 1
            with ib.for_range(0, size, "k") as k:
                pivot = _emit_pivot_search(ib, work, k)
                with ib.if_scope(pivot > k):
                    total[0] = total[0] * -1.0
                    work.emit_swap(k, pivot)
                top = ib.let("top", work[k, k])
                total[0] = total[0] * top
                with ib.if_scope(Not(top.equal(0.0))):
                    _emit_elimination(ib, work, k, top)
            out[position] = total[0]
        return ib.get()

    return te.extern_op([batch], [data], emit_det, [data.dtype], name="det")[0]


def lu_factor(data: Tensor) -> tuple[Tensor, ...]:
    """Return the LU factorisation of matrices [.., m, n] with partial pivoting, as LAPACK's getrf:
    the factors [.., m, n], L below the unit diagonal, and U; the exchanged row [.., min(m, n)]
    of each step; the permutation [.., m]; and [..] the 1-based number of the first zero pivot,
    or 0 (int32). Raises ValueError for other ranks.
    """
    batch, rows, columns = matrix_dims("lu_factor", data)
    pivot_count, dtype = simplify_dim(te.min(rows, columns)), working_dtype(data)

    def emit_lu(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit one matrix per iteration, in place. The first zero pivot's number is recorded and
        its column skipped: it is 0 below too.
        """
        ib = IRBuilder()
        source = ib.buffer_ptr(ins[0])
        factors, pivots, order, info = map(ib.buffer_ptr, outs)
        with iter_batch(ib, batch) as position:
            work = RowMatrix(ib, dtype, rows, columns)
            work.emit_fill(lambda i, j: source[(*position, i, j)])
            info[position] = 0
            with ib.for_range(0, rows, "i") as i:
                order[(*position, i)] = i
            with ib.for_range(0, pivot_count, "k") as k:
                pivot = _emit_pivot_search(ib, work, k)
                pivots[(*position, k)] = pivot
                with ib.if_scope(pivot > k):
                    work.emit_swap(k, pivot)
                    saved = ib.let("kept", order[(*position, k)])
                    order[(*position, k)] = order[(*position, pivot)]
                    order[(*position, pivot)] = saved
                top = ib.let("top", work[k, k])
                with ib.if_scope(top.equal(0.0)):
                    info[position] = Select(
                        info[position].equal(0), cast(k + 1, "int32"), info[position], "int32"
                    )
                with ib.else_scope():
                    _emit_elimination(ib, work, k, top)
            with ib.for_range(0, rows, "i") as i, ib.for_range(0, columns, "j") as j:
                factors[(*position, i, j)] = work[i, j]
        return ib.get()

    shapes = batched_shapes(batch, (rows, columns), (pivot_count,), (rows,), ())
    return te.extern_op(shapes, [data], emit_lu, [data.dtype, *["int32"] * 3], name="lu_factor")


def cholesky(data: Tensor) -> tuple[Tensor, ...]:
    """Return the lower factor L of L L' of symmetric matrices [.., n, n], whose lower triangles are
    read, and [..] the order of the first leading minor that is not positive, or 0 (int32); L is
    NaN from there on. Raises ValueError for matrices that are not square.
    """
    batch, size, _ = matrix_dims("cholesky", data, square=True)
    dtype = working_dtype(data)

    def emit_cholesky(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the decomposition row by row (Cholesky-Banachiewicz); the root of the first minor
        that is not positive is NaN and propagates.
        """
        ib = IRBuilder()
        source, (factor, info) = ib.buffer_ptr(ins[0]), map(ib.buffer_ptr, outs)
        with iter_batch(ib, batch) as position:
            work = RowMatrix(ib, dtype, size, size)
            info[position] = 0
            with ib.for_range(0, size, "i") as i:
                with ib.for_range(0, i, "j") as j:  # what is right of column j is 0 in row i
                    residual = cast(source[(*position, i, j)], dtype) - work.emit_dot(i, j, j)
                    work[i, j] = residual / work[j, j]
                residual = ib.let(
                    "rest", cast(source[(*position, i, i)], dtype) - work.emit_dot(i, i)
                )
                # `not (x > 0)` holds for NaN as well, `x <= 0` would not.
                is_wrong = logical_and(info[position].equal(0), Not(residual > 0.0))
                info[position] = Select(is_wrong, cast(i + 1, "int32"), info[position], "int32")
                root = call_intrin("sqrt", residual)
                work[i, i] = Select(info[position] > 0, const(float("nan"), dtype), root, dtype)
            with ib.for_range(0, size, "i") as i, ib.for_range(0, size, "j") as j:
                factor[(*position, i, j)] = work[i, j]
        return ib.get()

    shapes = batched_shapes(batch, (size, size), ())
    return te.extern_op(shapes, [data], emit_cholesky, [data.dtype, "int32"], name="cholesky")


def solve_triangular(a: Tensor, b: Tensor, lower: bool, unit_diagonal: bool) -> Tensor:
    """Solve a x = b for triangular a [.., n, n] and b [.., n, k]; the other triangle of a is not
    read, nor a unit diagonal. A 0 on it gives infinities.

    Raises ValueError where shapes do not fit.
    """
    batch, size, _ = matrix_dims("solve_triangular", a, square=True)
    if a.ndim != b.ndim or not all(map(are_equal_dims, a.shape[:-1], b.shape[:-1])):
        raise ValueError(f"solve_triangular: matrices {a.shape} do not fit sides {b.shape}")
    columns, dtype = b.shape[-1], working_dtype(a)

    def emit_substitution(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit row-wise substitution, forwards for a lower triangle and backwards for an upper one;
        all columns of b together, as they are contiguous.
        """
        ib = IRBuilder()
        triangle, right, out = (ib.buffer_ptr(buffer) for buffer in (*ins, *outs))
        with iter_batch(ib, batch) as position:
            work = RowMatrix(ib, dtype, size, columns)
            work.emit_fill(lambda i, j: right[(*position, i, j)])
            with ib.for_range(0, size, "step") as step:
                i: PrimExpr = step if lower else ib.let("i", size - 1 - step)
                done = (as_dim(0), i) if lower else (i + 1, size)
                with ib.for_range(*done, "k") as k:
                    work.emit_axpy(i, k, cast(triangle[(*position, i, k)], dtype))
                if not unit_diagonal:
                    top = ib.let("top", cast(triangle[(*position, i, i)], dtype))
                    with ib.for_range(0, columns, "j") as j:
                        work[i, j] = work[i, j] / top
            with ib.for_range(0, size, "i") as i, ib.for_range(0, columns, "j") as j:
                out[(*position, i, j)] = work[i, j]
        return ib.get()

    return te.extern_op([b.shape], [a, b], emit_substitution, [b.dtype], name="solve_triangular")[0]
