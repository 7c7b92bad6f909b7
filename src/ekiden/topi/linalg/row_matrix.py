"""Row-major working matrix with vectorised row operations: axpy, swap, rotation, reflection, dot
product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ekiden.ir.prim import ExprLike, PrimExpr, Select, Var, const, convert
from ekiden.te import Tensor
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.topi.dimensions import Shape, are_equal_dims, product_of_dims, simplify_dim
from ekiden.topi.transform import unravel

ROW_LANES = 16
"""Vector lanes along a row; rows are padded to a multiple."""
EPSILON_BY_DTYPE = {"float32": 2.0**-23, "float64": 2.0**-52}
"""Machine epsilon of the working dtypes."""


HalfAngle = tuple[PrimExpr, PrimExpr]
"""Rotation angle as its sine s and tan(angle / 2) = s / (1 + c), with cosine c."""


def rotate_pair(x: PrimExpr, y: PrimExpr, angle: HalfAngle) -> tuple[PrimExpr, PrimExpr]:
    """Rotate (x, y) to (c x - s y, s x + c y) by increments, so that small angles lose no precision
    (Rutishauser 1966).
    """
    sine, half = angle
    return x - sine * (y + half * x), y + sine * (x - half * y)


class RowMatrix:
    """Working matrix of `count` rows of `size` elements, zero-padded to whole vectors."""

    def __init__(self, ib: IRBuilder, dtype: str, count: PrimExpr, size: PrimExpr) -> None:
        self.ib, self.dtype, self.count, self.size = ib, dtype, count, size
        self._blocks = simplify_dim((size + (ROW_LANES - 1)) // ROW_LANES)
        self._data = ib.allocate(dtype, (count, simplify_dim(self._blocks * ROW_LANES)), "rows")
        # Dot products run over whole vectors: the padding must be 0.
        with ib.for_range(0, count, "i") as i, self.iter_columns() as j:
            self[i, j] = const(0, dtype)

    __iter__ = None  # else Python would ask for elements 0, 1, ... without an end

    def __getitem__(self, at: tuple[ExprLike, ExprLike]) -> PrimExpr:
        return self._data[at]

    def __setitem__(self, at: tuple[ExprLike, ExprLike], value: ExprLike) -> None:
        self._data[at] = value

    @contextmanager
    def _iter_vectors(self, begin: ExprLike = 0, end: PrimExpr | None = None) -> Iterator[PrimExpr]:
        """Yield the first column of each vector that covers columns `begin` to `end`."""
        last = self._blocks if end is None else (end + (ROW_LANES - 1)) // ROW_LANES
        with self.ib.for_range(convert(begin, "int64") // ROW_LANES, last, "block") as block:
            yield block * ROW_LANES

    @contextmanager
    def _iter_lanes(self) -> Iterator[Var]:
        with self.ib.for_range(0, ROW_LANES, "lane", kind="vectorized") as lane:
            yield lane

    @contextmanager
    def iter_columns(self, begin: ExprLike = 0) -> Iterator[PrimExpr]:
        """Emit a vectorised loop over columns from the vector of `begin` on; yield the column."""
        with self._iter_vectors(begin) as first, self._iter_lanes() as lane:
            yield first + lane

    def emit_fill(self, element: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> None:
        """Emit the initialisation of every element."""
        ib = self.ib
        with ib.for_range(0, self.count, "i") as i, ib.for_range(0, self.size, "j") as j:
            self[i, j] = element(i, j)

    def emit_axpy(self, i: PrimExpr, k: PrimExpr, share: PrimExpr, begin: ExprLike = 0) -> None:
        """Emit row i -= `share` * row k, from column `begin` on."""
        with self.iter_columns(begin) as j:
            less = self[i, j] - share * self[k, j]
            # Whole vectors are stored; columns before `begin` keep their values.
            self[i, j] = Select(j >= begin, less, self[i, j], self.dtype)

    def emit_swap(self, i: PrimExpr, k: PrimExpr) -> None:
        """Emit the swap of rows i and k."""
        with self.iter_columns() as j:
            saved = self.ib.let("kept", self[i, j])
            self[i, j] = self[k, j]
            self[k, j] = saved

    def emit_rotation(self, i: PrimExpr, k: PrimExpr, angle: HalfAngle) -> None:
        """Emit the Givens rotation of rows i and k by an angle."""
        with self.iter_columns() as j:
            x, y = self.ib.let("x", self[i, j]), self.ib.let("y", self[k, j])
            self[i, j], self[k, j] = rotate_pair(x, y, angle)

    def emit_dot(self, i: PrimExpr, k: PrimExpr, end: PrimExpr | None = None) -> PrimExpr:
        """Emit the dot product of two rows, over whole vectors up to the one before column
        `end`.
        """
        sums = self._zero_accumulator()
        with self._iter_vectors(0, end) as first, self._iter_lanes() as lane:
            j = first + lane
            sums[lane] = sums[lane] + self[i, j] * self[k, j]
        partial_sums = [sums[lane] for lane in range(ROW_LANES)]
        # Pairwise summation of the lanes: the rounding error grows with the logarithm of their
        # number.
        while len(partial_sums) > 1:
            partial_sums = [
                a + b for a, b in zip(partial_sums[::2], partial_sums[1::2], strict=True)
            ]
        return self.ib.let("dot", partial_sums[0])

    def emit_reflection(
        self, v: BufferVar, tau: PrimExpr, top: PrimExpr, begin: ExprLike = 0
    ) -> None:
        """Emit the Householder reflection (1 - tau v v') of the columns from `begin` on; v is 0
        above element `top`.
        """
        ib = self.ib
        with self._iter_vectors(begin) as first:
            sums = self._zero_accumulator()
            with ib.for_range(top, self.count, "i") as i, self._iter_lanes() as lane:
                sums[lane] = sums[lane] + v[i] * self[i, first + lane]
            with ib.for_range(top, self.count, "i") as i, self._iter_lanes() as lane:
                j = first + lane
                less = self[i, j] - tau * v[i] * sums[lane]
                self[i, j] = Select(j >= begin, less, self[i, j], self.dtype)

    def _zero_accumulator(self) -> BufferVar:
        sums = self.ib.allocate(self.dtype, ROW_LANES, "sums", "local")
        with self._iter_lanes() as lane:
            sums[lane] = const(0, self.dtype)
        return sums


@contextmanager
def iter_batch(ib: IRBuilder, batch: Shape) -> Iterator[tuple[PrimExpr, ...]]:
    """Yield the index of each matrix of a batch, within a parallel loop."""
    with ib.for_range(0, product_of_dims(batch), "matrix", kind="parallel") as n:
        yield tuple(unravel(n, batch))


def working_dtype(data: Tensor) -> str:
    """Return the working dtype of a decomposition: at least float32."""
    return "float64" if data.dtype == "float64" else "float32"


def matrix_dims(name: str, data: Tensor, square: bool = False) -> tuple[Shape, PrimExpr, PrimExpr]:
    """Return the batch shape, rows and columns of matrices. Raises ValueError for tensors that are
    no float matrices, or not square.
    """
    if data.ndim < 2 or not data.dtype.startswith("float"):
        raise ValueError(f"{name}: expected matrices of floats, got {data.dtype}{data.shape}")
    rows, columns = data.shape[-2:]
    if square and not are_equal_dims(rows, columns):
        raise ValueError(f"{name}: expected square matrices, got {data.shape}")
    return tuple(data.shape[:-2]), rows, columns


def batched_shapes(batch: Shape, *tails: Sequence[PrimExpr]) -> list[Shape]:
    """Return result shapes with the batch axes prepended."""
    return [(*batch, *tail) for tail in tails]
