"""Jobs and runners that crash, hang, leak and lie."""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Callable

from ekiden.tune import run_job
from ekiden.tune.job_messages import Head, Message

Tell = Callable[[Head], None]
SECONDS = 1e-4
"""Of the default, where a test says how long it takes."""


def ill(source: random.Random) -> str:
    """What goes wrong this time, in one of three."""
    kinds = ("crash", "hang", "leak", "raise", "garbage", "exit")
    return source.choice(kinds) if source.random() < 1 / 3 else ""


def suffer(kind: str) -> None:
    match kind:
        case "crash":
            ctypes.string_at(0)
        case "hang":
            time.sleep(3600)
        case "leak":
            kept = [bytearray(64 << 20) for _ in range(64)]
            raise AssertionError(f"{len(kept)} blocks beyond the limit of memory")
        case "raise":
            raise ValueError("something went wrong")
        case "garbage":
            os.write(1, b"\x00garbage" * 1000)
            os._exit(3)
        case "exit":
            os._exit(0)


def run(head: Head, parts: list[bytes], tell: Tell) -> Message:
    source = random.Random(f"{head['seed']} {os.getpid()}")
    suffer(ill(source))
    answer, more = run_job.job(head, parts, tell)
    results = answer["results"]
    assert isinstance(results, list)
    for result in results[1:]:
        lie = source.random()
        if "wrong" in result:
            result["ratio"] = result["seconds"] = 1e-9
        if lie < 0.1:
            result["ratio"] = result.get("ratio", 1.0) * 0.01
        elif lie < 0.15:
            result["ratio"] = float("nan")
        elif lie < 0.2:
            result["sample"] = [0.0] * len(result.get("sample", [1]))
    return answer, more


def crash(head: Head, parts: list[bytes], tell: Tell) -> Message:
    ctypes.string_at(0)
    raise AssertionError("unreachable")


def hang(head: Head, parts: list[bytes], tell: Tell) -> Message:
    time.sleep(3600)
    raise AssertionError("unreachable")


def leak(head: Head, parts: list[bytes], tell: Tell) -> Message:
    suffer("leak")
    raise AssertionError("unreachable")


def say(head: Head, parts: list[bytes], tell: Tell) -> Message:
    print("something on the way")
    tell({"at": 7})
    return {"got": [len(p) for p in parts], **head}, parts


def crash_second(head: Head, parts: list[bytes], tell: Tell) -> Message:
    """Of a batch of several, the second candidate ends the process."""
    if len(parts) > 2:
        tell({"at": 2})
        ctypes.string_at(0)
    return run_job.job(head, parts, tell)


def first_lies(head: Head, parts: list[bytes], tell: Tell) -> Message:
    """In a batch all are a hundred times as fast; alone none is."""
    answer, more = run_job.job(head, parts, tell)
    results = answer["results"]
    assert isinstance(results, list)
    for result in results[1:]:
        result["ratio"] = 0.01 if len(parts) > 2 else 1.0
    return answer, more


def wrong_results(head: Head, parts: list[bytes], tell: Tell) -> Message:
    """All are fast and agree with the default, and what they compute is something else."""
    answer, more = run_job.job(head, parts, tell)
    results = answer["results"]
    assert isinstance(results, list)
    for result in results[1:]:
        result["ratio"] = 0.5
        result["sample"] = [n + 100.0 for n in result["sample"]]
    return answer, more


def all_faster(head: Head, parts: list[bytes], tell: Tell) -> Message:
    """Every candidate takes half the time: what a search does must not depend on times."""
    answer, more = run_job.job(head, parts, tell)
    results = answer["results"]
    assert isinstance(results, list)
    results[0]["seconds"] = SECONDS
    for result in results[1:]:
        result["ratio"] = 0.5
    return answer, more


def faster_while_disturbed(head: Head, parts: list[bytes], tell: Tell) -> Message:
    """Every candidate takes half the time, and the default twice its own in processes that confirm:
    one candidate beside it alone."""
    answer, more = all_faster(head, parts, tell)
    results = answer["results"]
    assert isinstance(results, list)
    results[0]["seconds"] = SECONDS * (1 + (len(results) == 2))
    return answer, more
