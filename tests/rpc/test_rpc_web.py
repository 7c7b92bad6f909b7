"""A page as a device: Node with ekiden-web at a proxy, over WebSocket."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, rpc
from ekiden.compiler.export.web import WEB_TARGETS, write_web_folder
from ekiden.rpc.errors import RPCError

pytest.importorskip("websockets", reason="needs websockets")
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync import client as websockets

FLAG = "--experimental-websocket"
SERVER = "import {serve} from './rpc.js'; await (await serve(process.argv[1], {threads: 1})).done;"


def node(program: str, folder: Path, url: str) -> list[str]:
    known = subprocess.run(["node", FLAG, "-e", "0"], capture_output=True).returncode == 0
    return ["node", *([FLAG] if known else []), "--input-type=module", "-e", program, url]


def test_pages_of_other_origins_are_refused(proxy: rpc.Proxy, web_port: int) -> None:
    url = f"ws://127.0.0.1:{web_port}"
    with (
        pytest.raises(InvalidStatus, match="403"),
        websockets.connect(url, origin="https://elsewhere.example"),
    ):
        pass
    with websockets.connect(url, origin="http://localhost:8000"):
        pass


def test_page_with_invalid_messages_is_dropped(proxy: rpc.Proxy, web_port: int) -> None:
    url = f"ws://127.0.0.1:{web_port}"
    for message in (b"\xff" * 4096, "text", b""):
        with websockets.connect(url) as page:
            page.send(message)
            if message:
                with pytest.raises(ConnectionClosed):
                    page.recv(timeout=10)


def test_proxy_with_a_key_takes_no_pages(tmp_path: Path) -> None:
    with pytest.raises(ekiden.InputError, match="a page has no key"):
        rpc.Proxy(port=0, web_port=9300, credentials=tmp_path / "key")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_wasm_page_matches_native(
    tmp_path: Path, proxy: rpc.Proxy, web_port: int, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("ziglang", reason="needs ziglang, a C compiler for WebAssembly")
    request.getfixturevalue("web_runtime")
    x = relay.var("x", shape=(2, 3))
    model = ekiden.IRModule.from_expr(relay.Function([x], relay.nn.relu(x)))
    ekiden.export(model, tmp_path / "relu.eki", list(WEB_TARGETS))
    write_web_folder((tmp_path / "relu.eki").read_bytes(), tmp_path)
    url = f"ws://127.0.0.1:{web_port}"
    page = subprocess.Popen(node(SERVER, tmp_path, url), cwd=tmp_path)
    try:
        with rpc.connect("127.0.0.1", proxy.port, key="browser") as remote:
            remote.upload(tmp_path / "relu.eki")
            module = remote.load_module("relu.eki")
            data = np.array([[1, -2, 3], [-4, 5, -6]], "float32")
            there = ekiden.nd.array(data, remote.cpu())
            np.testing.assert_array_equal(module["main"](there).numpy(), np.maximum(data, 0))
            assert module.time_evaluator("main", remote.cpu(), number=10, repeat=3)(there).min > 0
            with pytest.raises(RPCError, match="x"):
                module["main"](ekiden.nd.array(np.zeros((5, 5), "float32"), remote.cpu()))
            with pytest.raises(RPCError, match="function of the client"):
                module["main"](lambda: 1)
    finally:
        page.kill()
        page.wait()
