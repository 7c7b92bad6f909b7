"""Winograd convolutions F(2, 3) and F(4, 3): 3x3 convolutions with fewer multiplications.

    out tile (m x m) = A ((G w G') * (B d B')) A'        d: (m + 2) x (m + 2) of the data

`*` is elementwise and summed over input channels: (m + 2)^2 products per channel for m^2 results,
instead of 9 m^2. The matrices evaluate polynomials at 0, 1, -1 for m = 2 and at 0, +-1/sqrt(2),
+-sqrt(2) for m = 4; these points keep errors within 1.6 times those of the direct sum (Ekiden
measures; 0, +-1, +-2 make them 6 times as large).

Bytes have the points 0, +-1, +-2 and are exact. Without its divisors G is a matrix of integers, as
B is; with them times D, their least common multiple, so is A. Then

    D^2 out = A ((G w G') * (B d B')) A'        modulo 2^32

where B d B' and G w G' fit int16, so that their sums are those of pmaddwd. D^2 = 9 * 2^s: sums are
multiplied by the inverse of 9 modulo 2^32, and shifted by s to the right, which gives all those
below 2^(31 - s). Weights say whether theirs are: 2^25 for m = 4, 2^29 for m = 2.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from ekiden import te
from ekiden.ir.dtype import is_float
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.op import Array
from ekiden.ir.prim import EQ, PrimExpr, Select, Var, cast, const, fold_binary
from ekiden.runtime import empty
from ekiden.te import Tensor
from ekiden.topi.dimensions import as_dim, simplify_dim
from ekiden.topi.nn.convolution import guarded_load, in_range_conditions

WINOGRAD_TAPS = 3
INTERPOLATION_POINTS = {
    2: (0.0, 1.0, -1.0),
    4: (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2), -math.sqrt(2)),
}
"""Toom-Cook interpolation points besides infinity; opposite points are adjacent."""
INTEGER_INTERPOLATION_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 1.0, -1.0, 2.0, -2.0)}
"""Interpolation points of integer transforms."""
CHANNELS_PER_PAIR = 2
"""Int16 elements of a dot-product word."""
UINT8_MAX = 255
"""Largest value of the uint8 data."""

MAX_TRANSFORM_COLUMNS = 512
"""Maximum columns of a matrix product in the weight transform."""
MIN_WINOGRAD_TILES = 9
"""Minimum tiles of an image: products of fewer rows leave FMA units idle."""


def fills_vectors(channels_in: int, channels_out: int, lanes: int) -> bool:
    """Return whether the input and output channels fill a vector of `lanes`."""
    return min(channels_in, channels_out) >= lanes


def _interpolation_divisors(points: Array) -> Array:
    """Return, for each interpolation point, the product of its differences to the others; 1 for
    infinity.
    """
    distances = points[:, None] - points[None]
    np.fill_diagonal(distances, 1.0)
    return np.append(distances.prod(1), 1.0)


@functools.cache
def integer_unscaling(m: int) -> tuple[int, int]:
    """Return (inverse, shift) that undo D^2: multiply a sum by `inverse` modulo 2^32, then shift it
    right.
    """
    square = (
        math.lcm(
            *(
                int(abs(d))
                for d in _interpolation_divisors(np.array(INTEGER_INTERPOLATION_POINTS[m]))
            )
        )
        ** 2
    )
    # The lowest set bit is the power of two in D^2.
    shift = (square & -square).bit_length() - 1
    # The sums are multiples of D^2: division by its odd part is exact as multiplication by the
    # inverse modulo 2**32, its power of two is a shift.
    inverse = pow(square >> shift, -1, 1 << 32)
    # As int32: products modulo 2^32 are the same for either sign.
    return (inverse + (1 << 31)) % (1 << 32) - (1 << 31), shift


def do_sums_fit_int32(weight: Array, m: int) -> bool:
    """Return whether every scaled sum with an int8 OIHW weight fits the bits that remain after the
    shift.
    """
    wide = weight.reshape(len(weight), -1).astype(np.int64)
    # A bound for data in 0..255: the positive weights at 255 and the others at 0, or the reverse.
    largest = max(np.maximum(wide, 0).sum(1).max(initial=0), -np.minimum(wide, 0).sum(1).min())
    return int(largest) * UINT8_MAX < 1 << (31 - integer_unscaling(m)[1])


@functools.cache
def transform_matrices(m: int, is_integer: bool = False) -> tuple[Array, Array, Array]:
    """Return the transforms (A: m x (m + 2), B: (m + 2) x (m + 2), G: (m + 2) x 3), float64, by
    Toom-Cook interpolation; of integers (A times D) for bytes.

    By Toom and Cook: a product of polynomials is determined by its values at as many points as it
    has coefficients. G evaluates the filter (of degree 2) at each point, divided by the product of
    its distances to the others; B, whose row k is the polynomial that is 0 at all points but k, and
    the row for infinity, is the transpose of interpolation; A evaluates powers. Their transposition
    turns the product into the correlation that a convolution is (Winograd 1980; Lavin and Gray
    2016).
    """
    points = np.array((INTEGER_INTERPOLATION_POINTS if is_integer else INTERPOLATION_POINTS)[m])
    size = m + WINOGRAD_TAPS - 1
    divisors = _interpolation_divisors(points)
    a, b, g = np.zeros((m, size)), np.zeros((size, size)), np.zeros((size, WINOGRAD_TAPS))
    a[:, :-1] = points[None] ** np.arange(m)[:, None]
    a[-1, -1] = 1
    for k, point in enumerate(points):
        other_points = np.delete(points, k)
        b[k, :-1] = np.poly(other_points)[::-1]
        g[k] = point ** np.arange(WINOGRAD_TAPS)
    b[-1] = np.poly(points)[::-1]
    g[-1, -1] = 1
    if is_integer:
        a *= math.lcm(*(int(abs(d)) for d in divisors)) / divisors
    else:
        g /= divisors[:, None]
    for matrix in (a, b, g):
        # Rounding residue of np.poly; exact zeros let the generated transforms skip terms.
        matrix[np.abs(matrix) < 1e-12] = 0
    return a, b, g


def transform_weight(weight: Array, m: int, tile: int) -> Array:
    """Transform OIHW to [(m + 2)^2][ceil(O / tile)][I][tile], the last tile zero-padded: G w G' for
    each pair of channels, as one product with the Kronecker square of G. int8 becomes int16 [(m
    + 2)^2][ceil(O / tile)][ceil(I / 2)][tile][2], with two input channels side by side.
    """
    if weight.dtype == np.int8:
        return _pair_channels(transform_int8_weight(weight, m, tile))
    return _transform_panels(weight, transform_matrices(m)[2], tile)


def transform_int8_weight(weight: Array, m: int, tile: int) -> Array:
    """Return the int16 transform of an int8 weight before channels are paired. No element exceeds
    49 * 128, so float32 holds them all exactly.
    """
    g = transform_matrices(m, True)[2]
    return _transform_panels(weight.astype(np.float32), g, tile).astype(np.int16)


def _pair_channels(transformed: Array) -> Array:
    """Reshape [..., I, tile] to [..., ceil(I / 2), tile, 2], zero-padding an odd number of
    channels.
    """
    missing = -transformed.shape[2] % CHANNELS_PER_PAIR
    full = np.pad(transformed, ((0, 0), (0, 0), (0, missing), (0, 0)))
    words = full.reshape(*full.shape[:2], -1, CHANNELS_PER_PAIR, full.shape[3])
    return np.ascontiguousarray(words.swapaxes(-1, -2))


def unpair_channels(weight: Array) -> Array:
    """Reshape [..., I / 2, tile, 2] back to [..., I, tile]."""
    return weight.swapaxes(-1, -2).reshape(*weight.shape[:2], -1, weight.shape[3])


def _transform_panels(weight: Array, g: Array, tile: int) -> Array:
    """Return G w G' for each pair of channels, packed in panels."""
    both = (
        np.einsum("ai,bj->abij", g, g)
        .reshape(-1, WINOGRAD_TAPS * WINOGRAD_TAPS)
        .astype(weight.dtype)
    )
    out, channels = weight.shape[:2]
    count = -(-out // tile)
    rows = weight.reshape(out, channels, WINOGRAD_TAPS * WINOGRAD_TAPS)
    if out < count * tile:
        rows = np.concatenate([rows, np.zeros((count * tile - out, *rows.shape[1:]), rows.dtype)])
    # the taps of an element stay together: a copy that scatters them takes longer than the product
    panels = rows.reshape(count, tile, channels, WINOGRAD_TAPS * WINOGRAD_TAPS).transpose(
        0, 2, 1, 3
    )
    # products so small that BLAS leaves them to one thread: its others wait for them in a loop,
    # at the cost of whoever else has the cores (0.04 s for ResNet-50, else up to 0.4)
    step = (
        next(
            n
            for n in range(min(channels, MAX_TRANSFORM_COLUMNS // tile), 0, -1)
            if channels % n == 0
        )
        * tile
    )
    column_blocks = np.ascontiguousarray(panels).reshape(-1, step, WINOGRAD_TAPS * WINOGRAD_TAPS)
    # in the memory of a tensor, and not to be written: so it is a constant without being copied
    transformed = empty((len(both), count, channels, tile), weight.dtype.name).numpy()
    np.matmul(
        both,
        column_blocks.swapaxes(1, 2),
        out=transformed.reshape(len(both), -1, step).swapaxes(0, 1),
    )
    transformed.setflags(write=False)
    return transformed


def reference_conv2d(
    data: Array, weight: Array, m: int, channels: int, padding: tuple[int, ...]
) -> Array:
    """Return the float64 reference of `winograd_conv2d`."""
    is_integer = weight.dtype == np.int16
    a, b, _ = transform_matrices(m, is_integer)
    if is_integer:
        a, b, weight = a.astype(np.int64), b.astype(np.int64), unpair_channels(weight)
    top, pad_left, bottom, right = padding
    n, height, width, depth = data.shape
    rows, columns = height + top + bottom - 2, width + pad_left + right - 2
    down, across = -(-rows // m), -(-columns // m)
    size = m + WINOGRAD_TAPS - 1
    shape = (n, down * m + WINOGRAD_TAPS - 1, across * m + WINOGRAD_TAPS - 1, depth)
    padded = np.zeros(shape, a.dtype)
    padded[:, top : top + height, pad_left : pad_left + width] = data
    tiles = np.zeros((n, down, across, size, size, depth), a.dtype)
    for i in range(size):
        for j in range(size):
            position = padded[:, i : i + down * m : m, j : j + across * m : m]
            tiles[:, :, :, i, j] = position[:, :down, :across]
    # V = B' d B, M = U V and Y = A' M A, as in Lavin and Gray (2016).
    inside = np.einsum("ai,bj,nyxijc->abnyxc", b, b, tiles, optimize=True)
    plain = weight[:, :, :depth].transpose(0, 2, 1, 3).reshape(size, size, depth, -1)
    plain = plain[..., :channels].astype(a.dtype)
    products = np.einsum("abnyxc,abco->abnyxo", inside, plain, optimize=True)
    output_tiles = np.einsum("ia,jb,abnyxo->nyixjo", a, a, products, optimize=True)
    full = output_tiles.reshape(n, down * m, across * m, channels)
    result = full[:, :rows, :columns]
    return _undo_integer_scale(result, m) if is_integer else np.asarray(result, data.dtype)


def _undo_integer_scale(sums: Array, m: int) -> Array:
    """Return int32 results from int64 sums scaled by D^2, as the generated code computes them."""
    inverse, shift = integer_unscaling(m)
    return (sums * inverse).astype(np.int32) >> np.int32(shift)


def matrix_element(matrix: Array, row: PrimExpr, column: PrimExpr, dtype: str) -> PrimExpr:
    """Return an element of a small constant matrix as a chain of selects."""
    width = matrix.shape[1]
    element: PrimExpr = const(0, dtype)
    for index, value in enumerate(matrix.ravel()):
        if value:
            element = Select(
                fold_binary(EQ, row * width + column, as_dim(index)),
                const(float(value) if is_float(dtype) else int(value), dtype),
                element,
                dtype,
            )
    return element


def winograd_weight(weight: Tensor, m: int, tile: int) -> Tensor:
    """Transform a weight as `transform_weight`."""
    is_integer = weight.dtype == "int8"
    dtype = "int16" if is_integer else weight.dtype
    _, _, g = transform_matrices(m, is_integer)
    out, channels = weight.shape[:2]
    size = m + WINOGRAD_TAPS - 1
    ky, kx = te.reduce_axis((0, WINOGRAD_TAPS), "ky"), te.reduce_axis((0, WINOGRAD_TAPS), "kx")

    def transform_element(e: Var, panel: Var, c: PrimExpr, column: Var) -> PrimExpr:
        """Return G g G' (Lavin and Gray 2015) at position (u, v) = e of a tile; zeros past the last
        channels and columns.
        """
        o = panel * tile + column
        held = [o < out, c < channels]
        value = cast(guarded_load(weight, (o, c, ky, kx), held, const(0, weight.dtype)), dtype)
        factor = matrix_element(g, e // size, ky, dtype) * matrix_element(g, e % size, kx, dtype)
        return te.sum(value * factor, (ky, kx))

    # One matrix per tile position: the products of all positions are independent matrix products.
    panels = as_dim(size * size), simplify_dim((out + (tile - 1)) // tile)
    if not is_integer:
        shape = (*panels, channels, as_dim(tile))
        return te.compute(shape, transform_element, name="winograd_weight", tag="reduce")
    words = (
        *panels,
        simplify_dim((channels + (CHANNELS_PER_PAIR - 1)) // CHANNELS_PER_PAIR),
        as_dim(tile),
        as_dim(CHANNELS_PER_PAIR),
    )
    return te.compute(
        words,
        lambda e, panel, word, column, n: transform_element(
            e, panel, word * CHANNELS_PER_PAIR + n, column
        ),
        name="winograd_weight",
        tag="reduce",
    )


def winograd_conv2d(
    data: Tensor, weight: Tensor, m: int, channels: int, padding: tuple[int, ...]
) -> Tensor:
    """Return a 3x3 convolution of NHWC data without strides; the weight is from
    `winograd_weight`.
    """
    is_integer = weight.dtype == "int16"
    dtype = "int32" if is_integer else data.dtype
    a, b, _ = transform_matrices(m, is_integer)
    n, height, width, depth = data.shape
    top, pad_left, bottom, right = padding
    size = m + WINOGRAD_TAPS - 1
    names = (("a", size), ("b", size), ("i", size), ("j", size), ("c", depth))
    axes = [te.reduce_axis((0, d), name) for name, d in names]
    u, v, i, j, c = axes

    def convolve_element(image: Var, y: Var, x: Var, o: Var) -> PrimExpr:
        """Return A'((G g G') * (B' d B))A of the tile of (y, x) as one sum: the definition, not the
        algorithm of kernels.
        """
        row, column = y // m * m + i - top, x // m * m + j - pad_left
        held = in_range_conditions(row, height, True, True) + in_range_conditions(
            column, width, True, True
        )
        value = cast(guarded_load(data, (image, row, column, c), held, const(0, data.dtype)), dtype)
        inner = matrix_element(b, u, i, dtype) * matrix_element(b, v, j, dtype)
        outer = matrix_element(a, y % m, u, dtype) * matrix_element(a, x % m, v, dtype)
        factor = cast(transformed_element(weight, u * size + v, c, o), dtype)
        return te.sum(value * inner * outer * factor, axes)

    rows = simplify_dim(height + (top + bottom - WINOGRAD_TAPS + 1))
    shape = (
        n,
        rows,
        simplify_dim(width + (pad_left + right - WINOGRAD_TAPS + 1)),
        as_dim(channels),
    )
    attrs = {"inputs": (data, weight), "m": m, "channels": channels, "padding": padding}
    sums = te.compute(shape, convolve_element, name="winograd", tag="winograd_conv2d", attrs=attrs)
    return undo_integer_scale(sums, m) if is_integer else sums


def transformed_element(weight: Tensor, e: PrimExpr, c: PrimExpr, o: PrimExpr) -> PrimExpr:
    """Return the element of a transformed weight at tile position `e`, for channels `c` of the data
    and `o` of the result.
    """
    tile = weight.shape[3]
    if weight.dtype == "int16":
        return weight[e, o // tile, c // CHANNELS_PER_PAIR, o % tile, c % CHANNELS_PER_PAIR]
    return weight[e, o // tile, c, o % tile]


def undo_integer_scale(sums: Tensor, m: int) -> Tensor:
    """Return the sums of bytes, from `sums` scaled by D^2."""
    inverse, shift = integer_unscaling(m)

    def unscale_element(*indices: Var) -> PrimExpr:
        """Divide a sum by the scale, exactly: multiply by the inverse modulo 2^32 and shift."""
        scaled = sums[indices] * const(inverse, "int32")
        return call_intrin("right_shift", scaled, const(shift, "int32"), dtype="int32")

    return te.compute(sums.shape, unscale_element, name="winograd_reduced", tag="elemwise")


__all__ = ["winograd_conv2d", "winograd_weight"]
