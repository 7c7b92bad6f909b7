"""Worker process of the tuner, which runs each job in a fork of itself: what crashes, hangs or
leaks there is gone with it, and the next job need not import anything.

`python -m ekiden.tune.worker MODULE` reads jobs from standard input, each for one of the module's
functions, and writes replies to standard output. It ends when its standard input does, whatever its
job is at.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from ekiden.rpc.sandbox import set_parent_death_signal
from ekiden.tune.job_messages import Head, Message, MessageReader, send_message

ProgressCallback: TypeAlias = Callable[[Head], None]
Job: TypeAlias = Callable[[Head, list[bytes], ProgressCallback], Message]
"""Function (request, blobs, progress callback) -> (reply, blobs)."""
JOB_IDLE_TIMEOUT_S = 60.0
"""Seconds without a job after which a worker exits."""
MAX_JOB_OUTPUT_CHARS = 2000
"""Maximum number of characters of job output in a message."""


def _run_in_child(job: Job, message: Message, to: int, memory: int) -> None:
    """Run a job in the forked child, and exit."""
    try:
        if memory:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + memory
            # Relative to what the worker already maps: the limit is the job's own memory.
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        head, blobs = job(*message, lambda news: send_message(to, {"news": news}))
        send_message(to, {"answer": head}, blobs)
    except MemoryError:
        send_message(to, {"error": "MemoryError", "message": "out of memory"})
    except BaseException as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        message_text = f"{error} ({notes})" if notes else str(error)
        send_message(
            to, {"error": type(error).__name__, "message": message_text[:MAX_JOB_OUTPUT_CHARS]}
        )


def _run_in_fork(job: Job, message: Message, requests: int, replies: int) -> Message | None:
    """Run a job in a fork and return its reply; None if the requester is gone."""
    seconds, memory = float(str(message[0].pop("seconds"))), int(str(message[0].pop("memory")))
    source, to = os.pipe()
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            try:
                # A process group of its own, so that everything the job starts is killed with it.
                os.setpgid(0, 0)
                set_parent_death_signal()
                os.close(source)
                os.close(replies)  # who asked sees its end when this process's parent is gone
                # A job's prints must not mix with the messages on the worker's standard output.
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                _run_in_child(job, message, to, memory)
            finally:
                os._exit(0)
        os.close(to)
        head, blobs = _collect_reply(source, requests, time.monotonic() + seconds)
        os.close(source)
        _kill_job(pid)
        if head is None:
            return None
        output.seek(0)
        head["said"] = output.read(MAX_JOB_OUTPUT_CHARS).decode(errors="replace")
        return head, blobs


def _collect_reply(source: int, requests: int, until: float) -> tuple[Head | None, list[bytes]]:
    """Collect a job's messages until it ends or its time is up."""
    reader = MessageReader(source)
    news: list[object] = []
    while True:
        ready, _, _ = select.select([source, requests], [], [], max(0.0, until - time.monotonic()))
        # Requests come one at a time, so readable here means that the requester has closed its end.
        if requests in ready:
            return None, []
        try:
            received = reader.receive(until)
        except TimeoutError:
            return {"error": "timeout", "news": news}, []
        if received is None:
            return {"error": "crash", "news": news}, []
        head, blobs = received
        if "news" not in head:
            return {**head, "news": news}, blobs
        news.append(head["news"])


def _kill_job(pid: int) -> None:
    """Kill a job, whatever it is doing."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _next_job(reader: MessageReader) -> Message | None:
    """Return the next job; None if there are no more, or none arrived for a long time: an executor
    on another machine may keep the requesting process alive for other programs.
    """
    try:
        return reader.receive(time.monotonic() + JOB_IDLE_TIMEOUT_S)
    except TimeoutError:
        return None


def serve(name: str) -> None:
    """Run jobs until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: there are none
    # Moved away from 0 and 1, which jobs may read from and print to.
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    home = import_module(name)
    getattr(home, "prepare", lambda: None)()
    send_message(replies, {"ready": os.getpid()})
    reader = MessageReader(requests)
    while (message := _next_job(reader)) is not None:
        job: Job = getattr(home, str(message[0].pop("function")))
        reply = _run_in_fork(job, message, requests, replies)
        if reply is None:
            return
        send_message(replies, *reply)


if __name__ == "__main__":
    serve(sys.argv[1])
