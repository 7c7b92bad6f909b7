"""Symmetric eigenvectors and singular vectors by Jacobi rotations.

Pairs of rows are turned, all pairs in a round, until a round turns none. Accurate, and cubic with a
larger factor than the ways over matrices of few diagonals: for some hundred rows, not for
thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Not, Or, PrimExpr, Select, Var, cast, const, fold_binary, logical_and
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import simplify_dim
from ekiden.topi.linalg.row_matrix import (
    EPSILON_BY_DTYPE,
    HalfAngle,
    RowMatrix,
    batched_shapes,
    iter_batch,
    matrix_dims,
    rotate_pair,
    working_dtype,
)
from ekiden.topi.sorting import precedes

MAX_JACOBI_SWEEPS = 40
"""Maximum number of sweeps; matrices converge in 5 to 12."""
ZERO_ROW_NORM_BY_DTYPE = {"float32": 1e-17, "float64": 1e-150}
"""Norm below which a row of a normalised matrix counts as zero, since its square underflows."""
RotationStep = tuple[Var, Var, HalfAngle]
"""Pair of rows and the rotation angle between them."""


def _const_one(dtype: str) -> PrimExpr:
    return const(1, dtype)


def _sqrt(x: PrimExpr) -> PrimExpr:
    return call_intrin("sqrt", x)


@contextmanager
def _emit_sweeps(
    ib: IRBuilder,
    size: PrimExpr,
    pair: Callable[[Var, Var], tuple[PrimExpr, PrimExpr, PrimExpr, PrimExpr]],
) -> Iterator[RotationStep]:
    """Emit cyclic Jacobi sweeps until one makes no rotation; yield at each pair of rows. `pair`
    returns, for two rows, the 2 x 2 matrix [a, b; b, d] that a rotation makes diagonal, as (a, b,
    d), and the tolerance of b.
    """
    counters = ib.allocate("int64", 2, "left", "local")  # rounds that may follow; turns of this one
    counters[0] = MAX_JACOBI_SWEEPS
    with ib.while_loop(counters[0] > 0):
        counters[0] = counters[0] - 1
        counters[1] = 0
        with ib.for_range(0, size, "i") as i, ib.for_range(i + 1, size, "k") as k:
            a, b, d, limit = (ib.let("x", entry) for entry in pair(i, k))
            with ib.if_scope(te.abs(b) > limit):
                counters[1] = counters[1] + 1
                yield i, k, _jacobi_half_angle(ib, a, b, d)
        with ib.if_scope(counters[1].equal(0)):
            counters[0] = 0


def _jacobi_half_angle(ib: IRBuilder, a: PrimExpr, b: PrimExpr, d: PrimExpr) -> HalfAngle:
    """Return the smaller of the two rotations that make [a, b; b, d] diagonal (Golub and Van Loan,
    8.5.2).
    """
    one = _const_one(a.dtype)
    ratio = ib.let("ratio", (d - a) / (b + b))
    # The smaller root of t^2 + 2 t ratio = 1, without cancellation.
    steep = one / (te.abs(ratio) + _sqrt(one + ratio * ratio))
    tangent = ib.let("tangent", Select(ratio < 0.0, -steep, steep, a.dtype))
    cosine = ib.let("cosine", one / _sqrt(one + tangent * tangent))
    sine = ib.let("sine", tangent * cosine)
    return sine, ib.let("half", sine / (one + cosine))


def _emit_sort_ranks(
    ib: IRBuilder, keys: Callable[[PrimExpr], PrimExpr], count: PrimExpr
) -> BufferVar:
    """Emit the rank of each key, NaN last, ties in order; return the buffer."""
    ranks = ib.allocate("int64", count, "ranks")
    with ib.for_range(0, count, "i") as i:
        ranks[i] = 0
        with ib.for_range(0, count, "j") as j:
            first_key, second_key = ib.let("mine", keys(i)), ib.let("other", keys(j))
            is_equal = Not(
                fold_binary(Or, precedes(first_key, second_key), precedes(second_key, first_key))
            )
            is_first = fold_binary(
                Or, precedes(second_key, first_key), logical_and(j < i, is_equal)
            )
            ranks[i] = ranks[i] + cast(is_first, "int64")
    return ranks


def _emit_identity(rows: RowMatrix) -> None:
    zero = const(0, rows.dtype)
    rows.emit_fill(lambda i, j: Select(i.equal(j), _const_one(rows.dtype), zero, rows.dtype))


def _emit_max_abs(ib: IRBuilder, rows: RowMatrix) -> Var:
    """Emit the largest absolute value of the elements; 1 if all are 0."""
    maximum = ib.allocate(rows.dtype, 1, "greatest", "local")
    maximum[0] = const(0, rows.dtype)
    with ib.for_range(0, rows.count, "i") as i, ib.for_range(0, rows.size, "j") as j:
        maximum[0] = te.max(maximum[0], te.abs(rows[i, j]))
    return ib.let("scale", Select(maximum[0] > 0.0, maximum[0], _const_one(rows.dtype), rows.dtype))


def eigh(data: Tensor, lower: bool = True) -> tuple[Tensor, ...]:
    """Return eigenvalues [.., n] in ascending order and orthonormal eigenvectors as columns [.., n,
    n], up to sign, of symmetric matrices [.., n, n], of which one triangle is read. Raises
    ValueError for matrices that are not square.
    """
    batch, size, _ = matrix_dims("eigh", data, square=True)
    dtype = working_dtype(data)

    def emit_eigh(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit cyclic Jacobi sweeps; rotations that each make one pair of elements 0, until all
        others are below half an epsilon of the greatest element; then eigenvalues in order.
        """
        ib = IRBuilder()
        source, (values, vectors) = ib.buffer_ptr(ins[0]), map(ib.buffer_ptr, outs)
        with iter_batch(ib, batch) as position:
            work, basis = RowMatrix(ib, dtype, size, size), RowMatrix(ib, dtype, size, size)
            _emit_identity(basis)

            def symmetric_element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
                """Load an element of the matrix by the triangle that is read."""
                ends = te.max(i, j), te.min(i, j)
                return source[(*position, *(ends if lower else ends[::-1]))]

            work.emit_fill(symmetric_element)
            limit = ib.let(
                "limit", _emit_max_abs(ib, work) * const(EPSILON_BY_DTYPE[dtype] / 2, dtype)
            )
            with _emit_sweeps(
                ib, size, lambda i, k: (work[i, i], work[i, k], work[k, k], limit)
            ) as (
                i,
                k,
                angle,
            ):
                work.emit_rotation(i, k, angle)
                _emit_column_rotation(ib, work, i, k, angle)
                basis.emit_rotation(i, k, angle)
            ranks = _emit_sort_ranks(ib, lambda i: work[i, i], size)
            with ib.for_range(0, size, "i") as i:
                values[(*position, ranks[i])] = work[i, i]
                with ib.for_range(0, size, "j") as j:
                    vectors[(*position, j, ranks[i])] = basis[i, j]
        return ib.get()

    shapes = batched_shapes(batch, (size,), (size, size))
    return te.extern_op(shapes, [data], emit_eigh, [data.dtype] * 2, name="eigh")


def _emit_column_rotation(ib: IRBuilder, work: RowMatrix, i: Var, k: Var, angle: HalfAngle) -> None:
    with ib.for_range(0, work.count, "r") as r:
        x, y = ib.let("x", work[r, i]), ib.let("y", work[r, k])
        work[r, i], work[r, k] = rotate_pair(x, y, angle)
    # Zero by construction: a rounding residue would have to be rotated away again.
    work[i, k] = const(0, work.dtype)
    work[k, i] = const(0, work.dtype)


def svd(data: Tensor, full_matrices: bool = True) -> tuple[Tensor, ...]:
    """Return the singular value decomposition of matrices [.., m, n]: U [.., m, m], singular values
    [.., min(m, n)] in descending order, and V' [.., n, n]; without `full_matrices` U [.., m,
    min(m, n)] and V' [.., min(m, n), n]. Columns of U and rows of V' are orthonormal even for
    zero singular values. Raises ValueError for other ranks.
    """
    batch, rows, columns = matrix_dims("svd", data)
    rank_bound, larger = simplify_dim(te.min(rows, columns)), simplify_dim(te.max(rows, columns))
    count, dtype = larger if full_matrices else rank_bound, working_dtype(data)
    is_wide = rows <= columns

    def emit_svd(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit one-sided Jacobi: rows (of the transpose if there are more columns) are rotated
        until they are orthogonal; their lengths are the singular values, the rotations the other
        side's vectors.
        """
        ib = IRBuilder()
        source, (u_out, values, v_out) = ib.buffer_ptr(ins[0]), map(ib.buffer_ptr, outs)
        with iter_batch(ib, batch) as position:
            work, basis = (
                RowMatrix(ib, dtype, count, larger),
                RowMatrix(ib, dtype, rank_bound, rank_bound),
            )
            _emit_identity(basis)
            with ib.for_range(0, rank_bound, "i") as i, ib.for_range(0, larger, "j") as j:
                with ib.if_scope(is_wide):
                    work[i, j] = source[(*position, i, j)]
                with ib.else_scope():
                    work[i, j] = source[(*position, j, i)]
            scale = _emit_max_abs(ib, work)
            lengths = _emit_orthogonalization(ib, work, basis, scale)
            ranks = _emit_sort_ranks(ib, lambda i: -lengths[i], rank_bound)
            with ib.for_range(0, count, "i") as i:
                slot = ib.allocate("int64", 1, "place", "local")
                slot[0] = i
                with ib.if_scope(i < rank_bound):
                    slot[0] = ranks[i]
                    values[(*position, slot[0])] = lengths[i] * scale
                _emit_store_row(ib, is_wide, work, i, (position, slot[0]), (u_out, v_out))
                with ib.if_scope(i < rank_bound):
                    _emit_store_row(ib, Not(is_wide), basis, i, (position, slot[0]), (u_out, v_out))
        return ib.get()

    shapes = batched_shapes(
        batch,
        (rows, rows if full_matrices else rank_bound),
        (rank_bound,),
        (columns if full_matrices else rank_bound, columns),
    )
    return te.extern_op(shapes, [data], emit_svd, [data.dtype] * 3, name="svd")


def _emit_store_row(
    ib: IRBuilder,
    is_right: PrimExpr,
    rows: RowMatrix,
    i: PrimExpr,
    destination: tuple[tuple[PrimExpr, ...], PrimExpr],
    outs: tuple[BufferVar, BufferVar],
) -> None:
    """Emit the store of row i as a row of V' or as a column of U."""
    (position, number), (u_out, v_out) = destination, outs
    with ib.for_range(0, rows.size, "j") as j:
        with ib.if_scope(is_right):
            v_out[(*position, number, j)] = rows[i, j]
        with ib.else_scope():
            u_out[(*position, j, number)] = rows[i, j]


def _emit_orthogonalization(
    ib: IRBuilder, work: RowMatrix, basis: RowMatrix, scale: PrimExpr
) -> BufferVar:
    """Emit Jacobi rotations until rows are pairwise orthogonal, then normalise them; return their
    norms.
    """
    dtype, size = work.dtype, basis.count
    with ib.for_range(0, size, "i") as i, work.iter_columns() as j:
        # Scaled to at most 1: squares then neither overflow nor underflow.
        work[i, j] = work[i, j] / scale

    def gram_entries(i: Var, k: Var) -> tuple[PrimExpr, PrimExpr, PrimExpr, PrimExpr]:
        """Return the entries of a 2x2 Gram matrix of two rows, and the tolerance."""
        a, d = work.emit_dot(i, i), work.emit_dot(k, k)
        # The tolerance is relative to both lengths, so that short rows become as orthogonal as long
        # ones.
        return (
            a,
            work.emit_dot(i, k),
            d,
            _sqrt(a) * _sqrt(d) * const(EPSILON_BY_DTYPE[dtype], dtype),
        )

    with _emit_sweeps(ib, size, gram_entries) as (i, k, angle):
        work.emit_rotation(i, k, angle)
        basis.emit_rotation(i, k, angle)
    lengths = ib.allocate(dtype, work.count, "lengths")
    with ib.for_range(0, work.count, "i") as i:
        length = ib.let("length", _sqrt(work.emit_dot(i, i)))
        has_none = length <= const(ZERO_ROW_NORM_BY_DTYPE[dtype], dtype)
        lengths[i] = Select(has_none, const(0, dtype), length, dtype)
        with work.iter_columns() as j:
            work[i, j] = Select(has_none, const(0, dtype), work[i, j] / length, dtype)
    with ib.for_range(0, work.count, "i") as i, ib.if_scope(lengths[i].equal(0.0)):
        _emit_basis_completion(ib, work, i)
    return lengths


def _emit_basis_completion(ib: IRBuilder, work: RowMatrix, i: PrimExpr) -> None:
    """Emit the replacement of the zero row i by a unit vector orthogonal to all others, starting
    from the axis with the smallest projection onto them.
    """
    dtype = work.dtype
    best = ib.allocate("int64", 1, "best", "local")
    projections = ib.allocate(dtype, 2, "least", "local")  # of all axes, of one
    best[0] = 0
    # Above every projection: rows are orthonormal, so that none exceeds 1.
    projections[0] = const(2, dtype)
    with ib.for_range(0, work.size, "j") as j:
        projections[1] = const(0, dtype)
        with ib.for_range(0, work.count, "r") as r:
            projections[1] = projections[1] + work[r, j] * work[r, j]
        best[0] = Select(projections[1] < projections[0], j, best[0], "int64")
        projections[0] = te.min(projections[0], projections[1])
    work[i, best[0]] = _const_one(dtype)
    # Twice: one pass of Gram-Schmidt leaves the rounding errors of its cancellation.
    with (
        ib.for_range(0, 2, "again"),
        ib.for_range(0, work.count, "r") as r,
        ib.if_scope(fold_binary(Or, r < i, r > i)),
    ):
        work.emit_axpy(i, r, work.emit_dot(i, r))
    length = ib.let("length", _sqrt(work.emit_dot(i, i)))
    with work.iter_columns() as j:
        work[i, j] = work[i, j] / length
