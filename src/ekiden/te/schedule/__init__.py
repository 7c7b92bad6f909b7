"""Schedules of tensor expressions by stages, under TVM's names."""

from ekiden.te.schedule.auto_inline import (
    auto_inline_broadcast,
    auto_inline_elementwise,
    auto_inline_injective,
)
from ekiden.te.schedule.lowering import infer_bound, lower, schedule_ops
from ekiden.te.schedule.relations import Fuse, IterVar, Singleton, Split, ThreadAxis, thread_axis
from ekiden.te.schedule.schedule import Schedule, create_schedule
from ekiden.te.schedule.stage import Stage

InferBound, ScheduleOps = infer_bound, schedule_ops
AutoInlineElemWise, AutoInlineInjective = auto_inline_elementwise, auto_inline_injective
AutoInlineBroadcast = auto_inline_broadcast

__all__ = [
    "AutoInlineBroadcast", "AutoInlineElemWise", "AutoInlineInjective", "Fuse", "InferBound",
    "IterVar", "Schedule", "ScheduleOps", "Singleton", "Split", "Stage", "ThreadAxis",
    "create_schedule", "infer_bound", "lower", "schedule_ops", "thread_axis",
]  # fmt: skip
