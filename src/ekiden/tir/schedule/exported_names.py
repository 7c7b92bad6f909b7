"""The exported names of `ekiden.tir.schedule`, loaded on first use."""

from ekiden.runtime.errors import ScheduleError
from ekiden.tir.schedule.core import StmtSRef
from ekiden.tir.schedule.schedule import Schedule
from ekiden.tir.schedule.trace import BlockRV, ExprRV, Instruction, LoopRV, Trace

__all__ = [
    "BlockRV", "ExprRV", "Instruction", "LoopRV", "Schedule", "ScheduleError", "StmtSRef", "Trace",
]  # fmt: skip
