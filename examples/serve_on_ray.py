"""Serve a model with Ray Serve, which starts processes, distributes requests and forms batches.

pip install 'ray[serve]'. On a cluster the same program runs on its machines; the artifact must be
readable from each of them.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path

import numpy as np
import ray
from ray import serve
from starlette.requests import Request

import ekiden
from ekiden import relay

PROGRAM = "def @main(%x: Tensor[(n, 4), float32]) { nn.softmax(%x) }"


@serve.deployment(num_replicas=2, max_ongoing_requests=32, ray_actor_options={"num_cpus": 0.5})
class Model:
    """Deployment of one artifact in a process of its own."""

    def __init__(self, path: str) -> None:
        self._executable = ekiden.load(path)
        self._executable.num_threads = 1  # processes share the cores

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.002)
    async def run(self, requests: list[np.ndarray]) -> list[np.ndarray]:
        """Run the waiting requests as one batch, as the artifact accepts any number of rows."""
        y = self._executable(np.concatenate(requests)).numpy()
        return np.split(y, np.cumsum([len(x) for x in requests])[:-1])

    async def __call__(self, request: Request) -> dict[str, object]:
        """Return the outputs for the rows of a JSON request."""
        x = np.asarray((await request.json())["x"], np.float32)
        return {"y": (await self.run(x)).tolist()}


def ask(x: np.ndarray) -> np.ndarray:
    """Send rows to the deployment, and return its outputs."""
    body = json.dumps({"x": x.tolist()}).encode()
    with urllib.request.urlopen("http://127.0.0.1:8123/", body) as answer:
        return np.asarray(json.load(answer)["y"], np.float32)


def main() -> None:
    """Deploy two processes, send a request, and shut down."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.eki"
        executable = ekiden.compile(relay.parse(PROGRAM))
        executable.save(path)
        ray.init(num_cpus=2, include_dashboard=False)
        serve.start(http_options={"host": "127.0.0.1", "port": 8123})
        serve.run(Model.bind(str(path)))
        try:
            x = np.random.default_rng(0).random((3, 4), np.float32)
            outputs = ask(x)
            np.testing.assert_allclose(outputs, executable(x).numpy(), rtol=1e-6)
            print("from one of two processes:", outputs[0].round(3))
        finally:
            serve.shutdown()
            ray.shutdown()


if __name__ == "__main__":
    main()
