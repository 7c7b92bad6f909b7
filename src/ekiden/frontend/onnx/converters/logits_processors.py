"""Logits processors of text generation: temperature, presence penalty, forced tokens, Whisper's
timestamp rules.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.onnx.converters.beam_search_scores import (
    SUPPRESSED_SCORE,
    LogitsProcessor,
    SearchParameters,
)
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass

MAX_FIRST_TIMESTAMP = 50
"""The highest number of the first timestamp of a text, counted from the one of 0 seconds: 1 s."""


def temperature_processor(temperature: Expr) -> LogitsProcessor:
    """Return a processor that divides scores by a temperature, a float32 scalar; not above 0 it
    changes nothing.
    """

    def divide_scores(search: SearchParameters, scores: Expr, texts: Expr, length: Expr) -> Expr:
        """Emit the scores divided by the temperature."""
        # A temperature of 0 would divide by zero; it means that none is set.
        is_set = op.greater(temperature, const(np.float32(0)))
        return op.divide(scores, op.where(is_set, temperature, const(np.float32(1))))

    return divide_scores


def presence_processor(mask: Expr, penalty: float) -> LogitsProcessor:
    """Return a processor that subtracts a penalty from tokens that a mask marks, int32 [batch,
    vocabulary].
    """

    def subtract_penalty(search: SearchParameters, scores: Expr, texts: Expr, length: Expr) -> Expr:
        """Emit the scores less the penalty."""
        less = op.multiply(op.cast(mask, "float32"), const(np.float32(penalty)))
        return op.subtract(scores, search.expand_to_beams(less))

    return subtract_penalty


def forced_token_processor(tokens: Expr) -> LogitsProcessor:
    """Return a processor that forces the first tokens after the prompt, int32 [batch, count], up to
    a negative one.
    """

    def force_tokens(search: SearchParameters, scores: Expr, texts: Expr, length: Expr) -> Expr:
        """Emit scores that allow the forced token only."""
        scope = search.node.scope
        zero, free = const(np.int32(0)), const(np.int32(-1))
        positions = op.expand_dims(search.positions(scope.tensor_type_of(tokens).shape[1]), axis=0)
        generated = op.subtract(length, scope.emit_dim(search.prompt_length))
        is_end = op.logical_and(op.less(tokens, zero), op.less_equal(positions, generated))
        forced_now = op.where(op.equal(positions, generated), tokens, free)
        chosen: Expr = op.max(forced_now, axis=[1], keepdims=True)
        chosen = op.where(op.any(is_end, axis=[1], keepdims=True), free, chosen)
        chosen = search.expand_to_beams(chosen)
        is_it = op.equal(const(np.arange(search.vocabulary, dtype=np.int32)[None]), chosen)
        alone = op.where(is_it, const(np.float32(0)), const(np.float32(SUPPRESSED_SCORE)))
        return op.where(op.any(is_it, axis=[1], keepdims=True), alone, scores)

    return force_tokens


@dataclass(frozen=True, slots=True)
class TimestampRules:
    """Whisper's timestamp rules: timestamps come in pairs around segments, do not decrease, and win
    if likelier together.

    suppressed_tokens: tokens that are never chosen. suppressed_after_timestamp: tokens that are not
    chosen behind the first timestamp. is_enabled: whether the rules hold, a bool scalar; None for
    yes.
    """

    first_timestamp: int
    suppressed_tokens: tuple[int, ...]
    suppressed_after_timestamp: tuple[int, ...]
    is_enabled: Expr | None

    def __call__(self, search: SearchParameters, scores: Expr, texts: Expr, length: Expr) -> Expr:
        """Return the scores under the rules, as `processed` has them."""
        ruled = self._prefer_timestamps(
            search, self._suppress_by_rules(search, scores, texts, length)
        )
        return ruled if self.is_enabled is None else op.where(self.is_enabled, ruled, scores)

    def _suppress_by_rules(
        self, search: SearchParameters, scores: Expr, texts: Expr, length: Expr
    ) -> Expr:
        """Emit the scores with tokens suppressed that may not follow the sequences."""
        one, two = const(np.int64(1)), const(np.int64(2))
        first = const(np.int32(self.first_timestamp))
        positions = op.expand_dims(search.positions(search.max_length), axis=0)
        is_time = op.logical_and(op.greater_equal(texts, first), op.less(positions, length))
        before = op.where(is_time, positions, length)
        begin = op.minimum(op.add(op.min(before, axis=[1], keepdims=True), one), length)
        is_later = op.greater(length, begin)
        last_is_time = self._is_timestamp_at(search, is_time, op.subtract(length, one))
        pair_is_full = op.logical_or(
            op.logical_not(is_later),
            self._is_timestamp_at(search, is_time, op.subtract(length, two)),
        )
        tokens = np.arange(search.vocabulary)[None]
        times, words = const(tokens >= self.first_timestamp), const(tokens < search.eos_token)
        is_out: Expr = const(np.isin(tokens, self.suppressed_tokens))
        later = op.logical_and(const(np.isin(tokens, self.suppressed_after_timestamp)), is_later)
        # After a full pair comes text; after a single timestamp comes another one, or the end.
        pair = op.logical_and(op.logical_and(last_is_time, pair_is_full), times)
        open_pair = op.logical_and(last_is_time, op.logical_not(pair_is_full))
        half = op.logical_and(open_pair, words)
        past = op.logical_and(times, self._is_decreasing(search, texts, is_time, open_pair))
        too_late = const(tokens > self.first_timestamp + MAX_FIRST_TIMESTAMP)
        late = op.logical_and(op.logical_not(is_later), too_late)
        for rule in (later, pair, half, past, late):
            is_out = op.logical_or(is_out, rule)
        return op.where(is_out, const(np.float32(SUPPRESSED_SCORE)), scores)

    def _is_timestamp_at(self, search: SearchParameters, is_time: Expr, position: Expr) -> Expr:
        """Emit whether each sequence has a timestamp at a position, bool [rows, 1]."""
        is_here = op.equal(op.expand_dims(search.positions(search.max_length), axis=0), position)
        return op.any(op.logical_and(is_time, is_here), axis=[1], keepdims=True)

    def _is_decreasing(
        self, search: SearchParameters, texts: Expr, is_time: Expr, open_pair: Expr
    ) -> Expr:
        """Emit which timestamps would decrease, bool [rows, vocabulary]."""
        positions = op.expand_dims(search.positions(search.max_length), axis=0)
        last = op.max(op.where(is_time, positions, const(np.int64(-1))), axis=[1], keepdims=True)
        is_last = op.logical_and(is_time, op.equal(positions, last))
        token = op.max(op.where(is_last, texts, const(np.int32(-1))), axis=[1], keepdims=True)
        earliest = op.where(open_pair, token, op.add(token, const(np.int32(1))))
        return op.less(const(np.arange(search.vocabulary, dtype=np.int32)[None]), earliest)

    def _prefer_timestamps(self, search: SearchParameters, scores: Expr) -> Expr:
        """Emit the timestamps' scores alone where their total probability exceeds every other
        token's.
        """
        lowest = const(np.float32(SUPPRESSED_SCORE))
        tokens = np.arange(search.vocabulary)
        times = op.take(scores, const(tokens[self.first_timestamp :]), axis=1)
        # Log-sum-exp with the maximum subtracted, as float32 exponentials would overflow.
        highest = op.max(times, axis=[1], keepdims=True)
        shares = op.exp(op.subtract(times, highest))
        shares = op.where(op.greater(times, lowest), shares, const(np.float32(0)))
        total = op.sum(shares, axis=[1], keepdims=True)
        all_times = op.where(
            op.greater(total, const(np.float32(0))), op.add(op.log(total), highest), lowest
        )
        words = op.take(scores, const(tokens[: self.first_timestamp]), axis=1)
        is_time = op.greater(all_times, op.max(words, axis=[1], keepdims=True))
        is_word = const((tokens < self.first_timestamp)[None])
        return op.where(op.logical_and(is_time, is_word), lowest, scores)
