"""Artifact files: reproducible bytes, and rejection of everything else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from network_models import cached_model
from relay_networks import Array, normal

import ekiden
from ekiden import relay
from ekiden.compiler.build import compile_to_bytes
from ekiden.ir.prim import SizeVar
from ekiden.relay import op

WITHOUT_COMPILER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("llvmlite", "onnx", "filelock", "platformdirs", "rich"):
            raise ImportError(f"{name} must not be imported")

sys.meta_path.insert(0, Blocker())
import numpy, ekiden
exe = ekiden.load(sys.argv[1])
numpy.save(sys.argv[3], exe(numpy.load(sys.argv[2])).numpy())
"""


def small_module() -> relay.IRModule:
    """A constant weight, a symbol, two outputs' worth of kernels and a choice of control flow."""
    x = relay.var("x", relay.tensor_type((SizeVar("n", "int64"), 12)))
    dense = op.nn.relu(op.nn.dense(x, relay.const(normal(9, 12))))
    return relay.IRModule.from_expr(relay.Function((x,), op.nn.softmax(dense), None))


@pytest.fixture(scope="module")
def exe() -> ekiden.Executable:
    return ekiden.compile(small_module())


@pytest.fixture(scope="module")
def saved(exe: ekiden.Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "model.eki"
    exe.save(path)
    return path


def run(exe: ekiden.Executable, x: Array) -> Array:
    result = exe(x)
    assert isinstance(result, ekiden.Tensor)
    return result.numpy()


@pytest.mark.quick
def test_loaded_model_gives_the_same_results(exe: ekiden.Executable, saved: Path) -> None:
    loaded = ekiden.load(saved)
    assert (loaded.inputs, loaded.outputs) == (exe.inputs, exe.outputs)
    assert loaded.disassemble() == exe.disassemble()
    for n in (0, 1, 5):
        assert run(loaded, normal(n, 12)).tobytes() == run(exe, normal(n, 12)).tobytes()


@pytest.mark.quick
def test_saving_twice_and_through_a_file_gives_the_same_bytes(
    exe: ekiden.Executable, saved: Path, tmp_path: Path
) -> None:
    exe.save(tmp_path / "again.eki")
    ekiden.load(saved).save(tmp_path / "loaded.eki")
    assert (tmp_path / "again.eki").read_bytes() == saved.read_bytes()
    assert (tmp_path / "loaded.eki").read_bytes() == saved.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.eki", "loaded.eki"]


@pytest.mark.quick
def test_compiling_twice_gives_the_same_bytes(saved: Path) -> None:
    assert compile_to_bytes(small_module()) == saved.read_bytes()


def test_compiling_in_another_process_without_a_cache_gives_the_same_bytes(tmp_path: Path) -> None:
    model = cached_model("attacut_c").path
    code = "import ekiden, sys; ekiden.compile(sys.argv[1]).save(sys.argv[2])"
    for seed, jobs in (("1", "1"), ("2", "2")):
        environment = {"PYTHONHASHSEED": seed, "EKIDEN_CACHE_DIR": "", "EKIDEN_COMPILE_JOBS": jobs}
        command = [sys.executable, "-c", code, str(model), str(tmp_path / f"{seed}.eki")]
        subprocess.run(command, check=True, env={**os.environ, **environment})
    assert (tmp_path / "1.eki").read_bytes() == (tmp_path / "2.eki").read_bytes()


@pytest.mark.quick
def test_every_proper_prefix_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    step = max(1, len(whole) // 4000)
    sizes = {*range(0, min(len(whole), 2048)), *range(0, len(whole), step), len(whole) - 1}
    for size in sorted(sizes):
        with pytest.raises(ekiden.LoadError):
            ekiden.runtime.Executable.from_bytes(whole[:size])


@pytest.mark.quick
def test_prefixes_of_a_file_are_refused(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    for size in (0, 1, 8, 40, 64, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.eki").write_bytes(whole[:size])
        with pytest.raises(ekiden.LoadError):
            ekiden.load(tmp_path / "cut.eki")


@pytest.mark.quick
def test_bytes_after_the_end_are_refused(saved: Path) -> None:
    with pytest.raises(ekiden.LoadError):
        ekiden.runtime.Executable.from_bytes(saved.read_bytes() + b"\0")


@pytest.mark.quick
@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF" + bytes(500), b"PK\x03\x04" + bytes(64), b"text\n" * 99, bytes(4096)],
)
def test_non_artifact_files_are_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "foreign.eki").write_bytes(content)
    with pytest.raises(ekiden.LoadError):
        ekiden.load(tmp_path / "foreign.eki")


@pytest.mark.quick
def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.eki", tmp_path):
        with pytest.raises(OSError, match="load .*(No such file|not a|Is a directory|directory)"):
            ekiden.load(path)


def damage(whole: bytes, seed: int) -> bytes:
    """A copy with a few bytes changed, anywhere or in the head."""
    rng = np.random.default_rng(seed)
    changed = bytearray(whole)
    reach = len(whole) if seed % 2 else min(len(whole), 512)
    for at in rng.integers(0, reach, int(rng.integers(1, 4))):
        changed[at] ^= int(rng.integers(1, 256))
    return bytes(changed)


def in_child(work: Callable[[], None]) -> int:
    """The exit status of work done in a forked process, minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("batch", range(4))
def test_damaged_bytes_never_crash(saved: Path, batch: int) -> None:
    """Each change is found: every byte is under a checksum or checked by itself."""
    whole = saved.read_bytes()

    def load_all() -> None:
        for seed in range(batch * 500, (batch + 1) * 500):
            changed = damage(whole, seed)
            try:
                ekiden.runtime.Executable.from_bytes(changed)
            except ekiden.LoadError:
                continue
            assert _differs_only_in_padding(whole, changed)

    assert in_child(load_all) == 0


def _differs_only_in_padding(whole: bytes, changed: bytes) -> bool:
    """Whether all differences stand in zeros between sections, which nothing reads."""
    differences = [i for i, (a, b) in enumerate(zip(whole, changed, strict=True)) if a != b]
    return all(whole[max(0, i - 3) : i + 4].count(0) >= 4 for i in differences)


def test_model_runs_where_no_compiler_can_be_imported(saved: Path, tmp_path: Path) -> None:
    x = normal(3, 12)
    np.save(tmp_path / "x.npy", x)
    files = [saved, tmp_path / "x.npy", tmp_path / "y.npy"]
    subprocess.run([sys.executable, "-c", WITHOUT_COMPILER, *map(str, files)], check=True)
    assert np.load(tmp_path / "y.npy").tobytes() == run(ekiden.load(saved), x).tobytes()


@pytest.fixture
def unwritable(tmp_path: Path) -> Iterator[Path]:
    """A path whose folder does not exist."""
    yield tmp_path / "none" / "model.eki"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.quick
def test_file_that_cannot_be_written_leaves_nothing(
    exe: ekiden.Executable, unwritable: Path
) -> None:
    with pytest.raises(OSError):
        exe.save(unwritable)


@pytest.mark.quick
def test_save_that_fails_keeps_the_old_file(
    exe: ekiden.Executable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    path = tmp_path / "model.eki"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        exe.save(path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["model.eki"]
