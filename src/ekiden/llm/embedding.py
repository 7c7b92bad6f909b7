"""Text embedding models: decoders and encoders whose hidden states, pooled and normalised, stand
for texts.

What is pooled is read from the files that sentence-transformers writes beside a checkpoint:
`modules.json` lists a Pooling, whose `config.json` names the mode, and maybe a Normalize. Without
these the hidden states of all tokens are averaged, as that package does.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekiden
from ekiden import runtime
from ekiden.llm.checkpoint import Checkpoint, check_files
from ekiden.llm.checkpoint_files import find_tokenizer, open_checkpoint
from ekiden.llm.decoder import FORWARD_ENTRY, CacheLayout, cache_shape, decoder_module
from ekiden.llm.decoder_config import DecoderConfig, read_config
from ekiden.llm.encoder import EncoderConfig, is_encoder, read_encoder_config
from ekiden.llm.encoder_models import (
    EncoderProgram,
    TokenPair,
    batches_of_lengths,
    checked_context,
)
from ekiden.llm.engine import to_token_ids
from ekiden.llm.tokenizer import Tokenizer
from ekiden.runtime.errors import InputError, LoadError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.vm import VirtualMachine

__all__ = ["EmbeddingModel", "Pooling", "load_embedding_model", "read_pooling"]

Floats = NDArray[np.float32]
DEFAULT_CONTEXT_TOKENS = 8192
"""Tokens of a text, where nobody says and the model can have more."""
MAX_BATCH_TOKENS = 2048
"""Of the texts of one call of the program: its products are at their full rate, its cache small."""
PAGE_TOKENS = 64
MODULES_FILE = "modules.json"
POOLING_MODES: Mapping[str, tuple[str, Callable[[Floats], Floats]]] = {
    "pooling_mode_lasttoken": ("last", lambda states: states[-1]),
    "pooling_mode_mean_tokens": ("mean", lambda states: states.mean(0, dtype=np.float32)),
    "pooling_mode_cls_token": ("first", lambda states: states[0]),
    "pooling_mode_max_tokens": ("max", lambda states: states.max(0)),
}
"""Keys of a Pooling's configuration -> its name, and (states [tokens, hidden]) -> [hidden]."""
POOLING_FUNCTIONS = dict(POOLING_MODES.values())


@dataclass(frozen=True, slots=True)
class Pooling:
    """Pooling of hidden states to an embedding: "last", "mean", "first" or "max", and whether its
    length is 1.
    """

    mode: str = "mean"
    is_normalized: bool = False

    def apply(self, states: Floats) -> Floats:
        """Return the embedding [hidden] of hidden states [tokens, hidden]."""
        pooled = POOLING_FUNCTIONS[self.mode](states)
        if not self.is_normalized:
            return pooled
        # torch.nn.functional.normalize has this floor, too.
        return pooled / max(np.linalg.norm(pooled), np.float32(1e-12))


def read_pooling(folder: Path) -> Pooling:
    """Return the pooling that sentence-transformers wrote to a folder, its default without files.
    Raises LoadError for broken files, and UnsupportedError for other modules or modes.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        return Pooling()
    modules = _read_json(path)
    mode, is_normalized = Pooling().mode, False
    for module in modules if isinstance(modules, list) else [modules]:
        entry = module if isinstance(module, dict) else {}
        kind = str(entry.get("type")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            mode = _read_mode(folder / Path(str(entry.get("path"))).name / "config.json")
        elif kind == "Normalize":
            is_normalized = True
        elif kind != "Transformer":
            raise UnsupportedError(f"{path}: modules Pooling and Normalize are read, not {kind!r}")
    return Pooling(mode, is_normalized)


def _read_mode(path: Path) -> str:
    """Return the mode of a Pooling's configuration."""
    settings = _read_json(path)
    if not isinstance(settings, dict):
        raise LoadError(f"{path}: an object expected, got {type(settings).__name__}")
    names = [k for k, on in settings.items() if k.startswith("pooling_mode_") and on is True]
    if "pooling_mode" in settings:
        names = [f"pooling_mode_{settings['pooling_mode']}"]
    by_mode = {**POOLING_MODES, "pooling_mode_mean": POOLING_MODES["pooling_mode_mean_tokens"],
               "pooling_mode_cls": POOLING_MODES["pooling_mode_cls_token"],
               "pooling_mode_max": POOLING_MODES["pooling_mode_max_tokens"]}  # fmt: skip
    if len(names) != 1 or names[0] not in by_mode:
        raise UnsupportedError(
            f"{path}: one of {', '.join(POOLING_MODES)} expected, got {', '.join(names) or 'none'}"
        )
    return by_mode[names[0]][0]


def _read_json(path: Path) -> object:
    """Return the contents of a file of JSON. Raises LoadError."""
    try:
        value: object = json.loads(path.read_bytes())
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: no JSON: {error}") from error
    return value


def load_embedding_model(
    checkpoint: str | os.PathLike[str] | Checkpoint,
    *,
    context: int | None = None,
    tokenizer: object = None,
    pooling: Pooling | None = None,
    **options: Any,  # noqa: ANN401  # of another function
) -> EmbeddingModel:
    """Compile a decoder or an encoder for embeddings, such as Qwen3-Embedding or BGE.

    Args:
        checkpoint: A folder of transformers or sentence-transformers, a GGUF file, or any
            `Checkpoint`.
        context: The most tokens of a text, else what the model can, up to 8,192.
        tokenizer: One of the package tokenizers, or its file; a folder and a GGUF file have theirs.
        pooling: How hidden states become an embedding, else what the folder says.
        **options: Those of `ekiden.compile`.

    Returns:
        The model.

    Raises:
        UnsupportedError: The architecture or the pooling is none that there is.
        ImportModelError: A tensor is missing.
        LoadError: A file is broken, or was changed meanwhile.
        InputError: The model has no such context.
    """
    if isinstance(checkpoint, (str, os.PathLike)):
        opened = open_checkpoint(checkpoint)
        tokenizer = find_tokenizer(checkpoint, opened) if tokenizer is None else tokenizer
        pooling = read_pooling(Path(checkpoint)) if pooling is None else pooling
    else:
        opened = checkpoint
    config = dict(opened.config)
    if is_encoder(config):
        encoder = replace(read_encoder_config(config), head=())  # of a classifier, the states
        context = checked_context(context, encoder.max_positions)
        program = EncoderProgram.compile(opened, encoder, **options)
        return EncoderEmbeddingModel(
            program, context, Tokenizer.of(tokenizer), pooling or Pooling()
        )
    max_positions = read_config(config).max_positions
    if context is None:
        context = min(max_positions, DEFAULT_CONTEXT_TOKENS)
    context = checked_context(context, max_positions)
    decoder = read_config(config, context)
    if decoder.has_states:
        raise UnsupportedError(f"embed: no embeddings are made by a {decoder.architecture}")
    layout = CacheLayout(PAGE_TOKENS)
    module = decoder_module(opened, decoder, layout, has_head=False)
    exe = ekiden.compile(module, **options)
    check_files(opened)
    return EmbeddingModel(
        exe, decoder, layout, context, Tokenizer.of(tokenizer), pooling or Pooling()
    )


class EmbeddingModel:
    """Compiled decoder that returns embeddings. Any threads may use it; calls are serialized."""

    def __init__(
        self,
        exe: ekiden.Executable,
        config: DecoderConfig | EncoderConfig,
        layout: CacheLayout,
        context: int,
        tokenizer: Tokenizer | None,
        pooling: Pooling,
    ) -> None:
        self.exe, self.config, self.layout, self.context = exe, config, layout, context
        self.tokenizer, self.pooling = tokenizer, pooling
        self._machine, self._calls = VirtualMachine(exe), threading.Lock()

    def encode(self, text: str | Sequence[int]) -> list[int]:
        """Return the tokens of a text. Raises InputError for a text without a tokenizer, an empty
        one, or one that is too long.
        """
        if not isinstance(text, str):
            tokens = to_token_ids(text)
        elif self.tokenizer is None:
            raise InputError("embed: tokens expected, as the model has no tokenizer")
        else:
            tokens = self.tokenizer.encode(text)
        if not 1 <= len(tokens) <= self.context:
            raise InputError(
                f"embed: from 1 to {self.context} tokens of a text expected, got {len(tokens)}"
            )
        if not all(0 <= token < self.config.vocabulary for token in tokens):
            raise InputError(f"embed: tokens from 0 to {self.config.vocabulary - 1} expected")
        return tokens

    def embed(self, texts: Sequence[str | Sequence[int]]) -> Floats:
        """Return the embeddings [texts, hidden] of strings, or of their tokens. Raises
        InputError.
        """
        if isinstance(texts, str):
            raise InputError("embed: a list of texts expected, got one text")
        tokens = [self.encode(text) for text in texts]
        rows = [row for batch in _batches(tokens) for row in self._embed_batch(batch)]
        return np.array(rows, np.float32).reshape(len(rows), self.config.hidden)

    def _embed_batch(self, texts: Sequence[Sequence[int]]) -> Iterator[Floats]:
        """Yield the embeddings of strings, which go through the decoder at once."""
        lengths = [len(text) for text in texts]
        pages = [-(-length // self.layout.page) for length in lengths]
        tables = np.zeros((len(texts), max(pages)), np.int32)
        first = 0
        for row, count in zip(tables, pages, strict=True):
            row[:count] = np.arange(first, first + count)
            first += count
        assert isinstance(self.config, DecoderConfig)
        shape = cache_shape(self.config, self.layout, self.layout.num_blocks(first))
        cache = runtime.Ref(runtime.empty([int(str(d)) for d in shape], self.layout.dtype))
        positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        sequences = np.repeat(np.arange(len(texts), dtype=np.int32), lengths)
        ids = np.concatenate([np.array(text, np.int32) for text in texts])
        picks = np.arange(len(ids), dtype=np.int32)
        totals = [np.array(lengths, np.int32)] if self.config.switch_tokens else []
        with self._calls:
            result = self._machine.invoke(
                FORWARD_ENTRY, cache, ids, sequences, positions, tables, *totals, picks
            )
        assert isinstance(result, runtime.Tensor)
        states = np.asarray(result.numpy(), np.float32)
        ends = np.cumsum(lengths)
        for end, length in zip(ends, lengths, strict=True):
            yield self.pooling.apply(states[end - length : end])


class EncoderEmbeddingModel(EmbeddingModel):
    """Compiled encoder that returns embeddings. Any threads may use it; calls are serialized."""

    def __init__(
        self, program: EncoderProgram, context: int, tokenizer: Tokenizer | None, pooling: Pooling
    ) -> None:
        # An encoder has no cache: the layout says nothing.
        super().__init__(program.exe, program.config, CacheLayout(), context, tokenizer, pooling)
        self.program = program

    def embed(self, texts: Sequence[str | Sequence[int]]) -> Floats:
        """Return the embeddings [texts, hidden] of strings, or of their tokens. Raises
        InputError.
        """
        if isinstance(texts, str):
            raise InputError("embed: a list of texts expected, got one text")
        tokens = [self.encode(text) for text in texts]
        rows = np.empty((len(tokens), self.config.hidden), np.float32)
        for batch in batches_of_lengths([len(text) for text in tokens], MAX_BATCH_TOKENS):
            pairs = [TokenPair(tokens[n], [0] * len(tokens[n])) for n in batch]
            for number, states in zip(batch, self.program.run(pairs), strict=True):
                rows[number] = self.pooling.apply(states[: len(tokens[number])])
        return rows


def _batches(texts: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Yield texts in order in batches of at most MAX_BATCH_TOKENS tokens, at least one text
    each.
    """
    batch: list[list[int]] = []
    for text in texts:
        if batch and sum(map(len, batch)) + len(text) > MAX_BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch
