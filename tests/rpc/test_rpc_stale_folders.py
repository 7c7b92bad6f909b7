"""Session folders of killed servers are removed by the user's next server."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rpc_functions import CServer

from ekiden import rpc
from ekiden.rpc.folders import SessionFolder, remove_stale_folders


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of temporary ones that no other server has; its path is short enough for both."""
    folder = tempfile.mkdtemp(prefix="e-", dir="/tmp")
    monkeypatch.setenv("TMPDIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", folder)
    yield Path(folder)
    shutil.rmtree(folder)


def left(base: Path) -> Path:
    """What a server that was killed leaves: a folder whose lock nobody holds."""
    folder = SessionFolder.create()
    os.close(folder.lock)
    Path(folder.path, "a").mkdir()
    Path(folder.path, "a", "file").write_text("x")
    return Path(folder.path)


def test_folder_without_a_lock_is_removed_and_one_in_use_stays(base: Path) -> None:
    stale, used = left(base), SessionFolder.create()
    other = base / "other"
    other.mkdir()
    (base / "ekiden-session-link").symlink_to(other)
    (base / "ekiden-session-file").write_text("x")
    (base / "ekiden-rpc-upload").mkdir()  # of a client, or not locked yet
    remove_stale_folders()
    assert not stale.exists()
    names = {path.name for path in base.iterdir()}
    assert names == {
        os.path.basename(used.path), "other", "ekiden-session-link", "ekiden-session-file",
        "ekiden-rpc-upload",
    }  # fmt: skip
    used.remove()
    assert not os.path.exists(used.path)


@pytest.mark.parametrize("kind", ["server", "c"])
def test_server_removes_what_a_killed_one_left(
    kind: str, base: Path, request: pytest.FixtureRequest
) -> None:
    stale, used = left(base), SessionFolder.create()
    server = (
        rpc.Server(port=0, key="board")
        if kind == "server"
        else CServer(request.getfixturevalue("program"))
    )
    try:
        with rpc.connect("127.0.0.1", server.port, "board") as session:
            assert session.listdir() == ""
            assert not stale.exists() and os.path.exists(used.path)
    finally:
        server.terminate()
        used.remove()


def test_killed_server_leaves_folders_until_the_next(base: Path, program: Path) -> None:
    first = CServer(program)
    with rpc.connect("127.0.0.1", first.port, "board"):
        first.terminate()  # by SIGKILL
    before = set(base.glob("ekiden-session-*"))
    second = CServer(program)
    with rpc.connect("127.0.0.1", second.port, "board"):
        assert before and not any(folder.exists() for folder in before)
    second.terminate()
