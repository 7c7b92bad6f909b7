"""Eigenvectors of symmetric matrices and singular vectors, by Jacobi's rotations.

Pairs of rows are turned, all pairs in a round, until a round turns none. Accurate, and cubic with
a larger factor than the ways over matrices of few diagonals: for some hundred rows, not for
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
from ekiden.topi.linalg.rows import (
    EPSILON,
    Angle,
    Rows,
    each_matrix,
    matrices,
    shapes_of,
    turned,
    wide_dtype,
)
from ekiden.topi.shape import tidy
from ekiden.topi.sorting import before

ROUNDS = 40
"""The most of them; 5 to 12 are what matrices need."""
TINY = {"float32": 1e-17, "float64": 1e-150}
"""The length of a row, of a matrix whose greatest element is 1, that has no direction: its square
is nearly below the least number."""
Turn = tuple[Var, Var, Angle]
"""Two rows, and the angle by which they are turned."""


def _one(dtype: str) -> PrimExpr:
    return const(1, dtype)


def _root(x: PrimExpr) -> PrimExpr:
    return call_intrin("sqrt", x)


@contextmanager
def _turns(
    ib: IRBuilder,
    size: PrimExpr,
    pair: Callable[[Var, Var], tuple[PrimExpr, PrimExpr, PrimExpr, PrimExpr]],
) -> Iterator[Turn]:
    """What is done at each turn, until there is none in a round.

    pair: of two rows the 2 x 2 matrix [a, b; b, d] that a turn makes diagonal, as (a, b, d), and
    how large b may stay.
    """
    left = ib.allocate("int64", 2, "left", "local")  # rounds that may follow; turns of this one
    left[0] = ROUNDS
    with ib.while_loop(left[0] > 0):
        left[0] = left[0] - 1
        left[1] = 0
        with ib.for_range(0, size, "i") as i, ib.for_range(i + 1, size, "k") as k:
            a, b, d, limit = (ib.let("x", each) for each in pair(i, k))
            with ib.if_scope(te.abs(b) > limit):
                left[1] = left[1] + 1
                yield i, k, _angle(ib, a, b, d)
        with ib.if_scope(left[1].equal(0)):
            left[0] = 0


def _angle(ib: IRBuilder, a: PrimExpr, b: PrimExpr, d: PrimExpr) -> Angle:
    """The smaller of the two turns that make [a, b; b, d] diagonal (Golub, Van Loan: 8.5.2)."""
    one = _one(a.dtype)
    ratio = ib.let("ratio", (d - a) / (b + b))
    steep = one / (te.abs(ratio) + _root(one + ratio * ratio))
    tangent = ib.let("tangent", Select(ratio < 0.0, -steep, steep, a.dtype))
    cosine = ib.let("cosine", one / _root(one + tangent * tangent))
    sine = ib.let("sine", tangent * cosine)
    return sine, ib.let("half", sine / (one + cosine))


def _ranks(ib: IRBuilder, keys: Callable[[PrimExpr], PrimExpr], count: PrimExpr) -> BufferVar:
    """The place of each key among all, not-a-numbers last, of equals the first one first."""
    ranks = ib.allocate("int64", count, "ranks")
    with ib.for_range(0, count, "i") as i:
        ranks[i] = 0
        with ib.for_range(0, count, "j") as j:
            mine, other = ib.let("mine", keys(i)), ib.let("other", keys(j))
            is_equal = Not(binary(Or, before(mine, other), before(other, mine)))
            is_first = binary(Or, before(other, mine), logical_and(j < i, is_equal))
            ranks[i] = ranks[i] + cast(is_first, "int64")
    return ranks


def _identity(rows: Rows) -> None:
    zero = const(0, rows.dtype)
    rows.fill(lambda i, j: Select(i.equal(j), _one(rows.dtype), zero, rows.dtype))


def _greatest(ib: IRBuilder, rows: Rows) -> Var:
    """The greatest absolute value of the elements; 1 where all are 0."""
    found = ib.allocate(rows.dtype, 1, "greatest", "local")
    found[0] = const(0, rows.dtype)
    with ib.for_range(0, rows.count, "i") as i, ib.for_range(0, rows.size, "j") as j:
        found[0] = te.max(found[0], te.abs(rows[i, j]))
    return ib.let("scale", Select(found[0] > 0.0, found[0], _one(rows.dtype), rows.dtype))


def eigh(data: Tensor, lower: bool = True) -> tuple[Tensor, ...]:
    """Of symmetric matrices [.., n, n], of which one triangle is read: eigenvalues [.., n], the
    least first, and orthonormal eigenvectors as columns [.., n, n], of either sign.

    Raises ValueError for matrices that are not square.
    """
    batch, size, _ = matrices("eigh", data, square=True)
    dtype = wide_dtype(data)

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Cyclic Jacobi: rotations that each make one pair of elements 0, until all others are
        below half an epsilon of the greatest element; then eigenvalues in order.
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
            limit = ib.let("limit", _greatest(ib, work) * const(EPSILON[dtype] / 2, dtype))
            with _turns(ib, size, lambda i, k: (work[i, i], work[i, k], work[k, k], limit)) as (
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


def _turn_columns(ib: IRBuilder, work: Rows, i: Var, k: Var, angle: Angle) -> None:
    with ib.for_range(0, work.count, "r") as r:
        x, y = ib.let("x", work[r, i]), ib.let("y", work[r, k])
        work[r, i], work[r, k] = turned(x, y, angle)
    work[i, k] = const(0, work.dtype)
    work[k, i] = const(0, work.dtype)


def svd(data: Tensor, full_matrices: bool = True) -> tuple[Tensor, ...]:
    """Of matrices [.., m, n]: U [.., m, m], singular values [.., min(m, n)], the greatest first,
    and V' [.., n, n]; without `full_matrices` U [.., m, min(m, n)] and V' [.., min(m, n), n]. The
    columns of U and rows of V' are orthonormal, where a singular value is 0 too.

    Raises ValueError for no matrices.
    """
    batch, rows, columns = matrices("svd", data)
    least, most = tidy(te.min(rows, columns)), tidy(te.max(rows, columns))
    count, dtype = most if full_matrices else least, wide_dtype(data)
    is_wide = rows <= columns

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """One-sided Jacobi: rows (of the transpose where columns are more) are turned until they
        are orthogonal; their lengths are the singular values, the turns are the other side's
        vectors.
        """
        ib = IRBuilder()
        source, (left, values, right) = ib.buffer_ptr(ins[0]), map(ib.buffer_ptr, outs)
        with each_matrix(ib, batch) as at:
            work, basis = Rows(ib, dtype, count, most), Rows(ib, dtype, least, least)
            _identity(basis)
            with ib.for_range(0, least, "i") as i, ib.for_range(0, most, "j") as j:
                with ib.if_scope(is_wide):
                    work[i, j] = source[(*at, i, j)]
                with ib.else_scope():
                    work[i, j] = source[(*at, j, i)]
            scale = _greatest(ib, work)
            lengths = _orthogonal_rows(ib, work, basis, scale)
            ranks = _ranks(ib, lambda i: -lengths[i], least)
            with ib.for_range(0, count, "i") as i:
                place = ib.allocate("int64", 1, "place", "local")
                place[0] = i
                with ib.if_scope(i < least):
                    place[0] = ranks[i]
                    values[(*at, place[0])] = lengths[i] * scale
                _store(ib, is_wide, work, i, (at, place[0]), (left, right))
                with ib.if_scope(i < least):
                    _store(ib, Not(is_wide), basis, i, (at, place[0]), (left, right))
        return ib.get()

    shapes = shapes_of(
        batch,
        (rows, rows if full_matrices else least),
        (least,),
        (columns if full_matrices else least, columns),
    )
    return te.extern_op(shapes, [data], build, [data.dtype] * 3, name="svd")


def _store(
    ib: IRBuilder,
    is_right: PrimExpr,
    rows: Rows,
    i: PrimExpr,
    place: tuple[tuple[PrimExpr, ...], PrimExpr],
    outs: tuple[BufferVar, BufferVar],
) -> None:
    """Row i as a row of V' or as a column of U."""
    (at, number), (left, right) = place, outs
    with ib.for_range(0, rows.size, "j") as j:
        with ib.if_scope(is_right):
            right[(*at, number, j)] = rows[i, j]
        with ib.else_scope():
            left[(*at, j, number)] = rows[i, j]


def _orthogonal_rows(ib: IRBuilder, work: Rows, basis: Rows, scale: PrimExpr) -> BufferVar:
    """The lengths of rows that were turned until each is orthogonal to each, of length 1 then."""
    dtype, size = work.dtype, basis.count
    with ib.for_range(0, size, "i") as i, work.columns() as j:
        work[i, j] = work[i, j] / scale

    def pair(i: Var, k: Var) -> tuple[PrimExpr, PrimExpr, PrimExpr, PrimExpr]:
        a, d = work.dot(i, i), work.dot(k, k)
        return a, work.dot(i, k), d, _root(a) * _root(d) * const(EPSILON[dtype], dtype)

    with _turns(ib, size, pair) as (i, k, angle):
        work.rotate(i, k, angle)
        basis.rotate(i, k, angle)
    lengths = ib.allocate(dtype, work.count, "lengths")
    with ib.for_range(0, work.count, "i") as i:
        length = ib.let("length", _root(work.dot(i, i)))
        has_none = length <= const(TINY[dtype], dtype)
        lengths[i] = Select(has_none, const(0, dtype), length, dtype)
        with work.columns() as j:
            work[i, j] = Select(has_none, const(0, dtype), work[i, j] / length, dtype)
    with ib.for_range(0, work.count, "i") as i, ib.if_scope(lengths[i].equal(0.0)):
        _complete(ib, work, i)
    return lengths


def _complete(ib: IRBuilder, work: Rows, i: PrimExpr) -> None:
    """Row i, which is 0, becomes a direction that is orthogonal to all others: that of the axis of
    which least lies in them."""
    dtype = work.dtype
    best = ib.allocate("int64", 1, "best", "local")
    least = ib.allocate(dtype, 2, "least", "local")  # of all axes, of one
    best[0] = 0
    least[0] = const(2, dtype)
    with ib.for_range(0, work.size, "j") as j:
        least[1] = const(0, dtype)
        with ib.for_range(0, work.count, "r") as r:
            least[1] = least[1] + work[r, j] * work[r, j]
        best[0] = Select(least[1] < least[0], j, best[0], "int64")
        least[0] = te.min(least[0], least[1])
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
