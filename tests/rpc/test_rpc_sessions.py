"""Sessions, in this process and in a server's."""

import gc
import os
import shutil
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from rpc_functions import children, function, wait_until

import ekiden
from ekiden import relay, rpc
from ekiden.contrib import graph_executor
from ekiden.rpc.messages import UPLOAD_SUFFIX, Kind
from ekiden.runtime import ADT, DataType, Shape
from ekiden.runtime.errors import InputError, LoadError
from long_runs import share


@pytest.mark.parametrize(
    "value",
    [
        None, True, -(2**63), 2**63 - 1, 1.5, float("inf"), "", "abc é", b"", b"1\x00", (1, "a"),
        [1, [2.0, None]], {"a": [1], 2: {}}, Shape((2, 3)), DataType("bfloat16"),
        DataType("float32x4"), DataType("int4"), DataType("float8_e4m3fn"), DataType("bool"),
        ekiden.cpu(3), ADT(7, (1, ADT(8, ()))), "x" * 100_000, list(range(1000)),
    ],
)  # fmt: skip
def test_values_round_trip_through_rpc(remote: rpc.RPCSession, value: object) -> None:
    result = function(remote, "echo")(value)
    assert result == value and type(result) is type(value)


def test_scalars_of_numpy_are_numbers(remote: rpc.RPCSession) -> None:
    assert function(remote, "echo")(np.int32(7)) == 7
    assert function(remote, "echo")(np.float32(0.5)) == 0.5
    assert function(remote, "echo")(np.bool_(True)) is True


def test_unsupported_values_are_refused_locally(remote: rpc.RPCSession) -> None:
    echo = function(remote, "echo")
    with pytest.raises(OverflowError, match="does not fit"):
        echo(2**63)
    with pytest.raises(TypeError, match="copy it there first"):
        echo(np.zeros(3))
    deep: list[object] = []
    for _ in range(20):
        deep = [deep]
    with pytest.raises(ValueError, match="16 containers"):
        echo(deep)
    with pytest.raises(ValueError, match="at most"):
        echo(b"1" * (5 << 20))
    assert echo(1) == 1


def test_functions_cross_in_both_directions(remote: rpc.RPCSession) -> None:
    assert function(remote, "adder")(10)(12) == 22
    assert function(remote, "apply")(lambda x: x * 2, 21) == 42
    assert function(remote, "apply")(function(remote, "echo"), "same") == "same"


def test_callbacks_nest_and_have_a_limit(remote: rpc.RPCSession) -> None:
    apply = function(remote, "apply")

    def down(n: int) -> object:
        return n if n == 0 else apply(down, n - 1)

    assert apply(down, 5) == 0
    with pytest.raises(rpc.RPCError, match="32 calls wait") as caught:
        apply(down, 100)
    assert isinstance(caught.value, RecursionError)
    assert apply(down, 1) == 0


def test_errors_keep_their_class_and_their_traceback(remote: rpc.RPCSession) -> None:
    with pytest.raises(KeyError, match="the thing") as caught:
        function(remote, "fail")("the thing")
    assert isinstance(caught.value, rpc.RPCError)
    assert any("in fail" in note for note in caught.value.__notes__)
    with pytest.raises(AttributeError, match="no function named"):
        remote.get_function("there.is.none")


def test_error_of_a_callback_comes_through(remote: rpc.RPCSession) -> None:
    def broken() -> None:
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        function(remote, "apply")(broken)


@share(4)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float16", "bfloat16", "int64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (5, 7)])
def test_remote_tensors_stay_remote(
    remote: rpc.RPCSession, dtype: str, shape: tuple[int, ...]
) -> None:
    x = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape)
    x = x.astype(DataType(dtype).numpy_dtype)
    there = ekiden.nd.array(x, remote.cpu())
    assert str(there.device).startswith("remote[") and there.shape == shape
    np.testing.assert_array_equal(there.numpy(), x)


def test_large_tensors_cross_in_pieces(remote: rpc.RPCSession) -> None:
    x = np.random.default_rng(0).random((5041, 720)).astype("float32")
    seen: list[tuple[int, int]] = []
    there = remote.cpu().array(x, progress=lambda done, all: seen.append((done, all)))
    assert len(seen) > 2 and seen[-1] == (x.nbytes, x.nbytes)
    assert function(remote, "total")(there) == pytest.approx(float(x.sum()), rel=1e-4)
    np.testing.assert_array_equal(there.numpy(), x)


def test_remote_writes_are_visible(remote: rpc.RPCSession) -> None:
    there = ekiden.nd.empty((4,), "float32", remote.cpu())
    function(remote, "fill")(there, 3.0)
    assert there.numpy().tolist() == [3] * 4
    other = there.copyto(remote.cpu())
    function(remote, "fill")(there, 1.0)
    assert np.asarray(other).tolist() == [3] * 4
    with pytest.raises(ValueError, match="copyfrom"):
        there.copyfrom(ekiden.tensor(np.zeros(3, "float32")))


def test_remote_tensor_results_stay_remote(remote: rpc.RPCSession) -> None:
    zeros = function(remote, "zeros")(5)
    assert isinstance(zeros, rpc.RemoteTensor) and zeros.shape == (5,)
    assert function(remote, "total")(zeros) == 0


def test_remote_device_is_no_local_device(remote: rpc.RPCSession) -> None:
    device = remote.cpu()
    assert device != ekiden.cpu() and device.exist and not remote.metal().exist
    with pytest.raises((ValueError, InputError, RuntimeError)):
        ekiden.runtime.empty((1,), "float32", device)


def test_objects_of_other_sessions_are_refused(remote: rpc.RPCSession, server: rpc.Server) -> None:
    with rpc.connect("127.0.0.1", server.port, "board") as other:
        thing = other.cpu().empty((1,), "float32")
        with pytest.raises(ValueError, match="another session"):
            function(remote, "total")(thing)


def test_session_files_upload_download_and_remove(remote: rpc.RPCSession, tmp_path: Path) -> None:
    data = os.urandom(9 << 20)
    path = tmp_path / "large.bin"
    path.write_bytes(data)
    remote.upload(path)
    remote.upload(bytearray(b""), "empty")
    assert remote.listdir() == "empty,large.bin"
    assert remote.download("large.bin") == data and remote.download("empty") == b""
    room, seen = bytearray(len(data) + 5), list[int]()
    result = remote.download("large.bin", lambda done, size: seen.append(done), into=room)
    assert result == data and room[: len(data)] == data and not any(room[len(data) :])
    assert seen[-1] == len(data) and len(seen) > 8
    with pytest.raises(ValueError, match="room for 9437184 bytes expected, got 5"):
        remote.download("large.bin", into=bytearray(5))
    remote.remove("large.bin")
    with pytest.raises(FileNotFoundError):
        remote.download("large.bin")
    for name in ("../x", "/etc/passwd", "", "..", "a/b"):
        with pytest.raises(ValueError, match="without folders"):
            remote.upload(b"x", name or "..")
    with pytest.raises(ValueError, match="need a name"):
        remote.upload(b"x")


def test_upload_is_atomic(remote: rpc.RPCSession, tmp_path: Path) -> None:
    """What is interrupted leaves what had the name before, and the session goes on."""
    remote.upload(b"before", "file")

    def stop(done: int, size: int) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            remote.upload(bytearray(6 << 20), "file", stop)
        assert remote.listdir() == "file" and remote.download("file") == b"before"
    path = tmp_path / "changes"
    path.write_bytes(bytes(6 << 20))
    with pytest.raises(rpc.RPCError, match="'file': it became smaller meanwhile"):
        remote.upload(path, "file", lambda done, size: os.truncate(path, 1 << 20))
    assert remote.download("file") == b"before"
    path.write_bytes(bytes(6 << 20))
    remote.upload(path, "grows", lambda done, size: os.truncate(path, 7 << 20))
    assert remote.download("grows") == bytes(6 << 20)
    with pytest.raises(ValueError, match="without folders"):
        remote.upload(b"x", UPLOAD_SUFFIX)
    remote.upload("/proc/self/status", "status")  # a file that has no size
    assert remote.download("status").startswith(b"Name:")


@pytest.mark.parametrize(
    "pieces", [[(1, 6)], [(0, 6), (5, 6)], [(0, 6), (3, 7)], [(0, 2)], [(3, 6)]]
)
def test_out_of_order_chunks_are_refused(
    remote: rpc.RPCSession, pieces: list[tuple[int, int]]
) -> None:
    """Of 3 bytes each: (where, of how many)."""
    with pytest.raises(ValueError, match="the next piece of a file expected"):
        for at, size in pieces:
            remote._endpoint.request(Kind.UPLOAD, "file", at, size, b"abc")
    assert remote.listdir() == ""


def test_interrupt_while_something_runs_ends_the_session(remote: rpc.RPCSession) -> None:
    """The answer that is under way is nobody's: it is not taken for that of the next request."""
    echo, stream = function(remote, "echo"), remote._endpoint.channel.stream

    class Interrupted:
        """The stream, in which an interrupt comes while the answer does."""

        def recv_into(self, buffer: memoryview) -> int:
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> object:
            return getattr(stream, name)

    remote._endpoint.channel.stream = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        echo("first")
    remote._endpoint.channel.stream = stream
    with pytest.raises(rpc.RPCError, match="gone"):
        echo("second")
    assert not remote.is_open
    stream.close()


def test_read_only_buffer_is_refused_before_transfer(remote: rpc.RPCSession) -> None:
    remote.upload(b"hello", "file")
    with pytest.raises(ValueError, match="'file': memory that can be written expected"):
        remote.download("file", into=bytes(5))  # type: ignore[call-overload]
    assert remote.download("file") == b"hello"


def test_wrong_argument_types_are_refused(remote: rpc.RPCSession) -> None:
    for call in (remote.get_function, remote.download, remote.remove, remote.load_module):
        with pytest.raises(TypeError, match="rpc: text expected, got 5"):
            call(5)  # type: ignore[operator]
    for shape in ((-2,), (1,) * 65):
        with pytest.raises(ValueError, match="empty: sizes from 0 on, at most 64, expected"):
            remote.cpu().empty(shape, "float32")
    for seconds in (-1, 1e9, float("nan")):
        with pytest.raises(ValueError, match="session_timeout: 0 to 4294967 seconds expected"):
            rpc.connect("127.0.0.1", 1, session_timeout=seconds)
    assert function(remote, "echo")(1) == 1


def test_loaded_module_file_may_be_replaced(remote: rpc.RPCSession, tmp_path: Path) -> None:
    """A module that lies in a file's pages is not changed by another file of its name."""
    relay, x = ekiden.relay, ekiden.relay.var("x", shape=(1024,))
    weight = np.arange(1024, dtype="float32")
    model = ekiden.IRModule.from_expr(relay.Function([x], x * relay.const(weight)))
    ekiden.compile(model).save(tmp_path / "model.eki")
    remote.upload(tmp_path / "model.eki")
    module = remote.load_module("model.eki")
    remote.upload(b"nothing", "model.eki")
    there = ekiden.nd.array(np.ones(1024, "float32"), remote.cpu())
    np.testing.assert_array_equal(np.asarray(module["main"](there)), weight)


def test_model_runs_remotely(remote: rpc.RPCSession, tmp_path: Path) -> None:
    relay = ekiden.relay
    x = relay.var("x", shape=(2, 3))
    model = ekiden.IRModule.from_expr(relay.Function([x], relay.add(relay.nn.relu(x), x)))
    ekiden.compile(model).save(tmp_path / "model.eki")
    remote.upload(tmp_path / "model.eki")
    module = remote.load_module("model.eki")
    value = np.array([[1, -2, 3], [-4, 5, -6]], "float32")
    there = ekiden.nd.array(value, remote.cpu())
    result = module["main"](there)
    assert isinstance(result, rpc.RemoteTensor)
    np.testing.assert_array_equal(result.numpy(), np.maximum(value, 0) + value)
    times = module.time_evaluator("main", remote.cpu(), number=3, repeat=2)(there)
    assert len(times.results) == 2 and times.mean > 0
    np.testing.assert_array_equal(np.asarray(module(there)), result.numpy())
    assert module.time_evaluator(module.entry_name, number=1)(there).mean > 0
    assert not module.implements_function("nothing")
    with pytest.raises(ekiden.InputError):
        module["main"](ekiden.nd.array(value.astype("int32"), remote.cpu()))
    _check_machine(remote, module, value, result.numpy())


def _check_machine(
    remote: rpc.RPCSession, module: rpc.RemoteModule, value: np.ndarray, wanted: np.ndarray
) -> None:
    """The virtual machine's face over a program there."""
    machine = ekiden.runtime.vm.VirtualMachine(module, remote.cpu())
    actual = machine.invoke("main", value)
    assert isinstance(actual, rpc.RemoteTensor)
    np.testing.assert_array_equal(actual.numpy(), wanted)
    np.testing.assert_array_equal(machine.invoke("main", x=value).numpy(), wanted)
    out = ekiden.nd.array(np.zeros_like(value), remote.cpu())
    machine.invoke_with_outputs("main", {"x": value}, [out])
    np.testing.assert_array_equal(out.numpy(), wanted)
    assert machine.benchmark(remote.cpu(), value, number=2, repeat=2).mean > 0
    for ask in (lambda: machine.limit(steps=3), lambda: machine.start("main", value)):
        with pytest.raises(ekiden.UnsupportedError):
            ask()
    with pytest.raises(InputError, match="on another machine"):
        ekiden.runtime.vm.VirtualMachine(module, ekiden.cpu())
    with pytest.raises(InputError, match="no input is named 'y'"):
        machine.invoke("main", y=value)


LISTS = """
type L { Nil, Cons(Tensor[(4,), float32], L) }
def @main(%x: Tensor[(4,), float32], %l: L) {
  match (%l) { Nil => %x, Cons(%h, _) => add(%x, %h) }
}
"""


@pytest.mark.parametrize("way", ["there", "here", "set_input"])
def test_algebraic_data_crosses_with_its_tensors(
    remote: rpc.RPCSession, tmp_path: Path, way: str
) -> None:
    """To a virtual machine there, as arrays of this machine or tensors of that one."""
    ekiden.compile(relay.parse(LISTS)).save(tmp_path / "lists.eki")
    remote.upload(tmp_path / "lists.eki")
    machine = ekiden.runtime.vm.VirtualMachine(remote.load_module("lists.eki"), remote.cpu())
    ones = np.ones(4, "float32")
    x = ones if way == "here" else ekiden.nd.array(ones, remote.cpu())
    nil = ADT(0, ())
    for data, expected in (
        (nil, 1.0),
        (ADT(1, (x, nil)), 2.0),
        (ADT(1, [x, ADT(1, [x, nil])]), 2.0),
    ):
        if way == "set_input":
            machine.set_input("main", x, data)
            result = machine.run()
        else:
            result = machine.invoke("main", x, data)
        assert isinstance(result, rpc.RemoteTensor)
        assert result.numpy().tolist() == [expected] * 4
    deep = nil
    for _ in range(5000):
        deep = ADT(1, (x, deep))
    with pytest.raises(ValueError, match="16 containers"):
        machine.invoke("main", x, deep)


def test_dropped_proxies_release_remote_objects() -> None:
    remote = rpc.LocalSession()
    begin = remote.get_function("tests.rpc.zeros")
    there = [begin(1) for _ in range(50)]
    handles = {t.handle for t in there if isinstance(t, rpc.RemoteTensor)}
    assert len(handles) == 50
    del there
    gc.collect()
    fresh = begin(1)
    assert isinstance(fresh, rpc.RemoteTensor)
    with pytest.raises(rpc.FrameError, match="no object has this handle"):
        remote._endpoint.request(3, min(handles), "x")


def test_session_ends_with_its_last_object(server: rpc.Server) -> None:
    session = rpc.connect("127.0.0.1", server.port, "board")
    echo, endpoint = function(session, "echo"), session._endpoint
    channel = endpoint.channel
    del session, endpoint
    assert echo(1) == 1 and channel.is_open
    del echo
    assert not channel.is_open


def test_two_clients_at_once(server: rpc.Server) -> None:
    one, two = (rpc.connect("127.0.0.1", server.port, "board") for _ in range(2))
    with one, two:
        one.upload(b"1", "file")
        assert two.listdir() == ""
        assert function(two, "echo")(2) == 2 and function(one, "echo")(1) == 1


def test_threads_share_a_session(remote: rpc.RPCSession) -> None:
    echo = function(remote, "echo")
    result: list[object] = []
    threads = [
        threading.Thread(target=lambda i=i: result.extend(echo(i * 100 + j) for j in range(50)))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, map(str, result))) == [i * 100 + j for i in range(4) for j in range(50)]


def test_another_key_is_refused(server: rpc.Server) -> None:
    with pytest.raises(rpc.RPCError, match="not that of this server"):
        rpc.connect("127.0.0.1", server.port, "another")


@pytest.mark.parametrize("seconds", [0.3, 0.0001])
def test_session_time_limit_is_enforced(server: rpc.Server, seconds: float) -> None:
    """Which may end before it is open."""
    opened: list[rpc.RPCSession] = []
    with pytest.raises(rpc.RPCSessionTimeoutError):
        opened.append(rpc.connect("127.0.0.1", server.port, "board", session_timeout=seconds))
        while True:
            function(opened[0], "echo")(1)
    for session in opened:
        assert not session.is_open
        with pytest.raises(rpc.RPCError):
            function(session, "echo")


def test_running_function_stops_when_client_disconnects(server: rpc.Server) -> None:
    """From another thread, while the server's process sleeps in a function of C."""
    session = rpc.connect("127.0.0.1", server.port, "board")
    session.upload(b"here", "mark")
    (pid,) = (child for child in children(server.pid) if _folder_has(child, "mark"))
    sleep = session.get_function("tests.rpc.sleep")
    threading.Timer(0.2, session.close).start()
    with pytest.raises(rpc.RPCError, match="gone"):
        sleep(3600.0)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def _folder_has(pid: int, name: str) -> bool:
    """Whether a file of that name is in the folder of a session's process."""
    return Path(f"/proc/{pid}/cwd", name).exists()


def test_multiple_hops(server: rpc.Server) -> None:
    middle = rpc.Server(port=0, key="middle")
    inner = ["rpc.Connect", "127.0.0.1", server.port, "board", False]
    remote = rpc.connect("127.0.0.1", middle.port, "middle", session_constructor_args=inner)
    assert function(remote, "apply")(lambda x: x + 1, 2) == 3
    big = np.ones(3_000_000, "float32")
    assert ekiden.nd.array(big, remote.cpu()).numpy().sum() == 3_000_000
    for wrong, message in ((["rpc.None"], "rpc.Connect"), ([*inner[:3], "x"], "not that of this")):
        with pytest.raises(rpc.RPCError, match=message):
            rpc.connect("127.0.0.1", middle.port, "middle", session_constructor_args=wrong)
    middle.terminate()


def test_server_ends_with_its_sessions() -> None:
    server = rpc.Server(port=0)
    session = rpc.connect("127.0.0.1", server.port)
    echo = function(session, "echo")
    assert echo(1) == 1
    server.terminate()
    with pytest.raises(rpc.RPCError, match="gone"):
        echo(1)
    with pytest.raises(rpc.RPCError, match="connect to"):
        rpc.connect("127.0.0.1", server.port)


def test_server_that_is_killed_takes_its_sessions_with_it() -> None:
    server = rpc.Server(port=0)
    session = rpc.connect("127.0.0.1", server.port)
    echo = function(session, "echo")
    os.kill(server.pid, signal.SIGKILL)
    server.wait()
    with pytest.raises(rpc.RPCError, match="gone"):
        while True:
            echo(1)
            time.sleep(0.02)


def test_callback_of_the_server_prepares_it() -> None:
    def prepare() -> None:
        ekiden.register_func("tests.rpc.prepared", lambda: "yes", override=True)

    server = rpc.Server(port=0, server_init_callback=prepare)
    assert rpc.connect("127.0.0.1", server.port).get_function("tests.rpc.prepared")() == "yes"
    server.terminate()
    assert ekiden.get_global_func("tests.rpc.prepared", True) is None


def test_remote_hosts_need_a_key() -> None:
    for host in ("0.0.0.0", "", "::"):
        with pytest.raises(InputError, match="without a key only this machine"):
            rpc.Server(host, port=0)
    with pytest.raises(InputError, match="without a key"):
        rpc.Tracker("0.0.0.0", port=0)
    with pytest.raises(InputError, match="cannot be had"):
        rpc.Server(port=0, no_fork=True)


def test_occupied_port_is_refused() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match="no port"):
            rpc.Server(port=port, port_end=port + 1)


def test_port_that_cannot_be_is_an_error_of_sessions() -> None:
    with pytest.raises(rpc.RPCError, match="connect to 127.0.0.1:70000"):
        rpc.connect("127.0.0.1", 70000)


def test_server_goes_on_where_a_session_cannot_begin(
    tmp_path: Path, functions_library: Path
) -> None:
    """Its library is not there at first."""
    server = rpc.Server(port=0, load_library=str(tmp_path / "late.so"))
    with pytest.raises(rpc.RPCError, match=r"no session: .*late\.so"):
        rpc.connect("127.0.0.1", server.port)
    shutil.copy(functions_library, tmp_path / "late.so")

    def is_open() -> bool:
        """Whether there is a session: one that began before may fail yet."""
        with suppress(rpc.RPCError), rpc.connect("127.0.0.1", server.port) as session:
            return session.get_function("tests.rpc.echo")(5) == 5
        return False

    wait_until(is_open)
    server.terminate()


def test_graph_is_created_in_a_session(remote: rpc.RPCSession, tmp_path: Path) -> None:
    """The oldest of TVM's ways: the text of the graph stays here, the kernels are there."""
    x, w = relay.var("x", shape=(2, 3)), relay.var("w", shape=(4, 3))
    weight = np.arange(12, dtype="float32").reshape(4, 3)
    function = relay.Function([x, w], relay.nn.relu(relay.nn.dense(x, w)))
    lib = relay.build(function, "llvm", params={"w": weight})
    text, kernels, params = lib
    kernels.export_library(tmp_path / "net.so")
    remote.upload(tmp_path / "net.so")
    there = remote.load_module("net.so")
    result = graph_executor.create(text, there, remote.cpu())
    data = np.ones((2, 3), "float32")
    result.set_input("x", ekiden.nd.array(data, remote.cpu()))
    result.run()
    np.testing.assert_array_equal(result.get_output(0).numpy(), data @ weight.T)
    result.set_input(**{name: np.zeros_like(value.numpy()) for name, value in params.items()})
    result.run()
    assert not result.get_output(0).numpy().any()
    for device in (None, [remote.cpu()]):
        graph_executor.create(text, there, device).run()  # type: ignore[arg-type]
    for wrong in (ekiden.cpu(), "cpu", [remote.cpu(), ekiden.cpu()]):
        with pytest.raises(InputError, match=r"a device of the library's session, got cpu"):
            graph_executor.create(text, there, wrong)  # type: ignore[arg-type]
    with pytest.raises(LoadError):
        graph_executor.create('{"nodes": 3}', there, remote.cpu())
