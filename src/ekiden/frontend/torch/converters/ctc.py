"""The loss of connectionist temporal classification (Graves and others, 2006): its forward sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ekiden.frontend.common.loop import Iteration, Loop
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import Node, Row
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim, tidy

Lengths = Value | Sequence[int]


def _lengths(node: Node, lengths: Lengths) -> Expr:
    """As int64, one for each of the batch."""
    return node.of(lengths, "int64") if isinstance(lengths, Value) else const(lengths, "int64")


def _labels(node: Node, targets: Value, lengths: Expr, most: Dim) -> Expr:
    """(batch, most): the rows of `targets`, or those that stand one after the other in it; what is
    beyond a length is any label."""
    data = node.of(targets, "int64")
    if len(targets.type.shape) == 2:
        return op.strided_slice(data, [0], [most], axes=[1])
    first = op.subtract(op.cumsum(lengths, axis=0), lengths)
    at = op.add(
        op.expand_dims(first, 1), op.arange(const(0, "int64"), node.of(most), dtype="int64")
    )
    last = op.subtract(node.of(targets.type.shape[0], "int64"), const(1, "int64"))
    return op.take(data, op.minimum(at, last), axis=0)


def _log_sum(node: Node, terms: Sequence[Expr], dtype: str) -> Expr:
    """log of the sum of exponentials; -inf where all are."""
    largest = reduce(op.maximum, terms)
    none = op.equal(largest, const(float("-inf"), dtype))
    shift = node.scope.spanned(op.where(none, const(0, dtype), largest))
    return op.add(op.log(reduce(op.add, [op.exp(op.subtract(t, shift)) for t in terms])), shift)


def _ctc_loss(
    node: Node, log_probs: Value, targets: Value, input_lengths: Lengths, target_lengths: Lengths,
    blank: int = 0, zero_infinity: bool = False,
) -> list[Expr | None]:  # fmt: skip
    """(the loss of each, None for the sums that its gradient reads). States are a blank before,
    between and behind labels."""
    steps, batch, _ = log_probs.type.shape
    dtype, low = log_probs.type.dtype, const(float("-inf"), log_probs.type.dtype)
    spans, counts = _lengths(node, input_lengths), _lengths(node, target_lengths)
    most: Dim = targets.type.shape[-1]
    if not isinstance(target_lengths, Value):
        most = max(target_lengths, default=0)
    labels = _labels(node, targets, counts, most)
    blanks = op.full_like(labels, const(blank, "int64"))
    states = tidy(2 * most + 1) if isinstance(most, PrimExpr) else 2 * most + 1
    pairs = op.reshape(op.stack([blanks, labels], axis=2), (batch, states - 1), allowzero=True)
    edge = op.full(const(blank, "int64"), (batch, 1))
    path = node.scope.spanned(op.concatenate([pairs, edge], axis=1))
    places = op.broadcast_to(op.expand_dims(path, 0), (steps, batch, states))
    seen = node.scope.bound(op.gather(node.of(log_probs), 2, places))

    def later(data: Expr, by: int, fill: Expr) -> Expr:
        padded = op.nn.pad(data, [(0, 0), (by, 0)], fill)
        return op.strided_slice(padded, [0], [states], axes=[1])

    before = later(path, 2, const(blank, "int64"))
    skips = node.scope.bound(op.not_equal(path, before))
    state = op.arange(const(0, "int64"), node.of(states, "int64"), dtype="int64")
    begins = op.less(
        state, op.minimum(op.expand_dims(counts, 1), const(1, "int64")) + const(1, "int64")
    )
    start = op.where(begins, op.take(node.of(seen), const(0, "int64"), axis=0), low)

    def step(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        """One step in time: from each state, the one before it, or the one before that where labels
        differ and no blank must stand between; texts that have ended keep their sums.
        """
        sums, at = node.of(carried[0]), op.add(node.of(index), const(1, "int64"))
        jumped = op.where(node.of(skips), later(sums, 2, low), low)
        found = _log_sum(node, [sums, later(sums, 1, low), jumped], dtype)
        found = op.add(found, op.take(node.of(seen), at, axis=0))
        kept = op.where(op.less(at, op.expand_dims(spans, 1)), found, sums)
        return Iteration(go, [node.value_of(node.scope.spanned(kept))])

    first = node.value_of(node.scope.spanned(start))
    limit = node.scope.spanned(op.subtract(node.of(steps, "int64"), const(1, "int64")))
    (last,), _, _ = Loop(node, ["sums"], [first], limit, None, step).build()
    ends = [op.multiply(counts, const(2, "int64"))]
    ends.append(op.maximum(op.subtract(ends[0], const(1, "int64")), const(0, "int64")))
    whole, short = (
        op.squeeze(op.gather(node.of(last), 1, op.expand_dims(e, 1)), [1]) for e in ends
    )
    short = op.where(op.greater(counts, const(0, "int64")), short, low)
    loss = op.negative(_log_sum(node, [whole, short], dtype))
    if zero_infinity:
        loss = op.where(op.isinf(loss), const(0, dtype), loss)
    return [loss, None]


ROWS: tuple[Row, ...] = (("_ctc_loss", _ctc_loss),)
