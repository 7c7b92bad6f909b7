"""Builders that crash, hang and leak."""

from __future__ import annotations

import ctypes
import os
import random

from hostile_jobs import Tell, ill, suffer

from ekiden.tune import build_job
from ekiden.tune.job_messages import Head, Message

prepare = build_job.prepare


def build(head: Head, parts: list[bytes], tell: Tell) -> Message:
    # the default is always built: nothing can be compared without it
    if head["choice"]:
        suffer(ill(random.Random(f"{head['choice']} {os.getpid()}")))
    return build_job.job(head, parts, tell)


def crash(head: Head, parts: list[bytes], tell: Tell) -> Message:
    ctypes.string_at(0)
    raise AssertionError("unreachable")
