"""Token sampling: logit constraints (repetition penalty, grammar automaton) and the draw by
temperature, top k, top p and min p.

A draw needs no sorting. Which weights are among the greatest is a threshold, the greatest one above
which there are enough (top k), or enough of their sum (top p): sums of 2,033 buckets, of the upper
bits of a weight, say in which bucket it lies, and bisection among that bucket's weights which it
is. A seed and the place of the token in its text are the whole state of the generator (Threefry, as
topi.random), so that a text does not depend on those drawn beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import (
    EQ,
    GE,
    NE,
    Not,
    PrimExpr,
    cast,
    const,
    fold_binary,
    logical_and,
    maximum,
    minimum,
)
from ekiden.kernels.cpu.scatter import emit_copy
from ekiden.kernels.in_place import UPDATES_ATTR_KEY
from ekiden.te import Tensor
from ekiden.te.range_checks import RANGE_CHECKS_ATTR_KEY, range_check
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt, seq
from ekiden.topi.dimensions import require_rank, require_shape
from ekiden.topi.random import THREEFRY_WORD_DTYPE, emit_threefry

WEIGHT_BUCKET_SHIFT = 19
"""Low mantissa bits of a weight that its bucket ignores."""
BUCKETS = (0x3F800000 >> WEIGHT_BUCKET_SHIFT) + 1
"""Number of buckets of weights in [0, 1], by their bit patterns."""
SETTINGS = 4
"""Number of sampling settings: temperature, top k, top p, min p."""
# Sums of weights: at 100,000 a float32 cannot resolve what is below 2**-8.
_MASS_DTYPE = "float64"


def _require_inputs(name: str, expectations: Sequence[tuple[Tensor, str, int, str]]) -> None:
    for tensor, what, rank, dtype in expectations:
        require_rank(f"{name}: {what!r}", tensor.shape, rank)
        if tensor.dtype != dtype:
            raise ValueError(f"{name}: {what!r} must be {dtype}, got {tensor.dtype}")


def constrain_logits(
    logits: Tensor, history: Tensor, rows: Tensor, lengths: Tensor, penalties: Tensor,
    moves: Tensor, states: Tensor,
) -> Tensor:  # fmt: skip
    """Return logits [n, tokens] with a repetition penalty on a text's tokens, and -inf for tokens
    that a grammar automaton rejects.

    Row i continues the first `lengths[i]` tokens of row `rows[i]` of `history` [texts, width]; the
    logits of those become smaller by `penalties[i]` (those above 0 divided, others multiplied; 1
    changes nothing). `moves` [automaton's states, tokens] is below 0 where state `states[i]` takes
    no such token; a state below 0 takes all.
    """
    name = "constrain"
    _require_inputs(name, (
        (logits, "logits", 2, "float32"), (history, "history", 2, "int32"),
        (rows, "rows", 1, "int32"), (lengths, "lengths", 1, "int32"),
        (penalties, "penalties", 1, "float32"), (moves, "moves", 2, "int32"),
        (states, "states", 1, "int32"),
    ))  # fmt: skip
    for vector, what in ((rows, "rows"), (lengths, "lengths"), (penalties, "penalties"),
                         (states, "states")):  # fmt: skip
        require_shape(name, what, vector.shape, logits.shape[:1])
    require_shape(name, "moves", moves.shape, (None, logits.shape[1]))
    checks = (
        range_check(f"{name}: row", rows, 0, history.shape[0]),
        range_check(f"{name}: length", lengths, 0, history.shape[1] + 1),
        range_check(f"{name}: state", states, -(2**31), moves.shape[0]),
    )

    def emit_constraints(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the repetition penalty and the automaton's mask, rows in parallel. The logits of a
        row's past tokens are read all before any is written: a token that comes again is changed
        once.
        """
        ib = IRBuilder()
        _, past, row_of, length_of, penalty_of, table, state_of = map(ib.buffer_ptr, ins)
        out = ib.buffer_ptr(outs[0])
        tokens, width = logits.shape[1], history.shape[1]
        with ib.for_range(0, logits.shape[0], "n", kind="parallel") as n:
            penalty = ib.let("penalty", penalty_of[n])
            with ib.if_scope(fold_binary(NE, penalty, const(1.0))):
                old = ib.allocate("float32", (width,), "old")
                row, length = ib.let("row", cast(row_of[n], "int64")), cast(length_of[n], "int64")
                # Two passes, the first over unmodified logits: a repeated token is penalised once,
                # not once per occurrence.
                for is_last in (False, True):
                    with ib.for_range(0, length, "i") as i:
                        token = ib.let("token", cast(past[row, i], "int64"))
                        with ib.if_scope(logical_and(token >= 0, token < tokens)):
                            if not is_last:
                                old[i] = out[n, token]
                                continue
                            value = old[i]
                            out[n, token] = if_then_else(
                                value > const(0.0), value / penalty, value * penalty
                            )
            state = ib.let("state", cast(state_of[n], "int64"))
            with (
                ib.if_scope(state >= 0),
                ib.for_range(0, tokens, "token") as token,
                ib.if_scope(table[state, token] < const(0, "int32")),
            ):
                out[n, token] = const(float("-inf"))
        return seq(emit_copy(ins[0], outs[0]), ib.get())

    inputs = [logits, history, rows, lengths, penalties, moves, states]
    attrs: dict[str, object] = {RANGE_CHECKS_ATTR_KEY: checks, UPDATES_ATTR_KEY: 0}
    (result,) = te.extern_op(
        [logits.shape], inputs, emit_constraints, ["float32"], name, attrs=attrs
    )
    return result


class _TokenSampler:
    """Builder of the statements that sample a token from one row of weights."""

    def __init__(self, ib: IRBuilder, weights: BufferVar, row: PrimExpr, tokens: PrimExpr) -> None:
        self.ib, self.row, self.tokens, self.weights = ib, row, tokens, weights
        self.threshold = ib.allocate("float32", (1,), "limit")
        self.sums = ib.allocate(_MASS_DTYPE, (BUCKETS,), "sums")
        self.bucket_weights = ib.allocate("float32", (tokens,), "listed")
        self.count = ib.allocate("int64", (1,), "count")
        self.search_bounds = ib.allocate("int64", (2,), "found")
        self.total = ib.allocate(_MASS_DTYPE, (2,), "total")

    def emit_weight_loop(self, step: Callable[[PrimExpr, PrimExpr], None]) -> None:
        """Emit a loop over the weights above the threshold, with their tokens."""
        with self.ib.for_range(0, self.tokens, "token") as token:
            value = self.ib.let("value", self.weights[self.row, token])
            with self.ib.if_scope(fold_binary(GE, value, self.threshold[0])):
                step(token, value)

    def emit_total_weight(self) -> PrimExpr:
        """Emit the sum of the weights above the threshold."""
        self.total[0] = const(0.0, _MASS_DTYPE)

        def add_weight(token: PrimExpr, value: PrimExpr) -> None:
            self.total[0] = self.total[0] + cast(value, _MASS_DTYPE)

        self.emit_weight_loop(add_weight)
        return self.total[0]

    def bucket_of(self, value: PrimExpr) -> PrimExpr:
        """Return the bucket of a weight."""
        # The bits of floats >= 0 order like the floats; -0 and values above 1 are clamped.
        bits = cast(call_intrin("reinterpret", value, dtype="int32"), "int64")
        return maximum(minimum(bits // (1 << WEIGHT_BUCKET_SHIFT), const(BUCKETS - 1)), const(0))

    def emit_raise_threshold(self, target: PrimExpr, weigh: Callable[[PrimExpr], PrimExpr]) -> None:
        """Emit the raise of the threshold to the largest weight such that the weights from it on,
        transformed by `weigh`, reach the target.
        """
        ib = self.ib
        with ib.for_range(0, BUCKETS, "bucket") as n:
            self.sums[n] = const(0.0, _MASS_DTYPE)

        def add_to_bucket(token: PrimExpr, value: PrimExpr) -> None:
            position = ib.let("at", self.bucket_of(value))
            self.sums[position] = self.sums[position] + weigh(value)

        self.emit_weight_loop(add_to_bucket)
        # found[0]: the bucket in which the target is reached; total[0]: what lies above it
        self.search_bounds[0] = const(BUCKETS - 1)
        self.total[0] = const(0.0, _MASS_DTYPE)
        bucket_number = self.search_bounds[0]
        # A histogram over the highest bits first: one pass counts, a second one collects the single
        # bucket in which the limit is.
        with ib.while_loop(
            logical_and(bucket_number > 0, self.total[0] + self.sums[bucket_number] < target)
        ):
            self.total[0] = self.total[0] + self.sums[bucket_number]
            self.search_bounds[0] = bucket_number - 1
        self.count[0] = const(0)

        def collect_in_bucket(token: PrimExpr, value: PrimExpr) -> None:
            """Collect the weights of the threshold's bucket."""
            with ib.if_scope(fold_binary(EQ, self.bucket_of(value), self.search_bounds[0])):
                self.bucket_weights[self.count[0]] = value
                self.count[0] = self.count[0] + 1

        self.emit_weight_loop(collect_in_bucket)
        self.emit_bisection(target, weigh)

    def emit_bisection(self, target: PrimExpr, weigh: Callable[[PrimExpr], PrimExpr]) -> None:
        """Emit a binary search for the threshold over the float bit patterns of one bucket."""
        ib = self.ib
        first = ib.let("first", self.search_bounds[0] * (1 << WEIGHT_BUCKET_SHIFT))
        self.search_bounds[0] = first
        self.search_bounds[1] = first + (1 << WEIGHT_BUCKET_SHIFT)
        # The bits of floats >= 0 order like the floats, so the search ends after
        # WEIGHT_BUCKET_SHIFT steps, without a sort.
        with ib.while_loop(self.search_bounds[1] - self.search_bounds[0] > 1):
            middle = ib.let("middle", (self.search_bounds[0] + self.search_bounds[1]) // 2)
            self.total[1] = self.total[0]
            with ib.for_range(0, self.count[0], "i") as i:
                value = self.bucket_weights[i]
                bits = cast(call_intrin("reinterpret", value, dtype="int32"), "int64")
                with ib.if_scope(bits >= middle):
                    self.total[1] = self.total[1] + weigh(value)
            reached = ib.let("reached", self.total[1] >= target)
            self.search_bounds[0] = if_then_else(reached, middle, self.search_bounds[0])
            self.search_bounds[1] = if_then_else(reached, self.search_bounds[1], middle)
        limit = call_intrin("reinterpret", cast(self.search_bounds[0], "int32"), dtype="float32")
        # At most 1, the greatest weight: rounding of the sums never leaves a row without tokens.
        self.threshold[0] = maximum(self.threshold[0], minimum(limit, const(1.0)))

    def emit_token(self, share: PrimExpr) -> PrimExpr:
        """Emit inverse transform sampling of a token; -1 where no weight is positive."""
        ib = self.ib
        target_mass = ib.let("wanted", share * self.emit_total_weight())
        self.search_bounds[0] = const(-1)
        self.total[0] = const(0.0, _MASS_DTYPE)

        def accumulate(token: PrimExpr, value: PrimExpr) -> None:
            """Accumulate weights until they exceed the drawn mass."""
            is_before = logical_and(self.total[0] > target_mass, self.search_bounds[0] >= 0)
            with ib.if_scope(logical_and(value > const(0.0), Not(is_before))):
                self.total[0] = self.total[0] + cast(value, _MASS_DTYPE)
                self.search_bounds[0] = token

        self.emit_weight_loop(accumulate)
        return self.search_bounds[0]


def draw_token(weights: Tensor, settings: Tensor, seeds: Tensor, places: Tensor) -> Tensor:
    """Sample a token [n] int32 for each row of weights [n, tokens], the largest of which is 1; -1
    for rows of NaN.

    Args:
        weights: float32 [n, tokens].
        settings: float32 [n, 4]: temperature (0: greedy, the first maximum), top k (0: off), top p
            (1: off; applied after top k) and min p.
        seeds: int64 [n].
        places: int32 [n]; the draw depends on seed and position only.

    Returns:
        The tokens.
    """
    name = "draw"
    _require_inputs(name, (
        (weights, "weights", 2, "float32"), (settings, "settings", 2, "float32"),
        (seeds, "seeds", 1, "int64"), (places, "places", 1, "int32"),
    ))  # fmt: skip
    require_shape(name, "settings", settings.shape, (weights.shape[0], SETTINGS))
    for vector, what in ((seeds, "seeds"), (places, "places")):
        require_shape(name, what, vector.shape, weights.shape[:1])

    def emit_draw(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the draw row by row: thresholds by top k, top p and min p, then one Threefry word
        per seed and position.
        """
        ib = IRBuilder()
        weights_buffer, settings_buffer, keys, counters = map(ib.buffer_ptr, ins)
        out = ib.buffer_ptr(outs[0])
        tokens = weights.shape[1]
        with ib.for_range(0, weights.shape[0], "n", kind="parallel") as n:
            draw = _TokenSampler(ib, weights_buffer, n, tokens)
            heat, top_k, top_p, min_p = (
                ib.let("setting", settings_buffer[n, i]) for i in range(SETTINGS)
            )
            # Greedy: the greatest weight is 1, so this limit leaves the maxima alone.
            draw.threshold[0] = if_then_else(heat > const(0.0), const(0.0), const(1.0))
            with ib.if_scope(
                logical_and(heat > const(0.0), logical_and(top_k >= const(1.0),
                                                           top_k < cast(tokens, "float32")))
            ):  # fmt: skip
                draw.emit_raise_threshold(
                    cast(top_k, _MASS_DTYPE), lambda value: const(1.0, _MASS_DTYPE)
                )
            with ib.if_scope(logical_and(heat > const(0.0), top_p < const(1.0))):
                target = ib.let("target", cast(top_p, _MASS_DTYPE) * draw.emit_total_weight())
                draw.emit_raise_threshold(target, lambda value: cast(value, _MASS_DTYPE))
            # min p is relative to the greatest weight, which is 1, and never excludes it.
            draw.threshold[0] = maximum(draw.threshold[0], minimum(min_p, const(1.0)))
            zero = const(0, THREEFRY_WORD_DTYPE)
            key = [cast(keys[n], THREEFRY_WORD_DTYPE), zero, zero, zero]
            word = emit_threefry(
                ib, key, [cast(counters[n], THREEFRY_WORD_DTYPE), zero, zero, zero]
            )[0]
            # The upper 53 bits: exact in float64, so that the share is below 1.
            high = cast(
                cast(call_intrin("right_shift", word, const(11, THREEFRY_WORD_DTYPE)), "int64"),
                _MASS_DTYPE,
            )
            share = if_then_else(
                heat > const(0.0), high * const(2.0**-53, _MASS_DTYPE), const(0.0, _MASS_DTYPE)
            )
            out[n] = cast(draw.emit_token(share), "int32")
        return ib.get()

    shape = (weights.shape[0],)
    (tokens_out,) = te.extern_op(
        [shape], [weights, settings, seeds, places], emit_draw, ["int32"], name
    )
    return tokens_out


__all__ = ["BUCKETS", "SETTINGS", "constrain_logits", "draw_token"]
