"""What a worker does that compiles candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ekiden import te
from ekiden.runtime.errors import EkidenError
from ekiden.target import Target
from ekiden.tune.candidate import Candidate
from ekiden.tune.program import DEFAULT, Source, build
from ekiden.tune.wire import Head, Message


def job(head: Head, parts: list[bytes], tell: Callable[[Head], None]) -> Message:
    """{"target", "rule", "choice", "sizes": [{symbol: number}]}, texts of a source -> {"args",
    "outputs"}, its code; {"refused": why} for a candidate that there cannot be.
    """
    target = Target(str(head["target"]))
    candidate = Candidate(str(head["rule"]), str(head["choice"]))
    try:
        made = build(
            Source.read(parts), candidate, target, cast("list[dict[str, int]]", head["sizes"])
        )
    except EkidenError as error:
        return {"refused": f"{type(error).__name__}: {error}"}, []
    return {"args": made.args, "outputs": made.outputs}, [made.code]


def prepare() -> None:
    """What the first job would else do in its own time, and each again: code is generated once."""
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="b")
    source = Source(te.create_prim_func([a, b]))
    build(source, Candidate(DEFAULT), Target("llvm"), [{}])
