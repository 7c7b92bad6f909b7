"""Adapters from embedding models and cross-encoders of `ekiden.llm` to the server's text-model
interfaces: decoders that answer, models of embeddings, cross-encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ekiden import llm
from ekiden.llm.checkpoint_files import open_checkpoint
from ekiden.llm.embedding import MODULES_FILE
from ekiden.llm.encoder import is_encoder, read_encoder_config
from ekiden.runtime.errors import LoadError
from ekiden.serve.config import TextConfig
from ekiden.serve.decoders import open_decoder
from ekiden.serve.text import AnyTextModel, Embeddings, RerankScores

__all__ = ["CrossEncoderModel", "EmbeddingTextModel", "open_text_model"]


class EmbeddingTextModel:
    """Embedding model of `ekiden.llm` as an `EmbeddingModel`."""

    def __init__(self, model: llm.EmbeddingModel) -> None:
        self._model = model

    def embed(self, texts: Sequence[str | tuple[int, ...]]) -> Embeddings:
        """Return a vector for each text; see `EmbeddingModel`."""
        tokens = [self._model.encode(text) for text in texts]
        return Embeddings(self._model.embed(tokens), sum(map(len, tokens)))


class CrossEncoderModel:
    """Cross-encoder of `ekiden.llm` as a `RerankModel`."""

    def __init__(self, model: llm.Reranker) -> None:
        self._model = model

    def rerank(self, query: str, documents: Sequence[str]) -> RerankScores:
        """Return the score of each document; see `RerankModel`."""
        pairs = [self._model.encode(query, document) for document in documents]
        scores = np.asarray(self._model.score_pairs(pairs))
        return RerankScores(scores, sum(len(pair.tokens) for pair in pairs))


def open_text_model(folder: Path, config: TextConfig) -> AnyTextModel:
    """Load a configured checkpoint, whose paths are relative to a folder: a cross-encoder with one
    score, an encoder or a model that sentence-transformers wrote for embeddings, else a decoder.
    Raises LoadError and what loading it raises.
    """
    path = folder / config.checkpoint
    settings = dict(open_checkpoint(path).config)
    is_encoding = is_encoder(settings)
    if not is_encoding and not (path / MODULES_FILE).is_file():
        return open_decoder(folder, config)
    if config.adapters:
        raise LoadError(f"text: '{path}': adapters are those of decoders that answer")
    context = config.context or None
    if is_encoding:
        encoder = read_encoder_config(settings)
        if encoder.head and encoder.labels == 1:
            return CrossEncoderModel(llm.load_reranker(path, context=context))
    return EmbeddingTextModel(llm.load_embedding_model(path, context=context))
