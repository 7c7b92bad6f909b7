"""What was found, kept: a file of JSON lines that is appended to and never rewritten.

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
from ekiden.runtime.files import PathName, check_folder, named, write_text
from ekiden.runtime.lazy_dataclass import dataclass

FORMAT = 1
"""Of a record; a higher one is of a later version, and left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One candidate that was tried.

    status: a row of `measure.STATUSES`. ratio: time to the default's, measured in turns with it.
    seconds: of a call, the fastest seen; of the default, `untuned`. said: why it is not ok. sizes,
    shares: of each run that counts, how much it counts (nothing where all count alike).
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
        """What records of its task are found by."""
        return f"{self.workload} {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best(Trial):
    """A candidate that was faster than the default in each of several processes, with results that
    agree: `confirmed` has the ratio of each; `ratio` is the worst of them."""

    confirmed: list[float] = field(default_factory=list)


Record: TypeAlias = Trial | Best


def is_faster(record: Record) -> bool:
    """Whether a record says that its candidate is faster than the default."""
    return record.status == "ok" and record.ratio < 1


KINDS: Mapping[str, type[Record]] = {"trial": Trial, "best": Best}


def as_line(record: Record) -> str:
    """A record as the line of a file; what is empty is left out."""
    kind = next(name for name, of in KINDS.items() if type(record) is of)
    values = {k: v for k, v in asdict(record).items() if v not in ("", [], 0)}
    return json.dumps({"kind": kind, "format": FORMAT, **values}) + "\n"


def _stamped(record: Record) -> Record:
    """A record with where and when it was made, unless it says so."""
    if record.at:
        return record
    now = round(time.time(), 3)
    return replace(record, at=now, processor=record.processor or processor(), version=__version__)


def processor() -> str:
    """What this machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.machine())


def read_line(line: str) -> Record | None:
    """The record of a line; None for what is none, or of a later format."""
    try:
        found = json.loads(line)
        kind = KINDS[found.pop("kind")]
        if found.pop("format") > FORMAT:
            return None
        names = {f.name: f for f in fields(kind)}
        known = {name: value for name, value in found.items() if name in names}
        made = kind(**known)
        return made if _is_sound(made) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_sound(record: Record) -> bool:
    """Whether the fields have the types they should have, and numbers that can be."""
    if not all(_SOUND[str(f.type)](getattr(record, f.name)) for f in fields(record)):
        return False
    return not isinstance(record, Best) or 0 < record.ratio <= 1


def _is_number(value: object) -> bool:
    """Of seconds, of shares, of times that have a date."""
    return type(value) in (int, float) and 0 <= value < MOST  # type: ignore[operator]


def _are_sizes(value: object) -> bool:
    """Of each run the sizes by name."""
    return isinstance(value, list) and all(
        isinstance(each, dict) and all(type(n) is int and n >= 0 for n in each.values())
        for each in value
    )


MOST = 1e11
"""What numbers of a record are below: seconds until the year 5138."""
_SOUND: Mapping[str, Callable[[object], bool]] = {
    "str": lambda value: isinstance(value, str),
    "int": lambda value: type(value) is int,
    "float": _is_number,
    "list[float]": lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "list[dict[str, int]]": _are_sizes,
}
"""Type of a field, as it is written -> whether a value is one."""


@dataclass(slots=True)
class Records:
    """Records in the order they were made, and the file they are appended to, if there is one."""

    records: list[Record] = field(default_factory=list)
    path: Path | None = None
    damaged: int = 0
    """Lines of the file that are no records."""

    @staticmethod
    def open(path: PathName) -> Records:
        """Those of a file, which need not be there yet. Raises OSError, LoadError for a file of
        something else."""
        found = Records(path=check_folder(path))
        assert found.path is not None
        if not found.path.exists():
            return found
        with named("read", path):
            text = found.path.read_bytes().decode(errors="replace")
        lines = text.splitlines()
        for line in filter(str.strip, lines):
            record = read_line(line)
            if record is None:
                found.damaged += 1
            else:
                found.records.append(record)
        is_torn = found.damaged == 1 and not text.endswith(
            "\n"
        )  # as a writer leaves that is killed
        if found.damaged and not found.records and not is_torn:
            raise LoadError(f"read '{path}': none of {found.damaged} lines is a record of tuning")
        return found

    def append(self, *records: Record) -> None:
        """Add records, to the file first: all of them, on the disk, or OSError."""
        records = tuple(map(_stamped, records))
        if self.path is not None:
            text = "".join(map(as_line, records)).encode()
            with FileLock(f"{self.path}.lock"), open(self.path, "ab+") as file:
                if file.tell() and _last_byte(file) != b"\n":
                    text = b"\n" + text  # behind a line that was never finished
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        self.records.extend(records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def query(
        self, workload: str = "", target: str = "", name: str = "", kind: str = ""
    ) -> Records:
        """Those of a workload, a target, a kernel whose name holds something, a kind. Raises
        InputError for a kind that there is not."""
        if kind and kind not in KINDS:
            raise InputError(f"records: kind one of {', '.join(KINDS)} expected, got '{kind}'")
        found = [
            r
            for r in self.records
            if (not workload or r.workload == workload)
            and (not target or r.target == target)
            and name in r.name
            and (not kind or type(r) is KINDS[kind])
        ]
        return Records(found)

    def best(self) -> dict[str, Best]:
        """What compile follows, by the keys of tasks: the lowest ratio; of equals the latest. A
        later trial of the same candidate that is not faster than the default takes it back: the
        default has become faster, or the machine is another."""
        found: dict[str, dict[tuple[str, str, str], Best]] = {}
        for each in self.records:
            made = found.setdefault(each.key, {})
            place = (each.rule, each.choice, json.dumps(each.sizes, sort_keys=True))
            if isinstance(each, Best):
                made[place] = each
            elif not is_faster(each):
                made.pop(place, None)
        return {
            key: min(reversed(made.values()), key=lambda r: r.ratio)
            for key, made in found.items()
            if made
        }

    def by_sizes(self) -> dict[str, list[list[object]]]:
        """[sizes, rule, choice] of each task that has a best: of each set of sizes that it was
        tuned for what is best there; an empty rule where nothing was faster than the default."""
        groups: dict[str, dict[str, list[Record]]] = {}
        for each in self.records:
            of_task = groups.setdefault(each.key, {})
            of_task.setdefault(json.dumps(each.sizes, sort_keys=True), []).append(each)
        best = self.best()
        return {
            key: [_best_of(records) for records in of_task.values()]
            for key, of_task in groups.items()
            if key in best
        }

    def merge(self, others: Iterable[Records]) -> int:
        """Append what others have and this has not; gives how many that were."""
        known = set(map(_identity, self.records))
        new = []
        for record in (r for other in others for r in other):
            if _identity(record) not in known:
                known.add(_identity(record))
                new.append(record)
        self.append(*new)
        return len(new)

    def pruned(self) -> Records:
        """The best of each task, and nothing else."""
        return Records(list(self.best().values()))

    def write(self, path: PathName) -> None:
        """All of them to a file, whole or not at all. Raises OSError."""
        write_text(path, "".join(map(as_line, self.records)))

    def explain(self) -> str:
        """A line for each task: trials by status, the best, and where and when it was found."""
        by_key: dict[str, list[Record]] = {}
        for each in self.records:
            by_key.setdefault(each.key, []).append(each)
        best = self.best()
        lines = [_explained(found, best.get(key)) for key, found in by_key.items()]
        if self.damaged:
            lines.append(f"{self.damaged} lines are no records")
        return "\n".join(lines)


def _best_of(records: Sequence[Record]) -> list[object]:
    found = Records(list(records)).best()
    sizes = list(records[0].sizes)
    return next(([sizes, b.rule, b.choice] for b in found.values()), [sizes, "", ""])


def _identity(record: Record) -> str:
    return json.dumps(asdict(record), sort_keys=True)


def _last_byte(file: BinaryIO) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


def _explained(found: Sequence[Record], best: Best | None) -> str:
    counts: dict[str, int] = {}
    for each in found:
        if type(each) is Trial:
            counts[each.status] = counts.get(each.status, 0) + 1
    tried = ", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "no trials"
    head = f"{found[0].name or found[0].workload} [{found[0].target}]: {tried}"
    if best is None:
        return f"{head}; nothing faster than the default"
    when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(best.at))
    gain = f"{best.untuned * 1e6:.1f} -> {best.seconds * 1e6:.1f} us, {best.ratio:.2f} of the time"
    return f"{head}; {gain}: {best.rule} {best.choice} ({best.processor}, {when} UTC)"


RecordsLike: TypeAlias = "Records | PathName | Sequence[Records | PathName] | None"


def records_of(given: RecordsLike) -> Records:
    """Records from whatever `compile` takes: a path, records, or a list of those. Raises OSError
    where there is no file, LoadError, InputError for anything else."""
    if given is None:
        return Records()
    if isinstance(given, Records):
        return given
    if isinstance(given, (str, os.PathLike)):
        if not os.path.exists(given):
            raise FileNotFoundError(f"read '{os.fspath(given)}': there are no such records")
        return Records.open(given)
    if isinstance(given, Sequence):
        parts = [records_of(each) for each in given]
        return Records([r for p in parts for r in p], damaged=sum(p.damaged for p in parts))
    raise InputError(f"records: a path or Records expected, got {type(given).__name__}")
