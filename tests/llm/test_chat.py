"""Conversations: templates, and a decoder as a served model of text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_generate import Letters
from tiny_models import config_of, tiny

from ekiden import llm
from ekiden.llm.safetensors import write_safetensors
from ekiden.llm.text import Tokenizer
from ekiden.runtime.errors import InputError, LoadError
from ekiden.serve.config import ModelConfig, TextConfig
from ekiden.serve.decoders import DecoderTextModel
from ekiden.serve.repository import load_program, version_files
from ekiden.serve.text import Message, Sampling, TextModel

TEMPLATE = """{% for m in messages %}
{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}
<{{ m.role }}>{{ m.content }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""


class Bytes(Letters):
    def encode(self, text: str, add_special_tokens: bool = True) -> object:
        return super().encode(text)


def templated() -> Tokenizer:
    settings = {"chat_template": TEMPLATE, "eos_token": {"content": "."}}
    return Tokenizer(Bytes(), settings)


@pytest.fixture(scope="module")
def model() -> llm.Model:
    return llm.load(tiny("llama", vocab_size=256), page=16, sequences=4, tokenizer=Bytes())


def test_a_conversation_goes_through_the_template_of_its_model() -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    tokens = templated().conversation([{"role": "user", "content": "hi"}])
    assert bytes(tokens).decode() == "<user>hi.\n<assistant>"
    with pytest.raises(InputError, match="the model's template refuses them: no tools"):
        templated().conversation([{"role": "tool", "content": "hi"}])
    plain = Tokenizer(Bytes()).conversation([{"role": "user", "content": "hi"}])
    assert bytes(plain).decode() == "user: hi\nassistant:"


SAYS = [{"role": "user", "content": "<a> 'é'"}]
TEMPLATES: list[tuple[object, str]] = [
    ("{{ messages[0].content | tojson }}", "\"<a> 'é'\""),
    ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
    ("{% if tools is not none %}T{% endif %}{% if documents %}D{% endif %}.", "."),
    ("{% for m in messages %}x{% break %}y{% endfor %}", "x"),
    ("{% for m in messages %}x{% continue %}y{% endfor %}", "x"),
    ("a{% generation %}{{ messages[0].role }}{% endgeneration %}b", "auserb"),
    ("{{ strftime_now('%Y') | length }}", "4"),
    ([{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}], "D"),
    ({"default": "D", "rag": "R"}, "D"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "text"), TEMPLATES)
def test_templates_have_what_transformers_gives_them(template: object, text: str) -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    tokens = Tokenizer(Bytes(), {"chat_template": template}).conversation(SAYS)
    assert bytes(tokens).decode() == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ([{"name": "rag", "template": "R"}], "a template named 'default', the model has 'rag'"),
        (
            "{{ messages[0].content + 1 }}",
            "the model's template refuses them: can only concatenate",
        ),
        ("{{ messages.pop() }}", "the model's template refuses them: access to attribute 'pop'"),
        ("{% for %}", "the model's template refuses them: Expected an expression"),
    ],
)
def test_templates_that_cannot_be_rendered_are_refused(template: object, message: str) -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    with pytest.raises(InputError, match=message):
        Tokenizer(Bytes(), {"chat_template": template}).conversation(SAYS)


def test_a_decoder_answers_as_a_model_of_text(model: llm.Model) -> None:
    served = DecoderTextModel(model)
    assert isinstance(served, TextModel)
    talk = [Message("user", "hello")]
    assert served.prompt_tokens(talk) == len("user: hello\nassistant:")
    chosen = Sampling(max_tokens=6, temperature=0.0)
    both = [served.generate(talk, chosen) for _ in range(2)]  # at the same time
    pieces = [list(each) for each in zip(*both, strict=True)]
    assert all(a == b for a, b in pieces)
    assert sum(a.tokens for a, _ in pieces) == 6
    assert pieces[-1][0].finish == "length"
    tokens = model.tokenizer.conversation([{"role": "user", "content": "hello"}])  # type: ignore[union-attr]
    alone = model.engine.run([tokens], llm.Sampling(max_tokens=6))[0]
    assert "".join(a.text for a, _ in pieces) == bytes(alone).decode(errors="replace")
    with pytest.raises(InputError, match="leave no place in a context of 256"):
        served.prompt_tokens([Message("user", "x" * 300)])


def test_a_checkpoint_is_served_by_its_path(tmp_path: Path, model: llm.Model) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of("llama", vocab_size=256)))
    write_safetensors(tmp_path / "model.safetensors", tiny("llama", vocab_size=256).tensors)
    folder = tmp_path / "models" / "one"
    folder.mkdir(parents=True)
    config = ModelConfig(text=TextConfig(checkpoint="../.."))
    (path,) = version_files(folder, config).values()
    with pytest.raises(LoadError, match="a model with a tokenizer expected"):
        load_program(path, config)
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers reads its file")
    letters = {chr(i): i for i in range(256)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    made.save(str(tmp_path / "tokenizer.json"))
    text = load_program(path, config).text
    assert text is not None
    answer = list(text.generate([Message("user", "hi")], Sampling(max_tokens=3, temperature=0)))
    assert sum(piece.tokens for piece in answer) == 3
