"""Packages for other languages as users install them, and their examples."""

from __future__ import annotations

import runpy
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from toolchains import BINDINGS, BRIEF, LIBRARY, NEEDS_JDK, NEEDS_NODE, ROOT, go, jdk, needs, run

from ekiden import runtime
from ekiden.runtime.errors import ImportModelError

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the demo."""
    result = tmp_path_factory.mktemp("magika")
    try:
        runpy.run_path(str(EXAMPLES / "python/classify.py"))["prepare"](result)
    except ImportModelError as reason:
        pytest.skip(f"needs the package magika from PyPI: {reason}")
    return result


@pytest.fixture(scope="module")
def words(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """What an example is given: the model, and files with and without white space around them."""
    short = tmp_path_factory.mktemp("files") / "short.html"
    short.write_text("\n\n <html><head><title>x</title></head><body>y</body></html>\n \t\v\f\r\n")
    script = EXAMPLES / "python/classify.py"
    return [folder, script, ROOT / "CMakeLists.txt", short, ROOT / "LICENSE"]


@pytest.fixture(scope="module")
def said(words: Sequence[Path]) -> str:
    """What Python says of the files."""
    result = run([sys.executable, EXAMPLES / "python/classify.py", *words], ROOT)
    assert "classify.py: python 100.0 %" in result and "short.html: html" in result
    return result


def built(name: str, to: Path) -> Path:
    """A package, and its reference without a warning where the tool for it is there."""
    run([sys.executable, ROOT / "scripts/build_bindings.py", name, "--to", to], ROOT)
    return next(path for path in to.iterdir() if path.is_file())


@needs("c++")
def test_cpp_package_examples_run(words: Sequence[Path], said: str, tmp_path: Path) -> None:
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    library = [LIBRARY / "libekiden_runtime.so", f"-Wl,-rpath,{LIBRARY}"]
    source = EXAMPLES / "cpp/classify.cpp"
    result = [source, *library, "-o", tmp_path / "classify"]
    run(["c++", *flags, f"-I{runtime.include_dir()}", *result], ROOT)
    assert run([tmp_path / "classify", *words], ROOT) == said


@needs("cargo", "cc")
def test_rust_crate_examples_run(words: Sequence[Path], said: str, tmp_path: Path) -> None:
    command = ["cargo", "run", "--offline", "--quiet", "--example", "classify", "--"]
    target = str(tmp_path / "target")
    assert run([*command, *words], BINDINGS / "rust", CARGO_TARGET_DIR=target) == said
    assert built("rust", tmp_path / "dist").suffix == ".crate"


MANIFEST = """\
[package]
name = "dependent"
version = "0.1.0"
edition = "2021"
[dependencies]
ekiden = {{ path = "{path}" }}
"""
DEPENDENT = """\
fn main() {
    let made = ekiden::Tensor::from_slice(&[1f32, 2.0], &[2]).unwrap();
    println!("{:?}", made.as_slice::<f32>().unwrap());
}
"""


@needs("cargo", "cc")
def test_program_that_depends_on_the_crate_runs(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(MANIFEST.format(path=BINDINGS / "rust"))
    (tmp_path / "src/main.rs").write_text(DEPENDENT)
    run(["cargo", "build", "--offline", "--quiet"], tmp_path)  # EKIDEN_LIB_DIR is the folder
    program = tmp_path / "target/debug/dependent"
    assert run([program], tmp_path, EKIDEN_LIB_DIR=None) == "[1.0, 2.0]\n"
    run(["cargo", "build", "--offline", "--quiet"], tmp_path, EKIDEN_LIB_DIR=None)
    assert run([program], tmp_path, EKIDEN_LIB_DIR=str(LIBRARY)) == "[1.0, 2.0]\n"


@needs("go", "cc")
def test_go_module_examples_run(words: Sequence[Path], said: str) -> None:
    command = ["go", "run", "./examples/classify"]
    assert run([*command, *words], BINDINGS / "go", **go(LIBRARY)) == said
    assert "func LoadModel(path string)" in run(["go", "doc", "-all", "."], BINDINGS / "go")


@NEEDS_JDK
def test_java_package_examples_run(words: Sequence[Path], said: str, tmp_path: Path) -> None:
    programs = jdk()
    assert programs is not None
    jar = built("java", tmp_path / "dist")
    options = [*BRIEF, "--enable-native-access=ALL-UNNAMED", "-cp", jar]
    command = [programs / "java", *options, BINDINGS / "java/examples/Classify.java"]
    assert run([*command, *words], tmp_path, EKIDEN_LIB_DIR=None) == said


@needs("node", "npm", "cc")
@NEEDS_NODE
def test_node_package_examples_run(words: Sequence[Path], said: str, tmp_path: Path) -> None:
    with tarfile.open(built("node", tmp_path / "dist")) as package:
        package.extractall(tmp_path, filter="data")
    place = tmp_path / "package"
    run(["node", "build.js", "--unless-prebuilt"], place, EKIDEN_LIB_DIR=None)
    shutil.copytree(BINDINGS / "node/examples", place / "examples")
    command = ["node", "examples/classify.js"]
    assert run([*command, *words], place, EKIDEN_LIB_DIR=None) == said


@needs("node", "npm")
def test_web_package_examples_run(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("ziglang", reason="needs ziglang, a C compiler for WebAssembly")
    request.getfixturevalue("web_runtime")
    with tarfile.open(built("web", tmp_path / "dist")) as package:
        package.extractall(tmp_path, filter="data")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "package").rename(tmp_path / "node_modules/ekiden-web")
    program = "import {abilities, init} from 'ekiden-web'; await init({threads: 1});"
    program += "console.log(abilities().simd);"
    assert run(["node", "--input-type=module", "-e", program], tmp_path) == "true\n"


TYPED = """
import {Model, Tensor, EkidenError, registry} from 'PACKAGE';
async function use(): Promise<number> {
  const model: Model = await LOAD('model.eki');
  const x = new Tensor('float32', [1, 4], new Float32Array(4));
  registry.register('typed', (a: number) => a + 1);
  try {
    const result: Tensor = await model.run({x});
    return result.shape[0] + result.data.length + model.numThreads;
  } catch (error) {
    if (error instanceof EkidenError) return error.kind.length;
    throw error;
  } finally {
    model.close();
  }
}
// @ts-expect-error: no such dtype
new Tensor('float31', [1]);
// @ts-expect-error: a name is missing
use().then((found: string) => found);
"""


@needs("tsc")
def test_typescript_declarations_are_valid(tmp_path: Path) -> None:
    for name, load in (("node", "Model.load"), ("web", "load")):
        shutil.copytree(BINDINGS / name, tmp_path / name)
        text = TYPED.replace("PACKAGE", f"./{name}/index.js").replace("LOAD", load)
        if load == "load":
            text = text.replace("import {", "import {load, ")
        (tmp_path / f"use_{name}.ts").write_text(text)
    options = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext"]
    assert run(["tsc", *options, "use_node.ts", "use_web.ts"], tmp_path) == ""
