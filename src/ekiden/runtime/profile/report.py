"""Profile report: where the time of a run went; each instruction, each kernel call with its shapes.

report = profile(executable, "main", [x])
print(report)                     # a table, the slowest kernels first
report.json(); report.trace()     # for programs, and for chrome://tracing or ui.perfetto.dev
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from math import prod
from types import MappingProxyType
from typing import NamedTuple, cast

import numpy as np

from ekiden.runtime.artifact.dim_expression import evaluate_dim
from ekiden.runtime.binding._core import Executable, Module, get_global_func, num_threads
from ekiden.runtime.binding.layout import Event
from ekiden.runtime.binding.opcodes import OPCODES, Opcode, operand_words
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.runtime.profile.flame_chart import FlameBar, flame_chart
from ekiden.runtime.profile.html import details_html, table_html
from ekiden.runtime.profile.quantization_cost_warning import (
    parse_kernel_cycles,
    quantized_slowdown_warning,
)

MAX_EVENT_WORDS = 1 << 22
"""Maximum number of event words recorded per run; later calls are counted only."""

_DLPACK_KIND_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class MachinePeak(NamedTuple):
    """Measured limits of the machine: floating-point operations and bytes per second.

    cache_bandwidths: (bytes, bytes in a second) of loops that go over so many bytes again and
    again, in
    ascending order: the nearer to the cores they fit, the faster. flops_by_dtype: operations in a
    second of products of dtypes that have instructions of their own.
    """

    flops: float
    bandwidth: float
    cache_bandwidths: tuple[tuple[int, float], ...] = ()
    flops_by_dtype: Mapping[str, float] = MappingProxyType({})

    def peak_flops(self, dtypes: Collection[str]) -> float:
        """Return the peak operations per second of a kernel with arguments of some dtypes."""
        return max((v for k, v in self.flops_by_dtype.items() if k in dtypes), default=self.flops)

    def limit(self, nbytes: int) -> tuple[float, str]:
        """Return the bandwidth in bytes per second for a working set of `nbytes`, and the level
        that holds it: "cache" or "memory". The data is in a cache at best, so the bound is that
        of the largest measured loop that is no larger.
        """
        fitting = [speed for size, speed in self.cache_bandwidths if size <= nbytes]
        if len(fitting) == len(self.cache_bandwidths):
            return self.bandwidth, "memory"
        faster = fitting[-1] if fitting else self.cache_bandwidths[0][1]
        return max(faster, self.bandwidth), "cache"


class CallArgument(NamedTuple):
    """Argument of a kernel call; a number has no shape."""

    dtype: str
    shape: tuple[int, ...] | None
    nbytes: int

    def __str__(self) -> str:
        return self.dtype if self.shape is None else f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Call of a primitive; times in nanoseconds since the run began."""

    function: str
    instruction: int
    """Index in the function, or -1 for the copy of an argument before the first instruction."""
    name: str
    source: str
    """Model node that the call was compiled from, "" if unknown."""
    start: int
    duration: int
    arguments: tuple[CallArgument, ...]
    flops: int
    nbytes: int
    """Minimum memory traffic in bytes: each argument once, and only the rows read of a table."""
    title: str = ""
    """Display name: the operators, without a digest."""
    is_scalar: bool = False
    """Whether the kernel's code uses no vector instructions."""
    is_general: bool = False
    """Whether a general kernel ran because the kernel's own code was not compiled yet."""
    float_slowdown: str = ""
    """See ReportRow.float_slowdown."""
    cycles: tuple[int, int] | None = None
    """Cycles of the kernel and of its float form as the cost model predicts them, for products,
    range passes and rounding passes."""


@dataclass(frozen=True, slots=True)
class InstructionTime:
    """Execution count of an instruction and its exclusive time in nanoseconds."""

    function: str
    instruction: int
    name: str
    count: int
    duration: int


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Calls of one kernel on one set of shapes, aggregated."""

    name: str
    source: str
    shapes: str
    count: int
    duration: int
    flops: int
    nbytes: int
    title: str = ""
    is_scalar: bool = False
    call_nbytes: int = 0
    """Memory traffic of the largest call in bytes, the working set that a cache would have to
    hold."""
    is_general: bool = False
    dtypes: frozenset[str] = frozenset()
    """Dtypes of the arguments."""
    float_slowdown: str = ""
    """Predicted time of an integer product over that of its float form, where it is slower, else
    ""."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a profiled run."""

    calls: tuple[KernelCall, ...]
    instructions: tuple[InstructionTime, ...]
    frames: tuple[tuple[str, int, int], ...]
    """(function, start, end) of each call of a function of the program, innermost first."""
    result: object = field(repr=False)
    threads: int = 1
    peak: MachinePeak | None = None
    """Measured peak of the machine with the same number of threads, if available."""
    regions: tuple[str, ...] = ()
    """One line per region of a third-party engine with its measurement at compile time."""

    @property
    def duration(self) -> int:
        """Return the nanoseconds of all instructions, and of copies of arguments to their
        devices.
        """
        placed = sum(call.duration for call in self.calls if call.instruction < 0)
        return placed + sum(instruction.duration for instruction in self.instructions)

    def rows(self, aggregate: bool = True) -> list[ReportRow]:
        """Return the kernels, slowest first; or each call, in order."""
        if not aggregate:
            return [_aggregate_calls([call]) for call in self.calls]
        groups: dict[tuple[object, ...], list[KernelCall]] = defaultdict(list)
        for call in self.calls:
            groups[call.name, call.arguments].append(call)
        return sorted(map(_aggregate_calls, groups.values()), key=lambda row: -row.duration)

    def table(
        self,
        sort: bool = True,
        aggregate: bool = True,
        col_sums: bool = True,
        long_names: bool = False,
    ) -> str:
        """Return a table with a line per kernel, or with `aggregate=False` per call.

        Args:
            sort: slowest first.
            aggregate: one line for all calls of a kernel on the same shapes.
            col_sums: add a line of totals.
            long_names: show symbols instead of titles.

        Returns:
            The table as text.
        """
        rows = self.rows(aggregate)
        if not sort:
            rows = sorted(rows, key=lambda row: self._first_row(row.name))
        lines = [COLUMN_HEADERS, *(self.cells(row, long_names) for row in rows)]
        if col_sums:
            lines.append(self.sums())
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                c.ljust(w) if i in TEXT_COLUMNS else c.rjust(w)
                for i, (c, w) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def cells(self, row: ReportRow, long_names: bool = False) -> tuple[str, ...]:
        """Return a row as texts under COLUMN_HEADERS. Kernels that ran without vectors or in
        general form are marked.
        """
        return (
            row.name if long_names or not row.title else row.title,
            row.source,
            str(row.count),
            f"{row.duration / 1e3:.2f}",
            f"{self._share_of_run(row.duration):.1%}",
            f"{row.flops / max(row.duration, 1):.1f}" if row.flops else "",
            f"{row.nbytes / max(row.duration, 1):.1f}",
            self._share_of_roofline(row),
            row.shapes,
        )

    def sums(self) -> tuple[str, ...]:
        """Return the last line of a table: the time outside of kernels, and the total."""
        kernels = sum(call.duration for call in self.calls)
        other_text = f"other instructions {(self.duration - kernels) / 1e3:.2f} us"
        count = sum(instruction.count for instruction in self.instructions)
        return "total", other_text, str(count), f"{self.duration / 1e3:.2f}", "", "", "", "", ""

    def _share_of_run(self, duration: int) -> float:
        return duration / max(self.duration, 1)

    def _share_of_roofline(self, row: ReportRow) -> str:
        """Return the share of the tighter roofline limit, operations or the bandwidth of the memory
        level that the data fits, and a mark for code without vectors.
        """
        mark = "general" if row.is_general else "scalar" if row.is_scalar else ""
        if self.peak is None or row.duration == 0:
            return mark
        seconds = row.duration * 1e-9
        work = row.flops / seconds / self.peak.peak_flops(row.dtypes)
        bandwidth, where = self.peak.limit(row.call_nbytes)
        traffic = row.nbytes / seconds / bandwidth
        share = f"{work:.0%} flops" if work >= traffic else f"{traffic:.0%} {where}"
        return f"{share} {mark}".rstrip()

    def _first_row(self, name: str) -> int:
        return next(i for i, call in enumerate(self.calls) if call.name == name)

    def json(self) -> str:
        """Return the whole report as JSON: `calls`, `instructions`, `configuration`."""
        calls = [
            {
                "Name": c.name,
                "Source": c.source,
                "Function": c.function,
                "Instruction": c.instruction,
                "Start (us)": c.start / 1e3,
                "Duration (us)": c.duration / 1e3,
                "Percent": 100 * self._share_of_run(c.duration),
                "Argument Shapes": [str(a) for a in c.arguments],
                "Bytes": c.nbytes,
                "FLOPs": c.flops,
                "Vectors": not c.is_scalar,
                "Tier": "general" if c.is_general else "compiled",
            }
            for c in self.calls
        ]
        instructions = [
            {
                "Function": i.function,
                "Instruction": i.instruction,
                "Name": i.name,
                "Count": i.count,
                "Duration (us)": i.duration / 1e3,
            }
            for i in self.instructions
        ]
        configuration: dict[str, object] = {"Executor": "VM", "Number of threads": self.threads}
        if self.peak is not None:
            configuration |= {
                "Peak GFLOP/s": self.peak.flops / 1e9,
                "Peak GB/s": self.peak.bandwidth / 1e9,
            }
        document = {"calls": calls, "instructions": instructions, "configuration": configuration}
        if self.regions:
            document["regions"] = list(self.regions)
        if warnings := self.warnings():
            document["warnings"] = warnings
        return json.dumps(document)

    def csv(self) -> str:
        """Return the rows of the table as CSV."""
        rows = [self.cells(row, long_names=True) for row in self.rows()]
        quoted = [
            ",".join('"' + cell.replace('"', '""') + '"' for cell in line)
            for line in [COLUMN_HEADERS, *rows]
        ]
        return "\n".join(quoted) + "\n"

    def trace(self) -> str:
        """Return the run as JSON for chrome://tracing and ui.perfetto.dev."""
        spans = [
            _trace_event(c.name, "kernel", c.start, c.duration, _call_details(c))
            for c in self.calls
        ]
        spans += [
            _trace_event(name, "function", position, end - position, {})
            for name, position, end in self.frames
        ]
        return json.dumps({"traceEvents": spans, "displayTimeUnit": "ns"})

    def __str__(self) -> str:
        return "\n".join([self.table(), *self.regions, *self.warnings()])

    def warnings(self) -> list[str]:
        """Return a line for each integer kernel that the cost model predicts to be slower than its
        float form, and one where the whole run is.
        """
        slowdown = quantized_slowdown_warning(
            {"cycles": c.cycles} if c.cycles else {} for c in self.calls
        )
        rows = [row for row in self.rows() if row.float_slowdown]
        return [
            f"{row.title or row.name} {row.source}: by the model {row.float_slowdown} times as"
            f" long as the same product of floats; leave the layer in floats"
            for row in rows
        ] + ([slowdown] if slowdown else [])

    def flame(self) -> str:
        """Return the run as a flame chart in SVG: time to the right, functions above their
        kernels.
        """
        bars = [
            FlameBar(name, position, end - position, is_function=True)
            for name, position, end in self.frames
        ]
        kernels = (FlameBar(c.title or c.name, c.start, c.duration, c.source) for c in self.calls)
        return flame_chart([*bars, *kernels])

    def _repr_html_(self) -> str:
        rows = [*map(self.cells, self.rows()), self.sums()]
        shown = table_html(
            COLUMN_HEADERS, rows, numbers=frozenset(range(len(COLUMN_HEADERS))) - TEXT_COLUMNS
        )
        return shown + details_html("flame chart", self.flame(), is_open=True)


COLUMN_HEADERS = (
    "kernel",
    "source",
    "calls",
    "us",
    "share",
    "GFLOP/s",
    "GB/s",
    "of peak",
    "arguments",
)
TEXT_COLUMNS = frozenset((0, 1, 8))
"""The columns that hold text."""


def _aggregate_calls(calls: Sequence[KernelCall]) -> ReportRow:
    sources = list(dict.fromkeys(c.source for c in calls if c.source))
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    return ReportRow(
        calls[0].name,
        sources[0] + more if sources else "",
        " ".join(map(str, calls[0].arguments)),
        len(calls),
        sum(c.duration for c in calls),
        sum(c.flops for c in calls),
        sum(c.nbytes for c in calls),
        calls[0].title,
        calls[0].is_scalar,
        max(c.nbytes for c in calls),
        any(c.is_general for c in calls),
        frozenset(a.dtype for a in calls[0].arguments),
        calls[0].float_slowdown,
    )


def _trace_event(
    name: str, kind: str, start: int, duration: int, args: Mapping[str, object]
) -> object:
    times = {"ts": start / 1e3, "dur": duration / 1e3, "pid": 0, "tid": 0}
    return {"name": name, "cat": kind, "ph": "X", **times, "args": args}


def _call_details(call: KernelCall) -> dict[str, object]:
    return {
        "source": call.source,
        "at": f"{call.function}:{call.instruction}",
        "arguments": [str(a) for a in call.arguments],
        "FLOPs": call.flops,
        "bytes": call.nbytes,
    }


NO_KERNEL_TIERS: Mapping[str, str] = {}


def profile(
    executable: Executable,
    function: str,
    arguments: Sequence[object],
    warm_up: int = 1,
    peak: MachinePeak | None = None,
    tiers: Mapping[str, str] = NO_KERNEL_TIERS,
) -> Report:
    """Profile a run of a function.

    Args:
        executable: the program.
        function: the function's name.
        arguments: its arguments.
        warm_up: full runs before the profiled one. Timing costs some 50 ns per instruction.
        peak: measured limits of the machine.
        tiers: "general" for the kernels that are in general form for now.

    Returns:
        The report.

    Raises:
        EkidenError: what the run raises.
    """
    module = get_global_func("ek.executable.module")(executable)
    assert isinstance(module, Module)
    for _ in range(warm_up):
        module[function](*arguments)
    profile_data = module["profile"](executable.index(function), MAX_EVENT_WORDS, *arguments)
    return build_report(executable, profile_data, num_threads(), peak, tiers)


def build_report(
    executable: Executable,
    profile_data: object,
    threads: int,
    peak: MachinePeak | None = None,
    tiers: Mapping[str, str] = NO_KERNEL_TIERS,
) -> Report:
    """Return the report of a module's `profile` result, here or on another machine."""
    result, counts, events = cast("tuple[object, bytes, bytes]", profile_data)
    reader = _ProfileReader(executable, tiers)
    calls, frames = reader.events(np.frombuffer(events, np.int64).tolist())
    times = reader.instructions(np.frombuffer(counts, np.int64).reshape(-1, 2).tolist())
    regions = cast("Sequence[str]", executable.metadata.get("regions", ()))
    return Report(tuple(calls), tuple(times), tuple(frames), result, threads, peak, tuple(regions))


class _ProfileReader:
    """Reader that resolves the numbers of a profile to names."""

    def __init__(self, executable: Executable, tiers: Mapping[str, str]) -> None:
        metadata = executable.metadata
        self.tiers = tiers
        self.functions = executable.globals
        self.params = {name: executable.params(name) for name in self.functions}
        self.primitives = executable.primitives
        self.devices = executable.devices
        self.code = {
            name: list(iter_instructions(executable.code(name)[1])) for name in self.functions
        }
        self.words = {name: executable.code(name)[1] for name in self.functions}
        self.kernels = cast("dict[str, dict[str, object]]", metadata.get("kernels", {}))
        self.sources = instruction_sources(executable)

    def instructions(self, counts: Sequence[Sequence[int]]) -> Iterator[InstructionTime]:
        """Yield the times of the instructions that ran."""
        remaining = iter(counts)
        for function, code in self.code.items():
            for number, (_, opcode) in enumerate(code):
                count, duration = next(remaining)
                if count:
                    yield InstructionTime(function, number, opcode.name, count, duration)

    def events(self, words: Sequence[int]) -> tuple[list[KernelCall], list[tuple[str, int, int]]]:
        """Return the kernel calls, and the frames of functions."""
        calls: list[KernelCall] = []
        frames: list[tuple[str, int, int]] = []
        open_frames: list[tuple[str, int]] = []
        position = 0
        while position < len(words):
            if words[position] == Event.CALL:
                call, position = self._read_call(words, position + 1)
                calls.append(call)
                continue
            if words[position] == Event.PLACE:
                call, position = self._read_device_copy(words, position + 1)
                calls.append(call)
                continue
            name, time = self.functions[words[position + 1]], words[position + 2]
            if words[position] == Event.ENTER:
                open_frames.append((name, time))
            elif open_frames:
                frames.append((*open_frames.pop(), time))
            position += 3
        return calls, frames

    def _read_call(self, words: Sequence[int], at: int) -> tuple[KernelCall, int]:
        function, number, start, duration, n = words[at : at + 5]
        at += 5
        arguments = []
        for _ in range(n):
            argument, at = _read_argument(words, at)
            arguments.append(argument)
        caller = self.functions[function]
        word_offset, opcode = self.code[caller][number]
        name = self._primitive_name(opcode, self.words[caller][word_offset:])
        source = self.sources.get((caller, number), "")
        kernel_info = self.kernels.get(name, {})
        values = _symbol_values(kernel_info, arguments)
        call = KernelCall(
            caller, number, name, source, start, duration, tuple(arguments),
            _evaluate_optional(kernel_info.get("flops"), values) or 0,
            _minimal_traffic(kernel_info, arguments, values),
            short_name(cast("Sequence[str]", kernel_info.get("operators", ()))) or name,
            kernel_info.get("vectors") is False,
            self.tiers.get(name) == "general",
            str(kernel_info.get("over_floats", "")),
            parse_kernel_cycles(kernel_info.get("cycles")),
        )  # fmt: skip
        return call, at

    def _read_device_copy(self, words: Sequence[int], at: int) -> tuple[KernelCall, int]:
        """Parse a host-to-device copy of an argument; return its call and the next offset."""
        function, index, device_index, start, duration = words[at : at + 5]
        argument, at = _read_argument(words, at + 5)
        caller = self.functions[function]
        name = f"device_copy argument -> {self.devices[device_index]}"
        source = f"'{self.params[caller][index]}'"
        call = KernelCall(
            caller, -1, name, source, start, duration, (argument,), 0, argument.nbytes, name
        )
        return call, at

    def _primitive_name(self, opcode: Opcode, words: Sequence[int]) -> str:
        """Return the primitive that an instruction calls; of a copy, its devices."""
        if opcode.name == "DeviceCopy":
            return f"device_copy {self.devices[words[4]]} -> {self.devices[words[3]]}"
        return self.primitives[words[1 + opcode.operands.index("packed_index")]]


MAX_TITLE_CHARS = 32
"""Characters of the longest name of a kernel in a table."""


def short_name(operators: Sequence[str]) -> str:
    """Return a short kernel name from its operators, such as `dense_pack+add+relu`; "" for none."""
    names = [name.rpartition(".")[2].removeprefix("contrib_") for name in operators]
    names = [name.partition("_without_")[0] for name in names]
    full_name = "+".join(names)
    if len(full_name) <= MAX_TITLE_CHARS:
        return full_name
    hidden_count = len(names) - 1
    shown = names[0][: MAX_TITLE_CHARS - 4]
    while (
        hidden_count
        and len(f"{shown}+{names[len(names) - hidden_count]}+{hidden_count - 1}") <= MAX_TITLE_CHARS
    ):
        shown, hidden_count = f"{shown}+{names[len(names) - hidden_count]}", hidden_count - 1
    return f"{shown}+{hidden_count}" if hidden_count else shown


def _symbol_values(
    kernel_info: Mapping[str, object], arguments: Sequence[CallArgument]
) -> dict[str, int]:
    """Return the values of a kernel's symbols, from its arguments."""
    values: dict[str, int] = {}
    shapes = cast("Sequence[Sequence[str]]", kernel_info.get("params", ()))
    for dims, argument in zip(shapes, arguments, strict=False):
        values |= dict(zip(dims, argument.shape or (), strict=False))
    return values


def _evaluate_optional(text: object, values: Mapping[str, int]) -> int | None:
    """Return the value of an expression of the metadata; None if there is none."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return evaluate_dim(text, values)
    except ValueError:
        return None


def _minimal_traffic(
    kernel_info: Mapping[str, object], arguments: Sequence[CallArgument], values: Mapping[str, int]
) -> int:
    """Return the bytes that a kernel moves if it reads each element it needs once."""
    if not kernel_info:  # a function of shapes: it looks at no element but those that it writes
        arguments = arguments[-1:]
    reads = cast("Sequence[str]", kernel_info.get("reads", ()))
    total = 0
    for index, argument in enumerate(arguments):
        read = _evaluate_optional(reads[index], values) if index < len(reads) else None
        count = prod(argument.shape or ())
        share = 1.0 if read is None or count == 0 else min(1.0, read / count)
        total += int(argument.nbytes * share)
    return total


def _read_argument(words: Sequence[int], at: int) -> tuple[CallArgument, int]:
    dtype, ndim = words[at], words[at + 1]
    code, bits = divmod(dtype, 256)
    name = _DLPACK_KIND_NAMES.get(code, f"dtype{code}_")
    text = name if name == "bool" else f"{name}{bits}"
    if ndim < 0:
        return CallArgument(text, None, 8), at + 2
    shape = tuple(words[at + 2 : at + 2 + ndim])
    return CallArgument(text, shape, (prod(shape) * bits + 7) // 8), at + 2 + ndim


def iter_instructions(words: Sequence[int]) -> Iterator[tuple[int, Opcode]]:
    """Yield (first word, opcode) of each instruction of a function's code."""
    position = 0
    while position < len(words):
        opcode = OPCODES[words[position]]
        yield position, opcode
        position += 1
        n = 0
        for letter in opcode.format:
            if letter == "n":
                n = words[position]
            position += operand_words(letter, n)


def tensor_nodes(executable: Executable) -> dict[str, tuple[str, int]]:
    """Return for each model tensor the node that computes it and its output index, for those that
    an instruction computes rather than the inside of a kernel.
    """
    table = cast("dict[str, list[object]]", executable.metadata.get("tensors", {}))
    return {name: (str(node), cast(int, position)) for name, (node, position) in table.items()}


def instruction_sources(executable: Executable) -> dict[tuple[str, int], str]:
    """Return the model node of each instruction (function, index), where it is known."""
    table = cast("dict[str, list[tuple[int, str]]]", executable.metadata.get("sources", {}))
    return {
        (function, position): text for function, rows in table.items() for position, text in rows
    }
