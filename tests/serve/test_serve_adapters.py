"""LoRA adapters of a served model: listed beside it, and chosen by requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Running, serving
from soak_texts import TEMPLATE, ByteTokenizer
from toy_text import Echo

from ekiden import llm
from ekiden.llm.tokenizer import Tokenizer
from ekiden.serve import ModelConfig
from ekiden.serve.config import TextConfig, read_model_config
from ekiden.serve.decoders import DecoderTextModel

pytest.importorskip("jinja2", reason="the package jinja2 renders templates")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from test_lora import write_adapter_of_layers  # soak_texts has put its folder on the path
    from tiny_models import tiny

    root = tmp_path_factory.mktemp("adapters")
    folders = {
        name: write_adapter_of_layers(root / name, seed, 4)
        for name, seed in (("poet", 1), ("echo", 2))
    }
    model = llm.load(
        tiny("llama", num_hidden_layers=2, vocab_size=256, max_position_embeddings=512), page=16,
        tokenizer=Tokenizer(ByteTokenizer(), {"chat_template": TEMPLATE}), adapters=folders,
    )  # fmt: skip
    texts = {"m": DecoderTextModel(model), "echo": Echo()}
    with serving(tmp_path_factory.mktemp("none"), texts) as running:
        yield running


def answer_of(server: Running, model: str, **argument: object) -> str:
    body = {
        "model": model, "messages": [{"role": "user", "content": "hello"}], "temperature": 0,
        "max_tokens": 12, "ignore_eos": True, **argument,
    }  # fmt: skip
    answer = server.ask("POST", "/v1/chat/completions", body)
    assert answer.status == 200, answer.data
    return str(answer.json["choices"][0]["message"]["content"])


def test_adapter_is_chosen_by_the_name_of_the_model_or_by_lora(server: Running) -> None:
    plain, adapted = answer_of(server, "m"), answer_of(server, "poet")
    assert plain != adapted
    assert answer_of(server, "m", lora="poet") == adapted
    assert answer_of(server, "poet", lora="poet") == adapted
    # A model whose name is also that of an adapter is the model; the field still finds the adapter.
    assert answer_of(server, "m", lora="echo") not in (plain, adapted)


def test_completions_and_responses_take_adapters(server: Running) -> None:
    texts = {}
    for model in ("m", "poet"):
        completed = server.ask("POST", "/v1/completions", {
            "model": model, "prompt": "hello", "temperature": 0, "max_tokens": 8,
        }).json  # fmt: skip
        responded = server.ask("POST", "/v1/responses", {
            "model": model, "input": "hello", "temperature": 0, "max_output_tokens": 8,
        }).json  # fmt: skip
        output = responded["output"][0]["content"][0]["text"] if responded["output"] else ""
        texts[model] = (completed["choices"][0]["text"], output)
    assert all(one != other for one, other in zip(*texts.values(), strict=True))


def test_adapters_are_listed_with_their_model(server: Running) -> None:
    rows = server.ask("GET", "/v1/models").json["data"]
    assert [(row["id"], row.get("parent")) for row in rows] == [
        ("echo", None), ("m", None), ("poet", "m")
    ]  # fmt: skip
    assert server.ask("GET", "/v1/models/poet").json["parent"] == "m"
    assert server.ask("GET", "/v1/models/smith").status == 404


def test_adapter_that_there_is_not_is_refused_by_its_name(server: Running) -> None:
    body: dict[str, object] = {"messages": [{"role": "user", "content": "x"}]}
    for argument, message in (
        ({"model": "m", "lora": "smith"}, "adapter: 'smith' is none of the model's: 'poet', 'ech"),
        ({"model": "echo", "lora": "poet"}, "'lora': model 'echo' has no adapters"),
        ({"model": "poet", "lora": "echo"}, "'lora': another adapter than the one of 'model'"),
    ):
        answer = server.ask("POST", "/v1/chat/completions", {**body, **argument})
        assert answer.status == 400
        assert answer.json["error"]["message"].startswith(message)


def test_adapters_are_settings_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text('[text]\ncheckpoint = "c"\n[text.adapters]\npoet = "../poet"\n')
    expected = TextConfig(checkpoint="c", adapters={"poet": "../poet"})
    assert read_model_config(path) == ModelConfig(text=expected)


def test_a_conversation_that_is_too_long_is_refused_by_its_tokens(server: Running) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 900}]}
    answer = server.ask("POST", "/v1/chat/completions", body)
    assert answer.status == 400
    assert "tokens leave no place in a context of 512" in answer.json["error"]["message"]
