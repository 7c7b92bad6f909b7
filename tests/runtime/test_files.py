"""Writing files: whole or not at all, through links, to devices; errors name the path."""

import io
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ekiden import runtime
from ekiden.runtime.files import (
    PARTIAL_EXPIRY_S,
    Writer,
    evict_least_recent,
    write_atomic,
    write_path_or_stream,
    write_text,
)

pytestmark = pytest.mark.quick


def hello(file: Writer) -> None:
    file.write(b"hello")


def test_link_leads_to_the_file_that_is_replaced(tmp_path: Path) -> None:
    real, link = tmp_path / "there" / "real", tmp_path / "link"
    real.parent.mkdir()
    real.write_bytes(b"before")
    link.symlink_to(real)
    write_atomic(link, hello)
    assert link.is_symlink() and real.read_bytes() == b"hello"
    assert [p.name for p in real.parent.iterdir()] == ["real"]


def test_link_to_nothing_gets_its_file(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new")
    write_atomic(link, hello)
    assert link.is_symlink() and (tmp_path / "new").read_bytes() == b"hello"


def test_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result: list[bytes] = []
    reader = threading.Thread(target=lambda: result.append(pipe.read_bytes()))
    reader.start()
    data = bytes(300_000)  # more than a pipe holds
    write_atomic(pipe, lambda file: file.write(data))
    reader.join()
    assert result == [data] and stat.S_ISFIFO(pipe.lstat().st_mode)


def test_array_goes_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    result: list[bytes] = []
    reader = threading.Thread(target=lambda: result.append(pipe.read_bytes()))
    reader.start()
    write_atomic(pipe, lambda file: np.save(file, np.arange(4)))  # type: ignore[call-overload]
    reader.join()
    assert np.load(io.BytesIO(result[0])).tolist() == [0, 1, 2, 3]


def test_device_stays_a_device(tmp_path: Path) -> None:
    link = tmp_path / "full"  # so that a wrong writer replaces the link, not the device
    link.symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
        write_atomic(link, hello)
    assert str(caught.value) == f"write '{link}': no space left on device"
    assert link.is_symlink() and stat.S_ISCHR(link.stat().st_mode)
    assert list(tmp_path.iterdir()) == [link]


def test_name_of_many_bytes_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("名" * 85)  # 255 bytes, as many as most systems take
    write_atomic(path, hello)
    assert path.read_bytes() == b"hello"


def test_replaced_file_keeps_permissions(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    write_atomic(path, hello)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_program_may_be_executed_by_who_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    write_atomic(path, hello, is_program=True)
    mode = stat.S_IMODE(path.stat().st_mode)
    assert mode & 0o111 == (mode & 0o444) >> 2


def test_errors_name_the_path_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.eki"
    path.write_bytes(b"before")

    def full(file: Writer) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device", str(tmp_path / ".draft"))

    with pytest.raises(OSError) as caught:
        write_atomic(path, full)
    assert str(caught.value) == f"write '{path}': no space left on device"
    assert caught.value.errno == 28
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("none/model.eki", FileNotFoundError, "no folder '{0}/none'"),
        ("folder", IsADirectoryError, "it is a folder"),
        ("x" * 300, OSError, "file name too long"),
        ("loop", OSError, "too many levels of symbolic links"),
        ("astray", FileNotFoundError, "no folder '{0}/gone'"),
    ],
)
def test_unwritable_paths_are_refused(
    name: str, error: type[OSError], message: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "astray").symlink_to(tmp_path / "gone" / "model.eki")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error) as caught:
        write_atomic(tmp_path / name, hello)
    assert str(caught.value) == f"write '{tmp_path / name}': {message.format(tmp_path)}"
    assert sorted(tmp_path.iterdir()) == before


def test_open_files_are_written_to(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    write_path_or_stream(buffer, hello)
    assert buffer.getvalue() == b"hello"
    with open(tmp_path / "raw", "wb", buffering=0) as raw:
        write_path_or_stream(raw, hello)
    assert (tmp_path / "raw").read_bytes() == b"hello"
    for wrong in (io.StringIO(), 3):
        with pytest.raises(TypeError) as caught:
            write_path_or_stream(wrong, hello)  # type: ignore[arg-type]
        expected = "expected a path or a file open for bytes"
        assert str(caught.value) == f"write: {expected}, got {type(wrong).__name__}"


def test_text_is_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "text", "駅伝")
    assert (tmp_path / "text").read_bytes() == "駅伝".encode()


def _save_params(path: Path) -> None:
    runtime.save_params(path, {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.complex128)})


@pytest.mark.parametrize("fails", [_save_params])
def test_failed_write_leaves_the_file_unchanged(
    fails: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"before")
    with pytest.raises(TypeError):
        fails(path)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_partial_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """It counted for nothing, and stayed for ever."""
    whole, folder = tmp_path / "whole", tmp_path / "below"
    folder.mkdir()
    left, written = folder / ".model.eki.0123abcd", folder / ".model.eki.4567cdef"
    other = folder / ".of-somebody-else"
    for path in (whole, left, written, other):
        path.write_bytes(b"hello")
    before = time.time() - PARTIAL_EXPIRY_S - 60
    for path in (left, other):
        os.utime(path, (before, before))
    assert evict_least_recent(tmp_path, 1000) == (0, 0)
    assert sorted(p.name for p in folder.iterdir()) == [written.name, other.name]
