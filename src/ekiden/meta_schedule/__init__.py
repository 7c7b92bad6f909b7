"""MetaSchedule's API on top of `ekiden.tune`: tuning of loop programs and of Relay programs.

    database = ms.tune_tir(func, "llvm", work_dir="logs", max_trials_global=64)
    schedule = ms.tir_integration.compile_tir(database, func, "llvm")

Spaces, search and measurement are those of `ekiden.tune`: rules, mutators, postprocessors and cost
models of TVM's are no arguments here; `tune.rules.RULES` and `tune.Search` take a program's own.
"""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.meta_schedule.database import Database, JSONDatabase
    from ekiden.meta_schedule.relay_integration import compile_relay, tune_relay
    from ekiden.meta_schedule.tir_integration import compile_tir, tune_tir

__all__ = ["Database", "JSONDatabase", "compile_relay", "compile_tir", "tune_relay", "tune_tir"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "database": "Database JSONDatabase",
            "relay_integration": "compile_relay tune_relay",
            "tir_integration": "compile_tir tune_tir",
        },
    )
