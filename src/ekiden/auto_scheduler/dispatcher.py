"""Dispatch context that compiles models with the schedules of a tuning log."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from ekiden.auto_scheduler.search_task import MeasureInput, MeasureResult
from ekiden.compiler.options import use_records
from ekiden.ir.pass_context import USE_AUTO_SCHEDULER_OPTION
from ekiden.runtime.files import PathName
from ekiden.tune.records import Records, to_records

__all__ = ["ApplyHistoryBest"]

Pairs: TypeAlias = Iterable[tuple[MeasureInput, MeasureResult]]


class ApplyHistoryBest:
    """Context in which models are compiled with the logged schedules that were confirmed to be
    faster than the default (see `tune.use_records`).

    Args:
        records: A file, several, or pairs that `load_records` gives.
        n_lines: How many lines of it count; None for all.
        include_compatible: Unused: a record is of one target with all its facts.

    Raises:
        OSError: A file cannot be read.
        LoadError: A file has no records.
    """

    def __init__(
        self,
        records: PathName | Sequence[PathName] | Pairs | None,
        n_lines: int | None = None,
        include_compatible: bool = False,
    ) -> None:
        items: Any = records
        if records is not None and not isinstance(records, (str, os.PathLike)):
            items = list(records)
        if isinstance(items, list) and items and isinstance(items[0], tuple):
            read = Records([pair[0].record for pair in items])
        else:
            read = to_records(items)
        self.records = Records(list(read)[:n_lines])
        self._context: AbstractContextManager[None] | None = None

    def __enter__(self) -> ApplyHistoryBest:
        self._context = use_records(self.records, USE_AUTO_SCHEDULER_OPTION)
        self._context.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        assert self._context is not None, "the context was entered"
        self._context.__exit__(None, None, None)
