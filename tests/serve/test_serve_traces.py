"""`ekiden serve --traces` exports spans by itself, or says what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from serving import ask_on, put

from ekiden.runtime.errors import ServeError
from ekiden.serve import Server
from ekiden.serve.tracing import Tracer

BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0, 0, 0, 0]}]}


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(ServeError, match="traces: pip install opentelemetry-sdk"):
        Tracer(True)
    assert Server(tmp_path).config.traces is False


def test_server_process_exports_its_spans(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk.trace", reason="needs the package opentelemetry-sdk")
    from http.client import HTTPConnection

    models = tmp_path / "models"
    put(models, "soft")
    command = [sys.executable, "-m", "ekiden", "serve", str(models), "--port", "0", "--traces"]
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "console"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stderr is not None
        events = []
        for line in server.stderr:
            events.append(json.loads(line))
            if events[-1]["event"] == "started":
                break
        (port,) = (event["port"] for event in events if event["event"] == "listening")
        assert [e["exporter"] for e in events if e["event"] == "traces"] == ["console"]
        connection = HTTPConnection("127.0.0.1", port, timeout=30)
        assert ask_on(connection, "POST", "/v2/models/soft/infer", BODY).status == 200
        connection.close()
        server.terminate()
        spans, _ = server.communicate(timeout=60)
    assert json.loads(spans)["attributes"] == {"ekiden.model": "soft"}


def test_unknown_exporter_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk.trace", reason="needs the package opentelemetry-sdk")
    command = [sys.executable, "-m", "ekiden", "serve", str(tmp_path), "--port", "0", "--traces"]
    result = subprocess.run(
        command, capture_output=True, text=True,
        env={**os.environ, "OTEL_TRACES_EXPORTER": "nowhere"},
    )  # fmt: skip
    assert result.returncode == 1
    assert "traces: no package has the exporter 'nowhere' (OTEL_TRACES_EXPORTER)" in result.stderr
