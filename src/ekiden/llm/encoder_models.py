"""Compiled encoders and cross-encoders: embeddings of texts, and cross-encoders that score pairs of
texts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekiden
from ekiden import runtime
from ekiden.llm.checkpoint import Checkpoint, check_files
from ekiden.llm.checkpoint_files import find_tokenizer, open_checkpoint
from ekiden.llm.encoder import EncoderConfig, encoder_function, read_encoder_config
from ekiden.llm.tokenizer import Tokenizer
from ekiden.runtime.errors import InputError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.vm import VirtualMachine

__all__ = ["EncoderProgram", "Reranker", "TokenPair", "batches_of_lengths", "load_reranker"]

Floats = NDArray[np.float32]
MAX_BATCH_TOKENS = 4096
"""Of the padded texts of one call of the program."""
ACTIVATION_KEYS = ("sbert_ce_default_activation_function",)
SETTINGS_KEY, SETTINGS_ACTIVATION_KEYS = "sentence_transformers", ("activation_fn",)
"""Where sentence-transformers writes what follows the logits of a cross-encoder."""
ACTIVATIONS = ("Sigmoid", "Identity")


@dataclass(frozen=True, slots=True)
class TokenPair:
    """Tokens of a text or text pair, with the segment (0 or 1) of each token."""

    tokens: Sequence[int]
    parts: Sequence[int]


def batches_of_lengths(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of text indices, longest text first, of at most `max_tokens` tokens including
    padding, at least one text each.
    """
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


class EncoderProgram:
    """Compiled encoder. Any threads may use it; calls are serialized."""

    def __init__(self, exe: ekiden.Executable, config: EncoderConfig) -> None:
        self.exe, self.config = exe, config
        self._machine, self._calls = VirtualMachine(exe), threading.Lock()

    @staticmethod
    def compile(checkpoint: Checkpoint, config: EncoderConfig, **options: Any) -> EncoderProgram:  # noqa: ANN401
        """Compile the encoder of a checkpoint. Raises ImportModelError, LoadError for a file that
        was changed meanwhile, and what `ekiden.compile` raises.
        """
        exe = ekiden.compile(encoder_function(checkpoint, config), **options)
        check_files(checkpoint)
        return EncoderProgram(exe, config)

    def run(self, pairs: Sequence[TokenPair]) -> Floats:
        """Return hidden states [texts, max tokens, hidden], or logits [texts, labels]."""
        lengths = np.array([len(pair.tokens) for pair in pairs], np.int32)
        ids = np.zeros((len(pairs), lengths.max()), np.int32)
        segment_ids = np.zeros_like(ids)
        for row, kinds, pair in zip(ids, segment_ids, pairs, strict=True):
            row[: len(pair.tokens)] = pair.tokens
            if self.config.types > 1:
                kinds[: len(pair.tokens)] = pair.parts
        positions = np.arange(ids.shape[1], dtype=np.int32)
        with self._calls:
            result = self._machine.invoke("main", ids, lengths, segment_ids, positions)
        assert isinstance(result, runtime.Tensor)
        return np.asarray(result.numpy(), np.float32)

    def check_tokens(self, what: str, tokens: Sequence[int], context: int) -> None:
        """Raise InputError for an empty or too long token sequence, or a token outside the
        vocabulary.
        """
        if not 1 <= len(tokens) <= context:
            raise InputError(
                f"{what}: from 1 to {context} tokens of a text expected, got {len(tokens)}"
            )
        if not all(0 <= token < self.config.vocabulary for token in tokens):
            raise InputError(f"{what}: tokens from 0 to {self.config.vocabulary - 1} expected")


class Reranker:
    """Cross-encoder: scores of documents for a query."""

    def __init__(
        self, program: EncoderProgram, tokenizer: Tokenizer, context: int, is_sigmoid: bool
    ) -> None:
        self.program, self.tokenizer = program, tokenizer
        self.context, self.is_sigmoid = context, is_sigmoid

    def encode(self, query: str, document: str) -> TokenPair:
        """Return the tokens of a query with a document. Raises InputError if they are too many."""
        pair = self.tokenizer.encode_pair(query, document)
        self.program.check_tokens("rerank", pair[0], self.context)
        return TokenPair(*pair)

    def score(self, query: str, documents: Sequence[str]) -> Floats:
        """Return the score of each document for a query, float32 [documents]: what
        sentence-transformers' CrossEncoder predicts. Raises InputError.
        """
        if isinstance(documents, str):
            raise InputError("rerank: a list of documents expected, got one text")
        return self.score_pairs([self.encode(query, document) for document in documents])

    def score_pairs(self, pairs: Sequence[TokenPair]) -> Floats:
        """Return the score of each pair, float32 [pairs]."""
        scores = np.empty(len(pairs), np.float32)
        for batch in batches_of_lengths([len(pair.tokens) for pair in pairs], MAX_BATCH_TOKENS):
            scores[batch] = self.program.run([pairs[number] for number in batch])[:, 0]
        if self.is_sigmoid:
            with np.errstate(over="ignore"):  # exp of a large number is infinite, the share 0
                scores = np.float32(1) / (np.float32(1) + np.exp(-scores))
        return scores


def load_reranker(
    checkpoint: str | os.PathLike[str] | Checkpoint,
    *,
    context: int | None = None,
    tokenizer: object = None,
    **options: Any,  # noqa: ANN401  # of another function
) -> Reranker:
    """Compile a cross-encoder with one score, such as bge-reranker.

    Args:
        checkpoint: A folder of transformers or sentence-transformers, or any `Checkpoint`.
        context: The most tokens of a pair, else what the model can.
        tokenizer: One of the package tokenizers, or its file; a folder has its own.
        **options: Those of `ekiden.compile`.

    Returns:
        The model.

    Raises:
        UnsupportedError: The architecture is no cross-encoder of the table, or has several scores.
        ImportModelError: A tensor is missing.
        LoadError: A file is broken, or was changed meanwhile.
        InputError: The model has no such context, or no tokenizer.
    """
    if isinstance(checkpoint, (str, os.PathLike)):
        opened = open_checkpoint(checkpoint)
        tokenizer = find_tokenizer(checkpoint, opened) if tokenizer is None else tokenizer
    else:
        opened = checkpoint
    config = read_encoder_config(dict(opened.config))
    if not config.head or config.labels != 1:
        raise UnsupportedError(
            f"config: a cross-encoder with one score expected, got {config.architecture} with"
            f" {config.labels if config.head else 'no'} labels"
        )
    is_sigmoid = _has_sigmoid(opened.config)
    own_tokenizer = Tokenizer.of(tokenizer)
    if own_tokenizer is None:
        raise InputError("rerank: a tokenizer is needed: a tokenizer.json beside the model")
    context = checked_context(context, config.max_positions)
    program = EncoderProgram.compile(opened, config, **options)
    return Reranker(program, own_tokenizer, context, is_sigmoid)


def checked_context(context: int | None, max_positions: int) -> int:
    """Return the maximum number of tokens of a text, after validation. Raises InputError for more
    than a model can.
    """
    context = max_positions if context is None else context
    if type(context) is not int or not 1 <= context <= max_positions:
        raise InputError(
            f"load: 'context' must be from 1 to {max_positions} tokens, got {context!r}"
        )
    return context


def _has_sigmoid(config: Mapping[str, Any]) -> bool:
    """Return whether a sigmoid follows the logits, by default true. Raises UnsupportedError for
    another function.
    """
    settings = config.get(SETTINGS_KEY)
    names = [config.get(key) for key in ACTIVATION_KEYS]
    if isinstance(settings, Mapping):
        names = [settings.get(key) for key in SETTINGS_ACTIVATION_KEYS] + names
    name = next((str(name).rpartition(".")[2] for name in names if name), ACTIVATIONS[0])
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"config: a cross-encoder's scores are of {' or '.join(ACTIVATIONS)}, not {name!r}"
        )
    return name == ACTIVATIONS[0]
