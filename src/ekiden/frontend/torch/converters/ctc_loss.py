"""Connectionist temporal classification loss (Graves et al., 2006) and its gradient.

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

from ekiden.frontend.common.loop import Iteration, Loop, stack_slices
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.node import ConverterRow, FxNode
from ekiden.ir.prim import PrimExpr
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, as_dim, simplify_dim

Lengths = Value | Sequence[int]


def _as_int64(node: FxNode, lengths: Lengths) -> Expr:
    """Return the lengths as an int64 tensor [batch]."""
    return node.to_expr(lengths, "int64") if isinstance(lengths, Value) else const(lengths, "int64")


def _padded_labels(node: FxNode, targets: Value, lengths: Expr, max_length: Dim) -> Expr:
    """Emit the labels [batch, max_length], from padded rows or from a concatenation.

    Those beyond a target's length are arbitrary.
    """
    data = node.to_expr(targets, "int64")
    if len(targets.type.shape) == 2:
        return op.strided_slice(data, [0], [max_length], axes=[1])
    # Concatenated targets: the exclusive prefix sum of the lengths gives where each begins.
    first = op.subtract(op.cumsum(lengths, axis=0), lengths)
    position = op.add(
        op.expand_dims(first, 1),
        op.arange(const(0, "int64"), node.to_expr(max_length), dtype="int64"),
    )
    last = op.subtract(node.to_expr(targets.type.shape[0], "int64"), const(1, "int64"))
    return op.take(data, op.minimum(position, last), axis=0)


def _logsumexp(node: FxNode, terms: Sequence[Expr], dtype: str) -> Expr:
    """Emit the log of a sum of exponentials; -inf where all terms are -inf."""
    largest = reduce(op.maximum, terms)
    none = op.equal(largest, const(float("-inf"), dtype))
    # -inf minus -inf would be NaN: such a row is shifted by 0.
    shift = node.scope.attach_span(op.where(none, const(0, dtype), largest))
    return op.add(op.log(reduce(op.add, [op.exp(op.subtract(t, shift)) for t in terms])), shift)


@dataclass(frozen=True, slots=True)
class _CtcStates:
    """CTC states of a batch: the labels with blanks between them, and their emission log
    probabilities.

    state_labels: (batch, states), their labels. label_indices: the same for each step.
    emission_log_probs: (steps, batch, states), the log probability of each state's label.
    can_skip_blank: whether a state may follow the one two before it. input_lengths, target_lengths:
    lengths of inputs and targets.
    """

    node: FxNode
    state_labels: Expr
    label_indices: Value
    emission_log_probs: Value
    can_skip_blank: Value
    num_states: Dim
    input_lengths: Expr
    target_lengths: Expr
    blank: int

    @property
    def neg_infinity(self) -> Expr:
        """Return the log probability of an unreachable state, -inf."""
        return const(float("-inf"), self.emission_log_probs.type.dtype)

    @property
    def state_index(self) -> Expr:
        """Emit the index of each state."""
        return op.arange(
            const(0, "int64"), self.node.to_expr(self.num_states, "int64"), dtype="int64"
        )

    @property
    def last_blank_index(self) -> Expr:
        """Emit the index of the blank after each target, [batch, 1]."""
        return op.expand_dims(op.multiply(self.target_lengths, const(2, "int64")), 1)

    def shift_right(self, data: Expr, by: int) -> Expr:
        """Shift values by `by` states to the right; -inf enters at the front."""
        padded = op.nn.pad(data, [(0, 0), (by, 0)], self.neg_infinity)
        return op.strided_slice(padded, [0], [self.num_states], axes=[1])

    def shift_left(self, data: Expr, by: int) -> Expr:
        """Shift values by `by` states to the left; -inf enters at the end."""
        padded = op.nn.pad(data, [(0, 0), (0, by)], self.neg_infinity)
        return op.strided_slice(padded, [by], [as_dim(self.num_states) + by], axes=[1])

    def mask_forbidden_skips(self, data: Expr) -> Expr:
        """Mask the states that may not be reached by skipping a blank, with -inf."""
        return op.where(self.node.to_expr(self.can_skip_blank), data, self.neg_infinity)


def _build_states(
    node: FxNode, log_probs: Value, targets: Value, input_lengths: Lengths, target_lengths: Lengths,
    blank: int,
) -> _CtcStates:  # fmt: skip
    steps, batch, _ = log_probs.type.shape
    spans, counts = _as_int64(node, input_lengths), _as_int64(node, target_lengths)
    max_length: Dim = targets.type.shape[-1]
    if not isinstance(target_lengths, Value):
        max_length = max(target_lengths, default=0)
    labels = _padded_labels(node, targets, counts, max_length)
    blanks = op.full_like(labels, const(blank, "int64"))
    states = (
        simplify_dim(2 * max_length + 1) if isinstance(max_length, PrimExpr) else 2 * max_length + 1
    )
    pairs = op.reshape(op.stack([blanks, labels], axis=2), (batch, states - 1), allowzero=True)
    # The extended label sequence has 2 * length + 1 states: a blank before, between and after
    # labels.
    edge = op.full(const(blank, "int64"), (batch, 1))
    path = node.scope.attach_span(op.concatenate([pairs, edge], axis=1))
    by_step = node.scope.bind_named(
        op.broadcast_to(op.expand_dims(path, 0), (steps, batch, states))
    )
    emissions = node.scope.bind_named(op.gather(node.to_expr(log_probs), 2, node.to_expr(by_step)))
    # A jump over the blank is allowed only between different labels (Graves et al. 2006, section
    # 4.1).
    before = op.nn.pad(path, [(0, 0), (2, 0)], const(blank, "int64"))
    before = op.strided_slice(before, [0], [states], axes=[1])
    skips = node.scope.bind_named(op.not_equal(path, before))
    return _CtcStates(node, path, by_step, emissions, skips, states, spans, counts, blank)


def _ctc_loss(
    node: FxNode, log_probs: Value, targets: Value, input_lengths: Lengths, target_lengths: Lengths,
    blank: int = 0, zero_infinity: bool = False,
) -> list[Expr | None]:  # fmt: skip
    """Convert _ctc_loss: the loss of each batch element, and log_alpha if the gradient needs it."""
    dtype = log_probs.type.dtype
    of = _build_states(node, log_probs, targets, input_lengths, target_lengths, blank)
    begins = op.less(
        of.state_index,
        op.minimum(op.expand_dims(of.target_lengths, 1), const(1, "int64")) + const(1, "int64"),
    )
    start = op.where(
        begins,
        op.take(node.to_expr(of.emission_log_probs), const(0, "int64"), axis=0),
        of.neg_infinity,
    )

    def forward_step(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        """Emit one time step of the forward recursion: from the same state, the previous one, or
        past a blank.

        Sequences that have ended keep their sums.
        """
        sums, position = node.to_expr(carried[0]), op.add(node.to_expr(index), const(1, "int64"))
        reached = _logsumexp(
            node,
            [sums, of.shift_right(sums, 1), of.mask_forbidden_skips(of.shift_right(sums, 2))],
            dtype,
        )
        reached = op.add(reached, op.take(node.to_expr(of.emission_log_probs), position, axis=0))
        # Inputs of a batch differ in length: a finished one keeps its sums.
        continued = op.where(op.less(position, op.expand_dims(of.input_lengths, 1)), reached, sums)
        after = node.as_value(node.scope.attach_span(continued))
        return Iteration(go, [after], [after] if node.is_output_used(1) else [])

    first = node.as_value(node.scope.attach_span(start))
    steps = log_probs.type.shape[0]
    limit = node.scope.attach_span(op.subtract(node.to_expr(steps, "int64"), const(1, "int64")))
    (last,), pieces, _ = Loop(node, ["sums"], [first], limit, None, forward_step).build()
    ends = [op.squeeze(of.last_blank_index, [1])]
    ends.append(op.maximum(op.subtract(ends[0], const(1, "int64")), const(0, "int64")))
    at_blank, at_label = (
        op.squeeze(op.gather(node.to_expr(last), 1, op.expand_dims(e, 1)), [1]) for e in ends
    )
    # A path may end at the last blank or at the last label; an empty target has the blank alone.
    at_label = op.where(op.greater(of.target_lengths, const(0, "int64")), at_label, of.neg_infinity)
    loss = op.negative(_logsumexp(node, [at_blank, at_label], dtype))
    if zero_infinity:
        loss = op.where(op.isinf(loss), const(0, dtype), loss)
    if not node.is_output_used(1):
        return [loss, None]
    later_alpha = stack_slices(node.scope, pieces[0], "log_alpha", simplify_dim(as_dim(steps) - 1))
    alpha = op.concatenate(
        [op.expand_dims(node.to_expr(first), 0), node.to_expr(later_alpha)], axis=0
    )
    return [loss, op.transpose(alpha, [1, 0, 2])]


def _log_beta(of: _CtcStates, steps: Dim) -> Expr:
    """Emit log_beta [steps, batch, states], the backward recursion from the end of each input."""
    node, dtype = of.node, of.emission_log_probs.type.dtype
    behind = op.subtract(of.last_blank_index, const(1, "int64"))
    ends = op.logical_or(
        op.equal(of.state_index, of.last_blank_index), op.equal(of.state_index, behind)
    )
    final = op.subtract(op.expand_dims(of.input_lengths, 1), const(1, "int64"))

    def backward_step(index: Value, go: Value, carried: Sequence[Value]) -> Iteration:
        """Emit one step of the backward recursion, from time `steps` - 1 down to 0."""
        position = op.subtract(
            node.to_expr(steps, "int64"), op.add(node.to_expr(index), const(1, "int64"))
        )
        sums = node.to_expr(carried[0])
        paths = [sums, of.shift_left(sums, 1), of.shift_left(of.mask_forbidden_skips(sums), 2)]
        reached = op.where(
            op.less(position, final), _logsumexp(node, paths, dtype), of.neg_infinity
        )
        is_end = op.logical_and(op.equal(position, final), ends)
        # Each sequence enters the recursion at its own last step, with log-probability 0.
        reached = op.where(is_end, const(0, dtype), reached)
        log_beta = op.add(reached, op.take(node.to_expr(of.emission_log_probs), position, axis=0))
        after = node.as_value(node.scope.attach_span(log_beta))
        return Iteration(go, [after], [after])

    nothing = op.full_like(
        op.take(node.to_expr(of.emission_log_probs), const(0, "int64"), axis=0), of.neg_infinity
    )
    start = node.as_value(node.scope.attach_span(nothing))
    limit = node.scope.attach_span(node.to_expr(steps, "int64"))
    _, pieces, _ = Loop(node, ["sums"], [start], limit, None, backward_step).build()
    return node.to_expr(
        stack_slices(node.scope, pieces[0], "log_beta", as_dim(steps), reverse=True)
    )


def _ctc_loss_backward(
    node: FxNode, grad: Value, log_probs: Value, targets: Value, input_lengths: Lengths,
    target_lengths: Lengths, loss: Value, log_alpha: Value, blank: int,
    zero_infinity: bool = False,
) -> Expr:  # fmt: skip
    """Convert _ctc_loss_backward; the gradient is 0 after the end of an input."""
    dtype, (steps, _, _) = log_probs.type.dtype, log_probs.type.shape
    of = _build_states(node, log_probs, targets, input_lengths, target_lengths, blank)
    alpha = op.transpose(node.to_expr(log_alpha), [1, 0, 2])
    beta = _log_beta(of, steps)
    row_loss = op.expand_dims(node.to_expr(loss), 1)
    log_gamma = op.add(
        op.subtract(op.add(alpha, beta), node.to_expr(of.emission_log_probs)), row_loss
    )
    none = op.logical_or(op.equal(alpha, of.neg_infinity), op.equal(beta, of.neg_infinity))
    gamma = op.where(none, const(0, dtype), op.exp(log_gamma))
    zeros = op.zeros_like(node.to_expr(log_probs))
    # Several states share a label: their gammas add up per label.
    summed = op.scatter_elements(
        zeros, node.to_expr(of.label_indices), gamma, axis=2, reduction="add"
    )
    gradient = op.subtract(op.exp(node.to_expr(log_probs)), summed)
    impossible = op.expand_dims(op.isinf(row_loss), 0)
    otherwise = const(0 if zero_infinity else float("nan"), dtype)
    gradient = op.where(impossible, otherwise, gradient)
    gradient = op.multiply(gradient, op.expand_dims(node.to_expr(grad), 1))
    time = op.expand_dims(
        op.arange(const(0, "int64"), node.to_expr(steps, "int64"), dtype="int64"), 1
    )
    inside = op.expand_dims(op.less(time, op.expand_dims(of.input_lengths, 0)), 2)
    return op.where(inside, gradient, const(0, dtype))


ROWS: tuple[ConverterRow, ...] = (
    ("_ctc_loss", _ctc_loss),
    ("_ctc_loss_backward", _ctc_loss_backward),
)
