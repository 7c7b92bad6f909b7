"""Tuning databases, records of `ekiden.tune` in a folder."""

from __future__ import annotations

from pathlib import Path

from ekiden.compiler.options import use_records
from ekiden.ir.pass_context import USE_META_SCHEDULE_OPTION
from ekiden.runtime.files import PathName
from ekiden.tune.records import Records

__all__ = ["Database", "JSONDatabase"]

RECORDS_FILE_NAME = "records.json"


class Database:
    """Tuning database: the records of `work_dir`, or in memory only. As a context manager it
    applies to enclosed compilations.
    """

    def __init__(self, work_dir: PathName | None = None) -> None:
        if work_dir is None:
            self.records = Records()
        else:
            Path(work_dir).mkdir(parents=True, exist_ok=True)
            self.records = Records.open(Path(work_dir) / RECORDS_FILE_NAME)

    def __len__(self) -> int:
        return len(self.records)

    def __enter__(self) -> Database:
        self._context = use_records(self.records, USE_META_SCHEDULE_OPTION)
        self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)


class JSONDatabase(Database):
    """Tuning database of a folder, under TVM's name."""
