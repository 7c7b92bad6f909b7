"""Conversations with tools and reasoning: templates, and forced tool calls."""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from test_json_schema import BytePieces, fits
from tiny_models import tiny

from ekiden import llm
from ekiden.llm.conversation import open_conversation
from ekiden.llm.tokenizer import Detokenizer, Tokenizer
from ekiden.runtime.errors import InputError
from ekiden.serve.decoders import DecoderTextModel
from ekiden.serve.text import Message, RequestEngine, Sampling, TextRequest

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{# <tool_call> #}{% endif %}"
    "assistant:{% if enable_thinking %}<think>\n{% endif %}"
)
SAYS = [{"role": "user", "content": "hi"}]


class Marked(BytePieces):
    """Bytes, of which some are special tokens that open and close calls."""

    special: ClassVar[Mapping[int, str]] = {1: "<tool_call>", 2: "</tool_call>"}

    def get_added_tokens_decoder(self) -> dict[int, SimpleNamespace]:
        return {n: SimpleNamespace(content=c, special=True) for n, c in self.special.items()}

    def id_to_token(self, token: int) -> str:
        return self.special.get(token) or super().id_to_token(token)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return super().decode([n for n in ids if n not in self.special])


def tool(name: str, **properties: object) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("clock"), tool("add", x={"type": "integer"}, y={"enum": ["a", "b"]})]


@pytest.fixture(scope="module")
def served() -> Iterator[DecoderTextModel]:
    tokenizer = Tokenizer(BytePieces(), {"chat_template": TEMPLATE})
    model = llm.load(
        tiny("llama", vocab_size=256, max_position_embeddings=1024),
        page=16,
        sequences=2,
        tokenizer=tokenizer,
    )
    served = DecoderTextModel(model)
    yield served
    served.close()


def tokenizer_of(template: str) -> Tokenizer:
    return Tokenizer(BytePieces(), {"chat_template": template})


def test_conversation_knows_how_its_answer_is_read() -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    plain = open_conversation(tokenizer_of(TEMPLATE), SAYS)
    assert bytes(plain.tokens) == b"user: hi\nassistant:"
    assert plain.form is None and plain.has_reasoning and plain.state == "start"
    thinking = open_conversation(tokenizer_of(TEMPLATE), SAYS, options={"enable_thinking": True})
    assert thinking.state == "reasoning" and bytes(thinking.tokens).endswith(b"<think>\n")
    tools = open_conversation(tokenizer_of(TEMPLATE), SAYS, TOOLS)
    assert tools.form is not None and tools.form.name == "hermes" and tools.pattern == ""
    assert b'"clock"' in bytes(tools.tokens) and tools.functions == {"clock", "add"}


def test_grammar_disables_reasoning() -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    options = {"enable_thinking": True}
    formed = open_conversation(tokenizer_of(TEMPLATE), SAYS, is_constrained=True, options=options)
    assert bytes(formed.tokens).endswith(b"<think>\n\n</think>\n\n") and formed.state == "content"
    forced = open_conversation(tokenizer_of(TEMPLATE), SAYS, TOOLS, "required", options=options)
    assert bytes(forced.tokens).endswith(b"</think>\n\n<tool_call>") and forced.state == "calls"


@pytest.mark.parametrize(
    ("template", "tools", "choice", "options", "message"),
    [
        ("{{ messages }}", TOOLS, "auto", {}, "'tools': the model's chat template takes no tools"),
        (TEMPLATE, (), "auto", {"depth": 3}, "'depth': the model's chat template has no such"),
        (TEMPLATE, (), "auto", {"messages": []}, "'messages': the model's chat template has no"),
        ("{{ tools }}func_name1(", TOOLS, "required", {}, "calls in the form 'python' cannot be"),
        (
            "{{ tools }}",
            [tool("f", x={"type": "string", "format": "email"})],
            "required",
            {},
            r"'tools\[0\].function.parameters': schema at x",
        ),
    ],
)
def test_what_a_template_does_not_take_is_refused(
    template: str,
    tools: Sequence[dict[str, Any]],
    choice: str,
    options: dict[str, object],
    message: str,
) -> None:
    with pytest.raises(InputError, match=message):
        open_conversation(tokenizer_of(template), SAYS, tools, choice, options=options)


def test_tool_call_special_tokens_are_visible() -> None:
    tokenizer = Tokenizer(Marked())
    tokens = [*b"hi\xc3", 1, *b"{}", 2, *b"!"]
    texts = Detokenizer(tokenizer, [5], (), ("<tool_call>", "</tool_call>", "<think>"))
    shown = "".join(texts.add(token) for token in tokens) + texts.rest()
    assert shown == "hi\ufffd<tool_call>{}</tool_call>!"
    hidden = Detokenizer(tokenizer, [5])
    assert "tool" not in "".join(hidden.add(token) for token in tokens)
    assert tokenizer.token_data(1) == b"<tool_call>" and tokenizer.token_data(65) == b"A"


def answer_of(served: DecoderTextModel, request: TextRequest) -> tuple[str, list[Any], str]:
    answer = served.open(request)
    updates: queue.Queue[Any] = queue.Queue()
    answer.start(math.inf, updates.put)
    deltas, finish = [], ""
    while not finish:
        for piece in answer.pieces(updates.get(timeout=60)):
            deltas += answer.parser.feed(piece.text)
            finish = piece.finish
    deltas += answer.parser.finish()
    calls = [delta.call for delta in deltas if delta.call is not None]
    return "".join(delta.text for delta in deltas), calls, finish


@pytest.mark.parametrize("seed", range(3))
def test_calls_can_be_forced(served: DecoderTextModel, seed: int) -> None:
    assert isinstance(served, RequestEngine)
    message = (Message("user", "hi"),)
    sampling = Sampling(seed=seed, max_tokens=120)
    request = TextRequest(
        message, tools=tuple(TOOLS), tool_choice="function:add", sampling=sampling
    )
    text, (call,), finish = answer_of(served, request)
    arguments = json.loads(call.arguments)
    assert call.name == "add" and type(arguments["x"]) is int and arguments["y"] in ("a", "b")
    assert text == "" and finish == "stop"
    request = TextRequest(message, tools=tuple(TOOLS), tool_choice="required", sampling=sampling)
    assert answer_of(served, request)[1][0].name in ("clock", "add")


def strict(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "function": {**entry["function"], "strict": True}}


@pytest.mark.parametrize(
    ("template", "texts", "others"),
    [
        (
            "{{ tools }}<tool_call>",
            (
                "",
                "so < it <tool_ is",
                '<tool_call>\n{"name": "add", "arguments": {"x":1,"y":"a"}}\n</tool_call>',
                'I call <tool_call>{"name": "clock", "arguments": {"any": [1]}}</tool_call> twice'
                '<tool_call>{"name": "add", "arguments": {"x": -3, "y": "b"}}</tool_call>',
            ),
            (
                '<tool_call>{"name": "add", "arguments": {"x":"1","y":"a"}}</tool_call>',
                '<tool_call>{"name": "no", "arguments": {}}</tool_call>',
                "<tool_call>text",
            ),
        ),
        (
            '{{ tools }}{"name": f, "parameters": d}',
            (
                "hello",
                '{"name": "add", "parameters": {"x": 1, "y": "a"}}',
                '<|python_tag|>{"name": "add", "parameters": {"x": 1, "y": "a"}}',
            ),
            ('{"name": "add", "parameters": {}}', "{}", "<|python_tag|>text"),
        ),
        (
            "{{ tools }}[TOOL_CALLS]",
            ("hi [TOOL", '[TOOL_CALLS][{"name": "add", "arguments": {"x": 1, "y": "a"}}]'),
            ('[TOOL_CALLS][{"name": "add", "arguments": {}}]',),
        ),
    ],
)
def test_calls_of_strict_functions_are_of_their_schemas(
    template: str, texts: Sequence[str], others: Sequence[str]
) -> None:
    tools = [TOOLS[0], strict(TOOLS[1])]
    pattern = open_conversation(tokenizer_of(template), SAYS, tools).pattern
    for text in texts:
        assert fits(pattern, text), text
    for text in others:
        assert not fits(pattern, text), text


def test_form_without_json_cannot_be_strict() -> None:
    with pytest.raises(InputError, match="calls in the form 'xml' cannot be 'strict'"):
        open_conversation(
            tokenizer_of("{{ tools }}<tool_call><function="), SAYS, [strict(TOOLS[0])]
        )


def test_decoder_calls_strict_functions_by_their_schemas() -> None:
    tokenizer = Tokenizer(Marked(), {"chat_template": TEMPLATE})
    model = llm.load(
        tiny("llama", vocab_size=256, max_position_embeddings=1024), page=16, sequences=1,
        tokenizer=tokenizer,
    )  # fmt: skip
    served = DecoderTextModel(model)
    sampling = Sampling(seed=1, max_tokens=200, logit_bias={1: 1e4})
    tools = tuple(map(strict, TOOLS))
    request = TextRequest((Message("user", "hi"),), tools=tools, sampling=sampling)
    text, calls, _ = answer_of(served, request)
    assert calls and text.count("<tool_call>") <= 1  # the last may be cut
    for call in calls:
        arguments = json.loads(call.arguments)
        assert (call.name == "clock" and not arguments) or type(arguments["x"]) is int
    served.close()


def test_texts_are_continued_without_a_template(served: DecoderTextModel) -> None:
    sampling = Sampling(max_tokens=5, temperature=0.0, logprobs=2, ignore_end=True)
    answer = served.open(TextRequest(prompt="ab", sampling=sampling))
    assert answer.prompt == 2
    updates: queue.Queue[Any] = queue.Queue()
    answer.start(math.inf, updates.put)
    scores: list[Any] = []
    while len(scores) < 5:
        for piece in answer.pieces(updates.get(timeout=60)):
            scores += piece.scores
    logits = served._model.logits([*b"ab"])[-1]
    assert scores[0].data == bytes([int(logits.argmax())]) and len(scores[0].top) == 2
    assert scores[0].top[0] == (scores[0].data, scores[0].logprob)
