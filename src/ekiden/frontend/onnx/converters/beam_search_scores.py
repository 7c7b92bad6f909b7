"""Scores of text generation: search parameters, logits processing, and beams with their finished
hypotheses.

As in ONNX Runtime's CPU kernels (onnxruntime/contrib_ops/cpu/transformers): beam search chooses
tokens by log-probabilities, greedy search by logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ekiden.frontend.onnx.node import OnnxNode
from ekiden.ir.prim import GE, PrimExpr, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import as_dim, known_int, product_of_dims, simplify_dim

SUPPRESSED_SCORE = float(np.finfo(np.float32).min)
"""The score of a token that may not be chosen: float32."""


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """Parameters of a beam, greedy or sampling search.

    batch, num_beams, prompt_length, max_length: the number of prompts, beams of each, tokens of the
    prompt, and the most tokens of a sequence. vocabulary: the number of tokens. min_length,
    repetition_penalty: inputs of the node. extra_processors: score processors that run after these,
    in order.
    """

    node: OnnxNode
    batch: PrimExpr
    num_beams: PrimExpr
    prompt_length: PrimExpr
    max_length: PrimExpr
    vocabulary: int
    min_length: Expr | None
    repetition_penalty: Expr | None
    vocabulary_mask: Expr | None
    prefix_mask: Expr | None
    extra_processors: Sequence[LogitsProcessor] = ()

    @property
    def num_rows(self) -> PrimExpr:
        """Return the number of rows: batch * beams."""
        return simplify_dim(product_of_dims((self.batch, self.num_beams)))

    @property
    def eos_token(self) -> int:
        """Return the token that ends a sequence (EOS)."""
        return self.node.get_int("eos_token_id")

    @property
    def pad_token(self) -> int:
        """Return the token that pads ended sequences."""
        return self.node.get_int("pad_token_id")

    def positions(self, extent: PrimExpr | int) -> Expr:
        """Emit the positions 0, 1, ... below an extent, int64."""
        return op.reshape(op.arange(0, as_dim(extent), 1, dtype="int64"), (as_dim(extent),))

    def prompt_of_row(self) -> Expr:
        """Emit the prompt index of each row, int64 [rows]."""
        beams = self.node.scope.emit_dim(self.num_beams)
        return op.floor_divide(self.positions(self.num_rows), beams)

    def expand_to_beams(self, data: Expr) -> Expr:
        """Emit data of each prompt repeated for its beams: [batch, ...] -> [rows, ...]."""
        return op.take(data, self.prompt_of_row(), axis=0)

    def initial_sequences(self, prompts: Expr) -> Expr:
        """Emit the sequences of all rows, int32 [rows, limit]: prompts and padding."""
        pad = op.full(
            const(np.int32(self.pad_token)),
            (self.num_rows, simplify_dim(self.max_length - self.prompt_length)),
        )
        return op.concatenate((prompts, op.cast(pad, "int32")), axis=1)

    def write_token(self, texts: Expr, tokens: Expr, length: Expr) -> Expr:
        """Emit sequences [rows, limit] with a token [rows] written at position `length`."""
        is_there = op.equal(op.expand_dims(self.positions(self.max_length), axis=0), length)
        return op.where(is_there, op.expand_dims(tokens, axis=1), texts)


def process_scores(
    search: SearchParameters, scores: Expr, texts: Expr, length: Expr, is_first: bool
) -> Expr:
    """Emit token scores, float32 [rows, vocabulary], after all processors of the node.

    Args:
        search: the search.
        scores: float32 [rows, vocabulary].
        texts: int32 [rows, limit] of `length` tokens each.
        length: an int64 scalar.
        is_first: whether this is the first token behind the prompt.
    """
    node = search.node
    if search.repetition_penalty is not None:
        scores = _repetition_penalty(search, scores, texts, length)
    if size := node.get_int("no_repeat_ngram_size", 0):
        scores = _suppress_repeated_ngrams(search, scores, texts, length, size)
    lowest = const(SUPPRESSED_SCORE, "float32")
    none = const(np.int32(0))
    if search.vocabulary_mask is not None:
        mask = op.reshape(search.vocabulary_mask, (1, search.vocabulary))
        scores = op.where(op.equal(mask, none), lowest, scores)
    if search.prefix_mask is not None and is_first:
        scores = op.where(
            op.equal(search.expand_to_beams(search.prefix_mask), none), lowest, scores
        )
    if search.min_length is not None:
        is_end = const(np.arange(search.vocabulary)[None] == search.eos_token)
        is_short = op.less(length, search.min_length)
        scores = op.where(op.logical_and(is_end, is_short), lowest, scores)
    for processor in search.extra_processors:
        scores = processor(search, scores, texts, length)
    return scores


LogitsProcessor: TypeAlias = Callable[[SearchParameters, Expr, Expr, Expr], Expr]
"""(search, scores, texts, length) -> scores, as `processed` has them."""


def _token_occurrences(search: SearchParameters, tokens: Expr, is_valid: Expr) -> Expr:
    """Emit which tokens occur among each row's valid ones, bool [rows, vocabulary]."""
    zeros = op.zeros((search.num_rows, as_dim(search.vocabulary)), "int32")
    position = op.cast(op.where(is_valid, tokens, const(np.int32(0))), "int64")
    marks = op.cast(is_valid, "int32")
    # Several positions may hold one token: with "max" a valid one wins over invalid ones at token
    # 0.
    marked = op.scatter_elements(zeros, position, marks, axis=1, reduction="max")
    return op.greater(marked, const(np.int32(0)))


def _repetition_penalty(search: SearchParameters, scores: Expr, texts: Expr, length: Expr) -> Expr:
    """Emit the scores with the repetition penalty of CTRL (Keskar et al. 2019) applied to tokens
    that a sequence already has.
    """
    assert search.repetition_penalty is not None
    is_valid = op.less(op.expand_dims(search.positions(search.max_length), axis=0), length)
    is_valid = op.broadcast_to(is_valid, (search.num_rows, search.max_length))
    # Negative scores are multiplied and positive ones divided, so that both decrease for a penalty
    # above 1.
    less = op.where(
        op.less(scores, const(0.0, "float32")),
        op.multiply(scores, search.repetition_penalty),
        op.divide(scores, search.repetition_penalty),
    )
    return op.where(_token_occurrences(search, texts, is_valid), less, scores)


def _suppress_repeated_ngrams(
    search: SearchParameters, scores: Expr, texts: Expr, length: Expr, size: int
) -> Expr:
    """Emit the scores with tokens suppressed that would repeat an n-gram of `size` tokens."""
    search.node.scope.require_condition(
        fold_binary(GE, search.max_length, as_dim(size)), " with its n-grams"
    )
    windows = simplify_dim(search.max_length - (size - 1))
    first = search.positions(windows)
    repeats = op.less_equal(first, op.subtract(length, const(np.int64(size))))
    repeats = op.broadcast_to(op.expand_dims(repeats, axis=0), (search.num_rows, windows))
    for offset in range(size - 1):
        window_token = op.take(texts, op.add(first, const(np.int64(offset))), axis=1)
        suffix_position = op.subtract(length, const(np.int64(size - 1 - offset)))
        last = op.take(texts, op.expand_dims(suffix_position, axis=0), axis=1)
        repeats = op.logical_and(repeats, op.equal(window_token, last))
    tokens = op.take(texts, op.add(first, const(np.int64(size - 1))), axis=1)
    return op.where(
        _token_occurrences(search, tokens, repeats), const(SUPPRESSED_SCORE, "float32"), scores
    )


@dataclass(frozen=True, slots=True)
class BeamState:
    """State of a beam search between steps.

    texts: int32 [rows, limit]. scores: float32 [batch, beams], sums of log-probabilities. ended:
    float32 [batch, beams], the scores of the best finished sentences in descending order, -inf
    where there are fewer. sentences: int32 [batch, beams, limit], those. count: int64 [batch],
    their number. done: bool [batch]. tokens: int32 [rows], the last of each sequence.
    """

    texts: Expr
    scores: Expr
    ended: Expr
    sentences: Expr
    count: Expr
    done: Expr
    tokens: Expr

    def as_list(self) -> Sequence[Expr]:
        """Return all fields in the order of FIELDS."""
        return [
            self.texts, self.scores, self.ended, self.sentences, self.count, self.done, self.tokens,
        ]  # fmt: skip


BEAM_STATE_FIELDS = ("texts", "scores", "ended", "sentences", "count", "done", "tokens")
"""The names of what Beams holds."""


def initial_beams(search: SearchParameters, texts: Expr) -> BeamState:
    """Return the initial beams; all but the first of a prompt score -1e9."""
    shape = (search.batch, search.num_beams)
    is_first = op.equal(
        op.expand_dims(search.positions(search.num_beams), axis=0), const(np.int64(0))
    )
    # All beams begin alike: without the offset they would all choose the same token.
    scores = op.where(is_first, const(0.0, "float32"), const(-1e9, "float32"))
    pad = op.full(const(np.int32(search.pad_token)), (*shape, search.max_length))
    return BeamState(
        texts,
        op.broadcast_to(scores, shape),
        op.full(const(-np.inf, "float32"), shape),
        op.cast(pad, "int32"),
        op.zeros((search.batch,), "int64"),
        op.zeros((search.batch,), "bool"),
        op.zeros((search.num_rows,), "int32"),
    )


@dataclass(frozen=True, slots=True)
class SentenceScorer:
    """Scorer of finished hypotheses, with length penalty (float32 scalar) and early stopping."""

    search: SearchParameters
    length_penalty: Expr
    stops_early: bool

    def advance_beams(self, beams: BeamState, scores: Expr, length: Expr) -> tuple[BeamState, Expr]:
        """Advance the beams by a token; return them and the row that each continues, int64 [rows].

        Args:
            beams: the state.
            scores: float32 [rows, vocabulary], the beams' scores included.
            length: of the sequences, an int64 scalar.
        """
        search = self.search
        batch, count, vocabulary = search.batch, search.num_beams, as_dim(search.vocabulary)
        flat = op.reshape(scores, (batch, simplify_dim(count * vocabulary)), allowzero=True)
        # 2 * beams candidates: at most one of each beam ends, so at least `beams` of them continue.
        candidate_count = simplify_dim(count * 2)
        candidates = op.topk(
            flat, k=known_int(candidate_count) or candidate_count, axis=1, dtype="int64"
        )
        size = const(np.int64(search.vocabulary))
        best, candidate_ids = TupleGetItem(candidates, 0), TupleGetItem(candidates, 1)
        tokens = op.cast(op.floor_mod(candidate_ids, size), "int32")
        first_row = op.multiply(search.positions(batch), search.node.scope.emit_dim(count))
        rows = op.add(op.floor_divide(candidate_ids, size), op.expand_dims(first_row, axis=1))
        is_end = op.equal(tokens, const(np.int32(search.eos_token)))
        after = self._add_ended(beams, best, rows, is_end, length)
        order = self._continuing_candidates(is_end)
        chosen = [op.gather(t, 1, order) for t in (best, tokens, rows)]
        is_done = op.expand_dims(beams.done, axis=1)
        nothing = (const(0.0, "float32"), const(np.int32(search.pad_token)), const(np.int64(0)))
        beam_scores, token, row = (
            op.where(is_done, n, c) for n, c in zip(nothing, chosen, strict=True)
        )
        token, row = (op.reshape(t, (search.num_rows,), allowzero=True) for t in (token, row))
        texts = search.write_token(op.take(beams.texts, row, axis=0), token, length)
        done = op.logical_or(beams.done, self._is_done(*after, best, length))
        return BeamState(texts, beam_scores, *after, done, token), row

    def _continuing_candidates(self, is_end: Expr) -> Expr:
        """Emit the positions of the first candidates that continue, int64 [batch, beams]."""
        candidate_count = simplify_dim(self.search.num_beams * 2)
        positions = op.expand_dims(self.search.positions(candidate_count), axis=0)
        # Ended candidates are moved behind all others; a stable order of the rest is kept by their
        # positions.
        behind = op.where(
            is_end, self.search.node.scope.emit_dim(candidate_count), const(np.int64(0))
        )
        order = op.argsort(op.add(positions, behind), axis=1, dtype="int64")
        return op.take(order, self.search.positions(self.search.num_beams), axis=1)

    def normalize_scores(self, scores: Expr, length: Expr) -> Expr:
        """Emit log-probabilities divided by length ** penalty."""
        return op.divide(scores, op.power(op.cast(length, "float32"), self.length_penalty))

    def _add_ended(
        self, beams: BeamState, best: Expr, rows: Expr, is_end: Expr, length: Expr
    ) -> tuple[Expr, Expr, Expr]:
        """Emit `ended`, `sentences` and `count` with the candidates that end among the first
        `beams`.
        """
        first = self.search.positions(self.search.num_beams)
        best, rows, is_end = (op.take(t, first, axis=1) for t in (best, rows, is_end))
        ends = op.logical_and(is_end, op.logical_not(op.expand_dims(beams.done, axis=1)))
        scores = op.where(ends, self.normalize_scores(best, length), const(-np.inf, "float32"))
        return self.merge_sentences(beams, scores, op.take(beams.texts, rows, axis=0), ends)

    def merge_sentences(
        self, beams: BeamState, scores: Expr, sentences: Expr, are_there: Expr
    ) -> tuple[Expr, Expr, Expr]:
        """Emit the best of finished and further sentences [batch, beams]: scores, tokens, count. Of
        equal scores the older sentence is kept.
        """
        search = self.search
        # The older sentences come first, and top-k prefers the lower index among equal scores.
        both = op.concatenate((beams.ended, scores), axis=1)
        every = op.concatenate((beams.sentences, sentences), axis=1)
        best = op.topk(
            both, k=known_int(search.num_beams) or search.num_beams, axis=1, dtype="int64"
        )
        doubled_beams = search.node.scope.emit_dim(simplify_dim(search.num_beams * 2))
        flat = op.reshape(
            every, (simplify_dim(search.num_rows * 2), search.max_length), allowzero=True
        )
        first = op.expand_dims(op.multiply(search.positions(search.batch), doubled_beams), axis=1)
        position = op.add(TupleGetItem(best, 1), first)
        new = op.sum(op.cast(are_there, "int64"), axis=[1])
        count = op.minimum(op.add(beams.count, new), search.node.scope.emit_dim(search.num_beams))
        return TupleGetItem(best, 0), op.take(flat, position, axis=0), count

    def _is_done(self, ended: Expr, sentences: Expr, count: Expr, best: Expr, length: Expr) -> Expr:
        """Emit whether a prompt's finished sequences are complete and beat all candidates, bool
        [batch].
        """
        search = self.search
        beams = search.node.scope.emit_dim(search.num_beams)
        is_full = op.greater_equal(count, beams)
        if self.stops_early:
            return is_full
        # ONNX Runtime looks for the best candidate of text i from i * beams on, among the
        # candidates of all texts, of which each has twice as many.
        candidate_count = simplify_dim(search.num_beams * 2)
        first = op.expand_dims(op.multiply(search.positions(search.batch), beams), axis=1)
        axis_index = op.add(first, op.expand_dims(search.positions(candidate_count), axis=0))
        flat = op.reshape(best, (simplify_dim(search.batch * candidate_count),), allowzero=True)
        highest = self.normalize_scores(op.max(op.take(flat, axis_index, axis=0), axis=[1]), length)
        worst = op.min(ended, axis=[1])
        return op.logical_and(is_full, op.greater_equal(worst, highest))
