"""3x3 convolutions with fewer multiplications: F(m, 3) of Winograd, for m = 2 and m = 4.

    out tile (m x m) = A ((G w G') * (B d B')) A'        d: (m + 2) x (m + 2) of the data

`*` is elementwise and summed over input channels: (m + 2)^2 products per channel for m^2 results,
instead of 9 m^2. The matrices evaluate polynomials at 0, 1, -1 for m = 2 and at 0, +-1/sqrt(2),
+-sqrt(2) for m = 4; these points keep errors within 1.6 times those of the direct sum (Ekiden
measures; 0, +-1, +-2 make them 6 times as large).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ekiden import te
from ekiden.ir.op import Array
from ekiden.ir.prim import EQ, PrimExpr, Select, Var, binary, const
from ekiden.runtime import empty
from ekiden.te import Tensor
from ekiden.topi.nn.conv import guarded, inside
from ekiden.topi.shape import as_dim, tidy

TAPS = 3
POINTS = {
    2: (0.0, 1.0, -1.0),
    4: (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2), -math.sqrt(2)),
}
"""Where the polynomials are evaluated, besides infinity; opposite ones follow each other."""

COLUMNS = 512
"""Most columns of a product when weights are transformed."""
FEW = 9
"""Fewest tiles of an image: products of fewer rows leave the multipliers idle."""


def suits(channels_in: int, channels_out: int, lanes: int) -> bool:
    """Whether channels of the data, and those of the output, make a vector of `lanes`."""
    return min(channels_in, channels_out) >= lanes


@functools.cache
def matrices(m: int) -> tuple[Array, Array, Array]:
    """(A: m x (m + 2), B: (m + 2) x (m + 2), G: (m + 2) x 3), float64.

    By Toom and Cook: a product of polynomials is known by its values at as many points as it has
    coefficients. G evaluates the filter (of degree 2) at each point, divided by the product of its
    distances to the others; B, whose row k is the polynomial that is 0 at all points but k, and the
    row for infinity, is the transpose of interpolation; A evaluates powers. Their transposition
    turns the product into the correlation that a convolution is (Winograd 1980; Lavin and Gray
    2016).
    """
    points = np.array(POINTS[m])
    size = m + TAPS - 1
    a, b, g = np.zeros((m, size)), np.zeros((size, size)), np.zeros((size, TAPS))
    a[:, :-1] = points[None] ** np.arange(m)[:, None]
    a[-1, -1] = 1
    for k, point in enumerate(points):
        others = np.delete(points, k)
        b[k, :-1] = np.poly(others)[::-1]
        g[k] = point ** np.arange(TAPS) / np.prod(point - others)
    b[-1] = np.poly(points)[::-1]
    g[-1, -1] = 1
    for matrix in (a, b, g):
        matrix[np.abs(matrix) < 1e-12] = 0
    return a, b, g


def transform_weight(weight: Array, m: int, tile: int) -> Array:
    """OIHW to [(m + 2)^2][ceil(O / tile)][I][tile], the last tile padded with zeros: G w G' for
    each pair of channels, as one product with the Kronecker square of G."""
    _, _, g = matrices(m)
    both = np.einsum("ai,bj->abij", g, g).reshape(-1, TAPS * TAPS).astype(weight.dtype)
    out, channels = weight.shape[:2]
    count = -(-out // tile)
    rows = weight.reshape(out, channels, TAPS * TAPS)
    if out < count * tile:
        rows = np.concatenate([rows, np.zeros((count * tile - out, *rows.shape[1:]), rows.dtype)])
    # the taps of an element stay together: a copy that scatters them takes longer than the product
    parts = rows.reshape(count, tile, channels, TAPS * TAPS).transpose(0, 2, 1, 3)
    # products so small that BLAS leaves them to one thread: its others wait for them in a loop,
    # at the cost of whoever else has the cores (0.04 s for ResNet-50, else up to 0.4)
    step = next(n for n in range(min(channels, COLUMNS // tile), 0, -1) if channels % n == 0) * tile
    taken = np.ascontiguousarray(parts).reshape(-1, step, TAPS * TAPS)
    # in the memory of a tensor, and not to be written: so it is a constant without being copied
    made = empty((len(both), count, channels, tile), weight.dtype.name).numpy()
    np.matmul(both, taken.swapaxes(1, 2), out=made.reshape(len(both), -1, step).swapaxes(0, 1))
    made.setflags(write=False)
    return made


def convolve(data: Array, weight: Array, m: int, channels: int, padding: tuple[int, ...]) -> Array:
    """The reference of `winograd_conv2d`, in float64."""
    a, b, _ = matrices(m)
    top, left, bottom, right = padding
    n, height, width, depth = data.shape
    rows, columns = height + top + bottom - 2, width + left + right - 2
    down, across = -(-rows // m), -(-columns // m)
    size = m + TAPS - 1
    shape = (n, down * m + TAPS - 1, across * m + TAPS - 1, depth)
    padded = np.zeros(shape)
    padded[:, top : top + height, left : left + width] = data
    tiles = np.zeros((n, down, across, size, size, depth))
    for i in range(size):
        for j in range(size):
            at = padded[:, i : i + down * m : m, j : j + across * m : m]
            tiles[:, :, :, i, j] = at[:, :down, :across]
    inside = np.einsum("ai,bj,nyxijc->abnyxc", b, b, tiles, optimize=True)
    plain = weight.transpose(0, 2, 1, 3).reshape(size, size, depth, -1)[..., :channels]
    products = np.einsum("abnyxc,abco->abnyxo", inside, plain.astype("float64"), optimize=True)
    made = np.einsum("ia,jb,abnyxo->nyixjo", a, a, products, optimize=True)
    whole = made.reshape(n, down * m, across * m, channels)
    return np.asarray(whole[:, :rows, :columns], data.dtype)


def matrix_element(matrix: Array, row: PrimExpr, column: PrimExpr, dtype: str) -> PrimExpr:
    """An element of a small constant matrix."""
    width = matrix.shape[1]
    found: PrimExpr = const(0, dtype)
    for at, value in enumerate(matrix.ravel()):
        if value:
            found = Select(
                binary(EQ, row * width + column, as_dim(at)),
                const(float(value), dtype),
                found,
                dtype,
            )
    return found


def winograd_weight(weight: Tensor, m: int, tile: int) -> Tensor:
    """As `transform_weight`."""
    _, _, g = matrices(m)
    out, channels = weight.shape[:2]
    size = m + TAPS - 1
    ky, kx = te.reduce_axis((0, TAPS), "ky"), te.reduce_axis((0, TAPS), "kx")

    def body(e: Var, panel: Var, c: Var, column: Var) -> PrimExpr:
        """G g G' of Lavin and Gray (2015), for each of the places (u, v) = e of a tile; zeros in
        the last panel's columns behind the channels.
        """
        o = panel * tile + column
        value = guarded(weight, (o, c, ky, kx), [o < out], const(0, weight.dtype))
        factor = matrix_element(g, e // size, ky, weight.dtype) * matrix_element(
            g, e % size, kx, weight.dtype
        )
        return te.sum(value * factor, (ky, kx))

    shape = (as_dim(size * size), tidy((out + (tile - 1)) // tile), channels, as_dim(tile))
    return te.compute(shape, body, name="winograd_weight", tag="reduce")


def winograd_conv2d(
    data: Tensor, weight: Tensor, m: int, channels: int, padding: tuple[int, ...]
) -> Tensor:
    """A 3x3 convolution of NHWC data without strides; the weight is from `winograd_weight`."""
    a, b, _ = matrices(m)
    n, height, width, depth = data.shape
    top, left, bottom, right = padding
    size, tile = m + TAPS - 1, weight.shape[3]
    names = (("a", size), ("b", size), ("i", size), ("j", size), ("c", depth))
    axes = [te.reduce_axis((0, d), name) for name, d in names]
    u, v, i, j, c = axes

    def body(image: Var, y: Var, x: Var, o: Var) -> PrimExpr:
        """A'((G g G') * (B'd B))A of the tile that holds (y, x), all sums at once: what it means;
        kernels compute it a transform at a time.
        """
        row, column = y // m * m + i - top, x // m * m + j - left
        held = inside(row, height, True, True) + inside(column, width, True, True)
        value = guarded(data, (image, row, column, c), held, const(0, data.dtype))
        inner = matrix_element(b, u, i, data.dtype) * matrix_element(b, v, j, data.dtype)
        outer = matrix_element(a, y % m, u, data.dtype) * matrix_element(a, x % m, v, data.dtype)
        factor = weight[u * size + v, o // tile, c, o % tile]
        return te.sum(value * inner * outer * factor, axes)

    rows = tidy(height + (top + bottom - TAPS + 1))
    shape = (n, rows, tidy(width + (left + right - TAPS + 1)), as_dim(channels))
    attrs = {"inputs": (data, weight), "m": m, "channels": channels, "padding": padding}
    return te.compute(shape, body, name="winograd", tag="winograd_conv2d", attrs=attrs)


__all__ = ["winograd_conv2d", "winograd_weight"]
