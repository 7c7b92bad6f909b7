"""OpenAI's interface: choices, log-probabilities, calls of functions, reasoning, completions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Answer, Running, serving
from toy_text import Echo, Scripted

from ekiden.serve import TextModel
from ekiden.serve.openai_fields import FIELDS

HERMES = "{% if tools %}<tool_call></tool_call>{% endif %}<think></think>"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("f", "g")
]
CALLS = (
    'Wait. <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
)
PLAIN, WITH_TOOLS = Scripted(), Scripted(HERMES)
MODELS: dict[str, TextModel] = {
    "plain": PLAIN,
    "tools": WITH_TOOLS,
    "mistral": Scripted("{{ tools }}[TOOL_CALLS]"),
    "thinks": Scripted("<think>", "reasoning"),
    "echo": Echo(),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("none"), MODELS) as running:
        yield running


def chat(server: Running, text: str, model: str = "plain", **argument: object) -> Answer:
    body = {"model": model, "messages": [{"role": "user", "content": text}], **argument}
    return server.ask("POST", "/v1/chat/completions", body)


def complete(server: Running, prompt: object, **argument: object) -> Answer:
    return server.ask("POST", "/v1/completions", {"model": "plain", "prompt": prompt, **argument})


def events_of(answer: Answer) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.data.decode().split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_choices_have_seeds_of_their_own(server: Running) -> None:
    PLAIN.requests.clear()
    answer = chat(server, "abc", n=3, seed=2**63 - 1).json
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in answer["choices"]] == ["abc"] * 3
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}
    seeds = [request.sampling.seed for request in PLAIN.requests]
    assert seeds == [2**63 - 1, -(2**63), -(2**63) + 1]


def test_streamed_choices_have_an_index(server: Running) -> None:
    chunks = events_of(chat(server, "abcd", n=2, stream=True))
    for index in range(2):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(c["delta"].get("content", "") for c in own) == "abcd"
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_sampling_settings_are_passed_to_the_model(server: Running) -> None:
    chat(
        server, "a", top_k=5, min_p=0.1, repetition_penalty=1.5, frequency_penalty=-1,
        presence_penalty=2, logit_bias={"3": -100, "7": 1.5}, logprobs=True, top_logprobs=4,
        temperature=0.5, top_p=0.9, seed=3, stop="zz", max_completion_tokens=9, max_tokens=3,
        ignore_eos=True,
    )  # fmt: skip
    sampling = PLAIN.requests[-1].sampling
    assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (5, 0.1, 1.5)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (-1.0, 2.0)
    assert sampling.logit_bias == {3: -100.0, 7: 1.5} and sampling.logprobs == 4
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.5, 0.9, 3)
    assert (sampling.stop, sampling.max_tokens, sampling.ignore_end) == (("zz",), 9, True)


def test_logprobs_of_chats(server: Running) -> None:
    whole = chat(server, "añ", logprobs=True, top_logprobs=1).json["choices"][0]
    entries = whole["logprobs"]["content"]
    assert entries[0] == {
        "token": "a", "logprob": -1.0, "bytes": [97],
        "top_logprobs": [{"token": "\ufffd", "logprob": -0.5, "bytes": [255]}],
    }  # fmt: skip
    assert entries[1]["bytes"] == [195, 177] and len(entries) == 2
    chunks = events_of(chat(server, "añ", logprobs=True, stream=True))
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    tokens = [entry["token"] for part in parts if part for entry in part["content"]]
    assert tokens == ["a", "ñ"]
    assert chat(server, "a").json["choices"][0]["logprobs"] is None


def test_logprobs_end_where_a_stop_text_begins(server: Running) -> None:
    choice = chat(server, "abENDc", logprobs=True, stop=["END"]).json["choices"][0]
    assert choice["message"]["content"] == "ab" and choice["finish_reason"] == "stop"
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["a", "b"]
    choice = chat(server, "abEN", logprobs=True, stop=["END"]).json["choices"][0]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == list("abEN")


def test_calls_of_functions(server: Running) -> None:
    choice = chat(server, CALLS, "tools", tools=TOOLS).json["choices"][0]
    message = choice["message"]
    assert message["content"] == "Wait. " and choice["finish_reason"] == "tool_calls"
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [{"name": "f", "arguments": '{"x": 1}'}, {"name": "g", "arguments": "{}"}]
    assert all(call["type"] == "function" for call in message["tool_calls"])
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    one = chat(server, CALLS, "tools", tools=TOOLS, parallel_tool_calls=False).json["choices"][0]
    assert [call["function"]["name"] for call in one["message"]["tool_calls"]] == ["f"]
    alone = chat(server, CALLS[6:], "tools", tools=TOOLS).json["choices"][0]["message"]
    assert alone["content"] is None
    chunks = events_of(chat(server, CALLS, "tools", tools=TOOLS, stream=True))
    deltas = [c["choices"][0]["delta"] for c in chunks]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "f"), (1, "g")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_identifiers_of_calls_are_those_that_templates_want(server: Running) -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}}]'
    message = chat(server, text, "mistral", tools=TOOLS).json["choices"][0]["message"]
    assert len(message["tool_calls"][0]["id"]) == 9


def test_tool_choice(server: Running) -> None:
    def asked(choice: object) -> tuple[int, str]:
        chat(server, "x", "tools", tools=TOOLS, tool_choice=choice)
        request = WITH_TOOLS.requests[-1]
        return len(request.tools), request.tool_choice

    assert asked("none") == (0, "auto") and asked("auto") == (2, "auto")
    assert asked("required") == (2, "required") and asked(None) == (2, "auto")
    named = {"type": "function", "function": {"name": "g"}}
    assert asked(named) == (2, "function:g")
    choice = chat(server, CALLS, "tools", tools=TOOLS, tool_choice=named).json["choices"][0]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"tools": TOOLS + TOOLS}, "'tools': functions of different names expected"),
        ({"tools": [{"type": "function"}]}, "'tools[0].function': an object expected"),
        (
            {"tools": [{"type": "function", "function": {"name": ""}}]},
            "'tools[0].function.name': a name of up to 64 letters expected",
        ),
        ({"tools": TOOLS, "tool_choice": "some"}, "'tool_choice': 'none', 'auto', 'required'"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}},
            "'tool_choice': 'h' is none of the tools",
        ),
        ({"logit_bias": {"x": 1}}, "'logit_bias': numbers from -100 to 100 by tokens expected"),
        ({"presence_penalty": 3}, "'presence_penalty': a number from -2 to 2 expected"),
        ({"top_logprobs": 21, "logprobs": True}, "'top_logprobs': a whole number from 0 to 20"),
        ({"store": True}, "'store': this value is not supported"),
        ({"modalities": ["audio"]}, "'modalities': this value is not supported"),
        ({"audio": {}}, "'audio' is not supported"),
        ({"web_search_options": {}}, "'web_search_options' is not supported"),
    ],
)
def test_unsupported_fields_are_refused_by_name(
    server: Running, argument: dict[str, object], message: str
) -> None:
    answer = chat(server, "x", "tools", **argument)
    error = answer.json["error"]
    assert answer.status == 400 and error["message"].startswith(message)
    assert error["param"] == message[1:].partition("'")[0]
    assert error["type"] == "invalid_request_error"


def test_reasoning_is_separate_from_content(server: Running) -> None:
    message = chat(server, "<think>so</think>yes", "tools").json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("so", "yes")
    chunks = events_of(chat(server, "so\n</think>\n\nyes", "thinks", stream=True))
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "so"
    assert "".join(d.get("content", "") for d in deltas) == "yes"
    assert "reasoning_content" not in chat(server, "x").json["choices"][0]["message"]


def test_completions(server: Running) -> None:
    answer = complete(server, ["ab", "cde"], n=2, echo=True).json
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    assert [c["text"] for c in answer["choices"]] == ["abab", "abab", "cdecde", "cdecde"]
    assert answer["usage"] == {"prompt_tokens": 14, "completion_tokens": 10, "total_tokens": 24}
    choice = complete(server, "aé", logprobs=1).json["choices"][0]["logprobs"]
    assert choice["tokens"] == ["a", "é"] and choice["token_logprobs"] == [-1.0, -1.0]
    assert choice["top_logprobs"][0] == {"\ufffd": -0.5} and choice["text_offset"] == [0, 1]
    chunks = events_of(complete(server, "abc", stream=True, stream_options={"include_usage": True}))
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == "abc"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert PLAIN.requests[-1].sampling.max_tokens == 16
    complete(server, [5, 6])
    assert PLAIN.requests[-1].prompt == (5, 6)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"prompt": []}, "'prompt': a text, or a list of texts or tokens, expected"),
        ({"prompt": [["a"]]}, "'prompt': a text, or a list of texts or tokens, expected"),
        ({"suffix": "x"}, "'suffix' is not supported"),
        ({"best_of": 2}, "'best_of': the value of 'n' expected"),
        ({"echo": True, "logprobs": 1}, "'echo': not supported with 'logprobs'"),
        ({"echo": True, "prompt": [1]}, "'echo': prompts of text expected"),
        ({"logprobs": True}, "'logprobs': a whole number from 0 to 5 expected"),
        ({"model": "echo"}, "'prompt': model 'echo' answers conversations alone"),
        ({"messages": []}, "'messages' is not supported"),
    ],
)
def test_completions_that_are_refused(
    server: Running, argument: dict[str, object], message: str
) -> None:
    answer = complete(server, argument.pop("prompt", "x"), **argument)
    assert answer.status == 400 and answer.json["error"]["message"].startswith(message)


def test_docs_list_every_request_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "openai.md").read_text()
    lines = set(page.splitlines())
    for row in FIELDS.values():
        assert row.page_line() in lines, row.page_line()
