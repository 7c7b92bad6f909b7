"""Rerank endpoint: documents in, their scores for a query out, the best first.

The form is that of Jina and vLLM; what Cohere's clients read of an answer is in it too.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from ekiden.runtime.errors import RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.engine import ServingEngine
from ekiden.serve.openai_fields import read_fields
from ekiden.serve.text import RerankModel, RerankScores
from ekiden.serve.text_model_calls import call_text_model

__all__ = ["RerankRequest", "parse_rerank_request", "rerank"]

RERANK = "k"
MAX_DOCUMENTS = 1024
"""Of one request."""


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """Rerank request, a query and its documents."""

    model: str
    query: str
    documents: tuple[str, ...]
    top_n: int
    """How many of the best are answered."""
    returns_documents: bool = True


def parse_rerank_request(body: Mapping[str, Any]) -> RerankRequest:
    """Parse a rerank request. Raises RequestError for what is invalid or not honoured."""
    values = read_fields(RERANK, body)
    if not values.get("query"):
        raise RequestError("'query': a text expected")
    documents = values.get("documents", [])
    if not 0 < len(documents) <= MAX_DOCUMENTS:
        raise RequestError(f"'documents': from 1 to {MAX_DOCUMENTS} texts expected")
    texts = tuple(_document_text(document) for document in documents)
    return RerankRequest(
        values["model"],
        values["query"],
        texts,
        min(values.get("top_n", len(texts)), len(texts)),
        values.get("return_documents", True),
    )


def _document_text(document: object) -> str:
    """Return the text of a document: it is one, or an object with "text" alone. Raises
    RequestError.
    """
    text = document
    if isinstance(document, dict) and document.keys() == {"text"}:
        text = document["text"]
    if not isinstance(text, str):
        raise RequestError("'documents': texts, or objects with 'text' alone, expected")
    return text


async def rerank(engine: ServingEngine, request: RerankRequest) -> dict[str, object]:
    """Score the documents of a request, and return the response. Raises RequestError for a model
    that makes no scores, texts that it refuses, and where its time is over.
    """
    version = (await engine.repository.acquire(request.model)).get()
    text = version.program.text
    if not isinstance(text, RerankModel):
        raise RequestError(f"'model': '{request.model[:64]}' makes no scores of documents")
    return await call_text_model(
        engine, request.model, version,
        lambda: _format_response(request, text.rerank(request.query, request.documents)),
    )  # fmt: skip


def _format_response(request: RerankRequest, result: RerankScores) -> dict[str, object]:
    """Return the response with a model's scores."""
    scores = np.asarray(result.scores, np.float32)
    if scores.shape != (len(request.documents),):
        raise ValueError(f"{len(request.documents)} scores expected, got shape {scores.shape}")
    # Equal scores stay in the order of their documents.
    best = np.argsort(-scores, kind="stable")[: request.top_n]
    rows: list[dict[str, object]] = []
    for number in best.tolist():
        row: dict[str, object] = {"index": number, "relevance_score": float(scores[number])}
        if request.returns_documents:
            row["document"] = {"text": request.documents[number]}
        rows.append(row)
    return {
        "id": f"rerank-{secrets.token_hex(12)}",
        "object": "list",
        "model": request.model,
        "results": rows,
        "usage": {"prompt_tokens": result.tokens, "total_tokens": result.tokens},
    }
