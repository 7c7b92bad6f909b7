"""OpenAI's embeddings endpoint: texts or tokens in, a vector for each out."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.engine import ServingEngine
from ekiden.serve.openai_fields import read_fields
from ekiden.serve.text import EmbeddingModel, Embeddings
from ekiden.serve.text_model_calls import call_text_model

__all__ = ["EmbeddingRequest", "embed", "parse_embedding_request"]

EMBEDDINGS = "e"
MAX_INPUTS = 2048
"""Of one request, as at OpenAI."""


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Embedding request for several inputs."""

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    """Each a text, or its tokens."""
    is_base64: bool = False
    """Whether a vector is the base64 of its float32, little-endian."""
    dimensions: int | None = None


def parse_embedding_request(body: Mapping[str, Any]) -> EmbeddingRequest:
    """Parse an embedding request. Raises RequestError for what is invalid or not honoured."""
    values = read_fields(EMBEDDINGS, body)
    return EmbeddingRequest(
        values["model"],
        _parse_inputs(values.get("input")),
        values.get("encoding_format") == "base64",
        values.get("dimensions"),
    )


def _parse_inputs(value: object) -> tuple[str | tuple[int, ...], ...]:
    """Parse the inputs, texts or token lists. Raises RequestError."""
    entries = value if isinstance(value, list) else [value]
    # A list of integers is the tokens of one input, not several inputs.
    if entries and all(type(token) is int for token in entries):
        entries = [entries]
    inputs = tuple(tuple(entry) if isinstance(entry, list) else entry for entry in entries)
    if not 0 < len(inputs) <= MAX_INPUTS:
        raise RequestError(f"'input': from 1 to {MAX_INPUTS} texts expected")
    for entry in inputs:
        is_tokens = isinstance(entry, tuple) and all(type(token) is int for token in entry)
        if not (isinstance(entry, str) or is_tokens) or not entry:
            raise RequestError("'input': a text, or a list of texts or tokens, expected")
    return inputs  # type: ignore[return-value]


async def embed(engine: ServingEngine, request: EmbeddingRequest) -> dict[str, object]:
    """Compute the embeddings of a request, and return the response. Raises RequestError for a model
    that makes no embeddings, inputs that it refuses, and where its time is over.
    """
    version = (await engine.repository.acquire(request.model)).get()
    text = version.program.text
    if not isinstance(text, EmbeddingModel):
        raise RequestError(f"'model': '{request.model[:64]}' makes no embeddings")
    return await call_text_model(
        engine,
        request.model,
        version,
        lambda: _format_response(request, text.embed(request.inputs)),
    )


def _format_response(request: EmbeddingRequest, made: Embeddings) -> dict[str, object]:
    """Return the response with a model's embedding vectors. Raises RequestError for a wanted length
    that they do not have.
    """
    vectors = np.ascontiguousarray(made.vectors, "<f4")
    if vectors.ndim != 2 or len(vectors) != len(request.inputs):
        raise ValueError(f"{len(request.inputs)} vectors expected, got shape {vectors.shape}")
    if request.dimensions not in (None, vectors.shape[1]):
        raise RequestError(f"'dimensions': vectors of this model have {vectors.shape[1]} numbers")
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": entry}
            for index, entry in enumerate(_encode_vectors(vectors, request.is_base64))
        ],
        "model": request.model,
        "usage": {"prompt_tokens": made.tokens, "total_tokens": made.tokens},
    }


def _encode_vectors(vectors: Any, is_base64: bool) -> Sequence[object]:  # noqa: ANN401  # float32 [n, d]
    if is_base64:
        return [base64.b64encode(row.tobytes()).decode() for row in vectors]
    rows: list[object] = vectors.tolist()
    return rows
