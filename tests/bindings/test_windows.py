"""Code and the runtime for Windows, built here by mingw-w64 and run by Wine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from toolchains import BINDINGS, ROOT

import ekiden
from ekiden import relay
from ekiden.relay.op import nn
from ekiden.runtime.errors import LoadError

WINDOWS = "llvm -mtriple=x86_64-pc-windows-gnu -mcpu=x86-64-v2"
TOOLCHAIN = ROOT / "runtime/windows/toolchain.cmake"
GCC = shutil.which("x86_64-w64-mingw32-gcc-posix") or shutil.which("x86_64-w64-mingw32-gcc")
NEEDS_WINDOWS = pytest.mark.skipif(
    not (GCC and shutil.which("wine") and shutil.which("cmake")),
    reason="needs mingw-w64, Wine and CMake: "
    "apt install g++-mingw-w64-x86-64-posix wine wine64 cmake",
)


def execute(folder: Path, *words: object) -> str:
    """Run a program and return what it prints; its messages are those of a failure."""
    variables = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(folder / "wine")}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=variables, capture_output=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
    return done.stdout.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runtime's library and programs for Windows."""
    result = tmp_path_factory.mktemp("windows")
    options = ("--toolchain", TOOLCHAIN, "-DEKIDEN_PYTHON=OFF", "-DEKIDEN_WERROR=ON")
    execute(result, "cmake", "-S", ROOT, "-B", result, *options)
    execute(result, "cmake", "--build", result, "--target", "ekiden_runtime", "-j", 2)
    assert GCC is not None
    here, linked = Path(__file__).parent, result / "libekiden_runtime.dll.a"
    sources = {"conformance.cpp": (GCC.replace("gcc", "g++"), "-std=c++17"), "print_bits.c": (GCC,)}
    for name, compiler in sources.items():
        flags = ("-Wall", "-Wextra", "-Werror", "-static", f"-I{ROOT / 'runtime/include'}")
        program = result / f"{Path(name).stem}.exe"
        execute(result, *compiler, *flags, here / name, linked, "-o", program)
    return result


def convolutions() -> ekiden.IRModule:
    """Return a network whose loops split among threads, with a softmax at its end."""
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(1, 8, 32, 32))
    out: relay.Expr = x
    for inputs, outputs in ((8, 32), (32, 16)):
        weight = rng.standard_normal((outputs, inputs, 3, 3), np.float32)
        out = nn.relu(nn.conv2d(out, relay.const(weight / 8), padding=(1, 1)))
    flat = nn.batch_flatten(out)
    weight = rng.standard_normal((64, 16 * 32 * 32), np.float32)
    scores = nn.softmax(nn.dense(flat, relay.const(weight / 64)))
    return ekiden.IRModule.from_expr(relay.Function((x,), scores))


@NEEDS_WINDOWS
def test_cpp_on_windows_follows_the_conformance_script(folder: Path) -> None:
    script = json.loads((BINDINGS / "conformance.json").read_text())
    for name, text in script["models"].items():
        ekiden.export(relay.parse(text), folder / f"{name}.eki", WINDOWS)
    # a library of a model for Windows is not written yet
    script["cases"] = [c for c in script["cases"] if c["name"] != "a shared library"]
    (folder / "damaged.eki").write_bytes((folder / "scaled.eki").read_bytes()[:500])
    (folder / "model.onnx").write_bytes(b"")
    (folder / "conformance.json").write_text(json.dumps(script))
    assert "steps" in execute(folder, "wine", folder / "conformance.exe", ".")


@NEEDS_WINDOWS
@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_windows_results_equal_linux_bit_for_bit(folder: Path, executor: str) -> None:
    module, shape = convolutions(), (1, 8, 32, 32)
    ekiden.export(module, folder / "net.eki", WINDOWS, executor=executor)
    value = (np.arange(np.prod(shape)) % 17 - 8).astype(np.float32).reshape(shape)
    here = ekiden.compile(module, target="llvm -mcpu=x86-64-v2", executor=executor)(value)
    assert isinstance(here, ekiden.Tensor)
    bits = execute(folder, "wine", folder / "print_bits.exe", "net.eki", *shape).split()
    assert bits == [f"{n:08x}" for n in here.numpy().view(np.uint32).ravel()]


def test_artifact_for_windows_does_not_run_here(tmp_path: Path) -> None:
    text = json.loads((BINDINGS / "conformance.json").read_text())["models"]["scaled"]
    ekiden.export(relay.parse(text), tmp_path / "m.eki", WINDOWS)
    with pytest.raises(LoadError, match=r"lacks what its code needs: Windows"):
        ekiden.load(tmp_path / "m.eki")
