"""Build job of a worker process, which compiles candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ekiden import te
from ekiden.runtime.errors import EkidenError
from ekiden.target import Target
from ekiden.tune.candidate import Candidate
from ekiden.tune.job_messages import Head, Message
from ekiden.tune.program import DEFAULT_RULE_NAME, TaskSource, build_candidate


def job(head: Head, blobs: list[bytes], tell: Callable[[Head], None]) -> Message:
    """Compile a candidate: {"target", "rule", "choice", "sizes": [{symbol: number}]} and the
    source's texts give {"args", "outputs"} and the code, or {"refused": reason} for an invalid
    candidate.
    """
    target = Target(str(head["target"]))
    candidate = Candidate(str(head["rule"]), str(head["choice"]))
    try:
        built = build_candidate(
            TaskSource.read(blobs), candidate, target, cast("list[dict[str, int]]", head["sizes"])
        )
    except EkidenError as error:
        return {"refused": f"{type(error).__name__}: {error}"}, []
    return {"args": built.args, "outputs": built.outputs}, [built.code]


def prepare() -> None:
    """Compile a trivial program once, so that the first job does not pay for one-time code
    generation.
    """
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] + 1.0, name="b")
    source = TaskSource(te.create_prim_func([a, b]))
    build_candidate(source, Candidate(DEFAULT_RULE_NAME), Target("llvm"), [{}])
