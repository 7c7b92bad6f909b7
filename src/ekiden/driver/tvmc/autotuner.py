"""Implementation of `tvmc tune`, which writes a file of tuning records."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from ekiden.compiler.tune import extract_tasks
from ekiden.driver.tvmc.compiler import read_tuning_records
from ekiden.driver.tvmc.model import TVMCModel
from ekiden.driver.tvmc.target import target_from_cli
from ekiden.relay.build_module import bind_params_in_module
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName
from ekiden.target import Target, TargetLike
from ekiden.tune.cost_model import NearestNeighbours
from ekiden.tune.measure import Measurer
from ekiden.tune.records import Records
from ekiden.tune.remote import Remote
from ekiden.tune.search import Evolution, Random, Search
from ekiden.tune.session import Session
from ekiden.tune.task import Task

__all__ = ["filter_tasks", "tune_model"]

TUNERS: Mapping[str, Search] = {
    "ga": Evolution(),
    "gridsearch": Evolution(),
    "random": Random(),
    "xgb": Evolution(model=NearestNeighbours),
    "xgb_knob": Evolution(model=NearestNeighbours),
    "xgb-rank": Evolution(model=NearestNeighbours),
}
"""Name of `--tuner` -> search. Spaces of kernels are too large for a grid."""


def tune_model(
    tvmc_model: TVMCModel,
    target: TargetLike,
    tuning_records: PathName | None = None,
    prior_records: PathName | None = None,
    enable_autoscheduler: bool = False,
    hostname: str | None = None,
    port: int | str = 9090,
    rpc_key: str | None = None,
    trials: int = 1000,
    target_host: TargetLike | None = None,
    tuner: str = "xgb",
    min_repeat_ms: int | None = None,
    early_stopping: int | None = None,
    timeout: float = 30,
    repeat: int = 1,
    number: int = 10,
    parallel: int | None = None,
    hardware_params: object = None,
    include_simple_tasks: bool = False,
    log_estimated_latency: bool = False,
    additional_target_options: Mapping[str, Mapping[str, object]] | None = None,
    tasks_filter: str | None = None,
) -> str:
    """Tune a model's kernels, and return the path of the tuning records.

    Args:
        tvmc_model: The model.
        target: The target.
        tuning_records: The file of the records; by default one that lasts as long as the model.
        prior_records: A file whose records count as tried.
        enable_autoscheduler: Unused: there is one search.
        hostname: The tracker of a server that measures; None for this machine.
        port: The tracker's port.
        rpc_key: The server's key at the tracker.
        trials: Candidates that are tried.
        target_host: The target's host.
        tuner: "xgb", "ga", "random", ...
        min_repeat_ms: Milliseconds of the turns of a batch, at least.
        early_stopping: Unused: a search ends where nothing more is expected to be won.
        timeout: Seconds of a process that measures.
        repeat: Unused: turns are as many as the clock needs.
        number: Unused, the same.
        parallel: Processes that compile.
        hardware_params: Unused: the target has the machine's facts.
        include_simple_tasks: Unused: what has no choices is no task.
        log_estimated_latency: Unused: records have the times.
        additional_target_options: Options by kind of target.
        tasks_filter: "all", or numbers and ranges of tasks such as "0,2-4"; "list" prints them.

    Raises:
        InputError: An option has another value.
        CompileError: The model cannot be compiled.
    """
    if tuner not in TUNERS:
        raise InputError(f"tvmc: tuner one of {', '.join(TUNERS)} expected, got '{tuner}'")
    if hostname is not None and rpc_key is None:
        raise InputError("tvmc: tune: a server has a key at its tracker: rpc_key (--rpc-key)")
    chosen, _ = target_from_cli(target, additional_target_options)
    if target_host is not None:
        chosen = Target(chosen, host=target_host)
    module = tvmc_model.mod
    if tvmc_model.params:
        module = bind_params_in_module(module, tvmc_model.params)
    tasks = filter_tasks(extract_tasks(module, chosen).tasks, tasks_filter or "all")
    path = os.fspath(tuning_records or tvmc_model.default_tuning_records_path())
    if not tasks:
        return path
    if prior_records is not None and os.fspath(prior_records) != path:
        if not os.path.exists(path):
            shutil.copyfile(prior_records, path)
        else:
            Records.open(path).merge([read_tuning_records(prior_records)])
    remote = Remote(hostname, int(port), rpc_key or "", is_tracker=True) if hostname else None
    measurer = Measurer(remote=remote, run_seconds=timeout)
    if parallel:
        measurer = dataclasses.replace(measurer, jobs=parallel)
    if min_repeat_ms:
        measurer = dataclasses.replace(measurer, race_seconds=max(1.5, min_repeat_ms / 1000))
    session = Session(tasks, Records.open(path), measurer, TUNERS[tuner], progress=_print_progress)
    session.run(session.trials + trials)
    return path


def filter_tasks(tasks: Sequence[Task], expression: str) -> list[Task]:
    """Select tasks by an expression such as "0,2-4" or "all"; "list" prints all and selects none.
    Raises InputError for another expression.
    """
    chosen: dict[int, Task] = {}
    for selector in (selector.strip() for selector in expression.split(",")):
        first, dash, last = selector.partition("-")
        if selector in ("list", "help"):
            rows = (f"{n:3} {task.calls:3} {task}" for n, task in enumerate(tasks))
            print("\n".join(rows))
            return []
        if selector == "all":
            chosen |= dict(enumerate(tasks))
        elif first.isdigit() and (last.isdigit() or not last):
            end = int(last) if last else len(tasks) - 1 if dash else int(first)
            if end >= len(tasks):
                raise InputError(f"tvmc: tasks 0 to {len(tasks) - 1} expected, got '{selector}'")
            chosen |= {n: tasks[n] for n in range(int(first), end + 1)}
        else:
            raise InputError(f"tvmc: --tasks: numbers or ranges expected, got '{selector}'")
    return [chosen[n] for n in sorted(chosen)]


def _print_progress(session: Session) -> None:
    done = ", ".join(f"{s.task} {s.ratio:.2f}" for s in session.states if s.trials)
    sys.stdout.write(f"{session.trials} trials: {done}\n")
