"""Fourier transforms; complex numbers are (real, imaginary) pairs along a last axis."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.dft import apply_dft_matrix, dft_matrix
from ekiden.frontend.tflite.node import TfliteNode, TfliteRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known_int

COMPLEX_DTYPES = ("complex64",)


def _rfft2d(node: TfliteNode) -> Expr:
    """Convert RFFT2D over the last two axes, the first of extent 1: a real DFT of rows."""
    lengths = node.constant_ints(1, "fft_length")
    rows, columns = (known_int(d) for d in node.shape(0)[-2:])
    if lengths != (rows, columns) or columns is None:
        node.reject(f"'fft_length' {lengths} must be the last extents of {node.ins[0]}")
    if rows != 1:
        node.reject(f"axis {node.rank(0) - 2} of {node.ins[0]} must be 1 long, got {rows}")
    matrix = dft_matrix(columns, columns // 2 + 1)
    return apply_dft_matrix(node.expr(0), matrix, node.shape(0)[:-1])


def _complex_part_row(index: int) -> TfliteRow:
    name = ("REAL", "IMAG")[index]
    return TfliteRow(
        name,
        lambda n: op.take(n.expr(0), const(np.int32(index)), axis=-1),
        extra_tensor_kinds=COMPLEX_DTYPES,
    )


def _complex_abs(node: TfliteNode) -> Expr:
    return op.sqrt(op.sum(op.multiply(node.expr(0), node.expr(0)), axis=-1))


ROWS = (
    TfliteRow("RFFT2D", _rfft2d, extra_tensor_kinds=COMPLEX_DTYPES),
    TfliteRow("COMPLEX_ABS", _complex_abs, extra_tensor_kinds=COMPLEX_DTYPES),
    _complex_part_row(0),
    _complex_part_row(1),
)
