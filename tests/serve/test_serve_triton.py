"""Triton's extensions: configuration, statistics and classification, over HTTP and gRPC."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from serving import Running, put, serving

from ekiden.serve.grpc_messages import create_message, parse_message
from ekiden.serve.requests import best_classes
from ekiden.serve.statistics import VersionStatistics

X = [[1.0, 2.0, 3.0, 4.0]]
COUNTER = """
def @main(%x: Tensor[(1, 4), float32], %h: Tensor[(1, 4), float32]) {
  let %s = add(%x, %h); (%s, multiply(%s, 1f))
}"""


def over_grpc(server: Running, method: str, **fields: object) -> Any:  # noqa: ANN401
    """Call a method of the gRPC service and return its answer."""
    with grpc.insecure_channel(f"127.0.0.1:{server.server.grpc_port}") as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        data = call(create_message(f"{method}Request", **fields).SerializeToString(), timeout=30)
    return parse_message(f"{method}Response", data)


def test_configuration_tells_how_to_send_batches(server: Running) -> None:
    batched = server.ask("GET", "/v2/models/soft/config").json
    assert batched == {
        "name": "soft",
        "platform": "ekiden_eki",
        "backend": "ekiden",
        "max_batch_size": 64,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "output0", "data_type": "TYPE_FP32", "dims": [4]}],
        "dynamic_batching": {"max_queue_delay_microseconds": 0},
    }
    fixed = server.ask("GET", "/v2/models/fixed/versions/1/config").json
    assert fixed["max_batch_size"] == 0 and fixed["input"][0]["dims"] == [2, 3]
    answer = over_grpc(server, "ModelConfig", name="fixed").config
    assert (answer.name, answer.backend, answer.max_batch_size) == ("fixed", "ekiden", 0)
    assert (answer.input[0].data_type, list(answer.input[0].dims)) == (8, [2, 3])  # TYPE_INT32


def test_model_with_a_state_is_one_of_sequences(tmp_path: Path) -> None:
    config = '[sequences]\nidle_seconds = 5.0\nstate = { "h" = "output1" }\n'
    put(tmp_path, "counter", COUNTER, config=config)
    with serving(tmp_path) as server:
        configuration = server.ask("GET", "/v2/models/counter/config").json
        idle = over_grpc(server, "ModelConfig", name="counter").config.sequence_batching
    assert configuration["sequence_batching"] == {"max_sequence_idle_microseconds": 5_000_000}
    assert idle.max_sequence_idle_microseconds == 5_000_000


def test_statistics_count_requests_and_runs(tmp_path: Path) -> None:
    put(tmp_path, "soft")
    with serving(tmp_path) as server:
        (row,) = server.ask("GET", "/v2/models/stats").json["model_stats"]
        assert row["inference_count"] == 0 and row["last_inference"] == 0
        for rows in (1, 3, 3):
            assert server.infer("soft", x=X * rows).status == 200
        assert server.infer("soft", x=[[1.0]]).status == 400
        (row,) = server.ask("GET", "/v2/models/soft/versions/1/stats").json["model_stats"]
        (same,) = over_grpc(server, "ModelStatistics", name="soft").model_stats
    assert (row["name"], row["version"]) == ("soft", "1")
    assert (row["inference_count"], row["execution_count"]) == (7, 3)
    counts = {name: duration["count"] for name, duration in row["inference_stats"].items()}
    assert counts == {
        "success": 3, "fail": 1, "queue": 3, "compute_input": 3, "compute_infer": 3,
        "compute_output": 3, "cache_hit": 0, "cache_miss": 0,
    }  # fmt: skip
    times = {name: duration["ns"] for name, duration in row["inference_stats"].items()}
    assert times["success"] >= times["compute_infer"] > 0
    runs = [(b["batch_size"], b["compute_infer"]["count"]) for b in row["batch_stats"]]
    assert runs == [(1, 1), (3, 2)]
    assert same.inference_stats.success.ns == times["success"]
    assert [b.batch_size for b in same.batch_stats] == [1, 3]
    assert same.last_inference == row["last_inference"] > 0


def test_requests_of_one_run_each_count_its_time() -> None:
    statistics = VersionStatistics()
    statistics.count_run(rows=8, seconds=0.5, num_requests=4, queued=0.25)
    fields: Any = statistics.as_fields("m", 1)
    assert fields["inference_stats"]["compute_infer"] == {"count": 4, "ns": 2_000_000_000}
    assert fields["inference_stats"]["queue"] == {"count": 4, "ns": 250_000_000}
    assert fields["batch_stats"][0]["compute_infer"] == {"count": 1, "ns": 500_000_000}


def test_batch_sizes_of_statistics_are_bounded() -> None:
    statistics = VersionStatistics()
    for rows in range(1, 1001):
        statistics.count_run(rows, seconds=0.5, num_requests=1, queued=0.0)
    fields: Any = statistics.as_fields("m", 1)
    assert (fields["execution_count"], len(fields["batch_stats"])) == (1000, 256)
    assert fields["inference_count"] == sum(range(1, 1001))


def test_statistics_of_unknown_models_and_versions_are_refused(server: Running) -> None:
    assert server.ask("GET", "/v2/models/none/stats").status == 404
    assert server.ask("GET", "/v2/models/soft/versions/7/stats").status == 404
    assert server.ask("GET", "/v2/models/none/config").status == 404


@pytest.fixture(params=["http", "grpc"])
def classify(request: pytest.FixtureRequest, server: Running) -> Callable[[int], list[str]]:
    """Return the texts of the best classes of softmax(X) by one protocol."""

    def by_http(count: int) -> list[str]:
        outputs = [{"name": "output0", "parameters": {"classification": count}}]
        body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": X}]}
        answer = server.ask("POST", "/v2/models/soft/infer", {**body, "outputs": outputs})
        (output,) = answer.json["outputs"]
        assert (output["datatype"], output["shape"]) == ("BYTES", [1, min(count, 4)])
        return list(output["data"])

    def by_grpc(count: int) -> list[str]:
        message = create_message(
            "ModelInferRequest", model_name="soft",
            inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 4]}],
            outputs=[{"name": "output0"}],
            raw_input_contents=[np.float32(X).tobytes()],
        )  # fmt: skip
        message.outputs[0].parameters["classification"].int64_param = count
        with grpc.insecure_channel(f"127.0.0.1:{server.server.grpc_port}") as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            answer = parse_message(
                "ModelInferResponse", call(message.SerializeToString(), timeout=30)
            )
        (output,) = answer.outputs
        assert (output.datatype, list(output.shape)) == ("BYTES", [1, min(count, 4)])
        data, texts = answer.raw_output_contents[0], []
        while data:
            size = int.from_bytes(data[:4], "little")
            texts.append(data[4 : 4 + size].decode())
            data = data[4 + size :]
        return texts

    return by_http if request.param == "http" else by_grpc


@pytest.mark.parametrize("count", [1, 2, 9])
def test_classification_gives_the_best_classes(
    classify: Callable[[int], list[str]], count: int
) -> None:
    shares = np.exp(np.float64(X[0]))
    shares /= shares.sum()
    texts = [text.split(":") for text in classify(count)]
    assert [int(index) for _, index in texts] == [3, 2, 1, 0][:count]
    values = [float(value) for value, _ in texts]
    # Six digits after the point, of float32.
    np.testing.assert_allclose(values, shares[::-1][:count], atol=1e-6)


def test_equal_classes_come_by_index_and_nan_last() -> None:
    rows = np.float32([[[1, 5, 5], [np.nan, -1, 0]]])
    assert best_classes(rows, 3).tolist() == [
        [
            ["5.000000:1", "5.000000:2", "1.000000:0"],
            ["0.000000:2", "-1.000000:1", "nan:0"],
        ]
    ]
    assert best_classes(np.zeros((0, 3)), 2).shape == (0, 2)


@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_bad_number_of_classes_is_refused(server: Running, value: object) -> None:
    outputs = [{"name": "output0", "parameters": {"classification": value}}]
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": X}]}
    answer = server.ask("POST", "/v2/models/soft/infer", {**body, "outputs": outputs})
    assert answer.status == 400
    assert answer.error == "output 'output0': classification: an integer from 0 on expected"


def test_server_metadata_lists_the_extensions(server: Running) -> None:
    extensions = json.loads(server.ask("GET", "/v2").data)["extensions"]
    assert {"classification", "model_configuration", "statistics"} <= set(extensions)
