"""What needs as many steps as the numbers say."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.functions import fmod
from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const


def _gcd(node: Node, x: Value, y: Value) -> Expr:
    """Euclid's, of all elements at once: until no remainder is left anywhere."""
    dtype = node.out_dtype
    zero, one = const(0, dtype), const(1, dtype)
    wanted = node.out_shape
    sides = [op.broadcast_to(op.abs(node.of(v, dtype)), wanted) for v in (x, y)]

    def is_left(rest: Expr) -> Value:
        flat = op.reshape(op.not_equal(rest, zero), (-1,))
        return node.value_of(node.scope.spanned(op.any(flat, axis=[0])))

    def step(index: Value, go: Value, values: Sequence[Value]) -> Iteration:
        """One step: (smaller, larger % smaller); elements that are done keep their number."""
        larger, smaller = (node.of(v) for v in values)
        is_done = op.equal(smaller, zero)
        left = fmod(larger, op.where(is_done, one, smaller), dtype)
        rest = op.where(is_done, zero, left)
        found = op.where(is_done, larger, smaller)
        return Iteration(
            is_left(rest), [node.value_of(node.scope.spanned(e)) for e in (found, rest)]
        )

    start = [node.value_of(node.scope.spanned(e)) for e in sides]
    go = is_left(node.of(start[1]))
    (found, _), _, _ = Loop(node, ["gcd", "rest"], start, None, go, step).build()
    return op.abs(node.of(found))


ROWS: tuple[Row, ...] = (("gcd", _gcd),)
