"""Trackers and proxies: devices come and go, requests wait."""

import os
import random
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from rpc_functions import wait_until

from ekiden import rpc
from ekiden.rpc.handshake import HandshakeServer
from ekiden.rpc.messages import MAX_HELLO_BYTES, PROTOCOL_MAGIC, PROTOCOL_VERSION, Kind
from ekiden.rpc.tracker import TrackerSummary
from ekiden.rpc.wire_format import NoHandles, serialize_frame
from long_runs import sizes


@pytest.fixture
def tracker() -> Iterator[rpc.Tracker]:
    result = rpc.Tracker(port=0)
    yield result
    result.terminate()


@pytest.fixture
def client(tracker: rpc.Tracker) -> Iterator[rpc.TrackerSession]:
    with rpc.connect_tracker("127.0.0.1", tracker.port) as session:
        yield session


def device(tracker: rpc.Tracker, key: str = "board", **options: object) -> rpc.Server:
    where = (tracker.host, tracker.port)
    return rpc.Server(port=0, key=key, tracker_addr=where, **options)  # type: ignore[arg-type]


def until(client: rpc.TrackerSession, holds: Callable[[TrackerSummary], bool]) -> None:
    """Wait until what the tracker says holds."""
    wait_until(lambda: holds(client.summary()), client.text_summary)


def free(count: int, key: str = "board") -> Callable[[TrackerSummary], bool]:
    return lambda s: s["queue_info"].get(key, {"free": 0})["free"] == count


@pytest.mark.parametrize("key", ["board", "127.0.0.1:5555"])
def test_devices_register_and_leave(
    tracker: rpc.Tracker, client: rpc.TrackerSession, key: str
) -> None:
    one, two = device(tracker, key), device(tracker, key, custom_addr="elsewhere")
    until(client, free(2, key))
    addresses = [item["addr"] for item in client.summary()["server_info"]]
    assert sorted(map(str, addresses)) == sorted(
        map(str, (["127.0.0.1", one.port], ["elsewhere", two.port]))
    )
    assert f"server:{key}" in client.text_summary()
    two.terminate()
    until(client, free(1, key))
    session = client.request(key)
    until(client, free(0, key))
    assert session.get_function("tests.rpc.echo")(5) == 5
    session.close()
    until(client, free(1, key))
    one.terminate()
    until(client, lambda s: not s["server_info"])


def test_moved_device_is_found_at_new_address(client: rpc.TrackerSession) -> None:
    for port in (1, 2, 2):
        client._send_request(Kind.PUT, "board", "elsewhere", port, "match")
    assert [item["addr"] for item in client.summary()["server_info"]] == [["elsewhere", 2]]
    assert free(1)(client.summary())


def test_waiting_requests_are_served_by_priority(
    tracker: rpc.Tracker, client: rpc.TrackerSession
) -> None:
    order: list[int] = []

    def ask(priority: int) -> None:
        result = rpc.connect_tracker("127.0.0.1", tracker.port)
        with result, result.request("board", priority=priority):
            order.append(priority)

    threads = []
    for count, priority in enumerate((1, 5, 3), 1):
        threads.append(threading.Thread(target=ask, args=(priority,)))
        threads[-1].start()
        until(
            client, lambda s, n=count: s["queue_info"].get("board", {"pending": 0})["pending"] == n
        )  # type: ignore[misc]  # bound now
    server = device(tracker)
    for thread in threads:
        thread.join(30)
    assert order == [5, 3, 1]
    server.terminate()


def test_dead_client_leaves_the_queue(tracker: rpc.Tracker, client: rpc.TrackerSession) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            rpc.connect_tracker("127.0.0.1", tracker.port).request("board")
        finally:  # or an error would go on as a second run of the tests
            os._exit(0)
    until(client, lambda s: s["queue_info"].get("board", {"pending": 0})["pending"] == 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(client, lambda s: not s["queue_info"])  # nobody has put such a device


def test_unclaimed_device_is_reassigned(tracker: rpc.Tracker, client: rpc.TrackerSession) -> None:
    server = device(tracker)
    until(client, free(1))
    client._send_request(Kind.REQUEST, "board", 1)
    until(client, free(0))
    with client.request("board") as session:
        assert session.get_function("tests.rpc.echo")(1) == 1
    server.terminate()


def test_device_that_died_is_replaced(tracker: rpc.Tracker, client: rpc.TrackerSession) -> None:
    """One that cannot be reached is passed over; one that dies meanwhile is run on another."""
    bad = device(tracker, custom_addr="127.0.0.9")
    until(client, free(1))
    good = device(tracker)
    until(client, free(2))
    tried: list[int] = []

    def run(session: rpc.RPCSession) -> object:
        tried.append(1)
        return session.get_function("tests.rpc.echo")(len(tried))

    bad_port = bad.port  # nothing listens at 127.0.0.9: the server listens at 127.0.0.1
    assert bad_port and client.request_and_run("board", run) == 1
    good.terminate()
    bad.terminate()


def test_servers_reregister_after_tracker_restart() -> None:
    tracker = rpc.Tracker(port=0)
    port = tracker.port
    server = device(tracker)
    client = rpc.connect_tracker("127.0.0.1", port)
    until(client, free(1))
    tracker.terminate()
    tracker = rpc.Tracker(port=port, port_end=port + 1)
    again = rpc.connect_tracker("127.0.0.1", port)
    until(again, free(1))
    with again.request("board") as session:
        assert session.get_function("tests.rpc.echo")(1) == 1
    server.terminate()
    tracker.terminate()


def test_wrong_match_key_is_refused(tracker: rpc.Tracker, client: rpc.TrackerSession) -> None:
    server = device(tracker)
    until(client, free(1))
    with pytest.raises(rpc.RPCError, match="not that of this server"):
        rpc.connect("127.0.0.1", server.port, "board:0000000000000000")
    server.terminate()


def test_sessions_through_a_proxy(tracker: rpc.Tracker, client: rpc.TrackerSession) -> None:
    proxy = rpc.Proxy(port=0, tracker_addr=(tracker.host, tracker.port))
    servers = [rpc.Server(proxy.host, proxy.port, key="far", is_proxy=True) for _ in range(2)]
    until(client, free(2, "far"))
    one, two = (client.request("far", session_timeout=30) for _ in range(2))
    assert one.get_function("tests.rpc.echo")("1") == "1"
    assert two.get_function("tests.rpc.adder")(1)(2) == 3
    until(client, free(0, "far"))
    one.close()
    until(client, free(1, "far"))
    with rpc.connect(proxy.host, proxy.port, "far") as direct:
        assert direct.get_function("tests.rpc.echo")(3) == 3
    with pytest.raises(rpc.RPCSessionTimeoutError):  # which may end before it is open
        session = client.request("far", session_timeout=0.4)
        while True:
            session.get_function("tests.rpc.echo")
    for item in servers:
        item.terminate()
    until(client, lambda s: not s["server_info"])
    proxy.terminate()


def test_client_ends_when_its_server_fails_before_it_answers() -> None:
    """The server takes the client and resets the connection instead of answering."""
    proxy = rpc.Proxy(port=0)
    address = (proxy.host, proxy.port)

    def hello(key: str) -> bytes:
        fields = (PROTOCOL_MAGIC, PROTOCOL_VERSION, MAX_HELLO_BYTES, 0, key, ())
        return serialize_frame(Kind.HELLO, fields, NoHandles())

    with socket.create_connection(address) as server, socket.create_connection(address) as client:
        server.sendall(hello("server:far"))
        client.sendall(hello("far"))
        assert server.recv(1)  # the client's HELLO: both are matched
        # A linger time of 0 resets the connection, so that reading raises at the proxy.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
        client.settimeout(60)
        assert client.recv(1) == b""
    proxy.terminate()


def test_accepted_client_resets_idle_timer() -> None:
    door = HandshakeServer(None)
    hello = (PROTOCOL_MAGIC, PROTOCOL_VERSION, MAX_HELLO_BYTES, 0, "far", ())
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        client.sendall(serialize_frame(Kind.HELLO, hello, NoHandles()))
        door.start_handshake(server, is_known=True)
        # The wake-up is written after the handshake's thread has forgotten the connection.
        select.select([door.wake], [], [])
        assert door.is_busy
        assert [heard.key for heard in door.take_completed()] == ["far"]
        assert not door.is_busy


def descriptors(tracker: rpc.Tracker) -> int:
    return len(os.listdir(f"/proc/{tracker.pid}/fd"))


class Fleet:
    """A tracker and two devices of it, each of which may be killed; then there is another."""

    def __init__(self) -> None:
        self.tracker = rpc.Tracker(port=0)
        self.port = self.tracker.port
        self.devices = [device(self.tracker) for _ in range(2)]

    def kill_tracker(self) -> None:
        os.kill(self.tracker.pid, signal.SIGKILL)
        self.tracker.terminate()
        self.tracker = rpc.Tracker(port=self.port, port_end=self.port + 1)

    def kill_device(self, at: int) -> None:
        os.kill(self.devices[at].pid, signal.SIGKILL)
        self.devices[at].terminate()
        self.devices[at] = device(self.tracker)

    def use(self, rng: random.Random) -> None:
        """A session, at whose end the client is gone, or a device, or the tracker, or none."""
        with rpc.connect_tracker("127.0.0.1", self.port) as client:
            session = client.request("board", session_timeout=20)
            assert session.get_function("tests.rpc.echo")(5) == 5
            match rng.randrange(5):
                case 0:
                    session._endpoint.channel.stream.sendall(rng.randbytes(7))
                case 1:
                    self.kill_device(rng.randrange(2))
                case 2:
                    self.kill_tracker()
                case 3:
                    client.close()
            session.close()

    def terminate(self) -> None:
        for item in (*self.devices, self.tracker):
            item.terminate()


@sizes("turns", 12, 300)
def test_devices_and_trackers_are_killed_at_random(turns: int) -> None:
    fleet, rng = Fleet(), random.Random(0)
    fresh = descriptors(fleet.tracker)  # with what a process here is born with
    here = len(os.listdir("/proc/self/fd"))
    for _ in range(turns):
        try:
            fleet.use(rng)
        except rpc.RPCError:  # what it was with was killed meanwhile
            continue
    with rpc.connect_tracker("127.0.0.1", fleet.port) as client:
        until(client, free(2))
        until(client, lambda s: s["queue_info"]["board"]["pending"] == 0)
        addresses = sorted(item["addr"][1] for item in client.summary()["server_info"])  # type: ignore[index]
        assert addresses == sorted(item.port for item in fleet.devices)
        with client.request("board") as one, client.request("board") as other:
            assert one.get_function("tests.rpc.echo")(1) == 1
            assert other.get_function("tests.rpc.echo")(2) == 2
            assert descriptors(fleet.tracker) < fresh + 16
    fleet.terminate()
    assert len(os.listdir("/proc/self/fd")) <= here
