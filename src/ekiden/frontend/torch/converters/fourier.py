"""Fourier transforms with PyTorch's three normalizations: none, by the root of the size, by the
size.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.dft import ComplexParts, dft_axis, expand_hermitian
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.complex_rules import custom_complex_rule, reject_real
from ekiden.frontend.torch.node import ComplexResult, ConverterRow, FxNode
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import known_int, simplify_dim

_NORM_EXPONENTS = (0.0, 0.5, 1.0)


def _normalize_spectrum(
    node: FxNode, spectrum: ComplexParts, axes: Sequence[int], how: int
) -> ComplexParts:
    if not _NORM_EXPONENTS[how]:
        return spectrum
    shape, dtype = node.tensor_type_of(spectrum[0]).shape, node.part_dtype
    scale: Expr = const(1.0, dtype)
    for axis in axes:
        scale = op.multiply(scale, node.to_expr(shape[axis], dtype))
    # The modes none, "ortho" and full divide by n ** 0, n ** 0.5 and n.
    scale = op.power(scale, const(-_NORM_EXPONENTS[how], dtype))
    return op.multiply(spectrum[0], scale), op.multiply(spectrum[1], scale)


def _fft_c2c(
    node: FxNode, x: ComplexValue, dim: Sequence[int], how: int, forward: bool
) -> ComplexResult:
    signal: ComplexParts = node.to_expr(x.real), node.to_expr(x.imaginary)
    axes = [node.axis(d, len(x.real.type.shape)) for d in dim]
    for axis in axes:
        signal = dft_axis(node.scope, signal, axis, not forward, node.part_dtype)
    return _normalize_spectrum(node, signal, axes, how)


def _fft_r2c(node: FxNode, x: Value, dim: Sequence[int], how: int, onesided: bool) -> ComplexResult:
    """Convert _fft_r2c; one-sided, the last axis keeps the non-redundant half of the spectrum."""
    axes = [node.axis(d, len(x.type.shape)) for d in dim]
    last = axes[-1]
    spectrum = dft_axis(node.scope, (node.to_expr(x), None), last, False, node.part_dtype)
    spectrum = _normalize_spectrum(node, spectrum, [last], how)
    if onesided:
        # The spectrum of a real signal is Hermitian, so the first half determines it.
        half = simplify_dim(x.type.shape[last] // 2 + 1)
        real, imaginary = (op.strided_slice(p, [0], [half], axes=[last]) for p in spectrum)
        spectrum = real, imaginary
    for axis in axes[:-1]:
        spectrum = dft_axis(node.scope, spectrum, axis, False, node.part_dtype)
    return _normalize_spectrum(node, spectrum, axes[:-1], how)


def _fft_c2r(
    node: FxNode, x: ComplexValue, dim: Sequence[int], how: int, size: object
) -> ComplexResult:
    """Convert _fft_c2r; the half spectrum of the last axis is mirrored to `size` elements."""
    del size  # as the shape of the output has it
    axes = [node.axis(d, len(x.real.type.shape)) for d in dim]
    spectrum: ComplexParts = node.to_expr(x.real), node.to_expr(x.imaginary)
    for axis in axes[:-1]:
        spectrum = dft_axis(node.scope, spectrum, axis, True, node.part_dtype)
    last = axes[-1]
    extent = known_int(node.out_shape[last])
    if extent is None:
        node.reject("the extent of its result must be constant")
    signal = dft_axis(
        node.scope, expand_hermitian(spectrum, last, extent), last, True, node.part_dtype
    )
    return _normalize_spectrum(node, signal, axes, how)[0]


ROWS: tuple[ConverterRow, ...] = (
    ("_fft_c2c", reject_real, custom_complex_rule(_fft_c2c)),
    ("_fft_c2r", reject_real, custom_complex_rule(_fft_c2r)),
    ("_fft_r2c", reject_real, custom_complex_rule(_fft_r2c)),
)
