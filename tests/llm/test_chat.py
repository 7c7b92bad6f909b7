"""Chat templates, and a decoder as a served text model."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from test_generate import Letters
from tiny_models import config_of, tiny

from ekiden import llm
from ekiden.llm.chat_template import render_chat
from ekiden.llm.safetensors import write_safetensors
from ekiden.llm.tokenizer import Tokenizer
from ekiden.runtime.errors import InputError, LoadError
from ekiden.serve.config import ModelConfig, TextConfig
from ekiden.serve.decoders import DecoderTextModel
from ekiden.serve.model_files import load_program, version_files
from ekiden.serve.text import Message, Sampling, TextModel

TEMPLATE = """{% for m in messages %}
{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}
<{{ m.role }}>{{ m.content }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}"""


class Bytes(Letters):
    def encode(self, text: str, add_special_tokens: bool = True) -> object:
        return super().encode(text)


LINES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def lines() -> Tokenizer:
    """One whose conversations have a line for each message."""
    return Tokenizer(Bytes(), {"chat_template": LINES})


def templated() -> Tokenizer:
    settings = {"chat_template": TEMPLATE, "eos_token": {"content": "."}}
    return Tokenizer(Bytes(), settings)


@pytest.fixture(scope="module")
def model() -> llm.Model:
    return llm.load(tiny("llama", vocab_size=256), page=16, sequences=4, tokenizer=lines())


def test_conversation_goes_through_the_template_of_its_model() -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    tokens = templated().conversation([{"role": "user", "content": "hi"}])
    assert bytes(tokens).decode() == "<user>hi.\n<assistant>"
    with pytest.raises(InputError, match="the model's template refuses them: no tools"):
        templated().conversation([{"role": "tool", "content": "hi"}])


def test_model_without_a_template_refuses_conversations() -> None:
    with pytest.raises(InputError, match="messages: the model has no chat template"):
        Tokenizer(Bytes()).conversation([{"role": "user", "content": "hi"}])


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
    ("{% if pad_token is defined or add_bos_token is defined %}T{% endif %}{{ eos_token }}", "."),
    ("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}", "1"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "text"), TEMPLATES)
def test_templates_have_what_transformers_gives_them(template: object, text: str) -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    settings = {"pad_token": None, "add_bos_token": True, "eos_token": "."}
    tokens = Tokenizer(Bytes(), {"chat_template": template, **settings}).conversation(SAYS)
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


def test_calls_of_functions_go_through_the_template() -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}"
        "{{ c.function.name }}({{ c.function.arguments.x }}){% endfor %}"
        "{% if m.tool_call_id is defined %}{{ m.tool_call_id }}:{{ m.name }}{% endif %}"
        "{% endfor %}{% if tools %}{{ tools[0].function.name }}{% endif %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 2}}}
    messages = [
        Message("user", "a"), Message("assistant", "", (call,)), Message("tool", "3", (), "1", "f"),
    ]  # fmt: skip
    tokenizer = Tokenizer(Bytes(), {"chat_template": template})
    served = DecoderTextModel(llm.load(tiny("llama", vocab_size=256), page=16, tokenizer=tokenizer))
    assert served.prompt_tokens(messages) == len("<user>a<assistant>f(2)<tool>31:f")
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert bytes(tokenizer.conversation(SAYS[:0], tools)).decode() == "f"
    several = Tokenizer(Bytes(), {"chat_template": {"default": "D", "tool_use": "T"}})
    assert bytes(several.conversation([], tools)).decode() == "T"


def test_templates_beside_the_tokenizer_are_read(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers reads its file")
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    letters = {chr(i): i for i in range(256)}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "B", "eos_token": "E"}')
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": null, "eos_token": "F"}')
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("T")
    tokenizer = Tokenizer.read(tmp_path / "tokenizer.json")
    assert tokenizer.conversation(SAYS) == [*b"BF"]
    assert tokenizer.conversation(SAYS, []) == [*b"T"]
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(LoadError, match=r"chat_template\.jinja: .*utf-8"):
        Tokenizer.read(tmp_path / "tokenizer.json")


def transformers_tokenizer(**options: object) -> Any:  # noqa: ANN401  # of a package without types
    transformers = pytest.importorskip("transformers", reason="compares with transformers")
    tokenizers = pytest.importorskip("tokenizers", reason="compares with transformers")
    cuts = tokenizers.pre_tokenizers
    letters = {letter: n for n, letter in enumerate(sorted(cuts.ByteLevel.alphabet()))}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    inner.pre_tokenizer = cuts.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **options)


def test_tokenizer_of_transformers_keeps_its_template() -> None:
    source = transformers_tokenizer(chat_template="{{ messages[0].content }}{{ eos_token }}")
    source.eos_token = "|"
    tokenizer = Tokenizer.of(source)
    assert tokenizer is not None
    assert tokenizer.conversation(SAYS) == source.apply_chat_template(SAYS)["input_ids"]


def shipped_templates() -> list[str]:
    """The chat templates in the sources and data of transformers."""
    package = pytest.importorskip("transformers", reason="compares with transformers")
    folder = Path(package.__file__).parent
    texts = {path.read_text() for path in folder.rglob("*.jinja")}
    for path in folder.rglob("*.py"):
        source = path.read_text()
        if "{%" not in source or "messages" not in source:
            continue
        constants = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
        texts |= {c for c in constants if isinstance(c, str) and "{%" in c and "messages" in c}
    return sorted(texts)


def test_shipped_templates_are_rendered_as_by_transformers() -> None:
    source = transformers_tokenizer(bos_token="<s>", eos_token="</s>")
    talk = [
        {"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "'é' & \"漢\"?"},
        {"role": "assistant", "content": " Yes.\n"}, {"role": "user", "content": "Why?"},
    ]  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    templates = [*shipped_templates(), *(text for text, _ in TEMPLATES if isinstance(text, str))]
    rendered_count = 0
    for template in [*templates, TEMPLATE, LINES]:
        for messages in (talk, talk[1:]):
            for chosen in (None, tools):
                source.chat_template = template
                result = Tokenizer.of(source)
                assert result is not None
                try:
                    expected = source.apply_chat_template(
                        messages, tools=chosen, add_generation_prompt=True, tokenize=False
                    )
                except Exception:  # a template raises what it likes
                    with pytest.raises(InputError):
                        result.conversation(messages, chosen)
                    continue
                text = render_chat(template, result.settings, messages, chosen)
                assert text == expected
                rendered_count += 1
    assert rendered_count > 40


def test_decoder_answers_as_a_model_of_text(model: llm.Model) -> None:
    served = DecoderTextModel(model)
    assert isinstance(served, TextModel)
    talk = [Message("user", "hello")]
    assert served.prompt_tokens(talk) == len("user: hello\nassistant:")
    chosen = Sampling(max_tokens=6, temperature=0.0)
    both = [served.generate(talk, chosen) for _ in range(2)]  # at the same time
    pieces = [list(item) for item in zip(*both, strict=True)]
    assert all(a == b for a, b in pieces)
    assert sum(a.tokens for a, _ in pieces) == 6
    assert pieces[-1][0].finish == "length"
    tokens = model.tokenizer.conversation([{"role": "user", "content": "hello"}])  # type: ignore[union-attr]
    alone = model.engine.run([tokens], llm.Sampling(max_tokens=6))[0]
    assert "".join(a.text for a, _ in pieces) == bytes(alone).decode(errors="replace")
    with pytest.raises(InputError, match="leave no place in a context of 256"):
        served.prompt_tokens([Message("user", "x" * 300)])


def test_requests_without_a_setting_take_the_default_of_the_checkpoint(
    model: llm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, talk = DecoderTextModel(model), [Message("user", "hello")]

    def settings(**requested: float) -> llm.Sampling:
        return served.prepare(talk, Sampling(seed=1, **requested))._stream.sampling  # type: ignore[arg-type]

    assert (settings().temperature, settings().top_p, settings().top_k) == (1.0, 1.0, 0)
    defaults = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}
    monkeypatch.setattr(model, "sampling_defaults", defaults)
    chosen = settings(temperature=0.2)
    assert (chosen.temperature, chosen.top_p, chosen.top_k) == (0.2, 0.9, 20)
    assert chosen.repetition_penalty == 1.1 and settings().temperature == 0.6
    served.close()


def test_checkpoint_is_served_by_its_path(tmp_path: Path, model: llm.Model) -> None:
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
    result = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    result.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(LINES)
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    text = load_program(path, config).text
    assert isinstance(text, DecoderTextModel)
    assert text._model.sampling_defaults == {"temperature": 0.6, "top_k": 20}
    answer = list(text.generate([Message("user", "hi")], Sampling(max_tokens=3, temperature=0)))
    assert sum(piece.tokens for piece in answer) == 3
