"""Every language runs bindings/conformance.json: the same steps, results and errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import ekiden
from ekiden import relay, runtime

ROOT = Path(__file__).parents[2]
BINDINGS = ROOT / "bindings"
LIBRARY = runtime.library_path().resolve().parent


def needs(*tools: str) -> pytest.MarkDecorator:
    """Leaves a test out where a program is missing, and names it."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script and its models."""
    made = tmp_path_factory.mktemp("conformance")
    script = json.loads((BINDINGS / "conformance.json").read_text())
    for name, text in script["models"].items():
        executable = ekiden.compile(relay.parse(text))
        executable.save(made / f"{name}.eki")
        if name == "scaled" and shutil.which("cc"):
            executable.export_library(made / f"{name}.so")
    if not (made / "scaled.so").exists():
        script["cases"] = [c for c in script["cases"] if c["name"] != "a shared library"]
    (made / "damaged.eki").write_bytes((made / "scaled.eki").read_bytes()[:500])
    (made / "model.onnx").write_bytes(b"")
    (made / "conformance.json").write_text(json.dumps(script))
    return made


def run(command: Sequence[object], cwd: Path, **more: object) -> str:
    """What a program prints; it must end well."""
    variables = {
        **os.environ,
        "EKIDEN_LIB_DIR": str(LIBRARY),
        **{k: str(v) for k, v in more.items()},
    }
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_python(folder: Path) -> None:
    run([sys.executable, Path(__file__).with_name("conformance.py"), folder], ROOT)
    said = run([sys.executable, Path(__file__).with_name("check.py"), folder], ROOT)
    assert said == "right\n"


@needs("c++")
def test_cpp(folder: Path, tmp_path: Path) -> None:
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]
    library = [LIBRARY / "libekiden_runtime.so", f"-Wl,-rpath,{LIBRARY}"]
    for name, last in (("conformance", " steps\n"), ("check", "right\n")):
        program, source = tmp_path / name, Path(__file__).with_name(f"{name}.cpp")
        run(["c++", *flags, f"-I{runtime.include_dir()}", source, *library, "-o", program], ROOT)
        assert run([program, folder], ROOT).endswith(last)


@needs("cargo", "cc")
def test_rust(folder: Path, tmp_path: Path) -> None:
    command = ["cargo", "test", "--offline", "--quiet", "--", "--nocapture"]
    places = {"EKIDEN_CONFORMANCE": folder, "CARGO_TARGET_DIR": tmp_path}
    said = run(command, BINDINGS / "rust", **places)
    assert " steps" in said


def _has_node_headers() -> bool:
    node = shutil.which("node")
    places = [Path("/usr/include/node")]
    places += [Path(node).resolve().parents[1] / "include/node"] if node else []
    return any((place / "node_api.h").exists() for place in places)


@needs("node", "cc")
@pytest.mark.skipif(not _has_node_headers(), reason="needs node_api.h of Node")
def test_node(folder: Path, tmp_path: Path) -> None:
    addon = tmp_path / "ekiden.node"
    run(["node", "build.js", addon], BINDINGS / "node")
    said = run(["node", "conformance.js", folder], BINDINGS / "node", EKIDEN_NODE_ADDON=addon)
    assert said.endswith(" steps\n")
    said = run(
        ["node", "--expose-gc", "check.js", folder], BINDINGS / "node", EKIDEN_NODE_ADDON=addon
    )
    assert said == "right\n"


@needs("go", "cc")
def test_go(folder: Path, tmp_path: Path) -> None:
    places = {
        "CGO_CFLAGS": f"-I{runtime.include_dir()}",
        "CGO_LDFLAGS": f"-L{LIBRARY} -Wl,-rpath,{LIBRARY}",
        "GOCACHE": os.environ.get("GOCACHE", tmp_path),
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "EKIDEN_CONFORMANCE": folder,
    }
    said = run(["go", "test", "-count=1", "-v", "./..."], BINDINGS / "go", **places)
    assert " steps" in said


def _jdk() -> Path | None:
    """The folder of programs of a JDK of 22 or later, which has foreign functions."""
    homes = [Path(os.environ.get("JAVA_HOME", "/nowhere")), *sorted(Path("/usr/lib/jvm").glob("*"))]
    for home in homes:
        release = home / "release"
        words = release.read_text().split('JAVA_VERSION="')[1:] if release.exists() else []
        if words and (home / "bin/javac").exists() and int(words[0].split(".")[0]) >= 22:
            return home / "bin"
    return None


@pytest.mark.skipif(
    _jdk() is None, reason="needs a JDK of 22 or later, of JAVA_HOME or /usr/lib/jvm"
)
def test_java(folder: Path, tmp_path: Path) -> None:
    jdk = _jdk()
    assert jdk is not None
    sources = sorted((BINDINGS / "java").rglob("*.java"))
    run([jdk / "javac", "-d", tmp_path, *sources], ROOT)
    options = ["--enable-native-access=ALL-UNNAMED", "-cp", tmp_path]
    said = run([jdk / "java", *options, "dev.ekiden.Conformance", folder], ROOT)
    assert said.endswith(" steps\n")
