"""The sentences of docs/security.md about serving models, each as a test."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from chromium import chromium, served
from ekiden.runtime.errors import RequestError, ServeError
from ekiden.serve import Message, Piece, Sampling, Server
from ekiden.serve.bounded_json import (
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
    MAX_SKELETON_BYTES,
    SCAN_CHUNK_BYTES,
    parse_bounded_object,
)
from ekiden.serve.config import ServerConfig
from ekiden.serve.content_encoding import INPUT_STEP_BYTES, decompress_body
from ekiden.serve.datatypes import DATATYPE_BY_NAME, MAX_STRING_ELEMENTS
from ekiden.serve.grpc_messages import create_message, parse_request
from ekiden.serve.grpc_scan import encode_varint
from ekiden.serve.http_messages import parse_infer_request
from ekiden.serve.json_tensors import parse_tensor
from ekiden.serve.security import exposure_warnings

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))

from serving import Answer, Running, put, rows, serving

X = [[1.0, 2.0, 3.0, 4.0]]
INFER = "/v2/models/soft/infer"
LOAD = "/v2/repository/models/soft/load"
UNLOAD = "/v2/repository/models/soft/unload"
JSON = {"Content-Type": "application/json"}
EVIL = {"Origin": "https://evil.example"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    put(folder, "soft")
    put(folder, "step", config='[sequences]\nstate = { "h" = "output1" }\n')
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Running]:
    with serving(models, grpc=False) as running:
        yield running


def step_body() -> dict[str, object]:
    parameters = {"sequence_id": 7, "sequence_start": True}
    return {"inputs": rows({"x": [[1.0, 1.0]]}), "parameters": parameters}


# Who may ask.


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example"])
def test_foreign_host_header_is_refused(server: Running, host: str) -> None:
    """DNS rebinding: a page's own name that resolves to 127.0.0.1."""
    for method, path in (("GET", "/v2"), ("POST", INFER), ("POST", LOAD), ("GET", "/metrics")):
        answer = server.ask(method, path, {"inputs": rows({"x": X})}, {"Host": host})
        assert answer.status == 403 and "only localhost, IP addresses" in answer.error


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8000", "[::1]:8000", "app.localhost"])
def test_local_host_names_and_addresses_are_accepted(server: Running, host: str) -> None:
    assert server.ask("GET", "/v2", headers={"Host": host}).status == 200


def test_health_endpoint_accepts_any_host(server: Running) -> None:
    assert server.ask("GET", "/v2/health/live", headers={"Host": "probe"}).status == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "http://127.0.0.1:3000"]
)
def test_page_of_another_origin_is_refused(server: Running, origin: str) -> None:
    headers = {**JSON, "Origin": origin}
    for method, path in (("POST", INFER), ("POST", LOAD), ("GET", "/v2"), ("POST", UNLOAD)):
        answer = server.ask(method, path, {"inputs": rows({"x": X})}, headers)
        assert answer.status == 403 and "pages of other origins" in answer.error, path
    assert server.infer("soft", x=X).status == 200


def test_request_without_origin_needs_fetch_metadata(server: Running) -> None:
    headers = {**JSON, "Sec-Fetch-Site": "cross-site"}
    assert server.ask("POST", LOAD, {}, headers).status == 403


def test_same_origin_and_allowed_hosts_are_accepted(models: Path) -> None:
    (models / "serve.toml").write_text('[server]\nallowed_hosts = ["app.example"]\n')
    try:
        with serving(models, grpc=False) as server:
            own = {"Origin": f"http://127.0.0.1:{server.port}"}
            assert server.ask("GET", "/v2", headers=own).status == 200
            for headers in ({"Host": "app.example"}, {"Origin": "https://app.example"}):
                assert server.ask("GET", "/v2", headers=headers).status == 200
            assert server.ask("GET", "/v2", headers=EVIL).status == 403
    finally:
        (models / "serve.toml").unlink()


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
def test_state_changes_require_json_content_type(server: Running, kind: str) -> None:
    """A browser asks before it sends JSON to another origin; of other types it does not ask."""
    headers = {"Content-Type": kind} if kind else {}
    for path in (LOAD, UNLOAD):
        answer = server.ask("POST", path, b"{}", headers)
        assert answer.status == 415 and "application/json expected" in answer.error
    if kind:
        body = json.dumps(step_body()).encode()
        assert server.ask("POST", "/v2/models/step/infer", body, headers).status == 415
    assert server.ask("POST", LOAD, b"{}", {"Content-Type": "application/json; charset=utf-8"})
    assert server.infer("soft", x=X).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_image_of_a_page_loads_no_model_on_demand(models: Path, site: str) -> None:
    """A browser sends a GET without an origin, for an image as for a link."""
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    with serving(models, grpc=False, load="demand") as server:
        for path in ("/v2/models/soft", "/v2/models/soft/config", "/v2", "/metrics"):
            for method in ("GET", "HEAD"):
                assert server.ask(method, path, headers=headers).status == 403, path
        assert not server.server.engine.repository.get("soft").versions
        assert server.ask("GET", "/", headers=headers).status != 403
        for own in ("same-origin", "none"):
            assert server.ask("GET", "/v2", headers={"Sec-Fetch-Site": own}).status == 200


def test_no_preflight_is_granted(server: Running) -> None:
    headers = {**EVIL, "Access-Control-Request-Method": "POST"}
    answer = server.ask("OPTIONS", LOAD, headers=headers)
    assert answer.status in (403, 405)
    assert not any(name.lower().startswith("access-control") for name in answer.headers)


def test_control_requires_token_or_permission(models: Path, tmp_path: Path) -> None:
    with serving(models, grpc=False, allow_control=False) as server:
        for path in (LOAD, UNLOAD):
            answer = server.ask("POST", path, {})
            assert answer.status == 403 and "--allow-control" in answer.error
        assert server.infer("soft", x=X).status == 200
    (tmp_path / "owners").write_text("fedcba9876543210\n")
    with serving(models, grpc=False, control_token_file=str(tmp_path / "owners")) as server:
        assert server.infer("soft", x=X).status == 200  # to ask needs none
        assert server.ask("POST", LOAD, {}).status == 403
        owner = {"Authorization": "Bearer fedcba9876543210"}
        assert server.ask("POST", LOAD, {}, owner).status == 200


def test_control_without_token_is_loopback_only(models: Path) -> None:
    with pytest.raises(ServeError, match="allow_control is for the loopback interface"):
        Server(models, host="0.0.0.0", open=True, allow_control=True)


def test_server_without_options_is_this_machines(models: Path) -> None:
    assert ServerConfig().host == "127.0.0.1"
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(ServeError, match="token|open"):
            Server(models, host=host)


def test_open_server_warns_of_exposure(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(
        models, host="0.0.0.0", open=True, log="warning", allow_control=False, grpc=False
    ) as server:
        assert server.ask("POST", LOAD, {}).status == 403
        config = server.server.config
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    message = next(line for line in lines if line["event"] == "open")
    assert message["what"] == exposure_warnings(config)
    for part in ("run models", "sequences", "metrics", "to load and unload: nobody may"):
        assert part in message["what"]


def test_page_in_chromium_cannot_change_state(models: Path, tmp_path: Path) -> None:
    """With all that a page can do: fetch in each mode, forms, beacons, and images."""
    (tmp_path / "page.html").write_text("<!doctype html><link rel=icon href='data:,'>")
    with serving(models, grpc=False) as server, served(tmp_path) as address, chromium() as browser:
        page = browser.new_page()
        page.goto(f"{address}page.html")
        for host in ("127.0.0.1", "localhost"):
            page.evaluate(ATTACK, f"http://{host}:{server.port}")
        page.set_content(FORM.format(f"http://127.0.0.1:{server.port}{UNLOAD}"))
        with page.expect_navigation():
            page.evaluate("document.forms[0].submit()")
        assert "pages of other origins" in page.content() or "application/json" in page.content()
        page.close()
        for name in ("soft", "step"):
            assert server.ask("GET", f"/v2/models/{name}/ready").json["ready"], name
        assert not server.server.engine.repository.get("step").sequences.items()


ATTACK = """async (server) => {
  const sent = [];
  for (const name of ["soft", "step"]) for (const what of ["unload", "load"])
    for (const mode of ["no-cors", "cors"])
      for (const kind of [null, "text/plain", "application/json"]) {
        const headers = kind ? {"Content-Type": kind} : {};
        const url = `${server}/v2/repository/models/${name}/${what}`;
        sent.push(fetch(url, {method: "POST", mode, headers, body: kind ? "{}" : null}));
      }
  const step = JSON.stringify({inputs: [{name: "x", shape: [1, 2], datatype: "FP32",
    data: [1, 1]}], parameters: {sequence_id: 7, sequence_start: true}});
  for (const kind of ["text/plain", "application/json"])
    sent.push(fetch(`${server}/v2/models/step/infer`,
      {method: "POST", mode: "no-cors", headers: {"Content-Type": kind}, body: step}));
  sent.push(fetch(`${server}/v2/models/step/sequences/7`, {method: "PUT", body: "x"}));
  navigator.sendBeacon(`${server}/v2/repository/models/soft/unload`, "{}");
  await Promise.allSettled(sent);
}"""
FORM = "<form method=post enctype=text/plain action='{}'><input name='{{' value='}}'></form>"


# What bodies become.


def test_duplicate_requested_output_is_refused(server: Running) -> None:
    """20,000 times made an answer of 1.57 GB of a request of 1.1 MB."""
    for count in (2, 20_000):
        body = {"inputs": rows({"x": X}), "outputs": [{"name": "output0"}] * count}
        answer = server.ask("POST", INFER, body)
        assert answer.status in (400, 413) and len(answer.data) < 1000
    body = {"inputs": rows({"x": X}), "outputs": [{"name": "output0"}]}
    assert server.ask("POST", INFER, body).status == 200


def test_oversized_response_is_refused_before_the_run(models: Path) -> None:
    with serving(models, grpc=False, limits={"answer_bytes": 1000}) as server:
        batcher = server.server.engine.repository.get("soft").get().batcher
        ran = batcher._count
        answer = server.infer("soft", x=X * 100)
        assert answer.status == 413 and "the answer would have 1600 bytes" in answer.error
        assert batcher._count == ran
        assert server.infer("soft", x=X).status == 200


def nested(value: bytes, count: int) -> bytes:
    return b'{"inputs":[' + b",".join([value] * count) + b"]}"


@pytest.mark.parametrize(
    "body",
    [
        nested(b"{}", 20_000),
        nested(b"[]", 20_000),
        nested(b"1", 50_000),
        b"{" + b",".join([b'"k":1'] * 20_000) + b"}",
        b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":['
        + b",".join([b"[]"] * 40_000) + b"]}]}",
        b'{"a":{"b":{"c":[' + b",".join([b"{}"] * 40_000) + b"]}}}",
        b"[" * 100_000,
        b'{"id":"' + b'\\"' * 1_000_000 + b'"}',
        b'{"id":' + b" " * 2_000_000 + b"1}",
    ],
)  # fmt: skip
def test_body_of_many_values_is_refused(server: Running, body: bytes) -> None:
    answer = server.ask("POST", INFER, body, JSON)
    assert answer.status in (400, 413), answer.data
    for data in (body, body.replace(b'"', b"'")):
        with pytest.raises(RequestError):
            parse_infer_request("m", "", data, "")


def test_bounds_of_json_are_those_of_the_page() -> None:
    assert (MAX_JSON_DEPTH, MAX_JSON_VALUES, MAX_SKELETON_BYTES) == (64, 16_384, 1 << 20)
    assert MAX_STRING_ELEMENTS == 1_048_576
    deep = b'{"inputs":' + b"[" * 64 + b" " * SCAN_CHUNK_BYTES + b"]" * 64 + b"}"
    with pytest.raises(RequestError, match="at most 64 levels"):
        parse_infer_request("m", "", deep, "")
    with pytest.raises(RequestError):
        parse_infer_request("m", "", tensor_text("[]", (MAX_STRING_ELEMENTS + 1,), "BYTES"), "")


def tensor_text(values: str, shape: Sequence[int], datatype: str = "FP64") -> bytes:
    row = {"name": "x", "shape": list(shape), "datatype": datatype, "data": 0}
    return json.dumps({"inputs": [row]}).replace('"data": 0', f'"data": {values}').encode()


@pytest.mark.parametrize("shape", [(9000,), (3, 3000), (10, 30, 30), (1, 1, 9000), (9000, 1)])
def test_long_arrays_are_read_as_short_ones(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape)
    for text in (json.dumps(array.tolist()), json.dumps(array.ravel().tolist(), indent=1)):
        assert len(text) > 2 * SCAN_CHUNK_BYTES
        request = parse_infer_request("m", "", tensor_text(text, shape), "")
        assert np.array_equal(request.inputs["x"], array)


def test_long_arrays_of_texts_are_read_whatever_stands_in_them() -> None:
    letters = ['a"b', "\\", "[,]{}:", "", "é\n", '\\"', "x" * 50]
    texts = [letters[n % len(letters)] + str(n) for n in range(6000)]
    for array in (texts, np.reshape(texts, (2, 3000)).tolist()):
        shape = np.shape(array)
        for escapes in (True, False):
            text = json.dumps(array, ensure_ascii=escapes)
            request = parse_infer_request("m", "", tensor_text(text, shape, "BYTES"), "")
            assert request.inputs["x"].ravel().tolist() == texts


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda text: text[:-1] + ",]", "no JSON"),
        (lambda text: "[," + text[1:], "no JSON"),
        (lambda text: text.replace(",", ",,", 1), "no JSON"),
        (lambda text: text.replace(",", "[,", 1), "no JSON"),
        (lambda text: text.replace(",", "],[", 1), "no JSON|9000 elements"),
        (lambda text: "[" + text + "]", "no JSON|9000 elements"),
        (lambda text: text.replace(",", ',"1",', 1), "values of FP64 expected"),
        (lambda text: text.replace(",", ",true,", 1), "values of FP64 expected"),
        (lambda text: text.replace(",", ",1e999,", 1), "."),
        (lambda text: text.replace(",", ",{},", 1), "."),
        (lambda text: text.replace(",", ",01,", 1), "no JSON"),
        (lambda text: text.replace(",", ",.5,", 1), "no JSON"),
        (lambda text: text[: len(text) // 2] + "]", "9000 elements"),
    ],
)
def test_long_arrays_are_no_more_than_json(change: object, status: str) -> None:
    text = json.dumps(np.random.default_rng(0).standard_normal(9000).tolist())
    assert callable(change)
    with pytest.raises(RequestError, match=status):
        parse_infer_request("m", "", tensor_text(change(text), (9000,)), "")


def test_brackets_of_long_nested_arrays_stand_as_the_shape_says() -> None:
    rows_of = np.random.default_rng(0).standard_normal((3000, 3)).tolist()
    good = json.dumps(rows_of, separators=(",", ":"))
    for wrong in (
        good.replace("],[", ",", 1), good.replace(",", "[,", 1), good.replace("],[", "][", 1),
        good.replace("],[", "],[[", 1), good[1:-1], good.replace("[", " ", 1),
    ):  # fmt: skip
        with pytest.raises(RequestError):
            parse_tensor("x", DATATYPE_BY_NAME["FP64"], [3000, 3], memoryview(wrong.encode()))


def test_tensors_of_a_request_have_no_more_bytes_than_a_body_may(models: Path) -> None:
    """Values of two bytes each would become eight."""
    with serving(models, grpc=False, limits={"body_bytes": 100_000}) as server:
        body = tensor_text("[" + ",".join(["1"] * 40_000) + "]", (10_000, 4), "FP64")
        answer = server.ask("POST", INFER, body, JSON)
        assert answer.status == 413 and "too large" in answer.error


def test_total_size_of_incoming_bodies_is_bounded(models: Path) -> None:
    with serving(models, grpc=False, limits={"held_bytes": 100_000}) as server:
        half = b'{"inputs": ' + b" " * 70_000
        head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 80000\r\n\r\n".encode()
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.sendall(head + half)
            while server.server.engine._held < 60_000:
                time.sleep(0.002)
            assert server.infer("soft", x=X).status == 200  # what is small needs no room
            answer = server.ask("POST", INFER, half + b" " * 10_000, JSON)
            assert answer.status == 429 and answer.headers["retry-after"]
        while server.server.engine._held:
            time.sleep(0.002)
        assert server.ask("POST", INFER, half, JSON).status == 400


def test_request_to_a_model_of_text_has_a_bound_of_its_own(models: Path) -> None:
    with serving(models, {"echo": Waiting()}, grpc=False, limits={"text_bytes": 1000}) as server:
        body = {"model": "echo", "messages": [{"role": "user", "content": "x" * 1000}]}
        assert server.ask("POST", "/v1/chat/completions", body).status == 413
        body["stop"] = "x" * 2000
        body["messages"] = [{"role": "user", "content": "x"}]
        with pytest.raises(RequestError, match="more than 16384 values"):
            parse_bounded_object(b'{"messages":[' + b",".join([b"{}"] * 40_000) + b"]}")


def test_stop_strings_are_bounded(models: Path) -> None:
    with serving(models, {"echo": Waiting()}, grpc=False) as server:
        message = [{"role": "user", "content": "x"}]
        body = {"model": "echo", "messages": message, "stop": "a" * 5000}
        answer = server.ask("POST", "/v1/chat/completions", body)
        assert answer.status == 400 and "up to 1024 letters" in answer.json["error"]["message"]


def empty_blocks(size: int) -> bytes:
    """Return a stream of deflate whose blocks, of five bytes each, have no content."""
    return b"\x78\x01" + b"\x00\x00\x00\xff\xff" * (size // 5) + zlib.compress(b"{}")[2:]


@pytest.mark.parametrize(
    "body", [empty_blocks(2 << 20), zlib.compress(np.random.default_rng(0).bytes(2 << 20), 0)]
)
def test_loop_runs_between_the_steps_of_a_compressed_body(body: bytes) -> None:
    """Whether or not a step has output; and no step copies the whole rest."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def decompress() -> None:
        counting = asyncio.ensure_future(count_turns())
        with suppress(RequestError):
            await decompress_body(body, b"deflate", 64 << 20, lambda count: None)
        counting.cancel()

    asyncio.run(decompress())
    assert turns >= len(body) // INPUT_STEP_BYTES


# gRPC.


def request_of(array: np.ndarray, datatype: str, **contents: object) -> bytes:
    row = {"name": "x", "datatype": datatype, "shape": list(array.shape), "contents": contents}
    return bytes(
        create_message("ModelInferRequest", model_name="m", inputs=[row]).SerializeToString()
    )


def test_long_messages_are_read_as_short_ones() -> None:
    rng = np.random.default_rng(0)
    for datatype, dtype, name in (
        ("FP32", np.float32, "fp32_contents"), ("FP64", np.float64, "fp64_contents"),
        ("INT32", np.int32, "int_contents"), ("INT64", np.int64, "int64_contents"),
        ("INT8", np.int8, "int_contents"), ("UINT64", np.uint64, "uint64_contents"),
        ("UINT16", np.uint16, "uint_contents"), ("BOOL", np.bool_, "bool_contents"),
    ):  # fmt: skip
        if np.dtype(dtype).kind in "iu":
            info = np.iinfo(dtype)
            array = rng.integers(info.min, info.max, (30_000, 4), dtype, endpoint=True)
        else:
            array = (rng.standard_normal((30_000, 4)) * 2).astype(dtype)
        data = request_of(array, datatype, **{name: array.ravel().tolist()})
        result = parse_request(data, 1 << 30).inputs["x"]
        assert result.dtype == dtype and np.array_equal(result, array), datatype
    wide = np.full((30_000, 1), 300)
    with pytest.raises(RequestError, match="out of the range of INT8"):
        parse_request(request_of(wide, "INT8", int_contents=wide.ravel().tolist()), 1 << 30)
    with pytest.raises(RequestError, match="30001 elements expected, got 30000"):
        short = np.zeros((30_001, 1))
        parse_request(request_of(short, "FP64", fp64_contents=[0.0] * 30_000), 1 << 30)


@pytest.mark.parametrize("unit", [b"\x2a\x00", b"\x3a\x00", b"\x22\x00", b"\x32\x00"])
def test_message_of_many_fields_is_refused(unit: bytes) -> None:
    """64 MB of empty inputs became 3 GB."""
    with pytest.raises(RequestError, match="too much beside its tensors"):
        parse_request(unit * 1_000_000, 1 << 30)


def test_parsed_long_message_size_is_bounded() -> None:
    count = 1_000_000
    packed = b"\x1a" + encode_varint(count) + b"\x01" * count
    row = create_message(
        "ModelInferRequest.InferInputTensor", name="x", datatype="INT64", shape=[count]
    )
    inner = bytes(row.SerializeToString()) + b"\x2a" + encode_varint(len(packed)) + packed
    data = b"\x2a" + encode_varint(len(inner)) + inner
    assert parse_request(data, 8 * count).inputs["x"].sum() == count
    with pytest.raises(RequestError, match="too large"):
        parse_request(data, 8 * count - 1)


def test_long_bytes_that_are_no_message_are_refused() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        with pytest.raises(RequestError):
            parse_request(rng.bytes(20_000), 1 << 30)


# Texts: one that is slow, gone or late stops no others.


class Waiting:
    """An iterator whose pieces come when the test says so."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Semaphore(0), threading.Semaphore(0)
        self.closed = threading.Semaphore(0)

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        return 1

    def generate(self, messages: Sequence[Message], sampling: Sampling) -> Iterator[Piece]:
        try:
            while True:
                self.asked.release()
                self.go.acquire()
                yield Piece("word ")
        finally:
            self.closed.release()


def begin_chat(server: Running, *, stream: bool) -> socket.socket:
    message = [{"role": "user", "content": "x"}]
    body = json.dumps({"model": "slow", "messages": message, "stream": stream}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port), 30)
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_generation_ends_when_client_disconnects(models: Path, stream: bool) -> None:
    """Also where a thread is inside the model just then: the iterator is closed after it."""
    model = Waiting()
    with serving(models, {"slow": model}, grpc=False) as server:
        version = server.server.engine.repository.get("slow").get()
        for _ in range(3):
            connection = begin_chat(server, stream=stream)
            assert model.asked.acquire(timeout=30)
            connection.close()
            while version.num_users:
                time.sleep(0.002)
            model.go.release()
            assert model.closed.acquire(timeout=30)


def ask_soft(server: Running) -> Answer:
    return server.infer("soft", x=X)


def test_request_of_disconnected_client_is_not_run(models: Path) -> None:
    with serving(models, grpc=False) as server:
        engine = server.server.engine
        version = engine.repository.get("soft").get()
        version.batcher._instances = 0  # nothing runs
        body = json.dumps({"inputs": rows({"x": X})}).encode()
        head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection = socket.create_connection(("127.0.0.1", server.port), 30)
        connection.sendall(head.encode() + body)
        while not version.num_users:
            time.sleep(0.002)
        connection.close()
        while version.num_users or engine.in_flight:
            time.sleep(0.002)
        version.batcher._instances = 1
        assert ask_soft(server).status == 200
