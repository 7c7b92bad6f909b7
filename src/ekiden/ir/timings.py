"""Compilation time profile: passes and phases of all processes as a table, JSON or a flame chart.

    timings = Timings()
    with PassContext(instruments=[timings]):
        ekiden.compile(model)
    print(timings.table())

The name of a phase is its kind, or `kind: thing` ("kernel: fused_add"): the table adds up by kinds,
the flame chart shows the things.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import field

from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import PassInfo, PassInstrument
from ekiden.runtime.lazy_dataclass import dataclass

SPEEDSCOPE_SCHEMA_URL = "https://www.speedscope.app/file-format-schema.json"


@dataclass(slots=True)
class TimedSpan:
    """Timed run of a pass or phase: start and end on the wall clock, CPU seconds of its process,
    nested runs.
    """

    name: str
    start: float
    end: float = 0.0
    cpu_seconds: float = 0.0
    children: list[TimedSpan] = field(default_factory=list)


@dataclass(slots=True)
class TimingRow:
    """Profile table entry: path in the call tree, calls, wall and CPU seconds, own CPU seconds."""

    path: tuple[str, ...]
    num_calls: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    own_cpu_seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """Return the row as a JSON dictionary."""
        return {"phase": list(self.path), "calls": self.num_calls, "wall_s": self.wall_seconds,
                "cpu_s": self.cpu_seconds, "own_cpu_s": self.own_cpu_seconds}  # fmt: skip


class Timings(PassInstrument):
    """Pass instrument that times passes and phases in this process and its workers."""

    def __init__(self) -> None:
        self.spans_by_process: dict[int, list[TimedSpan]] = {os.getpid(): []}
        """Spans of each process in order, this process first."""
        self._owner_pid = os.getpid()
        self._open_spans: list[TimedSpan] = []

    def run_before_pass(self, module: IRModule, info: PassInfo) -> None:
        """Start the pass's timers."""
        self.enter_phase(info.name)

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Stop the pass's timers."""
        self.exit_phase(info.name)

    def enter_phase(self, name: str) -> None:
        """Start the phase's timers."""
        # The CPU clock is kept negative until the end adds its reading.
        span = TimedSpan(name, time.perf_counter(), cpu_seconds=-time.process_time())
        self._current_spans().append(span)
        self._open_spans.append(span)

    def exit_phase(self, name: str) -> None:
        """Stop the phase's timers, and those nested in it that an exception left open."""
        while self._open_spans:
            span = self._open_spans.pop()
            span.end, span.cpu_seconds = time.perf_counter(), span.cpu_seconds + time.process_time()
            if span.name == name:
                return

    def add(self, name: str, wall: float, cpu: float) -> None:
        """Record an externally measured run that ended just now, such as the program's start-up."""
        ended = time.perf_counter()
        self._current_spans().append(TimedSpan(name, ended - wall, ended, cpu))

    def _current_spans(self) -> list[TimedSpan]:
        return (
            self._open_spans[-1].children
            if self._open_spans
            else self.spans_by_process[self._owner_pid]
        )

    def for_worker(self) -> Timings:
        """Return an empty instrument for a worker process."""
        return Timings()

    def take_seen(self) -> object:
        """Return this process's id and the runs recorded since the last call."""
        spans = self.spans_by_process[self._owner_pid]
        self.spans_by_process[self._owner_pid] = []
        return os.getpid(), spans

    def add_seen(self, report: object) -> None:
        """Merge the runs reported by a worker."""
        assert isinstance(report, tuple), "what take_seen has given"
        process, spans = report
        self.spans_by_process.setdefault(process, []).extend(spans)

    # Reports.

    def rows(self) -> list[TimingRow]:
        """Return the call tree's rows in order of first run; workers' rows are below "workers"."""
        rows_by_path: dict[tuple[str, ...], TimingRow] = {}
        for process, spans in self.spans_by_process.items():
            # Wall times of workers overlap: they are summed apart from the program's.
            below: tuple[str, ...] = () if process == self._main_process_id else ("workers",)
            if below:
                _accumulate_spans(rows_by_path.setdefault(below, TimingRow(below)), spans, own=0.0)
            _accumulate_tree(rows_by_path, below, spans)
        order = {path: index for index, path in enumerate(rows_by_path)}
        # By the order of every ancestor, the outermost first: a row comes right behind those it is
        # inside.
        sort_keys = [tuple(order[p[: n + 1]] for n in range(len(p))) for p in rows_by_path]
        return [
            row
            for _, row in sorted(
                zip(sort_keys, rows_by_path.values(), strict=True), key=_row_sort_key
            )
        ]

    @property
    def _main_process_id(self) -> int:
        return next(iter(self.spans_by_process))

    @property
    def cpu(self) -> float:
        """Return the CPU seconds of all processes."""
        return sum(span.cpu_seconds for spans in self.spans_by_process.values() for span in spans)

    def format_table(self) -> str:
        """Format the profile as a text table: calls, wall ms, CPU ms, own ms, share.

        The time of workers runs beside that of the process that waits for them.
        """
        total_cpu = self.cpu or 1.0
        lines = [f"{'phase':44}{'calls':>7}{'wall ms':>10}{'CPU ms':>10}{'own ms':>10}{'share':>7}"]
        for row in self.rows():
            name = "  " * (len(row.path) - 1) + row.path[-1]
            lines.append(
                f"{name[:43]:44}{row.num_calls:7}{row.wall_seconds * 1e3:10.1f}"
                f"{row.cpu_seconds * 1e3:10.1f}"
                f"{row.own_cpu_seconds * 1e3:10.1f}{row.own_cpu_seconds / total_cpu:7.1%}"
            )
        return "\n".join([*lines, f"{'all processes':61}{total_cpu * 1e3:10.1f}"])

    def as_json(self) -> str:
        """Return the profile table as JSON, in seconds."""
        rows = [row.as_json() for row in self.rows()]
        return json.dumps({"cpu_s": self.cpu, "phases": rows}, indent=1)

    def flame_chart(self) -> str:
        """Return the profile in the file format of https://www.speedscope.app.

        It has one timeline for each process, by the clock.
        """
        spans = [
            s
            for process_spans in self.spans_by_process.values()
            for s in _flatten_spans(process_spans)
        ]
        names = {name: index for index, name in enumerate(dict.fromkeys(s.name for s in spans))}
        began = min((s.start for s in spans), default=0.0)
        profiles = [
            _speedscope_profile(
                "compile" if process == self._main_process_id else f"worker {process}",
                process_spans, names, began,
            )
            for process, process_spans in self.spans_by_process.items()
        ]  # fmt: skip
        shared = {"frames": [{"name": name} for name in names]}
        return json.dumps(
            {"$schema": SPEEDSCOPE_SCHEMA_URL, "shared": shared, "profiles": profiles}
        )


def _row_sort_key(pair: tuple[tuple[int, ...], TimingRow]) -> tuple[int, ...]:
    return pair[0]


def _accumulate_spans(row: TimingRow, spans: Iterable[TimedSpan], own: float | None = None) -> None:
    """Accumulate spans into a row."""
    for span in spans:
        row.num_calls += 1
        row.wall_seconds += span.end - span.start
        row.cpu_seconds += span.cpu_seconds
        # Without what ran inside, which has rows of its own.
        row.own_cpu_seconds += (
            span.cpu_seconds - sum(inner.cpu_seconds for inner in span.children)
            if own is None
            else own
        )


def _accumulate_tree(
    rows_by_path: dict[tuple[str, ...], TimingRow], above: tuple[str, ...], spans: list[TimedSpan]
) -> None:
    stack = [(above, span) for span in reversed(spans)]
    while stack:
        around, span = stack.pop()
        # The text after the colon names one kernel; kernels are aggregated by the prefix.
        path = (*around, span.name.partition(":")[0])
        _accumulate_spans(rows_by_path.setdefault(path, TimingRow(path)), [span])
        stack.extend((path, inner) for inner in reversed(span.children))


def _flatten_spans(spans: Sequence[TimedSpan]) -> list[TimedSpan]:
    """Return the spans and all nested spans in preorder."""
    all_spans, stack = [], list(reversed(spans))
    while stack:
        all_spans.append(stack.pop())
        stack.extend(reversed(all_spans[-1].children))
    return all_spans


def _speedscope_profile(
    title: str, spans: Sequence[TimedSpan], names: dict[str, int], began: float
) -> dict[str, object]:
    """Return one process's timeline as speedscope open and close events in order."""
    events: list[dict[str, object]] = []
    stack: list[tuple[TimedSpan, bool]] = [(span, True) for span in reversed(spans)]
    while stack:
        span, opens = stack.pop()
        # perf_counter is one clock for all processes of a machine.
        current = (span.start if opens else span.end) - began
        events.append({"type": "O" if opens else "C", "frame": names[span.name], "at": current})
        if opens:
            # Below what is inside: it closes after all of that.
            stack.append((span, False))
            stack.extend((inner, True) for inner in reversed(span.children))
    ends = [span.end - began for span in spans]
    return {"type": "evented", "name": title, "unit": "seconds", "startValue": 0,
            "endValue": max(ends, default=0.0), "events": events}  # fmt: skip
