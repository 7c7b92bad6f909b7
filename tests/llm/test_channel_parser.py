"""Streaming parser of answers in channels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ekiden.llm.answer_parser import AnswerDelta
from ekiden.llm.conversation import open_conversation
from ekiden.llm.harmony_parser import HarmonyParser
from ekiden.llm.tokenizer import Tokenizer
from ekiden.llm.tool_formats import ToolCall
from ekiden.runtime.errors import InputError

THOUGHT = "<|channel|>analysis<|message|>They want 1 < 2.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Yes: <b>1</b>.<|return|>"
CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    '{"x": 1}<|call|>'
)
TEMPLATE = (
    "{% if tools %}tools{% endif %}{% for m in messages %}<|start|>{{ m.role }}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}<|start|>assistant{# <|channel|> #}"
)


def joined(deltas: list[AnswerDelta]) -> list[tuple[str, object]]:
    parts: list[tuple[str, object]] = []
    for delta in deltas:
        if delta.kind == "call":
            parts.append(("call", delta.call))
        elif parts and parts[-1][0] == delta.kind:
            parts[-1] = delta.kind, f"{parts[-1][1]}{delta.text}"
        else:
            parts.append((delta.kind, delta.text))
    return parts


def parse(text: str, step: int, functions: tuple[str, ...] = ("f",)) -> list[tuple[str, object]]:
    parser = HarmonyParser(functions)
    deltas = [
        delta for at in range(0, len(text), step) for delta in parser.feed(text[at : at + step])
    ]
    return joined(deltas + parser.finish())


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            THOUGHT + FINAL,
            [("reasoning", "They want 1 < 2."), ("content", "Yes: <b>1</b>.")],
        ),
        (
            (THOUGHT + FINAL).removesuffix("<|return|>"),
            [("reasoning", "They want 1 < 2."), ("content", "Yes: <b>1</b>.")],
        ),
        (
            THOUGHT + CALL,
            [("reasoning", "They want 1 < 2."), ("call", ToolCall("f", '{"x": 1}'))],
        ),
        (
            CALL.removesuffix("<|call|>").removeprefix("<|start|>assistant"),
            [("call", ToolCall("f", '{"x": 1}'))],
        ),
        (CALL.replace("functions.f", "functions.h"), [("content", '{"x": 1}')]),
        (CALL.replace("{", ""), [("content", '"x": 1}')]),
        (
            " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
            [("call", ToolCall("f", "{}"))],
        ),
        (
            "<|channel|>commentary<|message|>I look.<|end|>" + CALL,
            [("content", "I look."), ("call", ToolCall("f", '{"x": 1}'))],
        ),
        ("plain <text>", [("content", "plain <text>")]),
        ("<|channel|>anal", []),
        ("", []),
    ],
)
def test_channels_are_told_apart(text: str, parts: list[tuple[str, object]], step: int) -> None:
    assert parse(text, step) == parts


class Letters:
    """Tokenizer of bytes."""

    def encode(self, text: str, add_special_tokens: bool = True) -> object:
        return SimpleNamespace(ids=list(text.encode()))

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode()


def test_template_with_channels_chooses_the_parser() -> None:
    tokenizer = Tokenizer(Letters(), {"chat_template": TEMPLATE})
    messages = [{"role": "user", "content": "x"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    conversation = open_conversation(tokenizer, messages, [tool])
    assert "<|channel|>" in conversation.marks
    parser = conversation.parser()
    assert joined(parser.feed(THOUGHT + CALL) + parser.finish())[1] == (
        "call", ToolCall("f", '{"x": 1}'),
    )  # fmt: skip
    held = open_conversation(tokenizer, messages, is_constrained=True)
    assert bytes(held.tokens).endswith(b"assistant<|channel|>final<|message|>")
    assert joined(held.parser().feed('{"a": 1}')) == [("content", '{"a": 1}')]
    with pytest.raises(InputError, match="calls in the form 'harmony' cannot be forced"):
        open_conversation(tokenizer, messages, [tool], "required")
