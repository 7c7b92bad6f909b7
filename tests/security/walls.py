"""Servers of both kinds behind walls of every kind, and the attacks, for these tests."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ekiden import rpc
from ekiden.rpc.sandbox import MAX_LANDLOCK_VARIABLE, NAMESPACES_VARIABLE
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.paths import include_dir

SOURCE = Path(__file__).with_name("attacks.c")
NOBODY = 65534
HELPERS = ("last_error", "secret_in_memory", "many_threads", "fill_the_disk",
           "fill_the_disk_unseen", "spin_on", "call_all_numbers")  # fmt: skip
"""Functions of attacks.c that have a test of their own."""
BEHIND_NAMESPACES = ("see_a_file", "see_access")
"""What a session without a view of its own sees of files outside: that they are there, and
`stat`."""


@dataclass(frozen=True, slots=True)
class Walls:
    """A server, and what of its kernel it may use."""

    server: str
    landlock: int | None = None
    has_namespaces: bool = True
    is_root: bool = True

    def __str__(self) -> str:
        abi = "" if self.landlock is None else f"-landlock{self.landlock}"
        spaces = "" if self.has_namespaces else "-without-namespaces"
        return f"{self.server}{abi}{spaces}{'' if self.is_root else '-nobody'}"


KINDS = [
    Walls("python"),
    Walls("python", 1),
    Walls("python", has_namespaces=False),
    Walls("python", 1, has_namespaces=False),
    *(Walls("c", landlock) for landlock in (None, 1, 2, 3, 4, 5, 6)),
    *(Walls("c", landlock, has_namespaces=False) for landlock in (None, 1, 2, 3)),
    Walls("c", is_root=False),
    Walls("c", 1, is_root=False),
    Walls("c", 1, has_namespaces=False, is_root=False),
]


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds: however busy the machine is, it does so in a minute."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def attack_names() -> list[str]:
    """Return the attacks of attacks.c."""
    names = re.findall(r"^ATTACK\((\w+),", SOURCE.read_text(), re.MULTILINE)
    return [name for name in names if name not in HELPERS]


def compile_attacks(target: Path) -> None:
    """Write attacks.c as a library that any server loads."""
    command = ["cc", "-shared", "-fPIC", "-w", "-O1", "-D_GNU_SOURCE", f"-I{include_dir()}"]
    subprocess.run([*command, str(SOURCE), "-o", str(target), "-pthread"], check=True)


def _environment(walls: Walls) -> dict[str, str]:
    variables = {"EKIDEN_TEST_SECRET": "in the environment of the server"}
    if walls.landlock is not None:
        variables[MAX_LANDLOCK_VARIABLE] = str(walls.landlock)
    if not walls.has_namespaces:
        variables[NAMESPACES_VARIABLE] = "0"
    return variables


@contextmanager
def serving(walls: Walls, program: Path) -> Iterator[tuple[int, int]]:
    """A server behind such walls: its process and port. `program` is `ekiden-rpc`."""
    with variables_set(_environment(walls)):
        if walls.server == "python":
            server = rpc.Server(port=0)
            try:
                yield server.pid, server.port
            finally:
                server.terminate()
            return
        who = {} if walls.is_root or os.geteuid() else {"user": NOBODY, "group": NOBODY}
        process = subprocess.Popen(
            [str(program), "--port", "0"], stdout=subprocess.PIPE, text=True, cwd="/",
            extra_groups=[] if who else None, **who,
        )  # type: ignore[call-overload]  # fmt: skip
    with process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.kill()


@contextmanager
def variables_set(variables: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def sessions_of(pid: int) -> list[int]:
    """Return the processes of a server's sessions, and of those that wait."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def attack(session: rpc.RPCSession, library: Path) -> Callable[..., int]:
    """Load the attacks in a session: a function that makes one by its name."""
    session.upload(library)
    module = session.load_module(library.name)

    def make(name: str, *arguments: str) -> int:
        result = module[name](*arguments)
        assert isinstance(result, int)
        return result

    return make
