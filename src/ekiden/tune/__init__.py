"""Autotuning: one tuner for every kernel.

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

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach, load_module

if TYPE_CHECKING:
    from ekiden.tune.candidate import Candidate
    from ekiden.tune.clusters import RayExecutor
    from ekiden.tune.measure import Measurer, Outcome
    from ekiden.tune.records import Best, Records, Trial
    from ekiden.tune.remote import Remote
    from ekiden.tune.schedule_templates import get_config, template, template_task
    from ekiden.tune.search import Evolution, Random, Replay, Search, learned
    from ekiden.tune.session import Session
    from ekiden.tune.sketch import TraceSpace
    from ekiden.tune.space import FamilySpace, Space
    from ekiden.tune.task import Task, prim_func_task, schedule_task, te_task
    from ekiden.tune.tvm_records import read_autotvm, read_metaschedule

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
    "prim_func_task",
    "profile_sizes",
    "read_autotvm",
    "read_metaschedule",
    "schedule_task",
    "te_task",
    "template",
    "template_task",
    "use_records",
]

if not TYPE_CHECKING:  # reading records needs no compiler
    __getattr__, __dir__ = attach(
        __name__,
        {
            "records": "Best Records Trial",
            "candidate": "Candidate",
            "search": "Evolution Random Replay Search learned",
            "space": "FamilySpace Space",
            "measure": "Measurer Outcome",
            "clusters": "RayExecutor",
            "remote": "Remote",
            "session": "Session",
            "task": "Task prim_func_task schedule_task te_task",
            "sketch": "TraceSpace",
            "schedule_templates": "get_config template template_task",
            "tvm_records": "read_autotvm read_metaschedule",
            "ekiden.compiler.tune": "extract_tasks profile_sizes",
            "ekiden.compiler.options": "use_records",
        },
    )


class _CallablePackage(ModuleType):
    """The package called like its function, `ekiden.tune(model, ...)`. Its class is what Python has
    for that: a module's own `__call__` is not looked up.
    """

    def __call__(self, *args: object, **options: object) -> object:
        """Call `ekiden.compiler.tune.tune`."""
        return load_module("ekiden.compiler.tune").tune(*args, **options)


sys.modules[__name__].__class__ = _CallablePackage
