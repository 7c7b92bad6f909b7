"""Long messages are read and written in chunks between which the event loop runs."""

from __future__ import annotations

import asyncio
import ctypes
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from ekiden.runtime.errors import RequestError
from ekiden.serve import bounded_json, event_loop_yield, grpc_scan, json_tensors
from ekiden.serve.config import ServerConfig
from ekiden.serve.datatypes import DATATYPE_BY_NAME
from ekiden.serve.engine import ServingEngine
from ekiden.serve.event_loop_yield import yield_to_loop, yielding_to_loop
from ekiden.serve.http_messages import parse_infer_request

pytestmark = pytest.mark.quick

COUNT = 1 << 17
"""Values of the tensors, which are several chunks."""
FP32, INT64 = DATATYPE_BY_NAME["FP32"], DATATYPE_BY_NAME["INT64"]


class CountingLoop:
    """A loop that runs at once what it is given, and counts."""

    turns = 0

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        self.turns += 1
        callback(*args)


@pytest.fixture(autouse=True)
def _turn_at_each_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop_yield, "YIELD_INTERVAL_S", 0.0)


def _written() -> bytes:
    return b"".join(json_tensors.format_tensor("y", FP32, np.ones(COUNT, np.float32)))


LONG_TEXT = _written()
LONG_WORK: dict[str, Callable[[], object]] = {
    "scan": lambda: bounded_json.check_values(b"[" + b"1," * COUNT + b"1]", COUNT + 2),
    "JSON to tensor": lambda: json_tensors.parse_tensor("x", FP32, [COUNT], memoryview(LONG_TEXT)),
    "tensor to JSON": _written,
    "varints to tensor": lambda: grpc_scan.PackedContents(
        memoryview(grpc_scan.encode_bytes_field(3, b"\1" * COUNT))
    ).tensor("x", INT64, [COUNT]),
}


@pytest.mark.parametrize("name", LONG_WORK)
def test_loop_runs_between_the_chunks_of_a_long_message(name: str) -> None:
    loop = CountingLoop()
    with yielding_to_loop(cast(asyncio.AbstractEventLoop, loop)):
        LONG_WORK[name]()
    assert loop.turns >= 2


def test_reader_threads_yield_to_the_event_loop(tmp_path: Path) -> None:
    async def is_loop_run_by_its_reader() -> bool:
        loop, callbacks = asyncio.get_running_loop(), list[int]()

        def work() -> bool:
            loop.call_soon_threadsafe(callbacks.append, 1)
            yield_to_loop()
            return callbacks == [1]

        return await ServingEngine(tmp_path, ServerConfig()).run_on_reader(work)

    assert asyncio.run(is_loop_run_by_its_reader())


def test_closed_loop_is_not_waited_for() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with yielding_to_loop(loop):
        yield_to_loop()


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_parsing_a_long_body_takes_no_more_than_its_tensors(datatype: str) -> None:
    """Beside the body itself, whose size its tensors may not exceed."""
    count = 1 << 19
    head = b'{"inputs":[{"name":"x","shape":[%d],"datatype":"%s","data":['
    body = head % (count, datatype.encode()) + b",".join([b"1.25"] * count) + b"]}]}"
    tracemalloc.start()
    try:
        if datatype == "FP64":
            with pytest.raises(RequestError, match="the tensors are too large"):
                parse_infer_request("m", "", body, "", len(body))
        else:
            parse_infer_request("m", "", body, "", len(body))
        assert tracemalloc.get_traced_memory()[1] < len(body) + (2 << 20)
    finally:
        tracemalloc.stop()


GROWTH_PROGRAM = """
import ctypes, sys
from ekiden.serve.server import map_long_buffers

class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo
if sys.argv[1] == "mapped":
    map_long_buffers()
long = bytearray(31 << 20)
del long  # which raises the threshold of malloc
before = mallinfo2().hblks
bodies = [bytearray(2 << 20) for _ in range(8)]
print(mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_bodies_of_a_server_grow_without_copies() -> None:
    """A mapping of its own is moved by the kernel; a buffer in the heap would be copied."""
    counts = [
        int(subprocess.check_output([sys.executable, "-c", GROWTH_PROGRAM, how]))
        for how in ("heap", "mapped")
    ]
    assert counts == [0, 8]
