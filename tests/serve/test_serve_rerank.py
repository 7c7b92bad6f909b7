"""Scores of documents over HTTP, and checkpoints of encoders in the folder of models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Running, serving
from soak_texts import HERE  # which has put the folder of small models on the path
from toy_text import Echo, Lengths

from ekiden import llm
from ekiden.runtime.errors import InputError
from ekiden.serve import RerankScores
from ekiden.serve.config import TextConfig
from ekiden.serve.encoders import CrossEncoderModel, EmbeddingTextModel, open_text_model

assert HERE.is_dir()


class Overlap:
    """Reranker by the number of words that a document shares with the query."""

    def rerank(self, query: str, documents: Sequence[str]) -> RerankScores:
        if query == "refuse":
            raise InputError("too long a query")
        words = set(query.split())
        scores = [len(words & set(document.split())) for document in documents]
        return RerankScores(np.array(scores), sum(len(d.split()) for d in documents))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    texts: dict[str, Any] = {"r": Overlap(), "e": Lengths(), "m": Echo()}
    with serving(tmp_path_factory.mktemp("none"), texts) as running:
        yield running


BODY: dict[str, Any] = {"model": "r", "query": "a b", "documents": ["c", "a b", {"text": "a"}]}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_best_documents_come_first(server: Running, path: str) -> None:
    answer = server.ask("POST", path, BODY).json
    assert answer["results"] == [
        {"index": 1, "relevance_score": 2.0, "document": {"text": "a b"}},
        {"index": 2, "relevance_score": 1.0, "document": {"text": "a"}},
        {"index": 0, "relevance_score": 0.0, "document": {"text": "c"}},
    ]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert answer["model"] == "r" and answer["id"].startswith("rerank-")


def test_top_n_documents_without_texts(server: Running) -> None:
    body = {**BODY, "top_n": 1, "return_documents": False, "user": "u"}
    results = server.ask("POST", "/v1/rerank", body).json["results"]
    assert results == [{"index": 1, "relevance_score": 2.0}]
    assert len(server.ask("POST", "/v1/rerank", {**BODY, "top_n": 9}).json["results"]) == 3


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"documents": []}, "'documents': from 1 to 1024 texts expected"),
        ({"documents": [3]}, "'documents': texts, or objects with 'text' alone, expected"),
        ({"documents": [{"image": "x"}]}, "'documents': texts, or objects with 'text' alone"),
        ({"documents": "a"}, "'documents': a list expected"),
        ({"query": ""}, "'query': a text expected"),
        ({"query": "refuse"}, "too long a query"),
        ({"top_n": 0}, "'top_n': a whole number from 1"),
        ({"max_tokens_per_doc": 9}, "'max_tokens_per_doc' is not supported"),
        ({"model": "e"}, "'model': 'e' makes no scores of documents"),
        ({"model": "m"}, "'model': 'm' makes no scores of documents"),
    ],
)
def test_request_that_is_refused_is_named(
    server: Running, argument: dict[str, object], message: str
) -> None:
    answer = server.ask("POST", "/v1/rerank", {**BODY, **argument})
    assert answer.status == 400, answer.data
    assert answer.json["error"]["message"].startswith(message)


def test_reranker_answers_no_conversations(server: Running) -> None:
    body = {"model": "r", "messages": [{"role": "user", "content": "x"}]}
    answer = server.ask("POST", "/v1/chat/completions", body)
    assert answer.json["error"]["message"] == (
        "model 'r' makes scores of documents alone: ask for /v1/rerank"
    )
    answer = server.ask("POST", "/v1/embeddings", {"model": "r", "input": "x"})
    assert answer.json["error"]["message"] == "'model': 'r' makes no embeddings"


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_checkpoints_of_encoders_are_served(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from test_encoders import pair_tokenizer, save_encoder

    for name, kind, labels in (
        ("cross", "BertForSequenceClassification", 1), ("plain", "BertModel", 2),
    ):  # fmt: skip
        save_encoder(kind, tmp_path / "checkpoints" / name, num_labels=labels)
        pair_tokenizer(False).save(str(tmp_path / "checkpoints" / name / "tokenizer.json"))
    folder = tmp_path / "models"
    folder.mkdir()
    cross = open_text_model(folder, TextConfig(checkpoint="../checkpoints/cross"))
    plain = open_text_model(folder, TextConfig(checkpoint="../checkpoints/plain", context=16))
    assert isinstance(cross, CrossEncoderModel) and isinstance(plain, EmbeddingTextModel)
    result = cross.rerank("10 11", ["12", "13 14"])
    expected = llm.load_reranker(tmp_path / "checkpoints" / "cross").score("10 11", ["12", "13 14"])
    np.testing.assert_array_equal(result.scores, expected)
    assert result.tokens == 6 + 7
    embeddings = plain.embed(["12", (5, 6)])
    assert embeddings.vectors.shape == (2, 32) and embeddings.tokens == 3 + 2
    # A classifier of several labels has states alone.
    config = tmp_path / "checkpoints" / "cross" / "config.json"
    settings = {**json.loads(config.read_text()), "id2label": {"0": "a", "1": "b"}}
    config.write_text(json.dumps(settings))
    other = open_text_model(folder, TextConfig(checkpoint="../checkpoints/cross"))
    assert isinstance(other, EmbeddingTextModel)
