"""The digest that every cache on disk has in its keys: of all that decides what is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

import ekiden
from ekiden.codegen import cache
from ekiden.driver import artifact_key
from ekiden.frontend.common.options import NO_OPTIONS
from ekiden.ir import extensions
from ekiden.ir.compiler_digest import compiler_digest, digest_of, sources
from ekiden.relay import parse
from ekiden.target import Target

pytestmark = pytest.mark.quick


def test_every_source_counts(tmp_path: Path) -> None:
    """Content and name of a file in any folder, of code and of the standard library."""
    for name in ("relay/transform/fuse.py", "relay/std/prelude.rly", "runtime/core.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    seen = {digest_of([str(tmp_path)])}
    for name in ("relay/transform/fuse.py", "relay/std/prelude.rly", "runtime/core.so"):
        (tmp_path / name).write_text("2")
        seen.add(digest_of([str(tmp_path)]))
    (tmp_path / "runtime/core.so").rename(tmp_path / "runtime/heart.so")
    seen.add(digest_of([str(tmp_path)]))
    (tmp_path / "runtime/notes.txt").write_text("not compiled from")
    seen.add(digest_of([str(tmp_path)]))
    assert len(seen) == 5


def test_the_package_is_all_there() -> None:
    """What passes, operators, kernels and their runtime are made of."""
    found = {name for root in ekiden.__path__ for name in sources(root)}
    ends = ("ir/op.py", "relay/transform/fuse_ops.py", "relay/type_infer.py", "topi/slice.py",
            "backend/vm/pipeline.py", "runtime/layout.py", "relay/std/prelude.rly")  # fmt: skip
    for end in ends:
        assert any(name.endswith(f"/ekiden/{end}") for name in found), end
    assert any(name.endswith(".so") for name in found)


def test_both_caches_have_it_in_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_FOREIGN", [])  # tests before this one have some

    def keys() -> tuple[str, str]:
        function = parse("def @main(%x: float32) { exp(%x) }")["main"]
        made = artifact_key.request(b"a model", None, NO_OPTIONS, "vm")
        assert made is not None
        return cache.kernel_key(function, Target.parse("llvm")), made.digest

    before = keys()
    assert keys() == before
    for module in (cache, artifact_key):
        monkeypatch.setattr(module, "compiler_digest", lambda: "another compiler")
    assert not set(keys()) & set(before)
    assert compiler_digest() == compiler_digest()
