"""Fourier transforms, with PyTorch's three normalisations: none, by the root of the size, by the
size.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.value import Value
from ekiden.frontend.common.waves import Parts, along, mirrored
from ekiden.frontend.torch.complex import none_real, own
from ekiden.frontend.torch.node import Found, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known, tidy

_POWERS = (0.0, 0.5, 1.0)


def _normalised(node: Node, spectrum: Parts, axes: Sequence[int], how: int) -> Parts:
    if not _POWERS[how]:
        return spectrum
    shape, dtype = node.typed(spectrum[0]).shape, node.part_dtype
    scale: Expr = const(1.0, dtype)
    for axis in axes:
        scale = op.multiply(scale, node.of(shape[axis], dtype))
    scale = op.power(scale, const(-_POWERS[how], dtype))
    return op.multiply(spectrum[0], scale), op.multiply(spectrum[1], scale)


def _fft(node: Node, x: Complex, dim: Sequence[int], how: int, forward: bool) -> Found:
    signal: Parts = node.of(x.real), node.of(x.imaginary)
    axes = [node.axis(d, len(x.real.type.shape)) for d in dim]
    for axis in axes:
        signal = along(node.scope, signal, axis, not forward, node.part_dtype)
    return _normalised(node, signal, axes, how)


def _fft_of_real(node: Node, x: Value, dim: Sequence[int], how: int, onesided: bool) -> Found:
    """Convert _fft_r2c; onesided, the last axis keeps the non-redundant half of the Hermitian
    spectrum.
    """
    axes = [node.axis(d, len(x.type.shape)) for d in dim]
    last = axes[-1]
    spectrum = along(node.scope, (node.of(x), None), last, False, node.part_dtype)
    spectrum = _normalised(node, spectrum, [last], how)
    if onesided:
        half = tidy(x.type.shape[last] // 2 + 1)
        real, imaginary = (op.strided_slice(p, [0], [half], axes=[last]) for p in spectrum)
        spectrum = real, imaginary
    for axis in axes[:-1]:
        spectrum = along(node.scope, spectrum, axis, False, node.part_dtype)
    return _normalised(node, spectrum, axes[:-1], how)


def _fft_to_real(node: Node, x: Complex, dim: Sequence[int], how: int, size: object) -> Found:
    """Convert _fft_c2r: the half spectrum of the last axis is mirrored to `size` elements."""
    del size  # as the shape of the output has it
    axes = [node.axis(d, len(x.real.type.shape)) for d in dim]
    spectrum: Parts = node.of(x.real), node.of(x.imaginary)
    for axis in axes[:-1]:
        spectrum = along(node.scope, spectrum, axis, True, node.part_dtype)
    last = axes[-1]
    extent = known(node.out_shape[last])
    if extent is None:
        node.unsupported("the extent of its result must be constant")
    signal = along(node.scope, mirrored(spectrum, last, extent), last, True, node.part_dtype)
    return _normalised(node, signal, axes, how)[0]


ROWS: tuple[Row, ...] = (
    ("_fft_c2c", none_real, own(_fft)),
    ("_fft_c2r", none_real, own(_fft_to_real)),
    ("_fft_r2c", none_real, own(_fft_of_real)),
)
