"""Clients of others, as they are published: tritonclient over HTTP and gRPC, and openai."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from serving import Running, serving
from toy_text import Echo

X = np.random.default_rng(0).random((3, 4)).astype(np.float32)
KINDS = ("http", "grpc")


def triton(kind: str) -> ModuleType:
    return pytest.importorskip(
        f"tritonclient.{kind}", reason=f"needs the package tritonclient[{kind}]"
    )


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: Running) -> Iterator[tuple[ModuleType, Any]]:
    module = triton(request.param)
    port = server.port if request.param == "http" else server.server.grpc_port
    result = module.InferenceServerClient(f"127.0.0.1:{port}")
    yield module, result
    result.close()


def inputs(
    module: ModuleType, name: str, arrays: dict[str, np.ndarray], datatype: str
) -> list[Any]:
    result = []
    for key, array in arrays.items():
        result.append(module.InferInput(key, list(array.shape), datatype))
        result[-1].set_data_from_numpy(array)
    return result


def test_triton_client_reads_metadata(client: tuple[ModuleType, Any]) -> None:
    _, c = client
    assert c.is_server_live() and c.is_server_ready() and c.is_model_ready("soft")
    metadata = c.get_server_metadata()
    name = metadata["name"] if isinstance(metadata, dict) else metadata.name
    assert name == "ekiden"
    metadata = c.get_model_metadata("add", "1")
    result = metadata["inputs"] if isinstance(metadata, dict) else metadata.inputs
    assert len(result) == 2


def test_triton_client_infers(client: tuple[ModuleType, Any]) -> None:
    module, c = client
    result = c.infer("add", inputs(module, "add", {"x": X, "y": X}, "FP32"), request_id="7")
    assert np.array_equal(result.as_numpy("output0"), X + X)
    outputs = [module.InferRequestedOutput("output0")]
    whole = np.arange(4, dtype=np.int64).reshape(1, 4)
    result = c.infer(
        "whole", inputs(module, "whole", {"x": whole}, "INT64"), outputs=outputs, priority=1,
        timeout=10_000_000,
    )  # fmt: skip
    assert np.array_equal(result.as_numpy("output0"), whole * 2)


def test_triton_client_receives_errors(client: tuple[ModuleType, Any]) -> None:
    from tritonclient.utils import InferenceServerException

    module, c = client
    with pytest.raises(InferenceServerException, match="no model of that name is there"):
        c.infer("none", inputs(module, "add", {"x": X}, "FP32"))
    with pytest.raises(InferenceServerException, match="the input 'y' is missing"):
        c.infer("add", inputs(module, "add", {"x": X}, "FP32"))


def test_triton_client_runs_sequences(client: tuple[ModuleType, Any]) -> None:
    module, c = client
    one = np.ones((1, 2), np.float32)
    result = [
        c.infer(
            "step", inputs(module, "step", {"x": one}, "FP32"), sequence_id=99,
            sequence_start=at == 0, sequence_end=at == 2,
        ).as_numpy("output0").tolist()
        for at in range(3)
    ]  # fmt: skip
    assert result == [[[2.0, 2.0]], [[4.0, 4.0]], [[6.0, 6.0]]]


def test_triton_client_controls_repository(client: tuple[ModuleType, Any]) -> None:
    module, c = client
    # Over HTTP what changes the server says that it is JSON, which no page of another may.
    headers = {"headers": {"Content-Type": "application/json"}} if "http" in module.__name__ else {}
    c.load_model("fixed", **headers)
    index = c.get_model_repository_index()
    rows = index if isinstance(index, list) else index.models
    assert len(rows) >= 6
    c.unload_model("fixed", **headers)
    assert not c.is_model_ready("fixed")
    c.load_model("fixed", **headers)


def test_many_at_once_over_http(server: Running) -> None:
    module = triton("http")
    c = module.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8)
    asked = [
        c.async_infer("add", inputs(module, "add", {"x": X * at, "y": X}, "FP32"))
        for at in range(32)
    ]
    for at, item in enumerate(asked):
        assert np.array_equal(item.get_result().as_numpy("output0"), X * at + X)
    c.close()


def test_stream_over_grpc(server: Running) -> None:
    module = triton("grpc")
    import queue

    actual: queue.Queue[Any] = queue.Queue()
    c = module.InferenceServerClient(f"127.0.0.1:{server.server.grpc_port}")
    c.start_stream(lambda result, error: actual.put((result, error)))
    for at in range(4):
        c.async_stream_infer("add", inputs(module, "add", {"x": X * at, "y": X}, "FP32"))
    c.async_stream_infer("none", inputs(module, "add", {"x": X}, "FP32"))
    for at in range(4):
        result, error = actual.get(timeout=30)
        assert error is None and np.array_equal(result.as_numpy("output0"), X * at + X)
    assert "no model of that name" in str(actual.get(timeout=30)[1])
    c.stop_stream()
    c.close()


def test_openai_client_chats(tmp_path: Path) -> None:
    openai = pytest.importorskip("openai", reason="needs the package openai")
    tokens = tmp_path / "tokens"
    tokens.write_text("a-long-enough-token\n")
    models = tmp_path / "models"
    models.mkdir()
    with serving(models, {"echo": Echo()}, token_file=str(tokens)) as server:
        base = f"http://127.0.0.1:{server.port}/v1"
        with openai.OpenAI(base_url=base, api_key="a-long-enough-token", max_retries=0) as c:
            assert [m.id for m in c.models.list()] == ["echo"]
            message = [{"role": "user", "content": "one two three"}]
            result = c.chat.completions.create(model="echo", messages=message)
            assert result.choices[0].message.content == "one two three"
            assert result.usage.completion_tokens == 3
            events = c.chat.completions.create(model="echo", messages=message, stream=True)
            texts = [e.choices[0].delta.content or "" for e in events]
            assert "".join(texts) == "one two three" and len(texts) >= 4
            with pytest.raises(openai.NotFoundError):
                c.chat.completions.create(model="none", messages=message)
            several = c.chat.completions.create(model="echo", messages=message, n=3)
            assert [choice.index for choice in several.choices] == [0, 1, 2]
            with pytest.raises(openai.BadRequestError, match="'n': a whole number") as caught:
                c.chat.completions.create(model="echo", messages=message, n=0)
            assert caught.value.param == "n" and caught.value.type == "invalid_request_error"
        with (
            openai.OpenAI(base_url=base, api_key="wrong", max_retries=0) as wrong,
            pytest.raises(openai.AuthenticationError),
        ):
            wrong.models.list()
