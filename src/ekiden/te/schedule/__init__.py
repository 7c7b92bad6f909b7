"""Schedules of tensor expressions, by stages, under TVM's names."""

from ekiden.te.schedule.lowering import infer_bound, lower
from ekiden.te.schedule.relations import (
    Fuse,
    IterVar,
    Singleton,
    Split,
    ThreadAxis,
    thread_axis,
)
from ekiden.te.schedule.schedule import Schedule, create_schedule
from ekiden.te.schedule.stage import Stage

InferBound = infer_bound

__all__ = [
    "Fuse", "InferBound", "IterVar", "Schedule", "Singleton", "Split", "Stage", "ThreadAxis",
    "create_schedule", "infer_bound", "lower", "thread_axis",
]  # fmt: skip
