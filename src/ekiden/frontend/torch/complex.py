"""Rules for complex tensors, which Relay lacks: a complex tensor is a pair of real ones.

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
    """Return the real and imaginary part of an argument in the node's part dtype."""
    dtype = node.part_dtype
    if isinstance(value, Complex):
        return node.of(value.real, dtype), node.of(value.imaginary, dtype)
    if isinstance(value, complex):
        return const(value.real, dtype), const(value.imag, dtype)
    return node.of(value, dtype), const(0.0, dtype)  # type: ignore[arg-type]


def part(value: object, index: int, zero: Callable[[Value], Value]) -> object:
    """Return the real (0) or imaginary (1) part of an argument, recursively in lists."""
    if isinstance(value, Complex):
        return (value.real, value.imaginary)[index]
    if isinstance(value, complex):
        return (value.real, value.imag)[index]
    if isinstance(value, Value) and is_float(value.type.dtype):
        return zero(value) if index else value
    if isinstance(value, float):
        return 0.0 if index else value
    if isinstance(value, (list, tuple)):
        return [part(item, index, zero) for item in value]
    return value


def per_part(convert: Converter) -> Rule:
    """Return the rule that applies a converter to the real and imaginary part separately."""

    def rule(node: Node, *args: object, **kwargs: object) -> Found:
        """Convert the operator on both parts; a real argument has an imaginary part of zeros."""

        def zero(value: Value) -> Value:
            return node.scope.bound(op.zeros_like(node.of(value)))

        converted = []
        # Sound for linear operators only: both parts are converted by the real rule on their own.
        for index in range(2):
            part_kwargs = {name: part(v, index, zero) for name, v in kwargs.items()}
            part_kwargs.pop("dtype", None)  # that of the whole
            converted.append(convert(node, *(part(a, index, zero) for a in args), **part_kwargs))
        return converted[0], converted[1]  # type: ignore[return-value]

    return rule


def bilinear(convert: Converter) -> Rule:
    """Return the rule of an operator that is linear in each of two arguments."""

    def rule(node: Node, a: object, b: object, **kwargs: object) -> Found:
        """Emit (p + qi)(r + si) = (pr - qs) + (ps + qr)i by four real products; two where a factor
        is real.
        """

        def times(x: object, y: object) -> Expr:
            """Emit one real product, with the operator's other arguments."""
            product = convert(node, x, y, **kwargs)
            assert isinstance(product, (Expr, Value)), "a product is one tensor"
            return product if isinstance(product, Expr) else node.of(product)

        left_parts = (a.real, a.imaginary) if isinstance(a, Complex) else _numbers(a)
        right_parts = (b.real, b.imaginary) if isinstance(b, Complex) else _numbers(b)
        # A real operand saves two of the four products.
        if len(right_parts) == 1:
            return times(left_parts[0], right_parts[0]), times(left_parts[1], right_parts[0])
        if len(left_parts) == 1:
            return times(left_parts[0], right_parts[0]), times(left_parts[0], right_parts[1])
        (p, q), (r, s) = left_parts, right_parts
        return op.subtract(times(p, r), times(q, s)), op.add(times(p, s), times(q, r))

    return rule


def _numbers(value: object) -> tuple[object, ...]:
    return (value.real, value.imag) if isinstance(value, complex) else (value,)


def own(rule: Rule) -> Callable[[Converter], Rule]:
    """Return the row entry of a rule that handles complex numbers by itself."""
    return lambda convert: rule


def none_real(node: Node, *_: object, **__: object) -> NoReturn:
    """Reject an operator that has complex arguments or results only."""
    # A NoReturn converter lets the row exist for its complex rule alone.
    node.unsupported("it is of complex numbers")
