"""The C server: rejections, robustness, size."""

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest
from rpc_functions import CServer, children, wait_until
from test_rpc_frames import HELLO, drive, sample, talk

from c_builds import ADDRESS, Objects
from ekiden import rpc
from ekiden.rpc.messages import SESSION_KINDS, Kind
from ekiden.rpc.sandbox import missing_sandbox_facilities
from ekiden.rpc.wire_format import NoHandles, serialize_frame
from ekiden.runtime.paths import include_dir, server_source_dir, source_dir

LIMIT = 170 * 1024


def connect(server: CServer, **options: object) -> rpc.RPCSession:
    return rpc.connect("127.0.0.1", server.port, "board", **options)  # type: ignore[arg-type]


def test_c_server_checks_keys_and_constructors(c_server: CServer) -> None:
    with pytest.raises(rpc.RPCError, match="not that of this server"):
        rpc.connect("127.0.0.1", c_server.port, "another")
    args = ["rpc.Connect", "127.0.0.1", c_server.port, "board"]
    with pytest.raises(rpc.RPCError, match="no sessions with others"):
        connect(c_server, session_constructor_args=args)


def test_session_in_c_has_its_time(c_server: CServer, functions_library: Path) -> None:
    with pytest.raises(rpc.RPCSessionTimeoutError):  # of a spin, or of what comes before it
        session = connect(c_server, session_timeout=0.5)
        session.upload(functions_library)
        session.load_module("functions.so")["spin"]()


def test_spinning_function_ends_with_its_client(c_server: CServer, functions_library: Path) -> None:
    session = connect(c_server)
    session.upload(functions_library)
    spin = session.load_module("functions.so")["spin"]
    before = set(children(c_server.process.pid))
    session._endpoint.channel.stream.settimeout(0.3)  # what waits for the answer gives up
    with pytest.raises(rpc.RPCError):
        spin()
    wait_until(lambda: not before <= set(children(c_server.process.pid)))


def test_function_failing_without_message(c_server: CServer, functions_library: Path) -> None:
    with connect(c_server) as session:
        session.upload(functions_library)
        module = session.load_module("functions.so")
        with pytest.raises(rpc.RPCError, match="without saying why"):
            module["silent"]()
        assert module["echo"](1) == 1


def test_client_side_objects_are_refused(c_server: CServer, functions_library: Path) -> None:
    """A thing of another session in a list is refused, and the session lives."""
    with connect(c_server) as session:
        session.upload(functions_library)
        echo = session.load_module("functions.so")["echo"]
        local = rpc.LocalSession().get_function("ek.runtime.num_threads")
        with pytest.raises(ValueError, match="another session"):
            echo([local])
        assert echo("on") == "on"


@pytest.mark.skipif(
    bool(missing_sandbox_facilities()), reason=f"no sandbox: {missing_sandbox_facilities()}"
)
def test_c_module_cannot_leave_its_folder(
    c_server: CServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile.c").write_text(HOSTILE)
    command = ["cc", "-shared", "-fPIC", "-w", "-o", "hostile.so", "hostile.c"]
    subprocess.run(command, cwd=folder, check=True)
    with connect(c_server) as session:
        session.upload(folder / "hostile.so")
        module = session.load_module("hostile.so")
        for name in re.findall(r"^TEST\((?!crash)(\w+)", HOSTILE, re.MULTILINE):
            assert module[name]() == -1, name
        with pytest.raises(rpc.RPCError, match="gone"):
            module["crash"]()
    with connect(c_server) as session:
        assert session.listdir() == ""


HOSTILE = r"""
#include <fcntl.h>
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
typedef struct { int32_t type; uint32_t pad; int64_t v; } value;
static const int queued[32] = {0, 0, -1}, parent = 1;
static const int64_t second[2] = {1, 1};
#define TEST(name, what) \
  int __tvm_ffi_##name(void *s, const value *a, int32_t n, value *r) { \
    r->type = 1; r->v = (what); return 0; }
TEST(open_socket, socket(AF_INET, SOCK_STREAM, 0))
TEST(read_home, opendir("/root") || open("/etc/passwd", O_RDONLY) >= 0 ? 0 : -1)
TEST(fork_often, fork())
TEST(kill_parent, kill(getppid(), SIGKILL))
TEST(write_outside, open("/tmp/ekiden-rpc-hostile", O_CREAT | O_WRONLY, 0600))
TEST(queue_signal, syscall(SYS_rt_tgsigqueueinfo, getppid(), getppid(), 0, queued))
TEST(have_signals_sent, fcntl(1, F_SETOWN, getppid()))
TEST(have_signals_sent_of_sockets, ioctl(1, 0x8901, &parent))
TEST(end_time_of_parent, syscall(SYS_prlimit64, getppid(), 0, second, 0))
TEST(change_rights, chmod("/tmp", 01777))
TEST(change_owner, chown("/tmp", 0, 0))
TEST(crash, *(volatile int *)8)
"""


def test_server_in_c_lives_through_mutated_sessions(c_server: CServer) -> None:
    answers: list[bytes] = []
    drive(c_server.port, 40, 1, answers.append)
    assert any(a[4:5] == bytes([Kind.HELLO]) for a in answers)
    with connect(c_server) as session:
        assert session.listdir() == ""


@pytest.mark.parametrize("frame", [sample(Kind.RETURN), sample(Kind.PUT), HELLO, b"GET / HT"])
def test_unexpected_messages_end_a_c_session(c_server: CServer, frame: bytes) -> None:
    result = talk(c_server.port, HELLO, frame)
    assert result[4] == Kind.HELLO and b"FrameError" in result


def test_c_server_sessions_do_not_leak(c_server: CServer) -> None:
    """More than there may be at once, ended in every way."""
    for i in range(40):
        session = connect(c_server)
        session.upload(b"x" * 1000, "file")
        if i % 3 == 0:
            session._endpoint.channel.stream.close()
        else:
            session.close()
    pid = c_server.process.pid
    wait_until(lambda: len(children(pid)) == 1)  # the one that waits for a client
    wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) < 9)


def samples() -> bytes:
    """HELLO, then messages of all kinds, some that do something."""
    texts = [sample(kind) for kind in (*SESSION_KINDS, Kind.RETURN, Kind.ERROR, Kind.HELLO)]
    first = 1 << 32 | 1
    some = [
        (Kind.FUNCTION, (0, "ek.registry.names")), (Kind.CALL, (first, ())),
        (Kind.CALL, (first, (1, "a", [b"x", {"k": (1, 2)}], 2.5, None, True))),
        (Kind.UPLOAD, ("file", 0, 5, b"bytes")), (Kind.DOWNLOAD, ("file", 0, 100)),
        (Kind.WRITE, (first, 0, b"1234")), (Kind.READ, (first, 0, 4)), (Kind.COPY, (first, first)),
        (Kind.LOAD, ("file",)), (Kind.SIZE, ("file",)), (Kind.LIST, ()),
        (Kind.RELEASE, ([first],)), (Kind.RELEASE, ([first, 2 << 32 | 1],)),
    ]  # fmt: skip
    hello = bytes(serialize_frame(Kind.HELLO, (*HELLO_FIELDS,), NoHandles()))
    return b"".join([hello, *texts, *(bytes(serialize_frame(k, f, NoHandles())) for k, f in some)])


HELLO_FIELDS = (0x0043_5052_4B45_8901, 1, 1 << 16, 0, "", ())


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server under the sanitizers of addresses and undefined behaviour."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "samples").write_bytes(samples())
    sources = [p for p in server_source_dir().glob("*.c") if p.stem in SERVER]
    command = [
        "cc", "-std=gnu11", "-D_GNU_SOURCE", "-O0", *ADDRESS,
        *(f"-I{path}" for path in (include_dir(), source_dir(), server_source_dir())),
        *map(str, [*sources, Path(__file__).with_name("fuzz_rpc.c")]),
        *map(str, Objects(tmp_path_factory).runtime("address")),
        "-o", str(folder / "fuzz"), "-pthread", "-ldl",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return folder / "fuzz"


SERVER = ("ek_rpc_wire", "ek_rpc_handles", "ek_rpc_serve", "ek_rpc_services", "ek_rpc_files")


def fuzz(fuzzer: Path, frames: int, seed: int) -> list[int]:
    """Sessions that were refused, that ended, answers. No allocation may pass 80 MB."""
    options = "max_allocation_size_mb=80:detect_leaks=1"
    done = subprocess.run(
        [str(fuzzer), str(fuzzer.with_name("samples")), str(frames), str(seed)],
        env={**os.environ, "ASAN_OPTIONS": options, "EKIDEN_MEMORY_LIMIT": "64M"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    return [int(word) for word in done.stdout.split()]


def test_mutated_messages_pass_under_sanitizers(fuzzer: Path) -> None:
    refused, ended, answers = fuzz(fuzzer, 5_000, 1)
    assert refused > 100 and ended > 2 and answers > 1000


@pytest.mark.long
def test_million_mutated_messages_pass_under_sanitizers(fuzzer: Path) -> None:
    refused, ended, answers = fuzz(fuzzer, 1_000_000, 2)
    assert refused > 25_000 and ended > 500 and answers > 200_000


def test_c_server_stays_small(program: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the limit is for x86-64, AArch64 and RISC-V; the table has what was measured")
    assert program.stat().st_size <= LIMIT
    needed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True)
    names = {line.split()[0].partition(".")[0] for line in needed.stdout.splitlines()}
    assert names <= {"linux-vdso", "libc", "libm", "/lib64/ld-linux-x86-64"}
