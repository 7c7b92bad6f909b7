"""Artifacts are written in pieces: the cache, `save` and what compiles beside give the same bytes,
and a file of weights that is written meanwhile leaves nothing."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden.ir import user_extensions
from ekiden.runtime.artifact import late_bound
from ekiden.runtime.artifact.container_format import ArtifactFile, artifact_bytes
from ekiden.runtime.errors import ImportModelError
from ekiden.runtime.files import Writer

SIZE = 700


def saved(folder: Path) -> Path:
    """Two products whose weights are packed, in a file that is mapped."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((SIZE, SIZE), np.float32), n) for n in "ab"
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", SIZE]) for n in "xy")
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["h"]),
        helper.make_node("MatMul", ["h", "b"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    graph_model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(graph_model, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the limit of a cache in a folder of the test."""
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(user_extensions, "_USER_DEFINITIONS", [])  # tests before this one have some
    return lambda limit: monkeypatch.setenv("EKIDEN_CACHE_LIMIT", limit)


def artifacts(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if ".eki" in p.name)


def test_cached_and_uncached_bytes_are_equal(
    tmp_path: Path, limited: Callable[[str], None]
) -> None:
    path = saved(tmp_path)
    result = []
    for limit, tier in ("0", "full"), ("1G", "full"), ("0", "quick"):
        limited(limit)
        exe = ekiden.compile(path, tier=tier)
        exe.save(tmp_path / "saved")
        result.append((tmp_path / "saved").read_bytes())
        assert result[-1] == exe.raw.to_bytes()
    assert len(set(result)) == 1
    (kept,) = artifacts(tmp_path / "cache")
    assert kept.read_bytes() == result[0]


def test_cached_artifact_is_not_concatenated(
    tmp_path: Path, limited: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited("1G")
    monkeypatch.setattr(ArtifactFile, "to_bytes", None)
    ekiden.compile(saved(tmp_path)).save(tmp_path / "saved.eki")
    assert len(artifacts(tmp_path / "cache")) == 1


def test_full_disk_leaves_an_executable_in_memory(
    tmp_path: Path, limited: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited("1G")

    def full(self: ArtifactFile, file: Writer) -> None:
        file.write(bytes(1000))
        raise OSError("no space left on device")

    monkeypatch.setattr(ArtifactFile, "write_seekable", full)
    exe = ekiden.compile(saved(tmp_path))
    assert artifacts(tmp_path / "cache") == []
    assert exe(np.ones((2, SIZE), np.float32)).shape == (2, SIZE)


@pytest.mark.parametrize("limit", ["1G", "0"])
def test_file_that_changes_while_it_is_written_is_an_error(
    limit: str, tmp_path: Path, limited: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that are packed are read last, when the artifact is written."""
    limited(limit)
    path = saved(tmp_path)
    for name in ("write_seekable", "to_bytes"):
        real = getattr(ArtifactFile, name)

        def cut_before(
            self: ArtifactFile, *args: object, real: Callable[..., object] = real
        ) -> object:
            os.truncate(path, 100_000)
            return real(self, *args)

        monkeypatch.setattr(ArtifactFile, name, cut_before)
    with pytest.raises(ImportModelError, match="was changed while weights were read from it"):
        ekiden.compile(path)
    assert artifacts(tmp_path / "cache") == []


def test_constants_that_were_given_are_saved(tmp_path: Path) -> None:
    exe = ekiden.compile(saved(tmp_path))
    expected = exe.raw.to_bytes()
    exe.move_late_bound_consts(tmp_path / "constants", 1000)
    assert len(exe.raw.to_bytes()) < len(expected) // 100
    exe.load_late_bound_consts(tmp_path / "constants")
    exe.save(tmp_path / "saved.eki")
    assert (
        (tmp_path / "saved.eki").read_bytes()
        == expected
        == bytes(late_bound.complete_artifact_bytes(exe.raw))
    )
    moved = exe.get_late_bound_consts(1 << 40)
    assert moved == {} and bytes(artifact_bytes(exe.raw)) == expected
