"""Serve a model with KServe's Python server, as its custom predictor.

pip install kserve. The program is what a container of an InferenceService starts; there the
storage initialiser has put the artifact into /mnt/models. Where KServe's server is not wanted,
`ekiden serve /mnt/models` speaks the same protocol: docs/serving.md has the ServingRuntime.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer
from kserve.errors import InvalidInput

import ekiden
from ekiden import relay

PROGRAM = "def @main(%x: Tensor[(n, 4), float32]) { nn.softmax(%x) }"


class EkidenModel(Model):
    """KServe model of an artifact."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name)
        self._path = path
        self._executable: ekiden.Executable | None = None

    def load(self) -> bool:
        """Load the artifact before the first request."""
        self._executable = ekiden.load(self._path)
        self.ready = True
        return True

    def predict(
        self, payload: InferRequest, headers: object = None, response_headers: object = None
    ) -> InferResponse:
        """Return the outputs for inputs by name."""
        assert self._executable is not None
        feeds = {tensor.name: tensor.as_numpy() for tensor in payload.inputs}
        try:
            results = self._executable(**feeds)
        except ekiden.InputError as error:
            raise InvalidInput(str(error)) from None
        values = results if isinstance(results, tuple) else (results,)
        outputs = []
        for info, value in zip(self._executable.outputs, values, strict=True):
            array = value.numpy()
            output = InferOutput(info.name, list(array.shape), "FP32")
            output.set_data_from_numpy(array, binary_data=False)
            outputs.append(output)
        return InferResponse(payload.id or "0", self.name, outputs)


def serve_forever(path: Path, port: int) -> None:
    """Run the server, as the container does."""
    model = EkidenModel("soft", path)
    model.load()
    ModelServer(http_port=port, enable_grpc=False, workers=1).start([model])


def ask(port: int, x: np.ndarray) -> np.ndarray:
    """Send rows, and return the outputs; raise OSError while no server listens."""
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v2/models/soft/infer",
        json.dumps({"inputs": [tensor]}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        (output,) = json.load(answer)["outputs"]
    return np.asarray(output["data"], np.float32).reshape(output["shape"])


def ask_when_ready(server: subprocess.Popen[bytes], port: int, x: np.ndarray) -> np.ndarray:
    """Return the answer of a server that has just been started, retrying until it listens."""
    while True:
        try:
            return ask(port, x)
        except urllib.error.HTTPError:
            raise
        except OSError:
            assert server.poll() is None, "the server has ended: it has said why"
            time.sleep(0.1)


def main() -> None:
    """Start a server process without a cluster, and send a request."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        path = Path(folder) / "model.eki"
        executable = ekiden.compile(relay.parse(PROGRAM))
        executable.save(path)
        server = subprocess.Popen([sys.executable, __file__, str(path), str(port)])
        try:
            x = np.random.default_rng(0).random((3, 4), np.float32)
            outputs = ask_when_ready(server, port, x)
            np.testing.assert_allclose(outputs, executable(x).numpy(), rtol=1e-6)
            print("through KServe's server:", outputs[0].round(3))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve_forever(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
