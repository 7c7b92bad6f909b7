"""Mutations of inputs: bytes, texts of numbers and JSON, by seeded generators."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

EDGES = (2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**40, 2**59, 2**61, 2**62, 2**63)
EXTREMES = (
    *(sign * edge + step for edge in EDGES for sign in (1, -1) for step in (-1, 0, 1)),
    *(-(-(2**64) // part) for part in (3, 5, 6, 7)),
    *(2**64 // 3, 2**63 // 3),
    2**63 - 4000,  # 2 * it is -8000 modulo 2**64
)
"""Numbers whose products with small ones, or sums with each other, leave int32 or int64."""
SMALL = (-3, -2, -1, 0, 1, 2, 3, 5, 7, 64)
WORDS = ("", "x", "\0", "é", "\ud800", "a" * 300, "NaN", "float32", "../x", "main")


def extreme(rng: Random, bits: int = 64) -> int:
    """Return an extreme number that fits into a signed integer, sometimes a small one."""
    if rng.random() < 0.25:
        return rng.choice(SMALL)
    return rng.choice(_extremes_of(bits))


@cache
def _extremes_of(bits: int) -> list[int]:
    return [n for n in EXTREMES if -(2 ** (bits - 1)) <= n < 2 ** (bits - 1)]


def mutate_bytes(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """Return bytes with one to four changes."""
    changed = bytearray(data)
    for _ in range(1 + rng.randrange(4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0 if changed:
                changed[at % len(changed)] ^= 1 << rng.randrange(8)
            case 1 if changed:
                changed[at % len(changed)] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                )
            case 2:
                width = rng.choice((1, 2, 4, 8))
                number = extreme(rng, 8 * width) % (1 << (8 * width))
                at -= at % width if rng.random() < 0.8 else 0
                changed[at : at + width] = number.to_bytes(width, "little")
            case 3:
                del changed[at:]
            case 4:
                del changed[at : at + rng.choice((1, 2, 4, 8, 64))]
            case 5:
                source = rng.choice([data, *others])
                begin = rng.randrange(len(source) + 1)
                changed[at:at] = source[begin : begin + rng.choice((1, 4, 16, 256))]
            case _:
                changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
    return bytes(changed)


def mutate_numbers(text: str, rng: Random) -> str:
    """Return a text in which one or two of its whole numbers are others."""
    for _ in range(1 + (rng.random() < 0.3)):
        numbers = list(re.finditer(r"-?\d+", text))
        if not numbers:
            return text
        number = rng.choice(numbers)
        text = text[: number.start()] + str(extreme(rng)) + text[number.end() :]
    return text


def _leaf(rng: Random) -> object:
    return rng.choice((None, True, False, extreme(rng), rng.choice(WORDS), 0.5, -1e308, math.inf,
                       [], {}, [[]], [extreme(rng)] * 3, {"x": 1}))  # fmt: skip


def mutate_json(value: Any, rng: Random) -> Any:  # noqa: ANN401
    """Return a copy of a value of JSON with one to three changes somewhere inside."""
    root = [json.loads(json.dumps(value))]
    for _ in range(1 + rng.randrange(3)):
        holder, key = _place(root, rng)
        match rng.randrange(6):
            case 0 | 1 | 2:
                holder[key] = _leaf(rng)
            case 3 if holder is not root:
                del holder[key]
            case 4 if isinstance(holder[key], list) and holder[key]:
                holder[key] = holder[key] * rng.choice((2, 3))
            case _ if isinstance(holder, dict):
                holder[rng.choice(WORDS)] = holder[key]
    return root[0]


def _place(root: list[Any], rng: Random) -> tuple[Any, Any]:
    """Return a container and a key of it, deeper ones less often."""
    holder, key = root, 0
    while rng.random() < 0.85:
        inner = holder[key]
        keys = (
            list(inner)
            if isinstance(inner, dict)
            else range(len(inner))
            if isinstance(inner, list)
            else ()
        )
        if not keys:
            break
        holder, key = inner, rng.choice(keys)
    return holder, key


def json_text(value: object) -> str:
    """Return JSON as others write it: with NaN and infinities, and lone surrogates escaped."""
    return json.dumps(value)
