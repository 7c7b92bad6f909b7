"""Search tasks for a computation, or for a kernel of a model, on a target."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ekiden import tune
from ekiden.auto_scheduler.compute_dag import ComputeDAG
from ekiden.auto_scheduler.search_policy import SearchPolicy, SketchPolicy
from ekiden.auto_scheduler.workload_registry import make_workload_key
from ekiden.autotvm.measure.measure_methods import MeasurerRunner
from ekiden.runtime.errors import InputError, LoadError
from ekiden.runtime.files import PathName
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target, TargetLike, target_or_current
from ekiden.te.tensor import Tensor
from ekiden.tir.schedule.trace import Trace
from ekiden.tir.stmt import PrimFunc
from ekiden.tune.measure import Measurer
from ekiden.tune.records import Record, Records, to_records
from ekiden.tune.session import Session
from ekiden.tune.sketch import TraceSpace
from ekiden.tune.task import Task as TuningTask

__all__ = [
    "HardwareParams",
    "MeasureInput",
    "MeasureResult",
    "SearchTask",
    "TuningOptions",
    "auto_schedule",
    "create_task",
]


class MeasureInput(NamedTuple):
    """Measured candidate: a record with the workload, the target and the schedule decision."""

    record: Record


class MeasureResult(NamedTuple):
    """Measurement: run times in seconds, or an error message."""

    costs: tuple[float, ...]
    error_no: int
    error_msg: str
    all_cost: float
    timestamp: float


@dataclass(frozen=True)
class HardwareParams:
    """Hardware parameters under TVM's names. Ekiden's are the target's: see `docs/targets.md`."""

    num_cores: int | None = None
    vector_unit_bytes: int | None = None
    cache_line_bytes: int | None = None
    max_shared_memory_per_block: int | None = None
    max_local_memory_per_block: int | None = None
    max_threads_per_block: int | None = None
    max_vthread_extent: int | None = None
    warp_size: int | None = None
    target: TargetLike | None = None
    target_host: TargetLike | None = None


class TuningOptions:
    """Tuning options of a search.

    Args:
        num_measure_trials: Candidates that are tried.
        early_stopping: Unused: a search ends where nothing more is expected to be won.
        num_measures_per_round: Unused: a batch is what runs in turns.
        verbose: Whether progress is printed: 0 for not.
        builder: "local" or a builder.
        runner: "local" or a runner.
        measure_callbacks: `RecordToFile`s, or functions that get the session after each batch.

    Raises:
        InputError: Another runner, or fewer than 0 trials.
    """

    def __init__(
        self,
        num_measure_trials: int = 0,
        early_stopping: int | None = None,
        num_measures_per_round: int = 64,
        verbose: int = 1,
        builder: object = "local",
        runner: object = "local",
        measure_callbacks: Sequence[Any] | None = None,
    ) -> None:
        if num_measure_trials < 0:
            raise InputError(f"TuningOptions: 0 trials or more expected, got {num_measure_trials}")
        if runner != "local" and not isinstance(runner, MeasurerRunner):
            raise InputError(f"TuningOptions: 'local' or a runner expected, got {runner!r}")
        self.num_measure_trials = num_measure_trials
        self.verbose = verbose
        self.measurer = runner.measurer if isinstance(runner, MeasurerRunner) else Measurer()
        self.measure_callbacks = list(measure_callbacks or ())


def run_session(
    tasks: Sequence[TuningTask], options: TuningOptions, policy: SearchPolicy | None
) -> Session:
    """Run a tuning session of `ekiden.tune` over tasks, and return it. Trials of existing log files
    count as measured, in addition to the options' number.
    """
    files = [c.filename for c in options.measure_callbacks if hasattr(c, "filename")]
    records = Records.open(files[0]) if files else Records()
    known = Records([*records, *(to_records(policy.preloaded) if policy is not None else ())])
    functions = [c for c in options.measure_callbacks if callable(c)]

    def report(session: Session) -> None:
        """Print the number of trials of each task and its time relative to the default."""
        if options.verbose:
            rows = (
                f"{s.task}: {s.trials} trials, {s.ratio:.3f} of the default" for s in session.states
            )
            sys.stdout.write("\n".join(rows) + "\n")
        for function in functions:
            function(session)

    session = Session(
        tasks, dataclasses.replace(known, path=records.path), options.measurer,
        policy.search if policy is not None else SearchPolicy.search, progress=report,
    )  # fmt: skip
    if options.num_measure_trials:
        session.run(session.trials + options.num_measure_trials)
    for path in files[1:]:
        Records.open(path).merge([session.records])
    return session


class SearchTask:
    """Search task for a computation on a target.

    Args:
        func: A registered workload, or its name.
        args: Its arguments.
        compute_dag: The computation, where no workload is given.
        workload_key: The key of a workload with its arguments.
        target: The target; the current one by default.
        target_host: The target's host.
        hardware_params: Unused: the target has the machine's facts.
        layout_rewrite_option: Unused: weights of models are packed by kernel families.
        task_inputs: Data of inputs by name; a search draws them.
        task_inputs_overwrite: Unused.
        task_inputs_save_to_file: Unused.
        desc: A name.

    Raises:
        InputError: Nothing to compute was given.
    """

    def __init__(
        self,
        func: str | Callable[..., Sequence[Tensor]] | None = None,
        args: Sequence[object] | None = None,
        compute_dag: ComputeDAG | None = None,
        workload_key: str | None = None,
        target: TargetLike | None = None,
        target_host: TargetLike | None = None,
        hardware_params: HardwareParams | None = None,
        layout_rewrite_option: object = None,
        task_inputs: Mapping[str, object] | None = None,
        task_inputs_overwrite: bool = False,
        task_inputs_save_to_file: bool = False,
        desc: str = "",
    ) -> None:
        if func is not None:
            workload_key = make_workload_key(func, args or ())
        if compute_dag is None:
            if workload_key is None:
                raise InputError("SearchTask: a workload, its key or a ComputeDAG expected")
            compute_dag = ComputeDAG(workload_key)
        self.compute_dag: Any = compute_dag
        self.workload_key = workload_key or compute_dag.workload_key()
        chosen = target_or_current(target)
        self.target = chosen if target_host is None else Target(chosen, host=target_host)
        self.hardware_params = hardware_params
        self.task_inputs = dict(task_inputs or {})
        self.desc = desc
        self._task: TuningTask | None = None

    @staticmethod
    def of_kernel(kernel: TuningTask) -> SearchTask:
        """Return the task of a model's kernel, whose computation is a primitive Relay function."""
        task = SearchTask.__new__(SearchTask)
        task.compute_dag, task.workload_key = kernel.source.function, f'["{kernel.workload}"]'
        task.target, task.hardware_params, task.task_inputs = kernel.target, None, {}
        task.desc, task._task = kernel.name, kernel
        return task

    @property
    def tuning_task(self) -> TuningTask:
        """Return the corresponding task of `ekiden.tune`. Raises CompileError where no sketch rule
        applies.
        """
        if self._task is None:
            self._task = tune.te_task(self.compute_dag.tensors, self.target, self.desc)
        return self._task

    def tune(
        self,
        tuning_options: TuningOptions,
        search_policy: SearchPolicy | None = None,
        adaptive_training: bool = False,
    ) -> None:
        """Run the search.

        Args:
            tuning_options: How long, and where the log goes.
            search_policy: How; by sketches and evolution by default.
            adaptive_training: Unused: the model is fitted to all measurements.

        Raises:
            InputError: Data of inputs are given, which a search draws.
        """
        if self.task_inputs:
            names = ", ".join(self.task_inputs)
            raise InputError(
                f"SearchTask.tune: data of inputs are drawn here, got those of {names}"
            )
        run_session([self.tuning_task], tuning_options, search_policy)

    def apply_best(
        self,
        log_file: PathName,
        include_compatible: bool = False,
        layout_rewrite_option: object = None,
    ) -> tuple[PrimFunc, list[Tensor]]:
        """Return the loop program of a log's best schedule with its tensors, as `lower` and `build`
        accept them; the default schedule if none was faster. Raises LoadError for a log without
        trials of this task.
        """
        records = self._read(log_file)
        return self.tuning_task.program(records), self.compute_dag.tensors

    def print_best(self, log_file: PathName, print_mode: str = "schedule") -> str:
        """Return the best schedule of a log as Python text, or in another print mode as its
        program. Raises LoadError for a log without trials of this task.
        """
        records, task = self._read(log_file), self.tuning_task
        best = records.best().get(task.key)
        if print_mode != "schedule" or best is None or not isinstance(task.space, TraceSpace):
            return str(task.program(records))
        return str(Trace.from_json(best.choice))

    def _read(self, log_file: PathName) -> Records:
        records = to_records(log_file)
        if not records.query(self.tuning_task.workload, str(self.tuning_task.target)):
            raise LoadError(f"'{log_file}' has no trials of {self.workload_key} for {self.target}")
        return records

    def __repr__(self) -> str:
        return f"SearchTask({self.desc or self.workload_key}, {self.target})"


def create_task(
    func: str | Callable[..., Sequence[Tensor]],
    args: Sequence[object],
    target: TargetLike | None,
    target_host: TargetLike | None = None,
    hardware_params: HardwareParams | None = None,
) -> SearchTask:
    """Create a search task, equivalent to `SearchTask(func, args, target=target)`."""
    return SearchTask(func, args, target=target, target_host=target_host)


def auto_schedule(
    task: SearchTask,
    search_policy: SearchPolicy | None = None,
    tuning_options: TuningOptions | None = None,
) -> tuple[PrimFunc, list[Tensor]]:
    """Tune a task, and return the program of the best schedule with its tensors."""
    policy = search_policy if search_policy is not None else SketchPolicy(task)
    session = run_session([task.tuning_task], tuning_options or TuningOptions(), policy)
    return task.tuning_task.program(session.records), task.compute_dag.tensors
