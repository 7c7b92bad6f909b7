"""A tuning session: tasks, search and measurer together: who gets the next trials, what is
recorded, when to stop.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TypeAlias

from ekiden.runtime.errors import InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tune.candidate import Candidate
from ekiden.tune.measure import Measurer, NoDefaultError, Outcome
from ekiden.tune.records import Best, Record, Records, Trial, is_faster
from ekiden.tune.search import Evolution, Search
from ekiden.tune.task import Task

MAX_WIN_RATIO = 0.98
"""Maximum time ratio that counts as faster than the default, beyond measurement noise."""
UNSTEADY_TIME_RATIO = 1.5
"""Ratio between processes above which a candidate's time is unreliable."""
DISTURBED_TIME_RATIO = 1.1
"""Ratio of the default's time to its fastest above which the machine is considered disturbed: on a
Zen 3 whose caches others used, a product at 0.89 of the default's time was at 1.02 to 1.04 of it
later, while the default took 1.37 of its own.
"""
MAX_CONFIRMATIONS = 3
"""Maximum number of confirmation attempts on a disturbed machine."""
EXPECTED_RELATIVE_GAIN = 0.1
"""Relative gain expected from doubling the trials of a task."""
MIN_RELATIVE_GAIN = 2e-4
"""Minimum expected gain of a batch, relative to the time of all tasks."""
MAX_TASK_FAILURES = 24
"""Number of failed trials without a success after which a task is abandoned."""


@dataclass(slots=True)
class TaskState:
    """Tuning state of a task: everything measured about it."""

    task: Task
    history: dict[Candidate, float] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)
    """Best confirmed ratio after each trial."""
    confirmed: dict[Candidate, Best] = field(default_factory=dict)
    """Confirmed candidates that are not revoked."""
    is_best_reconfirmed: bool = True
    """Whether the best was measured against this run's default."""
    default_seconds: float = math.inf
    """Fastest time of the default in seconds."""
    run_default_seconds: float = math.inf
    """Fastest time of the default in this run."""
    end_reason: str = ""
    """Reason why it gets no more trials."""
    failures_by_status: dict[str, int] = field(default_factory=dict)
    """Number of failed trials by status."""
    first_failure: str = ""

    @property
    def trials(self) -> int:
        """Return the number of candidates tried."""
        return len(self.curve)

    @property
    def best(self) -> Best | None:
        """Return the fastest confirmed candidate."""
        return min(self.confirmed.values(), key=lambda r: r.ratio, default=None)

    @property
    def ratio(self) -> float:
        """Return the best candidate's time over the default's; 1 if there is none."""
        return self.best.ratio if self.best is not None else 1.0

    @property
    def weight(self) -> float:
        """Return the seconds of a model run spent in the default kernel; 0 where it never ran."""
        return self.task.calls * self.default_seconds if self.default_seconds < math.inf else 0.0

    def expected_gain(self, window: int) -> float:
        """Return the seconds per model run that the next trial is expected to save: what the last
        ones did, and what is hoped of any.
        """
        if not self.curve:
            return math.inf
        before = self.curve[-window] if len(self.curve) > window else 1.0
        # The recent slope, mixed with the optimistic assumption that as many trials again win
        # EXPECTED_RELATIVE_GAIN.
        won = (before - self.curve[-1]) / min(window, len(self.curve))
        return self.weight * 0.5 * (won + EXPECTED_RELATIVE_GAIN * self.ratio / len(self.curve))

    def add(self, record: Record) -> None:
        """Add a record of this task."""
        candidate = Candidate(record.rule, record.choice)
        if isinstance(record, Best):
            self.confirmed[candidate] = record
        else:
            if not is_faster(record):
                # A later trial that is not faster revokes an earlier win.
                self.confirmed.pop(candidate, None)
            is_new = candidate not in self.history
            self.history[candidate] = record.ratio if record.status == "ok" else math.inf
            if record.status != "ok":
                self.failures_by_status[record.status] = (
                    self.failures_by_status.get(record.status, 0) + 1
                )
                self.first_failure = self.first_failure or f"{record.status}: {record.said}"
            if is_new:
                self.curve.append(self.ratio)
        if record.untuned > 0:
            self.default_seconds = min(self.default_seconds, record.untuned)
        if self.curve:
            self.curve[-1] = min(self.curve[-1], self.ratio)


Progress: TypeAlias = Callable[["Session"], None]
"""Called after each batch."""


@dataclass(slots=True)
class Session:
    """Tuning session: `run` continues until its trials, its time or the expected gain are
    exhausted.

    Every trial is in `records` before the next batch begins, so that an interrupted run loses at
    most one batch and another resumes there. Only records that were measured with the same sizes,
    threads and processor count as this run's are reused.
    """

    tasks: Sequence[Task]
    records: Records = field(default_factory=Records)
    measurer: Measurer = field(default_factory=Measurer)
    search: Search = field(default_factory=Evolution)
    seed: int = 0
    progress: Progress | None = None
    states: list[TaskState] = field(init=False)
    started: float = field(init=False, default=0.0)
    budget: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InputError("tune: there is no kernel with anything to choose")
        self.states = [self._restore_state(task) for task in self.tasks]

    def _restore_state(self, task: Task) -> TaskState:
        """Return a task's state, restored from matching records."""
        state = TaskState(task)
        for record in self.records.query(task.workload, str(task.target)):
            same = (record.sizes or [{}], record.shares, record.threads, record.processor)
            sizes = ([dict(s) for s in task.sizes], list(task.shares))
            current = (*sizes, self.measurer.threads, self.measurer.processor)
            # Records of other threads, sizes or processors say nothing about this run.
            if same == current and not task.space.refusal(Candidate(record.rule, record.choice)):
                state.add(record)
        state.is_best_reconfirmed = state.best is None
        return state

    @property
    def trials(self) -> int:
        """Return the number of candidates tried, earlier runs included."""
        return sum(s.trials for s in self.states)

    @property
    def seconds_left(self) -> float:
        """Estimate the remaining seconds from this run's speed."""
        done = self.trials - self._trials_before
        spent = time.monotonic() - self.started
        return (self.budget - self.trials) * spent / done if done else math.inf

    _trials_before: int = field(init=False, default=0)

    def run(self, trials: int, seconds: float = math.inf) -> None:
        """Try candidates until their number, earlier ones included, or the time limit is reached;
        less where nothing more can be won. Raises RunError where no kernel can be measured.
        """
        if trials < 1:
            raise InputError(f"tune: trials above 0 expected, got {trials}")
        self.started, self.budget, self._trials_before = time.monotonic(), trials, self.trials
        try:
            self._run_trials(trials, seconds)
        finally:
            self.measurer.release()
        if all(s.end_reason and not s.trials for s in self.states):
            raise NoDefaultError(self.states[0].end_reason)

    def _run_trials(self, trials: int, seconds: float) -> None:
        while self.trials < trials and time.monotonic() - self.started < seconds:
            state = self._next_task()
            if state is None:
                break
            self._run_batch(state, min(self.measurer.batch * self.measurer.runners,
                                       trials - self.trials))  # fmt: skip
            if self.progress is not None:
                self.progress(self)

    def _next_task(self) -> TaskState | None:
        """Return the task expected to gain most from a batch; every task is tried once first, the
        largest first.
        """
        batch = self.measurer.batch
        open_states = [s for s in self.states if not s.end_reason]
        new = [s for s in open_states if not s.trials]
        if new:
            # Nothing is measured yet, so operation counts stand in for time.
            return max(new, key=lambda s: s.task.calls * s.task.flops)
        best = max(open_states, key=lambda s: s.expected_gain(2 * batch), default=None)
        total = sum(s.weight * s.ratio for s in self.states)
        # No remaining task is expected to gain enough to pay for a batch.
        if best is None or batch * best.expected_gain(2 * batch) < MIN_RELATIVE_GAIN * total:
            return None
        return best

    def _run_batch(self, state: TaskState, count: int) -> None:
        """Propose, measure and record a batch; a winner is confirmed before it is recorded
        as best.
        """
        # Seeded by task and trial count: a resumed session continues with the same candidates.
        task, source = state.task, random.Random(f"{self.seed} {state.task.key} {state.trials}")
        try:
            self._revoke_if_slower(state, source.randrange(1 << 30))
        except NoDefaultError as error:
            state.end_reason = str(error)
            return
        chosen = self.search.propose(task.space, state.history, count, source)
        if not chosen:
            state.end_reason = "everything was tried"
            return
        incumbent = Candidate(state.best.rule, state.best.choice) if state.best else None
        seed = source.randrange(1 << 30)
        try:
            for outcome in self.measurer.measure(task, chosen, incumbent, seed):
                self._record_outcome(state, outcome, seed)
        except NoDefaultError as error:
            state.end_reason = str(error)
            return
        if state.trials >= MAX_TASK_FAILURES and not any(
            r < math.inf for r in state.history.values()
        ):
            state.end_reason = f"nothing worked: {state.first_failure}"

    def _revoke_if_slower(self, state: TaskState, seed: int) -> None:
        """Revoke an earlier run's best if it is not faster than this run's default: the default may
        have become faster since. (C3D on Zen 4: 0.98 of the time of a default was 1.1 of the
        next one's.)
        """
        while not state.is_best_reconfirmed and (best := state.best) is not None:
            again = self.measurer.confirm(state.task, Candidate(best.rule, best.choice), seed)
            last, fastest = again[-1], min(again, key=lambda o: o.ratio)
            trial = _make_trial(self, state.task, fastest if last.is_ok else last)
            if is_faster(trial) or trial.status == "lost":
                break
            self._append_records(state, trial)
        state.is_best_reconfirmed = True

    def _record_outcome(self, state: TaskState, outcome: Outcome, seed: int) -> None:
        """Record an outcome; one that appears to beat the best is confirmed first."""
        if not outcome.is_ok or outcome.ratio > MAX_WIN_RATIO * state.ratio:
            self._append_records(state, _make_trial(self, state.task, outcome))
            return
        again, slower = self._confirm(state, outcome, seed)
        last = again[-1]
        if not last.is_ok:
            outcome = last
        elif slower > DISTURBED_TIME_RATIO:
            reason = (
                f"{outcome.ratio:.2f} of the default's time, which was {slower:.2f} of its least"
            )
            outcome = Outcome(outcome.candidate, "unsteady", said=reason)
        elif max(o.ratio for o in again) > UNSTEADY_TIME_RATIO * outcome.ratio:
            reason = (
                f"{outcome.ratio:.2f} of the default's time was {max(o.ratio for o in again):.2f}"
            )
            outcome = Outcome(outcome.candidate, "unsteady", said=f"{reason} in another process")
        else:
            # The first measurement was selected for being fast, which biases it; the worst of
            # several is reported.
            worst = max([outcome, *again], key=lambda o: o.ratio)
            outcome = worst
        trial = _make_trial(self, state.task, outcome)
        if outcome.is_ok and outcome.ratio <= MAX_WIN_RATIO * state.ratio:
            best = Best(
                **{f: getattr(trial, f) for f in _TRIAL_FIELDS}, confirmed=[o.ratio for o in again]
            )
            self._append_records(state, best, trial)
        else:
            self._append_records(state, trial)

    def _confirm(
        self, state: TaskState, outcome: Outcome, seed: int
    ) -> tuple[list[Outcome], float]:
        """Measure a candidate in other processes, and return how much slower than its fastest time
        the default was there; repeat while the machine is disturbed.
        """
        fastest_default = min(state.run_default_seconds, outcome.untuned)
        for attempt in range(MAX_CONFIRMATIONS):
            # Another seed, so that results are compared on other data too.
            again = self.measurer.confirm(state.task, outcome.candidate, seed ^ (attempt + 1))
            times = [o.untuned for o in again if o.is_ok]
            fastest_default = state.run_default_seconds = min([fastest_default, *times])
            slower = max(times, default=0.0) / fastest_default if fastest_default > 0 else 1.0
            # An undisturbed machine's answer is final, whichever it is.
            if slower <= DISTURBED_TIME_RATIO or not again[-1].is_ok:
                break
        return again, slower

    def _append_records(self, state: TaskState, *records: Record) -> None:
        """Append records and update the task's state."""
        self.records.append(*records)
        for record in records:
            state.add(record)
            if record.untuned > 0:
                state.run_default_seconds = min(state.run_default_seconds, record.untuned)


_TRIAL_FIELDS = tuple(Trial.__dataclass_fields__)


def _make_trial(session: Session, task: Task, outcome: Outcome) -> Trial:
    def finite_or_zero(value: float) -> float:
        return float(f"{value:.4g}") if value < math.inf else 0.0

    return Trial(
        workload=task.workload,
        target=str(task.target),
        rule=outcome.candidate.rule,
        choice=outcome.candidate.choice,
        name=task.name,
        status=outcome.status,
        ratio=finite_or_zero(outcome.ratio),
        seconds=finite_or_zero(outcome.seconds),
        untuned=finite_or_zero(outcome.untuned),
        threads=session.measurer.threads,
        processor=session.measurer.processor,
        sizes=[dict(s) for s in task.sizes if s],
        shares=list(task.shares),
        said=outcome.said[:400],
        search=session.search.name,
    )
