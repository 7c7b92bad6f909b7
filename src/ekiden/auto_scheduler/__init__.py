"""TVM's auto-scheduler API on top of `ekiden.tune`: workloads, search tasks, tuning options and
logs.

    @auto_scheduler.register_workload
    def matmul(n): ...

    task = auto_scheduler.SearchTask(func=matmul, args=(512,), target="llvm")
    task.tune(auto_scheduler.TuningOptions(
        num_measure_trials=64, measure_callbacks=[auto_scheduler.RecordToFile("matmul.json")]))
    program, tensors = task.apply_best("matmul.json")

A task's schedules are the sketches of `tune.te_task`, or the choices of a model's kernel; a log is
a file of `tune.Records`. `ApplyHistoryBest` compiles models by one.
"""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.auto_scheduler.compute_dag import ComputeDAG
    from ekiden.auto_scheduler.dispatcher import ApplyHistoryBest
    from ekiden.auto_scheduler.measure import (
        LocalBuilder,
        LocalRPCMeasureContext,
        LocalRunner,
        RPCRunner,
    )
    from ekiden.auto_scheduler.measure_record import (
        MeasureInput,
        MeasureResult,
        RecordReader,
        RecordToFile,
        load_best_record,
        load_records,
    )
    from ekiden.auto_scheduler.relay_integration import extract_tasks
    from ekiden.auto_scheduler.search_policy import (
        EmptyPolicy,
        PreloadCustomSketchRule,
        PreloadMeasuredStates,
        RandomModel,
        SketchPolicy,
        XGBModel,
    )
    from ekiden.auto_scheduler.search_task import (
        HardwareParams,
        SearchTask,
        TuningOptions,
        auto_schedule,
        create_task,
    )
    from ekiden.auto_scheduler.task_scheduler import TaskScheduler
    from ekiden.auto_scheduler.workload_registry import make_workload_key, register_workload

__all__ = [
    "ApplyHistoryBest",
    "ComputeDAG",
    "EmptyPolicy",
    "HardwareParams",
    "LocalBuilder",
    "LocalRPCMeasureContext",
    "LocalRunner",
    "MeasureInput",
    "MeasureResult",
    "PreloadCustomSketchRule",
    "PreloadMeasuredStates",
    "RPCRunner",
    "RandomModel",
    "RecordReader",
    "RecordToFile",
    "SearchTask",
    "SketchPolicy",
    "TaskScheduler",
    "TuningOptions",
    "XGBModel",
    "auto_schedule",
    "create_task",
    "extract_tasks",
    "load_best_record",
    "load_records",
    "make_workload_key",
    "register_workload",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "compute_dag": "ComputeDAG",
            "dispatcher": "ApplyHistoryBest",
            "measure": "LocalBuilder LocalRPCMeasureContext LocalRunner RPCRunner",
            "measure_record": "MeasureInput MeasureResult RecordReader RecordToFile "
            "load_best_record load_records",
            "relay_integration": "extract_tasks",
            "search_policy": "EmptyPolicy PreloadCustomSketchRule PreloadMeasuredStates "
            "RandomModel SketchPolicy XGBModel",
            "search_task": "HardwareParams SearchTask TuningOptions auto_schedule create_task",
            "task_scheduler": "TaskScheduler",
            "workload_registry": "make_workload_key register_workload",
        },
    )
