"""Malformed frames give a FrameError, without allocation of announced sizes."""

import random
import socket
import struct
import tracemalloc
from collections.abc import Callable

import pytest

import ekiden
from ekiden import rpc
from ekiden.rpc.messages import (
    DEFAULT_MAX_FRAME_BYTES,
    FIELD_TYPES,
    MAX_HELLO_BYTES,
    MESSAGES,
    PROTOCOL_MAGIC,
    PROTOCOL_VERSION,
    SESSION_KINDS,
    VALUE_TYPES,
    Kind,
    ValueTag,
)  # fmt: skip
from ekiden.rpc.wire_format import (
    NoHandles,
    RemoteTensorType,
    parse_body,
    parse_header,
    serialize_frame,
)
from ekiden.runtime import ADT, DataType, Shape

ONE_OF_EACH = [
    None, 5, True, 2.5, DataType("int8"), ekiden.cpu(), "text", b"bytes", Shape((1, 2)),
    ["a", [1]], {"k": 1}, ADT(3, (1,)), (1, 2),
]  # fmt: skip
SAMPLES = {
    "u": 7, "q": PROTOCOL_MAGIC, "i": -1, "h": 1, "s": "name", "b": b"data", "v": ONE_OF_EACH,
    "t": RemoteTensorType((ekiden.cpu(), "float32", (2, 3))), "V": ONE_OF_EACH, "H": [1, 2],
}  # fmt: skip


def sample(kind: Kind) -> bytes:
    return bytes(
        serialize_frame(kind, [SAMPLES[letter] for letter in MESSAGES[kind].fields], NoHandles())
    )


@pytest.mark.parametrize("kind", Kind)
def test_every_message_is_read_as_it_was_written(kind: Kind) -> None:
    frame = sample(kind)
    assert parse_header(frame[:8], MAX_HELLO_BYTES) == (kind, len(frame) - 8)
    result = parse_body(kind, frame[8:], NoHandles())
    assert serialize_frame(kind, result, NoHandles()) == frame


def test_message_tables_are_complete() -> None:
    assert set(MESSAGES) == set(Kind) and set(VALUE_TYPES) == set(ValueTag)
    assert set(SAMPLES) == set(FIELD_TYPES)
    for row in MESSAGES.values():
        assert len(row.fields) == len(row.names.split()) and row.meaning


def u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


VALUE_CASES = {
    "an unknown tag": b"\x63",
    "no tag": b"",
    "a short number": b"\x01" + bytes(7),
    "a third truth": b"\x02\x02",
    "text that is too long": b"\x41" + u32(2**32 - 1),
    "text that is none": b"\x41" + u32(1) + b"\xff",
    "many items": b"\x47" + u32(2**31),
    "many pairs": b"\x48" + u32(2**31),
    "many sizes": b"\x45" + u32(2**29),
    "many fields": b"\x81" + u32(0, 2**31),
    "depth": (b"\x47" + u32(1)) * 1000 + b"\x00",
    "depth of pairs": (b"\x48" + u32(1)) * 1000 + b"\x00",
    "depth of fields": (b"\x81" + u32(0, 1)) * 1000 + b"\x00",
    "a key that is none": b"\x48" + u32(1) + b"\x47" + u32(0) + b"\x00",
    "an array in a key": b"\x48" + u32(1) + b"\x81" + u32(0, 1) + b"\x47" + u32(0) + b"\x00",
    "a handle nobody has": b"\x4a" + bytes(8),
    "a dtype that is none": b"\x05\x63\x08\x01\x00",
    "bits that are none": b"\x05\x02\x09\x01\x00",
    "too much": b"\x00\x00",
    "a rank": b"\x46" + bytes(8) + struct.pack("<iiBBHI", 1, 0, 2, 32, 1, 65) + bytes(65 * 8),
    "a size": b"\x46" + bytes(8) + struct.pack("<iiBBHIq", 1, 0, 2, 32, 1, 1, -1),
}


@pytest.mark.parametrize("name", VALUE_CASES)
def test_invalid_values_are_frame_errors(name: str) -> None:
    tracemalloc.start()
    with pytest.raises(rpc.FrameError):
        parse_body(Kind.RETURN, VALUE_CASES[name], NoHandles())
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "head",
    [
        bytes(8), b"\1\0\0\0\0\0\0\0", u32(1) + b"\x63\0\0\0", u32(10) + b"\2\0\1\0",
        u32(2**32 - 1) + b"\2\0\0\0", u32(1) + b"\2\0\0\0",
        u32(DEFAULT_MAX_FRAME_BYTES + 1) + b"\2\0\0\0",
    ],
)  # fmt: skip
def test_invalid_headers_are_frame_errors(head: bytes) -> None:
    with pytest.raises(rpc.FrameError):
        parse_header(head, DEFAULT_MAX_FRAME_BYTES)


def mutate(rng: random.Random, frame: bytes) -> bytes:
    """A frame with some bytes changed, put in, taken out, or the head of another."""
    result = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(result) + 1)
        match rng.randrange(5):
            case 0 if at < len(result):
                result[at] = rng.randrange(256)
            case 1:
                result[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                del result[at : at + rng.randrange(1, 9)]
            case 3 if at + 4 <= len(result):
                result[at : at + 4] = rng.choice(
                    (b"\xff" * 4, bytes(4), b"\0\0\0\x80", b"\0\1\0\0")
                )
            case 4:
                result[at:] = b""
    return bytes(result)


def count_refused(count: int, seed: int) -> int:
    """How many of so many mutated bodies are refused; any other error fails."""
    rng = random.Random(seed)
    frames = [(kind, sample(kind)) for kind in Kind]
    refused = 0
    for _ in range(count):
        kind, frame = rng.choice(frames)
        try:
            parse_body(kind, mutate(rng, frame[8:]), NoHandles())
        except rpc.FrameError:
            refused += 1
    return refused


def test_mutated_bodies_are_parsed_or_refused() -> None:
    assert 10_000 < count_refused(20_000, 0) < 20_000


@pytest.mark.long
def test_million_mutated_bodies_are_parsed_or_refused() -> None:
    assert count_refused(1_000_000, 1) > 500_000


HELLO = bytes(
    serialize_frame(
        Kind.HELLO,
        (PROTOCOL_MAGIC, PROTOCOL_VERSION, DEFAULT_MAX_FRAME_BYTES, 0, "board", ()),
        NoHandles(),
    )
)


def talk(port: int, *frames: bytes) -> bytes:
    """What a server says to bytes, until it ends or waits for more."""
    with socket.create_connection(("127.0.0.1", port), 60) as stream:
        result = b""
        try:
            for frame in frames:
                stream.sendall(frame)
            stream.shutdown(socket.SHUT_WR)
            while piece := stream.recv(1 << 16):
                result += piece
        except OSError:  # it had enough
            pass
        return result


def drive(port: int, count: int, seed: int, said: Callable[[bytes], None]) -> None:
    """Sessions of mutated messages."""
    rng = random.Random(seed)
    kinds = [sample(kind) for kind in (*SESSION_KINDS, Kind.HELLO, Kind.RETURN, Kind.ERROR)]
    for i in range(count):
        first = mutate(rng, HELLO) if i % 4 == 0 else HELLO
        said(talk(port, first, *(mutate(rng, rng.choice(kinds)) for _ in range(5))))


def test_server_lives_through_mutated_sessions(server: rpc.Server) -> None:
    answers: list[bytes] = []
    drive(server.port, 40, 0, answers.append)
    assert any(a[4:5] == bytes([Kind.HELLO]) for a in answers)
    with rpc.connect("127.0.0.1", server.port, "board") as session:
        assert session.get_function("tests.rpc.echo")(1) == 1


@pytest.mark.parametrize(
    "frame",
    [sample(Kind.RETURN), sample(Kind.PUT), HELLO, b"GET / HT"],
)
def test_unexpected_messages_end_the_session(server: rpc.Server, frame: bytes) -> None:
    result = talk(server.port, HELLO, frame)
    at = 8 + struct.unpack_from("<I", result)[0]
    assert result[4] == Kind.HELLO and result[at + 4] == Kind.ERROR
    assert b"FrameError" in result[at:]


def test_silent_clients_do_not_block_others(server: rpc.Server) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
    with rpc.connect("127.0.0.1", server.port, "board") as session:
        assert session.get_function("tests.rpc.echo")(1) == 1
    for item in silent:
        item.close()
