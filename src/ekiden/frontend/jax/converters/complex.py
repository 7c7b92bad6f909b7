"""Complex numbers: arithmetic of the pairs of their parts, and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable

from ekiden.frontend.common.complex import modulus
from ekiden.frontend.common.functions import atan2
from ekiden.frontend.common.waves import Parts, along, mirrored
from ekiden.frontend.jax.node import ComplexRule, Converter, Node, Pair, Row, own
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

Rule = Callable[[Converter], ComplexRule]


def binary(function: Callable[[Parts, Parts], Parts]) -> Rule:
    """Of two tensors."""
    return own(lambda node: function(node.parts(0), node.parts(1)))


def unary(function: Callable[[Expr, Expr], Parts]) -> Rule:
    """Of one tensor."""
    return own(lambda node: function(*node.parts(0)))


def absolute(node: Node) -> Expr:
    """The size of each."""
    return modulus(*node.parts(0))


def log(node: Node) -> Pair:
    """The logarithm of the size, and the angle."""
    a, b = node.parts(0)
    return op.log(modulus(a, b)), atan2(b, a, node.out_dtype())


def compare(node: Node) -> Expr:
    """Whether both parts are equal; others have no order."""
    (p, q), (r, s) = node.parts(0), node.parts(1)
    if node.word("comparison_direction") == "NE":
        return op.logical_or(op.not_equal(p, r), op.not_equal(q, s))
    return op.logical_and(op.equal(p, r), op.equal(q, s))


def convert(node: Node) -> Pair:
    """From one width to another, or from what is real."""
    real, imaginary = node.parts(0)
    return op.cast(real, node.out_dtype()), op.cast(imaginary, node.out_dtype())


def bilinear(product: Converter) -> ComplexRule:
    """What is linear in each of two tensors, by four products of their parts."""

    def rule(node: Node) -> Pair:
        """(p + qi)(r + si) = (pr - qs) + (ps + qr)i."""

        def times(i: int, j: int) -> Expr:
            """The product of part i of the first and part j of the second."""
            found = product(node.with_inputs([node.part(0, i), node.part(1, j)]))
            assert isinstance(found, Expr)
            return found

        return op.subtract(times(0, 0), times(1, 1)), op.add(times(0, 1), times(1, 0))

    return rule


def _real(node: Node) -> Expr:
    return node.parts(0)[0]


def _imaginary(node: Node) -> Expr:
    return node.parts(0)[1]


def _made(node: Node) -> Pair:
    return node.expr(0), node.expr(1)


def _fft(node: Node) -> Pair | Expr:
    """Along the last axes, as many as there are lengths."""
    kind, lengths = node.word("fft_type"), node.ints("fft_length")
    real, imaginary = node.parts(0)
    dtype, rank = node.scope.typed(real).dtype, node.rank(0)
    assert is_float(dtype)
    *others, last = range(rank - len(lengths), rank)
    inverse = kind.startswith("I")
    found: Parts = real, imaginary
    if kind == "RFFT":
        half = lengths[-1] // 2 + 1
        whole = along(node.scope, (real, None), last, False, dtype)
        x, y = (op.strided_slice(p, [0], [half], axes=[last]) for p in whole)
        found = x, y
    elif kind != "IRFFT":
        others.append(last)
    for axis in others:
        found = along(node.scope, found, axis, inverse, dtype)
    if kind == "IRFFT":
        found = along(node.scope, mirrored(found, last, lengths[-1]), last, True, dtype)
    if inverse:
        scale = const(1 / math.prod(lengths), dtype)
        found = op.multiply(found[0], scale), op.multiply(found[1], scale)
    return found[0] if kind == "IRFFT" else found


ROWS: tuple[Row, ...] = (
    Row("stablehlo.real", _real, on_complex=own(_real)),
    Row("stablehlo.imag", _imaginary, on_complex=own(_imaginary)),
    Row("stablehlo.complex", _made, on_complex=own(_made)),
    Row("stablehlo.fft", _fft, on_complex=own(_fft)),
)
