"""Complex arithmetic on (real, imaginary) pairs, and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable

from ekiden.frontend.common.complex_arithmetic import (
    complex_abs,
    complex_divide,
    complex_multiply,
    polar_power,
)
from ekiden.frontend.common.dft import Parts, dft_axis, expand_hermitian
from ekiden.frontend.common.float_functions import atan2, expm1
from ekiden.frontend.common.node import Result
from ekiden.frontend.jax.node import (
    ComplexRule,
    Converter,
    Many,
    Pair,
    StablehloNode,
    StablehloRow,
    complex_rule,
)
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

Rule = Callable[[Converter], ComplexRule]


def binary_rule(function: Callable[[Parts, Parts], Parts]) -> Rule:
    """Return the complex rule of a function of two tensors."""
    return complex_rule(lambda node: function(node.parts(0), node.parts(1)))


def unary_rule(function: Callable[[Expr, Expr], Parts]) -> Rule:
    """Return the complex rule of a function of one tensor."""
    return complex_rule(lambda node: function(*node.parts(0)))


def absolute(node: StablehloNode) -> Expr:
    """Emit the modulus |z|."""
    return complex_abs(*node.parts(0))


def log(node: StablehloNode) -> Pair:
    """Emit log |z| + i arg z."""
    a, b = node.parts(0)
    return op.log(complex_abs(a, b)), atan2(b, a, node.out_dtype())


def compare(node: StablehloNode) -> Expr:
    """Compare complex numbers for equality; StableHLO defines no order for them."""
    (p, q), (r, s) = node.parts(0), node.parts(1)
    if node.enum_keyword("comparison_direction") == "NE":
        return op.logical_or(op.not_equal(p, r), op.not_equal(q, s))
    return op.logical_and(op.equal(p, r), op.equal(q, s))


def convert(plain: Converter) -> ComplexRule:
    """Return the complex rule of convert; a conversion to real drops the imaginary part."""

    def rule(node: StablehloNode) -> Pair | Result | Many:
        """Drop the imaginary part, or convert both."""
        if not node.is_complex_out():
            return plain(node.with_inputs([node.part(0, 0)]))
        real, imaginary = node.parts(0)
        return op.cast(real, node.out_dtype()), op.cast(imaginary, node.out_dtype())

    return rule


def lexicographic_extremum(precedes: Callable[[Expr, Expr], Expr]) -> Rule:
    """Return the complex rule of maximum or minimum: lexicographic by real, then imaginary part, as
    in XLA.
    """

    def rule(node: StablehloNode) -> Pair:
        """Select the number whose real part, on a tie the imaginary one, precedes."""
        (p, q), (r, s) = node.parts(0), node.parts(1)
        tie = op.logical_and(op.equal(p, r), precedes(q, s))
        first = node.emit_once(op.logical_or(precedes(p, r), tie))
        return op.where(first, p, r), op.where(first, q, s)

    return complex_rule(rule)


def _to_polar(node: StablehloNode, index: int) -> tuple[Expr, Expr]:
    """Emit the modulus and argument of an input."""
    a, b = node.parts(index)
    return node.emit_once(complex_abs(a, b)), node.emit_once(atan2(b, a, node.part_dtype(index)))


def rsqrt(node: StablehloNode) -> Pair:
    """Emit 1 / sqrt(z), in polar form."""
    size, angle = _to_polar(node, 0)
    return polar_power(size, angle, -0.5, node.out_dtype())


def cbrt(node: StablehloNode) -> Pair:
    """Emit the principal cube root, in polar form."""
    size, angle = _to_polar(node, 0)
    return polar_power(size, angle, 1 / 3, node.out_dtype())


def sign(node: StablehloNode) -> Pair:
    """Emit z / |z|, and 0 for 0."""
    a, b = node.parts(0)
    size = node.emit_once(complex_abs(a, b))
    is_zero = op.equal(size, op.zeros_like(size))
    quotients = (op.where(is_zero, component, op.divide(component, size)) for component in (a, b))
    real, imaginary = quotients
    return real, imaginary


def complex_expm1(node: StablehloNode) -> Pair:
    """Emit expm1(a) cos b - 2 sin(b / 2)^2 + i exp(a) sin b, which is accurate for small
    numbers.
    """
    a, b = node.parts(0)
    dtype = node.out_dtype()
    half = op.sin(op.multiply(b, const(0.5, dtype)))
    correction = op.multiply(op.multiply(half, half), const(2, dtype))
    real = op.subtract(op.multiply(expm1(a, dtype), op.cos(b)), correction)
    return real, op.multiply(op.exp(a), op.sin(b))


def power(node: StablehloNode) -> Pair:
    """Emit x^y = r^c e^(-d t) (cos q + i sin q) for y = c + di, x = r e^(it) and q = c t + d ln r.

    For x = 0 it is 1 where y is 0, else 0.
    """
    size, angle = _to_polar(node, 0)
    c, d = node.parts(1)
    zero, one = op.zeros_like(size), op.ones_like(size)
    is_zero = node.emit_once(op.equal(size, zero))
    # log(1) replaces log(0), as both sides of the later where are computed.
    logarithm = op.log(op.where(is_zero, one, size))
    length = op.multiply(op.power(size, c), op.exp(op.negative(op.multiply(d, angle))))
    turned = node.emit_once(op.add(op.multiply(c, angle), op.multiply(d, logarithm)))
    is_one = op.logical_and(op.equal(c, zero), op.equal(d, zero))
    of_zero = op.where(is_one, one, zero)
    real = op.where(is_zero, of_zero, op.multiply(length, op.cos(turned)))
    return real, op.where(is_zero, zero, op.multiply(length, op.sin(turned)))


def complex_atan2(node: StablehloNode) -> Pair:
    """Emit -i log((x + iy) / sqrt(x x + y y))."""
    y, x = node.parts(0), node.parts(1)
    dtype = node.out_dtype()
    (p, q), (r, s) = x, y
    squares = [complex_multiply(operand, operand) for operand in (x, y)]
    both = [node.emit_once(op.add(*pair)) for pair in zip(*squares, strict=True)]
    root = polar_power(complex_abs(*both), atan2(both[1], both[0], dtype), 0.5, dtype)
    real, imaginary = map(node.emit_once, complex_divide((op.subtract(p, s), op.add(q, r)), root))
    return atan2(imaginary, real, dtype), op.negative(op.log(complex_abs(real, imaginary)))


def is_finite(node: StablehloNode) -> Expr:
    """Emit whether both parts are finite."""
    a, b = node.parts(0)
    return op.logical_and(op.isfinite(a), op.isfinite(b))


def bilinear_rule(product: Converter) -> ComplexRule:
    """Return the complex rule of a bilinear operation, such as a product or convolution: four real
    ones.
    """

    def rule(node: StablehloNode) -> Pair:
        """Emit (p + qi)(r + si) = (pr - qs) + (ps + qr)i."""

        def part_product(i: int, j: int) -> Expr:
            """Emit the product of part i of the first and part j of the second tensor."""
            product_expr = product(node.with_inputs([node.part(0, i), node.part(1, j)]))
            assert isinstance(product_expr, Expr)
            return product_expr

        return op.subtract(part_product(0, 0), part_product(1, 1)), op.add(
            part_product(0, 1), part_product(1, 0)
        )

    return rule


def _real(node: StablehloNode) -> Expr:
    return node.parts(0)[0]


def _imaginary(node: StablehloNode) -> Expr:
    return node.parts(0)[1]


def _make_complex(node: StablehloNode) -> Pair:
    return node.expr(0), node.expr(1)


def _fft(node: StablehloNode) -> Pair | Expr:
    """Convert fft: FFT, IFFT, RFFT or IRFFT along the last axes, one per element of
    `fft_length`.
    """
    kind, lengths = node.enum_keyword("fft_type"), node.ints("fft_length")
    real, imaginary = node.parts(0)
    dtype, rank = node.scope.typed(real).dtype, node.rank(0)
    assert is_float(dtype)
    *outer_axes, last = range(rank - len(lengths), rank)
    inverse = kind.startswith("I")
    spectrum: Parts = real, imaginary
    if kind == "RFFT":
        half = lengths[-1] // 2 + 1
        full_spectrum = dft_axis(node.scope, (real, None), last, False, dtype)
        x, y = (op.strided_slice(p, [0], [half], axes=[last]) for p in full_spectrum)
        spectrum = x, y
    # RFFT transforms the last axis first, IRFFT last: only there the data are real.
    elif kind != "IRFFT":
        outer_axes.append(last)
    for axis in outer_axes:
        spectrum = dft_axis(node.scope, spectrum, axis, inverse, dtype)
    if kind == "IRFFT":
        spectrum = dft_axis(
            node.scope, expand_hermitian(spectrum, last, lengths[-1]), last, True, dtype
        )
    if inverse:
        # The inverse transforms are normalized once, by the product of all lengths.
        scale = const(1 / math.prod(lengths), dtype)
        spectrum = op.multiply(spectrum[0], scale), op.multiply(spectrum[1], scale)
    return spectrum[0] if kind == "IRFFT" else spectrum


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.real", _real, on_complex=complex_rule(_real)),
    StablehloRow("stablehlo.imag", _imaginary, on_complex=complex_rule(_imaginary)),
    StablehloRow("stablehlo.complex", _make_complex, on_complex=complex_rule(_make_complex)),
    StablehloRow("stablehlo.fft", _fft, on_complex=complex_rule(_fft)),
)
