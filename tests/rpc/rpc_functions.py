"""The C server and its functions, for the tests of this folder."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ekiden import rpc
from ekiden.runtime.paths import include_dir


def wait_until(holds: Callable[[], bool], said: Callable[[], object] = str) -> None:
    """Wait until something holds: however busy the machine is, it does so in a minute."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, said()
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """The processes of a server's sessions, and of those that wait for a client."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class CServer:
    """`ekiden-rpc` as a process, with a key."""

    def __init__(self, program: Path, *words: str) -> None:
        command = [str(program), "--port", "0", "--key", "board", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def terminate(self) -> None:
        self.process.kill()
        self.process.communicate()


def compile_functions(result: Path) -> None:
    """Write functions.c as a library that any server loads."""
    source = Path(__file__).with_name("functions.c")
    include = f"-I{include_dir()}"
    command = ["cc", "-shared", "-fPIC", "-O1", include, str(source), "-o", str(result)]
    subprocess.run(command, check=True)


LIBRARIES: dict[rpc.RPCSession, rpc.RemoteModule] = {}
"""Where sessions have their functions that are not of a process that runs Python."""
LACKS = ("fail", "zeros", "sleep", "pid")
"""What functions.c does not have: what needs the runtime's own functions."""


def function(remote: rpc.RPCSession, name: str) -> rpc.RemoteFunction:
    """A function of these tests."""
    if remote not in LIBRARIES:
        return remote.get_function(f"tests.rpc.{name}")
    if name in LACKS:
        pytest.skip(f"the functions in C have no {name}: it needs the runtime's")
    return LIBRARIES[remote][name]
