"""Threads in Node and in a page: where memory can be shared, and what is said where it cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ekiden
from chromium import page_of
from ekiden import relay
from ekiden.compiler.export.web import THREADED_RUNTIME_FILE, WEB_TARGETS, write_web_folder

pytest.importorskip("ziglang", reason="needs ziglang, a C compiler for WebAssembly")

pytestmark = pytest.mark.usefixtures("web_runtime")
PROGRAM = """
import {abilities, init, load, registry, Tensor} from './index.js';

/** What three models say, one after the other closed: code is placed and taken away. */
export async function measure(options) {
  const refused = await init({...options, threads: 65}).catch((error) => error.kind);
  await init(options);
  const numbers = (n, by) => new Float32Array(n).map((_, i) => (i % by) / by - 0.5);
  const x = new Tensor('float32', [200, 64], numbers(200 * 64, 7));
  const w = new Tensor('float32', [96, 64], numbers(96 * 64, 5));
  const rows = [];
  for (let i = 0; i < 3; i++) {
    const model = await load('net.eki');
    if (i === 1) model.numThreads = 2;
    for (let k = 0; k < 5; k++) {
      rows[i] = Array.from((await model.run({x, w})).data.subarray(0, 400));
    }
    model.close();
  }
  const equal = rows.every((row) => row.every((each, at) => each === rows[0][at]));
  return {...abilities(), refused, equal, first: rows[0].slice(0, 4)};
}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose loops are worth sharing, and a module that runs it."""
    result = tmp_path_factory.mktemp("threads")
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(n, 64), float32], %w: Tensor[(96, 64), float32]) {
      exp(nn.softmax(nn.dense(%x, %w, units=96))) }"""
    ekiden.export(relay.parse(text), result / "net.eki", list(WEB_TARGETS))
    write_web_folder((result / "net.eki").read_bytes(), result)
    (result / "measure.js").write_text(PROGRAM)
    return result


def in_node(site: Path, options: str) -> dict[str, Any]:
    """What the program says in Node."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    text = "import {measure} from './measure.js';"
    text += f"console.log(JSON.stringify(await measure({options})));"
    command = ["node", "--input-type=module", "-e", text]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_node_threads_match_single_thread(site: Path) -> None:
    one = in_node(site, "{threads: 1}")
    assert one["threads"] == 1 and one["oneThread"] == "one thread was asked for"
    shared = in_node(site, "{threads: 3}")
    assert shared["threads"] == 3 and "oneThread" not in shared
    for item in (one, shared):
        assert item["equal"] and item["refused"] == "ValueError"
        assert item["first"] == one["first"]


def test_runtime_without_threads_is_given(site: Path) -> None:
    text = """
      import {readFileSync} from 'node:fs';
      import {abilities, init} from './index.js';
      const wasm = new Uint8Array(readFileSync('ekiden.wasm'));
      const said = await init({wasm, threads: 2}).catch((error) => error);
      console.log(`${said.kind}: ${said.message}`);
      await init({wasm});
      console.log(JSON.stringify(abilities().threads));
    """
    if shutil.which("node") is None:
        pytest.skip("needs node")
    command = ["node", "--input-type=module", "-e", text]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    expected = (
        "RuntimeError: threads: 2 were asked for, but the runtime that was given has no threads"
    )
    assert lines == [expected, "1"], done.stderr


def test_thread_without_code_space_is_an_error(site: Path, tmp_path: Path) -> None:
    """As where an engine has no memory left for it; the caller must not wait for ever."""
    if shutil.which("node") is None:
        pytest.skip("needs node")
    shutil.copytree(site, tmp_path / "site")
    module = tmp_path / "site" / "runtime.js"
    head = "  follow(text, size, addresses, data, first) {\n"
    assert head in module.read_text()
    module.write_text(module.read_text().replace(head, f"{head}    return -1;\n"))
    text = """
      import {measure} from './measure.js';
      const said = await measure({threads: 3}).catch((error) => error);
      console.log(`${said.kind}: ${said.message}`);
    """
    command = ["node", "--input-type=module", "-e", text]
    done = subprocess.run(command, cwd=module.parent, capture_output=True, text=True, timeout=60)
    expected = "RuntimeError: a thread could not place code that another has"
    assert expected in done.stdout, done.stderr


@pytest.mark.parametrize("isolated", [True, False])
def test_page_uses_threads_if_isolated(site: Path, isolated: bool) -> None:
    script = "async (n) => (await import('/measure.js')).measure(n ? {threads: n} : {})"
    with page_of(site, isolated=isolated) as page:
        if isolated:
            result = page.evaluate(script, 3)
            assert result["threads"] == 3 and result["equal"]
            assert result["first"] == in_node(site, "{threads: 1}")["first"]
            return
        with pytest.raises(Exception, match="3 were asked for, but memory cannot be shared"):
            page.evaluate(script, 3)
        result = page.evaluate(script, 0)
        assert result["threads"] == 1 and "COOP and COEP" in result["oneThread"]


def test_both_runtimes_are_written(site: Path) -> None:
    assert (site / THREADED_RUNTIME_FILE).read_bytes()[:4] == b"\0asm"
