"""Logit biases and penalties of a sequence, and log-probabilities of generated tokens.

Both concern texts that ask for them alone. A change is a triple (row, token, what is added): the
program adds them all at once before it chooses (`PREFILL`). Log-probabilities are those of the
model: of its logits before changes, temperature and grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.llm.engine import Stream

__all__ = ["TokenScore", "logit_biases", "score_token"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Log-probability of a generated token, with those of the top alternatives."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens in descending order, with their log-probabilities."""


def logit_biases(streams: Sequence[Stream]) -> tuple[NDArray[np.int32], Floats]:
    """Return the additive logit biases of sequences: (places int32 [2, m], rows above tokens, and
    what is added float32 [m]).
    """
    rows: list[int] = []
    tokens: list[int] = []
    changes: list[float] = []
    for row, stream in enumerate(streams):
        edits = _stream_biases(stream)
        rows += [row] * len(edits)
        tokens += edits.keys()
        changes += edits.values()
    return np.array((rows, tokens), np.int32).reshape(2, -1), np.array(changes, np.float32)


def _stream_biases(stream: Stream) -> dict[int, float]:
    """Return the logit biases and penalties of a sequence's next token."""
    sampling = stream.sampling
    edits = dict(sampling.logit_bias)
    # Tokens of the prompt are not counted, as in OpenAI's interface and vLLM.
    for token, count in stream.token_counts.items():
        penalty = sampling.presence_penalty + count * sampling.frequency_penalty
        edits[token] = edits.get(token, 0.0) - penalty
    return edits


def score_token(logits: Floats, token: int, alternatives: int) -> TokenScore:
    """Return the log-probability of a token by logits [vocabulary], with the top `alternatives`.
    Tokens of equal logits come in the order of their numbers.
    """
    # exp cannot overflow after the maximum is subtracted.
    greatest = float(logits.max())
    # The vocabulary is large, so float64 sums its terms.
    total = float(np.exp(logits - np.float32(greatest), dtype=np.float32).sum(dtype=np.float64))
    shift = greatest + float(np.log(total))
    top: tuple[tuple[int, float], ...] = ()
    if alternatives:
        count = min(alternatives, len(logits))
        # The selection takes linear time, so only the candidates are sorted.
        threshold = np.partition(logits, len(logits) - count)[len(logits) - count]
        candidates = np.flatnonzero(logits >= threshold)
        order = candidates[np.argsort(-logits[candidates], kind="stable")][:count]
        top = tuple((int(n), float(logits[n]) - shift) for n in order)
    return TokenScore(token, float(logits[token]) - shift, top)
