"""Export formats: the suffix selects one, and each runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import ekiden
from ekiden import runtime
from ekiden.cli import main
from ekiden.runtime.errors import ExportError
from ekiden.runtime.paths import static_library_path
from ekiden.target import Target
from onnx_files import arguments, expected, model

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
THERE = (
    ".eki (the artifact, which ekiden.load maps), .so (a shared library with the runtime inside), "
    ".o (an object to link with libekiden_runtime.a), .c (the same as C), "
    ".tar (sources of model and runtime with a Makefile)"
)
FOREIGN = "llvm -mcpu=neoverse-n1"


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(model(), path)
    return path


def expect_right(library: Path) -> None:
    argument = arguments(2)
    result = runtime.load_module(library)["main"](*map(runtime.tensor, argument.values()))
    np.testing.assert_allclose(result.numpy(), expected(**argument), rtol=1e-5, atol=1e-6)


def link(*arguments: object) -> None:
    command = ["cc", "-shared", "-fPIC", *map(str, arguments), str(static_library_path())]
    subprocess.run([*command, "-pthread", "-ldl"], check=True)


def test_output_suffix_selects_export_format(onnx_file: Path, tmp_path: Path) -> None:
    for suffix in ("eki", "so", "o", "c", "tar"):
        path = tmp_path / f"model.{suffix}"
        assert main(["compile", str(onnx_file), "-o", str(path)]) == 0
    starts = {s: (tmp_path / f"model.{s}").read_bytes()[:8] for s in ("eki", "so", "o", "c")}
    assert starts["eki"] == b"\x89EKIDEN\n" and starts["c"] == b"/* A mod"
    assert starts["so"][:4] == starts["o"][:4] == b"\x7fELF"
    expect_right(tmp_path / "model.so")
    link(tmp_path / "model.o", "-o", tmp_path / "object.so")
    expect_right(tmp_path / "object.so")
    link("-std=gnu11", tmp_path / "model.c", "-o", tmp_path / "c.so")
    expect_right(tmp_path / "c.so")


def test_archive_builds_by_itself(artifact: Path, tmp_path: Path) -> None:
    assert main(["export", str(artifact), "-o", str(tmp_path / "small.tar")]) == 0
    with tarfile.open(tmp_path / "small.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "small"
    subprocess.run(["make", "-s", "CFLAGS=-O0"], cwd=folder, check=True)
    expect_right(folder / "small.so")
    ekiden.load(artifact).export_library(tmp_path / "again.tar")
    sizes = [(tmp_path / f"{n}.tar").stat().st_size for n in ("small", "again")]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("name", "result"), [("model.bin", "'.bin'"), ("model", "none"), ("model.EKI", "'.EKI'")]
)
def test_unknown_suffix_is_refused_before_compiling(
    name: str, result: str, artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    message = f"write '{path}': the suffix decides what is written, got {result}: {THERE}"
    assert main(["compile", "no-such.onnx", "-o", str(path)]) == 1
    assert capsys.readouterr().err == f"ekiden compile: {message}\n"
    for write in (ekiden.load(artifact).export_library, lambda p: ekiden.export(b"none", p)):
        with pytest.raises(ExportError) as caught:
            write(path)
        assert str(caught.value) == message
    assert not path.exists()


def test_full_device_is_an_error_that_names_it(
    onnx_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    assert main(["compile", str(onnx_file), "-o", str(full)]) == 1
    assert capsys.readouterr().err == f"ekiden compile: write '{full}': no space left on device\n"
    assert full.is_symlink() and full.is_char_device()


def test_standard_output_holds_the_artifact_alone(onnx_file: Path, tmp_path: Path) -> None:
    target = str(Target("llvm"))
    ekiden.export(onnx_file, tmp_path / "m.eki", target=target)
    for command in ("compile", "export"):
        inputs = [sys.executable, "-m", "ekiden", command, str(onnx_file), "-o", "/dev/stdout"]
        inputs += ["--target", target]
        done = subprocess.run(inputs, capture_output=True)
        assert done.returncode == 0 and done.stdout == (tmp_path / "m.eki").read_bytes()
        assert done.stderr.startswith(b"/dev/stdout: 0.0 MB in ")


def test_runtime_writes_through_links_and_to_devices(artifact: Path, tmp_path: Path) -> None:
    """What C and C++ programs save: a module of the runtime."""
    module, save = runtime.load_module(artifact), runtime.get_global_func("ek.module.save")
    assert save is not None
    real, link, full = tmp_path / "real.eki", tmp_path / "link.eki", tmp_path / "full.eki"
    real.write_bytes(b"before")
    real.chmod(0o600)
    link.symlink_to(real)
    full.symlink_to("/dev/full")
    save(module, str(link))
    assert link.is_symlink() and real.read_bytes() == artifact.read_bytes()
    assert real.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError) as caught:
        save(module, str(full))
    assert str(caught.value) == f"save '{full}': No space left on device"
    assert full.is_symlink() and full.is_char_device()
    with pytest.raises(OSError, match="save '.*/none/a.eki': No such file or directory"):
        save(module, str(tmp_path / "none" / "a.eki"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full.eki", "link.eki", "real.eki"]


def test_save_writes_artifacts_alone(artifact: Path, tmp_path: Path) -> None:
    executable = ekiden.load(artifact)
    with pytest.raises(ExportError) as caught:
        executable.save(tmp_path / "model.so")
    assert str(caught.value) == (
        f"save '{tmp_path / 'model.so'}': save writes an artifact (.eki); "
        "export_library writes a shared library with the runtime inside"
    )
    executable.save(tmp_path / "model.anything")
    assert (tmp_path / "model.anything").read_bytes() == artifact.read_bytes()


def test_cross_compiled_object_from_python(onnx_file: Path, tmp_path: Path) -> None:
    ekiden.export(onnx_file, tmp_path / "arm.eki", FOREIGN)
    with pytest.raises(ekiden.LoadError, match="aarch64|AArch64"):
        ekiden.load(tmp_path / "arm.eki")
    ekiden.export(onnx_file, tmp_path / "arm.tar", FOREIGN)
    with tarfile.open(tmp_path / "arm.tar") as archive:
        member = archive.extractfile("arm/arm.eki")
        assert member is not None and member.read() == (tmp_path / "arm.eki").read_bytes()


def test_library_for_another_machine_needs_its_compiler(
    onnx_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/cc" if name == "cc" else None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExportError) as caught:
        ekiden.export(onnx_file, tmp_path / "arm.so", FOREIGN)
    assert str(caught.value) == (
        "export library: a C compiler for aarch64 expected (aarch64-linux-gnu-gcc), got none; "
        "install one, or: pip install ziglang"
    )


def test_artifact_is_not_compiled_again(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = ["export", str(artifact), "-o", str(tmp_path / "a.so"), "--target", FOREIGN]
    assert main(inputs) == 1
    assert capsys.readouterr().err == (
        "ekiden export: an artifact is already compiled: --target and --shape apply to models\n"
    )


def test_constants_that_were_given_later_are_exported(tmp_path: Path) -> None:
    executable = ekiden.compile(model())
    executable.move_late_bound_consts(tmp_path / "weights")
    executable.load_late_bound_consts(tmp_path / "weights")
    executable.export_library(tmp_path / "model.so")
    expect_right(tmp_path / "model.so")
