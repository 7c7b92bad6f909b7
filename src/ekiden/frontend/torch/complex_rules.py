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

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.dft import ComplexParts
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import ComplexResult, ComplexRule, Converter, FxNode
from ekiden.ir.dtype import is_float
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def complex_parts(node: FxNode, value: object) -> ComplexParts:
    """Return the real and imaginary part of an argument in the node's part dtype."""
    dtype = node.part_dtype
    if isinstance(value, ComplexValue):
        return node.to_expr(value.real, dtype), node.to_expr(value.imaginary, dtype)
    if isinstance(value, complex):
        return const(value.real, dtype), const(value.imag, dtype)
    return node.to_expr(value, dtype), const(0.0, dtype)  # type: ignore[arg-type]


def select_part(value: object, index: int, zero: Callable[[Value], Value]) -> object:
    """Return the real (0) or imaginary (1) part of an argument, recursively in lists."""
    if isinstance(value, ComplexValue):
        return (value.real, value.imaginary)[index]
    if isinstance(value, complex):
        return (value.real, value.imag)[index]
    if isinstance(value, Value) and is_float(value.type.dtype):
        return zero(value) if index else value
    if isinstance(value, float):
        return 0.0 if index else value
    if isinstance(value, (list, tuple)):
        return [select_part(item, index, zero) for item in value]
    return value


def per_part_rule(convert: Converter) -> ComplexRule:
    """Return the rule that applies a converter to the real and imaginary part separately."""

    def rule(node: FxNode, *args: object, **kwargs: object) -> ComplexResult:
        """Convert the operator on both parts; a real argument has an imaginary part of zeros."""

        def zero(value: Value) -> Value:
            """Return the zero imaginary part of a real value."""
            return node.scope.bind_named(op.zeros_like(node.to_expr(value)))

        converted = []
        # Sound for linear operators only: both parts are converted by the real rule on their own.
        for index in range(2):
            part_kwargs = {name: select_part(v, index, zero) for name, v in kwargs.items()}
            part_kwargs.pop("dtype", None)  # that of the whole
            converted.append(
                convert(node, *(select_part(a, index, zero) for a in args), **part_kwargs)
            )
        return converted[0], converted[1]  # type: ignore[return-value]

    return rule


def bilinear_rule(convert: Converter) -> ComplexRule:
    """Return the rule of an operator that is linear in each of two arguments."""

    def rule(node: FxNode, a: object, b: object, **kwargs: object) -> ComplexResult:
        """Emit (p + qi)(r + si) = (pr - qs) + (ps + qr)i by four real products; two where a factor
        is real.
        """

        def real_product(x: object, y: object) -> Expr:
            """Emit one real product, with the operator's other arguments."""
            product = convert(node, x, y, **kwargs)
            assert isinstance(product, (Expr, Value)), "a product is one tensor"
            return product if isinstance(product, Expr) else node.to_expr(product)

        left_parts = (a.real, a.imaginary) if isinstance(a, ComplexValue) else _number_parts(a)
        right_parts = (b.real, b.imaginary) if isinstance(b, ComplexValue) else _number_parts(b)
        # A real operand saves two of the four products.
        if len(right_parts) == 1:
            return real_product(left_parts[0], right_parts[0]), real_product(
                left_parts[1], right_parts[0]
            )
        if len(left_parts) == 1:
            return real_product(left_parts[0], right_parts[0]), real_product(
                left_parts[0], right_parts[1]
            )
        (p, q), (r, s) = left_parts, right_parts
        return op.subtract(real_product(p, r), real_product(q, s)), op.add(
            real_product(p, s), real_product(q, r)
        )

    return rule


def _number_parts(value: object) -> tuple[object, ...]:
    return (value.real, value.imag) if isinstance(value, complex) else (value,)


def custom_complex_rule(rule: ComplexRule) -> Callable[[Converter], ComplexRule]:
    """Return the table entry of a rule that handles complex numbers separately."""
    return lambda convert: rule


def reject_real(node: FxNode, *_: object, **__: object) -> NoReturn:
    """Reject an operator that has complex arguments or results only."""
    # A NoReturn converter lets the row exist for its complex rule alone.
    node.reject("it is of complex numbers")
