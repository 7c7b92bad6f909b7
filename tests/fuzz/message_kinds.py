"""What comes by a network: requests over HTTP and gRPC, TLS handshakes, first messages to servers
and proxies."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from random import Random
from typing import Any

from case_kinds import Kind, Loader, case_folder
from mutation import json_text, mutate_bytes, mutate_json

from ekiden import rpc
from ekiden.rpc.hub import HubPeer
from ekiden.rpc.messages import (
    DEFAULT_MAX_FRAME_BYTES,
    FRAME_HEADER_BYTES,
    MAX_HELLO_BYTES,
    PROTOCOL_MAGIC,
    PROTOCOL_VERSION,
)
from ekiden.rpc.messages import Kind as Message
from ekiden.rpc.services import receive_hello
from ekiden.rpc.tls_keys import Key, wrap_server_socket
from ekiden.rpc.wire_format import NoHandles, parse_body, parse_header, serialize_frame

MOST = 1 << 26

INFER = {
    "id": "1", "parameters": {"priority": 1, "timeout": 100, "binary_data_output": False},
    "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]},
               {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}],
    "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
}  # fmt: skip


def _http() -> tuple[Any, Loader]:
    from ekiden.serve.http_messages import parse_infer_request

    def make(rng: Random) -> tuple[bytes, str]:
        body = json_text(mutate_json(INFER, rng)).encode("utf-8", "surrogatepass")
        if rng.random() < 0.4:
            body = mutate_bytes(body, rng)
        return body, rng.choice(("", "", str(len(body)), "0", "-1", "99999999999999999999", "12"))

    def load(case: tuple[bytes, str]) -> None:
        parse_infer_request("m", "", case[0], case[1], MOST)

    return make, load


CHAT = {
    "model": "m", "messages": [{"role": "user", "content": "x"}], "stream": False, "max_tokens": 4,
    "temperature": 0.5, "top_p": 0.9, "seed": 1, "stop": ["a", "b"],
    "stream_options": {"include_usage": True}, "n": 1,
    "logprobs": True, "top_logprobs": 2, "logit_bias": {"5": 1.5}, "presence_penalty": 0.5,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
}  # fmt: skip


def _chat() -> tuple[Any, Loader]:
    from ekiden.serve.bounded_json import parse_bounded_object
    from ekiden.serve.openai_requests import parse_chat_request

    def make(rng: Random) -> bytes:
        body = json_text(mutate_json(CHAT, rng)).encode("utf-8", "surrogatepass")
        return mutate_bytes(body, rng) if rng.random() < 0.3 else body

    def load(case: bytes) -> None:
        fields = parse_bounded_object(case)
        if isinstance(fields, dict):
            parse_chat_request(fields)

    return make, load


def _grpc() -> tuple[Any, Loader]:
    from ekiden.serve.grpc_messages import create_message, parse_request  # an extra

    row = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    inside = create_message("ModelInferRequest", model_name="m", id="1",
                            inputs=[{**row, "contents": {"fp32_contents": [1.0] * 4}}])  # fmt: skip
    raw = create_message(
        "ModelInferRequest", model_name="m", inputs=[row], raw_input_contents=[b"\0" * 16]
    )
    many = {**row, "shape": [1, 9000], "contents": {"fp32_contents": [1.0] * 9000}}
    long = create_message("ModelInferRequest", model_name="m", inputs=[many])
    corpus = [bytes(item.SerializeToString()) for item in (inside, raw, long)]

    def make(rng: Random) -> bytes:
        return mutate_bytes(rng.choice(corpus), rng, corpus[:2])

    def load(case: bytes) -> None:
        parse_request(case, MOST)

    return make, load


# Sessions.


def _frames() -> list[bytes]:
    hello = serialize_frame(
        Message.HELLO,
        (PROTOCOL_MAGIC, PROTOCOL_VERSION, DEFAULT_MAX_FRAME_BYTES, 1000, "server:a", []),
        NoHandles(),
    )
    client = serialize_frame(
        Message.HELLO,
        (PROTOCOL_MAGIC, PROTOCOL_VERSION, DEFAULT_MAX_FRAME_BYTES, 0, "client:a", ["x", 1, b"y"]),
        NoHandles(),
    )
    return [bytes(hello), bytes(client)]


def _hello() -> tuple[Any, Loader]:
    corpus = _frames()

    def make(rng: Random) -> bytes:
        return mutate_bytes(rng.choice(corpus), rng, corpus)

    def load(case: bytes) -> None:
        result, reference = socket.socketpair()
        with result, reference:
            reference.sendall(case[: 1 << 16])
            reference.shutdown(socket.SHUT_WR)
            receive_hello(result, 20)

    return make, load


def _frame_bodies() -> tuple[Any, Loader]:
    corpus = _frames()

    def make(rng: Random) -> bytes:
        data = bytearray(mutate_bytes(rng.choice(corpus), rng, corpus))
        if (
            rng.random() < 0.5 and len(data) > FRAME_HEADER_BYTES
        ):  # so that more than the head is looked at
            data[:4] = (len(data) - FRAME_HEADER_BYTES).to_bytes(4, "little")
            data[4] = rng.randrange(32)
        return bytes(data)

    def load(case: bytes) -> None:
        if len(case) >= FRAME_HEADER_BYTES:
            kind, size = parse_header(case, DEFAULT_MAX_FRAME_BYTES)
            parse_body(kind, case[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + size], NoHandles())

    return make, load


class _Silent:
    """A writer that hears nobody."""

    def write(self, data: bytes) -> None:
        """Drop what is written."""

    async def drain(self) -> None:
        """Wait for nothing."""


def _proxy() -> tuple[Any, Loader]:
    corpus = _frames()

    def load(case: bytes) -> None:
        async def talk() -> None:
            reader = asyncio.StreamReader(limit=MAX_HELLO_BYTES)
            reader.feed_data(case)
            reader.feed_eof()
            peer = HubPeer(reader, _Silent())  # type: ignore[arg-type]  # all that it uses
            try:
                await peer.receive_hello()
            except asyncio.IncompleteReadError:  # as whoever has gone; the proxy takes it
                return

        asyncio.run(talk())

    return lambda rng: mutate_bytes(rng.choice(corpus), rng, corpus), load


def _client_hello(key: Key) -> bytes:
    """Return the first flight of a client that has the key."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = key.tls_context(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def _tls() -> tuple[Any, Loader]:
    folder = case_folder()
    rpc.make_key(folder / "rpc.key")
    key = Key.read(folder / "rpc.key")
    logging.getLogger("ekiden.rpc").setLevel(logging.ERROR)
    seed = _client_hello(key)

    def make(rng: Random) -> bytes:
        return (
            mutate_bytes(seed, rng)
            if rng.random() < 0.95
            else bytes(rng.randrange(256) for _ in range(64))
        )

    def load(case: bytes) -> None:
        result, reference = socket.socketpair()
        with reference:
            reference.sendall(case)
            reference.shutdown(socket.SHUT_WR)
            wrap_server_socket(result, key).close()

    return make, load


KINDS = (
    Kind("http", "requests over HTTP (`http_messages.read_request`)", _http),
    Kind("chat", "requests for text (`chat.parse_chat_request`)", _chat, ("starlette",)),
    Kind("grpc", "requests over gRPC (`grpc_messages.parse_request`)", _grpc, ("google",)),
    Kind("hello", "first messages to a server of sessions", _hello),
    Kind("frames", "frames of a session", _frame_bodies),
    Kind("proxy", "first messages to a proxy", _proxy),
    Kind("tls", "TLS handshakes with a server of sessions", _tls),
)
