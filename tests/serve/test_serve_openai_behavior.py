"""What the server tests of vLLM and of llama.cpp ask of OpenAI's interface, asked of a decoder here
by OpenAI's own client. The names are theirs; docs/openai.md has the table.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import Running, serving
from soak_texts import TEMPLATE, ByteTokenizer
from toy_text import Lengths

from ekiden import llm
from ekiden.llm.tokenizer import Tokenizer
from ekiden.serve.decoders import DecoderTextModel

openai = pytest.importorskip("openai", reason="the package openai asks the server")
pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
PAGE = Path(__file__).parents[2] / "docs" / "openai.md"
SAYS = [
    {"role": "system", "content": "you are a helpful assistant"},
    {"role": "user", "content": "what is 1+1?"},
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer",
                   "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    from tiny_models import tiny  # soak_texts has put its folder on the path

    model = llm.load(
        tiny("llama", vocab_size=256, max_position_embeddings=512), page=16, sequences=8,
        tokenizer=Tokenizer(ByteTokenizer(), {"chat_template": TEMPLATE}),
    )  # fmt: skip
    texts = {"m": DecoderTextModel(model), "e": Lengths()}
    with serving(tmp_path_factory.mktemp("none"), texts) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


class Asked:
    """OpenAI's client with what most of these tests say."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401  # of a package
        self.client = client

    def chat(self, **argument: Any) -> Any:  # noqa: ANN401
        whole = {"model": "m", "messages": SAYS, "max_completion_tokens": 5, **argument}
        whole.setdefault("extra_body", {"ignore_eos": True})
        return self.client.chat.completions.create(**whole)

    def complete(self, **argument: Any) -> Any:  # noqa: ANN401
        whole = {"model": "m", "prompt": "Hello, my name is", "max_tokens": 5, **argument}
        return self.client.completions.create(extra_body={"ignore_eos": True}, **whole)

    def respond(self, **argument: Any) -> Any:  # noqa: ANN401
        whole = {"model": "m", "input": "Write an example", "max_output_tokens": 8, **argument}
        return self.client.responses.create(**whole)

    def is_refused(self, ask: Callable[..., Any], param: str, **argument: Any) -> None:  # noqa: ANN401
        with pytest.raises(openai.BadRequestError) as caught:
            list(ask(**argument))
        assert caught.value.param == param, caught.value


# vLLM: test_chat.py and test_completion.py.


def no_logprobs_chat(asked: Asked) -> None:
    assert asked.chat(logprobs=False).choices[0].logprobs is None


def logprobs_chat(asked: Asked) -> None:
    for count in (0, 5):
        result = asked.chat(temperature=0, logprobs=True, top_logprobs=count).choices[0].logprobs
        assert [len(entry.top_logprobs) for entry in result.content] == [count] * 5


def too_many_chat_logprobs(asked: Asked) -> None:
    for stream in (True, False):
        asked.is_refused(asked.chat, "top_logprobs", logprobs=True, top_logprobs=21, stream=stream)
    assert asked.chat().choices[0].message.content is not None


def single_chat_session(asked: Asked) -> None:
    answer = asked.chat(logprobs=True, top_logprobs=5)
    (choice,) = answer.choices
    assert choice.finish_reason == "length" and choice.message.role == "assistant"
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    more = [*SAYS, choice.message, {"role": "user", "content": "express your result in json"}]
    assert asked.chat(messages=more).choices[0].message.content is not None


def chat_streaming(asked: Asked) -> None:
    whole = asked.chat(temperature=0).choices[0]
    chunks = [chunk.choices[0] for chunk in asked.chat(temperature=0, stream=True)]
    assert "".join(c.delta.content or "" for c in chunks) == whole.message.content
    assert [c.finish_reason for c in chunks if c.finish_reason] == [whole.finish_reason]
    assert chunks[-1].finish_reason


def stream_options(asked: Asked) -> None:
    for ask in (asked.chat, asked.complete):
        for options in ({"include_usage": False}, {}):
            assert all(c.usage is None for c in ask(stream=True, stream_options=options))
        *chunks, last = ask(stream=True, stream_options={"include_usage": True})
        assert all(chunk.usage is None for chunk in chunks) and last.choices == []
        assert last.usage.total_tokens == last.usage.prompt_tokens + 5
        for expected in (None, True):
            asked.is_refused(ask, "stream_options", stream_options={"include_usage": expected})


def response_format_json_object(asked: Asked) -> None:
    for seed in range(3):
        answer = asked.chat(
            response_format={"type": "json_object"}, seed=seed, max_completion_tokens=300,
            logit_bias={str(ord("}")): 9, str(ord('"')): 9}, extra_body={},
        ).choices[0]  # fmt: skip
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(answer.message.content), dict)
        assert answer.message.content.startswith("{")


def response_format_json_schema(asked: Asked) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    answer = asked.chat(response_format=form, max_completion_tokens=100, extra_body={})
    result = json.loads(answer.choices[0].message.content)
    assert len(result["name"]) <= 9 and 0 <= result["age"] <= 120


def response_format_text(asked: Asked) -> None:
    assert asked.chat(response_format={"type": "text"}).choices[0].message.content is not None


def extra_fields_allowed(asked: Asked) -> None:
    message = [{"role": "user", "content": "what is 1+1?", "extra_field": "0"}]
    assert asked.chat(messages=message, seed=0).choices[0].message.content is not None


def complex_message_content(asked: Asked) -> None:
    parts = [{"type": "text", "text": "what is "}, {"type": "text", "text": "1+1?"}]
    first, second = (
        asked.chat(messages=[{"role": "user", "content": c}], temperature=0)
        for c in (parts, "what is 1+1?")
    )
    assert first.choices[0].message.content == second.choices[0].message.content


def long_seed(asked: Asked) -> None:
    for seed in (-(2**63) - 1, 2**63):
        with pytest.raises(openai.BadRequestError):
            asked.chat(seed=seed)


def n_parameter(asked: Asked) -> None:
    choices = asked.chat(n=3, temperature=0.7, max_completion_tokens=20).choices
    assert [choice.index for choice in choices] == [0, 1, 2]
    assert len({choice.message.content for choice in choices}) > 1
    result = {0: "", 1: ""}
    for chunk in asked.chat(n=2, temperature=0.7, seed=42, stream=True):
        for choice in chunk.choices:
            result[choice.index] += choice.delta.content or ""
    assert all(result.values())
    assert len(asked.chat(n=1).choices) == 1


def single_completion(asked: Asked) -> None:
    answer = asked.complete(temperature=0)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 5
    assert answer.usage.prompt_tokens == 17
    assert asked.complete(prompt=[0] * 5).choices[0].text


def logprobs_completion(asked: Asked) -> None:
    assert asked.complete(logprobs=None).choices[0].logprobs is None
    result = asked.complete(prompt=[9] * 5, logprobs=5, temperature=0).choices[0].logprobs
    assert len(result.token_logprobs) == 5 and result.top_logprobs is not None
    asked.is_refused(asked.complete, "logprobs", logprobs=21)


def completion_streaming(asked: Asked) -> None:
    whole = asked.complete(temperature=0).choices[0].text
    chunks = list(asked.complete(temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    finishes = [c.choices[0].finish_reason for c in chunks]
    assert finishes[-1] == "length" and not any(finishes[:-1])


def parallel_completions(asked: Asked) -> None:
    whole = asked.complete(n=3, temperature=1.0, seed=42, max_tokens=20).choices
    texts = [choice.text for choice in whole]
    assert len(set(texts)) == 3
    result = ["", "", ""]
    for chunk in asked.complete(n=3, temperature=1.0, seed=42, max_tokens=20, stream=True):
        result[chunk.choices[0].index] += chunk.choices[0].text
    assert result == texts


def batch_completions(asked: Asked) -> None:
    for prompts in (["Hello, my name is"] * 2, [[0] * 5] * 2):
        first, second = asked.complete(prompt=prompts, temperature=0).choices
        assert first.text == second.text
        texts = ["", ""]
        for chunk in asked.complete(prompt=prompts, temperature=0, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == [first.text, second.text]


# llama.cpp: test_chat_completion.py, test_compat_oai_responses.py and test_embedding.py.


def formats_that_are_refused(asked: Asked) -> None:
    const = {"type": "json_object", "schema": {"const": "42"}}
    result = asked.chat(response_format=const, extra_body={}).choices[0].message.content
    assert result == '"42"'
    for form in (
        {"type": "sound"}, {"type": "json_object", "schema": 123},
        {"type": "json_object", "schema": {"type": 123}},
        {"type": "json_object", "schema": {"type": "hiccup"}},
    ):  # fmt: skip
        asked.is_refused(asked.chat, "response_format", response_format=form)


def invalid_chat_completion_req(asked: Asked) -> None:
    wrong: list[Any] = [
        "string", [123], [{}], [{"role": 123}], [{"role": "system", "content": 123}],
        [{"role": "system", "content": "test"}, {}],
    ]  # fmt: skip
    for messages in wrong:
        with pytest.raises(openai.BadRequestError):
            asked.chat(messages=messages)


def logprobs_whole_and_streamed(asked: Asked) -> None:
    inputs = {"temperature": 0, "logprobs": True, "top_logprobs": 10}
    choice = asked.chat(**inputs).choices[0]
    parts = [c.choices[0] for c in asked.chat(**inputs, stream=True)]
    streamed = [entry for part in parts if part.logprobs for entry in part.logprobs.content]
    for entries in (choice.logprobs.content, streamed):
        data = bytes(byte for entry in entries for byte in entry.bytes)
        assert data.decode(errors="replace") == choice.message.content
        assert all(entry.logprob <= 0 and entry.top_logprobs for entry in entries)


def logit_bias(asked: Asked) -> None:
    kept = {ord("a"), ord("b")}
    bias = {str(token): -100 for token in range(256) if token not in kept}
    text = asked.chat(logit_bias=bias, max_completion_tokens=20).choices[0].message.content
    assert len(text) == 20 and set(text) <= {"a", "b"}


def context_size_exceeded(asked: Asked) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="in a context of 512"):
            asked.chat(messages=SAYS * 50, stream=stream)


def responses_with_text_format(asked: Asked) -> None:
    const = {"type": "json_schema", "name": "test", "schema": {"const": "foooooo"}}
    assert asked.respond(max_output_tokens=10, text={"format": const}).output_text == '"foooooo"'
    result = asked.respond(max_output_tokens=10, text={"format": {"type": "json_object"}})
    assert result.output_text.startswith("{")
    assert asked.respond(text={"format": {"type": "text"}}).object == "response"
    asked.is_refused(asked.respond, "text.format", text={"format": {"type": "json_schema",
                                                                    "name": "test"}})  # fmt: skip


def responses_stream(asked: Asked) -> None:
    text, ids = "", set()
    for event in asked.respond(input=SAYS, temperature=0.8, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
            ids.add(event.item_id)
        if event.type in ("response.completed", "response.incomplete"):
            assert event.response.id.startswith("resp_") and event.response.output_text == text
            assert {item.id for item in event.response.output} == ids
    assert len(ids) == 1 and ids.pop().startswith("msg_")


def embeddings(asked: Asked) -> None:
    create = asked.client.embeddings.create
    assert len(create(model="e", input=["a", "ab", "abc"]).data) == 3
    for argument in ([12, 34, 56], ["a", [1, 2]], [[1, 2], [3]]):
        assert create(model="e", input=argument).data[0].embedding
    asked.is_refused(create, "input", model="e", input=[])
    usage = create(model="e", input=["ab", "cd"]).usage
    assert usage.prompt_tokens == usage.total_tokens == 4
    packed = create(model="e", input="abc", encoding_format="base64").data[0].embedding
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == [3.0, 0.5]


CASES: dict[Callable[[Asked], None], str] = {
    no_logprobs_chat: "vLLM `test_no_logprobs_chat`",
    logprobs_chat: "vLLM `test_zero_logprobs_chat`, `test_some_logprobs_chat`",
    too_many_chat_logprobs: "vLLM `test_too_many_chat_logprobs`",
    single_chat_session: "vLLM `test_single_chat_session`",
    chat_streaming: "vLLM `test_chat_streaming`; llama.cpp `test_chat_completion_stream`",
    stream_options: "vLLM `test_chat_completion_stream_options`, `test_completion_stream_options`",
    response_format_json_object: "vLLM `test_response_format_json_object`",
    response_format_json_schema: "vLLM `test_response_format_json_schema`",
    response_format_text: "vLLM `test_response_format_text`",
    extra_fields_allowed: "vLLM `test_extra_fields_allowed`",
    complex_message_content: "vLLM `test_complex_message_content`;"
    " llama.cpp `test_chat_completion`",
    long_seed: "vLLM `test_long_seed`",
    n_parameter: "vLLM `test_chat_completion_n_*`; llama.cpp"
    " `test_chat_completions_multiple_choices`",
    single_completion: "vLLM `test_single_completion`",
    logprobs_completion: "vLLM `test_no_logprobs`, `test_some_logprobs`,"
    " `test_too_many_completion_logprobs`",
    completion_streaming: "vLLM `test_completion_streaming`",
    parallel_completions: "vLLM `test_parallel_no_streaming`, `test_parallel_streaming`",
    batch_completions: "vLLM `test_batch_completions`",
    formats_that_are_refused: "llama.cpp `test_completion_with_response_format`",
    invalid_chat_completion_req: "llama.cpp `test_invalid_chat_completion_req`",
    logprobs_whole_and_streamed: "llama.cpp `test_logprobs`, `test_logprobs_stream`",
    logit_bias: "llama.cpp `test_logit_bias`",
    context_size_exceeded: "llama.cpp `test_context_size_exceeded`,"
    " `test_context_size_exceeded_stream`",
    responses_with_text_format: "llama.cpp `test_responses_with_text_format`",
    responses_stream: "llama.cpp `test_responses_with_openai_library`,"
    " `test_responses_stream_with_openai_library`",
    embeddings: "llama.cpp `test_embedding_multiple`, `test_embedding_mixed_input`,"
    " `test_embedding_usage_multiple`, `test_embedding_openai_library_base64`",
}
"""What is asked -> the tests that ask it."""
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "vLLM `test_prompt_logprobs_chat`, `test_more_than_one_prompt_logprobs_chat`": (
        "chat", {"prompt_logprobs": 1}, "no field of OpenAI's",
    ),
    "vLLM `test_structured_outputs_*`, `test_invalid_json_schema`, `test_invalid_regex`": (
        "chat", {"structured_outputs": {"regex": "a"}}, "`response_format` is OpenAI's",
    ),
    "vLLM `test_completion_truncation_side_controls_prompt_truncation`": (
        "complete", {"truncate_prompt_tokens": 4}, "a prompt is never cut",
    ),
    "vLLM `test_echo_logprob_completion`": (
        "complete", {"echo": True, "logprobs": 1}, "prompts have no log-probabilities",
    ),
    "vLLM `test_batch_completions` with beams": (
        "complete", {"use_beam_search": True}, "no field of OpenAI's",
    ),
    "llama.cpp `test_completion_with_json_schema`": (
        "chat", {"json_schema": {"const": "42"}}, "`response_format` is OpenAI's",
    ),
    "llama.cpp `test_completion_with_grammar`": (
        "chat", {"grammar": 'root ::= "a"'}, "GBNF is its own",
    ),
    "llama.cpp `test_chat_completion_with_timings_per_token`, `test_return_progress`": (
        "chat", {"timings_per_token": True}, "`/metrics` has times",
    ),
}  # fmt: skip
"""Tests -> (what asks, fields that are refused by their names, why)."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_other_servers_answer_is_answered(client: Any, case: Callable[[Asked], None]) -> None:  # noqa: ANN401
    case(Asked(client))


@pytest.mark.parametrize("names", REFUSED)
def test_what_is_refused_is_named(client: Any, names: str) -> None:  # noqa: ANN401
    ask, fields, _ = REFUSED[names]
    path, message = {
        "chat": ("/chat/completions", {"messages": SAYS}),
        "complete": ("/completions", {"prompt": "x"}),
    }[ask]
    with pytest.raises(openai.BadRequestError) as caught:
        client.post(path, body={"model": "m", **message, **fields}, cast_to=object)
    assert caught.value.param in fields


def test_page_has_the_table_of_these() -> None:
    lines = set(PAGE.read_text().splitlines())
    rows = [f"| {names} | passed |" for names in CASES.values()]
    rows += [f"| {names} | refused: {why} |" for names, (_, _, why) in REFUSED.items()]
    missing = [row for row in rows if row not in lines]
    assert not missing, "\n".join(missing)
