"""Tuning records: a file of JSON lines that is appended to and never rewritten.

    {"kind": "trial", "workload": ..., "target": ..., "rule": ..., "choice": ..., "status": "ok",
     "ratio": 0.93, "seconds": 1.2e-4, ...}      one candidate that was tried
    {"kind": "best", ..., "ratio": 0.91, "confirmed": [0.90, 0.91], ...}     one that compile takes

Several writers may append to one file, each under its lock. A line that is no record (the last of a
writer that was ended, one damaged on the way) is counted and left where it is.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import BinaryIO, TypeAlias

from filelock import FileLock

from ekiden import __version__
from ekiden.runtime.errors import InputError, LoadError
from ekiden.runtime.files import PathName, check_folder, rewrite_os_errors, write_text
from ekiden.runtime.lazy_dataclass import dataclass

RECORD_FORMAT_VERSION = 1
"""Version of the record format; records of a later version are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Record of a measured candidate. status: a row of `measure.STATUSES`. ratio: its time over the
    default's, measured in turns with it. seconds: the fastest call; `untuned`: that of the
    default. said: why it failed.
    """

    workload: str
    target: str
    rule: str
    choice: str
    name: str = ""
    status: str = "ok"
    ratio: float = 0.0
    seconds: float = 0.0
    untuned: float = 0.0
    threads: int = 1
    sizes: list[dict[str, int]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    said: str = ""
    processor: str = ""
    version: str = ""
    at: float = 0.0
    search: str = ""

    @property
    def key(self) -> str:
        """Return the key of its task's records."""
        return f"{self.workload} {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best(Trial):
    """Record of a candidate that beat the default in each of several processes with matching
    results. `confirmed` has the ratio of each process; `ratio` is their worst.
    """

    confirmed: list[float] = field(default_factory=list)


Record: TypeAlias = Trial | Best


def is_faster(record: Record) -> bool:
    """Return whether a record's candidate is faster than the default."""
    return record.status == "ok" and record.ratio < 1


RECORD_TYPES: Mapping[str, type[Record]] = {"trial": Trial, "best": Best}


def serialize_record(record: Record) -> str:
    """Serialize a record as one line, omitting empty fields."""
    kind = next(name for name, of in RECORD_TYPES.items() if type(record) is of)
    values = {k: v for k, v in asdict(record).items() if v not in ("", [], 0)}
    return json.dumps({"kind": kind, "format": RECORD_FORMAT_VERSION, **values}) + "\n"


def _with_stamp(record: Record) -> Record:
    """Return a record with the time, processor and version, unless it has them."""
    if record.at:
        return record
    timestamp = round(time.time(), 3)
    return replace(
        record, at=timestamp, processor=record.processor or processor(), version=__version__
    )


def processor() -> str:
    """Return the system's name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    model_names = (
        line.partition(":")[2].strip() for line in lines if line.startswith("model name")
    )
    return next(model_names, platform.machine())


def parse_record(line: str) -> Record | None:
    """Parse a line; None for an invalid record or a later format."""
    try:
        values = json.loads(line)
        kind = RECORD_TYPES[values.pop("kind")]
        if values.pop("format") > RECORD_FORMAT_VERSION:
            return None
        names = {f.name: f for f in fields(kind)}
        # Fields that a later minor version has added are ignored.
        known_values = {name: value for name, value in values.items() if name in names}
        record = kind(**known_values)
        return record if _is_valid(record) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_valid(record: Record) -> bool:
    """Return whether all fields have the right types and plausible numbers."""
    if not all(_TYPE_CHECKS[str(f.type)](getattr(record, f.name)) for f in fields(record)):
        return False
    return not isinstance(record, Best) or 0 < record.ratio <= 1


def _is_plausible_number(value: object) -> bool:
    """Return whether a value is a plausible number of seconds, share or timestamp."""
    # `type`, not isinstance: bool is an int.
    return type(value) in (int, float) and 0 <= value < MAX_PLAUSIBLE_NUMBER  # type: ignore[operator]


def _are_sizes(value: object) -> bool:
    """Return whether a value is a list of sizes by name, one per run."""
    return isinstance(value, list) and all(
        isinstance(run_sizes, dict) and all(type(n) is int and n >= 0 for n in run_sizes.values())
        for run_sizes in value
    )


MAX_PLAUSIBLE_NUMBER = 1e11
"""Exclusive bound of numbers in records: seconds until the year 5138."""
_TYPE_CHECKS: Mapping[str, Callable[[object], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int,
    "float": _is_plausible_number,
    "list[float]": lambda value: isinstance(value, list) and all(map(_is_plausible_number, value)),
    "list[dict[str, int]]": _are_sizes,
}
"""Type check of each field annotation."""


@dataclass(slots=True)
class Records:
    """Tuning records in chronological order, and the file they are appended to, if any."""

    records: list[Record] = field(default_factory=list)
    path: Path | None = None
    damaged: int = 0
    """Number of invalid lines in the file."""

    @staticmethod
    def open(path: PathName) -> Records:
        """Read the records of a file, which may not exist yet. Raises OSError, and LoadError if the
        file holds something else.
        """
        records = Records(path=check_folder(path))
        assert records.path is not None
        if not records.path.exists():
            return records
        with rewrite_os_errors("read", path):
            text = records.path.read_bytes().decode(errors="replace")
        lines = text.splitlines()
        for line in filter(str.strip, lines):
            record = parse_record(line)
            if record is None:
                records.damaged += 1
            else:
                records.records.append(record)
        is_torn = records.damaged == 1 and not text.endswith(
            "\n"
        )  # as a writer leaves that is killed
        if records.damaged and not records.records and not is_torn:
            raise LoadError(f"read '{path}': none of {records.damaged} lines is a record of tuning")
        return records

    def append(self, *records: Record) -> None:
        """Append records, to the file first: either all of them are on the disk, or OSError is
        raised.
        """
        records = tuple(map(_with_stamp, records))
        if self.path is not None:
            text = "".join(map(serialize_record, records)).encode()
            # Several sessions may append to one file.
            with FileLock(f"{self.path}.lock"), open(self.path, "ab+") as file:
                if file.tell() and _last_byte(file) != b"\n":
                    text = b"\n" + text  # behind a line that was never finished
                file.write(text)
                file.flush()
                # Each trial costs seconds of measurement: it must survive a power loss.
                os.fsync(file.fileno())
        self.records.extend(records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def query(
        self, workload: str = "", target: str = "", name: str = "", kind: str = ""
    ) -> Records:
        """Return the records that match a workload, target, part of a kernel name, and kind. Raises
        InputError for an unknown kind.
        """
        if kind and kind not in RECORD_TYPES:
            raise InputError(
                f"records: kind one of {', '.join(RECORD_TYPES)} expected, got '{kind}'"
            )
        matching = [
            r
            for r in self.records
            if (not workload or r.workload == workload)
            and (not target or r.target == target)
            and name in r.name
            and (not kind or type(r) is RECORD_TYPES[kind])
        ]
        return Records(matching)

    def best(self) -> dict[str, Best]:
        """Return the best record of each task, by key: the lowest ratio, or the latest among
        equals. A later trial of the same candidate that is not faster than the default revokes
        it, since the default or the machine has changed.
        """
        by_task: dict[str, dict[tuple[str, str, str], Best]] = {}
        for record in self.records:
            candidates = by_task.setdefault(record.key, {})
            identity = (record.rule, record.choice, json.dumps(record.sizes, sort_keys=True))
            if isinstance(record, Best):
                candidates[identity] = record
            elif not is_faster(record):
                candidates.pop(identity, None)
        return {
            # min() keeps the first of equals, so reversing prefers the latest.
            key: min(reversed(faster.values()), key=lambda r: r.ratio)
            for key, faster in by_task.items()
            if faster
        }

    def by_sizes(self) -> dict[str, list[list[object]]]:
        """Return [sizes, rule, choice] entries by task, for tasks with a best record: the best
        candidate for each set of sizes tuned for, with an empty rule where nothing beat the
        default.
        """
        groups: dict[str, dict[str, list[Record]]] = {}
        for record in self.records:
            of_task = groups.setdefault(record.key, {})
            of_task.setdefault(json.dumps(record.sizes, sort_keys=True), []).append(record)
        best = self.best()
        return {
            key: [_best_entry(records) for records in of_task.values()]
            for key, of_task in groups.items()
            if key in best
        }

    def merge(self, others: Iterable[Records]) -> int:
        """Append the records of `sources` that are missing here, and return their number."""
        identities = set(map(_record_identity, self.records))
        new = []
        for record in (r for source in others for r in source):
            if _record_identity(record) not in identities:
                identities.add(_record_identity(record))
                new.append(record)
        self.append(*new)
        return len(new)

    def pruned(self) -> Records:
        """Return the best record of each task only."""
        return Records(list(self.best().values()))

    def write(self, path: PathName) -> None:
        """Write all records to a file atomically. Raises OSError."""
        write_text(path, "".join(map(serialize_record, self.records)))

    def explain(self) -> str:
        """Summarise each task in one line: trials by status, the best time, when and where."""
        by_key: dict[str, list[Record]] = {}
        for record in self.records:
            by_key.setdefault(record.key, []).append(record)
        best = self.best()
        lines = [_explain_task(task_records, best.get(key)) for key, task_records in by_key.items()]
        if self.damaged:
            lines.append(f"{self.damaged} lines are no records")
        return "\n".join(lines)


def _best_entry(records: Sequence[Record]) -> list[object]:
    """Return the [sizes, rule, choice] entry of records with the same sizes."""
    best = Records(list(records)).best()
    sizes = list(records[0].sizes)
    return next(([sizes, b.rule, b.choice] for b in best.values()), [sizes, "", ""])


def _record_identity(record: Record) -> str:
    return json.dumps(asdict(record), sort_keys=True)


def _last_byte(file: BinaryIO) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


def _explain_task(task_records: Sequence[Record], best: Best | None) -> str:
    """Return the summary line of a task."""
    counts: dict[str, int] = {}
    for record in task_records:
        if type(record) is Trial:
            counts[record.status] = counts.get(record.status, 0) + 1
    tried = ", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "no trials"
    head = f"{task_records[0].name or task_records[0].workload} [{task_records[0].target}]: {tried}"
    if best is None:
        return f"{head}; nothing faster than the default"
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(best.at))
    gain = f"{best.untuned * 1e6:.1f} -> {best.seconds * 1e6:.1f} us, {best.ratio:.2f} of the time"
    return f"{head}; {gain}: {best.rule} {best.choice} ({best.processor}, {when} UTC)"


RecordsLike: TypeAlias = "Records | PathName | Sequence[Records | PathName] | None"


def to_records(source: RecordsLike) -> Records:
    """Convert a path, records, or a list of those, as `compile` accepts them. Raises OSError if a
    file is missing, LoadError, and InputError for anything else.
    """
    if source is None:
        return Records()
    if isinstance(source, Records):
        return source
    if isinstance(source, (str, os.PathLike)):
        if not os.path.exists(source):
            raise FileNotFoundError(f"read '{os.fspath(source)}': there are no such records")
        return Records.open(source)
    if isinstance(source, Sequence):
        loaded = [to_records(item) for item in source]
        return Records([r for p in loaded for r in p], damaged=sum(p.damaged for p in loaded))
    raise InputError(f"records: a path or Records expected, got {type(source).__name__}")
