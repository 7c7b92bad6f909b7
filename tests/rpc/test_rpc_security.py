"""Keys, and the limits of a session."""

import fcntl
import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, rpc
from ekiden.rpc.sandbox import missing_sandbox_facilities
from ekiden.rpc.tls_keys import Key


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "rpc.key"
    rpc.make_key(path)
    return path


@pytest.fixture(scope="module")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("other") / "rpc.key"
    rpc.make_key(path)
    return path


@pytest.fixture(scope="module")
def locked(key: Path, functions: None) -> Iterator[rpc.Server]:
    server = rpc.Server("0.0.0.0", port=0, credentials=key)
    yield server
    server.terminate()


def test_operations_work_with_the_key(locked: rpc.Server, key: Path) -> None:
    with rpc.connect("127.0.0.1", locked.port, credentials=key) as session:
        assert session.get_function("tests.rpc.adder")(1)(2) == 3
        session.upload(os.urandom(5 << 20), "x")
        assert len(session.download("x")) == 5 << 20


def test_operations_fail_without_the_key(locked: rpc.Server, other_key: Path) -> None:
    for credentials in (None, other_key):
        with pytest.raises((rpc.RPCError, OSError)):
            rpc.connect("127.0.0.1", locked.port, credentials=credentials)


def test_client_key_against_keyless_server_is_refused(server: rpc.Server, key: Path) -> None:
    with pytest.raises(rpc.RPCError):
        rpc.connect("127.0.0.1", server.port, "board", credentials=key)


def connection(port: int, key: Key, newest: ssl.TLSVersion | None = None) -> ssl.SSLSocket:
    """TLS with a server, no token said yet."""
    context = key.tls_context(ssl.PROTOCOL_TLS_CLIENT)
    if newest is not None:
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = newest
    plain = socket.create_connection(("127.0.0.1", port), 10)
    return context.wrap_socket(plain)


def says(stream: ssl.SSLSocket) -> bytes:
    """What the server says after its token."""
    result = b""
    try:
        while piece := stream.recv(4096):
            result += piece
    except OSError:
        pass
    return result[32:]


def test_token_of_another_channel_is_refused(locked: rpc.Server, key: Path) -> None:
    secret = Key.read(key)
    first = connection(locked.port, secret)
    token = secret.channel_token(first, b"client")
    second = connection(locked.port, secret)
    second.sendall(token)
    assert says(second) == b""
    first.close()
    second.close()


def test_server_token_is_refused_from_clients(locked: rpc.Server, key: Path) -> None:
    stream = connection(locked.port, Key.read(key))
    stream.sendall(stream.recv(32))
    assert says(stream) == b""
    stream.close()


def test_older_tls_is_refused(locked: rpc.Server, key: Path) -> None:
    with pytest.raises((ssl.SSLError, OSError)):
        connection(locked.port, Key.read(key), ssl.TLSVersion.TLSv1_2)


def test_plain_messages_to_a_server_with_a_key(locked: rpc.Server) -> None:
    with socket.create_connection(("127.0.0.1", locked.port), 10) as plain:
        plain.sendall(b"\x20\0\0\0\1\0\0\0" + bytes(32))
        plain.settimeout(20)
        try:
            message = plain.recv(1000)
        except ConnectionResetError:
            message = b""
    assert message[:1] in (b"", b"\x15")  # nothing, or TLS's alert


def test_trackers_and_proxies_have_keys_too(key: Path) -> None:
    tracker = rpc.Tracker("0.0.0.0", port=0, credentials=key)
    where = ("127.0.0.1", tracker.port)
    proxy = rpc.Proxy("127.0.0.1", port=0, tracker_addr=where, credentials=key)
    server = rpc.Server(proxy.host, proxy.port, key="far", is_proxy=True, credentials=key)
    client = rpc.connect_tracker(*where, credentials=key)
    with client, client.request("far") as session:
        assert session.get_function("tests.rpc.echo")(1) == 1
    with pytest.raises(rpc.RPCError):
        rpc.connect_tracker(*where).summary()
    for item in (server, proxy, tracker):
        item.terminate()


def test_key_files_are_private_and_validated(tmp_path: Path, key: Path) -> None:
    assert key.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        rpc.make_key(key)
    loose = tmp_path / "loose"
    loose.write_bytes(key.read_bytes())
    loose.chmod(0o644)
    with pytest.raises(rpc.RPCError, match="others may read"):
        rpc.Server(port=0, credentials=loose)
    empty = tmp_path / "empty"
    empty.touch(0o600)
    with pytest.raises(rpc.RPCError, match="no key file"):
        rpc.connect("127.0.0.1", 1, credentials=empty)


needs_sandbox = pytest.mark.skipif(
    bool(missing_sandbox_facilities()), reason=f"no sandbox: {missing_sandbox_facilities()}"
)

HOSTILE = {
    "socket": "socket.socket()",
    "connect": "socket.create_connection(('127.0.0.1', 1))",
    "home": "os.listdir('/root') + os.listdir('/home')",
    "password": "open('/etc/passwd').read()",
    "environment": "open(f'/proc/{os.getppid()}/environ').read()",
    "write": "open('/tmp/ekiden-rpc-hostile', 'w')",
    "fork": "os.fork()",
    "program": "os.execv('/bin/true', ['true'])",
    "kill": "os.kill(os.getppid(), 9)",
    "all": "os.kill(-1, 9)",
    "signal of a pipe": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    "signal of a socket": "fcntl.ioctl(1, 0x8901, struct.pack('i', os.getppid()))",
    "time of the server": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "rights": "os.chmod('/tmp', 0o1777)",
    "owner": "os.chown('/tmp', 0, 0)",
    "memory": "bytearray(1 << 40)",
    "descriptors": "[os.dup(1) for _ in range(1000)]",
}


NAMES = {
    "os": os, "socket": socket, "fcntl": fcntl, "resource": resource, "struct": struct,
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile() -> Iterator[rpc.Server]:
    for name, text in HOSTILE.items():
        ekiden.register_func(
            f"tests.hostile.{name}", eval(f"lambda: str({text})", NAMES), override=True
        )
    server = rpc.Server(port=0)
    yield server
    server.terminate()
    for name in HOSTILE:
        ekiden.remove_global_func(f"tests.hostile.{name}")


@needs_sandbox
@pytest.mark.parametrize("name", HOSTILE)
def test_session_cannot_leave_its_folder(hostile: rpc.Server, name: str) -> None:
    with rpc.connect("127.0.0.1", hostile.port) as session:
        with pytest.raises((OSError, MemoryError)) as caught:
            session.get_function(f"tests.hostile.{name}")()
        assert isinstance(caught.value, rpc.RPCError)
    with rpc.connect("127.0.0.1", hostile.port) as session:
        session.upload(b"still here", "file")


SOURCE = r"""
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
typedef struct { int32_t type; uint32_t pad; int64_t v; } value;
static int give(value *ret, long v) { ret->type = 1; ret->pad = 0; ret->v = v; return 0; }
int __tvm_ffi_open(void *s, const value *a, int32_t n, value *r) {
  return give(r, socket(AF_INET, SOCK_STREAM, 0));
}
int __tvm_ffi_home(void *s, const value *a, int32_t n, value *r) {
  return give(r, open("/etc/passwd", O_RDONLY) < 0 && opendir("/root") == NULL ? -1 : 0);
}
int __tvm_ffi_forks(void *s, const value *a, int32_t n, value *r) {
  long made = 0;
  for (int i = 0; i < 1000; i++) {
    int pid = fork();
    if (pid == 0) pause();
    made += pid > 0;
  }
  return give(r, made);
}
int __tvm_ffi_crash(void *s, const value *a, int32_t n, value *r) {
  *(volatile int *)8 = 1;
  return 0;
}
int __tvm_ffi_spin(void *s, const value *a, int32_t n, value *r) { for (;;) ; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile.c").write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", "-w", "-o", "hostile.so", "hostile.c"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "hostile.so"


@needs_sandbox
def test_uploaded_module_is_sandboxed(hostile: rpc.Server, library: Path) -> None:
    with rpc.connect("127.0.0.1", hostile.port) as session:
        session.upload(library)
        module = session.load_module(library.name)
        assert module["open"]() == -1
        assert module["home"]() == -1
        assert module["forks"]() == 0
        with pytest.raises(rpc.RPCError, match="gone"):
            module["crash"]()
    with (
        pytest.raises(rpc.RPCSessionTimeoutError),  # of a spin, or of what comes before it
        rpc.connect("127.0.0.1", hostile.port, session_timeout=1) as session,
    ):
        session.upload(library)
        session.load_module(library.name)["spin"]()
    with rpc.connect("127.0.0.1", hostile.port) as session:
        assert session.listdir() == ""


@needs_sandbox
def test_archive_is_loaded_where_nothing_may_be_written(
    hostile: rpc.Server, tmp_path: Path
) -> None:
    x = relay.var("x", shape=(3,))
    relay.build(relay.Function([x], relay.nn.relu(x)), "llvm").export_library(tmp_path / "net.tar")
    with rpc.connect("127.0.0.1", hostile.port) as session:
        session.upload(tmp_path / "net.tar")
        main = session.load_module("net.tar")["main"]
        result = main(session.cpu(0).array(np.array([-1, 0, 2], "float32")))
        assert result.numpy().tolist() == [0, 0, 2]


def test_sessions_need_the_runtime_alone() -> None:
    program = textwrap.dedent("""
        import sys
        from ekiden import rpc
        rpc.LocalSession().get_function("ek.runtime.num_threads")()
        loaded = {name for name in sys.modules if name.startswith("ekiden.")}
        rest = {n for n in loaded if not n.startswith(("ekiden.rpc", "ekiden.runtime"))}
        rest -= {"ekiden._lazy", "ekiden._locks"}
        assert not rest and not {"llvmlite", "onnx", "rich"} & set(sys.modules), rest
    """)
    subprocess.run([sys.executable, "-c", program], check=True)
