"""Artifacts and files of constants that are cut short while they are in use: an error of the run,
and no signal that ends the process."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.llm.checkpoint import Weight
from ekiden.llm.gguf_file import GGUFFile, write_gguf
from ekiden.llm.safetensors import SafetensorsFile, write_safetensors
from ekiden.relay import op
from ekiden.runtime.errors import EkidenError, LoadError

SIZE = 600
PAGE = os.sysconf("SC_PAGESIZE")
CUT = "was cut short while it was in use"


def program() -> relay.Function:
    """A product whose weight is most of the artifact."""
    x = relay.var("x", shape=(2, SIZE))
    weight = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    return relay.Function([x], op.nn.dense(x, relay.const(weight)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    ekiden.compile(program()).save(tmp_path / "model.eki")
    return tmp_path / "model.eki"


def feed() -> np.ndarray:
    return np.ones((2, SIZE), np.float32)


@pytest.mark.parametrize("left", [0, 1 << 16, -PAGE])
def test_run_of_truncated_artifact_is_an_error(left: int, file: Path) -> None:
    exe = ekiden.load(file)
    main = exe.module["main"]
    expected = exe(feed()).numpy()
    whole = file.read_bytes()
    os.truncate(file, left if left >= 0 else len(whole) + left)
    for _ in range(2):
        with pytest.raises(LoadError, match=CUT):
            exe(feed())
    with pytest.raises(LoadError, match=CUT):
        main(runtime.tensor(feed()))
    other = file.with_name("other.eki")
    other.write_bytes(whole)
    np.testing.assert_array_equal(ekiden.load(other)(feed()).numpy(), expected)


def test_aot_code_checks_for_truncation(tmp_path: Path) -> None:
    ekiden.compile(program(), executor="aot").save(tmp_path / "model.eki")
    exe = ekiden.load(tmp_path / "model.eki")
    os.truncate(tmp_path / "model.eki", 1 << 16)
    with pytest.raises(LoadError, match=CUT):
        exe(feed())


def test_mapped_file_survives_removal_and_replacement(file: Path) -> None:
    exe = ekiden.load(file)
    expected = exe(feed()).numpy()
    (file.with_name("new")).write_bytes(b"another")
    os.replace(file.with_name("new"), file)
    np.testing.assert_array_equal(exe(feed()).numpy(), expected)
    with pytest.raises(LoadError):
        ekiden.load(file)


def test_file_that_is_cut_while_it_is_loaded_is_an_error(file: Path) -> None:
    """Again and again, by another thread; behind what is left come zeros."""
    size, ended = file.stat().st_size, threading.Event()

    def cut() -> None:
        while not ended.is_set():
            os.truncate(file, PAGE)
            os.truncate(file, size)

    os.truncate(file, PAGE)
    other = threading.Thread(target=cut)
    other.start()
    try:
        for _ in range(200):
            with pytest.raises((EkidenError, OSError)):
                runtime.Executable.load(file)
    finally:
        ended.set()
        other.join()


def test_truncated_constants_file_is_a_run_error(tmp_path: Path, file: Path) -> None:
    exe = ekiden.load(file)
    exe.move_late_bound_consts(tmp_path / "constants", 1000)
    exe.load_late_bound_consts(tmp_path / "constants")
    assert exe(feed()).shape == (2, SIZE)
    os.truncate(tmp_path / "constants", PAGE)
    with pytest.raises(LoadError, match=CUT):
        exe(feed())


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_truncated_checkpoint_is_detected(kind: str, tmp_path: Path) -> None:
    """What has gone is zeros, for which the file answers when a tensor is asked for, and to who
    asks whether all was as it is."""
    path = tmp_path / f"model.{kind}"
    many = Weight.of("w", np.ones((SIZE, SIZE), np.float32))
    if kind == "gguf":
        write_gguf(path, {"general.architecture": "none"}, [many])
    else:
        write_safetensors(path, {"w": many})
    opened = GGUFFile(path) if kind == "gguf" else SafetensorsFile(path)
    before = opened["w"]
    assert not before.data.flags.writeable
    opened.check()
    os.truncate(path, PAGE)
    assert before.values()[-1, -1] == 0
    for ask in (opened.check, lambda: opened["w"]):
        with pytest.raises(LoadError, match=f"'{path}' was changed while weights were read"):
            ask()


def test_unrelated_sigbus_ends_the_process(tmp_path: Path) -> None:
    """A mapping of the program's own is none of ours; and parameters by themselves are not either:
    nobody asks after they were read."""
    (tmp_path / "own").write_bytes(bytes(1 << 16))
    code = (
        "import mmap, os, sys, ekiden\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "exe = ekiden.load(sys.argv[2])\n"
        "os.truncate(sys.argv[1], 0)\n"
        "data[5000]\n"
    )
    ekiden.compile(program()).save(tmp_path / "model.eki")
    command = [sys.executable, "-c", code, tmp_path / "own", tmp_path / "model.eki"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGBUS


@pytest.mark.slow
def test_many_files_are_guarded(file: Path, tmp_path: Path) -> None:
    """And given back: as many again fit."""
    x = relay.var("x", shape=(2,))
    ekiden.compile(relay.Function([x], x)).save(tmp_path / "small.eki")
    for _ in range(3):
        loaded = [runtime.Executable.load(tmp_path / "small.eki") for _ in range(2000)]
        del loaded
    exe = ekiden.load(file)
    os.truncate(file, 1 << 16)
    with pytest.raises(LoadError, match=CUT):
        exe(feed())
