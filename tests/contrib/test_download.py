"""Downloads: once per file, atomically."""

from __future__ import annotations

from pathlib import Path

import pytest

from ekiden.contrib import ndk
from ekiden.contrib.download import DownloadError, download, download_testdata
from ekiden.runtime.errors import ExportError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.txt"
    path.write_text("first")
    return path


def test_download_fetches_a_file_once(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "deeper" / "copy.txt"
    download(source.as_uri(), target)
    assert target.read_text() == "first"
    source.write_text("second")
    download(source.as_uri(), target)
    assert target.read_text() == "first"
    download(source.as_uri(), target, overwrite=True)
    assert target.read_text() == "second"
    assert [path.name for path in target.parent.iterdir()] == ["copy.txt"]


def test_download_replaces_a_file_of_another_size(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.txt"
    target.write_text("half")
    download(source.as_uri(), target, size_compare=True)
    assert target.read_text() == "first"
    target.write_text("other")
    download(source.as_uri(), target, size_compare=True)
    assert target.read_text() == "other"


def test_failed_download_leaves_the_file_and_says_what_helps(tmp_path: Path) -> None:
    target = tmp_path / "copy.txt"
    target.write_text("old")
    missing = (tmp_path / "missing.txt").as_uri()
    with pytest.raises(DownloadError, match=r"missing\.txt: .*; without a network, put the file"):
        download(missing, target, overwrite=True, retries=2)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["copy.txt"]
    with pytest.raises(DownloadError, match="unknown url type"):
        download("no address", target, overwrite=True, retries=1)


def test_test_data_lies_in_the_folder_of_its_module(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_DATA_ROOT_PATH", str(tmp_path / "data"))
    path = download_testdata(source.as_uri(), "a.txt", module=["one", "two"])
    assert Path(path) == tmp_path / "data" / "one" / "two" / "a.txt"
    assert Path(path).read_text() == "first"
    assert Path(download_testdata(source.as_uri(), "b.txt", "one")).parent.name == "one"


def test_ndk_without_a_compiler_says_which_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ndk.COMPILER_VARIABLE, raising=False)
    with pytest.raises(ExportError, match="TVM_NDK_CC is not set"):
        ndk.create_shared(tmp_path / "net.so", [])
    assert ndk.create_shared.output_format == "so"  # type: ignore[attr-defined]
