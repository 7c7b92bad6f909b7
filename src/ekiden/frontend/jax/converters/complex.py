"""Complex arithmetic on (real, imaginary) pairs, and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable

from ekiden.frontend.common.complex_arithmetic import (
    complex_abs,
    complex_divide,
    complex_multiply,
    complex_polar_power,
)
from ekiden.frontend.common.dft import ComplexParts, dft_axis, expand_hermitian
from ekiden.frontend.common.float_functions import atan2, expm1
from ekiden.frontend.common.node import Result
from ekiden.frontend.jax.node import (
    ComplexPair,
    ComplexRule,
    Converter,
    ImportedValues,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
)
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

ComplexRuleFunction = Callable[[Converter], ComplexRule]


def binary_rule(
    function: Callable[[ComplexParts, ComplexParts], ComplexParts],
) -> ComplexRuleFunction:
    """Return the complex rule of a function of two tensors."""
    return custom_complex_rule(lambda node: function(node.parts(0), node.parts(1)))


def unary_rule(function: Callable[[Expr, Expr], ComplexParts]) -> ComplexRuleFunction:
    """Return the complex rule of a function of one tensor."""
    return custom_complex_rule(lambda node: function(*node.parts(0)))


def absolute(node: StablehloNode) -> Expr:
    """Emit the modulus |z|."""
    return complex_abs(*node.parts(0))


def complex_log(node: StablehloNode) -> ComplexPair:
    """Emit log |z| + i arg z."""
    a, b = node.parts(0)
    return op.log(complex_abs(a, b)), atan2(b, a, node.out_dtype())


def complex_compare(node: StablehloNode) -> Expr:
    """Compare complex numbers for equality; StableHLO defines no order for them."""
    (p, q), (r, s) = node.parts(0), node.parts(1)
    if node.enum_keyword("comparison_direction") == "NE":
        return op.logical_or(op.not_equal(p, r), op.not_equal(q, s))
    return op.logical_and(op.equal(p, r), op.equal(q, s))


def convert_rule(plain: Converter) -> ComplexRule:
    """Return the complex rule of convert; a conversion to real drops the imaginary part."""

    def rule(node: StablehloNode) -> ComplexPair | Result | ImportedValues:
        """Drop the imaginary part, or convert both."""
        if not node.is_complex_out():
            return plain(node.with_inputs([node.part(0, 0)]))
        real, imaginary = node.parts(0)
        return op.cast(real, node.out_dtype()), op.cast(imaginary, node.out_dtype())

    return rule


def lexicographic_extremum_rule(precedes: Callable[[Expr, Expr], Expr]) -> ComplexRuleFunction:
    """Return the complex rule of maximum or minimum: lexicographic by real, then imaginary part, as
    in XLA.
    """

    def rule(node: StablehloNode) -> ComplexPair:
        """Select the number whose real part, on a tie the imaginary one, precedes."""
        (p, q), (r, s) = node.parts(0), node.parts(1)
        tie = op.logical_and(op.equal(p, r), precedes(q, s))
        first = node.emit_once(op.logical_or(precedes(p, r), tie))
        return op.where(first, p, r), op.where(first, q, s)

    return custom_complex_rule(rule)


def _to_polar(node: StablehloNode, index: int) -> tuple[Expr, Expr]:
    """Emit the modulus and argument of an input."""
    a, b = node.parts(index)
    return node.emit_once(complex_abs(a, b)), node.emit_once(atan2(b, a, node.part_dtype(index)))


def complex_rsqrt(node: StablehloNode) -> ComplexPair:
    """Emit 1 / sqrt(z), in polar form."""
    size, angle = _to_polar(node, 0)
    return complex_polar_power(size, angle, -0.5, node.out_dtype())


def complex_cbrt(node: StablehloNode) -> ComplexPair:
    """Emit the principal cube root, in polar form."""
    size, angle = _to_polar(node, 0)
    return complex_polar_power(size, angle, 1 / 3, node.out_dtype())


def complex_sign(node: StablehloNode) -> ComplexPair:
    """Emit z / |z|, and 0 for 0."""
    a, b = node.parts(0)
    size = node.emit_once(complex_abs(a, b))
    # 0 / 0 would be NaN, but StableHLO's sign of 0 is 0.
    is_zero = op.equal(size, op.zeros_like(size))
    quotients = (op.where(is_zero, component, op.divide(component, size)) for component in (a, b))
    real, imaginary = quotients
    return real, imaginary


def complex_expm1(node: StablehloNode) -> ComplexPair:
    """Emit expm1(a) cos b - 2 sin(b / 2)^2 + i exp(a) sin b, which is accurate for small
    numbers.
    """
    a, b = node.parts(0)
    dtype = node.out_dtype()
    # cos(b) - 1 cancels for small b, but -2 sin(b / 2)^2 does not.
    half = op.sin(op.multiply(b, const(0.5, dtype)))
    correction = op.multiply(op.multiply(half, half), const(2, dtype))
    real = op.subtract(op.multiply(expm1(a, dtype), op.cos(b)), correction)
    return real, op.multiply(op.exp(a), op.sin(b))


def complex_power(node: StablehloNode) -> ComplexPair:
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


def complex_atan2(node: StablehloNode) -> ComplexPair:
    """Emit -i log((x + iy) / sqrt(x x + y y))."""
    y, x = node.parts(0), node.parts(1)
    dtype = node.out_dtype()
    (p, q), (r, s) = x, y
    squares = [complex_multiply(operand, operand) for operand in (x, y)]
    both = [node.emit_once(op.add(*pair)) for pair in zip(*squares, strict=True)]
    root = complex_polar_power(complex_abs(*both), atan2(both[1], both[0], dtype), 0.5, dtype)
    real, imaginary = map(node.emit_once, complex_divide((op.subtract(p, s), op.add(q, r)), root))
    return atan2(imaginary, real, dtype), op.negative(op.log(complex_abs(real, imaginary)))


def complex_is_finite(node: StablehloNode) -> Expr:
    """Emit whether both parts are finite."""
    a, b = node.parts(0)
    return op.logical_and(op.isfinite(a), op.isfinite(b))


def bilinear_rule(product: Converter) -> ComplexRule:
    """Return the complex rule of a bilinear operation, such as a product or convolution: four real
    ones.
    """

    def rule(node: StablehloNode) -> ComplexPair:
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


def _make_complex(node: StablehloNode) -> ComplexPair:
    return node.expr(0), node.expr(1)


def _fft(node: StablehloNode) -> ComplexPair | Expr:
    """Convert fft: FFT, IFFT, RFFT or IRFFT along the last axes, one per element of
    `fft_length`.
    """
    kind, lengths = node.enum_keyword("fft_type"), node.int_array_attribute("fft_length")
    real, imaginary = node.parts(0)
    dtype, rank = node.scope.tensor_type_of(real).dtype, node.rank(0)
    assert is_float(dtype)
    *outer_axes, last = range(rank - len(lengths), rank)
    inverse = kind.startswith("I")
    spectrum: ComplexParts = real, imaginary
    if kind == "RFFT":
        # The spectrum of real data is Hermitian, so RFFT returns one half and the middle.
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
    StablehloRow("stablehlo.real", _real, make_complex_rule=custom_complex_rule(_real)),
    StablehloRow("stablehlo.imag", _imaginary, make_complex_rule=custom_complex_rule(_imaginary)),
    StablehloRow(
        "stablehlo.complex", _make_complex, make_complex_rule=custom_complex_rule(_make_complex)
    ),
    StablehloRow("stablehlo.fft", _fft, make_complex_rule=custom_complex_rule(_fft)),
)
