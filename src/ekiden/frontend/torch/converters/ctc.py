"""The loss of connectionist temporal classification (Graves and others, 2006) and its gradient.

States s are a blank before, between and behind labels l; y are probabilities, all sums logarithms.

    alpha[t, s]  of the ways to s at t        log_alpha, which the loss gives beside itself
    beta[t, s]   of the ways from s at t on, y[t, s] in both
    gamma[t, s] = alpha[t, s] * beta[t, s] / y[t, s] / loss     that a text is at s at time t

    d loss / d log y[t, k] = y[t, k] - sum of gamma[t, s] over the states with the label k

as PyTorch gives it: of log y that softmax made, whose own gradient keeps it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ekiden.frontend.common.loop import Iteration, Loop, stacked
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import Node, Row
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.shape import Dim, as_dim, tidy

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


@dataclass(frozen=True, slots=True)
class _States:
    """What the states of each of a batch are.

    path: (batch, states), their labels. places: the same for each step. seen: (steps, batch,
    states), how likely each is there. skips: which may follow the state before the last one.
    spans, counts: how long inputs and targets are.
    """

    node: Node
    path: Expr
    places: Value
    seen: Value
    skips: Value
    states: Dim
    spans: Expr
    counts: Expr
    blank: int

    @property
    def low(self) -> Expr:
        """That nothing leads there."""
        return const(float("-inf"), self.seen.type.dtype)

    @property
    def number(self) -> Expr:
        """The number of each state."""
        return op.arange(const(0, "int64"), self.node.of(self.states, "int64"), dtype="int64")

    @property
    def last(self) -> Expr:
        """(batch, 1): the number of the blank behind each target."""
        return op.expand_dims(op.multiply(self.counts, const(2, "int64")), 1)

    def later(self, data: Expr, by: int) -> Expr:
        """Each state's of one before it."""
        padded = op.nn.pad(data, [(0, 0), (by, 0)], self.low)
        return op.strided_slice(padded, [0], [self.states], axes=[1])

    def earlier(self, data: Expr, by: int) -> Expr:
        """Each state's of one behind it."""
        padded = op.nn.pad(data, [(0, 0), (0, by)], self.low)
        return op.strided_slice(padded, [by], [as_dim(self.states) + by], axes=[1])

    def jumped(self, data: Expr) -> Expr:
        """Where labels differ and no blank must stand between."""
        return op.where(self.node.of(self.skips), data, self.low)


def _states_of(
    node: Node, log_probs: Value, targets: Value, input_lengths: Lengths, target_lengths: Lengths,
    blank: int,
) -> _States:  # fmt: skip
    steps, batch, _ = log_probs.type.shape
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
    places = node.scope.bound(op.broadcast_to(op.expand_dims(path, 0), (steps, batch, states)))
    seen = node.scope.bound(op.gather(node.of(log_probs), 2, node.of(places)))
    before = op.nn.pad(path, [(0, 0), (2, 0)], const(blank, "int64"))
    before = op.strided_slice(before, [0], [states], axes=[1])
    skips = node.scope.bound(op.not_equal(path, before))
    return _States(node, path, places, seen, skips, states, spans, counts, blank)


def _ctc_loss(
    node: Node, log_probs: Value, targets: Value, input_lengths: Lengths, target_lengths: Lengths,
    blank: int = 0, zero_infinity: bool = False,
) -> list[Expr | None]:  # fmt: skip
    """(the loss of each, the sums that its gradient reads where it is asked for)."""
    dtype = log_probs.type.dtype
    of = _states_of(node, log_probs, targets, input_lengths, target_lengths, blank)
    begins = op.less(
        of.number, op.minimum(op.expand_dims(of.counts, 1), const(1, "int64")) + const(1, "int64")
    )
    start = op.where(begins, op.take(node.of(of.seen), const(0, "int64"), axis=0), of.low)

    def step(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        """One step in time: from each state, the one before it, or the one before that; texts that
        have ended keep their sums.
        """
        sums, at = node.of(carried[0]), op.add(node.of(index), const(1, "int64"))
        found = _log_sum(node, [sums, of.later(sums, 1), of.jumped(of.later(sums, 2))], dtype)
        found = op.add(found, op.take(node.of(of.seen), at, axis=0))
        kept = op.where(op.less(at, op.expand_dims(of.spans, 1)), found, sums)
        after = node.value_of(node.scope.spanned(kept))
        return Iteration(go, [after], [after] if node.wants(1) else [])

    first = node.value_of(node.scope.spanned(start))
    steps = log_probs.type.shape[0]
    limit = node.scope.spanned(op.subtract(node.of(steps, "int64"), const(1, "int64")))
    (last,), parts, _ = Loop(node, ["sums"], [first], limit, None, step).build()
    ends = [op.squeeze(of.last, [1])]
    ends.append(op.maximum(op.subtract(ends[0], const(1, "int64")), const(0, "int64")))
    whole, short = (
        op.squeeze(op.gather(node.of(last), 1, op.expand_dims(e, 1)), [1]) for e in ends
    )
    short = op.where(op.greater(of.counts, const(0, "int64")), short, of.low)
    loss = op.negative(_log_sum(node, [whole, short], dtype))
    if zero_infinity:
        loss = op.where(op.isinf(loss), const(0, dtype), loss)
    if not node.wants(1):
        return [loss, None]
    others = stacked(node.scope, parts[0], "log_alpha", tidy(as_dim(steps) - 1))
    alpha = op.concatenate([op.expand_dims(node.of(first), 0), node.of(others)], axis=0)
    return [loss, op.transpose(alpha, [1, 0, 2])]


def _backward_sums(of: _States, steps: Dim) -> Expr:
    """beta, (steps, batch, states): from the end of each input back, nothing behind it."""
    node, dtype = of.node, of.seen.type.dtype
    behind = op.subtract(of.last, const(1, "int64"))
    ends = op.logical_or(op.equal(of.number, of.last), op.equal(of.number, behind))
    final = op.subtract(op.expand_dims(of.spans, 1), const(1, "int64"))

    def step(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        """One step back, from `steps` - 1 to 0."""
        at = op.subtract(node.of(steps, "int64"), op.add(node.of(index), const(1, "int64")))
        sums = node.of(carried[0])
        ways = [sums, of.earlier(sums, 1), of.earlier(of.jumped(sums), 2)]
        found = op.where(op.less(at, final), _log_sum(node, ways, dtype), of.low)
        is_end = op.logical_and(op.equal(at, final), ends)
        found = op.where(is_end, const(0, dtype), found)
        kept = op.add(found, op.take(node.of(of.seen), at, axis=0))
        after = node.value_of(node.scope.spanned(kept))
        return Iteration(go, [after], [after])

    nothing = op.full_like(op.take(node.of(of.seen), const(0, "int64"), axis=0), of.low)
    start = node.value_of(node.scope.spanned(nothing))
    limit = node.scope.spanned(node.of(steps, "int64"))
    _, parts, _ = Loop(node, ["sums"], [start], limit, None, step).build()
    return node.of(stacked(node.scope, parts[0], "log_beta", as_dim(steps), reverse=True))


def _ctc_loss_backward(
    node: Node, grad: Value, log_probs: Value, targets: Value, input_lengths: Lengths,
    target_lengths: Lengths, loss: Value, log_alpha: Value, blank: int,
    zero_infinity: bool = False,
) -> Expr:  # fmt: skip
    """What the head of this file says; 0 behind the end of an input."""
    dtype, (steps, _, _) = log_probs.type.dtype, log_probs.type.shape
    of = _states_of(node, log_probs, targets, input_lengths, target_lengths, blank)
    alpha = op.transpose(node.of(log_alpha), [1, 0, 2])
    beta = _backward_sums(of, steps)
    each = op.expand_dims(node.of(loss), 1)
    whole = op.add(op.subtract(op.add(alpha, beta), node.of(of.seen)), each)
    none = op.logical_or(op.equal(alpha, of.low), op.equal(beta, of.low))
    gamma = op.where(none, const(0, dtype), op.exp(whole))
    zeros = op.zeros_like(node.of(log_probs))
    summed = op.scatter_elements(zeros, node.of(of.places), gamma, axis=2, reduction="add")
    found = op.subtract(op.exp(node.of(log_probs)), summed)
    impossible = op.expand_dims(op.isinf(each), 0)
    otherwise = const(0 if zero_infinity else float("nan"), dtype)
    found = op.where(impossible, otherwise, found)
    found = op.multiply(found, op.expand_dims(node.of(grad), 1))
    time = op.expand_dims(op.arange(const(0, "int64"), node.of(steps, "int64"), dtype="int64"), 1)
    inside = op.expand_dims(op.less(time, op.expand_dims(of.spans, 0)), 2)
    return op.where(inside, found, const(0, dtype))


ROWS: tuple[Row, ...] = (("_ctc_loss", _ctc_loss), ("_ctc_loss_backward", _ctc_loss_backward))
