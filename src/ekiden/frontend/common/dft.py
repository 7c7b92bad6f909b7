"""Discrete Fourier transforms of constant extent as products with constant DFT matrices.

An extent too large for one matrix is split into two factors (Cooley and Tukey, "An algorithm for
the machine calculation of complex Fourier series", 1965).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ekiden.frontend.common.scope import Scope
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import Shape, as_dim, known_int

MAX_DFT_MATRIX_EXTENT = 1024
"""The largest extent whose waves become one matrix: 8 MB of float32."""

MAX_DFT_EXTENT = 1 << 26
"""The largest extent that is taken apart: its waves are constants of 1 GB in float64."""

ComplexParts = tuple[Expr, Expr]
"""The real and the imaginary parts of complex numbers."""


def dft_matrix(
    extent: int,
    bins: int,
    inverse: bool = False,
    is_complex: bool = False,
    dtype: str = "float32",
) -> Array:
    """Return the DFT matrix [2 * bins, extent]: row pairs (real, imaginary) per bin, a column per
    sample.
    """
    scale = 1 / extent if inverse else 1.0
    real, imaginary = (
        component * scale for component in _twiddle_factors(bins, extent, extent, inverse)
    )
    sides = [(real, imaginary), (-imaginary, real)][: 1 + is_complex]
    matrix = np.hstack([np.stack(side, axis=1).reshape(2 * bins, extent) for side in sides])
    return matrix.astype(to_numpy(dtype))


def _twiddle_factors(rows: int, columns: int, extent: int, inverse: bool) -> tuple[Array, Array]:
    """Return the cosines and sines of the twiddle factors exp(-2 pi i row column / extent); the
    inverse conjugates them.
    """
    # Reducing modulo the extent in integers keeps the angle exact for large products.
    steps = np.arange(rows)[:, None] * np.arange(columns) % extent
    angle = steps * ((1 if inverse else -1) * 2 * np.pi / extent)
    return np.cos(angle), np.sin(angle)


def apply_dft_matrix(data: Expr, matrix: Array, shape: Shape) -> Expr:
    """Multiply rows by a DFT matrix; the result has (real, imaginary) pairs as last axis."""
    spectrum = op.nn.dense(data, const(matrix), units=len(matrix))
    return op.reshape(spectrum, (*shape, len(matrix) // 2, 2), allowzero=True)


@cache
def balanced_factors(extent: int) -> tuple[int, int] | None:
    """Return the two most balanced factors of an extent.

    None for an extent that has a matrix itself, or with a prime factor that has none.
    """
    for first in range(int(extent**0.5), 1, -1):
        if extent % first == 0 and has_dft(extent // first):
            return first, extent // first
    return None


def has_dft(extent: int | None) -> bool:
    """Return whether `dft_last_axis` supports an extent."""
    if (
        extent is None or not 0 < extent <= MAX_DFT_EXTENT
    ):  # factors of larger ones would take for ever
        return False
    return extent <= MAX_DFT_MATRIX_EXTENT or balanced_factors(extent) is not None


def dft_last_axis(
    real: Expr, imaginary: Expr | None, shape: Shape, extent: int, dtype: str, inverse: bool = False
) -> ComplexParts:
    """Emit the DFT of the last axis; the inverse is divided by the extent. Exact to the rounding of
    sums in `dtype`.

    Args:
        real: real parts [*shape, extent].
        imaginary: imaginary parts; None for 0.
        shape: of the other axes.
        extent: of the last axis.
        dtype: float32 or float64.
        inverse: whether to transform back.

    Raises:
        ValueError: for an extent that has no DFT matrix.
    """
    if extent <= MAX_DFT_MATRIX_EXTENT:
        return _direct_dft(real, imaginary, shape, extent, dtype, inverse)
    pair = balanced_factors(extent) if extent <= MAX_DFT_EXTENT else None
    if pair is None:
        raise ValueError(
            f"fourier: {extent} has a prime factor above {MAX_DFT_MATRIX_EXTENT}, "
            f"or is above {MAX_DFT_EXTENT}"
        )
    # Cooley-Tukey: transform the columns, multiply by twiddle factors, transform the rows.
    first, second = pair  # element first_i * second + second_i
    rank = len(shape)
    swap = [*range(rank), rank + 1, rank]

    def split_and_transpose(component: Expr, rows: int, columns: int) -> Expr:
        """Reshape the axis to (rows, columns) and transpose these."""
        grid = op.reshape(component, (*shape, rows, columns), allowzero=True)
        return op.transpose(grid, axes=swap)

    columns = [split_and_transpose(p, first, second) for p in (real, imaginary) if p is not None]
    imaginary_columns = columns[1] if len(columns) > 1 else None
    # Each factor recurses, so that extents up to 2**26 need matrices of at most
    # MAX_DFT_MATRIX_EXTENT.
    inner = dft_last_axis(
        columns[0], imaginary_columns, (*shape, as_dim(second)), first, dtype, inverse
    )
    cos, sin = (
        const(t.astype(to_numpy(dtype))) for t in _twiddle_factors(second, first, extent, inverse)
    )
    a, b = inner
    twisted = (
        op.subtract(op.multiply(a, cos), op.multiply(b, sin)),
        op.add(op.multiply(a, sin), op.multiply(b, cos)),
    )
    rows = [op.transpose(p, axes=swap) for p in twisted]
    outer = dft_last_axis(rows[0], rows[1], (*shape, as_dim(first)), second, dtype, inverse)
    flat = [op.reshape(op.transpose(p, axes=swap), (*shape, extent), True) for p in outer]
    return flat[0], flat[1]


def dft_axis(
    scope: Scope, components: tuple[Expr, Expr | None], axis: int, inverse: bool, dtype: str
) -> ComplexParts:
    """Emit the unnormalized DFT of one axis of any extent; a missing imaginary part is 0."""
    shape = scope.tensor_type_of(components[0]).shape
    rank, extent = len(shape), known_int(shape[axis])
    order = [i for i in range(rank) if i != axis] + [axis]
    back = [order.index(i) for i in range(rank)]
    moved = [None if p is None else op.transpose(p, axes=order) for p in components]
    real, imaginary = moved
    assert real is not None
    if extent is not None and has_dft(extent):
        outer = tuple(shape[i] for i in order[:-1])
        spectrum = dft_last_axis(real, imaginary, outer, extent, dtype, inverse)
    else:  # sums of many waves cancel: in float64
        wide = op.cast(real, "float64")
        wide_imaginary = op.zeros_like(wide) if imaginary is None else op.cast(imaginary, "float64")
        dft = op.dft(wide, wide_imaginary, inverse=inverse)
        spectrum = TupleGetItem(dft, 0), TupleGetItem(dft, 1)
    if inverse:  # it has divided by the extent
        count = op.cast(scope.emit_dim(shape[axis]), scope.tensor_type_of(spectrum[0]).dtype)
        spectrum = op.multiply(spectrum[0], count), op.multiply(spectrum[1], count)
    x, y = (op.cast(op.transpose(p, axes=back), dtype) for p in spectrum)
    return x, y


def expand_hermitian(spectrum: ComplexParts, axis: int, extent: int) -> ComplexParts:
    """Emit the full spectrum of a real signal from its first half, by conjugate symmetry."""
    real, imaginary = (op.strided_slice(p, [0], [extent // 2 + 1], axes=[axis]) for p in spectrum)
    mirror = [extent - k for k in range(extent // 2 + 1, extent)]
    if mirror:
        mirror_indices = const(mirror, "int64")
        tails = [op.take(p, mirror_indices, axis=axis) for p in (real, imaginary)]
        real = op.concatenate([real, tails[0]], axis=axis)
        imaginary = op.concatenate([imaginary, op.negative(tails[1])], axis=axis)
    return real, imaginary


def _direct_dft(
    real: Expr, imaginary: Expr | None, shape: Shape, extent: int, dtype: str, inverse: bool
) -> ComplexParts:
    """Emit a DFT as one product with the full DFT matrix."""
    rank, is_complex = len(shape), imaginary is not None
    rows = real if imaginary is None else op.concatenate([real, imaginary], axis=rank)
    matrix = dft_matrix(extent, extent, inverse, is_complex, dtype)
    matrix_parts = np.ascontiguousarray(matrix.reshape(extent, 2, -1).transpose(1, 0, 2))
    spectrum = op.nn.dense(rows, const(matrix_parts.reshape(2 * extent, -1)), units=2 * extent)
    return (
        op.strided_slice(spectrum, [0], [extent], axes=[rank]),
        op.strided_slice(spectrum, [extent], [2 * extent], axes=[rank]),
    )
