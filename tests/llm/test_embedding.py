"""Embedding models: hidden states of transformers, pooled as configured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families import random_model

from ekiden import llm
from ekiden.llm.embedding import read_pooling
from ekiden.runtime.errors import InputError, LoadError, UnsupportedError

pytest.importorskip("transformers", reason="hidden states are compared with those of transformers")
TEXTS = [[1, 2, 3], [4] * 70, [5, 6]]


def write_modules(folder: Path, settings: dict[str, object], *kinds: str) -> None:
    kinds = kinds or ("Transformer", "Pooling", "Normalize")
    modules = [
        {"path": f"{n}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


@pytest.mark.filterwarnings("ignore")  # of that package
def test_embeddings_are_pooled_hidden_states_of_transformers(tmp_path: Path) -> None:
    import torch

    # The bare model, as Qwen3-Embedding is saved: its names have no prefix.
    model = random_model("Qwen3ForCausalLM", {"head_dim": 16})
    model.model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["Qwen3ForCausalLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_modules(tmp_path, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False})
    embedder = llm.load_embedding_model(tmp_path)
    with torch.no_grad():
        states = [model.model(torch.tensor([t])).last_hidden_state[0].numpy() for t in TEXTS]
    last = np.array([state[-1] / np.linalg.norm(state[-1]) for state in states])
    np.testing.assert_allclose(embedder.embed(TEXTS), last, atol=1e-5)
    embedder.pooling = llm.Pooling("mean")
    means = np.array([state.mean(0) for state in states])
    np.testing.assert_allclose(embedder.embed(TEXTS), means, atol=1e-5)
    assert embedder.embed([]).shape == (0, 32)
    for texts, message in (
        ([[]], "from 1 to 256 tokens of a text expected, got 0"),
        ([[97]], "tokens from 0 to 96 expected"),
        (["text"], "as the model has no tokenizer"),
        ("text", "a list of texts expected"),
    ):
        with pytest.raises(InputError, match=message):
            embedder.embed(texts)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("settings", "kinds", "expected"),
    [
        ({"pooling_mode_cls_token": True}, (), ("first", True)),
        ({"pooling_mode_max_tokens": True}, ("Transformer", "Pooling"), ("max", False)),
        ({"pooling_mode": "lasttoken"}, (), ("last", True)),
        ({"pooling_mode": "mean"}, (), ("mean", True)),
    ],
)
def test_pooling_matches_sentence_transformers(
    tmp_path: Path, settings: dict[str, object], kinds: tuple[str, ...], expected: tuple[str, bool]
) -> None:
    assert read_pooling(tmp_path) == llm.Pooling("mean", False)
    write_modules(tmp_path, settings, *kinds)
    assert read_pooling(tmp_path) == llm.Pooling(*expected)


def test_unknown_pooling_is_refused(tmp_path: Path) -> None:
    write_modules(tmp_path, {"pooling_mode_weightedmean_tokens": True})
    with pytest.raises(UnsupportedError, match="got pooling_mode_weightedmean_tokens"):
        read_pooling(tmp_path)
    write_modules(tmp_path, {}, "Transformer", "Dense")
    with pytest.raises(UnsupportedError, match="not 'Dense'"):
        read_pooling(tmp_path)
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(LoadError, match="no JSON"):
        read_pooling(tmp_path)
