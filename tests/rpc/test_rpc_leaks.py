"""Sessions opened, used and killed at random moments leave nothing behind."""

import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from rpc_functions import CServer, children, wait_until

from ekiden import rpc
from ekiden.rpc.server import NUM_SPARE_PROGRAMS


def resources(pid: int) -> tuple[int, int]:
    """Descriptors and pages of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return len(os.listdir(f"/proc/{pid}/fd")), pages


def folders(pid: int) -> set[Path]:
    """Those of the sessions that run."""
    result = set()
    for child in children(pid):
        with suppress(OSError):  # it has ended
            result.add(Path(os.readlink(f"/proc/{child}/cwd")))
    return {folder for folder in result if folder.name.startswith("ekiden-session-")}


def one_session(port: int, rng: random.Random, pid: int) -> set[Path]:
    """Use a session, and end it in one of several ways, perhaps in the middle of a message: the
    folders that are there meanwhile."""
    session = rpc.connect("127.0.0.1", port, "board")
    tensor = session.cpu().empty((1000,), "float32")
    session.upload(b"x" * rng.randrange(100_000), "file")
    used = folders(pid)
    match rng.randrange(5):
        case 0:
            session.close()
        case 1:
            session._endpoint.channel.stream.sendall(rng.randbytes(rng.randrange(1, 40)))
        case 2:
            threading.Timer(rng.random() * 0.01, session.close).start()
            with pytest.raises((rpc.RPCError, OSError)):
                while True:
                    tensor.numpy()
        case 3:
            for child in children(pid)[:1]:
                with suppress(ProcessLookupError):  # that of another session, which has ended
                    os.kill(child, signal.SIGKILL)
        case _:
            tensor.numpy()
    return used


def use_and_kill(port: int, pid: int, count: int) -> None:
    """So many of them; then the server is as it was after the first few."""
    rng = random.Random(0)
    for _ in range(5):
        with suppress(rpc.RPCError):  # its process was killed before it
            one_session(port, rng, pid)
    wait_until(lambda: len(children(pid)) <= NUM_SPARE_PROGRAMS)
    descriptors, pages = resources(pid)
    here, used = len(os.listdir("/proc/self/fd")), set()
    for _ in range(count):
        try:
            used |= one_session(port, rng, pid)
        except rpc.RPCError:  # its process was killed meanwhile
            continue
    wait_until(
        lambda: (
            len(children(pid)) <= NUM_SPARE_PROGRAMS
            and resources(pid)[0] <= descriptors + NUM_SPARE_PROGRAMS
        )
    )
    assert used
    wait_until(lambda: sum(folder.exists() for folder in used) <= NUM_SPARE_PROGRAMS)
    assert resources(pid)[1] < pages + 256 + count  # a MB, and 4 KB for a session
    assert len(os.listdir("/proc/self/fd")) <= here + 4
    with rpc.connect("127.0.0.1", port, "board") as session:
        assert session.listdir() == ""


def test_random_python_sessions_leave_nothing(server: rpc.Server) -> None:
    use_and_kill(server.port, server.pid, 30)


def test_random_c_sessions_leave_nothing(c_server: CServer) -> None:
    use_and_kill(c_server.port, c_server.process.pid, 30)


@pytest.mark.long
def test_thousand_python_sessions_leave_nothing(server: rpc.Server) -> None:
    use_and_kill(server.port, server.pid, 1000)


@pytest.mark.long
def test_thousand_c_sessions_leave_nothing(c_server: CServer) -> None:
    use_and_kill(c_server.port, c_server.process.pid, 1000)
