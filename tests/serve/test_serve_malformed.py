"""Requests that are wrong in any way: refused, or right after all; nothing is left or told."""

from __future__ import annotations

import copy
import io
import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Answer, Running, rows, serving

from ekiden.runtime import memory_stats
from ekiden.serve.logs import JsonLog
from long_runs import sizes

SECRET = "s3cr3t-w0rd"
TOKEN = "t0ken-that-nobody-may-see"
GOOD = {"id": SECRET, "inputs": rows({"x": [[1.0, 2.0, 3.0, 4.0]]})}
PATHS = ("/v2/models/soft/infer", "/v2/models/whole/infer", "/v2/models/step/infer")
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from([SECRET, "x", "FP32", "BYTES", "INT64", "shape", [1, 4], [1, 2, 3, 4]]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
    """Where something may be changed."""
    yield path
    if not isinstance(value, (dict, list)):
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from places(item, (*path, key))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A good body with up to three changes, or bytes."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.binary(max_size=40))
    body: Any = copy.deepcopy(GOOD)
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from([p for p in places(body) if p]))
        holder = body
        for key in path:
            holder = holder[key]
        if draw(st.booleans()):
            holder[last] = copy.deepcopy(draw(JSON))  # it may be changed next
        else:
            del holder[last]
        if not any(places(body)) or not body:
            return b"{}"
    return json.dumps(body).encode()


@pytest.fixture(scope="module")
def guarded(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(TOKEN)
    with serving(models, token_file=str(tokens), log="debug") as running:
        stream = io.StringIO()
        running.server.engine.log = JsonLog("debug", stream)
        yield running
        written = stream.getvalue()
        assert written.count('"request"') > 10
        for secret in (SECRET, TOKEN, "Bearer"):
            assert secret not in written


def check(result: Answer, folder: Path) -> None:
    assert result.status in (200, 400, 401, 404, 405, 409, 413, 415), (result.status, result.data)
    if result.status == 200:
        return
    text = result.error
    assert text and "Traceback" not in text and ".py" not in text and str(folder) not in text
    assert TOKEN not in text


def is_right(body: bytes, result: Answer, path: str) -> bool:
    """Whether an answer is that of the tensor that the body has after all."""
    x = np.array(json.loads(body)["inputs"][0]["data"], np.float64).reshape(-1, 4)
    actual = np.array(result.json["outputs"][0]["data"], np.float64).reshape(-1, 4)
    e = np.exp(x - x.max(-1, keepdims=True)) if path == PATHS[0] else x * 2
    return np.allclose(actual, e / e.sum(-1, keepdims=True) if path == PATHS[0] else e, atol=1e-6)


@sizes("count", 120, 2000)
def test_mutated_bodies_are_refused_or_answered(guarded: Running, models: Path, count: int) -> None:
    statuses: list[int] = []

    @settings(
        max_examples=count, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(bodies(), st.sampled_from(PATHS), st.sampled_from(["", "0", "7", "x", "99999"]))
    def ask(body: bytes, path: str, header: str) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if header:
            headers["Inference-Header-Content-Length"] = header
        result = guarded.ask("POST", path, body, headers)
        check(result, models)
        if result.status == 200 and not header:
            assert is_right(body, result, path)
        statuses.append(result.status)

    threads, memory = threading.active_count(), memory_stats().in_use
    ask()
    assert sum(400 <= status < 500 for status in statuses) > count / 2
    assert guarded.server.engine.in_flight == 0
    assert threading.active_count() <= threads + 1
    assert memory_stats().in_use <= memory + (1 << 20)
    for model in guarded.server.engine.repository.models.values():
        assert all(v.num_users == len(model.sequences) for v in model.versions.values())


@sizes("count", 60, 1000)
def test_mutated_request_lines_are_refused_or_answered(
    guarded: Running, models: Path, count: int
) -> None:
    """Methods, paths, headers and bytes that are no HTTP."""
    names = st.text("abcdefgvz0129./%-", max_size=12)

    @settings(
        max_examples=count, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"]),
        st.lists(st.one_of(names, st.sampled_from(["v2", "models", "soft", "v1", "infer"]))),
        st.sampled_from([f"Bearer {TOKEN}", "Bearer", "Basic x", TOKEN, SECRET]),
        st.binary(max_size=30),
    )
    def ask(method: str, path: list[str], token: str, body: bytes) -> None:
        target = "/" + "/".join(path)
        result = guarded.ask(method, target, body, {"Authorization": token})
        if method == "HEAD" or result.status == 200:
            return
        assert 400 <= result.status < 500 or result.status in (307,), (result.status, result.data)

    ask()
    rng = np.random.default_rng(0)
    for _ in range(count // 4):
        with socket.create_connection(("127.0.0.1", guarded.port), 30) as s:
            s.sendall(rng.bytes(40) + b"\r\n\r\n")
            s.shutdown(socket.SHUT_WR)
            answer = s.recv(1000)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert guarded.ask("GET", "/v2/health/live").status == 200


def test_answers_are_of_the_protocols_schema(server: Running) -> None:
    """Against the protocol's own file, where EKIDEN_INFERENCE_PROTOCOL names the folder of it."""
    folder = os.environ.get("EKIDEN_INFERENCE_PROTOCOL")
    if not folder:
        pytest.skip("EKIDEN_INFERENCE_PROTOCOL, the folder of open_inference_rest.yaml, is not set")
    jsonschema = pytest.importorskip("jsonschema", reason="needs the package jsonschema")
    yaml = pytest.importorskip("yaml", reason="needs the package PyYAML")
    document = yaml.safe_load((Path(folder) / "open_inference_rest.yaml").read_text())
    soft = "/v2/models/soft/versions/1"
    cases = {
        "metadata_server_response": server.ask("GET", "/v2/"),
        "metadata_model_response": server.ask("GET", soft),
        "inference_response": server.ask("POST", f"{soft}/infer", GOOD),
        "inference_error_response": server.ask("POST", f"{soft}/infer", b"{"),
        "metadata_model_error_response": server.ask("GET", "/v2/models/none/versions/1"),
    }
    for name, case in cases.items():
        schema = {**document, "$ref": f"#/components/schemas/{name}"}
        jsonschema.Draft4Validator(schema).validate(case.json)
    for path, methods in document["paths"].items():
        place = path.replace("${MODEL_NAME}", "soft").replace("${MODEL_VERSION}", "1")
        for method in methods.keys() - {"parameters"}:
            assert (
                server.ask(method.upper(), place, GOOD if method == "post" else None).status == 200
            )
