"""Search: one tuner for every kernel.

    Task        a workload (by structural hash) for a target, how much of a model's time it is
    Candidate   a rule and what was chosen in it: a family's decision, or a schedule's trace
    Space       the candidates of a task: the default, random ones, changes of one, mixtures of two
    Search      what to try next, of a space and what is known of it
    Measurer    builds candidates and runs them, in processes that may crash, hang or lie
    Records     what was found: a file of JSON lines, appended to and never rewritten
    Session     tasks, search and measurer together: who gets the next trials, and when to stop

A candidate is compared with the default in one process, in turns, and only a winner that two other
processes confirm, with results that agree, becomes a record that `compile(records=)` follows.

    ekiden.tune("model.onnx", trials=200, records="records.json")
    ekiden.compile("model.onnx", records="records.json")
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see import_late)
from ekiden.runtime.late import import_late

if TYPE_CHECKING:
    from ekiden.tune.candidate import Candidate
    from ekiden.tune.clusters import RayExecutor
    from ekiden.tune.foreign import read_autotvm, read_metaschedule
    from ekiden.tune.measure import Measurer, Outcome
    from ekiden.tune.records import Best, Records, Trial
    from ekiden.tune.remote import Remote
    from ekiden.tune.search import Evolution, Random, Replay, Search, learned
    from ekiden.tune.session import Session
    from ekiden.tune.sketch import TraceSpace
    from ekiden.tune.space import FamilySpace, Space
    from ekiden.tune.task import Task, schedule_task, te_task
    from ekiden.tune.template import get_config, template, template_task

__all__ = [
    "Best",
    "Candidate",
    "Evolution",
    "FamilySpace",
    "Measurer",
    "Outcome",
    "Random",
    "RayExecutor",
    "Records",
    "Remote",
    "Replay",
    "Search",
    "Session",
    "Space",
    "Task",
    "TraceSpace",
    "Trial",
    "extract_tasks",
    "get_config",
    "learned",
    "profile_sizes",
    "read_autotvm",
    "read_metaschedule",
    "schedule_task",
    "te_task",
    "template",
    "template_task",
]

_HOMES = {
    "Best": "records",
    "Candidate": "candidate",
    "Evolution": "search",
    "FamilySpace": "space",
    "Measurer": "measure",
    "Outcome": "measure",
    "Random": "search",
    "RayExecutor": "clusters",
    "Records": "records",
    "Remote": "remote",
    "Replay": "search",
    "Search": "search",
    "Session": "session",
    "Space": "space",
    "Task": "task",
    "TraceSpace": "sketch",
    "Trial": "records",
    "get_config": "template",
    "learned": "search",
    "read_autotvm": "foreign",
    "read_metaschedule": "foreign",
    "schedule_task": "task",
    "te_task": "task",
    "template": "template",
    "template_task": "template",
}


_OF_MODELS = ("extract_tasks", "profile_sizes")


def __getattr__(name: str) -> object:
    """Load a public name when it is first used: reading records needs no compiler."""
    if name in _OF_MODELS:
        home = "ekiden.compiler.tune"  # above this floor, as what imports models is
    elif name in _HOMES:
        home = f"{__name__}.{_HOMES[name]}"
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_late(home), name)
    globals()[name] = value
    return value


class _Callable(ModuleType):
    """This package, which can be called: `ekiden.tune(model, ...)`. A module that Python imports
    does not take the place of the name that it has: `template` is a function.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __call__(self, *args: object, **options: object) -> object:
        """What `ekiden.compiler.tune.tune` does."""
        return import_late("ekiden.compiler.tune").tune(*args, **options)


sys.modules[__name__].__class__ = _Callable
