"""Helpers of schedule tests, by TVM's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ekiden import tir
from ekiden.ir.compare import assert_structural_equal
from ekiden.ir.module import IRModule
from ekiden.tir import script
from ekiden.tir.schedule.schedule import Schedule
from ekiden.tir.schedule.trace import Trace
from ekiden.tir.stmt import PrimFunc

TraceFormat = Literal["python", "json"]


def assert_structural_equal_ignore_global_symbol(
    func1: PrimFunc, func2: PrimFunc, map_free_vars: bool = False
) -> None:
    """Raise ValueError unless two functions are structurally equal up to their global symbols."""
    one, two = (func.with_attr("global_symbol", "main") for func in (func1, func2))
    assert_structural_equal(one, two, map_free_vars)


def verify_trace_roundtrip(
    sch: Schedule,
    mod: PrimFunc | IRModule,
    *,
    debug_mask: str | int = "all",
    text_format: TraceFormat | Sequence[TraceFormat] = ("python", "json"),
) -> Schedule:
    """Replay a schedule from its trace's text and JSON on the original program; return the last
    replay.

    Each primitive is checked as it is applied; `debug_mask` is accepted as in TVM. Raises
    ValueError where a replay yields another program or trace.
    """
    forms: Sequence[TraceFormat] = (text_format,) if isinstance(text_format, str) else text_format
    for form in forms:
        replayed = _replay_trace(sch, mod, form)
        assert_structural_equal(replayed.mod, sch.mod)
        if (old := sch.trace.as_python()) != (new := replayed.trace.as_python()):
            raise ValueError(f"trace: its {form} gives another\n{old}\n{new}")
    return replayed


def _replay_trace(sch: Schedule, mod: PrimFunc | IRModule, form: TraceFormat) -> Schedule:
    fresh = Schedule(mod)
    if form == "json":
        Trace.apply_json_to_schedule(sch.trace.as_json(), fresh)
    else:
        names = {**vars(tir), "sch": fresh, "T": script.T}
        exec("\n".join(sch.trace.as_python()), names)
    return fresh


__all__ = ["assert_structural_equal_ignore_global_symbol", "verify_trace_roundtrip"]
