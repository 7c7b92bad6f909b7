"""The Open Inference Protocol over HTTP: what is asked, what is answered, what is refused."""

from __future__ import annotations

import gc
import gzip
import json
import socket
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from serving import Answer, Running, ask_on, put, rows, serving

from ekiden.runtime.errors import ServeError
from ekiden.serve import Server

X = [[1.0, 2.0, 3.0, 4.0]]
SOFT = "/v2/models/soft/infer"


def softmax(x: object) -> np.ndarray:
    result = np.exp(np.asarray(x, np.float64))
    return result / result.sum(-1, keepdims=True)


def test_server_and_model_metadata(server: Running) -> None:
    assert server.ask("GET", "/v2").json["name"] == "ekiden"
    assert server.ask("GET", "/v2/models/soft").json == {
        "name": "soft",
        "versions": ["1"],
        "platform": "ekiden_eki",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "output0", "datatype": "FP32", "shape": [-1, 4]}],
    }
    assert server.ask("GET", "/v2/models/soft/versions/1").status == 200
    assert server.ask("GET", "/v2/models/soft/versions/2").status == 404


def test_state_inputs_are_not_listed_as_ports(server: Running) -> None:
    result = server.ask("GET", "/v2/models/step").json
    assert [p["name"] for p in (*result["inputs"], *result["outputs"])] == ["x", "output0"]


def test_health_endpoints_answer(server: Running) -> None:
    assert server.ask("GET", "/v2/health/live").json == {"live": True}
    assert server.ask("GET", "/v2/health/ready").json == {"ready": True}
    assert server.ask("GET", "/v2/models/soft/ready").json == {"name": "soft", "ready": True}
    assert server.ask("GET", "/v2/models/none/ready").status == 404


def test_json_inference_matches(server: Running) -> None:
    body = {"id": "42", "inputs": rows({"x": X}), "outputs": [{"name": "output0"}]}
    result = server.ask("POST", "/v2/models/soft/infer", body)
    assert result.json["id"] == "42" and result.json["model_version"] == "1"
    assert np.allclose(result.output(), softmax(X), rtol=1e-5)
    flat = [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": list(range(8))}]
    assert len(server.ask("POST", "/v2/models/soft/infer", {"inputs": flat}).output()) == 8


def binary(arrays: dict[str, np.ndarray], binary_output: bool = True) -> tuple[bytes, str]:
    inputs = [
        {
            "name": name,
            "shape": list(a.shape),
            "datatype": "FP32",
            "parameters": {"binary_data_size": a.nbytes},
        }
        for name, a in arrays.items()
    ]
    head = json.dumps(
        {"inputs": inputs, "parameters": {"binary_data_output": binary_output}}
    ).encode()
    return head + b"".join(a.tobytes() for a in arrays.values()), str(len(head))


def post_binary(server: Running, model: str, arrays: dict[str, np.ndarray]) -> Answer:
    body, length = binary(arrays)
    headers = {"Inference-Header-Content-Length": length}
    return server.ask("POST", f"/v2/models/{model}/infer", body, headers)


def test_binary_inference_matches(server: Running) -> None:
    x, y = np.random.default_rng(0).random((2, 3, 5)).astype(np.float32)
    result = post_binary(server, "add", {"x": x, "y": y})
    split = int(result.headers["inference-header-content-length"])
    (output,) = json.loads(result.data[:split])["outputs"]
    assert output["parameters"] == {"binary_data_size": 60} and "data" not in output
    assert np.array_equal(np.frombuffer(result.data[split:], np.float32).reshape(3, 5), x + y)


def test_empty_batches_are_answered(server: Running) -> None:
    result = post_binary(server, "soft", {"x": np.zeros((0, 4), np.float32)})
    assert result.status == 200


def test_integers_are_exact(server: Running) -> None:
    big = 2**62 - 1
    body = {"inputs": rows({"x": [[big, -big, 0, 1]]}, "INT64")}
    result = server.ask("POST", "/v2/models/whole/infer", body)
    assert result.output() == [2 * big, -2 * big, 0, 2]


def x_of(**changes: object) -> dict[str, object]:
    row = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], **changes}
    return {"inputs": [{key: value for key, value in row.items() if value is not None}]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the body is no JSON"),
        ([], "the body: an object expected"),
        ({}, "inputs: a list of objects expected"),
        ({"inputs": []}, "the input 'x' is missing; there are x"),
        (x_of(name="z"), "no input is named 'z'; there are x"),
        (x_of(datatype="FP64"), "input 'x': expected FP32, got FP64"),
        (x_of(datatype="X"), "input 'x': datatype: one of BOOL"),
        (x_of(shape=[1, 5], data=[1] * 5), "input 'x': expected the shape [-1, 4], got [1, 5]"),
        (x_of(shape=[4]), "input 'x': expected the shape [-1, 4], got [4]"),
        (x_of(shape=[1, -4]), "input 'x': shape: a list of sizes from 0"),
        (x_of(shape=[1, 2**40]), "input 'x': shape: a list of sizes from 0"),
        (x_of(shape=[2**30, 2**30]), "input 'x': shape: at most 32 dimensions"),
        (x_of(data=[1, 2, 3]), "input 'x': data: 4 elements, flat or as the shape [1, 4]"),
        (x_of(data=[[1, 2], [3]]), "input 'x': data: 4 elements"),
        (x_of(data=[1, 2, 3, "4"]), "input 'x': data: values of FP32 expected"),
        (x_of(data=[1, 2, 3, True]), "input 'x': data: values of FP32 expected"),
        (x_of(data=[1, 2, 3, 1e300]), "input 'x': data: a value is out of the range of FP32"),
        (x_of(data="1234"), "input 'x': data: a list expected, got a string"),
        (x_of(data=None), "input 'x': data: a list expected, got null"),
        (x_of(parameters={"z": 1}), "input 'x': no parameter is named 'z'"),
        (x_of(parameters={"binary_data_size": 16}), "input 'x': data or binary data"),
        (x_of(parameters={"binary_data_size": 16}, data=None), "input 'x': 16 bytes expected, 0"),
        ({**x_of(), "outputs": [{"name": "q"}]}, "no output is named 'q'; there are output0"),
        ({**x_of(), "parameters": {"q": 1}}, "no parameter is named 'q'"),
        ({**x_of(), "parameters": {"timeout": -1}}, "parameter 'timeout': an integer"),
        ({**x_of(), "parameters": {"sequence_id": 4}}, "the sequence has not begun"),
    ],
)
def test_invalid_requests_are_refused(server: Running, body: object, message: str) -> None:
    result = server.ask("POST", "/v2/models/soft/infer", body)
    assert result.status in (400, 409) and result.error.startswith(message), result.data


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/none", 404),
        ("GET", "/v2/models/none", 404),
        ("POST", "/v2/models/none/infer", 404),
        ("GET", "/v2/models/soft/infer", 405),
        ("DELETE", "/v2", 405),
        ("POST", "/v2/repository/models/none/load", 404),
    ],
)
def test_wrong_methods_and_paths_are_refused(
    server: Running, method: str, path: str, status: int
) -> None:
    result = server.ask(method, path, x_of() if method == "POST" else None)
    if path.endswith("load"):
        result = server.ask(method, path, {})
    assert result.status == status and result.error


def test_wrong_content_length_is_refused(server: Running) -> None:
    body, _ = binary({"x": np.zeros((1, 4), np.float32)})
    for length in ("-1", "abc", str(len(body) + 1), "5"):
        headers = {"Inference-Header-Content-Length": length}
        assert server.ask("POST", "/v2/models/soft/infer", body, headers).status == 400


def test_mismatched_symbolic_sizes_are_refused(server: Running) -> None:
    result = server.infer("add", x=X, y=[[1.0, 2.0]])
    assert result.status == 400 and "'k' is 4 in another input, here 2" in result.error


def test_infinities_are_not_json(server: Running) -> None:
    big = [[3e38, 0.0]]
    assert server.infer("add", x=big, y=big).status == 400
    result = post_binary(server, "add", {"x": np.float32(big), "y": np.float32(big)})
    assert struct.unpack("<2f", result.data[-8:]) == (np.inf, 0.0)


def test_concurrent_requests_are_batched(server: Running) -> None:
    """Each gets its own rows, whichever it was run with."""
    rng = np.random.default_rng(1)
    xs = [rng.random((1 + at % 3, 4)).astype(np.float32) for at in range(64)]

    def ask(x: np.ndarray) -> list[float]:
        return server.infer("soft", x=x.tolist()).output()

    with ThreadPoolExecutor(16) as pool:
        for x, result in zip(xs, pool.map(ask, xs), strict=True):
            assert np.allclose(np.reshape(result, x.shape), softmax(x), rtol=1e-5)


def test_unbatchable_rows_run_alone(server: Running) -> None:
    versions = server.server.engine.repository.models
    assert versions["soft"].get().signature.batch_symbol == "n"
    assert versions["mixed"].get().signature.batch_symbol == ""
    assert versions["fixed"].get().signature.batch_symbol == ""
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(lambda _: server.infer("mixed", x=X).output(), range(16)):
            assert result == [0.0] * 4


def test_oversized_body_is_refused(models: Path) -> None:
    with serving(models, limits={"body_bytes": 1000}) as server:
        assert server.ask("POST", "/v2/models/soft/infer", b"x" * 1001).status == 413
        connection = server.connect()
        connection.putrequest("POST", "/v2/models/soft/infer")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        connection.send(b"400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n")
        assert connection.getresponse().status == 413
        connection.close()


def test_bearer_tokens_are_required(models: Path, tmp_path: Path) -> None:
    users, owners = tmp_path / "users", tmp_path / "owners"
    users.write_text("0123456789abcdef\n")
    owners.write_text("fedcba9876543210\n")
    inputs = {"token_file": str(users), "control_token_file": str(owners)}
    user, owner = ({"Authorization": f"Bearer {p.read_text().strip()}"} for p in (users, owners))
    with serving(models, **inputs) as server:
        assert server.ask("GET", "/v2/health/live").status == 200
        assert server.ask("GET", "/v2").status == 401
        assert server.ask("GET", "/v2", headers={"Authorization": "Bearer x"}).status == 401
        assert server.ask("GET", "/v2", headers=user).status == 200
        load = "/v2/repository/models/soft/load"
        assert server.ask("POST", load, {}, user).status == 403
        assert server.ask("POST", load, {}, owner).status == 200


def test_invalid_or_unprotected_servers_do_not_start(models: Path, tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="others could reach the server"):
        Server(models, host="0.0.0.0")
    with pytest.raises(ServeError, match="no setting is named 'prot'; 'port' is near"):
        Server(models, prot=1)
    with pytest.raises(ServeError, match="port: int expected, got '80'"):
        Server(models, port="80")
    with pytest.raises(ServeError, match="a folder of models expected"):
        Server(tmp_path / "none")
    (tmp_path / "short").write_text("abc")
    with pytest.raises(ServeError, match="at least 16 letters"):
        Server(models, token_file=str(tmp_path / "short"))


def test_occupied_port_is_refused(models: Path, server: Running) -> None:
    with (
        pytest.raises(ServeError, match="address already in use"),
        serving(models, port=server.port),
    ):
        pass


def test_prometheus_metrics_are_exposed(server: Running) -> None:
    server.infer("soft", x=X)
    server.infer("nobody", x=X)
    text = server.ask("GET", "/metrics").data.decode()
    assert 'ekiden_requests_total{model="soft",outcome="ok"}' in text
    assert 'ekiden_run_rows_count{model="soft"}' in text
    assert "ekiden_memory_held_bytes" in text and "nobody" not in text
    counts = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("ekiden_request_seconds_bucket{") and 'model="soft"' in line
    ]
    assert counts == sorted(counts) and counts[-1] >= 1
    assert f'ekiden_request_seconds_count{{model="soft"}} {counts[-1]}' in text


def test_unknown_paths_are_refused(server: Running) -> None:
    """A slash behind one makes no difference; what is no path or method is told."""
    for path in ("/v2", "/v2/", "/v2/health/live/", "/v2/models/soft/ready/"):
        assert server.ask("GET", path, headers={}).status == 200, path
    assert server.ask("HEAD", "/v2/models/soft").data == b""
    for method, path, status, error in (
        ("GET", "/v2/models/soft/infer", 405, "method not allowed"),
        ("DELETE", "/v2", 405, "method not allowed"),
        ("GET", "/v2/models//ready", 404, "not found"),
        ("GET", "/v2/models/{model}/what", 404, "not found"),
        ("GET", "/none", 404, "not found"),
    ):
        result = server.ask(method, path)
        assert (result.status, result.error) == (status, error), path


def test_client_disconnect_during_upload(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is left to be answered, and nothing has failed."""
    with serving(models) as server:
        head = (
            b"POST /v2/models/soft/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port), 10) as result:
            result.sendall(head + b"{")
        while server.server.engine.metrics.connections:
            assert server.ask("GET", "/v2").status == 200
    assert capsys.readouterr().err == ""


def test_keep_alive_connection_serves_many_requests(server: Running) -> None:
    connection = server.connect()
    for _ in range(3):
        result = ask_on(connection, "POST", "/v2/models/soft/infer", x_of())
        assert result.status == 200
        assert ask_on(connection, "POST", "/v2/models/soft/infer", b"{").status == 400
    connection.close()


def test_requests_create_no_reference_cycles(server: Running) -> None:
    """Whose look at all objects is a pause for those under way. Other threads of the process may
    leave something in a round."""
    connection = server.connect()
    for _ in range(3):
        assert ask_on(connection, "POST", "/v2/models/soft/infer", x_of()).status == 200
    gc.disable()
    try:
        for _ in range(3):
            gc.collect()
            for _ in range(50):
                assert ask_on(connection, "POST", "/v2/models/soft/infer", x_of()).status == 200
            if (left := gc.collect()) < 50:
                break
        assert left < 50
    finally:
        gc.enable()
        connection.close()


def test_model_versions_are_selectable(tmp_path: Path) -> None:
    put(tmp_path, "soft")
    put(tmp_path, "soft", "def @main(%x: Tensor[(n, 4), float32]) { negative(%x) }", 12)
    with serving(tmp_path) as server:
        assert server.infer("soft", x=X).output() == [-1.0, -2.0, -3.0, -4.0]
        assert server.ask("POST", "/v2/models/soft/versions/1/infer", x_of()).status == 404
        (tmp_path / "soft" / "model.toml").write_text('[model]\nversions = "all"\n')
        assert server.ask("POST", "/v2/repository/models/soft/load", {}).status == 200
        assert server.ask("POST", "/v2/models/soft/versions/1/infer", x_of()).status == 200
        assert server.infer("soft", x=X).output() == [-1.0, -2.0, -3.0, -4.0]


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress)],
    ids=["gzip", "deflate"],
)
@pytest.mark.parametrize("count", [1, 50_000])
def test_compressed_bodies_are_read(
    server: Running, encoding: str, compress: Callable[[bytes], bytes], count: int
) -> None:
    body = json.dumps({"inputs": rows({"x": [[0.0] * 4] * count})}).encode()
    answer = server.ask("POST", SOFT, compress(body), {"Content-Encoding": encoding})
    assert answer.output() == [0.25] * 4 * count


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (gzip.compress(b"0" * (1 << 27)), 413, "the body: at most 67108864 bytes expected"),
        (gzip.compress(b"{}")[:-4], 400, "the body: one whole stream of gzip expected"),
        (gzip.compress(b"{}") + b"more", 400, "the body: one whole stream of gzip expected"),
        (b"", 400, "the body: one whole stream of gzip expected"),
        (b"plain", 400, "the body: no data of gzip"),
    ],
    ids=["large", "cut", "followed", "empty", "plain"],
)
def test_bad_compressed_bodies_are_refused(
    server: Running, body: bytes, status: int, message: str
) -> None:
    answer = server.ask("POST", SOFT, body, {"Content-Encoding": "gzip"})
    assert (answer.status, answer.error) == (status, message)


def test_unknown_encodings_are_refused(server: Running) -> None:
    answer = server.ask("POST", SOFT, b"{}", {"Content-Encoding": "br"})
    assert answer.status == 415
    assert answer.error == "content-encoding: gzip, deflate or none expected"
