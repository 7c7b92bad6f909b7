"""OpenAI's own client, and LangChain's and LlamaIndex' classes for it, against a server: what their
examples do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Running, serving
from toy_text import Lengths, Scripted

openai = pytest.importorskip("openai", reason="the package openai asks the server")

HERMES = "{% if tools %}<tool_call></tool_call>{% endif %}<think></think>"
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
MODELS = {"scripted": Scripted(HERMES), "lengths": Lengths()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("none"), MODELS) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none") as client:
        yield client


def says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_chats_with_log_probabilities(client: Any) -> None:  # noqa: ANN401  # of a package
    answer = client.chat.completions.create(
        model="scripted",
        messages=says("hi"),
        logprobs=True,
        top_logprobs=2,
        seed=1,
        n=2,
        stop=["!"],
    )
    assert [choice.message.content for choice in answer.choices] == ["hi", "hi"]
    entries = answer.choices[0].logprobs.content
    assert [entry.token for entry in entries] == ["h", "i"] and len(entries[0].top_logprobs) == 2
    assert answer.usage.total_tokens == 11


def test_streams_with_usage(client: Any) -> None:  # noqa: ANN401
    options = {"include_usage": True}
    with client.chat.completions.create(
        model="scripted", messages=says("hello"), stream=True, stream_options=options
    ) as stream:
        chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "hello" and chunks[-1].usage.completion_tokens == 5


def test_calls_of_functions_and_their_answers(client: Any) -> None:  # noqa: ANN401
    tools = [{"type": "function", "function": WEATHER}]
    first = client.chat.completions.create(model="scripted", messages=says(CALL), tools=tools)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}
    output = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    second = client.chat.completions.create(
        model="scripted", messages=[*says(CALL), message, output], tools=tools
    )
    assert second.choices[0].message.content == "sunny"


def test_streams_of_calls_are_put_together(client: Any) -> None:  # noqa: ANN401
    tools = [{"type": "function", "function": WEATHER}]
    with client.chat.completions.stream(
        model="scripted", messages=says(CALL), tools=tools
    ) as stream:
        for _ in stream:
            pass
        call = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather" and call.function.parsed_arguments["city"] == "Paris"


def test_answers_are_parsed_by_their_schema(client: Any) -> None:  # noqa: ANN401
    pydantic = pytest.importorskip("pydantic", reason="the package pydantic has schemas")
    event = pydantic.create_model("Event", name=(str, ...), participants=(list[str], ...))
    text = '{"name": "fair", "participants": ["Ann"]}'
    answer = client.chat.completions.parse(
        model="scripted", messages=says(text), response_format=event
    )
    assert answer.choices[0].message.parsed.participants == ["Ann"]


def test_completions_embeddings_and_models(client: Any) -> None:  # noqa: ANN401
    assert client.completions.create(model="scripted", prompt="abc").choices[0].text == "abc"
    result = client.embeddings.create(model="lengths", input=["ab", "c"])
    assert [entry.embedding for entry in result.data] == [[2.0, 0.5], [1.0, 0.5]]
    assert {model.id for model in client.models.list()} == set(MODELS)
    assert client.models.retrieve("scripted").id == "scripted"


def test_responses_whole_and_streamed(client: Any) -> None:  # noqa: ANN401
    answer = client.responses.create(model="scripted", input="hello", instructions="be brief")
    assert answer.output_text == "hello" and answer.usage.output_tokens == 5
    tool = {"type": "function", **WEATHER}
    called = client.responses.create(model="scripted", input=CALL, tools=[tool])
    assert called.output[0].type == "function_call" and called.output[0].name == "get_weather"
    message = {
        "type": "function_call_output",
        "call_id": called.output[0].call_id,
        "output": "sunny",
    }
    items = [*says(CALL), *called.output, message]
    assert client.responses.create(model="scripted", input=items, tools=[tool]).output_text == (
        "sunny"
    )
    with client.responses.stream(model="scripted", input="<think>so</think>yes") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "yes"
    assert "response.reasoning_text.delta" in kinds and kinds[-1] == "response.completed"


def test_errors_have_their_classes(client: Any) -> None:  # noqa: ANN401
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=says("x"))
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="scripted", messages=says("x"), temperature=9)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"


def test_langchain_asks_the_server(server: Running) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="the package langchain-openai asks")
    url = f"http://127.0.0.1:{server.port}/v1"
    chat = langchain.ChatOpenAI(model="scripted", base_url=url, api_key="none")
    assert chat.invoke("hello").content == "hello"
    assert "".join(chunk.content for chunk in chat.stream("hello")) == "hello"
    bound = chat.bind_tools([{"type": "function", "function": WEATHER}])
    assert bound.invoke(CALL).tool_calls[0]["args"] == {"city": "Paris"}
    formed = chat.with_structured_output(
        {"title": "City", **WEATHER["parameters"]}, method="json_schema"
    )
    assert formed.invoke('{"city": "Paris"}') == {"city": "Paris"}
    items = langchain.ChatOpenAI(
        model="scripted", base_url=url, api_key="none", use_responses_api=True
    )
    assert items.invoke("hello").text == "hello"
    vectors = langchain.OpenAIEmbeddings(
        model="lengths", base_url=url, api_key="none", check_embedding_ctx_length=False
    )
    assert vectors.embed_query("abc") == [3.0, 0.5]


def test_llama_index_asks_the_server(server: Running) -> None:
    reason = "the package llama-index-llms-openai-like asks"
    like = pytest.importorskip("llama_index.llms.openai_like", reason=reason)
    llms = pytest.importorskip("llama_index.core.llms", reason=reason)
    url = f"http://127.0.0.1:{server.port}/v1"
    model = like.OpenAILike(model="scripted", api_base=url, api_key="none", is_chat_model=True)
    message = [llms.ChatMessage(role="user", content="hello")]
    assert model.chat(message).message.content == "hello"
    assert [part.delta for part in model.stream_chat(message)][-1] is not None
    plain = like.OpenAILike(model="scripted", api_base=url, api_key="none", is_chat_model=False)
    assert plain.complete("abc").text == "abc"
