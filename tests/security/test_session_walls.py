"""What docs/security.md says of sessions, tried from inside of them, as native code."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from walls import (
    BEHIND_NAMESPACES,
    KINDS,
    Walls,
    attack,
    attack_names,
    serving,
    sessions_of,
    variables_set,
    wait_until,
)

from ekiden import rpc
from ekiden.rpc.background_process import FIRST_PASSED_DESCRIPTOR
from ekiden.rpc.sandbox import missing_sandbox_facilities
from ekiden.rpc.syscall_filter import ALLOWED_CALLS, ENOSYS_CALLS
from ekiden.rpc.tls_keys import Key
from long_runs import alike

pytestmark = [
    pytest.mark.early,
    pytest.mark.skipif(
        bool(missing_sandbox_facilities()), reason=f"no sandbox: {missing_sandbox_facilities()}"
    ),
]
HIDDEN = "".join(chr(ord(letter) - 1) for letter in "in the memory of the server 4711")
"""A text of the server's owner, whose letters are moved so that a session does not have it."""
SECRET = "".join(chr(ord(letter) + 1) for letter in HIDDEN)


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file outside, which any user might write."""
    path = Path("/tmp") / f"ekiden-outside-{os.getpid()}"
    path.write_bytes(b"whole")
    path.chmod(0o666)
    yield path
    path.unlink()


def _is_needless(walls: Walls, name: str) -> bool:
    return not walls.has_namespaces and name in BEHIND_NAMESPACES


@alike(3)
@pytest.mark.parametrize("walls", KINDS, ids=str)
def test_every_attack_from_inside_is_refused(
    walls: Walls, program: Path, library: Path, outside: Path
) -> None:
    before = outside.stat()
    with serving(walls, program) as (pid, port), rpc.connect("127.0.0.1", port) as session:
        make = attack(session, library)
        argument = {"priority": str(pid), "cores": str(pid), "scheduler": str(pid)}
        passed = []
        for name in attack_names():
            is_of_process = name.endswith("_another") or name in ("kill_a_thread",)
            text = argument.get(name.partition("_")[0], str(pid)) if is_of_process else str(outside)
            if make(name, text) != -1 and not _is_needless(walls, name):
                passed.append((name, make("last_error")))
        assert not passed
        assert make("see_a_folder", "/etc") == make("see_a_folder", "/root") == -1
        assert make("read_a_file", f"/proc/{pid}/environ") == -1
        assert make("read_a_file", "/etc/passwd") == -1
    after = outside.stat()
    assert outside.read_bytes() == b"whole"
    assert (before.st_mode, before.st_mtime_ns) == (after.st_mode, after.st_mtime_ns)
    assert not Path("/tmp/ekiden-rpc-hostile").exists()


@pytest.mark.parametrize("server", ["python", "c"])
def test_session_contains_no_server_state(server: str, program: Path, library: Path) -> None:
    """Neither its memory nor its environment: a session is a program of its own."""
    with variables_set({"EKIDEN_TEST_MEMORY": SECRET}):
        held = [SECRET + "!"]
        with (
            serving(Walls(server), program) as (_, port),
            rpc.connect("127.0.0.1", port) as session,
        ):
            assert attack(session, library)("secret_in_memory", HIDDEN) == -1
        assert held


def test_session_has_not_the_key_of_its_server(library: Path, tmp_path: Path) -> None:
    rpc.make_key(tmp_path / "rpc.key")
    lines = (tmp_path / "rpc.key").read_text().splitlines()
    server = rpc.Server(port=0, credentials=tmp_path / "rpc.key")
    with rpc.connect("127.0.0.1", server.port, credentials=tmp_path / "rpc.key") as session:
        make = attack(session, library)
        for line in (lines[1], lines[-2]):  # of the private key, and the secret
            hidden = "".join(chr(ord(letter) - 1) for letter in line[:40])
            assert make("secret_in_memory", hidden) == -1
    server.terminate()


@pytest.mark.parametrize("server", ["python", "c"])
@pytest.mark.parametrize("has_namespaces", [True, False])
def test_session_is_apart_from_the_terminal_of_its_server(
    server: str, has_namespaces: bool, program: Path
) -> None:
    """It leads a session of the system's of its own, and what it has as 0 to 2 is no terminal."""
    walls = Walls(server, has_namespaces=has_namespaces)
    with serving(walls, program) as (pid, port):
        wait_until(lambda: all(map(_is_started, sessions_of(pid))))
        with rpc.connect("127.0.0.1", port):
            for child in filter(_is_started, sessions_of(pid)):
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                group, session, terminal = fields[2:5]
                assert group == session == str(child) and terminal == "0"
                opened = [os.readlink(f"/proc/{child}/fd/{number}") for number in range(3)]
                assert all(re.match(r"pipe:|/dev/null|/null", name) for name in opened), opened


@pytest.mark.parametrize("server", ["python", "c"])
def test_session_has_no_descriptor_of_its_server(server: str, program: Path) -> None:
    """No file, and no socket but its client's connection: what else it has is its own."""
    with serving(Walls(server), program) as (pid, port):
        wait_until(lambda: all(map(_is_started, sessions_of(pid))))
        with rpc.connect("127.0.0.1", port) as session:
            assert session.listdir() == ""
            assert list(filter(_is_started, sessions_of(pid)))
            # The next spare session reads its task from a file of the server while it starts.
            wait_until(lambda: not _descriptors_of_server(pid))
            for child in filter(_is_started, sessions_of(pid)):
                assert sum(name.startswith("socket:") for name in _descriptors(child)) <= 1


def _descriptors(pid: int) -> set[str]:
    """Return what a process has open, without processes and descriptors that end meanwhile."""
    names = set()
    with suppress(FileNotFoundError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                names.add(os.readlink(entry))
    return names


def _descriptors_of_server(pid: int) -> set[str]:
    """Return the files of a server that one of its sessions has open, too."""
    files = {name for name in _descriptors(pid) if name.startswith("/") and name != "/dev/null"}
    children = filter(_is_started, sessions_of(pid))
    return files & set().union(*map(_descriptors, children))


def test_server_in_c_listens_on_the_loopback_interface_alone(program: Path) -> None:
    with serving(Walls("c"), program) as (_, port):
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
        listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
        assert listening == [f"0100007F:{port:04X}"]
    for option in ("--host", "--address", "--bind"):
        run = subprocess.run([str(program), option, "0.0.0.0", "--port", "0"], capture_output=True)
        assert run.returncode, option


def _is_started(child: int) -> bool:
    """Return whether a session's program runs, and not the copy of its server that starts it.

    A process that replaces its program, or has ended, has no command line for a moment.
    """
    arguments = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[:-1]
    return b"--session" in arguments or arguments[-1:] == [str(FIRST_PASSED_DESCRIPTOR).encode()]


@pytest.mark.parametrize("server", ["python", "c"])
def test_calls_that_pass_are_those_of_the_table(
    server: str, program: Path, library: Path, tmp_path: Path
) -> None:
    """Every number of a call, from inside a session: docs/sandbox-calls.md says which pass."""
    numbers = _numbers([call.name for call in ALLOWED_CALLS] + list(ENOSYS_CALLS), tmp_path)
    with (
        serving(Walls(server), program) as (_, port),
        rpc.connect("127.0.0.1", port) as session,
    ):
        assert attack(session, library)("call_all_numbers", "700") == -1
        errors = session.download("calls")
    apart = {"exit", "exit_group", "rt_sigreturn", "futex"}  # the last has no operation -1: ENOSYS
    always = {
        numbers[c.name] for c in ALLOWED_CALLS if not c.tests and c.name in numbers.keys() - apart
    }
    refused = {1, 38}  # EPERM, ENOSYS
    assert {number for number, error in enumerate(errors) if error not in refused} == always
    assert {errors[numbers[name]] for name in ENOSYS_CALLS if name in numbers} == {38}


def _numbers(names: list[str], folder: Path) -> dict[str, int]:
    """Return the numbers that this processor's system calls have."""
    rows = [f'#ifdef SYS_{name}\nprintf("{name} %d\\n", SYS_{name});\n#endif' for name in names]
    text = "\n".join(("#include <stdio.h>", "#include <sys/syscall.h>", "int main(void) {", *rows))
    (folder / "numbers.c").write_text(text + "\nreturn 0; }\n")
    subprocess.run(["cc", "-o", "numbers", "numbers.c"], cwd=folder, check=True)
    completed = subprocess.run(
        ["./numbers"], cwd=folder, check=True, capture_output=True, text=True
    )
    return {name: int(number) for name, number in map(str.split, completed.stdout.splitlines())}


def _ends(session: rpc.RPCSession, library: Path, name: str, *arguments: str) -> None:
    """A session that does this is ended by its server."""
    make = attack(session, library)
    with pytest.raises(rpc.RPCError, match="gone"):
        make(name, *arguments)


@pytest.mark.parametrize("name", ["fill_the_disk", "fill_the_disk_unseen"])
def test_session_that_fills_the_disk_is_ended(name: str, library: Path) -> None:
    server = rpc.Server(port=0, limits=rpc.Limits(disk=4 << 20))
    with rpc.connect("127.0.0.1", server.port) as session:
        _ends(session, library, name, str(32 << 20))
    server.terminate()


@pytest.mark.parametrize("has_namespaces", [True, False])
def test_session_thread_count_is_limited(has_namespaces: bool, library: Path) -> None:
    """It gets no more, or is ended."""
    with variables_set({} if has_namespaces else {"EKIDEN_RPC_NAMESPACES": "0"}):
        server = rpc.Server(port=0, limits=rpc.Limits(threads=40))
    with rpc.connect("127.0.0.1", server.port) as session:
        make = attack(session, library)
        try:
            count = make("many_threads", "200")
            wait_until(lambda: count < 40 or session.listdir() == "never")
        except rpc.RPCError:
            assert not session.is_open
    server.terminate()


def test_servers_time_is_the_most_that_a_session_has(library: Path) -> None:
    """Whatever its client wishes, and whatever it does to its timers."""
    server = rpc.Server(port=0, limits=rpc.Limits(seconds=1.5))
    with rpc.connect("127.0.0.1", server.port, session_timeout=3600) as session:
        _ends(session, library, "spin_on")
    server.terminate()


@pytest.mark.parametrize("server", ["python", "c"])
def test_session_ends_with_a_killed_server(server: str, program: Path, library: Path) -> None:
    with serving(Walls(server), program) as (pid, port):
        session = rpc.connect("127.0.0.1", port)
        make = attack(session, library)
        assert make("death_signal") == make("timer") == -1
        children = sessions_of(pid)
        os.kill(pid, 9)
        wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
        session.close()


def _trickle(port: int, first: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(first)
    return connection


def test_slow_handshakes_do_not_block_server(tmp_path: Path) -> None:
    """Nor do those that never begin, more than there may be sessions or greetings at once."""
    rpc.make_key(tmp_path / "rpc.key")
    server = rpc.Server(port=0, credentials=tmp_path / "rpc.key")
    slow = [_trickle(server.port, b"\x16\x03\x01") for _ in range(80)]
    key = Key.read(tmp_path / "rpc.key")
    assert key.secret
    with rpc.connect("127.0.0.1", server.port, credentials=tmp_path / "rpc.key") as session:
        assert session.listdir() == ""
        for connection in slow:
            connection.close()
    server.terminate()


@pytest.mark.parametrize("server", ["python", "c"])
def test_silent_clients_do_not_block_server(server: str, program: Path) -> None:
    with serving(Walls(server), program) as (_, port):
        slow = [_trickle(port, b"\x20") for _ in range(80)]
        with rpc.connect("127.0.0.1", port) as session:
            assert session.listdir() == ""
        for connection in slow:
            connection.close()


def test_server_without_sandbox_facility_refuses_to_start(program: Path) -> None:
    """And says which: here of a kernel without landlock, by its ABI 0."""
    with serving(Walls("c", 0), program) as (_, port), pytest.raises(rpc.RPCError):
        rpc.connect("127.0.0.1", port)
    with (
        serving(Walls("python", 0), program) as (_, port),
        pytest.raises(rpc.RPCError, match=r"no session: .*landlock"),
    ):
        rpc.connect("127.0.0.1", port)
