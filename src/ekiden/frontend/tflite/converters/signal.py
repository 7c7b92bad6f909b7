"""Fourier transforms; complex numbers are (real, imaginary) pairs along a last axis."""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.waves import transformed, waves
from ekiden.frontend.tflite.node import Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known

COMPLEX = ("complex64",)


def _rfft2d(node: Node) -> Expr:
    """Convert RFFT2D over the last two axes, the first of which must have extent 1: the DFT of
    single rows.
    """
    lengths = node.axes(1, "fft_length")
    rows, columns = (known(d) for d in node.shape(0)[-2:])
    if lengths != (rows, columns) or columns is None:
        node.unsupported(f"'fft_length' {lengths} must be the last extents of {node.ins[0]}")
    if rows != 1:
        node.unsupported(f"axis {node.rank(0) - 2} of {node.ins[0]} must be 1 long, got {rows}")
    matrix = waves(columns, columns // 2 + 1)
    return transformed(node.expr(0), matrix, node.shape(0)[:-1])


def _part(index: int) -> Row:
    name = ("REAL", "IMAG")[index]
    return Row(name, lambda n: op.take(n.expr(0), const(np.int32(index)), axis=-1), dtypes=COMPLEX)


def _complex_abs(node: Node) -> Expr:
    return op.sqrt(op.sum(op.multiply(node.expr(0), node.expr(0)), axis=-1))


ROWS = (
    Row("RFFT2D", _rfft2d, dtypes=COMPLEX),
    Row("COMPLEX_ABS", _complex_abs, dtypes=COMPLEX),
    _part(0),
    _part(1),
)
