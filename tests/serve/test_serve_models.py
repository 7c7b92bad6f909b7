"""Models that come and go, sequences, and text."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from serving import Answer, Running, ask_on, compiled, put, rows, serving
from toy_text import Echo

from ekiden.runtime.artifact.metadata import ANY_RANK_SHAPE, TensorInfo
from ekiden.runtime.errors import LoadError
from ekiden.serve.openai_requests import parse_chat_request
from ekiden.serve.signature import read_signature

NEGATIVE = "def @main(%x: Tensor[(n, 4), float32]) { negative(%x) }"
DOUBLE = "def @main(%x: Tensor[(n, 4), float32]) { multiply(%x, 2f) }"
X = [[1.0, 2.0, 3.0, 4.0]]


def control(server: Running, what: str, name: str = "m") -> Answer:
    return server.ask("POST", f"/v2/repository/models/{name}/{what}", {})


def states(server: Running) -> dict[tuple[str, str], str]:
    result = server.ask("POST", "/v2/repository/index", {}).json
    return {(row["name"], row["version"]): row["state"] for row in result}


def test_models_load_and_unload(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert control(server, "load").status == 404
        put(tmp_path, "m", NEGATIVE)
        assert control(server, "load").status == 200
        assert server.infer("m", x=X).output() == [-1.0, -2.0, -3.0, -4.0]
        assert states(server) == {("m", "1"): "READY"}
        assert control(server, "unload").status == 200
        assert states(server) == {("m", "1"): "UNAVAILABLE"}
        result = server.infer("m", x=X)
        assert result.status == 503 and result.headers["retry-after"] == "1"


def test_failed_load_changes_nothing(tmp_path: Path) -> None:
    path = put(tmp_path, "m", NEGATIVE)
    with serving(tmp_path) as server:
        for damaged in (b"", b"\x89EKIDEN\nshort", path.read_bytes()[:-100]):
            path.write_bytes(damaged)  # in place: what runs was read, not mapped
            result = control(server, "load")
            assert result.status == 422 and result.error.startswith("load 'm': ")
            assert server.infer("m", x=X).output() == [-1.0, -2.0, -3.0, -4.0]
        (tmp_path / "m" / "model.toml").write_text("[model]\nqueues = 3\n")
        assert "no setting is named 'queues'; 'queue' is near" in control(server, "load").error


def test_folder_with_a_damaged_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "m", NEGATIVE)
    (tmp_path / "bad" / "1").mkdir(parents=True)
    (tmp_path / "bad" / "1" / "model.eki").write_bytes(b"nothing")
    with serving(tmp_path, log="warning") as server:
        assert server.infer("m", x=X).status == 200
        assert states(server)[("bad", "1")] == "UNAVAILABLE"
        assert server.infer("bad", x=X).status == 503
    printed = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    failed = next(item for item in printed if item["event"] == "load_failed")
    assert failed["model"] == "bad" and "not an Ekiden executable" in failed["reason"]


def test_model_whose_input_has_no_rank_is_refused_with_what_gives_one() -> None:
    inputs = (TensorInfo("x", ANY_RANK_SHAPE, "float32"),)
    program = SimpleNamespace(inputs=inputs, outputs=())
    with pytest.raises(LoadError, match=r"the rank of 'x' is not known: .*shape=\{'x': "):
        read_signature(program, "m.onnx")  # type: ignore[arg-type]


def test_folder_that_cannot_be_served_ends_the_server(tmp_path: Path) -> None:
    """Loading runs beside the server, which would wait for good for what it does not give."""
    put(tmp_path, "m", NEGATIVE)
    (tmp_path / "two words.onnx").touch()
    expected = "a name of letters, digits, '.', '_', '-' expected"
    with pytest.raises(LoadError) as caught, serving(tmp_path):
        pass
    assert str(caught.value) == f"serve '{tmp_path}/two words.onnx': {expected}"


def test_name_that_cannot_be_served_comes_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "m", NEGATIVE)
    (tmp_path / "serve.toml").write_text("[server]\npoll_seconds = 0.05\n")
    with serving(tmp_path) as server:
        (tmp_path / "two words.onnx").touch()
        message = ""
        while "poll_failed" not in message:
            time.sleep(0.01)
            message += capsys.readouterr().err
        assert "a name of letters" in message
        assert server.infer("m", x=X).status == 200
        assert "a name of letters" in control(server, "load").error


def test_reload_while_requests_run(tmp_path: Path) -> None:
    """Every answer is of one version or the other, and every request has one."""
    put(tmp_path, "m", NEGATIVE)
    with serving(tmp_path) as server:
        ends, answered = threading.Event(), threading.Condition()
        actual: list[list[list[float]]] = [[] for _ in range(4)]

        def ask(result: list[list[float]]) -> None:
            connection = server.connect()
            try:
                while not ends.is_set():
                    body = {"inputs": rows({"x": X})}
                    answer = ask_on(connection, "POST", "/v2/models/m/infer", body).output()
                    with answered:
                        result.append(answer)
                        answered.notify()
            finally:
                connection.close()

        def wait_for_two_of_each() -> None:
            """The first may have been asked for before."""
            with answered:
                expected = [len(result) + 2 for result in actual]
                assert answered.wait_for(
                    lambda: all(len(m) >= n for m, n in zip(actual, expected, strict=True)), 60
                )

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask, result) for result in actual]
            try:
                for number in range(10):
                    compiled(NEGATIVE if number % 2 else DOUBLE).save(tmp_path / "m/1/model.eki")
                    assert control(server, "load").status == 200
                    wait_for_two_of_each()
            finally:
                ends.set()
            for item in asking:
                item.result()
        versions = {(-1.0, -2.0, -3.0, -4.0), (2.0, 4.0, 6.0, 8.0)}
        assert all({tuple(answer) for answer in result} == versions for result in actual)


def test_folder_polling_loads_and_unloads(tmp_path: Path) -> None:
    put(tmp_path, "m", NEGATIVE)
    with serving(tmp_path, poll_seconds=0.02) as server:
        put(tmp_path, "m", DOUBLE, version=2)
        (tmp_path / "other.eki").write_bytes((tmp_path / "m/1/model.eki").read_bytes())
        while server.infer("m", x=X).output()[0] != 2.0 or ("other", "1") not in states(server):
            time.sleep(0.01)
        assert server.infer("m", x=X).output() == [2.0, 4.0, 6.0, 8.0]


def test_model_whose_files_are_gone_is_no_longer_listed(tmp_path: Path) -> None:
    put(tmp_path, "m", NEGATIVE)
    put(tmp_path, "other", DOUBLE)
    with serving(tmp_path, poll_seconds=0.02) as server:
        assert server.infer("m", x=X).status == 200
        shutil.rmtree(tmp_path / "m")
        while ("m", "1") in states(server):
            time.sleep(0.01)
        assert states(server) == {("other", "1"): "READY"}
        assert server.infer("m", x=X).status == 404


def test_damaged_new_version_is_tried_once_and_again_when_it_changes(tmp_path: Path) -> None:
    put(tmp_path, "m", NEGATIVE)
    with serving(tmp_path, poll_seconds=0.02) as server:
        events: list[str] = []
        scans: list[list[str]] = []
        repository = server.server.engine.repository
        repository._on_event = lambda event, **fields: events.append(event)
        scan = repository.scan
        repository.scan = lambda: scans.append(scan()) or scans[-1]  # type: ignore[method-assign, func-returns-value]
        staged = tmp_path / ".staged"
        staged.mkdir()
        (staged / "model.eki").write_bytes(b"nothing")
        staged.rename(tmp_path / "m" / "2")  # complete when it appears
        while not events:
            time.sleep(0.01)
        num_scans = len(scans)
        while len(scans) < num_scans + 3:
            time.sleep(0.01)
        assert events == ["load_failed"]
        assert server.ask("GET", "/v2/health/ready").json == {"ready": True}
        assert server.infer("m", x=X).output() == [-1.0, -2.0, -3.0, -4.0]
        put(tmp_path, "m", DOUBLE, version=2)
        while server.infer("m", x=X).output()[0] != 2.0:
            time.sleep(0.01)


def step(server: Running, x: list[Any], **parameters: object) -> Answer:
    body = {"inputs": rows({"x": [x]}), "parameters": {"sequence_id": 7, **parameters}}
    return server.ask("POST", "/v2/models/step/infer", body)


def test_sequence_keeps_state(server: Running) -> None:
    assert step(server, [1.0, 1.0]).status == 409
    assert step(server, [1.0, 2.0], sequence_start=True).output() == [2.0, 4.0]
    assert step(server, [1.0, 2.0]).output() == [4.0, 8.0]
    other = {"sequence_id": "seven", "sequence_start": True}
    assert step(server, [1.0, 2.0], **other).output() == [2.0, 4.0]
    assert step(server, [1.0, 2.0, 3.0]).status == 400
    assert step(server, [0.0, 0.0], sequence_end=True).output() == [4.0, 8.0]
    assert step(server, [1.0, 1.0]).status == 409
    alone = server.ask("POST", "/v2/models/step/infer", {"inputs": rows({"x": [[1.0, 1.0]]})})
    assert alone.status == 400 and "name a 'sequence_id'" in alone.error


def test_sequence_state_moves_between_servers(server: Running, models: Path) -> None:
    step(server, [1.0, 2.0], sequence_start=True)
    saved = server.ask("GET", "/v2/models/step/sequences/7")
    assert saved.status == 200
    with serving(models) as second:
        path = "/v2/models/step/sequences/7"
        assert second.ask("PUT", path, saved.data).status == 200
        assert step(second, [1.0, 2.0]).output() == [4.0, 8.0]
        for wrong in (b"", b"x" * 100, saved.data[:-1]):
            assert second.ask("PUT", path, wrong).status == 400
        assert step(second, [1.0, 2.0]).status == 409
    assert step(server, [1.0, 2.0], sequence_end=True).output() == [4.0, 8.0]


def chat(server: Running, text: str, **argument: object) -> Answer:
    body = {"model": "echo", "messages": [{"role": "user", "content": text}], **argument}
    return server.ask("POST", "/v1/chat/completions", body)


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("none"), {"echo": Echo()}) as running:
        yield running


def test_chat(echo: Running) -> None:
    result = chat(echo, "one two three").json
    assert result["choices"][0]["message"]["content"] == "one two three"
    assert result["choices"][0]["finish_reason"] == "stop"
    assert result["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert chat(echo, "a b c d", max_tokens=2).json["choices"][0]["finish_reason"] == "length"
    stopped = chat(echo, "a b END c", stop=["END"]).json["choices"][0]
    assert stopped["message"]["content"] == "a b " and stopped["finish_reason"] == "stop"
    assert echo.ask("GET", "/v1/models").json["data"][0]["id"] == "echo"


def test_settings_that_are_null_ask_for_nothing(echo: Running) -> None:
    names = (
        "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop", "stream",
        "stream_options", "n", "logprobs", "top_logprobs", "tools", "tool_choice", "logit_bias",
        "response_format", "frequency_penalty", "presence_penalty", "parallel_tool_calls",
        "reasoning_effort", "user", "metadata",
    )  # fmt: skip
    answer = chat(echo, "one two", **dict.fromkeys(names)).json
    assert answer["choices"][0]["message"]["content"] == "one two"


def test_turns_of_assistants_may_have_calls_and_no_content(echo: Running) -> None:
    function = {"name": "f", "arguments": '{"x": [1]}'}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": None},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "user", "content": "go on", "name": "me"},
    ]
    answer = chat(echo, "", messages=messages).json
    assert answer["choices"][0]["message"]["content"] == "go on"
    parsed = parse_chat_request({"model": "echo", "messages": messages}).requests[0].messages
    assert parsed[1].content == ""
    assert parsed[1].tool_calls[0]["function"] == {"name": "f", "arguments": {"x": [1]}}
    assert (parsed[2].tool_call_id, parsed[2].name, parsed[4].name) == ("c1", "", "me")


def test_chat_as_events(echo: Running) -> None:
    result = chat(echo, "one two", stream=True, stream_options={"include_usage": True})
    assert result.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in result.data.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    chunks = [json.loads(event) for event in events]
    deltas = [c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]]
    assert "".join(deltas) == "one two"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("argument", "status", "message"),
    [
        ({"n": 0}, 400, "'n': a whole number from 1 to 128 expected"),
        ({"tools": [{}]}, 400, "'tools[0].type': 'function' expected"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            400,
            "'tools': model 'echo' does not honour it",
        ),
        ({"logprobs": True}, 400, "'logprobs': model 'echo' does not honour it"),
        ({"presence_penalty": 1}, 400, "'presence_penalty': model 'echo' does not honour it"),
        ({"logit_bias": {"1": 3}}, 400, "'logit_bias': model 'echo' does not honour it"),
        ({"top_k": 3}, 400, "'top_k': model 'echo' does not honour it"),
        ({"top_logprobs": 3}, 400, "'top_logprobs': 'logprobs' expected beside it"),
        ({"tool_choice": "required"}, 400, "'tool_choice': 'tools' expected beside it"),
        ({"functions": [{}]}, 400, "'functions': this value is not supported"),
        ({"stream_options": {"x": True}}, 400, "'stream_options.x' is not supported"),
        ({"prompt": "x"}, 400, "'prompt' is not supported"),
        ({"nonsense": 1}, 400, "'nonsense' is not supported"),
        ({"response_format": {"type": "grammar"}}, 400, "'response_format': 'text', 'json_object'"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "a",
                        "schema": {"type": "string", "contentEncoding": "base64"},
                    },
                }
            },
            400,
            "'response_format': schema: 'contentEncoding' is not supported here",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "null"}},
                }
            },
            400,
            "'response_format': model 'echo' gives texts of any form alone",
        ),
        ({"messages": [{"role": "user", "content": None}]}, 400, "'messages[0]': content of text"),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]},
            400,
            "'messages[0].tool_calls': calls by an assistant expected",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            400,
            "'messages[0].tool_calls[0]': a function with a name expected",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}],
                    }
                ]
            },
            400,
            "'messages[0].tool_calls[0]': an object in JSON expected as arguments",
        ),
        ({"temperature": 9}, 400, "'temperature': a number from 0 to 2 expected"),
        ({"max_tokens": 0}, 400, "'max_tokens': a whole number from 1"),
        ({"messages": []}, 400, "'messages': a list of messages expected"),
        ({"messages": [{"role": "x"}]}, 400, "'messages[0]': a role of"),
        ({"model": "none"}, 404, "no model of that name is there"),
        ({"messages": [{"role": "user", "content": "refuse"}]}, 400, "too long a conversation"),
        ({"messages": [{"role": "user", "content": "break"}]}, 500, "the server failed"),
    ],
)
def test_invalid_chats_are_refused(
    echo: Running, argument: dict[str, object], status: int, message: str
) -> None:
    result = chat(echo, "hello", **argument)
    assert result.status == status and result.json["error"]["message"].startswith(message)


def test_unread_answer_is_ended(tmp_path: Path) -> None:
    model = Echo()
    with serving(tmp_path, {"echo": model}) as server:
        connection = server.connect()
        body = {"model": "echo", "messages": [{"role": "user", "content": "on forever"}]}
        data = json.dumps({**body, "stream": True}).encode()
        connection.request("POST", "/v1/chat/completions", data)
        response = connection.getresponse()
        while b"forever" not in response.readline():  # until then the iterator may not have begun
            pass
        response.close()
        connection.close()
        assert model.closed.wait(20)
