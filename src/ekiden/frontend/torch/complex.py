"""Complex numbers, of which Relay has none: a tensor of them is the pair of its parts.

The row of an operator that meets one says in its third column what it does to them:

    per_part   the same to each part: what moves elements, and what is linear in one argument
    bilinear   linear in two arguments: (a + bi)(c + di)
    own(rule)  a function (node, arguments in their places, those by name) -> the two parts, or
               what is real

Of arguments that are real, tensors of floats are real parts whose imaginary parts are 0; indices,
conditions and sizes are none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.value import Value
from ekiden.frontend.common.waves import Parts
from ekiden.frontend.torch.node import Converter, Found, Node, Rule
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def parts_of(node: Node, value: object) -> Parts:
    """The parts of an argument, in the dtype that the node computes in."""
    dtype = node.part_dtype
    if isinstance(value, Complex):
        return node.of(value.real, dtype), node.of(value.imaginary, dtype)
    if isinstance(value, complex):
        return const(value.real, dtype), const(value.imag, dtype)
    return node.of(value, dtype), const(0.0, dtype)  # type: ignore[arg-type]


def part(value: object, index: int, zero: Callable[[Value], Value]) -> object:
    """One part of an argument: of lists those of their items."""
    if isinstance(value, Complex):
        return (value.real, value.imaginary)[index]
    if isinstance(value, complex):
        return (value.real, value.imag)[index]
    if isinstance(value, Value) and is_float(value.type.dtype):
        return zero(value) if index else value
    if isinstance(value, float):
        return 0.0 if index else value
    if isinstance(value, (list, tuple)):
        return [part(each, index, zero) for each in value]
    return value


def per_part(convert: Converter) -> Rule:
    """The same to each part."""

    def rule(node: Node, *args: object, **kwargs: object) -> Found:
        """The operator on the real and on the imaginary parts; a real argument has zeros for the
        second.
        """

        def zero(value: Value) -> Value:
            return node.scope.bound(op.zeros_like(node.of(value)))

        found = []
        for index in range(2):
            given = {name: part(v, index, zero) for name, v in kwargs.items()}
            given.pop("dtype", None)  # that of the whole
            found.append(convert(node, *(part(a, index, zero) for a in args), **given))
        return found[0], found[1]  # type: ignore[return-value]

    return rule


def bilinear(convert: Converter) -> Rule:
    """Of two tensors, by the product of real ones; a factor that is real scales the parts."""

    def rule(node: Node, a: object, b: object, **kwargs: object) -> Found:
        """(p + qi)(r + si) = (pr - qs) + (ps + qr)i by four products; two where a factor is
        real."""

        def times(x: object, y: object) -> Expr:
            """One product of parts, with the operator's own arguments."""
            found = convert(node, x, y, **kwargs)
            assert isinstance(found, (Expr, Value)), "a product is one tensor"
            return found if isinstance(found, Expr) else node.of(found)

        left = (a.real, a.imaginary) if isinstance(a, Complex) else _numbers(a)
        right = (b.real, b.imaginary) if isinstance(b, Complex) else _numbers(b)
        if len(right) == 1:
            return times(left[0], right[0]), times(left[1], right[0])
        if len(left) == 1:
            return times(left[0], right[0]), times(left[0], right[1])
        (p, q), (r, s) = left, right
        return op.subtract(times(p, r), times(q, s)), op.add(times(p, s), times(q, r))

    return rule


def _numbers(value: object) -> tuple[object, ...]:
    return (value.real, value.imag) if isinstance(value, complex) else (value,)


def own(rule: Rule) -> Callable[[Converter], Rule]:
    """A function of its own."""
    return lambda convert: rule


def none_real(node: Node, *_: object, **__: object) -> NoReturn:
    """The converter of an operator that neither takes nor gives real numbers alone."""
    node.unsupported("it is of complex numbers")
