"""Cached code is run only if no other user can have written it."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden import relay
from ekiden.codegen.cache import KernelCache
from ekiden.ir import user_extensions
from ekiden.runtime.files import check_trusted, evict_least_recent, write_atomic

X = np.ones(3, "float32")
KEY = "0" * 32


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test."""
    monkeypatch.setattr(user_extensions, "_USER_DEFINITIONS", [])  # tests before this one have some
    folder = tmp_path / "cache"
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(folder))
    monkeypatch.setenv("EKIDEN_CACHE_LIMIT", str(1 << 20))
    return folder


@pytest.fixture
def _no_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def compile_new(scale: float, folder: Path) -> ekiden.Executable:
    """A model of a file of its own, so that its artifact is cached."""
    constant = numpy_helper.from_array(np.float32(scale), "scale")
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])] for name in ("x", "y")
    )
    node = helper.make_node("Mul", ["x", "scale"], ["y"])
    graph = helper.make_graph([node], "scaled", inputs, outputs, [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / f"model{scale}.onnx")
    return ekiden.compile(folder / f"model{scale}.onnx")


@pytest.mark.usefixtures("_no_mask")
def test_without_a_umask_nobody_else_may_write_to_the_cache(cache: Path, tmp_path: Path) -> None:
    assert compile_new(2.5, tmp_path)(X).numpy()[0] == 2.5
    names = [cache, *cache.rglob("*")]
    assert any(name.suffix == ".o" for name in names)
    writable = [n for n in names if n.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)]
    assert writable == []


@pytest.mark.usefixtures("_no_mask")
def test_without_a_umask_what_is_saved_is_not_for_all_to_write(tmp_path: Path) -> None:
    executable = ekiden.compile(relay.parse("def @main(%x: Tensor[(3), float32]) { nn.relu(%x) }"))
    executable.save(tmp_path / "model.eki")
    assert not (tmp_path / "model.eki").stat().st_mode & stat.S_IWOTH


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_kernel_that_others_may_write_is_a_miss(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache = KernelCache(tmp_path / "kernels")
    cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"
    (file,) = (tmp_path / "kernels").rglob("*.o")
    file.chmod(mode)
    with caplog.at_level(logging.WARNING, "ekiden"):
        assert cache.get(KEY) is None
    assert f"mode {mode:o}" in caplog.text
    cache.put(KEY, b"code")  # which makes it the owner's again
    assert cache.get(KEY) == b"code"


def test_kernel_in_a_folder_that_others_may_write_is_a_miss(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "kernels")
    cache.put(KEY, b"code")
    (file,) = (tmp_path / "kernels").rglob("*.o")
    file.parent.chmod(0o777)
    assert cache.get(KEY) is None
    file.parent.chmod(0o1777)  # nobody else may remove it, and it is this user's
    assert cache.get(KEY) == b"code"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give files away")
def test_kernel_of_another_user_is_a_miss_unless_the_layer_is_theirs(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "kernels")
    cache.put(KEY, b"code")
    (file,) = (tmp_path / "kernels").rglob("*.o")
    os.chown(file, 12345, 12345)
    assert cache.get(KEY) is None
    os.chown(tmp_path / "kernels", 12345, 12345)
    assert cache.get(KEY) is None
    assert KernelCache(None, [tmp_path / "kernels"]).get(KEY) == b"code"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give links away")
def test_link_of_another_user_is_neither_read_nor_emptied(tmp_path: Path) -> None:
    """Whoever owns a link chooses the files that it leads to."""
    mine, link = tmp_path / "mine", tmp_path / "kernels"
    cache = KernelCache(mine)
    cache.put(KEY, b"code")
    (file,) = mine.rglob("*.o")
    file.rename(tmp_path / "other.o")
    file.symlink_to(tmp_path / "other.o")
    assert cache.get(KEY) == b"code"
    os.lchown(file, 12345, 12345)
    assert cache.get(KEY) is None
    link.symlink_to(mine)
    assert evict_least_recent(link, 1 << 20) == (0, 0)
    os.lchown(link, 12345, 12345)
    with pytest.raises(PermissionError, match="the folder or link is another user's"):
        evict_least_recent(link, 0)


def test_artifact_that_others_may_write_is_compiled_again(cache: Path, tmp_path: Path) -> None:
    compile_new(3.5, tmp_path)
    (file,) = (cache / "artifacts").glob("*.eki")
    other = compile_new(4.5, tmp_path)
    (second,) = set((cache / "artifacts").glob("*.eki")) - {file}
    file.write_bytes(second.read_bytes())
    file.chmod(0o666)
    assert compile_new(3.5, tmp_path)(X).numpy()[0] == 3.5
    assert other(X).numpy()[0] == 4.5


def test_ownership_error_names_the_owner(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", lambda file: file.write(b"x"), is_owners=True)
    check_trusted(tmp_path / "file")
    (tmp_path / "file").chmod(0o602)
    with pytest.raises(PermissionError, match=r"file' has owner \d+ and mode 602"):
        check_trusted(tmp_path / "file")
