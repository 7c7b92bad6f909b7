"""EKIDEN_DUMP: folders with the stages of compilations."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, te, tir
from ekiden.compiler.export import micro
from ekiden.ir.ir_dump import dump_compilation
from ekiden.ir.pass_context import PassContext, notify_product
from ekiden.relay.transform import module_pass
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError, InputError
from onnx_files import model

pytestmark = pytest.mark.slow

TEXT = "def @main(%x: Tensor[(4, 3), float32]) { exp(%x) }"
SYMBOLIC = "def @main(%x: Tensor[(n, 3), float32]) { exp(%x) }"
VARIANTS = ["llvm -mcpu=x86-64-v3", "llvm -mcpu=x86-64"]
SEVERAL = """def @main(%x: Tensor[(4, 3), float32], %y: Tensor[(5, 7), float32]) {
  (exp(%x), tanh(%y), sum(%y), max(%x, axis=[1]))
}"""


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that compilations of the test are dumped to, with an empty cache."""
    monkeypatch.setenv("EKIDEN_DUMP", str(tmp_path / "look"))
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "look"


def _files(folder: Path) -> set[str]:
    return {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}


def _indexed(folder: Path) -> set[str]:
    """Return the files that the indices of a dump name, the indices among them."""
    names: set[str] = set()
    for index in folder.rglob("index.txt"):
        at = index.parent.relative_to(folder)
        first = [line.split()[0] for line in index.read_text().splitlines()[1:]]
        names |= {str(at / n) for n in first if n != "-" and not n.endswith("/")}
        names.add(str(at / "index.txt"))
    return names


def _add_one() -> tir.PrimFunc:
    a = te.placeholder((8,), name="A")
    return te.create_prim_func([a, te.compute((8,), lambda i: a[i] + 1.0, name="B")])


def test_compilation_is_dumped_stage_by_stage(dump: Path) -> None:
    exe = ekiden.compile(relay.parse(TEXT))
    (folder,) = dump.iterdir()
    assert folder.name == "001-compile"
    (kernel,) = (folder / "kernels").iterdir()
    assert kernel.name in exe.raw.primitives
    files = _files(folder)
    assert files == _indexed(folder)
    assert {"000-input.relay", "001-InferType.relay", "bytecode.txt"} <= files
    assert (folder / "bytecode.txt").read_text() == exe.disassemble()
    parts = {f.name for f in kernel.iterdir()}
    assert {"te.tir", "schedule.txt", "000-input.tir", "code.ll", "code.asm"} <= parts
    assert "tir.FlattenBuffer" in (kernel / "index.txt").read_text()
    tir.parse((kernel / "te.tir").read_text())
    assert (kernel / "schedule.txt").read_text().startswith("default\n")
    line = re.search(r"^\S*FuseOps\.relay +(\d+\.\d)  after FuseOps$",
                     (folder / "index.txt").read_text(), re.M)  # fmt: skip
    assert line and float(line[1]) >= 0


def test_every_compilation_has_a_folder_of_its_own(dump: Path) -> None:
    ekiden.compile(relay.parse(TEXT))
    ekiden.build(_add_one(), "c", name="add_one")
    assert sorted(f.name for f in dump.iterdir()) == ["001-compile", "002-build"]
    assert "add_one" in (dump / "002-build" / "kernels" / "add_one" / "code.c").read_text()


def test_compilations_at_once_have_folders_of_their_own(tmp_path: Path) -> None:
    def begin(number: int) -> None:
        with dump_compilation("build", environment.DumpRequest(str(tmp_path))):
            notify_product("code.c", "the code as C", lambda: f"int x{number};")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, range(16)))
    texts = {(folder / "code.c").read_text() for folder in tmp_path.iterdir()}
    assert texts == {f"int x{number};" for number in range(16)}


def test_compilation_inside_of_another_has_its_own_folder_alone(tmp_path: Path) -> None:
    outer, inner = (environment.DumpRequest(str(tmp_path)) for _ in range(2))
    with dump_compilation("compile", outer):
        with dump_compilation("build", inner):
            notify_product("code.c", "the code as C", lambda: "int x;")
        notify_product("bytecode.txt", "bytecode", lambda: "ret $0")
    assert sorted(f.name for f in tmp_path.rglob("*.[ct]*")) == [
        "bytecode.txt", "code.c", "index.txt", "index.txt",
    ]  # fmt: skip
    assert not (tmp_path / "001-compile" / "code.c").exists()


def test_filters_choose_functions_and_passes(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_DUMP", f"{dump},pass=FuseOps,function=main")
    ekiden.compile(relay.parse(TEXT))
    folder = dump / "001-compile"
    names = sorted(_files(folder))
    assert [re.sub(r"\d+", "N", name) for name in names] == [
        "N-FuseOps-before.relay", "N-FuseOps.relay", "index.txt",
    ]  # fmt: skip
    assert "Primitive=1" not in (folder / names[0]).read_text()
    assert "Primitive=1" in (folder / names[1]).read_text()
    assert "pass=FuseOps" in (folder / "index.txt").read_text()
    monkeypatch.setenv("EKIDEN_DUMP", f"{dump},function=fused_e*,pass=code")
    ekiden.compile(relay.parse(SEVERAL))
    parts = _files(dump / "002-compile") - {"index.txt"}
    assert {name.rpartition("/")[2] for name in parts} == {"code.ll", "code.asm", "index.txt"}
    assert all(name.startswith("kernels/fused_exp_") for name in parts)


def test_processes_that_compile_dump_their_kernels(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "2")
    exe = ekiden.compile(relay.parse(SEVERAL))
    folder = dump / "001-compile"
    assert {f.name for f in (folder / "kernels").iterdir()} == set(exe.raw.primitives)
    assert all((folder / "kernels" / name / "code.ll").exists() for name in exe.raw.primitives)
    assert _files(folder) == _indexed(folder)
    index = (folder / "index.txt").read_text()
    assert all(f"kernels/{name}/" in index for name in exe.raw.primitives)


def test_kernels_that_the_cache_has_are_compiled_again_and_named(dump: Path) -> None:
    first, second = (ekiden.compile(relay.parse(TEXT)) for _ in range(2))
    again = dump / "002-compile"
    assert (again / "cached.txt").read_text().split() == first.raw.primitives
    (kernel,) = first.raw.primitives
    assert (again / "kernels" / kernel / "code.ll").exists()
    assert not (dump / "001-compile" / "cached.txt").exists()
    x = np.ones((4, 3), np.float32)
    assert np.array_equal(first(x).numpy(), second(x).numpy())


def test_models_that_the_cache_has_are_compiled_again(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_LIMIT", "1G")
    for _ in range(2):
        ekiden.compile(model())
    assert _files(dump / "001-compile") <= _files(dump / "002-compile")


def test_background_compilation_dumps_into_the_same_folder(dump: Path) -> None:
    exe = ekiden.compile(relay.parse(TEXT), tier="quick")
    exe.wait()
    (folder,) = dump.iterdir()
    (kernel,) = exe.raw.primitives
    assert (folder / "general.txt").read_text().split() == [kernel]
    assert (folder / "kernels" / kernel / "code.asm").exists()
    assert {"bytecode.txt", "bytecode-2.txt"} <= _files(folder)
    assert _files(folder) == _indexed(folder)


def _on_opencl() -> None:
    schedule = tir.Schedule(_add_one())
    (loop,) = schedule.get_loops(schedule.get_block("B"))
    schedule.bind(loop, "threadIdx.x")
    ekiden.build(schedule.func, "opencl")


@pytest.mark.parametrize(
    "compiles, name",
    [
        (_on_opencl, "device.opencl"),
        (lambda: ekiden.compile(relay.parse(TEXT), executor="aot"), "native.ll"),
        (lambda: ekiden.compile(relay.parse(SYMBOLIC), VARIANTS), "bytecode-2.txt"),
        (lambda: relay.build(relay.parse(TEXT), "c"), "code.c"),
        (lambda: micro.compile(relay.parse(TEXT)), "code.c"),
        (lambda: relay.vm.compile(relay.parse(TEXT), "llvm"), "bytecode.txt"),
    ],
    ids=["opencl", "aot", "variants", "relay.build", "micro", "relay.vm"],
)  # fmt: skip
def test_every_way_to_compile_is_dumped(
    dump: Path, compiles: Callable[[], object], name: str
) -> None:
    compiles()
    (folder,) = dump.iterdir()
    assert len(list(folder.rglob(name))) == 1
    assert _files(folder) == _indexed(folder)


def test_failing_compilation_is_dumped_until_the_failure(dump: Path) -> None:
    with pytest.raises(CompileError, match="no kernel is called"):
        ekiden.compile(relay.parse(TEXT), decisions={"nothing": {"a": 1}})
    lines = (dump / "001-compile" / "index.txt").read_text().splitlines()
    assert "failed: CompileError: decisions: no kernel is called" in lines[-1]
    assert lines[-2].endswith("phase: kernels")


def test_invalid_dump_folder_error_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EKIDEN_DUMP", str(tmp_path / "file"))
    for compiles in (lambda: ekiden.compile(relay.parse(TEXT)), lambda: ekiden.build(_add_one())):
        with pytest.raises(InputError, match="EKIDEN_DUMP: no folder can be made in '.*/file'"):
            compiles()


@pytest.mark.parametrize(
    "text",
    [",pass=x", "look,passes=x", "look,pass=", "look,function=,pass=x", "look,pass=a,pass=b"],
)
def test_malformed_dump_variable_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_DUMP", text)
    with pytest.raises(InputError, match="the variable EKIDEN_DUMP: expected folder"):
        environment.dump_request()


def test_folder_may_have_commas_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_DUMP", "/a,b/c,function=f,pass=p")
    assert environment.dump_request() == environment.DumpRequest("/a,b/c", "f", "p")
    monkeypatch.setenv("EKIDEN_DUMP", "")
    assert environment.dump_request() is None


def test_no_instrument_without_dump_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EKIDEN_DUMP", raising=False)
    watching: list[object] = []

    @module_pass(name="Look")
    def look(module: relay.IRModule, context: PassContext) -> relay.IRModule:
        watching.extend(PassContext.current().instruments)
        return module

    with PassContext(config={"tir.add_lower_pass": [(0, look)]}):
        ekiden.build(_add_one())
        look(relay.parse(TEXT))
    assert watching == []
