"""Models in WebAssembly, run by Node: the script of all languages, files of other machines."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.codegen import llvm
from ekiden.codegen.llvm import wasm
from ekiden.compiler.export.web import (
    RUNTIME_FILE,
    THREADED_RUNTIME_FILE,
    WEB_TARGETS,
    build_runtime,
    package_files,
    write_web_folder,
)
from ekiden.runtime.errors import CompileError, ExportError, LoadError
from ekiden.target import Target

pytest.importorskip("ziglang", reason="needs ziglang, a C compiler for WebAssembly")

pytestmark = pytest.mark.usefixtures("web_runtime")
if shutil.which("node") is None:
    pytest.skip("needs node", allow_module_level=True)

BINDINGS = Path(__file__).parents[2] / "bindings"
SIMD = WEB_TARGETS[-1]
MOST = 150_000
"""Bytes of the runtime as a server sends it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script, its models for WebAssembly, and the package."""
    result = tmp_path_factory.mktemp("web")
    script = json.loads((BINDINGS / "conformance.json").read_text())
    for name, text in script["models"].items():
        ekiden.export(relay.parse(text), result / f"{name}.eki", list(WEB_TARGETS))
    script["cases"] = [c for c in script["cases"] if c["name"] != "a shared library"]
    data = (result / "scaled.eki").read_bytes()
    (result / "damaged.eki").write_bytes(data[:500])
    (result / "model.onnx").write_bytes(b"")
    (result / "conformance.json").write_text(json.dumps(script))
    write_web_folder(data, result)
    shutil.copyfile(BINDINGS / "web" / "conformance.js", result / "conformance.mjs")
    return result


def run(folder: Path, *words: str, flags: tuple[str, ...] = ()) -> str:
    """What a program of Node prints; it must end well."""
    done = subprocess.run(["node", *flags, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("runtime", [RUNTIME_FILE, THREADED_RUNTIME_FILE])
def test_conformance_script_passes_in_wasm(site: Path, runtime: str) -> None:
    assert run(site, "conformance.mjs", ".", runtime).endswith(" steps\n")


def relaxed_flags() -> tuple[str, ...]:
    """What switches relaxed vectors on, where Node has them behind a flag."""
    flag = "--experimental-wasm-relaxed-simd"
    known = subprocess.run(["node", flag, "-e", "0"], capture_output=True).returncode == 0
    return (flag,) if known else ()


def test_relaxed_simd_is_used_where_supported(site: Path) -> None:
    assert run(site, "conformance.mjs", ".", RUNTIME_FILE, flags=relaxed_flags()).endswith(
        " steps\n"
    )


def test_invalid_and_closed_handles_are_errors(site: Path) -> None:
    shutil.copyfile(BINDINGS / "web" / "check.js", site / "check.mjs")
    assert run(site, "check.mjs", ".", flags=("--expose-gc",)) == "right\n"


def test_runtime_is_small(site: Path) -> None:
    for name in (RUNTIME_FILE, THREADED_RUNTIME_FILE):
        assert len(gzip.compress((site / name).read_bytes(), 9)) <= MOST
    assert all((site / name).exists() for name in package_files())


def test_file_for_another_width_is_refused(site: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="its architecture|WebAssembly"):
        ekiden.load(site / "scaled.eki")
    text = json.loads((site / "conformance.json").read_text())["models"]["scaled"]
    ekiden.export(relay.parse(text), tmp_path / "here.eki", "llvm")
    program = (
        "import {load} from './index.js';"
        f"await load({str(tmp_path / 'here.eki')!r}).catch((e) => console.log(e.kind, e.message));"
    )
    completed = run(site, "--input-type=module", "-e", program)
    assert completed.startswith("LoadError load ") and "lacks what its code needs" in completed
    with pytest.raises(ExportError, match="code for wasm32 expected, got"):
        write_web_folder((tmp_path / "here.eki").read_bytes(), tmp_path / "site")
    with pytest.raises(ExportError, match=r"\.eki"):
        ekiden.export(relay.parse(text), tmp_path / "model.so", SIMD)


def test_native_code_of_functions_is_refused(tmp_path: Path) -> None:
    module = relay.parse('#[version = "0.0.5"]\ndef @main(%x: Tensor[(2,), float32]) { exp(%x) }')
    with pytest.raises(CompileError, match="wasm32"):
        ekiden.export(module, tmp_path / "m.eki", SIMD, executor="aot")


def test_wasm_results_match_native(site: Path, tmp_path: Path) -> None:
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(n, 3, 17, 19), float32], %w: Tensor[(8, 3, 3, 3), float32]) {
      %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]);
      %1 = nn.softmax(%0, axis=1);
      (tanh(%0), exp(%1), erf(%0), sigmoid(%0), log(%1), nn.global_avg_pool2d(%1))
    }"""
    module = relay.parse(text)
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, 17, 19)).astype(np.float32)
    w = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
    ekiden.export(module, site / "net.eki", list(WEB_TARGETS))
    (site / "x.bin").write_bytes(x.tobytes())
    (site / "w.bin").write_bytes(w.tobytes())
    program = """
      import {readFileSync, writeFileSync} from 'node:fs';
      import {load, Tensor} from './index.js';
      const read = (name) => new Float32Array(new Uint8Array(readFileSync(name)).buffer);
      const model = await load('net.eki');
      const x = new Tensor('float32', [2, 3, 17, 19], read('x.bin'));
      const w = new Tensor('float32', [8, 3, 3, 3], read('w.bin'));
      (await model.run({x, w})).forEach((each, at) => writeFileSync(`${at}.out`, each.data));
    """
    expected = ekiden.compile(module)(x, w)
    for flags in ((), relaxed_flags()):
        run(site, "--input-type=module", "-e", program, flags=flags)
        for at, item in enumerate(expected):
            actual = np.frombuffer((site / f"{at}.out").read_bytes(), np.float32)
            np.testing.assert_allclose(actual, np.asarray(item).ravel(), rtol=2e-5, atol=2e-5)


def test_page_of_the_documentation_runs(site: Path, tmp_path: Path) -> None:
    text = """#[version = "0.0.5"]
    def @main(%x: Tensor[(n, 4), float32]) { strided_slice(%x, begin=[0], end=[3], axes=[1]) }"""
    ekiden.export(relay.parse(text), tmp_path / "model.eki", list(WEB_TARGETS))
    write_web_folder((tmp_path / "model.eki").read_bytes(), tmp_path / "site")
    page = (BINDINGS.parent / "docs" / "guides" / "web.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```js\n")[1:]]
    message = run(tmp_path, "--input-type=module", "-e", "\n".join(blocks[:2])).splitlines()
    assert message[0] == "[ 'x' ]" and message[1].startswith("[ 2, 3 ] Float32Array(6)")
    assert any(line.startswith("true input 'x'") for line in message)


def test_runtime_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_runtime()
    monkeypatch.setattr("ekiden.compiler.export.web.run_c_compiler", None)
    assert build_runtime() == first


def test_only_position_independent_code_is_linked() -> None:
    target = Target(SIMD)
    text = 'target triple = "wasm32-unknown-unknown"\ndefine i32 @f(ptr %p) { ret i32 7 }\n'
    result = llvm.compile_ir(text, target)
    linker = wasm.WasmLinker([result], ["f"])
    assert linker.exported("f") == 0 and linker.imports == []
    assert dict(wasm.iter_sections(linker.text()))[wasm.SECTION_CUSTOM].startswith(b"\x08dylink.0")
    image = llvm.parse_image(llvm.link_image([result], ["f"], target))
    assert image.required_cpu_flags == ("lime1", "simd128") and image.exports == {"f": 0}
