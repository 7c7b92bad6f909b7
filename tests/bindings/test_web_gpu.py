"""Kernels in WGSL through the package of browsers, in Chromium on a processor that plays a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekiden
from chromium import PLAIN, SWIFTSHADER, page_of
from ekiden import relay
from ekiden.compiler.export.web import WEB_TARGETS, web_targets, write_web_folder

pytest.importorskip("ziglang", reason="needs ziglang, a C compiler for WebAssembly")

pytestmark = pytest.mark.usefixtures("web_runtime")
NET = """#[version = "0.0.5"]
def @main(%x: Tensor[(n, 3, 9, 7), float32], %w: Tensor[(5, 3, 3, 3), float32]) {
  %0 = nn.relu(nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=5, kernel_size=[3, 3]));
  (nn.softmax(nn.batch_flatten(%0)), mean(%0, axis=[2, 3]))
}"""
BOTH = """#[version = "0.0.5"]
def @main(%x: Tensor[(6, 8), float32], %i: Tensor[(4), int64]) {
  %0 = take(exp(%x), %i, axis=0, mode="raise");
  (argmax(%0, axis=[1]), where(greater(%0, 1f), tanh(%0), %0))
}"""
CHECKED = """#[version = "0.0.5"]
def @main(%x: Tensor[(5, 2), float32], %i: Tensor[(4), int32]) {
  take(%x, %i, axis=0, mode="raise") }"""
PROGRAM = """async () => {
  const {init, load, Tensor} = await import('./index.js');
  const said = {};
  const text = (error) => `${error.kind}: ${error.message}`;
  const list = (found) => found.map(({shape, data}) => [shape, Array.from(data, Number)]);
  const ramp = (...shape) => new Tensor('float32', shape, Float32Array.from(
    {length: shape.reduce((a, b) => a * b)}, (_, i) => (i % 11) / 11 - 0.4));
  const net = await load('net.eki');
  const w = ramp(5, 3, 3, 3);
  said.net = [];
  for (const n of [2, 1, 4]) said.net.push(list(await net.run({x: ramp(n, 3, 9, 7), w})));
  try {
    said.sync = list(net.runSync({x: ramp(2, 3, 9, 7), w}));
  } catch (error) {
    said.sync = text(error);
  }
  said.shape = await net.run({x: ramp(2, 3), w}).catch(text);
  const int64 = (...data) => new Tensor('int64', [4], data.map(BigInt));
  const both = await load('both.eki');
  said.both = list(await both.run({x: ramp(6, 8), i: int64(5, 0, 2, 2)}));
  said.range = await both.run({x: ramp(6, 8), i: int64(5, 0, 6, 2)}).catch(text);
  const checked = await load('checked.eki');
  const given = [[4, 0, -5, 1], [0, 7, 1, -9], [1, 1, 1, 1]];
  said.checked = await Promise.all(given.map((i) => checked.run(
    {x: ramp(5, 2), i: new Tensor('int32', [4], i)}).then((found) => list([found]), text)));
  const {device} = net.module.runtime.driver;
  const memory = () => [device.used(), device.pieces()];
  const before = memory();
  for (let i = 0; i < 20; i++) await net.run({x: ramp(2, 3, 9, 7), w});
  said.grown = memory().map((each, at) => each - before[at]);
  [net, both, checked].forEach((each) => each.close());
  said.left = memory()[0];
  return said;
}"""


def ramp(*shape: int) -> np.ndarray[Any, Any]:
    """What the program gives."""
    return ((np.arange(np.prod(shape)) % 11) / 11 - 0.4).astype("float32").reshape(shape)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, and the package."""
    result = tmp_path_factory.mktemp("webgpu")
    for name, text in {"net": NET, "both": BOTH, "checked": CHECKED}.items():
        ekiden.export(relay.parse(text), result / f"{name}.eki", ["webgpu", WEB_TARGETS[-1]])
    write_web_folder((result / "net.eki").read_bytes(), result)
    return result


WORKER = f"""
delete WebAssembly.Suspending;
const program = {PROGRAM};
program().then((found) => postMessage(found), (error) => postMessage({{error: String(error)}}));
"""
IN_WORKER = """() => new Promise((resolve) => {
  const worker = new Worker('./worker.js', {type: 'module'});
  worker.onmessage = ({data}) => resolve(data);
  worker.onerror = ({message}) => resolve({error: message});
})"""
"""As in an engine without JSPI."""


def in_chromium(site: Path, program: str, flags: Sequence[str], *, isolated: bool = False) -> Any:  # noqa: ANN401
    """What a program gives in a page."""
    with page_of(site, flags, isolated=isolated) as page:
        return page.evaluate(program)


def in_node(site: Path) -> Any:  # noqa: ANN401
    """What the program gives in Node, where the package webgpu of npm is the engine's WebGPU."""
    drivers = Path("/usr/lib/chromium")  # with a processor that plays a GPU
    result = subprocess.run(["npm", "root", "-g"], capture_output=True, text=True).stdout.strip()
    package = Path(result, "webgpu", "index.js")
    if not (package.exists() and (drivers / "vk_swiftshader_icd.json").exists()):
        pytest.skip("needs webgpu of npm, and chromium of Debian")
    (site / "gpu.mjs").write_text(
        f"import {{create, globals}} from '{package}';"
        "Object.assign(globalThis, globals); export default create([]);"
    )
    (site / "gpu_test.mjs").write_text(
        "import {init} from './index.js';"
        "await init({webgpu: new URL('./gpu.mjs', import.meta.url)});"
        f"console.log(JSON.stringify(await ({PROGRAM})())); process.exit();"
    )
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": str(drivers),
        "VK_DRIVER_FILES": str(drivers / "vk_swiftshader_icd.json"),
    }
    done = subprocess.run(
        ["node", "gpu_test.mjs"], cwd=site, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def runs(site: Path) -> Callable[[str], Any]:
    """What the program says in an engine, run when first asked for."""

    @cache
    def run(engine: str) -> Any:  # noqa: ANN401
        if engine == "suspends":
            return in_chromium(site, PROGRAM, SWIFTSHADER)
        if engine == "node":
            return in_node(site)
        (site / "worker.js").write_text(WORKER)
        return in_chromium(site, IN_WORKER, SWIFTSHADER, isolated=True)

    return run


@pytest.fixture(params=["suspends", "waits", "node"])
def said(runs: Callable[[str], Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the program says where WebAssembly suspends, and where a thread has the device."""
    if request.param == "node" and (shutil.which("node") is None or shutil.which("npm") is None):
        pytest.skip("needs node and npm")
    result = runs(request.param)
    assert isinstance(result, dict) and "error" not in result, result
    return result


def check(actual: list[Any], wanted: object) -> None:
    """Results of a run: shape and elements of each."""
    results = wanted if isinstance(wanted, tuple) else (wanted,)
    for (shape, data), result in zip(actual, results, strict=True):
        array = np.asarray(result)
        assert tuple(shape) == array.shape
        np.testing.assert_allclose(np.array(data), array.ravel(), rtol=1e-4, atol=1e-6)


def test_network_gives_what_this_machine_gives(said: dict[str, Any]) -> None:
    exe, w = ekiden.compile(relay.parse(NET)), ramp(5, 3, 3, 3)
    for n, result in zip((2, 1, 4), said["net"], strict=True):
        check(result, exe(ramp(n, 3, 9, 7), w))
    assert said["shape"].startswith("InputError: input 'x'")
    if isinstance(said["sync"], str):
        assert said["sync"].startswith("DeviceError: webgpu(0): its results lie there")
    else:
        check(said["sync"], exe(ramp(2, 3, 9, 7), w))


def test_operators_without_wgsl_form_run_in_wasm(said: dict[str, Any]) -> None:
    index = np.array([5, 0, 2, 2])
    check(said["both"], ekiden.compile(relay.parse(BOTH))(ramp(6, 8), index))
    assert said["range"].startswith("IndexRangeError: take at text:3:8: index 6 at position 2")


def test_index_checks_are_awaited_in_order(said: dict[str, Any]) -> None:
    good, bad, again = said["checked"]
    x = ramp(5, 2)
    check(good, x[[4, 0, 0, 1]])
    assert bad.startswith("IndexRangeError: take at text:3:3: index 7 at position 1")
    check(again, x[[1, 1, 1, 1]])


def test_memory_does_not_grow(said: dict[str, Any]) -> None:
    assert said["grown"] == [0, 0] and said["left"] == 0


def test_missing_webgpu_is_reported(site: Path) -> None:
    program = "import {load} from './index.js';"
    program += "await load('net.eki').catch((e) => console.log(e.kind, e.message));"
    if shutil.which("node"):
        command = ["node", "--input-type=module", "-e", program]
        done = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("DeviceError webgpu(0): this engine has no WebGPU"), done
    page = "async () => (await import('./index.js')).load('net.eki').catch((e) => e.message)"
    assert "WebGPU" in in_chromium(site, page, [*PLAIN, "--disable-gpu"])


def test_command_compiles_for_both() -> None:
    assert web_targets(["webgpu"]) == ["webgpu", *WEB_TARGETS]
    assert web_targets([WEB_TARGETS[-1]]) == [WEB_TARGETS[-1]]
    assert json.dumps(web_targets(())) == json.dumps(list(WEB_TARGETS))
