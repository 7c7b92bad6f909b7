"""A page of a browser as the device of the command line: verify, bench, profile and run there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from chromium import Page, page_of
from ekiden import rpc
from ekiden.cli import main
from ekiden.compiler.export.web import WEB_TARGETS, write_web_folder

pytest.importorskip("ziglang", reason="needs ziglang, a C compiler for WebAssembly")
pytest.importorskip("websockets", reason="needs websockets")

pytestmark = pytest.mark.usefixtures("web_runtime")

SERVE = """async (url) => {
  const {serve} = await import('./rpc.js');
  globalThis.server = await serve(url, {threads: 1});
}"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of any number of rows, and rows for it."""
    monkeypatch.chdir(tmp_path)
    weights = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
        helper.make_node("Softmax", ["product"], ["y"], name="softmax"),
    ]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
             for name, size in (("x", 4), ("y", 3))]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", sides[:1], sides[1:], [numpy_helper.from_array(weights, "w")]
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), "model.onnx")
    np.save("x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    return "model.onnx"


@pytest.fixture
def page(tmp_path: Path, model: str, proxy: rpc.Proxy, web_port: int) -> Iterator[Page]:
    """A page that has the package and nothing else, at the proxy."""
    ekiden.export(model, tmp_path / "model.eki", list(WEB_TARGETS))
    write_web_folder((tmp_path / "model.eki").read_bytes(), tmp_path / "site")
    with page_of(tmp_path / "site") as result:
        result.evaluate(SERVE, f"ws://127.0.0.1:{web_port}")
        yield result


def test_browser_is_a_device_of_the_command_line(
    page: Page, model: str, proxy: rpc.Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--remote", f"127.0.0.1:{proxy.port}", "--key", "browser"]
    compiled = [model, *there, "--target", WEB_TARGETS[-1]]
    assert main(["verify", *compiled]) == 0
    assert main(["verify", "model.eki", "--model", model, *there]) == 0
    capsys.readouterr()
    assert main(["bench", *compiled, "--dim", "n=3", "--seconds", "0.05", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["runs"] >= 5 and result["inputs"] == {"x": "float32[3, 4]"}
    assert main(["profile", *compiled, "--dim", "n=3", "--json", "profile.json"]) == 0
    assert "product" in capsys.readouterr().out and Path("profile.json").stat().st_size > 0
    assert main(["run", "model.eki", "--input", "x=x.npy", "--output-dir", "out", *there]) == 0
    here = ekiden.compile(model)(np.load("x.npy"))
    np.testing.assert_allclose(np.load("out/output0.npy"), np.asarray(here), rtol=1e-5)
    assert main(["run", model, "--input", "x=x.npy", *there]) == 1  # this machine's code
    assert "lacks" in capsys.readouterr().err


def test_kernels_are_tuned_on_a_page(
    page: Page, model: str, proxy: rpc.Proxy, tmp_path: Path
) -> None:
    there = ["--remote", f"127.0.0.1:{proxy.port}", "--key", "browser", "--target", WEB_TARGETS[-1]]
    asked = ["tune", model, "-o", "records.json", "--dim", "n=8", "--trials", "4"]
    assert main([*asked, "--kernel", "product", *there]) == 0
    rows = [json.loads(line) for line in Path("records.json").read_text().splitlines()]
    assert {row["status"] for row in rows} <= {"ok", "unsteady"} and len(rows) >= 4
    assert {row["processor"] for row in rows} == {"remote browser"}
    assert all(row["untuned"] > 0 for row in rows if row["status"] == "ok")
