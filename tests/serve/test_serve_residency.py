"""Models load on demand and make room for each other; the server says truly what is ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from serving import Running, put, serving

from ekiden.runtime.errors import RequestError, ServeError
from ekiden.serve import Server
from ekiden.serve.sequences import ActiveSequence, SequenceTable

X = [[1.0, 2.0, 3.0, 4.0]]
DOUBLE = "def @main(%x: Tensor[(n, 4), float32]) { multiply(%x, 2f) }"
COUNTER = """
def @main(%x: Tensor[(1, 4), float32], %h: Tensor[(1, 4), float32]) {
  let %s = add(%x, %h); (%s, multiply(%s, 1f))
}"""
COUNTER_CONFIG = '[sequences]\nstate = { "h" = "output1" }\n'


def loaded(server: Running) -> set[str]:
    """Return the names of the models in memory."""
    index = server.ask("POST", "/v2/repository/index", {"ready": True}).json
    return {row["name"] for row in index}


def _await_value(get: Callable[[], object], expected: object) -> None:
    """Wait until a value is the expected one."""
    while get() != expected:
        time.sleep(0.01)


def infer(server: Running, model: str) -> None:
    assert server.infer(model, x=X).output() == [2.0, 4.0, 6.0, 8.0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abc":
        put(tmp_path, name, DOUBLE)
    return tmp_path


@pytest.fixture
def two_models(folder: Path) -> int:
    """Bytes of two of the folder's models."""
    return 2 * (folder / "a" / "1" / "model.eki").stat().st_size


def test_models_load_at_their_first_request(folder: Path) -> None:
    with serving(folder, load="demand") as server:
        assert loaded(server) == set()
        index = server.ask("POST", "/v2/repository/index", {}).json
        assert {row["reason"] for row in index} == {"not in memory: the next request loads it"}
        assert server.ask("GET", "/v2/health/ready").status == 200
        assert server.ask("GET", "/v2/models/a/ready").status == 200
        infer(server, "a")
        assert loaded(server) == {"a"}
        assert server.ask("GET", "/v2/models/b").json["inputs"][0]["name"] == "x"
        assert loaded(server) == {"a", "b"}


def test_least_recently_used_model_is_evicted(folder: Path, two_models: int) -> None:
    with serving(folder, load="demand", model_bytes=two_models) as server:
        for name in "abac":
            infer(server, name)
        assert loaded(server) == {"a", "c"}
        infer(server, "b")
        assert loaded(server) == {"b", "c"}
        metrics = server.ask("GET", "/metrics").data.decode()
        assert "ekiden_evictions_total 2.0" in metrics
        assert "ekiden_resident_models 2.0" in metrics
        assert f"ekiden_resident_model_bytes {float(two_models)}" in metrics


def test_pinned_models_stay_in_memory(folder: Path, two_models: int) -> None:
    (folder / "a" / "model.toml").write_text("[model]\npinned = true\n")
    with serving(folder, load="demand", model_bytes=two_models) as server:
        assert loaded(server) == {"a"}
        for name in "bcb":
            infer(server, name)
        assert loaded(server) == {"a", "b"}


def test_model_in_use_is_not_evicted(folder: Path) -> None:
    put(folder, "counter", COUNTER, config=COUNTER_CONFIG)
    size = max(path.stat().st_size for path in folder.rglob("*.eki"))
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": X}]}

    def step(server: Running, **parameters: object) -> list[float]:
        parameters = {"sequence_id": 7, **parameters}
        request = {**body, "parameters": parameters}
        return server.ask("POST", "/v2/models/counter/infer", request).output()

    with serving(folder, load="demand", model_bytes=size) as server:
        assert step(server, sequence_start=True) == X[0]
        waiting = Thread(target=infer, args=(server, "a"))
        waiting.start()
        assert step(server) == [2.0, 4.0, 6.0, 8.0]
        assert loaded(server) == {"counter"}
        step(server, sequence_end=True)
        waiting.join(60)
        assert loaded(server) == {"a"}


def test_models_alternating_under_a_budget_all_answer(folder: Path, two_models: int) -> None:
    with serving(folder, load="demand", model_bytes=two_models // 2) as server:
        answers: list[int] = []

        def ask(name: str) -> None:
            for _ in range(5):
                answers.append(server.infer(name, x=X).status)

        clients = [Thread(target=ask, args=(name,)) for name in "abcabc"]
        for client in clients:
            client.start()
        for client in clients:
            client.join(60)
        assert answers == [200] * 30


def test_reload_beyond_the_budget_is_refused(folder: Path, two_models: int) -> None:
    path = folder / "a" / "1" / "model.eki"
    size = two_models // 2
    with serving(folder, load="demand", model_bytes=two_models - 1) as server:
        infer(server, "a")
        path.write_bytes(path.read_bytes())
        answer = server.ask("POST", "/v2/repository/models/a/load", {})
        assert answer.error == (
            f"load 'a': the files of 'a' have {size} bytes, its loaded versions {size};"
            f" models may have {two_models - 1} together (model_bytes): unload it first"
        )
        infer(server, "a")


def test_request_waits_for_a_load_no_longer_than_it_allows(folder: Path) -> None:
    put(folder, "counter", COUNTER, config=COUNTER_CONFIG)
    size = max(path.stat().st_size for path in folder.rglob("*.eki"))
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": X}]}
    with serving(folder, load="demand", model_bytes=size) as server:
        begin = {**body, "parameters": {"sequence_id": 7, "sequence_start": True}}
        assert server.ask("POST", "/v2/models/counter/infer", begin).status == 200
        # The sequence keeps its model in memory, so the load of another one waits.
        brief = {**body, "parameters": {"timeout": 1000}}
        answer = server.ask("POST", "/v2/models/a/infer", brief)
        assert answer.error == "the time of the request is over"
        end = {**body, "parameters": {"sequence_id": 7, "sequence_end": True}}
        assert server.ask("POST", "/v2/models/counter/infer", end).status == 200
        infer(server, "a")


def test_requests_that_come_together_share_one_load(folder: Path) -> None:
    with serving(folder, load="demand") as server:
        repository = server.server.engine.repository
        loads = []
        repository._on_event = lambda event, **fields: loads.append((event, fields["model"]))
        clients = [Thread(target=infer, args=(server, "a")) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(60)
        assert loads == [("loaded", "a")]


def test_model_beyond_the_budget_is_refused_with_both_sizes(folder: Path) -> None:
    with serving(folder, load="demand", model_bytes=100) as server:
        answer = server.infer("a", x=X)
        assert answer.status == 503 and answer.error == "model 'a' could not be loaded"
        (row,) = (
            row for row in server.ask("POST", "/v2/repository/index", {}).json if row["name"] == "a"
        )
        size = (folder / "a" / "1" / "model.eki").stat().st_size
        assert row["reason"] == (
            f"the files of 'a' have {size} bytes; models may have 100 together (model_bytes)"
        )


def test_damaged_model_is_tried_again_when_its_file_changes(folder: Path) -> None:
    path = folder / "a" / "1" / "model.eki"
    whole = path.read_bytes()
    path.write_bytes(b"nothing")
    with serving(folder, load="demand") as server:
        assert server.ask("GET", "/v2/health/ready").status == 200  # nothing has failed yet
        for _ in range(2):
            assert server.infer("a", x=X).status == 503
        assert server.ask("GET", "/v2/health/ready").status == 503
        path.write_bytes(whole)
        infer(server, "a")
        assert server.ask("GET", "/v2/health/ready").status == 200


def test_unloaded_model_is_not_loaded_on_demand(folder: Path) -> None:
    with serving(folder, load="demand") as server:
        infer(server, "a")
        assert server.ask("POST", "/v2/repository/models/a/unload", {}).status == 200
        assert server.infer("a", x=X).error == "model 'a' is not loaded"
        assert server.ask("GET", "/v2/models/a/ready").status == 503
        assert server.ask("POST", "/v2/repository/models/a/load", {}).status == 200
        infer(server, "a")


def test_text_models_are_listed_before_they_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "echo").mkdir()
    (tmp_path / "echo" / "model.toml").write_text('[text]\nobject = "toy_text:Echo"\n')
    with serving(tmp_path, load="demand") as server:
        assert loaded(server) == set()
        names = [row["id"] for row in server.ask("GET", "/v1/models").json["data"]]
        assert names == ["echo"]
        body = {"model": "echo", "messages": [{"role": "user", "content": "one two"}]}
        assert server.ask("POST", "/v1/chat/completions", body).status == 200
        assert loaded(server) == {"echo"}


def test_text_model_added_later_is_listed_before_it_is_loaded(tmp_path: Path) -> None:
    with serving(tmp_path, load="demand", poll_seconds=0.05) as server:
        (tmp_path / "echo").mkdir()
        (tmp_path / "echo" / "model.toml").write_text('[text]\nobject = "toy_text:Echo"\n')
        _await_value(lambda: len(server.ask("GET", "/v1/models").json["data"]), 1)
        assert loaded(server) == set()


def test_pinned_model_added_later_is_loaded(tmp_path: Path) -> None:
    with serving(tmp_path, load="demand", poll_seconds=0.05) as server:
        put(tmp_path, "a", DOUBLE, config="[model]\npinned = true\n")
        _await_value(lambda: loaded(server), {"a"})


def test_polling_passes_a_damaged_model_which_is_tried_once(folder: Path) -> None:
    (folder / "a" / "1" / "model.eki").write_bytes(b"nothing")
    with serving(folder, poll_seconds=0.02) as server:
        events = []
        repository = server.server.engine.repository
        repository._on_event = lambda event, **fields: events.append((event, fields["model"]))
        put(folder, "d", DOUBLE)
        _await_value(lambda: loaded(server), {"b", "c", "d"})
        # A poll may meet 'd' before its file is written; 'a' failed at the start and is unchanged.
        assert {model for _, model in events} == {"d"}


def test_server_is_not_ready_with_a_model_that_failed(folder: Path) -> None:
    path = folder / "b" / "1" / "model.eki"
    path.write_bytes(b"nothing")
    with serving(folder) as server:
        infer(server, "a")
        assert server.ask("GET", "/v2/health/ready").json == {"ready": False}
        assert server.ask("POST", "/v2/repository/models/b/unload", {}).status == 200
        assert server.ask("GET", "/v2/health/ready").json == {"ready": True}


def test_budget_needs_loading_on_demand(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="model_bytes: needs load = 'demand'"):
        Server(tmp_path, model_bytes=1)
    with pytest.raises(ServeError, match="load: one of start, demand expected, got 'never'"):
        Server(tmp_path, load="never")


class SilentSession:
    """Session without a state."""

    def run(self, arrays: object, seconds: float) -> list[object]:
        return []

    def state_values(self) -> dict[str, object]:
        return {}

    def restore(self, values: object) -> None:
        pass


def test_sequence_past_its_idle_time_has_ended() -> None:
    ended: list[ActiveSequence] = []
    table = SequenceTable(4, 60.0, ended.append)
    sequence = table.begin(1, lambda: ActiveSequence(SilentSession(), None))  # type: ignore[arg-type]
    assert table.get(1) is sequence
    sequence.last_used = time.monotonic() - 61.0
    with pytest.raises(RequestError, match="the sequence has not begun here, or has ended"):
        table.get(1)
    assert ended == [sequence]
