"""Padded matrix rows as vectorised working memory; sums of rows, products of two, by vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ekiden.ir.prim import ExprLike, PrimExpr, Select, Var, const, convert
from ekiden.te import Tensor
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.topi.dimensions import Shape, equal, product, tidy
from ekiden.topi.transform import unravel

ROW_LANES = 16
"""The elements of a step along a row, which is padded to a multiple of them."""
MACHINE_EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}
"""The distance from 1 to the next number, of the dtypes that are worked in."""


HalfAngle = tuple[PrimExpr, PrimExpr]
"""An angle by its sine s and s / (1 + c), the tangent of its half, where c is its cosine."""


def turned(x: PrimExpr, y: PrimExpr, angle: HalfAngle) -> tuple[PrimExpr, PrimExpr]:
    """(c x - s y, s x + c y), as what is added to x and y: small angles lose nothing to rounding,
    so that the lengths of rows do not drift (Rutishauser, 1966)."""
    sine, half = angle
    return x - sine * (y + half * x), y + sine * (x - half * y)


class Rows:
    """Matrix of `count` rows of `size` elements, zero-padded to whole vectors."""

    def __init__(self, ib: IRBuilder, dtype: str, count: PrimExpr, size: PrimExpr) -> None:
        self.ib, self.dtype, self.count, self.size = ib, dtype, count, size
        self._blocks = tidy((size + (ROW_LANES - 1)) // ROW_LANES)
        self._data = ib.allocate(dtype, (count, tidy(self._blocks * ROW_LANES)), "rows")
        with ib.for_range(0, count, "i") as i, self.columns() as j:
            self[i, j] = const(0, dtype)

    __iter__ = None  # else Python would ask for elements 0, 1, ... without an end

    def __getitem__(self, at: tuple[ExprLike, ExprLike]) -> PrimExpr:
        return self._data[at]

    def __setitem__(self, at: tuple[ExprLike, ExprLike], value: ExprLike) -> None:
        self._data[at] = value

    @contextmanager
    def _block(self, begin: ExprLike = 0, end: PrimExpr | None = None) -> Iterator[PrimExpr]:
        """Yield the first column of each vector from that of `begin` to that of `end`."""
        last = self._blocks if end is None else (end + (ROW_LANES - 1)) // ROW_LANES
        with self.ib.for_range(convert(begin, "int64") // ROW_LANES, last, "block") as block:
            yield block * ROW_LANES

    @contextmanager
    def _lanes(self) -> Iterator[Var]:
        with self.ib.for_range(0, ROW_LANES, "lane", kind="vectorized") as lane:
            yield lane

    @contextmanager
    def columns(self, begin: ExprLike = 0) -> Iterator[PrimExpr]:
        """Yield all columns of whole vectors, from that of `begin` on."""
        with self._block(begin) as first, self._lanes() as lane:
            yield first + lane

    def fill(self, element: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> None:
        """Set every element."""
        ib = self.ib
        with ib.for_range(0, self.count, "i") as i, ib.for_range(0, self.size, "j") as j:
            self[i, j] = element(i, j)

    def subtract(self, i: PrimExpr, k: PrimExpr, share: PrimExpr, begin: ExprLike = 0) -> None:
        """Subtract `share` times row k from row i, from column `begin` on."""
        with self.columns(begin) as j:
            less = self[i, j] - share * self[k, j]
            self[i, j] = Select(j >= begin, less, self[i, j], self.dtype)

    def swap(self, i: PrimExpr, k: PrimExpr) -> None:
        """Swap rows i and k."""
        with self.columns() as j:
            saved = self.ib.let("kept", self[i, j])
            self[i, j] = self[k, j]
            self[k, j] = saved

    def rotate(self, i: PrimExpr, k: PrimExpr, angle: HalfAngle) -> None:
        """Rotate rows i and k by an angle."""
        with self.columns() as j:
            x, y = self.ib.let("x", self[i, j]), self.ib.let("y", self[k, j])
            self[i, j], self[k, j] = turned(x, y, angle)

    def dot(self, i: PrimExpr, k: PrimExpr, end: PrimExpr | None = None) -> PrimExpr:
        """Return the dot product of two rows, over whole vectors up to the one before
        column `end`.
        """
        sums = self._zeros()
        with self._block(0, end) as first, self._lanes() as lane:
            j = first + lane
            sums[lane] = sums[lane] + self[i, j] * self[k, j]
        partial_sums = [sums[lane] for lane in range(ROW_LANES)]
        while len(partial_sums) > 1:
            partial_sums = [
                a + b for a, b in zip(partial_sums[::2], partial_sums[1::2], strict=True)
            ]
        return self.ib.let("dot", partial_sums[0])

    def reflect(self, v: BufferVar, tau: PrimExpr, top: PrimExpr, begin: ExprLike = 0) -> None:
        """Apply (1 - tau v v') to the columns from `begin` on; v is 0 above element `top`."""
        ib = self.ib
        with self._block(begin) as first:
            sums = self._zeros()
            with ib.for_range(top, self.count, "i") as i, self._lanes() as lane:
                sums[lane] = sums[lane] + v[i] * self[i, first + lane]
            with ib.for_range(top, self.count, "i") as i, self._lanes() as lane:
                j = first + lane
                less = self[i, j] - tau * v[i] * sums[lane]
                self[i, j] = Select(j >= begin, less, self[i, j], self.dtype)

    def _zeros(self) -> BufferVar:
        sums = self.ib.allocate(self.dtype, ROW_LANES, "sums", "local")
        with self._lanes() as lane:
            sums[lane] = const(0, self.dtype)
        return sums


@contextmanager
def each_matrix(ib: IRBuilder, batch: Shape) -> Iterator[tuple[PrimExpr, ...]]:
    """Yield the index of each matrix of a batch, in a parallel loop."""
    with ib.for_range(0, product(batch), "matrix", kind="parallel") as n:
        yield tuple(unravel(n, batch))


def wide_dtype(data: Tensor) -> str:
    """Return the working dtype: floats below float32 are widened."""
    return "float64" if data.dtype == "float64" else "float32"


def matrices(name: str, data: Tensor, square: bool = False) -> tuple[Shape, PrimExpr, PrimExpr]:
    """Return batch shape, rows and columns. Raises ValueError for tensors that are no float
    matrices, or not square.
    """
    if data.ndim < 2 or not data.dtype.startswith("float"):
        raise ValueError(f"{name}: expected matrices of floats, got {data.dtype}{data.shape}")
    rows, columns = data.shape[-2:]
    if square and not equal(rows, columns):
        raise ValueError(f"{name}: expected square matrices, got {data.shape}")
    return tuple(data.shape[:-2]), rows, columns


def shapes_of(batch: Shape, *tails: Sequence[PrimExpr]) -> list[Shape]:
    """Shapes of results, each with the axes of the batch before its own."""
    return [(*batch, *tail) for tail in tails]
