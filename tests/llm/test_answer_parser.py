"""Streaming parser of answers: reasoning, content and tool calls at any chunk boundary."""

from __future__ import annotations

import json

import pytest

from ekiden.llm.answer_parser import AnswerDelta, AnswerParser
from ekiden.llm.tool_formats import TOOL_FORMATS, ToolFormat, find_tool_format

FORMS = {form.name: form for form in TOOL_FORMATS}
CALLS = [("weather", {"city": "Köln", "days": [1, 2]}), ("clock", {})]
HERMES = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n</tool_call>'
    "\n"
    '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
)
TEXTS = [
    ("hermes", HERMES),
    ("hermes", HERMES + "\n"),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}},'
        ' {"name": "clock", "arguments": {}, "id": "abc"}]',
    ),
    (
        "mistral",
        '[TOOL_CALLS]weather[ARGS]{"city": "Köln", "days": [1, 2]}[TOOL_CALLS]clock{}',
    ),
    (
        "granite",
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}},'
        '{"name": "clock"}]',
    ),
    (
        "llama",
        '{"name": "weather", "parameters": {"city": "Köln", "days": [1, 2]}};'
        ' {"name": "clock", "parameters": {}}',
    ),
    (
        "llama",
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Köln", "days": [1, 2]}};'
        '{"name": "clock", "parameters": {}}',
    ),
    ("python", '[weather(city="Köln", days=[1, 2]), clock()]'),
    (
        "json",
        '{"name": "weather", "arguments": {"city": "Köln", "days": [1, 2]}}\n'
        '{"function": "clock", "arguments": {}}',
    ),
    (
        "xml",
        "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n"
        "[1, 2]\n</parameter>\n</function>\n</tool_call>\n<tool_call><function=clock>\n</function>"
        "</tool_call>",
    ),
]


def parts(parser: AnswerParser, text: str, size: int) -> list[AnswerDelta]:
    deltas = [
        delta for at in range(0, len(text), size) for delta in parser.feed(text[at : at + size])
    ]
    return deltas + parser.finish()


def joined(deltas: list[AnswerDelta], kind: str) -> str:
    return "".join(delta.text for delta in deltas if delta.kind == kind)


def calls_of(deltas: list[AnswerDelta]) -> list[tuple[str, object]]:
    calls = [delta.call for delta in deltas if delta.call is not None]
    return [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize(("form", "text"), TEXTS)
def test_calls_are_found_however_their_text_is_cut(form: str, text: str, size: int) -> None:
    parser = AnswerParser(FORMS[form], ("weather", "clock"))
    deltas = parts(parser, text, size)
    assert calls_of(deltas) == CALLS and joined(deltas, "content") == ""
    assert parser.calls == 2


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_reasoning_content_and_calls_are_apart(size: int) -> None:
    text = "\n<think>\nWell: a < b.\n</think>\n\nI look. " + HERMES
    parser = AnswerParser(FORMS["hermes"], ("weather", "clock"), has_reasoning=True)
    deltas = parts(parser, text, size)
    assert joined(deltas, "reasoning") == "Well: a < b."
    assert joined(deltas, "content") == "I look. " and calls_of(deltas) == CALLS


@pytest.mark.parametrize("size", [1, 10_000])
def test_answer_may_begin_within_reasoning(size: int) -> None:
    parser = AnswerParser(has_reasoning=True, state="reasoning")
    deltas = parts(parser, "\nhm, so \n </think>\n yes\n", size)
    assert joined(deltas, "reasoning") == "hm, so" and joined(deltas, "content") == "yes\n"
    parser = AnswerParser(has_reasoning=True, state="reasoning")
    assert joined(parts(parser, "it never ends </thin", size), "reasoning") == (
        "it never ends </thin"
    )


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "an answer with < and <tool"),
        ("hermes", 'x <tool_call>{"name": "other", "arguments": {}}</tool_call>y'),
        ("hermes", 'x <tool_call>{"name": "clock", "argum'),
        ("llama", '{"a": [1, 2], "name": 3}'),
        ("llama", "{ no JSON"),
        ("python", "[1, 2, 3]"),
        ("python", "[clock(5)]"),
        ("json", '  {"name": "clock", "arguments": 3}'),
        ("xml", "<tool_call>nothing</tool_call>"),
    ],
)
def test_text_without_tool_call_is_content(form: str, text: str, size: int) -> None:
    deltas = parts(AnswerParser(FORMS[form], ("clock",)), text, size)
    assert joined(deltas, "content") == text and calls_of(deltas) == []


def test_text_without_tools_passes_at_once() -> None:
    parser = AnswerParser()
    assert parser.feed(" <tool_call>{") == [AnswerDelta("content", " <tool_call>{")]
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>{{ x }}</tool_call>{% endif %}", "hermes"),
        ("{% if tools %}<tool_call><function=f>{% endif %}", "xml"),
        ("[AVAILABLE_TOOLS]{{ tools }}[TOOL_CALLS]", "mistral"),
        ('{{ tools }} {"name": function name, "parameters": dictionary}', "llama"),
        ("{{ tools }}[func_name1(params_name1=...)]", "python"),
        ("{{ tools }}<|tool_call|>", "granite"),
        ("{{ tools }}", "json"),
    ],
)
def test_templates_say_which_form_calls_have(template: str, name: str) -> None:
    form = find_tool_format(template)
    assert isinstance(form, ToolFormat) and form.name == name


def test_template_without_tools_has_no_form() -> None:
    assert find_tool_format("{{ messages }}") is None
