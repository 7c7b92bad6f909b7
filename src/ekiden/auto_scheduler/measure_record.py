"""Reading and writing of tuning logs (files of `tune.Records`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ekiden.auto_scheduler.search_task import MeasureInput, MeasureResult
from ekiden.runtime.files import PathName, check_folder
from ekiden.tune.records import Record, Records, Trial

__all__ = [
    "MeasureInput",
    "MeasureResult",
    "RecordReader",
    "RecordToFile",
    "load_best_record",
    "load_records",
    "save_records",
]


class RecordToFile:
    """Callback that appends every measured trial to a file."""

    def __init__(self, filename: PathName) -> None:
        self.filename = os.fspath(check_folder(filename))


class RecordReader:
    """Reader of a tuning log."""

    def __init__(self, filename: PathName) -> None:
        self.records = Records.open(filename)

    def read_lines(
        self, max_lines: int | None = None, skip_lines: int = 0
    ) -> tuple[list[MeasureInput], list[MeasureResult]]:
        """Return the measure inputs and results of a log's lines."""
        last = None if max_lines is None else skip_lines + max_lines
        pairs = list(self)[skip_lines:last]
        return [inp for inp, _ in pairs], [result for _, result in pairs]

    def __iter__(self) -> Iterator[tuple[MeasureInput, MeasureResult]]:
        yield from map(_pair_of, self.records)


def _pair_of(record: Record) -> tuple[MeasureInput, MeasureResult]:
    worked = record.status == "ok"
    costs = (record.seconds,) if worked else ()
    result = MeasureResult(costs, int(not worked), record.said, record.seconds, record.at)
    return MeasureInput(record), result


def load_records(filename: PathName) -> Iterator[tuple[MeasureInput, MeasureResult]]:
    """Yield the measure inputs and results of a log. Raises OSError, LoadError."""
    return iter(RecordReader(filename))


def save_records(
    filename: PathName, inputs: Sequence[MeasureInput], results: Sequence[MeasureResult]
) -> None:
    """Append measure inputs and results to a log."""
    Records.open(filename).append(*(inp.record for inp in inputs))


def load_best_record(
    filename: PathName, workload_key: str | None = None, target: object = None
) -> tuple[MeasureInput | None, MeasureResult | None]:
    """Return the fastest record of a log, restricted to a workload and a target if given; None if
    the log has none. Raises OSError, LoadError.
    """
    matching = [
        record
        for record in Records.open(filename)
        if record.status == "ok"
        and (workload_key is None or workload_key == f'["{record.workload}"]')
        and (target is None or record.target == str(target))
    ]
    best: Trial | None = min(matching, key=lambda r: r.seconds, default=None)
    return _pair_of(best) if best is not None else (None, None)
