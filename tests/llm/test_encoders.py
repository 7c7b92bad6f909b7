"""Encoders: hidden states and scores of transformers, alone and padded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import randomize
from tiny_models import Memory

from ekiden import llm
from ekiden.llm.checkpoint_files import open_checkpoint
from ekiden.llm.encoder import read_encoder_config
from ekiden.llm.encoder_models import batches_of_lengths
from ekiden.runtime.errors import ImportModelError, InputError, UnsupportedError

pytest.importorskip("transformers", reason="states are compared with those of transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of that package

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 80,
}  # fmt: skip
TEXTS = [[5, 6, 7], [4] * 70, [8, 9]]
RELATIVE_ERROR = 1e-5
"""Of the largest number, in float32."""


def save_encoder(kind: str, folder: Path, **changes: object) -> Any:  # noqa: ANN401  # of transformers
    """Write a small encoder with random weights to a folder, and return it."""
    import transformers

    model_class = getattr(transformers, kind)
    sizes = {**SIZES, "pad_token_id": 0 if kind.startswith("Bert") else 1, **changes}
    model = randomize(model_class(model_class.config_class(**sizes)))
    model.save_pretrained(folder)
    return model


def states_of(model: Any, tokens: list[int]) -> np.ndarray:  # noqa: ANN401  # of transformers
    import torch

    with torch.no_grad():
        output = model.base_model(torch.tensor([tokens]))
    return np.asarray(output.last_hidden_state[0].numpy())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("BertModel", {}),
        ("BertForMaskedLM", {"hidden_act": "relu"}),
        ("RobertaModel", {"layer_norm_eps": 1e-5, "type_vocab_size": 1}),
        ("XLMRobertaModel", {"type_vocab_size": 1}),
        ("XLMRobertaForMaskedLM", {"type_vocab_size": 1}),
    ],
)
def test_states_of_an_encoder_are_those_of_transformers(
    kind: str, changes: dict[str, object], tmp_path: Path
) -> None:
    model = save_encoder(kind, tmp_path, **changes)
    embedder = llm.load_embedding_model(tmp_path)
    expected = np.array([states_of(model, text).mean(0) for text in TEXTS])
    actual = embedder.embed(TEXTS)
    assert np.abs(actual - expected).max() <= RELATIVE_ERROR * np.abs(expected).max()
    embedder.pooling = llm.Pooling("first", is_normalized=True)
    first = np.array([states_of(model, text)[0] for text in TEXTS])
    first /= np.linalg.norm(first, axis=-1, keepdims=True)
    np.testing.assert_allclose(embedder.embed(TEXTS), first, atol=RELATIVE_ERROR)
    # A text alone is as beside others that are longer.
    np.testing.assert_allclose(embedder.embed(TEXTS[:1]), first[:1], atol=RELATIVE_ERROR)
    assert embedder.embed([]).shape == (0, 32)
    assert embedder.context == (80 if kind.startswith("Bert") else 78)


def pair_tokenizer(is_roberta: bool) -> Any:  # noqa: ANN401  # of the package tokenizers
    """A tokenizer of words that are numbers, which joins pairs as the family does."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {str(n): n for n in range(97)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="3"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    pair = "0 $A 2 2 $B 2" if is_roberta else "0 $A 2 $B:1 2:1"
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="0 $A 2", pair=pair, special_tokens=[("0", 0), ("2", 2)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("BertForSequenceClassification", {}),
        ("RobertaForSequenceClassification", {"type_vocab_size": 1}),
        ("XLMRobertaForSequenceClassification", {"type_vocab_size": 1}),
    ],
)
def test_scores_of_a_reranker_are_those_of_transformers(
    kind: str, changes: dict[str, object], tmp_path: Path
) -> None:
    import torch

    model = save_encoder(kind, tmp_path, num_labels=1, **changes)
    tokenizer = pair_tokenizer(kind != "BertForSequenceClassification")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    query, documents = "10 11", ["12", "13 14 " * 20, "15 16"]
    logits = []
    for document in documents:
        encoding = tokenizer.encode(query, document)
        types = encoding.type_ids if kind.startswith("Bert") else [0] * len(encoding.ids)
        with torch.no_grad():
            output = model(torch.tensor([encoding.ids]), token_type_ids=torch.tensor([types]))
        logits.append(float(output.logits[0, 0]))
    reranker = llm.load_reranker(tmp_path)
    expected = 1 / (1 + np.exp(-np.array(logits)))
    np.testing.assert_allclose(reranker.score(query, documents), expected, atol=RELATIVE_ERROR)
    config = json.loads((tmp_path / "config.json").read_text())
    name = "torch.nn.modules.linear.Identity"
    for change in (
        {"sbert_ce_default_activation_function": name},
        {"sentence_transformers": {"activation_fn": name}},
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        scores = llm.load_reranker(tmp_path).score(query, documents)
        bound = RELATIVE_ERROR * np.abs(logits).max()
        np.testing.assert_allclose(scores, logits, atol=bound)


def test_unsupported_encoder_features_are_named(tmp_path: Path) -> None:
    save_encoder("BertForSequenceClassification", tmp_path, num_labels=3)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(UnsupportedError, match="one score expected, got Bert.* with 3 labels"):
        llm.load_reranker(checkpoint)
    embedder = llm.load_embedding_model(checkpoint)  # the states, whatever the head
    for texts, message in (
        ([[]], "from 1 to 80 tokens of a text expected, got 0"),
        ([[1] * 81], "from 1 to 80 tokens of a text expected, got 81"),
        ([[97]], "tokens from 0 to 96 expected"),
        ("text", "a list of texts expected"),
    ):
        with pytest.raises(InputError, match=message):
            embedder.embed(texts)  # type: ignore[arg-type]  # wrong on purpose
    config = dict(checkpoint.config)
    with pytest.raises(UnsupportedError, match="'position_embedding_type': only 'absolute'"):
        read_encoder_config({**config, "position_embedding_type": "relative_key"})
    with pytest.raises(UnsupportedError, match="no encoder of the architecture"):
        read_encoder_config({**config, "architectures": ["MPNetModel"]})
    tensors = {name: checkpoint[name] for name in checkpoint}
    tensors["bert.encoder.layer.0.attention.scale"] = tensors["classifier.bias"]
    with pytest.raises(ImportModelError, match="has no place for 'bert.encoder.layer.0.attention"):
        llm.load_embedding_model(Memory(config, tensors))
    with pytest.raises(InputError, match="a tokenizer is needed"):
        llm.load_reranker(Memory({**config, "id2label": {"0": "x"}}, tensors))


def test_batches_hold_texts_of_like_lengths() -> None:
    assert list(batches_of_lengths([3, 9, 1, 8], 18)) == [[1, 3], [0, 2]]
    assert list(batches_of_lengths([50], 18)) == [[0]]
    assert list(batches_of_lengths([], 18)) == []
