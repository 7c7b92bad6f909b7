"""Files in chunks: joined or written incrementally, they have the same bytes."""

import io
import zlib
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ekiden.backend.vm.write_executable import ExecutableProgram, VMFunction, write_programs
from ekiden.runtime import Executable
from ekiden.runtime.artifact import chunks, mapped_files
from ekiden.runtime.artifact.container_format import (
    ArtifactFile,
    SectionSource,
    artifact_bytes,
    assemble,
)
from ekiden.runtime.binding.layout import Section
from ekiden.runtime.debug.instructions import make_instruction
from ekiden.runtime.files import write_path_or_stream

RNG = np.random.default_rng(0)
ROWS = RNG.integers(0, 255, (1300, 3000), np.uint8)


def unaligned() -> np.ndarray:
    return np.frombuffer(bytes(3) + RNG.standard_normal(5000).tobytes(), np.float64, 5000, 3)


PIECES = [
    b"head", b"", ROWS, ROWS.T, ROWS[::-1, ::2], np.float32(1.5), np.zeros((0, 4)),
    unaligned(), RNG.standard_normal((7, 5)).astype(ml_dtypes.bfloat16).T, memoryview(bytes(9)),
    np.arange(3, dtype=ml_dtypes.int4), np.broadcast_to(np.float64(2.5), (400, 1000)),
    np.ones((2, 3), np.complex128).T, bytes(2 << 20),
]  # fmt: skip


def plain(piece: chunks.ByteSource) -> bytes:
    return piece.tobytes() if isinstance(piece, np.ndarray) else bytes(piece)


def test_chunks_are_the_bytes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [np.asarray(p) if isinstance(p, np.generic) else p for p in PIECES]
    expected = b"".join(map(plain, inputs))
    assert bytes(chunks.concatenate_sources(inputs)) == expected
    for size in (chunks.THREAD_CHUNK_BYTES, 1 << 19, 1 << 10):
        monkeypatch.setattr(chunks, "THREAD_CHUNK_BYTES", size)
        parts = list(chunks.iter_chunks(inputs))
        assert b"".join(parts) == expected and all(map(len, parts))
        actual = 0
        for part in parts:
            actual = chunks.checksum(part, actual)
        assert actual == zlib.crc32(expected) == chunks.checksum(expected)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 200])
def test_checksums_are_incremental(size: int) -> None:
    data = RNG.integers(0, 255, 300, np.uint8).tobytes()
    first = chunks.checksum(data[:size]) if size else 0
    assert chunks.checksum(data[size:], first) == zlib.crc32(data)


def assembly() -> ArtifactFile:
    """An artifact with constants that lie in many ways."""
    main = VMFunction("main", ("x",), 1, (make_instruction("Ret", src=0),))
    constants = [ROWS.T, RNG.standard_normal(3), ROWS, np.zeros((0, 2)), unaligned()]
    return write_programs([ExecutableProgram([main], [], b"", {})], constants)


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def test_each_way_to_write_gives_the_same_file() -> None:
    result = assembly()
    whole = bytes(result.to_bytes())
    assert len(whole) == result.size
    assert written(result.write) == whole == written(result.write_seekable)
    loaded = Executable.from_bytes(whole)
    np.testing.assert_array_equal(loaded.constants[0].numpy(), ROWS.T)
    assert bytes(artifact_bytes(loaded)) == whole == loaded.to_bytes()


def test_file_of_no_sections_and_of_empty_ones() -> None:
    one = [SectionSource(Section.METADATA, lambda at: [b""])]
    two = [SectionSource(kind, lambda at: [b"", b"1"]) for kind in (Section.CODE, Section.GLOBALS)]
    for parts in ([], one, two):
        result = assemble(parts)
        assert written(result.write) == bytes(result.to_bytes()) == written(result.write_seekable)


def test_executable_file_chunks_outlive_the_executable() -> None:
    loaded = Executable.from_bytes(assembly().to_bytes())
    view = artifact_bytes(loaded)
    expected = loaded.to_bytes()
    del loaded
    assert bytes(view) == expected and view.readonly


def test_error_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    result = assembly()

    class Full(io.BytesIO):
        def write(self, data: object, /) -> int:
            if self.tell() > 1000:
                raise OSError("no space")
            return super().write(data)  # type: ignore[arg-type]

    def write(file: object) -> None:
        result.write(file)  # type: ignore[arg-type]
        result.write(Full())

    with pytest.raises(OSError, match="no space"):
        write_path_or_stream(tmp_path / "a.eki", write)
    assert list(tmp_path.iterdir()) == []


def test_written_mapped_chunks_are_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(bytes(4 << 20))
    gone: list[int] = []
    monkeypatch.setattr(mapped_files, "advise_dontneed", lambda array: gone.append(array.nbytes))
    with mapped_files.allow_mapped_borrowing() as files:
        data = files.map(tmp_path / "weights")
        assert data is not None
        array = np.frombuffer(data, np.float32).reshape(1 << 10, 1 << 10)
        assert sum(map(len, chunks.iter_chunks([array, array.T]))) == 8 << 20
    assert sum(gone) >= 8 << 20
