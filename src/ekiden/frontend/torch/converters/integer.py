"""Integer operators with data-dependent iteration counts."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.float_functions import fmod
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import ConverterRow, FxNode
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def _gcd(node: FxNode, x: Value, y: Value) -> Expr:
    """Convert gcd by Euclid's algorithm on all elements, until no remainder is left."""
    dtype = node.out_dtype
    zero, one = const(0, dtype), const(1, dtype)
    shape = node.out_shape
    sides = [op.broadcast_to(op.abs(node.to_expr(v, dtype)), shape) for v in (x, y)]

    def any_nonzero(remainder: Expr) -> Value:
        flat = op.reshape(op.not_equal(remainder, zero), (-1,))
        return node.as_value(node.scope.attach_span(op.any(flat, axis=[0])))

    def euclid_step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """Emit one step, (smaller, larger % smaller); finished elements keep their value."""
        larger, smaller = (node.to_expr(v) for v in values)
        is_done = op.equal(smaller, zero)
        modulus = fmod(larger, op.where(is_done, one, smaller), dtype)
        remainder = op.where(is_done, zero, modulus)
        common = op.where(is_done, larger, smaller)
        return Iteration(
            any_nonzero(remainder),
            [node.as_value(node.scope.attach_span(e)) for e in (common, remainder)],
        )

    start = [node.as_value(node.scope.attach_span(e)) for e in sides]
    # The loop runs as often as the slowest element needs: O(log min(x, y)) iterations (Lame's
    # theorem).
    go = any_nonzero(node.to_expr(start[1]))
    (divisor, _), _, _ = Loop(node, ["gcd", "rest"], start, None, go, euclid_step).build()
    return op.abs(node.to_expr(divisor))


ROWS: tuple[ConverterRow, ...] = (("gcd", _gcd),)
