"""Cache folders: layers, concurrent processes, packing, import, removal."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import pwd
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import onnx
import platformdirs
import pytest

import ekiden
from ekiden.cli import main
from ekiden.codegen.cache import KernelCache, compiler_folder
from ekiden.compiler.cache.cache_files import (
    MANIFEST_NAME,
    all_cache_layers,
    cache_stats,
    export_cache,
    import_cache,
    prune_cache,
)
from ekiden.ir import user_extensions
from ekiden.ir.cache_folders import cache_folders
from ekiden.runtime.errors import InputError, LoadError
from ekiden.runtime.files import list_files
from onnx_files import arguments, expected, model


def key_of(number: int) -> str:
    """A key as those of kernels are."""
    return hashlib.md5(str(number).encode()).hexdigest()


def code_of(number: int) -> bytes:
    """What is kept under it."""
    return str(number).encode() * 100


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is written, alone, by a process that knows the compiler."""
    compiler_folder()
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path / "home"))
    return tmp_path / "home"


def filled(*numbers: int) -> KernelCache:
    """The cache of the environment, with some kernels put into it."""
    cache = KernelCache.default()
    for number in numbers:
        cache.put(key_of(number), code_of(number))
    return cache


def test_first_layer_is_written_and_all_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(second))
    filled(1)
    before = {path: path.stat().st_mtime_ns for path in list_files(second)}
    monkeypatch.setenv("EKIDEN_CACHE_DIR", os.pathsep.join([str(first), str(second)]))
    cache = filled(2)
    assert (cache.get(key_of(1)), cache.get(key_of(2))) == (code_of(1), code_of(2))
    assert len(list_files(first)) == 1
    assert {path: path.stat().st_mtime_ns for path in list_files(second)} == before
    monkeypatch.setenv("EKIDEN_CACHE_DIR", f"{os.pathsep}{first}")
    cache = filled(3)
    assert (cache.get(key_of(2)), cache.get(key_of(3))) == (code_of(2), None)


def test_models_are_found_in_layers_that_are_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, own, path = tmp_path / "shared", tmp_path / "own", tmp_path / "m.onnx"
    onnx.save(model(), path)
    monkeypatch.setattr(user_extensions, "_USER_DEFINITIONS", [])  # tests before this one have some
    monkeypatch.setenv("EKIDEN_CACHE_LIMIT", "1G")
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(shared))
    ekiden.compile(str(path))
    before = list_files(shared)
    assert [p.suffix for p in before if p.parent.name == "artifacts"] == [".eki"]
    monkeypatch.setenv("EKIDEN_CACHE_DIR", os.pathsep.join([str(own), str(shared)]))
    argument = arguments(2)
    np.testing.assert_allclose(
        ekiden.compile(str(path))(**argument).numpy(), expected(**argument), 1e-5
    )
    assert {p.parent.name for p in list_files(own)} <= {"known"}
    assert list_files(shared) == before


def test_damaged_file_of_a_layer_is_a_miss_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_DIR", f"{tmp_path / 'own'}{os.pathsep}{tmp_path / 'shared'}")
    path = tmp_path / "shared" / "kernels" / compiler_folder() / f"{key_of(1)}.o"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    cache = KernelCache.default()
    assert cache.get(key_of(1)) is None and path.exists()
    cache.put(key_of(1), code_of(1))
    assert cache.get(key_of(1)) == code_of(1)


COUNT = 60


def work(folder: str, seed: int) -> str:
    """What one of many processes does with a folder: everything at once."""
    cache = KernelCache(Path(folder, "kernels"), limit=20_000)
    for turn in range(3 * COUNT):
        number = (turn * 7 + seed) % COUNT
        cache.put(key_of(number), code_of(number))
        result = cache.get(key_of((number * 3 + seed) % COUNT))
        if result is not None and result != code_of((number * 3 + seed) % COUNT):
            return f"{number}: {result[:20]!r}"
        if turn % 50 == seed:
            prune_cache(limit=5_000)
    return ""


def test_many_processes_write_read_and_remove_at_once(home: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(6) as pool:
        wrong = pool.starmap(work, [(str(home), seed) for seed in range(6)])
    assert wrong == [""] * 6
    left = [p for p in home.rglob("*") if p.is_file()]
    assert all(p.name[0] != "." for p in left), "nothing half written is left"
    cache = KernelCache(home / "kernels")
    assert all(cache.get(p.stem) is not None for p in left)


def test_folder_of_kernels_is_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_KERNEL_LIMIT", "5K")
    filled(*range(400))
    sizes = [p.stat().st_size for p in list_files(home)]
    assert sum(sizes) < 400 * 108 / 2
    assert KernelCache.default().get(key_of(399)) == code_of(399)


@pytest.mark.parametrize(("limit", "looks"), [("1G", 0), ("100K", 70), ("5K", 400)])
def test_cache_folder_is_scanned_as_it_fills(
    home: Path, monkeypatch: pytest.MonkeyPatch, limit: str, looks: int
) -> None:
    """A look reads the names of all kernels; those here have 109 KB together."""
    result: list[int] = []
    evict = "ekiden.codegen.cache.evict_least_recent"
    monkeypatch.setattr(evict, lambda _, limit: result.append(limit))
    monkeypatch.setenv("EKIDEN_KERNEL_LIMIT", limit)
    filled(*range(400))
    assert looks / 2 <= len(result) <= looks * 2


def test_packed_cache_can_be_imported_elsewhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(1, 2, 3)
    old = home / "kernels" / ("0" * 16) / f"{key_of(4)}.o"
    old.parent.mkdir()
    old.write_bytes(next(iter(list_files(home))).read_bytes())
    packed, again, everything = (tmp_path / name for name in ("a.tar", "b.tar", "c.tar"))
    assert (export_cache(packed), export_cache(again), export_cache(everything, True)) == (3, 3, 4)
    assert packed.read_bytes() == again.read_bytes()
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path / "other"))
    filled(3)
    done = import_cache(packed)
    assert (done.imported, done.present, done.refused) == (2, 1, 0)
    assert KernelCache.default().get(key_of(1)) == code_of(1)


def packed_with(path: Path, files: dict[str, bytes], manifest: bytes | None = None) -> Path:
    """A packed cache of such files."""
    with tarfile.open(path, "w") as archive:
        first = json.dumps({"version": 1}).encode() if manifest is None else manifest
        for name, data in {MANIFEST_NAME: first, **files}.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return path


def test_non_cache_files_are_not_imported(home: Path, tmp_path: Path) -> None:
    hostile = {
        "../outside": b"x", "/tmp/outside": b"x", "kernels/../../outside": b"x",
        f"kernels/{'0' * 16}/{key_of(1)}.o": b"damaged",
        f"artifacts/{key_of(1)}.eki": b"damaged", f"artifacts/{key_of(1)}.json": b"{",
        "other/file": b"x",
    }  # fmt: skip
    done = import_cache(packed_with(tmp_path / "p.tar", hostile))
    assert (done.imported, done.present, done.refused) == (0, 0, len(hostile))
    assert list_files(home) == [] and not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("manifest", "said"),
    [(b'{"version": 2}', "packed cache of version 1 expected, got 2"), (b"[]", "is no packed"),
     (b"{", "is no packed cache")],
)  # fmt: skip
def test_other_files_are_refused(manifest: bytes, said: str, home: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=said):
        import_cache(packed_with(tmp_path / "p.tar", {}, manifest))
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(LoadError, match="is no packed cache"):
        import_cache(tmp_path / "text")


def test_least_recently_used_files_are_evicted_first(home: Path) -> None:
    cache = filled(1, 2, 3)
    for path in list_files(home):
        os.utime(path, (1, 1))
    assert cache.get(key_of(2)) == code_of(2)
    assert time.time() - max(p.stat().st_mtime for p in list_files(home)) < 1000
    assert prune_cache(limit=150) == (2, 216)
    assert [cache.get(key_of(n)) is None for n in (1, 2, 3)] == [True, False, True]


def test_cache_command_reports_its_actions(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(1, 2)
    packed = str(tmp_path / "p.tar")
    assert main(["cache", "export", packed]) == main(["cache", "import", packed]) == 0
    assert main(["cache", "stats"]) == main(["cache", "stats", "--json"]) == 0
    assert main(["cache", "prune", "--limit", "0", "--stale"]) == 0
    text = capsys.readouterr().out
    assert f"{packed}: 2 files\n0 files are new, 2 were there, 0 were refused\n{home}\n" in text
    assert '"kind": "kernels"' in text and text.endswith("2 files removed, 0.0 MB\n")
    assert [row.files for row in cache_stats()] == [0, 0, 0, 0]
    for wrong in (["prune"], ["prune", "--limit", "much"]):
        assert main(["cache", *wrong]) == 1
    assert "--limit" in capsys.readouterr().err


def test_cache_that_is_turned_off_has_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_DIR", "")
    with pytest.raises(InputError, match="turned off"):
        all_cache_layers()


@pytest.mark.parametrize("said", ["", "HOME=/a/home", "XDG_CACHE_HOME=/b"])
def test_folder_of_the_user_is_that_of_platformdirs(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    for name in ("EKIDEN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if said:
        monkeypatch.setenv(*said.split("="))
    assert cache_folders() == (platformdirs.user_cache_dir("ekiden"), ())


def test_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as nobody it knows: nothing is written where it was started."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    for name in ("EKIDEN_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert cache_folders() == (None, ())
    with pytest.raises(InputError, match="no folder"):
        all_cache_layers()


def test_process_with_cached_kernels_does_not_load_llvm(home: Path) -> None:
    """Those of sizes too."""
    program = (
        "import sys, ekiden\nfrom ekiden import relay\nfrom ekiden.relay import op\n"
        "n = relay.SizeVar('n')\n"
        "a, b = (relay.var(name, shape=(n, 4)) for name in 'ab')\n"
        "both = op.nn.softmax(op.concatenate([a, b], axis=0))\n"
        "made = ekiden.compile(relay.IRModule.from_expr(relay.Function([a, b], both)))\n"
        "print('llvmlite' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    result = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [item.stdout for item in result] == ["True\n", "False\n"]
