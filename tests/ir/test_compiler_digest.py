"""The compiler digest, part of the key of every disk cache."""

from __future__ import annotations

import os
import time
from importlib import metadata
from pathlib import Path

import pytest

import ekiden
from ekiden.codegen import cache
from ekiden.compiler.cache import cache_keys as artifact_key
from ekiden.compiler.cache.cache_keys import file_digest
from ekiden.compiler.options import CompileOptions
from ekiden.frontend.registry import identify_model
from ekiden.ir import digest_cache, user_extensions
from ekiden.ir.compiler_digest import compiler_digest, list_source_files, package_digest
from ekiden.ir.package_versions import package_version
from ekiden.target import Target

pytestmark = pytest.mark.quick


def test_digest_covers_every_source(tmp_path: Path) -> None:
    """Content and name of a file in any folder, of code and of the standard library."""
    for name in ("relay/transform/fuse.py", "relay/library/prelude.rly", "runtime/core.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    seen = {package_digest([str(tmp_path)])}
    for name in ("relay/transform/fuse.py", "relay/library/prelude.rly", "runtime/core.so"):
        (tmp_path / name).write_text("2")
        seen.add(package_digest([str(tmp_path)]))
    (tmp_path / "runtime/core.so").rename(tmp_path / "runtime/heart.so")
    seen.add(package_digest([str(tmp_path)]))
    (tmp_path / "runtime/notes.txt").write_text("not compiled from")
    seen.add(package_digest([str(tmp_path)]))
    assert len(seen) == 5


def test_source_changes_do_not_affect_running_process(tmp_path: Path) -> None:
    """What it compiled before, by modules that it had, is not what the files say now."""
    (tmp_path / "fuse.py").write_text("1")
    before, after = (time.time_ns() + seconds * 10**9 for seconds in (-60, 60))
    fresh = package_digest([str(tmp_path)])
    assert package_digest([str(tmp_path)], imported_ns=after) == fresh
    changed = package_digest([str(tmp_path)], imported_ns=before)
    assert changed not in (fresh, package_digest([str(tmp_path)], imported_ns=before - 1))
    assert package_digest([str(tmp_path)], imported_ns=before) == changed
    os.utime(tmp_path / "fuse.py", ns=(after, after))  # by a clock that is ahead
    assert package_digest([str(tmp_path)], imported_ns=before) == package_digest([str(tmp_path)])


def test_digest_covers_the_whole_package() -> None:
    """What passes, operators, kernels and their runtime are made of."""
    result = {f"/ekiden/{name}" for root in ekiden.__path__ for name in list_source_files(root)}
    ends = ("ir/op.py", "relay/transform/fusion/fuse_ops.py", "relay/type_infer.py",
            "topi/slice.py", "backend/vm/pipeline.py", "runtime/binding/layout.py",
            "relay/library/prelude.rly")  # fmt: skip
    for end in ends:
        assert f"/ekiden/{end}" in result, end
    assert any(name.endswith(".so") for name in result)


def test_digest_ignores_non_sources(tmp_path: Path) -> None:
    """Files of others, what an editor or Python leaves, links to folders; and a link that leads
    nowhere, as editors make for files that are being edited, stops nothing."""
    (tmp_path / "relay").mkdir()
    (tmp_path / "relay/fuse.py").write_text("1")
    fresh = package_digest([str(tmp_path)])
    for name in ("relay/notes.md", "relay/__pycache__/fuse.py", ".git/hook.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("2")
    (tmp_path / "relay/.#fuse.py").symlink_to("somebody@a-machine")
    (tmp_path / "relay/again").symlink_to(tmp_path)
    assert package_digest([str(tmp_path)]) == fresh and list_source_files(str(tmp_path)) == [
        "relay/fuse.py"
    ]
    (tmp_path / "fuse.py").symlink_to("relay/fuse.py")
    assert package_digest([str(tmp_path)]) != fresh
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list_source_files(str(tmp_path / "nowhere"))


def test_both_caches_have_it_in_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_extensions, "_USER_DEFINITIONS", [])  # tests before this one have some

    def keys() -> tuple[str, str]:
        result = artifact_key.create_cache_request(identify_model(b"a model"), CompileOptions())
        assert result is not None
        return cache.compiler_folder(), result.digest()

    before = keys()
    assert keys() == before
    for module in (cache, artifact_key):
        monkeypatch.setattr(module, "compiler_digest", lambda: "another compiler")
    assert not set(keys()) & set(before)
    assert compiler_digest() == compiler_digest()


def test_file_that_is_written_again_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its size and the time that a program says it has; what has not changed is not."""
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path / "cache"))
    path, old = tmp_path / "model", 10**18
    path.write_bytes(b"one")
    os.utime(path, ns=(old, old))
    first = file_digest(path)
    assert not (tmp_path / "cache").exists()  # it has changed a moment ago

    monkeypatch.setattr(digest_cache, "MIN_FILE_AGE_NS", 0)
    assert file_digest(path) == first
    monkeypatch.setattr(artifact_key, "_hash_leaf", lambda *_: pytest.fail("it is read again"))
    assert file_digest(path) == first

    monkeypatch.undo()
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path / "cache"))
    path.write_bytes(b"two")
    os.utime(path, ns=(old, old))
    assert file_digest(path) != first


def test_damaged_digest_cache_entry_is_recomputed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EKIDEN_CACHE_DIR", str(tmp_path))
    assert (
        digest_cache.memoize_on_disk("a", 0, lambda: "1")
        == digest_cache.memoize_on_disk("a", 0, lambda: "2")
        == "1"
    )
    [kept] = (tmp_path / "known").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert (
        digest_cache.memoize_on_disk("a", 0, lambda: "3")
        == digest_cache.memoize_on_disk("a", 0, lambda: "4")
        == "3"
    )


@pytest.mark.parametrize("name", ["numpy", "ml_dtypes", "ml-dtypes", "ekiden"])
def test_versions_are_those_of_the_library(name: str) -> None:
    assert (
        package_version(name) == metadata.version(name) and package_version("no-such-package") == ""
    )


def test_current_target_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_extensions, "_USER_DEFINITIONS", [])
    plain = artifact_key.create_cache_request(identify_model(b"a model"), CompileOptions())
    with Target("llvm -mcpu=x86-64-v3"):
        other = artifact_key.create_cache_request(identify_model(b"a model"), CompileOptions())
    again = artifact_key.create_cache_request(identify_model(b"a model"), CompileOptions("llvm"))
    assert plain is not None and other is not None and again is not None
    assert plain.digest() == again.digest() != other.digest()
