"""OpenAI's responses and embeddings, and the page that tries models."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Answer, Running, serving
from toy_text import Echo, Lengths, Scripted

from ekiden.serve import EmbeddingModel, TextModel
from ekiden.serve.text import Message

HERMES = "{% if tools %}<tool_call></tool_call>{% endif %}<think></think>"
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
TOOLS = Scripted(HERMES)
MODELS: dict[str, TextModel | EmbeddingModel] = {
    "tools": TOOLS, "echo": Echo(), "lengths": Lengths(),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("none"), MODELS) as running:
        yield running


def respond(server: Running, given: object, **fields: object) -> Answer:
    return server.ask("POST", "/v1/responses", {"model": "tools", "input": given, **fields})


def events_of(answer: Answer) -> list[Any]:
    events = []
    for part in answer.data.decode().split("\n\n")[:-1]:
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_response_has_items(server: Running) -> None:
    text = f"<think>so</think>yes {CALL}"
    answer = respond(server, text, tools=[TOOL], instructions="be", max_output_tokens=300).json
    assert answer["object"] == "response" and answer["status"] == "completed"
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
    reasoning, message, call = answer["output"]
    assert reasoning["content"][0] == {"type": "reasoning_text", "text": "so"}
    assert message["content"][0]["text"] == "yes " and message["status"] == "completed"
    assert (call["name"], call["arguments"]) == ("f", '{"x": 1}') and call["call_id"]
    assert answer["usage"]["input_tokens"] == 7 and answer["max_output_tokens"] == 300
    asked = TOOLS.requests[-1]
    assert asked.messages == (Message("system", "be"), Message("user", text))
    assert asked.sampling.max_tokens == 300
    assert asked.tools[0]["function"]["name"] == "f" and asked.tools[0]["type"] == "function"


def test_response_events_equal_whole_response(server: Running) -> None:
    text = f"<think>so</think>yes {CALL}{CALL}"
    whole = respond(server, text, tools=[TOOL]).json
    events = events_of(respond(server, text, tools=[TOOL], stream=True))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] == "response.completed"
    without_names = [
        [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]
        for items in (whole["output"], last["response"]["output"])
    ]
    assert without_names[0] == without_names[1]
    items: dict[str, Any] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                items[event["item"]["id"]] = ""
            case "response.output_text.delta" | "response.function_call_arguments.delta":
                items[event["item_id"]] += event["delta"]
            case "response.reasoning_text.delta":
                items[event["item_id"]] += event["delta"]
    assert list(items.values()) == ["so", "yes ", '{"x": 1}', '{"x": 1}']
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert done == last["response"]["output"]


def test_items_of_a_conversation_are_messages(server: Running) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        call,
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"role": "user", "content": "go"},
    ]
    assert respond(server, items).status == 200
    user, assistant, tool, last = TOOLS.requests[-1].messages
    assert (user.content, assistant.content, last.content) == ("a", "b", "go")
    assert [c["id"] for c in assistant.tool_calls] == ["c1", "c2"]
    assert assistant.tool_calls[0]["function"]["arguments"] == {"x": 1}
    assert (tool.role, tool.tool_call_id, tool.content) == ("tool", "c1", "3")


def test_response_that_is_cut_is_incomplete(server: Running) -> None:
    body = {"model": "echo", "input": "on and on forever", "max_output_tokens": 2}
    answer = server.ask("POST", "/v1/responses", body).json
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["content"][0]["text"] == "on and"


def test_form_of_a_response_reaches_the_model(server: Running) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    respond(server, "x", text={"format": form})
    assert TOOLS.requests[-1].sampling.pattern == r"\{\"a\": ?null\}"
    respond(server, "x", text={"format": {"type": "text"}})
    assert TOOLS.requests[-1].sampling.pattern == ""


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"input": []}, "'input': a text, or a list of items, expected"),
        ({"input": [{"type": "web_search_call"}]}, "'input[0].type': 'web_search_call' is not"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "'input[0].content'"),
        ({"previous_response_id": "r"}, "'previous_response_id': this value is not supported"),
        ({"store": True}, "'store': this value is not supported"),
        ({"tools": [{"type": "web_search"}]}, "'tools[0].type': 'function' expected"),
        ({"text": {"verbosity": "low"}}, "'text.verbosity' is not supported"),
        ({"text": {"format": {"type": "json_schema"}}}, "'text.format': 'text', 'json_object'"),
        ({"reasoning": {"summary": "auto"}}, "'reasoning.summary' is not supported"),
        ({"messages": []}, "'messages' is not supported"),
    ],
)
def test_responses_that_are_refused(
    server: Running, argument: dict[str, object], message: str
) -> None:
    body = {"model": "tools", "input": "x", **argument}
    answer = server.ask("POST", "/v1/responses", body)
    assert answer.status == 400 and answer.json["error"]["message"].startswith(message)


def embed(server: Running, given: object, **fields: object) -> Answer:
    return server.ask("POST", "/v1/embeddings", {"model": "lengths", "input": given, **fields})


def test_embeddings(server: Running) -> None:
    answer = embed(server, ["ab", "cdé"]).json
    assert answer["data"] == [
        {"object": "embedding", "index": 0, "embedding": [2.0, 0.5]},
        {"object": "embedding", "index": 1, "embedding": [3.0, 0.5]},
    ]
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert embed(server, [5, 6, 7]).json["data"][0]["embedding"] == [3.0, 0.5]
    assert len(embed(server, [[5], [6]]).json["data"]) == 2
    packed = embed(server, "abcd", encoding_format="base64", dimensions=2).json["data"][0]
    assert np.frombuffer(base64.b64decode(packed["embedding"]), "<f4").tolist() == [4.0, 0.5]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"input": ""}, "'input': a text, or a list of texts or tokens, expected"),
        ({"input": []}, "'input': from 1 to 2048 texts expected"),
        ({"input": [3, "a"]}, "'input': a text, or a list"),
        ({"input": "refuse"}, "too long a text"),
        ({"dimensions": 3}, "'dimensions': vectors of this model have 2 numbers"),
        ({"encoding_format": "int8"}, "'encoding_format': this value is not supported"),
        ({"model": "tools"}, "'model': 'tools' makes no embeddings"),
    ],
)
def test_embeddings_that_are_refused(
    server: Running, argument: dict[str, object], message: str
) -> None:
    answer = embed(server, argument.pop("input", "x"), **argument)
    assert answer.status == 400 and answer.json["error"]["message"].startswith(message)


def test_embedding_model_refuses_chat(server: Running) -> None:
    messages = [{"role": "user", "content": "x"}]
    answer = server.ask("POST", "/v1/chat/completions", {"model": "lengths", "messages": messages})
    assert answer.status == 400 and "makes embeddings alone" in answer.json["error"]["message"]
    assert {row["id"] for row in server.ask("GET", "/v1/models").json["data"]} == set(MODELS)


def test_chat_page_loads_no_external_resources(server: Running) -> None:
    answer = server.ask("GET", "/")
    page = answer.data.decode()
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"""(src|href)=|https?://""", page)
    assert 'fetch("v1/chat/completions"' in page and "innerHTML" not in page


def test_page_needs_no_token_and_its_requests_do(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-sixteen-letters\n")
    with serving(tmp_path, MODELS, token_file=str(tokens)) as running:
        assert running.ask("GET", "/").status == 200
        assert running.ask("GET", "/v1/models").status == 401
