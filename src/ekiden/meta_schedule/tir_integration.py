"""Tuning of loop programs."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.meta_schedule.database import Database
from ekiden.runtime.errors import CompileError, InputError
from ekiden.runtime.files import PathName
from ekiden.target import TargetLike
from ekiden.tir import PrimFunc, Schedule
from ekiden.tune.measure import Measurer
from ekiden.tune.session import Session
from ekiden.tune.task import Task, prim_func_task

__all__ = ["compile_tir", "tune_tir"]


def _task(mod: IRModule | PrimFunc, target: TargetLike, name: str) -> Task:
    """Return the tuning task of a loop program, or of the only one of a module. Raises
    InputError.
    """
    functions = [mod] if isinstance(mod, PrimFunc) else list(mod.functions.values())
    if len(functions) != 1 or not isinstance(functions[0], PrimFunc):
        raise InputError(
            f"tune_tir: one loop program expected, got a module of {len(functions)} functions"
        )
    return prim_func_task(functions[0], target, name)


def tune_tir(
    mod: IRModule | PrimFunc,
    target: TargetLike,
    work_dir: PathName,
    max_trials_global: int,
    *,
    database: Database | None = None,
    runner: Measurer | str = "local",
    task_name: str = "main",
    seed: int = 0,
) -> Database:
    """Tune a loop program, and return the database of records.

    Args:
        mod: A loop program, or a module of one.
        target: The target.
        work_dir: The folder of the records.
        max_trials_global: How many candidates are tried.
        database: Where records are kept instead.
        runner: "local", or a `tune.Measurer`.
        task_name: A name for messages.
        seed: Of random numbers.

    Raises:
        InputError: There is not one loop program.
        CompileError: No rule has a schedule for it.
    """
    tuned_database = database if database is not None else Database(work_dir)
    measurer = Measurer() if isinstance(runner, str) else runner
    session = Session([_task(mod, target, task_name)], tuned_database.records, measurer, seed=seed)
    session.run(session.trials + max_trials_global)
    return tuned_database


def compile_tir(
    database: Database, mod: IRModule | PrimFunc, target: TargetLike
) -> Schedule | None:
    """Return the schedule of a loop program's best record, or None if there is none.

    Args:
        database: The records.
        mod: A loop program, or a module of one.
        target: The target that it was tuned for.

    Raises:
        CompileError: A record does not apply.
    """
    try:
        task = _task(mod, target, "")
    except CompileError:
        return None
    if task.key not in database.records.best():
        return None
    return Schedule(task.program(database.records))
