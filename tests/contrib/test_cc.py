"""TVM's `contrib.cc`: the system's C compiler and temporary folders."""

import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, te
from ekiden.codegen.llvm.image import architecture_of
from ekiden.contrib import cc, utils
from ekiden.runtime import Module
from ekiden.runtime.errors import ExportError, LoadError

X = np.arange(8, dtype="float32")


def doubled(target: str = "llvm") -> Module:
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] * 2.0, name="b")
    return ekiden.build(te.create_schedule(b.op), [a, b], target, name="twice")


def check(module: Module) -> None:
    out = ekiden.nd.empty((8,))
    module["twice"](ekiden.nd.array(X), out)
    np.testing.assert_array_equal(out.numpy(), X * 2)


@pytest.mark.quick
def test_temp_folder_is_deleted_on_removal_or_release() -> None:
    folder = utils.tempdir()
    Path(folder.relpath("x")).write_text("x")
    assert folder.listdir() == ["x"] and folder.path.is_dir()
    folder.remove()
    folder.remove()
    assert not folder.path.exists()
    assert folder / "net.so" == folder.path / "net.so"
    other = utils.tempdir()
    path = other.temp_dir
    del other
    gc.collect()
    assert not os.path.exists(path)


@pytest.mark.quick
def test_existing_folder_is_not_reused(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        utils.tempdir(tmp_path)
    with utils.tempdir(tmp_path / "new") as folder:
        assert folder.temp_dir == str(tmp_path / "new")
    assert tmp_path.exists() and not (tmp_path / "new").exists()


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=nehalem", "c"])
def test_object_becomes_a_library(tmp_path: Path, target: str) -> None:
    module = doubled(target)
    module.save(tmp_path / "twice.o")
    cc.create_shared(tmp_path / "twice.so", [tmp_path / "twice.o"])
    check(ekiden.runtime.load_module(tmp_path / "twice.so"))


def test_module_is_saved_as_its_texts(tmp_path: Path) -> None:
    module = doubled()
    module.save(tmp_path / "twice.ll")
    module.save(tmp_path / "twice.s")
    module.save(tmp_path / "twice", fmt="o")
    assert "define" in (tmp_path / "twice.ll").read_text()
    assert "twice" in (tmp_path / "twice.s").read_text()
    assert (tmp_path / "twice").read_bytes()[:4] == b"\x7fELF"
    with pytest.raises(ExportError, match=r"save .*: a format of ll, asm, .* expected, got 'xyz'"):
        module.save(tmp_path / "twice.xyz")


def test_function_compiles_what_is_exported(tmp_path: Path) -> None:
    seen: list[object] = []

    def compile_it(output: str, files: list[str], options: list[str]) -> None:
        seen.append((output, files, options))
        cc.create_shared(output, files, options)

    module = doubled()
    for number, function in enumerate((compile_it, cc.create_shared, cc.cross_compiler("cc"))):
        path = tmp_path / f"{number}.so"
        module.export_library(path, fcompile=function, options=["-O1"])
        check(ekiden.runtime.load_module(path))
    assert len(seen) == 1
    x = relay.var("x", shape=(3,))
    lib = relay.build(ekiden.IRModule.from_expr(relay.nn.relu(x)), "llvm")
    lib.export_library(tmp_path / "net", fcompile=cc.create_shared)
    assert (tmp_path / "net").read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    ("fcompile", "message"),
    [
        (lambda output, files, options: None, "fcompile made no"),
        ("gcc", "fcompile must be a function"),
    ],
)
def test_unlinkable_input_is_an_error(
    tmp_path: Path, fcompile: Callable[..., None], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        doubled().export_library(tmp_path / "x.so", fcompile=fcompile)
    assert not (tmp_path / "x.so").exists()


def test_compiler_output_is_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("this is no C")
    with pytest.raises(ExportError, match="the C compiler failed"):
        cc.create_shared(tmp_path / "x.so", tmp_path / "x.c")
    (tmp_path / "x.c").write_text("int main(void) { return 7; }")
    cc.create_executable(tmp_path / "x", [tmp_path / "x.c"])
    assert os.waitstatus_to_exitcode(os.system(str(tmp_path / "x"))) == 7
    assert cc.get_cc()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("target", "machine"),
    [
        ("llvm -mtriple=aarch64-linux-gnu", "aarch64"),
        ("llvm -mtriple=armv7a-linux-gnueabihf", "armv7"),
        ("llvm -mtriple=riscv64-linux-gnu", "riscv64"),
    ],
)
def test_foreign_code_is_stored_unloaded(target: str, machine: str) -> None:
    module = doubled(target)
    assert module.names() == ["twice"] == [module.entry_name]
    assert "twice" in module and architecture_of(module.to_bytes()) == machine
    with pytest.raises(LoadError, match="call 'twice': this machine lacks what its code needs"):
        module(ekiden.nd.array(X), ekiden.nd.array(X))


def test_held_foreign_images_are_verified() -> None:
    hold = ekiden.runtime.get_global_func("ek.image.hold")
    data = np.frombuffer(doubled("llvm -mtriple=aarch64-linux-gnu").to_bytes(), np.uint8)
    with pytest.raises(LoadError, match="load code image: header: expected"):
        hold(ekiden.nd.array(data[:-1]))
    with pytest.raises(LoadError, match="this is no code image"):
        hold(ekiden.nd.array(np.zeros(5000, "uint8")))
    with pytest.raises(TypeError, match="ek.image.hold"):
        hold(1)
    assert "nothing" not in hold(ekiden.nd.array(data))


def test_code_for_another_machine_is_exported(tmp_path: Path) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("needs aarch64-linux-gnu-gcc")
    module = doubled("llvm -mtriple=aarch64-linux-gnu")
    module.export_library(tmp_path / "one.so")
    module.export_library(tmp_path / "two.so", fcompile=cc.cross_compiler("aarch64-linux-gnu-gcc"))
    for name in ("one.so", "two.so"):
        head = (tmp_path / name).read_bytes()[:20]
        assert head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == 183
    module.export_library(tmp_path / "twice.tar")
    with pytest.raises(LoadError, match="this machine lacks"):
        ekiden.runtime.load_module(tmp_path / "twice.tar")
