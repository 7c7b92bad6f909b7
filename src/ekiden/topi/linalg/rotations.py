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
from ekiden.ir.prim import Not, Or, PrimExpr, Select, Var, binary, cast, const, logical_and
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import tidy
from ekiden.topi.linalg.rows import (
    MACHINE_EPSILON,
    HalfAngle,
    Rows,
    each_matrix,
    matrices,
    shapes_of,
    turned,
    wide_dtype,
)
from ekiden.topi.sorting import before

MAX_SWEEPS = 40
"""The most of them; 5 to 12 are what matrices need."""
ZERO_ROW_NORM = {"float32": 1e-17, "float64": 1e-150}
"""The length of a row, of a matrix whose greatest element is 1, that has no direction: its square
is nearly below the least number."""
RotationStep = tuple[Var, Var, HalfAngle]
"""Two rows, and the angle by which they are turned."""


def _one(dtype: str) -> PrimExpr:
    return const(1, dtype)


def _root(x: PrimExpr) -> PrimExpr:
    return call_intrin("sqrt", x)


@contextmanager
def _rotations(
    ib: IRBuilder,
    size: PrimExpr,
    pair: Callable[[Var, Var], tuple[PrimExpr, PrimExpr, PrimExpr, PrimExpr]],
) -> Iterator[RotationStep]:
    """Yield each rotation of cyclic sweeps until a sweep has none. `pair` returns, for two rows,
    the 2 x 2 matrix [a, b; b, d] that a rotation makes diagonal, as (a, b, d), and the tolerance
    of b.
    """
    counters = ib.allocate("int64", 2, "left", "local")  # rounds that may follow; turns of this one
    counters[0] = MAX_SWEEPS
    with ib.while_loop(counters[0] > 0):
        counters[0] = counters[0] - 1
        counters[1] = 0
        with ib.for_range(0, size, "i") as i, ib.for_range(i + 1, size, "k") as k:
            a, b, d, limit = (ib.let("x", entry) for entry in pair(i, k))
            with ib.if_scope(te.abs(b) > limit):
                counters[1] = counters[1] + 1
                yield i, k, _angle(ib, a, b, d)
        with ib.if_scope(counters[1].equal(0)):
            counters[0] = 0


def _angle(ib: IRBuilder, a: PrimExpr, b: PrimExpr, d: PrimExpr) -> HalfAngle:
    """Return the smaller of the two rotations that make [a, b; b, d] diagonal (Golub and Van Loan,
    8.5.2).
    """
    one = _one(a.dtype)
    ratio = ib.let("ratio", (d - a) / (b + b))
    steep = one / (te.abs(ratio) + _root(one + ratio * ratio))
    tangent = ib.let("tangent", Select(ratio < 0.0, -steep, steep, a.dtype))
    cosine = ib.let("cosine", one / _root(one + tangent * tangent))
    sine = ib.let("sine", tangent * cosine)
    return sine, ib.let("half", sine / (one + cosine))


def _ranks(ib: IRBuilder, keys: Callable[[PrimExpr], PrimExpr], count: PrimExpr) -> BufferVar:
    """Return the rank of each key, NaN last, ties in order."""
    ranks = ib.allocate("int64", count, "ranks")
    with ib.for_range(0, count, "i") as i:
        ranks[i] = 0
        with ib.for_range(0, count, "j") as j:
            mine, second_key = ib.let("mine", keys(i)), ib.let("other", keys(j))
            is_equal = Not(binary(Or, before(mine, second_key), before(second_key, mine)))
            is_first = binary(Or, before(second_key, mine), logical_and(j < i, is_equal))
            ranks[i] = ranks[i] + cast(is_first, "int64")
    return ranks


def _identity(rows: Rows) -> None:
    zero = const(0, rows.dtype)
    rows.fill(lambda i, j: Select(i.equal(j), _one(rows.dtype), zero, rows.dtype))


def _greatest(ib: IRBuilder, rows: Rows) -> Var:
    """Return the largest absolute value of the elements; 1 if all are 0."""
    maximum = ib.allocate(rows.dtype, 1, "greatest", "local")
    maximum[0] = const(0, rows.dtype)
    with ib.for_range(0, rows.count, "i") as i, ib.for_range(0, rows.size, "j") as j:
        maximum[0] = te.max(maximum[0], te.abs(rows[i, j]))
    return ib.let("scale", Select(maximum[0] > 0.0, maximum[0], _one(rows.dtype), rows.dtype))


def eigh(data: Tensor, lower: bool = True) -> tuple[Tensor, ...]:
    """Return eigenvalues [.., n] in ascending order and orthonormal eigenvectors as columns [.., n,
    n], up to sign, of symmetric matrices [.., n, n], of which one triangle is read. Raises
    ValueError for matrices that are not square.
    """
    batch, size, _ = matrices("eigh", data, square=True)
    dtype = wide_dtype(data)

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit cyclic Jacobi sweeps; rotations that each make one pair of elements 0, until all
        others are below half an epsilon of the greatest element; then eigenvalues in order.
        """
        ib = IRBuilder()
        source, (values, vectors) = ib.buffer_ptr(ins[0]), map(ib.buffer_ptr, outs)
        with each_matrix(ib, batch) as at:
            work, basis = Rows(ib, dtype, size, size), Rows(ib, dtype, size, size)
            _identity(basis)

            def element(i: PrimExpr, j: PrimExpr) -> PrimExpr:
                ends = te.max(i, j), te.min(i, j)
                return source[(*at, *(ends if lower else ends[::-1]))]

            work.fill(element)
            limit = ib.let("limit", _greatest(ib, work) * const(MACHINE_EPSILON[dtype] / 2, dtype))
            with _rotations(ib, size, lambda i, k: (work[i, i], work[i, k], work[k, k], limit)) as (
                i,
                k,
                angle,
            ):
                work.rotate(i, k, angle)
                _turn_columns(ib, work, i, k, angle)
                basis.rotate(i, k, angle)
            ranks = _ranks(ib, lambda i: work[i, i], size)
            with ib.for_range(0, size, "i") as i:
                values[(*at, ranks[i])] = work[i, i]
                with ib.for_range(0, size, "j") as j:
                    vectors[(*at, j, ranks[i])] = basis[i, j]
        return ib.get()

    shapes = shapes_of(batch, (size,), (size, size))
    return te.extern_op(shapes, [data], build, [data.dtype] * 2, name="eigh")


def _turn_columns(ib: IRBuilder, work: Rows, i: Var, k: Var, angle: HalfAngle) -> None:
    with ib.for_range(0, work.count, "r") as r:
        x, y = ib.let("x", work[r, i]), ib.let("y", work[r, k])
        work[r, i], work[r, k] = turned(x, y, angle)
    work[i, k] = const(0, work.dtype)
    work[k, i] = const(0, work.dtype)


def svd(data: Tensor, full_matrices: bool = True) -> tuple[Tensor, ...]:
    """Return the singular value decomposition of matrices [.., m, n]: U [.., m, m], singular values
    [.., min(m, n)] in descending order, and V' [.., n, n]; without `full_matrices` U [.., m,
    min(m, n)] and V' [.., min(m, n), n]. Columns of U and rows of V' are orthonormal even for
    zero singular values. Raises ValueError for other ranks.
    """
    batch, rows, columns = matrices("svd", data)
    rank_bound, larger = tidy(te.min(rows, columns)), tidy(te.max(rows, columns))
    count, dtype = larger if full_matrices else rank_bound, wide_dtype(data)
    is_wide = rows <= columns

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit one-sided Jacobi: rows (of the transpose if there are more columns) are rotated
        until they are orthogonal; their lengths are the singular values, the rotations the other
        side's vectors.
        """
        ib = IRBuilder()
        source, (u_out, values, v_out) = ib.buffer_ptr(ins[0]), map(ib.buffer_ptr, outs)
        with each_matrix(ib, batch) as at:
            work, basis = Rows(ib, dtype, count, larger), Rows(ib, dtype, rank_bound, rank_bound)
            _identity(basis)
            with ib.for_range(0, rank_bound, "i") as i, ib.for_range(0, larger, "j") as j:
                with ib.if_scope(is_wide):
                    work[i, j] = source[(*at, i, j)]
                with ib.else_scope():
                    work[i, j] = source[(*at, j, i)]
            scale = _greatest(ib, work)
            lengths = _orthogonal_rows(ib, work, basis, scale)
            ranks = _ranks(ib, lambda i: -lengths[i], rank_bound)
            with ib.for_range(0, count, "i") as i:
                slot = ib.allocate("int64", 1, "place", "local")
                slot[0] = i
                with ib.if_scope(i < rank_bound):
                    slot[0] = ranks[i]
                    values[(*at, slot[0])] = lengths[i] * scale
                _store(ib, is_wide, work, i, (at, slot[0]), (u_out, v_out))
                with ib.if_scope(i < rank_bound):
                    _store(ib, Not(is_wide), basis, i, (at, slot[0]), (u_out, v_out))
        return ib.get()

    shapes = shapes_of(
        batch,
        (rows, rows if full_matrices else rank_bound),
        (rank_bound,),
        (columns if full_matrices else rank_bound, columns),
    )
    return te.extern_op(shapes, [data], build, [data.dtype] * 3, name="svd")


def _store(
    ib: IRBuilder,
    is_right: PrimExpr,
    rows: Rows,
    i: PrimExpr,
    destination: tuple[tuple[PrimExpr, ...], PrimExpr],
    outs: tuple[BufferVar, BufferVar],
) -> None:
    """Store row i as a row of V' or as a column of U."""
    (at, number), (u_out, v_out) = destination, outs
    with ib.for_range(0, rows.size, "j") as j:
        with ib.if_scope(is_right):
            v_out[(*at, number, j)] = rows[i, j]
        with ib.else_scope():
            u_out[(*at, j, number)] = rows[i, j]


def _orthogonal_rows(ib: IRBuilder, work: Rows, basis: Rows, scale: PrimExpr) -> BufferVar:
    """Rotate rows until they are pairwise orthogonal, normalise them, and return their lengths."""
    dtype, size = work.dtype, basis.count
    with ib.for_range(0, size, "i") as i, work.columns() as j:
        work[i, j] = work[i, j] / scale

    def pair(i: Var, k: Var) -> tuple[PrimExpr, PrimExpr, PrimExpr, PrimExpr]:
        a, d = work.dot(i, i), work.dot(k, k)
        return a, work.dot(i, k), d, _root(a) * _root(d) * const(MACHINE_EPSILON[dtype], dtype)

    with _rotations(ib, size, pair) as (i, k, angle):
        work.rotate(i, k, angle)
        basis.rotate(i, k, angle)
    lengths = ib.allocate(dtype, work.count, "lengths")
    with ib.for_range(0, work.count, "i") as i:
        length = ib.let("length", _root(work.dot(i, i)))
        has_none = length <= const(ZERO_ROW_NORM[dtype], dtype)
        lengths[i] = Select(has_none, const(0, dtype), length, dtype)
        with work.columns() as j:
            work[i, j] = Select(has_none, const(0, dtype), work[i, j] / length, dtype)
    with ib.for_range(0, work.count, "i") as i, ib.if_scope(lengths[i].equal(0.0)):
        _complete(ib, work, i)
    return lengths


def _complete(ib: IRBuilder, work: Rows, i: PrimExpr) -> None:
    """Replace the zero row i by a unit vector orthogonal to all others, starting from the axis with
    the smallest projection onto them.
    """
    dtype = work.dtype
    best = ib.allocate("int64", 1, "best", "local")
    projections = ib.allocate(dtype, 2, "least", "local")  # of all axes, of one
    best[0] = 0
    projections[0] = const(2, dtype)
    with ib.for_range(0, work.size, "j") as j:
        projections[1] = const(0, dtype)
        with ib.for_range(0, work.count, "r") as r:
            projections[1] = projections[1] + work[r, j] * work[r, j]
        best[0] = Select(projections[1] < projections[0], j, best[0], "int64")
        projections[0] = te.min(projections[0], projections[1])
    work[i, best[0]] = _one(dtype)
    with (
        ib.for_range(0, 2, "again"),
        ib.for_range(0, work.count, "r") as r,
        ib.if_scope(binary(Or, r < i, r > i)),
    ):
        work.subtract(i, r, work.dot(i, r))
    length = ib.let("length", _root(work.dot(i, i)))
    with work.columns() as j:
        work[i, j] = work[i, j] / length
