"""Import of TVM tuning records as candidates to measure here: their times are of other code.

    found = tune.read_metaschedule("work_dir", [task])       # database_tuning_record.json, ...
    found = tune.read_autotvm("matmul.log", [template_task])
    Session([task], search=Replay(found.candidates)).run(len(found.candidates))

A trace of MetaSchedule is done again, step by step, on the program of a task with the same
arguments; what it only notes for TVM's own passes (parallel, vectors) is done as far as it can be
proved. A line of AutoTVM's log is a decision of a template of the same name and arguments. What has
no meaning here is skipped, and `skipped` says why.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from ekiden import tir
from ekiden.ir.prim import IntImm
from ekiden.kernels.decision import Decision
from ekiden.runtime.errors import EkidenError, LoadError, ScheduleError
from ekiden.runtime.files import PathName, rewrite_os_errors
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.stmt import PrimFunc
from ekiden.tune.blocks import resolve_block
from ekiden.tune.candidate import Candidate
from ekiden.tune.schedule_templates import TemplateSpace
from ekiden.tune.sketch import TraceSpace, trace_text
from ekiden.tune.task import Task

METASCHEDULE_SOURCE = "metaschedule"
"""Rule name of candidates imported from TVM traces."""
METASCHEDULE_RECORDS_FILE = "database_tuning_record.json"
"""File name of MetaSchedule's records, one per line."""


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    """Tuning record that could not be imported: its line, and why. line: its line number in the
    file, from 1.
    """

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class ImportedRecords:
    """Candidates imported from another tuner's records."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[SkippedRecord, ...]

    def __str__(self) -> str:
        """Return the counts, and the reason for every skipped record."""
        rows = [f"line {s.line}: {s.why}" for s in self.skipped]
        return "\n".join([f"{len(self.candidates)} records, {len(rows)} skipped", *rows])


RecordReader: TypeAlias = Callable[[Any, Sequence[Task]], Candidate]


def _import_lines(path: Path, tasks: Sequence[Task], read: RecordReader) -> ImportedRecords:
    candidates: dict[Candidate, None] = {}
    skipped: list[SkippedRecord] = []
    with rewrite_os_errors("read", path):
        lines = path.read_text(errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            candidates[read(json.loads(line), tasks)] = None
        except EkidenError as error:
            skipped.append(SkippedRecord(number, str(error)))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            skipped.append(
                SkippedRecord(number, f"no such record: {type(error).__name__}: {error}")
            )
    return ImportedRecords(tuple(candidates), tuple(skipped))


def read_autotvm(path: PathName, tasks: Sequence[Task]) -> ImportedRecords:
    """Import the decisions of an AutoTVM log, for template tasks named as in the log. Raises
    OSError.
    """
    return _import_lines(Path(path), tasks, _convert_autotvm)


def _convert_autotvm(record: Any, tasks: Sequence[Task]) -> Candidate:  # noqa: ANN401  JSON
    """Convert one AutoTVM record. Raises LoadError if no task matches, ScheduleError if it failed
    there.
    """
    _, name, args, *_ = record["input"]
    if record["result"][1] != 0:
        raise ScheduleError(f"{name}: it failed there (error {record['result'][1]})")
    candidates = [t.space for t in tasks if isinstance(t.space, TemplateSpace)]
    candidates = [space for space in candidates if space.family == name]
    if not candidates:
        raise LoadError(f"no task is of a template '{name}'")
    args_json = [_to_json(a) for a in args]
    space = next((s for s in candidates if [_to_json(a) for a in s.args] == args_json), None)
    if space is None:
        raise LoadError(f"{name}: no task has the arguments {args_json}")
    first = {c.name: c.domain[0] for c in space.choices}
    entities = record["config"]["entity"]
    chosen = {n: _knob_value(kind, value, first.get(n)) for n, kind, value in entities}
    candidate = Candidate(name, str(Decision.from_mapping(chosen)))
    if refusal := space.refusal(candidate):
        raise LoadError(f"{name}: {refusal}")
    return candidate


def _to_json(arg: object) -> object:
    """Convert an argument to its JSON form."""
    return list(map(_to_json, arg)) if isinstance(arg, (list, tuple)) else arg


def _knob_value(kind: str, value: Any, first: object) -> int | str:  # noqa: ANN401  JSON
    """Convert an AutoTVM entity to a knob value."""
    if kind == "sp":
        axis_length = math.prod(int(n) for n in str(first).split(","))
        other_factors = math.prod(n for n in value if n > 0)
        factors = [-(-axis_length // other_factors) if n < 0 else n for n in value]
        return ",".join(map(str, factors))
    if kind in ("re", "an"):
        return ",".join(map(str, value))
    if kind == "ot":
        text = str(value).replace(" ", "")
        return int(text) if text.isdigit() else text
    raise LoadError(f"there is no entity '{kind}' here")


def read_metaschedule(folder: PathName, tasks: Sequence[Task]) -> ImportedRecords:
    """Import the traces of a MetaSchedule database, for loop-program tasks. Raises OSError."""
    return _import_lines(Path(folder) / METASCHEDULE_RECORDS_FILE, tasks, _convert_metaschedule)


def _convert_metaschedule(record_json: Any, tasks: Sequence[Task]) -> Candidate:  # noqa: ANN401  JSON
    """Convert one MetaSchedule record. Raises LoadError if no task matches or accepts its trace."""
    _, record = record_json
    (insts, decisions), _, _, arg_info = record[:4]
    signature = [(dtype, [int(d) for d in shape]) for _, dtype, shape in arg_info]
    candidates = [
        t
        for t in tasks
        if isinstance(t.space, TraceSpace) and _block_signatures(t.space.func) == signature
    ]
    if not candidates:
        raise LoadError(f"no task is a program of the arguments {signature}")
    errors: list[str] = []
    for task in candidates:
        assert isinstance(task.space, TraceSpace)
        schedule = tir.Schedule(task.space.func, seed=1, error_render_level="none")
        try:
            _TraceReplay(schedule, {int(n): d for n, d in decisions}).run(insts)
        except ScheduleError as error:
            errors.append(str(error))
            continue
        return Candidate(METASCHEDULE_SOURCE, trace_text(schedule.trace))
    raise LoadError(errors[0])


def _block_signatures(func: PrimFunc) -> list[tuple[str, list[int]]]:
    return [
        (b.dtype, [d.value if isinstance(d, IntImm) else -1 for d in b.shape]) for b in func.buffers
    ]


# fmt: off
STEP_METHODS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "GetBlock":             ("get_block",              ("name", "func_name")),
    "GetLoops":             ("get_loops",              ()),
    "GetChildBlocks":       ("get_child_blocks",       ()),
    "GetProducers":         ("get_producers",          ()),
    "GetConsumers":         ("get_consumers",          ()),
    "GetOutputBlocks":      ("get_output_blocks",      ()),
    "SamplePerfectTile":    ("sample_perfect_tile",    ("n", "max_innermost_factor")),
    "SampleCategorical":    ("sample_categorical",     ("candidates", "probs")),
    "SampleComputeLocation":("sample_compute_location",()),
    "AddUnitLoop":          ("add_unit_loop",          ()),
    "Parallel":             ("parallel",               ()),
    "Vectorize":            ("vectorize",              ()),
    "Unroll":               ("unroll",                 ()),
    "Bind":                 ("bind",                   ("thread_axis",)),
    "CacheRead":            ("cache_read",             ("read_buffer_index", "storage_scope")),
    "CacheWrite":           ("cache_write",            ("write_buffer_index", "storage_scope")),
    "ComputeAt":            ("compute_at",             ("preserve_unit_loops", "index")),
    "ReverseComputeAt":     ("reverse_compute_at",     ("preserve_unit_loops", "index")),
    "ComputeInline":        ("compute_inline",         ()),
    "ReverseComputeInline": ("reverse_compute_inline", ()),
    "DecomposeReduction":   ("decompose_reduction",    ()),
    "RFactor":              ("rfactor",                ("factor_axis",)),
    "SetScope":             ("set_scope",              ("buffer_index", "storage_scope")),
    "StorageAlign":         ("storage_align",  ("buffer_index", "axis", "factor", "offset")),
    "Blockize":             ("blockize",               ("preserve_unit_iters",)),
    "Tensorize":            ("tensorize",              ("tensor_intrin", "preserve_unit_iters")),
}
"""Schedule method of each TVM instruction, with the names of its attributes."""
# fmt: on
ANNOTATION_PREFIX = "meta_schedule."
"""Prefix of annotations that MetaSchedule's own passes read."""


class _TraceReplay:
    """Replay of a TVM trace on a schedule here."""

    def __init__(self, schedule: tir.Schedule, decisions: Mapping[int, object]) -> None:
        self._schedule = schedule
        self._decisions = decisions
        self._values: dict[str, object] = {}
        self._deferred_annotations: dict[str, object] = {}

    def run(self, insts: Sequence[Sequence[Any]]) -> None:
        """Apply every step, then the recorded annotations. Raises ScheduleError for an unsupported
        step.
        """
        for number, (kind, inputs, attrs, outputs) in enumerate(insts):
            if kind == "EnterPostproc":
                break
            result = self._apply_instruction(number, kind.replace("SBlock", "Block"), inputs, attrs)
            several = result if isinstance(result, (list, tuple)) else [result]
            self._values.update(zip(outputs, several, strict=False))
        self._apply_annotations()

    def _apply_instruction(
        self, number: int, kind: str, inputs: Sequence[Any], attrs: Sequence[Any]
    ) -> Any:  # noqa: ANN401  handles
        """Apply one instruction and return its outputs."""
        operands = [self._resolve_input(i) for i in inputs]
        schedule: Any = self._schedule
        match kind:
            case "Split":
                return schedule.split(operands[0], factors=operands[1:])
            case "Fuse" | "Reorder":
                return getattr(schedule, kind.lower())(*operands)
            case "Annotate" | "Unannotate":
                return self._annotate(kind, operands, _unquote(attrs[0]))
        if kind not in STEP_METHODS:
            raise ScheduleError(f"the step {kind} has no meaning here")
        method, names = STEP_METHODS[kind]
        options = {n: _unquote(a) for n, a in zip(names, attrs, strict=False)}
        if kind == "GetBlock" and options["name"] == "root":
            return None
        if kind in ("CacheRead", "CacheWrite"):
            operands = operands[:1]  # then the readers, which are all
        if number in self._decisions:
            options["decision"] = self._decisions[number]
        return getattr(schedule, method)(*operands, **options)

    def _resolve_input(self, value: Any) -> object:  # noqa: ANN401  JSON
        if isinstance(value, str):
            return self._values[value] if value in self._values else _unquote(value)
        return [self._resolve_input(v) for v in value] if isinstance(value, list) else value

    def _annotate(self, kind: str, operands: Sequence[Any], key: str) -> None:
        """Apply an annotation; those of MetaSchedule's own passes are collected for the end."""
        if key.startswith(ANNOTATION_PREFIX):
            if kind == "Annotate":
                self._deferred_annotations[key.removeprefix(ANNOTATION_PREFIX)] = operands[1]
            return
        if operands[0] is None:
            raise ScheduleError(f"the note {key!r} of a whole program has no meaning here")
        step = self._schedule.annotate if kind == "Annotate" else self._schedule.unannotate
        step(operands[0], key, *operands[1:])

    def _apply_annotations(self) -> None:
        """Parallelize the first loops and vectorize the last loop of every block."""
        if not self._deferred_annotations:
            return
        for block in self._iter_blocks():
            loops = self._schedule.get_loops(block)
            if "parallel" in self._deferred_annotations and loops:
                self._try_step(self._schedule.parallel, loops[0])
            if "vectorize" in self._deferred_annotations and loops:
                self._try_step(self._schedule.vectorize, loops[-1])

    def _iter_blocks(self) -> Iterator[Any]:
        """Yield every block once, consumers before producers."""
        waiting, visited = list(self._schedule.get_output_blocks()), set()
        while waiting:
            block = waiting.pop()
            name = resolve_block(self._schedule, block).name
            if name not in visited:
                visited.add(name)
                waiting.extend(self._schedule.get_producers(block))
                yield block

    def _try_step(self, step: Callable[..., object], *args: object) -> None:
        """Apply a step, ignoring a ScheduleError."""
        with suppress(ScheduleError):
            step(*args)


def _unquote(value: Any) -> Any:  # noqa: ANN401  JSON
    """Strip the quotes that TVM's traces put around strings."""
    is_quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"'
    return value[1:-1] if is_quoted else value


__all__ = ["ImportedRecords", "SkippedRecord", "read_autotvm", "read_metaschedule"]
