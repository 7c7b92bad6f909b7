"""Fourier transforms of constant extent as products with constant matrices of waves: 100 times as
fast as sums that compute each wave, and as accurate.

An extent that is too large for one matrix is taken apart into two factors (Cooley and Tukey, "An
algorithm for the machine calculation of complex Fourier series", 1965).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ekiden.frontend.common.scope import Scope
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.shape import Shape, as_dim, known

MOST_WAVES = 1024
"""The largest extent whose waves become one matrix: 8 MB of float32."""

LARGEST = 1 << 26
"""The largest extent that is taken apart: its waves are constants of 1 GB in float64."""

Parts = tuple[Expr, Expr]
"""The real and the imaginary parts of complex numbers."""


def waves(
    extent: int,
    bins: int,
    inverse: bool = False,
    is_complex: bool = False,
    dtype: str = "float32",
) -> Array:
    """The transform as a matrix: rows (bin, part), a column for each sample, or real parts, then
    imaginary ones.
    """
    scale = 1 / extent if inverse else 1.0
    real, imaginary = (part * scale for part in _turns(bins, extent, extent, inverse))
    sides = [(real, imaginary), (-imaginary, real)][: 1 + is_complex]
    found = np.hstack([np.stack(parts, axis=1).reshape(2 * bins, extent) for parts in sides])
    return found.astype(to_numpy(dtype))


def _turns(rows: int, columns: int, extent: int, inverse: bool) -> tuple[Array, Array]:
    """exp(-2 pi i row column / extent), of the inverse its conjugate."""
    steps = np.arange(rows)[:, None] * np.arange(columns) % extent
    angle = steps * ((1 if inverse else -1) * 2 * np.pi / extent)
    return np.cos(angle), np.sin(angle)


def transformed(data: Expr, matrix: Array, shape: Shape) -> Expr:
    """Rows times waves, as pairs; `shape` is that of the data but for its last axis."""
    found = op.nn.dense(data, const(matrix), units=len(matrix))
    return op.reshape(found, (*shape, len(matrix) // 2, 2), allowzero=True)


@cache
def factors(extent: int) -> tuple[int, int] | None:
    """Two factors of which the first has a matrix of waves, as near to each other as can be; None
    for an extent that has one itself, or of which a factor is a prime that has none.
    """
    for first in range(int(extent**0.5), 1, -1):
        if extent % first == 0 and has_waves(extent // first):
            return first, extent // first
    return None


def has_waves(extent: int | None) -> bool:
    """Return whether `fourier` takes an extent."""
    if extent is None or not 0 < extent <= LARGEST:  # factors of larger ones would take for ever
        return False
    return extent <= MOST_WAVES or factors(extent) is not None


def fourier(
    real: Expr, imaginary: Expr | None, shape: Shape, extent: int, dtype: str, inverse: bool = False
) -> Parts:
    """The transform along the last axis, of `extent`, by it where it is the inverse; `shape` is
    that of the other axes, and without imaginary parts they are 0. Exact to the rounding of sums
    in `dtype`, float32 or float64.

    Raises ValueError for an extent that has no waves.
    """
    if extent <= MOST_WAVES:
        return _whole(real, imaginary, shape, extent, dtype, inverse)
    pair = factors(extent) if extent <= LARGEST else None
    if pair is None:
        raise ValueError(
            f"fourier: {extent} has a prime factor above {MOST_WAVES}, or is above {LARGEST}"
        )
    first, second = pair  # element first_i * second + second_i
    rank = len(shape)
    swap = [*range(rank), rank + 1, rank]

    def turned(part: Expr, rows: int, columns: int) -> Expr:
        grid = op.reshape(part, (*shape, rows, columns), allowzero=True)
        return op.transpose(grid, axes=swap)

    columns = [turned(p, first, second) for p in (real, imaginary) if p is not None]
    other = columns[1] if len(columns) > 1 else None
    inner = fourier(columns[0], other, (*shape, as_dim(second)), first, dtype, inverse)
    cos, sin = (const(t.astype(to_numpy(dtype))) for t in _turns(second, first, extent, inverse))
    a, b = inner
    twisted = (
        op.subtract(op.multiply(a, cos), op.multiply(b, sin)),
        op.add(op.multiply(a, sin), op.multiply(b, cos)),
    )
    rows = [op.transpose(p, axes=swap) for p in twisted]
    outer = fourier(rows[0], rows[1], (*shape, as_dim(first)), second, dtype, inverse)
    flat = [op.reshape(op.transpose(p, axes=swap), (*shape, extent), True) for p in outer]
    return flat[0], flat[1]


def along(
    scope: Scope, parts: tuple[Expr, Expr | None], axis: int, inverse: bool, dtype: str
) -> Parts:
    """The transform of one axis, of any extent, divided by nothing; without imaginary parts they
    are 0."""
    shape = scope.typed(parts[0]).shape
    rank, extent = len(shape), known(shape[axis])
    order = [i for i in range(rank) if i != axis] + [axis]
    back = [order.index(i) for i in range(rank)]
    moved = [None if p is None else op.transpose(p, axes=order) for p in parts]
    real, imaginary = moved
    assert real is not None
    if extent is not None and has_waves(extent):
        outer = tuple(shape[i] for i in order[:-1])
        found = fourier(real, imaginary, outer, extent, dtype, inverse)
    else:  # sums of many waves cancel: in float64
        wide = op.cast(real, "float64")
        other = op.zeros_like(wide) if imaginary is None else op.cast(imaginary, "float64")
        made = op.dft(wide, other, inverse=inverse)
        found = TupleGetItem(made, 0), TupleGetItem(made, 1)
    if inverse:  # it has divided by the extent
        count = op.cast(scope.scalar(shape[axis]), scope.typed(found[0]).dtype)
        found = op.multiply(found[0], count), op.multiply(found[1], count)
    x, y = (op.cast(op.transpose(p, axes=back), dtype) for p in found)
    return x, y


def mirrored(parts: Parts, axis: int, extent: int) -> Parts:
    """The whole axis of what has a real transform, of its first half."""
    real, imaginary = (op.strided_slice(p, [0], [extent // 2 + 1], axes=[axis]) for p in parts)
    mirror = [extent - k for k in range(extent // 2 + 1, extent)]
    if mirror:
        places = const(mirror, "int64")
        tails = [op.take(p, places, axis=axis) for p in (real, imaginary)]
        real = op.concatenate([real, tails[0]], axis=axis)
        imaginary = op.concatenate([imaginary, op.negative(tails[1])], axis=axis)
    return real, imaginary


def _whole(
    real: Expr, imaginary: Expr | None, shape: Shape, extent: int, dtype: str, inverse: bool
) -> Parts:
    rank, is_complex = len(shape), imaginary is not None
    rows = real if imaginary is None else op.concatenate([real, imaginary], axis=rank)
    matrix = waves(extent, extent, inverse, is_complex, dtype)
    parts = np.ascontiguousarray(matrix.reshape(extent, 2, -1).transpose(1, 0, 2))
    found = op.nn.dense(rows, const(parts.reshape(2 * extent, -1)), units=2 * extent)
    return (
        op.strided_slice(found, [0], [extent], axes=[rank]),
        op.strided_slice(found, [extent], [2 * extent], axes=[rank]),
    )
