"""A server in this process, its models, and a small client."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ekiden
from ekiden import relay
from ekiden.serve import EmbeddingModel, Server, TextModel

PROGRAMS = {
    "soft": "def @main(%x: Tensor[(n, 4), float32]) { nn.softmax(%x) }",
    "mixed": "def @main(%x: Tensor[(n, 4), float32]) "
    "{ subtract(%x, mean(%x, axis=[0], keepdims=True)) }",
    "add": "def @main(%x: Tensor[(n, k), float32], %y: Tensor[(n, k), float32]) { add(%x, %y) }",
    "fixed": "def @main(%x: Tensor[(2, 3), int32]) { multiply(%x, 2) }",
    "whole": "def @main(%x: Tensor[(n, 4), int64]) { add(%x, %x) }",
    "step": "def @main(%x: Tensor[(1, 2), float32], %h: Tensor[(1, 2), float32]) "
    "{ let %s = add(%x, %h); (multiply(%s, 2f), %s) }",
}
"""Name -> text of a program."""


def compiled(text: str) -> ekiden.Executable:
    return ekiden.compile(relay.parse(text))


def put(folder: Path, name: str, text: str = "", version: int = 1, config: str = "") -> Path:
    """A version of a model in a folder of models."""
    path = folder / name / str(version)
    path.mkdir(parents=True, exist_ok=True)
    compiled(text or PROGRAMS[name]).save(path / "model.eki")
    if config:
        (folder / name / "model.toml").write_text(config)
    return path / "model.eki"


class Running:
    """A server that runs on a thread."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.loop = asyncio.new_event_loop()
        self.stop = asyncio.Event()
        self.failure: BaseException | None = None
        self._started = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self._started.wait(60)
        if self.failure:
            raise self.failure

    def _run(self) -> None:
        try:
            self.loop.run_until_complete(self._serve())
        except BaseException as error:
            self.failure = error
        finally:
            self.loop.close()
            self._started.set()

    async def _serve(self) -> None:
        started = asyncio.Event()
        serving = asyncio.ensure_future(self.server.serve(self.stop, started))
        await asyncio.wait(
            [serving, asyncio.ensure_future(started.wait())], return_when=asyncio.FIRST_COMPLETED
        )
        while not serving.done() and not self.server.engine.has_started:
            await asyncio.sleep(0.005)
        self._started.set()
        await serving

    def close(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.failure:
            raise self.failure

    @property
    def port(self) -> int:
        return self.server.port

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own; what is no bytes is sent as JSON."""
        connection = self.connect()
        try:
            return ask_on(connection, method, path, body, headers)
        finally:
            connection.close()

    def infer(self, model: str, **inputs: list[Any]) -> Answer:
        """Inputs of FP32, by name."""
        return self.ask("POST", f"/v2/models/{model}/infer", {"inputs": rows(inputs)})


class Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, data: bytes) -> None:
        self.status, self.headers, self.data = status, headers, data

    @property
    def json(self) -> Any:  # noqa: ANN401  # whatever it holds
        return json.loads(self.data)

    @property
    def error(self) -> str:
        return str(self.json["error"])

    def output(self, at: int = 0) -> list[Any]:
        assert self.status == 200, self.data
        result = self.json["outputs"][at]["data"]
        assert isinstance(result, list)
        return result


def ask_on(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    kind = {} if isinstance(body, bytes) or body is None else {"Content-Type": "application/json"}
    connection.request(method, path, data, {**kind, **(headers or {})})
    response = connection.getresponse()
    return Answer(response.status, response.headers, response.read())


def rows(inputs: dict[str, list[Any]], datatype: str = "FP32") -> list[dict[str, object]]:
    """The inputs of a request."""
    result = []
    for name, data in inputs.items():
        shape, inner = [], data
        while isinstance(inner, list):
            shape.append(len(inner))
            inner = inner[0] if inner else None  # type: ignore[assignment]
        result.append({"name": name, "shape": shape, "datatype": datatype, "data": data})
    return result


@contextmanager
def serving(
    folder: Path,
    text: Mapping[str, TextModel | EmbeddingModel] | None = None,
    **argument: object,
) -> Iterator[Running]:
    """A server of a folder, on any port of this machine, until the block ends."""
    may_control = "token_file" not in argument and "control_token_file" not in argument
    plain = {"port": 0, "log": "error", "allow_control": may_control}
    server = Server(folder, **{**plain, **argument})
    for name, model in (text or {}).items():
        server.add_text(name, model)
    running = Running(server)
    try:
        yield running
    finally:
        running.close()
