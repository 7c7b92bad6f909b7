"""Scores of a text search, by which its next tokens are chosen: the parameters of a search, the
processors of token scores, and the beams with the sentences that have finished.

As in ONNX Runtime's CPU kernels (onnxruntime/contrib_ops/cpu/transformers): beam search chooses
tokens by log-probabilities, greedy search by logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ekiden.frontend.onnx.node import Node
from ekiden.ir.prim import GE, PrimExpr, binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import as_dim, known, product, tidy

LOWEST = float(np.finfo(np.float32).min)
"""The score of a token that may not be chosen: float32."""


@dataclass(frozen=True, slots=True)
class Search:
    """The parameters of a search.

    batch, beams, prompt, limit: the number of prompts, beams of each, tokens of the prompt, and the
    most tokens of a sequence. vocabulary: the number of tokens. min_length, penalty: inputs of the
    node. further: score processors that run after these, in order.
    """

    node: Node
    batch: PrimExpr
    beams: PrimExpr
    prompt: PrimExpr
    limit: PrimExpr
    vocabulary: int
    min_length: Expr | None
    penalty: Expr | None
    vocabulary_mask: Expr | None
    prefix_mask: Expr | None
    further: Sequence[Processor] = ()

    @property
    def rows(self) -> PrimExpr:
        """Return the number of beams of all texts."""
        return tidy(product((self.batch, self.beams)))

    @property
    def end(self) -> int:
        """Return the token that ends a sequence (EOS)."""
        return self.node.get_int("eos_token_id")

    @property
    def padding(self) -> int:
        """Return the token that follows the end."""
        return self.node.get_int("pad_token_id")

    def places(self, extent: PrimExpr | int) -> Expr:
        """Return 0, 1, ... below an extent: int64 [extent]."""
        return op.reshape(op.arange(0, as_dim(extent), 1, dtype="int64"), (as_dim(extent),))

    def row_texts(self) -> Expr:
        """Return the prompt that each row belongs to: int64 [rows]."""
        beams = self.node.scope.scalar(self.beams)
        return op.floor_divide(self.places(self.rows), beams)

    def expanded(self, data: Expr) -> Expr:
        """Return data of each prompt repeated for its beams: [batch, ...] -> [rows, ...]."""
        return op.take(data, self.row_texts(), axis=0)

    def started(self, prompts: Expr) -> Expr:
        """Return the sequences of all rows, int32 [rows, limit]: prompts [rows, prompt] and
        padding.
        """
        pad = op.full(const(np.int32(self.padding)), (self.rows, tidy(self.limit - self.prompt)))
        return op.concatenate((prompts, op.cast(pad, "int32")), axis=1)

    def with_token(self, texts: Expr, tokens: Expr, length: Expr) -> Expr:
        """Return sequences [rows, limit] with a token [rows] written at `length`, an int64
        scalar.
        """
        is_there = op.equal(op.expand_dims(self.places(self.limit), axis=0), length)
        return op.where(is_there, op.expand_dims(tokens, axis=1), texts)


def processed(search: Search, scores: Expr, texts: Expr, length: Expr, is_first: bool) -> Expr:
    """Return the scores of tokens, float32 [rows, vocabulary], after the node's processors.

    Args:
        search: the search.
        scores: float32 [rows, vocabulary].
        texts: int32 [rows, limit] of `length` tokens each.
        length: an int64 scalar.
        is_first: whether this is the first token behind the prompt.
    """
    node = search.node
    if search.penalty is not None:
        scores = _penalised(search, scores, texts, length)
    if size := node.get_int("no_repeat_ngram_size", 0):
        scores = _without_repeats(search, scores, texts, length, size)
    lowest = const(LOWEST, "float32")
    none = const(np.int32(0))
    if search.vocabulary_mask is not None:
        mask = op.reshape(search.vocabulary_mask, (1, search.vocabulary))
        scores = op.where(op.equal(mask, none), lowest, scores)
    if search.prefix_mask is not None and is_first:
        scores = op.where(op.equal(search.expanded(search.prefix_mask), none), lowest, scores)
    if search.min_length is not None:
        is_end = const(np.arange(search.vocabulary)[None] == search.end)
        is_short = op.less(length, search.min_length)
        scores = op.where(op.logical_and(is_end, is_short), lowest, scores)
    for processor in search.further:
        scores = processor(search, scores, texts, length)
    return scores


Processor: TypeAlias = Callable[[Search, Expr, Expr, Expr], Expr]
"""(search, scores, texts, length) -> scores, as `processed` has them."""


def _marked(search: Search, tokens: Expr, is_valid: Expr) -> Expr:
    """Return which tokens of the vocabulary occur among each row's valid tokens: bool [rows,
    vocabulary].
    """
    zeros = op.zeros((search.rows, as_dim(search.vocabulary)), "int32")
    at = op.cast(op.where(is_valid, tokens, const(np.int32(0))), "int64")
    marks = op.cast(is_valid, "int32")
    marked = op.scatter_elements(zeros, at, marks, axis=1, reduction="max")
    return op.greater(marked, const(np.int32(0)))


def _penalised(search: Search, scores: Expr, texts: Expr, length: Expr) -> Expr:
    """Return the scores with the repetition penalty (CTRL, Keskar et al. 2019) applied to tokens
    that a sequence already has.
    """
    assert search.penalty is not None
    is_valid = op.less(op.expand_dims(search.places(search.limit), axis=0), length)
    is_valid = op.broadcast_to(is_valid, (search.rows, search.limit))
    # Negative scores are multiplied and positive ones divided, so that both decrease for a penalty
    # above 1.
    less = op.where(
        op.less(scores, const(0.0, "float32")),
        op.multiply(scores, search.penalty),
        op.divide(scores, search.penalty),
    )
    return op.where(_marked(search, texts, is_valid), less, scores)


def _without_repeats(search: Search, scores: Expr, texts: Expr, length: Expr, size: int) -> Expr:
    """Return the scores with the tokens suppressed that would repeat an n-gram of `size` tokens."""
    search.node.scope.require(binary(GE, search.limit, as_dim(size)), " with its n-grams")
    windows = tidy(search.limit - (size - 1))
    first = search.places(windows)
    repeats = op.less_equal(first, op.subtract(length, const(np.int64(size))))
    repeats = op.broadcast_to(op.expand_dims(repeats, axis=0), (search.rows, windows))
    for offset in range(size - 1):
        window_token = op.take(texts, op.add(first, const(np.int64(offset))), axis=1)
        suffix_position = op.subtract(length, const(np.int64(size - 1 - offset)))
        last = op.take(texts, op.expand_dims(suffix_position, axis=0), axis=1)
        repeats = op.logical_and(repeats, op.equal(window_token, last))
    tokens = op.take(texts, op.add(first, const(np.int64(size - 1))), axis=1)
    return op.where(_marked(search, tokens, repeats), const(LOWEST, "float32"), scores)


@dataclass(frozen=True, slots=True)
class Beams:
    """The state of a beam search.

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

    def all(self) -> Sequence[Expr]:
        """Return all fields in the order of FIELDS."""
        return [
            self.texts, self.scores, self.ended, self.sentences, self.count, self.done, self.tokens,
        ]  # fmt: skip


FIELDS = ("texts", "scores", "ended", "sentences", "count", "done", "tokens")
"""The names of what Beams holds."""


def first_beams(search: Search, texts: Expr) -> Beams:
    """Return the beams before the first token: all but the first of each prompt have a score that
    the first token's candidates exceed.
    """
    shape = (search.batch, search.beams)
    is_first = op.equal(op.expand_dims(search.places(search.beams), axis=0), const(np.int64(0)))
    scores = op.where(is_first, const(0.0, "float32"), const(-1e9, "float32"))
    pad = op.full(const(np.int32(search.padding)), (*shape, search.limit))
    return Beams(
        texts,
        op.broadcast_to(scores, shape),
        op.full(const(-np.inf, "float32"), shape),
        op.cast(pad, "int32"),
        op.zeros((search.batch,), "int64"),
        op.zeros((search.batch,), "bool"),
        op.zeros((search.rows,), "int32"),
    )


@dataclass(frozen=True, slots=True)
class Scorer:
    """A scorer of finished sentences: the length penalty, a float32 scalar, and whether the search
    stops early, as soon as enough sentences have finished.
    """

    search: Search
    length_penalty: Expr
    stops_early: bool

    def advance(self, beams: Beams, scores: Expr, length: Expr) -> tuple[Beams, Expr]:
        """Return the beams with a token more, and the row that each continues, int64 [rows].

        Args:
            beams: the state.
            scores: float32 [rows, vocabulary], the beams' scores included.
            length: of the sequences, an int64 scalar.
        """
        search = self.search
        batch, count, vocabulary = search.batch, search.beams, as_dim(search.vocabulary)
        flat = op.reshape(scores, (batch, tidy(count * vocabulary)), allowzero=True)
        # 2 * beams candidates: at most one of each beam ends, so at least `beams` of them continue.
        candidate_count = tidy(count * 2)
        candidates = op.topk(
            flat, k=known(candidate_count) or candidate_count, axis=1, dtype="int64"
        )
        size = const(np.int64(search.vocabulary))
        best, candidate_ids = TupleGetItem(candidates, 0), TupleGetItem(candidates, 1)
        tokens = op.cast(op.floor_mod(candidate_ids, size), "int32")
        first_row = op.multiply(search.places(batch), search.node.scope.scalar(count))
        rows = op.add(op.floor_divide(candidate_ids, size), op.expand_dims(first_row, axis=1))
        is_end = op.equal(tokens, const(np.int32(search.end)))
        after = self._ended(beams, best, rows, is_end, length)
        order = self._continued(is_end)
        chosen = [op.gather(t, 1, order) for t in (best, tokens, rows)]
        is_done = op.expand_dims(beams.done, axis=1)
        nothing = (const(0.0, "float32"), const(np.int32(search.padding)), const(np.int64(0)))
        beam_scores, token, row = (
            op.where(is_done, n, c) for n, c in zip(nothing, chosen, strict=True)
        )
        token, row = (op.reshape(t, (search.rows,), allowzero=True) for t in (token, row))
        texts = search.with_token(op.take(beams.texts, row, axis=0), token, length)
        done = op.logical_or(beams.done, self._is_done(*after, best, length))
        return Beams(texts, beam_scores, *after, done, token), row

    def _continued(self, is_end: Expr) -> Expr:
        """Return the positions of the first candidates that continue, in order: int64 [batch,
        beams].
        """
        candidate_count = tidy(self.search.beams * 2)
        positions = op.expand_dims(self.search.places(candidate_count), axis=0)
        # Ended candidates are moved behind all others; a stable order of the rest is kept by their
        # positions.
        behind = op.where(
            is_end, self.search.node.scope.scalar(candidate_count), const(np.int64(0))
        )
        order = op.argsort(op.add(positions, behind), axis=1, dtype="int64")
        return op.take(order, self.search.places(self.search.beams), axis=1)

    def normalised(self, scores: Expr, length: Expr) -> Expr:
        """Return sums of log-probabilities divided by length ** penalty; the length is an int64
        scalar.
        """
        return op.divide(scores, op.power(op.cast(length, "float32"), self.length_penalty))

    def _ended(
        self, beams: Beams, best: Expr, rows: Expr, is_end: Expr, length: Expr
    ) -> tuple[Expr, Expr, Expr]:
        """Return `ended`, `sentences` and `count` updated with the candidates that end, among the
        first `beams`.
        """
        first = self.search.places(self.search.beams)
        best, rows, is_end = (op.take(t, first, axis=1) for t in (best, rows, is_end))
        ends = op.logical_and(is_end, op.logical_not(op.expand_dims(beams.done, axis=1)))
        scores = op.where(ends, self.normalised(best, length), const(-np.inf, "float32"))
        return self.with_sentences(beams, scores, op.take(beams.texts, rows, axis=0), ends)

    def with_sentences(
        self, beams: Beams, scores: Expr, sentences: Expr, are_there: Expr
    ) -> tuple[Expr, Expr, Expr]:
        """Return the best of the finished sentences and further ones, [batch, beams] each: scores,
        tokens and count. Of equal scores the older sentences stay.
        """
        search = self.search
        # The older sentences come first, and top-k prefers the lower index among equal scores.
        both = op.concatenate((beams.ended, scores), axis=1)
        every = op.concatenate((beams.sentences, sentences), axis=1)
        best = op.topk(both, k=known(search.beams) or search.beams, axis=1, dtype="int64")
        doubled_beams = search.node.scope.scalar(tidy(search.beams * 2))
        flat = op.reshape(every, (tidy(search.rows * 2), search.limit), allowzero=True)
        first = op.expand_dims(op.multiply(search.places(search.batch), doubled_beams), axis=1)
        at = op.add(TupleGetItem(best, 1), first)
        new = op.sum(op.cast(are_there, "int64"), axis=[1])
        count = op.minimum(op.add(beams.count, new), search.node.scope.scalar(search.beams))
        return TupleGetItem(best, 0), op.take(flat, at, axis=0), count

    def _is_done(self, ended: Expr, sentences: Expr, count: Expr, best: Expr, length: Expr) -> Expr:
        """Return whether a prompt has all of its sentences, and no candidate can beat the worst of
        them: bool [batch].
        """
        search = self.search
        beams = search.node.scope.scalar(search.beams)
        is_full = op.greater_equal(count, beams)
        if self.stops_early:
            return is_full
        # ONNX Runtime looks for the best candidate of text i from i * beams on, among the
        # candidates of all texts, of which each has twice as many.
        candidate_count = tidy(search.beams * 2)
        first = op.expand_dims(op.multiply(search.places(search.batch), beams), axis=1)
        at = op.add(first, op.expand_dims(search.places(candidate_count), axis=0))
        flat = op.reshape(best, (tidy(search.batch * candidate_count),), allowzero=True)
        highest = self.normalised(op.max(op.take(flat, at, axis=0), axis=[1]), length)
        worst = op.min(ended, axis=[1])
        return op.logical_and(is_full, op.greater_equal(worst, highest))
