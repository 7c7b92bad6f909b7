"""Decompression of request bodies (gzip, deflate) within their limit, in steps that yield to the
event loop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from ekiden.runtime.errors import RequestError

__all__ = ["CONTENT_ENCODINGS", "decompress_body"]

_ZLIB_WINDOW_BITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
"""Encoding -> what zlib calls its container; "deflate" is zlib's (RFC 9110, 8.4.1.2)."""
CONTENT_ENCODINGS = frozenset(_ZLIB_WINDOW_BITS)
DECOMPRESSION_STEP_BYTES = 256 << 10
"""Bytes that are decompressed at once: about a millisecond, after which the event loop goes on."""
INPUT_STEP_BYTES = 64 << 10
"""Compressed bytes that zlib reads at once: blocks without content give no output, so that a bound
of the output alone bounds no time; and zlib copies the input that it has not consumed."""


async def decompress_body(
    body: bytes | bytearray, encoding: bytes, max_bytes: int, hold: Callable[[int], None]
) -> bytearray:
    """Return a decompressed body.

    Args:
        body: The bytes as they arrived.
        encoding: One of CONTENT_ENCODINGS.
        max_bytes: The most bytes of the result; a few compressed ones can expand a thousandfold.
        hold: Called with the number of bytes of each step.

    Raises RequestError for a result that is too large, and data that is damaged, cut short or
    followed by other data.
    """
    stream = zlib.decompressobj(_ZLIB_WINDOW_BITS[encoding])
    decompressed = bytearray()
    at = 0
    while at < len(body) and not stream.eof:
        compressed: bytes | memoryview = memoryview(body)[at : at + INPUT_STEP_BYTES]
        at += len(compressed)
        # The stream may hold output when all input is consumed, so an empty tail is no end.
        is_full = True
        while (compressed or is_full) and not stream.eof:
            try:
                step = stream.decompress(compressed, DECOMPRESSION_STEP_BYTES)
            except zlib.error:
                raise RequestError(f"the body: no data of {encoding.decode()}") from None
            if len(decompressed) + len(step) > max_bytes:
                raise RequestError(f"the body: at most {max_bytes} bytes expected", "too_large")
            hold(len(step))
            decompressed += step
            compressed, is_full = stream.unconsumed_tail, len(step) == DECOMPRESSION_STEP_BYTES
            await asyncio.sleep(0)
    if not stream.eof or stream.unused_data or at < len(body):
        raise RequestError(f"the body: one whole stream of {encoding.decode()} expected")
    return decompressed
