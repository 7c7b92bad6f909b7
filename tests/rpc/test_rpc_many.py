"""Sessions opened, used and killed at random moments: nothing is left behind."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest
from rpc_functions import CServer

from ekiden import rpc


def state(pid: int) -> tuple[int, int, int]:
    """Children, descriptors and pages of a process."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return len(children), len(os.listdir(f"/proc/{pid}/fd")), pages


def settled(pid: int) -> tuple[int, int, int]:
    """The same once no session runs."""
    for _ in range(400):
        if state(pid)[0] == 0:
            break
        time.sleep(0.05)
    return state(pid)


def one_session(port: int, rng: random.Random, pid: int) -> None:
    """Use a session, and end it in one of several ways, perhaps in the middle of a message."""
    session = rpc.connect("127.0.0.1", port, "board")
    tensor = session.cpu().empty((1000,), "float32")
    session.upload(b"x" * rng.randrange(100_000), "file")
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
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for each in children[:1]:
                os.kill(int(each), signal.SIGKILL)
        case _:
            tensor.numpy()


def use_and_kill(port: int, pid: int, count: int) -> None:
    """So many of them; then the server is as it was after the first few."""
    rng = random.Random(0)
    for _ in range(5):
        one_session(port, rng, pid)
    before, here = settled(pid), len(os.listdir("/proc/self/fd"))
    folders = len(list(Path("/tmp").glob("ekiden-rpc-*")))
    for _ in range(count):
        try:
            one_session(port, rng, pid)
        except rpc.RPCError:  # its process was killed meanwhile
            continue
    children, descriptors, pages = settled(pid)
    assert (children, descriptors) == before[:2]
    assert pages < before[2] + 256 + count  # a MB, and 4 KB for a session
    assert len(os.listdir("/proc/self/fd")) <= here + 4
    assert len(list(Path("/tmp").glob("ekiden-rpc-*"))) <= folders + 2
    with rpc.connect("127.0.0.1", port, "board") as session:
        assert session.listdir() == ""


def test_sessions_of_python(server: rpc.Server) -> None:
    use_and_kill(server.port, server.pid, 30)


def test_sessions_of_c(c_server: CServer) -> None:
    use_and_kill(c_server.port, c_server.process.pid, 30)


@pytest.mark.long
def test_a_thousand_sessions_of_python(server: rpc.Server) -> None:
    use_and_kill(server.port, server.pid, 1000)


@pytest.mark.long
def test_a_thousand_sessions_of_c(c_server: CServer) -> None:
    use_and_kill(c_server.port, c_server.process.pid, 1000)
