"""`ekiden rpc`."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ekiden import rpc
from ekiden.cli import main


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Processes that are started hear them: what a shell runs in the background ignores them, and
    so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_server_of_the_command_line(tmp_path: Path) -> None:
    key = str(tmp_path / "rpc.key")
    assert main(["rpc", "keygen", key]) == 0
    command = [sys.executable, "-m", "ekiden", "rpc", "server", "--port", "0", "--key", "board"]
    started = subprocess.Popen([*command, "--credentials", key], stdout=subprocess.PIPE, text=True)
    with started:
        assert started.stdout is not None
        port = int(started.stdout.readline().rpartition(":")[2])
        with rpc.connect("127.0.0.1", port, "board", credentials=key) as session:
            session.upload(b"x", "file")
            assert session.listdir() == "file"
        started.send_signal(signal.SIGINT)
    with pytest.raises(rpc.RPCError):
        rpc.connect("127.0.0.1", port, "board", credentials=key)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["keygen"], "expected a file"), (["server", "x"], "expected no file"),
        (["server", "--tracker", "x"], "host:port"), (["server", "--host", "0.0.0.0"], "a key"),
    ],
)  # fmt: skip
def test_invalid_rpc_commands_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rpc", *words]) == 1
    assert said in capsys.readouterr().err
