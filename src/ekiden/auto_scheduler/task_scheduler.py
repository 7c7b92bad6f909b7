"""Task scheduler that allocates trials to the tasks with the highest expected gain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ekiden.auto_scheduler.search_policy import PreloadMeasuredStates, SearchPolicy
from ekiden.auto_scheduler.search_task import SearchTask, TuningOptions, run_session
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName
from ekiden.tune.session import Session

__all__ = ["TaskScheduler"]


class TaskScheduler:
    """Scheduler that tunes several tasks in one session of `ekiden.tune`.

    Args:
        tasks: The tasks.
        task_weights: How often a run calls each; what extract_tasks says is known already.
        objective_func: Refused: what is made less is the time of a run.
        strategy: "gradient": a batch goes to the task that is expected to win most.
        load_model_file: Refused: a cost model is fitted to measurements.
        load_log_file: A log whose trials count as tried.
        alpha: Unused.
        beta: Unused.
        gamma: Unused.
        backward_window_size: Unused.
        callbacks: Unused: what is measured goes to the options' callbacks.

    Raises:
        InputError: An argument is refused, or there are no tasks.
    """

    def __init__(
        self,
        tasks: Sequence[SearchTask],
        task_weights: Sequence[float] | None = None,
        objective_func: Callable[..., float] | None = None,
        strategy: str = "gradient",
        load_model_file: PathName | None = None,
        load_log_file: PathName | None = None,
        alpha: float = 0.2,
        beta: float = 2,
        gamma: float = 0.5,
        backward_window_size: int = 3,
        callbacks: Sequence[object] | None = None,
    ) -> None:
        if objective_func is not None or load_model_file is not None:
            raise InputError("TaskScheduler: neither objective_func nor load_model_file is taken")
        if strategy != "gradient":
            raise InputError(f"TaskScheduler: the strategy 'gradient' expected, got {strategy!r}")
        if not tasks:
            raise InputError("TaskScheduler: tasks expected, got none")
        self.tasks = list(tasks)
        self.task_weights = list(task_weights or [task.tuning_task.calls for task in tasks])
        self.load_log_file = load_log_file
        self.session: Session | None = None

    @property
    def best_costs(self) -> list[float]:
        """Return the best run time of each task in seconds; infinite before its first trial."""
        if self.session is None:
            return [math.inf] * len(self.tasks)
        return [state.default_seconds * state.ratio for state in self.session.states]

    def tune(
        self,
        tune_option: TuningOptions,
        search_policy: SearchPolicy | str = "default",
        search_policy_params: object = None,
        adaptive_training: bool = False,
        per_task_early_stopping: int | None = None,
    ) -> None:
        """Run the search over all tasks.

        Args:
            tune_option: How long, and where the log goes.
            search_policy: How; by evolution by default.
            search_policy_params: Unused.
            adaptive_training: Unused.
            per_task_early_stopping: Unused: a task ends where nothing more is expected to be won.
        """
        policy = search_policy if isinstance(search_policy, SearchPolicy) else None
        if self.load_log_file is not None:
            policy = policy if policy is not None else SearchPolicy(self.tasks[0])
            policy.callbacks.append(PreloadMeasuredStates(self.load_log_file))
        self.session = run_session([t.tuning_task for t in self.tasks], tune_option, policy)
