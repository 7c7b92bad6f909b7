"""Servers on other architectures by QEMU: the documented program, and `--remote`."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from rpc_functions import CServer

from ekiden.cli import main
from ekiden.compiler.export.rpc_server import build_server

PAGE = Path(__file__).parents[2] / "docs" / "cross-compiling.md"
SYSTEMS = {
    "aarch64": ("aarch64-linux-gnu", "qemu-aarch64-static"),
    "armv7": ("arm-linux-gnueabihf", "qemu-arm-static"),
    "riscv64": ("riscv64-linux-gnu", "qemu-riscv64-static"),
}
"""Machine -> the system as compilers and folders have it, the emulator."""
TARGETS = {
    "aarch64": "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72",
    "armv7": "llvm -mtriple=armv7a-linux-gnueabihf -mcpu=cortex-a7",
    "riscv64": "llvm -mtriple=riscv64-linux-gnu",
}


def needs(machine: str) -> None:
    """Skip where the machine's compiler or emulator is missing, with their packages."""
    system, emulator = SYSTEMS[machine]
    for program, package in ((f"{system}-gcc", f"gcc-{system}"), (emulator, "qemu-user-static")):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: apt-get install {package}")


@pytest.mark.parametrize("machine", TARGETS)
def test_documentation_programs_run(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it stands for AArch64, with its first lines changed for the others."""
    needs(machine)
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

    def first(machine: str) -> str:
        names = ", ".join(f'"{name}"' for name in (machine, *SYSTEMS[machine]))
        return f"MACHINE, SYSTEM, QEMU = {names}\n"

    assert first("aarch64") in text
    text = text.replace(first("aarch64"), first(machine))
    text = text.replace('f"llvm -mtriple={SYSTEM}"', repr(TARGETS[machine]))
    monkeypatch.chdir(tmp_path)
    exec(compile(text, str(PAGE), "exec"), {"__name__": "page"})


@pytest.fixture(scope="module")
def built(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The server for a machine, built once."""
    folder = tmp_path_factory.mktemp("built")

    def build(machine: str) -> Path:
        if machine == os.uname().machine:
            return program
        if not (folder / machine).exists():
            build_server(folder / machine, machine)
        return folder / machine

    return build


def sizes() -> dict[str, int]:
    """The table of the page."""
    rows = re.findall(r"^\| (\w+) \| (\d+) \| libc, libm \|$", PAGE.read_text(), re.MULTILINE)
    return {machine: int(size) for machine, size in rows}


@pytest.mark.parametrize("machine", ["x86_64", *TARGETS])
def test_documented_server_sizes_are_current(machine: str, built: Callable[[str], Path]) -> None:
    """Within 3 %: compilers of other versions differ. No one is larger than 170 KB."""
    assert sizes()[machine] <= 170 << 10
    if machine != os.uname().machine:
        needs(machine)
    assert built(machine).stat().st_size == pytest.approx(sizes()[machine], rel=0.03)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    weight = numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "w")
    infos = [helper.make_tensor_value_info(n, 1, ["n", d]) for n, d in (("x", 4), ("y", 3))]
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "product")
    graph = helper.make_graph([node], "page", infos[:1], infos[1:], [weight])
    graph_model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    onnx.save(graph_model, "model.onnx")
    np.save("x.npy", np.arange(8, dtype=np.float32).reshape(2, 4))
    return "model.onnx"


def test_run_bench_and_verify_with_a_server(
    model: str, c_server: CServer, capsys: pytest.CaptureFixture[str]
) -> None:
    there = ["--remote", f"127.0.0.1:{c_server.port}", "--key", "board"]
    assert main(["run", model, "--input", "x=x.npy", "--output-dir", "out", *there]) == 0
    np.testing.assert_array_equal(np.load("out/output0.npy"), np.load("x.npy")[:, :3])
    assert main(["bench", model, "--dim", "n=3", "--seconds", "0.05", "--json", *there]) == 0
    assert '"median_ms"' in capsys.readouterr().out
    assert main(["verify", model, *there]) == 0
    assert main(["profile", model, "--dim", "n=3", "--json", "profile.json", *there]) == 0
    assert "product" in capsys.readouterr().out and Path("profile.json").stat().st_size > 0
    assert main(["compile", model, "-o", "model.eki"]) == 0
    assert main(["verify", "model.eki", "--model", model, *there]) == 0
    assert main(["tune", model, "-o", "r.json", "--dim", "n=8", "--trials", "2", *there]) == 0
    assert '"processor": "remote board"' in Path("r.json").read_text()
    both = ["--target", "llvm", "--target", "llvm -mtriple=riscv64-linux-gnu"]
    assert main(["compile", model, "-o", "both.eki", *both]) == 0
    for wrong, message in (
        (["run", "model.eki", *there, "--target", "llvm"], "is an artifact"),
        (["run", model, "--key", "x"], "need --remote"),
        (["verify", "model.eki", "--model", model, "--target", "llvm"], "is an artifact"),
        (["verify", model, "--key", "x"], "need --remote"),
        (["bench", model, "--threads", "1", *there], "--threads"),
        (["run", model, "--remote", "127.0.0.1:1"], "connect to"),
        (["run", model, *there], "expected the inputs 'x'"),
        (["profile", "both.eki", *there], "an artifact for one target expected"),
        (["profile", model, "--key", "x"], "need --remote"),
        (["tune", model, "-o", "r.json", "--dim", "n=8", "--key", "x"], "need --remote"),
        (["tune", model, "-o", "r.json", "--dim", "n=8", "--cold", *there], "neither threads="),
    ):
        assert main(wrong) == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("machine", TARGETS)
def test_verify_on_another_processor(
    machine: str,
    model: str,
    tmp_path: Path,
    built: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    needs(machine)
    program = built(machine)
    wrapper = tmp_path / "emulated"
    system, emulator = SYSTEMS[machine]
    wrapper.write_text(f'#!/bin/sh\nexec {emulator} -L /usr/{system} {program} "$@"\n')
    wrapper.chmod(0o700)
    server = CServer(wrapper, "--no-sandbox")
    there = ["--remote", f"127.0.0.1:{server.port}", "--key", "board"]
    assert main(["verify", model, *there, "--target", TARGETS[machine]]) == 0
    assert main(["run", model, "--input", "x=x.npy", *there]) == 1  # this machine's code
    assert "lacks" in capsys.readouterr().err
    server.terminate()
