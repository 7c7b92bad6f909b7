"""Malformed model libraries give a LoadError, and none of their content is run."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ekiden import micro
from ekiden.runtime.errors import LoadError

HEADER = "codegen/host/include/ekiden_default.h"
TENSOR = {"dtype": "float32", "size": 20}


def about(**changes: object) -> dict[str, Any]:
    """Return a metadata.json with changes in what it says of the program."""
    main = {
        "inputs": {"x": TENSOR}, "outputs": {"y": TENSOR},
        "workspace_pools": {"ram": {"size_bytes": 64}}, **changes,
    }  # fmt: skip
    model = {"model_name": "default", "memory": {"functions": {"main": [main]}}}
    return {"version": 7, "modules": {"default": model}}


def library(path: Path, metadata: object, files: Mapping[str, bytes] | None = None) -> Path:
    """Write a model library."""
    texts = {"metadata.json": json.dumps(metadata).encode(), HEADER: b"", **(files or {})}
    with tarfile.open(path, "w") as archive:
        for name, data in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_project_has_declared_memory(tmp_path: Path) -> None:
    result = library(tmp_path / "model.tar", about())
    micro.generate_project("host", result, tmp_path / "p")
    config = (tmp_path / "p/src/ek_micro_config.h").read_text()
    assert "ek_pool_ram[64]" in config


@pytest.mark.parametrize(
    "metadata",
    [
        {"version": 7, "modules": []},
        {"version": 7, "modules": {"default": {"model_name": "default"}}},
        {"version": 7, "modules": {"default": {"model_name": "default", "memory": []}}},
        about(inputs=[]),
        about(inputs={"x": {"size": -1}}),
        about(inputs={"x": {"size": "8"}}),
        about(inputs={"x": {"size": 2**40}}),
        about(workspace_pools=[]),
        about(workspace_pools={"ram": {}}),
        about(workspace_pools={'ram[1]; int x = system("sh"); char y': {"size_bytes": 1}}),
        about(workspace_pools={"ram": {"size_bytes": "1]; int x[1"}}),
        [[[]]],
    ],
    ids=range(12),
)
def test_metadata_that_is_wrong_is_refused(metadata: object, tmp_path: Path) -> None:
    result = library(tmp_path / "model.tar", metadata)
    with pytest.raises(LoadError, match="a model library of version 7 that Ekiden wrote expected"):
        micro.generate_project("host", result, tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../x", "a file outside of it"),
        ("/x", "a file outside of it"),
        ("codegen/../../x", "a file outside of it"),
        ("a\nb", "a file outside of it"),
        ("metadata.json/x", "'metadata.json' is a file and a folder"),
    ],
)
def test_unexpected_archive_files_are_refused(name: str, message: str, tmp_path: Path) -> None:
    result = library(tmp_path / "model.tar", about(), {name: b"x"})
    with pytest.raises(LoadError, match=message):
        micro.generate_project("host", result, tmp_path / "p")


def test_archive_that_grows_without_end_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("zeros")
    member.size = 1 << 40
    (tmp_path / "model.tar").write_bytes(member.tobuf() + b"\0" * 10240)
    with pytest.raises(LoadError):
        micro.generate_project("host", tmp_path / "model.tar", tmp_path / "p")


@pytest.mark.parametrize("opening", ["w:gz", "w:xz", "w:bz2"])
def test_archive_that_is_cut_short_is_refused(opening: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "whole", opening) as archive:  # type: ignore[call-overload]
        member = tarfile.TarInfo("zeros")
        member.size = 100_000
        archive.addfile(member, io.BytesIO(bytes(range(250)) * 400))
    data = (tmp_path / "whole").read_bytes()
    for cut in (len(data) // 2, len(data) - 4):
        (tmp_path / "model.tar").write_bytes(data[:cut])
        with pytest.raises(LoadError):
            micro.generate_project("host", tmp_path / "model.tar", tmp_path / "p")
