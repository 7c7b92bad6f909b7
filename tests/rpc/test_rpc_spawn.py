"""Servers and sessions are spawned processes: serialization of functions, and its limits."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import rpc
from ekiden.rpc.function_pickle import deserialize_function, serialize_function

FACTOR = 3
TABLE = {"a": [1, 2], "b": {"c": (3,)}}


def scaled(x: int) -> int:
    return FACTOR * x


def factorial(n: int) -> int:
    return 1 if n < 2 else n * factorial(n - 1)


def counted(step: int = 2, *, start: int = 10) -> Callable[[], int]:
    count = start

    def count_on() -> int:
        nonlocal count
        count += step
        return count

    return count_on


def table(key: str) -> object:
    return TABLE[key]


class Own:
    """A class of this program, which no other has."""


OWN = Own()
LOCK = threading.Lock()


CASES: list[tuple[Callable[..., object], tuple[object, ...], object]] = [
    (scaled, (4,), 12),
    (factorial, (5,), 120),
    (counted(), (), 12),
    (table, ("b",), {"c": (3,)}),
    (lambda x: scaled(x) + 1, (1,), 4),
    (np.add.reduce, ([1.0, 2.0],), 3.0),
    (os.path.basename, ("a/b",), "b"),
    (lambda *x, y=5: (x, y), (1,), ((1,), 5)),
    (max, (1, 2), 2),
]


def test_functions_are_serialized_by_value() -> None:
    program = textwrap.dedent("""
        import sys
        from ekiden.rpc.function_pickle import deserialize_function
        for function, arguments, wanted in deserialize_function(sys.stdin.buffer.read())():
            assert function(*arguments) == wanted, function
        print("all")
    """)
    data = serialize_function("test", lambda: CASES)
    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True)
    assert done.stdout == b"all\n", done.stderr.decode()


def test_serialized_functions_share_module_globals() -> None:
    first, second = (
        deserialize_function(serialize_function("test", f)) for f in (scaled, factorial)
    )
    assert first.__globals__ is second.__globals__ is not scaled.__globals__


@pytest.mark.parametrize(
    ("function", "said"), [(lambda: OWN, "class 'Own'"), (lambda: LOCK, "lock")]
)
def test_unserializable_values_are_named(function: Callable[..., object], said: str) -> None:
    with pytest.raises(rpc.RPCError, match=f"a session is a program of its own.*{said}"):
        serialize_function("f", function)


def test_unserializable_function_is_an_error_at_the_call() -> None:
    ekiden.register_func("tests.rpc.held", lambda: OWN, override=True)
    server = rpc.Server(port=0)
    ekiden.remove_global_func("tests.rpc.held")
    with rpc.connect("127.0.0.1", server.port) as session:
        held = session.get_function("tests.rpc.held")
        with pytest.raises(rpc.RPCError, match="'tests.rpc.held': .*the class 'Own' of a program"):
            held()
    server.terminate()
    with pytest.raises(rpc.RPCError, match="server_init_callback: .*the class 'Own'"):
        rpc.Server(port=0, server_init_callback=lambda: OWN)


PROGRAM = """
import threading, time
from ekiden import rpc, register_func
print("begins", flush=True)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

@register_func("program.double")
def double(x):
    return 2 * x

tracker = rpc.Tracker(port=0)
server = rpc.Server(port=0, key="board", tracker_addr=("127.0.0.1", tracker.port))
with rpc.connect_tracker("127.0.0.1", tracker.port) as client, client.request("board") as session:
    print(session.get_function("program.double")(21))
server.terminate()
tracker.terminate()
"""


def test_program_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    """And may have threads: nothing of it is forked."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-W", "error", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.stdout.split() == ["begins", "42"], done.stderr


def test_server_and_its_sessions_are_no_forks() -> None:
    """Their command is an interpreter's, not this program's, and no module of it is theirs."""
    server = rpc.Server(port=0)
    with rpc.connect("127.0.0.1", server.port) as session:
        assert session.listdir() == ""
        for pid in (server.pid, *_children(server.pid)):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if not command:  # a spare program that is beginning or has just ended
                continue
            words = command.split(b"\0")
            assert b"-I" in words and b"pytest" not in b"".join(words[:4])
    server.terminate()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
