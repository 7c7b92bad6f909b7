"""Tuning of Relay programs."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.compiler.tune import extract_tasks
from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.meta_schedule.database import Database
from ekiden.relay.backend.build import build
from ekiden.relay.build_module import bind_params_in_module
from ekiden.runtime.files import PathName
from ekiden.target import Target, TargetLike
from ekiden.tune.measure import Measurer
from ekiden.tune.session import Session

__all__ = ["compile_relay", "tune_relay"]

Params = Mapping[str, object]


def tune_relay(
    mod: IRModule | BaseFunc,
    params: Params | None,
    target: TargetLike,
    work_dir: PathName,
    max_trials_global: int,
    *,
    database: Database | None = None,
    runner: Measurer | str = "local",
    seed: int = 0,
) -> Database:
    """Tune the kernels of a Relay program, and return the database of records.

    Args:
        mod: The program.
        params: Values of parameters by name.
        target: The target.
        work_dir: The folder of the records.
        max_trials_global: How many candidates are tried, of all kernels together.
        database: Where records are kept instead.
        runner: "local", or a `tune.Measurer`.
        seed: Of random numbers.

    Raises:
        InputError: No kernel has anything to choose.
    """
    tuned_database = database if database is not None else Database(work_dir)
    module = mod if isinstance(mod, IRModule) else IRModule.from_expr(mod)
    bound = bind_params_in_module(module, params) if params else module
    measurer = Measurer() if isinstance(runner, str) else runner
    tasks = extract_tasks(bound, Target(target)).tasks
    session = Session(tasks, tuned_database.records, measurer, seed=seed)
    session.run(session.trials + max_trials_global)
    return tuned_database


def compile_relay(
    database: Database,
    mod: IRModule | BaseFunc,
    target: TargetLike,
    params: Params | None = None,
    executor: str = "graph",
) -> object:
    """Compile a Relay program with the best records of a database, as `relay.build` does.

    Args:
        database: The records.
        mod: The program.
        target: The target that it was tuned for.
        params: Values of parameters by name.
        executor: "graph" or "aot".
    """
    with database:
        return build(mod, target, params=params, executor=executor)
