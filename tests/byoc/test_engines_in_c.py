"""Regions in third-party engines, run by a C program and by Python in a new process."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import byoc, relay, runtime
from ekiden.byoc import backend
from ekiden.ir.module import IRModule
from ekiden.relay.dataflow_pattern import is_op, wildcard
from ekiden.relay.transform.external.merge_composite import PatternEntry
from ekiden.runtime.devices.engines import engine_folder, load_region
from ekiden.runtime.errors import LoadError, RunError

pytestmark = pytest.mark.quick

SOURCE = Path(__file__).parents[2] / "examples/c/run.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, which runs a model on an input of ones."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: install gcc or clang")
    output = tmp_path_factory.mktemp("c") / "run"
    library = runtime.library_path()
    link = [str(library), f"-Wl,-rpath,{library.parent}"]
    command = [compiler, "-std=c11", f"-I{runtime.include_dir()}", str(SOURCE), *link]
    subprocess.run([*command, "-o", str(output)], check=True)
    return output


def looped() -> IRModule:
    """Regions within control flow, and operators of Ekiden between them."""
    return relay.parse("""
    def @grow(%x: Tensor[(2, 3), float32], %w: Tensor[(3, 3), float32])
        -> Tensor[(2, 3), float32] {
      if (less(sum(%x), 1000f)) { @grow(nn.relu(nn.dense(%x, %w)), %w) }
      else { cumsum(%x, axis=1) }
    }
    def @main(%x: Tensor[(2, 3), float32]) {
      @grow(add(%x, %x), ones(shape=[3, 3], dtype="float32"))
    }""")


@pytest.fixture
def artifact(engine: str, tmp_path: Path) -> Path:
    path = tmp_path / "model.eki"
    ekiden.compile(byoc.partition(looped(), engine)).save(path)
    return path


def started(program: Path, artifact: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [program, artifact, "2", "3"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("EKIDEN_", "LD_LIBRARY"))}
    return subprocess.run(
        words, capture_output=True, text=True, check=False, env=clean | environment
    )


@pytest.mark.slow
def test_c_program_runs_regions_within_control_flow(
    engine: str, program: Path, artifact: Path
) -> None:
    expected = ekiden.compile(looped())(np.ones((2, 3), np.float32)).numpy()
    done = started(program, artifact, EKIDEN_ENGINES=f"/nowhere:{engine_folder(engine)}")
    numbers = " ".join(f"{item:g}" for item in expected.flat)
    assert (done.stdout, done.stderr) == (f"shape 2 3\nfirst {numbers}\n", "")


def test_c_program_without_the_engine_says_what_to_install(
    engine: str, program: Path, artifact: Path
) -> None:
    done = started(program, artifact)
    if done.returncode == 0:
        pytest.skip(f"the system has the engine '{engine}'")
    assert done.stderr.startswith(f"LoadError: link executable: 'tvmgen_default_{engine}_")
    assert done.stderr.count("\n") == 1
    assert f"pip install 'ekiden[{engine}]'; EKIDEN_ENGINES names its folder" in done.stderr


class Theirs:
    """An engine of a user, registered in Python alone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def patterns(self) -> Sequence[PatternEntry]:
        x = wildcard()
        return [(f"{self.name}.twice", is_op("add")(x, x))]

    def compile(self, function: relay.Function) -> bytes:
        return b"code"

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        return lambda *tensors: None


class WrittenInC(Theirs):
    """An engine of a user, own_engine.c, which writes so many elements of its output in its first
    call and in later ones."""

    def __init__(self, name: str, first: int, later: int) -> None:
        super().__init__(name)
        self._code = f"{first} {later}".encode()

    def compile(self, function: relay.Function) -> bytes:
        return self._code

    def load(self, symbol: str, code: bytes) -> Callable[..., None]:
        return load_region(self.name, symbol, code)


@pytest.fixture(scope="module")
def own_engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of own_engine.c's library, under the name of each engine of these tests."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler: install gcc or clang")
    folder = tmp_path_factory.mktemp("engines")
    source = Path(__file__).with_name("own_engine.c")
    command = ["cc", "-std=c11", "-shared", "-fPIC", f"-I{runtime.include_dir()}", str(source)]
    subprocess.run([*command, "-o", str(folder / "libekiden_whole.so")], check=True)
    for name in ("idle", "partial", "tiring"):
        shutil.copy(folder / "libekiden_whole.so", folder / f"libekiden_{name}.so")
    return folder


def saved(engine: Theirs, rows: int, folder: Path) -> Path:
    """The file of a program of one region."""
    byoc.register(engine)
    module = relay.parse(f"def @main(%x: Tensor[({rows}, 3), float32]) {{ add(%x, %x) }}")
    path = folder / "model.eki"
    ekiden.compile(byoc.partition(module, engine.name)).save(path)
    return path


@pytest.mark.parametrize(
    ("name", "written", "message"),
    [
        ("whole", 6, ""),
        ("idle", 0, "it wrote nothing to its output 0, a tensor (2, 3) float32"),
        (
            "partial",
            4,
            "it left 2 elements of its output 0, a tensor (2, 3) float32, unwritten, the first at"
            " (1, 1)",
        ),
    ],
)
def test_c_program_refuses_what_an_engine_in_c_leaves_unwritten(
    name: str,
    written: int,
    message: str,
    program: Path,
    own_engines: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EKIDEN_DRIVERS", str(own_engines))
    path = saved(WrittenInC(name, written, written), 2, tmp_path)
    done = started(program, path, EKIDEN_DRIVERS=str(own_engines))
    if not message:
        assert "first 2 2 2 2 2 2" in done.stdout, done.stderr
        return
    assert done.returncode == 1
    assert done.stderr.startswith("RunError: run 'tvmgen_default_")
    assert f"engine '{name}': {message}" in done.stderr


def test_later_calls_of_an_engine_in_c_are_sampled(
    own_engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKIDEN_DRIVERS", str(own_engines))
    exe = ekiden.load(saved(WrittenInC("tiring", 900, 450), 300, tmp_path))
    value = np.ones((300, 3), np.float32)
    np.testing.assert_array_equal(exe(value).numpy(), value * 2)
    message = r"engine 'tiring': it wrote only a part of its output 0, a tensor \(300, 3\) float32"
    with pytest.raises(RunError, match=message):
        exe(value)


def test_c_program_without_a_library_for_an_engine(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.eki"
    byoc.register(Theirs("theirs"))
    module = relay.parse("def @main(%x: Tensor[(2, 3), float32]) { add(%x, %x) }")
    ekiden.compile(byoc.partition(module, "theirs")).save(path)
    done = started(program, path)
    assert "the external compiler 'theirs' is not registered in this process" in done.stderr
    assert done.returncode == 1


def test_no_file_is_opened_by_a_name_that_leads_out_of_a_folder(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = runtime.library_path().with_name(f"libekiden_{engine}.so")
    (tmp_path / "drivers/libekiden_").mkdir(parents=True)
    shutil.copy(library, tmp_path / "drivers/out.so")
    monkeypatch.setenv("EKIDEN_DRIVERS", str(tmp_path / "drivers"))
    with pytest.raises(LoadError, match="there is no library"):
        runtime.get_global_func("ek.engine.open")("/../out", engine_folder(engine))


def test_code_that_an_engine_refuses_is_an_error_with_its_region(engine: str) -> None:
    load = runtime.get_global_func("ek.engine.load")
    with pytest.raises(LoadError, match=f"link executable: 'part': {engine}: "):
        load(engine, engine_folder(engine), "part", b"no model")


def test_regions_of_other_elements_than_their_model(engine: str) -> None:
    """Tensors that are smaller than the engine would read."""
    module = relay.parse("def @main(%x: Tensor[(4), float32]) { nn.relu(%x) }")
    functions = byoc.partition(module, engine).functions.values()
    (region,) = [f for f in functions if isinstance(f, relay.Function) and f.attr("Compiler")]
    taker = backend._REGISTERED_BACKENDS[engine]
    run = taker.load("part", taker.compile(region))
    inputs = [runtime.from_dlpack(np.zeros(4, np.int8)) for _ in range(2)]
    with pytest.raises(RunError, match="run 'part': "):
        run(*inputs)
    with pytest.raises(RunError, match="tensors expected"):
        run(inputs[0])
