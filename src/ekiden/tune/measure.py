"""Building and running candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import cast

from ekiden.runtime import environment
from ekiden.runtime.errors import EkidenError, InputError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tune.candidate import Candidate
from ekiden.tune.job_messages import Head, Message
from ekiden.tune.program import CANDIDATE_KERNEL_NAME
from ekiden.tune.records import processor
from ekiden.tune.remote import Remote
from ekiden.tune.task import Task
from ekiden.tune.workers import WorkerJob, close_workers, run_in_worker

OUTCOME_STATUSES: Mapping[str, str] = {
    "ok": "it ran, and its results are the default's",
    "refused": "there cannot be such a candidate",
    "build crash": "compiling it ended the process",
    "build timeout": "compiling it took too long",
    "build memory": "compiling it took too much memory",
    "crash": "running it ended the process",
    "timeout": "running it took too long",
    "memory": "running it took too much memory",
    "wrong": "its results are not the default's, or it wrote where it may not",
    "lies": "one process said that its results are the default's, others did not",
    "unsteady": "it was far faster in one process than in others, or on a disturbed machine",
    "lost": "the machine that had it is gone",
}
"""Meaning of each outcome status."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one candidate. ratio: its time over the default's, in the same process."""

    candidate: Candidate
    status: str
    ratio: float = math.inf
    seconds: float = math.inf
    untuned: float = math.inf
    said: str = ""
    sample: tuple[float, ...] = ()
    """Checksums of its results and of the default's."""
    untuned_sample: tuple[float, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Return whether it was timed."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class _BuiltCandidate:
    """A compiled candidate, ready to run."""

    candidate: Candidate
    image: bytes
    args: list[object]
    outputs: int


@dataclass(frozen=True)
class Measurer:
    """Measurer that builds candidates in parallel processes, and runs them in others, one after the
    other.

    executor: where that is done, any concurrent.futures.Executor; None for threads of this process
    that each ask a process. With an executor several batches run at the same time, on as many
    machines as it has: `runners`. threads: of a run; with 1, times are those of the thread, which
    others on the machine lengthen little. cold: whether caches are emptied before each call. turns,
    race_seconds: of a batch at most. build_seconds, run_seconds, memory: of a process.
    """

    executor: Executor | None = None
    runners: int = 1
    jobs: int = field(default_factory=environment.num_compile_jobs)
    threads: int = 1
    cold: bool = False
    turns: int = 12
    race_seconds: float = 1.5
    build_seconds: float = 60.0
    run_seconds: float = 30.0
    memory: int = 4 << 30
    batch: int = 8
    """Number of candidates timed in turns in one process, beside the default and the best so far.
    """
    retries: int = 2
    """Number of retries of a job whose machine was lost."""
    remote: Remote | None = None
    """RPC server whose sessions run candidates; None for local processes."""
    build_function: str = "ekiden.tune.build_job:job"
    run_function: str = "ekiden.tune.run_job:job"
    _kept: dict[tuple[str, Candidate], _BuiltCandidate] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for name in ("runners", "jobs", "threads", "turns", "batch"):
            if int(getattr(self, name)) < 1:
                raise InputError(f"tune: {name} above 0 expected, got {getattr(self, name)}")
        if self.remote is not None and (self.threads != 1 or self.cold):
            raise InputError("tune: with remote= neither threads= nor cold=: a server has its own")

    @property
    def processor(self) -> str:
        """Return the name under which records store the machine that runs candidates."""
        return processor() if self.remote is None else self.remote.processor

    def measure(
        self,
        task: Task,
        candidates: Sequence[Candidate],
        incumbent: Candidate | None = None,
        seed: int = 0,
    ) -> list[Outcome]:
        """Measure candidates and return their outcomes in order.

        Args:
            task: The task to measure.
            candidates: The candidates, in the order of the results.
            incumbent: The best candidate so far, rerun in every process for comparison.
            seed: The seed of the input data.

        Raises RunError if the default itself cannot be built or run.
        """
        default = task.space.default
        requested = [default, *dict.fromkeys(c for c in (incumbent, *candidates) if c is not None)]
        builds = dict(zip(requested, self._build_cached(task, requested), strict=True))
        base = builds[default]
        if isinstance(base, Outcome):
            raise NoDefaultError(f"tune: {task}: the default: {base.status}: {base.said}")
        outcomes_by_candidate: dict[Candidate, Outcome] = {
            c: o for c, o in builds.items() if isinstance(o, Outcome)
        }
        images = [
            b for c in candidates if isinstance(b := builds[c], _BuiltCandidate) and c != default
        ]
        # Every process times the default too: ratios within a process are robust to the machine's
        # load.
        shared = [base]
        if incumbent is not None and isinstance(also := builds[incumbent], _BuiltCandidate):
            shared.append(also)
        batches = [images[i : i + self.batch] for i in range(0, len(images), self.batch)]
        for outcomes in self._run_batches(task, shared, batches, seed):
            outcomes_by_candidate.update(outcomes)
        return [outcomes_by_candidate[c] for c in candidates]

    @contextmanager
    def _executor_pool(self, width: int) -> Iterator[Executor]:
        if self.executor is not None:
            yield self.executor
            return
        with ThreadPoolExecutor(max(1, width), "ekiden-tune") as pool:
            yield pool

    def _run_jobs(self, jobs: Sequence[WorkerJob], width: int) -> list[Message]:
        """Return the replies to jobs; a job whose machine is lost is retried, then reported as
        lost.
        """
        replies: dict[int, Message] = {}
        with self._executor_pool(min(width, len(jobs))) as pool:
            for attempt in range(self.retries + 1):
                pending = [i for i in range(len(jobs)) if i not in replies]
                waiting = {i: _submit(pool, jobs[i]) for i in pending}
                for i, future in waiting.items():
                    try:
                        replies[i] = future.result()
                    except Exception as error:  # whatever an executor says of a lost machine
                        if attempt == self.retries:
                            lost: Head = {"error": "lost", "said": f"{error}", "news": []}
                            replies[i] = lost, []
        return [replies[i] for i in range(len(jobs))]

    def release(self) -> None:
        """Ask the executor to end the idle workers, which its processes keep for the next job."""
        if self.executor is None:
            return
        tasks = []
        with suppress(Exception):  # an executor that takes no more
            tasks = [
                self.executor.submit(close_workers) for _ in range(2 * self._max_concurrent_jobs)
            ]
        for task in tasks:
            with suppress(Exception):  # the machine is gone, and its workers with it
                task.result()

    @property
    def _max_concurrent_jobs(self) -> int:
        """Return the maximum number of concurrent jobs."""
        return max(self.runners, self.jobs)

    def _build_cached(
        self, task: Task, candidates: Sequence[Candidate]
    ) -> list[_BuiltCandidate | Outcome]:
        """Build candidates, caching the most recent ones: winners are measured again, and the
        default is part of every batch.
        """
        cache = self._kept
        key = f"{task.key} {task.sizes}"
        new = [c for c in candidates if (key, c) not in cache]
        built_now = dict(zip(new, self._build_missing(task, new), strict=True)) if new else {}
        results = [cache.get((key, c)) or built_now[c] for c in candidates]
        for result in results:
            if isinstance(result, _BuiltCandidate):
                # Reinsertion moves it to the end of the dictionary: eviction is least recently
                # used.
                cache.pop((key, result.candidate), None)
                cache[key, result.candidate] = result
        for old in list(cache)[:-BUILD_CACHE_SIZE]:
            del cache[old]
        return results

    def _build_missing(
        self, task: Task, candidates: Sequence[Candidate]
    ) -> list[_BuiltCandidate | Outcome]:
        """Build candidates that are not cached."""
        jobs: dict[Candidate, WorkerJob] = {}
        results: dict[Candidate, _BuiltCandidate | Outcome] = {}
        for candidate in candidates:
            try:
                jobs[candidate] = self._build_job(task, candidate)
            except EkidenError as error:  # of a template
                results[candidate] = Outcome(
                    candidate, "refused", said=f"{type(error).__name__}: {error}"
                )
        replies = self._run_jobs(list(jobs.values()), self.jobs) if jobs else []
        results |= {c: _parse_build_reply(c, reply) for c, reply in zip(jobs, replies, strict=True)}
        return [results[c] for c in candidates]

    def _build_job(self, task: Task, candidate: Candidate) -> WorkerJob:
        source, sent = task.sent(candidate)
        head: dict[str, object] = {
            "target": str(task.target),
            "rule": sent.rule,
            "choice": sent.choice,
            "sizes": [dict(s) for s in task.sizes],
            "key": task.key,
        }
        function = self.build_function if self.remote is None else REMOTE_BUILD
        return WorkerJob(function, head, source.texts(), self.build_seconds, self.memory)

    def _run_batches(
        self,
        task: Task,
        shared: list[_BuiltCandidate],
        batches: list[list[_BuiltCandidate]],
        seed: int,
    ) -> Iterator[dict[Candidate, Outcome]]:
        """Yield the outcomes of each batch. Candidates batched with one that crashed are run again,
        alone if necessary.
        """
        waiting = [b for b in batches if b]
        while waiting:
            running, waiting = waiting[: self.runners], waiting[self.runners :]
            jobs = [self._run_job(task, [*shared, *batch_items], seed) for batch_items in running]
            # On this machine runs are sequential, since concurrent runs would disturb each other's
            # times.
            width = self.runners if self.executor is not None else 1
            for batch, reply in zip(running, self._run_jobs(jobs, width), strict=True):
                outcomes, again = _parse_run_reply(shared, batch, reply)
                yield outcomes
                # Candidates without a verdict run again, each in a smaller batch, so this ends.
                waiting.extend(again)

    def _run_job(self, task: Task, built: Sequence[_BuiltCandidate], seed: int) -> WorkerJob:
        count = len(task.sizes)
        head: dict[str, object] = {
            "name": CANDIDATE_KERNEL_NAME,
            "args": built[0].args,
            "outputs": built[0].outputs,
            "shares": list(task.shares) or [1 / count] * count,
            "seed": seed,
            "turns": self.turns,
            "race_seconds": self.race_seconds,
            "threads": self.threads,
            "cold": self.cold,
            "device": task.target.kind.name if task.target.kind.has_threads else "",
        }
        images = tuple(b.image for b in built)
        function = self.run_function
        if self.remote is not None:
            head["remote"], function = self.remote.head(), REMOTE_RUN
        return WorkerJob(function, head, images, self.run_seconds, self.memory)

    def confirm(self, task: Task, candidate: Candidate, seed: int, times: int = 2) -> list[Outcome]:
        """Measure a candidate against the default in `times` fresh processes. The list ends with
        the failure if it fails in one of them, or if its results differ from the default's in
        another process.
        """
        outcomes: list[Outcome] = []
        for _ in range(times):
            (outcome,) = self.measure(task, [candidate], seed=seed)
            outcomes.append(outcome)
            if not outcome.is_ok:
                break
            # Fingerprints are compared across processes: one process could have corrupted its own
            # default.
            if not all(
                _samples_agree(outcome.sample, earlier.untuned_sample) for earlier in outcomes
            ):
                reason = "its results are not those of the default in another process"
                outcomes.append(Outcome(candidate, "lies", said=reason))
                break
        return outcomes


REMOTE_BUILD, REMOTE_RUN = "ekiden.tune.remote:build", "ekiden.tune.remote:run"
BUILD_CACHE_SIZE = 32
"""Maximum number of built candidates that are cached."""
SAMPLE_RELATIVE_TOLERANCE = 1e-3
"""Relative tolerance of checksums whose summation order differs."""


class NoDefaultError(InputError):
    """Exception for a task whose default cannot be built or run, so that there is no baseline."""


def _submit(pool: Executor, job: WorkerJob) -> Future[Message]:
    try:
        return pool.submit(run_in_worker, job)
    except Exception as error:  # an executor that takes no more
        failed: Future[Message] = Future()
        failed.set_exception(error)
        return failed


def _parse_build_reply(candidate: Candidate, reply: Message) -> _BuiltCandidate | Outcome:
    """Convert the reply to a build job."""
    head, blobs = reply
    if "answer" not in head:
        return _failed_outcome(candidate, head, "build ")
    answer = cast(Head, head["answer"])
    if "refused" in answer:
        return Outcome(candidate, "refused", said=str(answer["refused"]))
    if len(blobs) != 1 or not isinstance(answer.get("args"), list):
        return Outcome(candidate, "build crash", said="the process gave no code")
    return _BuiltCandidate(
        candidate, blobs[0], cast("list[object]", answer["args"]), int(str(answer["outputs"]))
    )


_FAILURE_STATUSES = {
    "crash": "crash",
    "timeout": "timeout",
    "MemoryError": "memory",
    "lost": "lost",
}


def _failed_outcome(candidate: Candidate, head: Head, what: str = "") -> Outcome:
    """Return the outcome of a job that ended without an answer."""
    error = str(head.get("error"))
    status = _FAILURE_STATUSES.get(error, "crash")
    message = " ".join(filter(None, (str(head.get("message", "")), str(head.get("said", "")))))
    if error not in _FAILURE_STATUSES:
        message = f"{error}: {message}"
    return Outcome(candidate, status if status == "lost" else what + status, said=message.strip())


def _parse_run_reply(
    shared: list[_BuiltCandidate], batch: list[_BuiltCandidate], reply: Message
) -> tuple[dict[Candidate, Outcome], list[list[_BuiltCandidate]]]:
    """Return (outcomes, batches to rerun) from the reply to a run job."""
    head, _ = reply
    if "answer" not in head:
        return _attribute_crash(shared, batch, head)
    results = cast(Head, head["answer"]).get("results")
    if not isinstance(results, list) or len(results) != len(shared) + len(batch):
        return _attribute_crash(shared, batch, {"error": "crash", "said": "it gave no results"})
    sound = [_validate_result(r) for r in results]
    first = sound[0]
    # Without a valid baseline no ratio of the batch means anything.
    if first is None or "wrong" in first:
        return _attribute_crash(shared, batch, {"error": "crash", "said": f"the default: {first}"})
    # A candidate that corrupts memory may make a later one of the process look wrong.
    spoiled = any(r is not None and "wrong" in r for r in sound)
    by_candidate: dict[Candidate, Outcome] = {}
    again: list[list[_BuiltCandidate]] = []
    for built, result in zip(batch, sound[len(shared) :], strict=True):
        if result is None:
            by_candidate[built.candidate] = Outcome(
                built.candidate, "lies", said="times that cannot be"
            )
        elif "wrong" not in result:
            by_candidate[built.candidate] = Outcome(
                built.candidate, "ok", float(str(result["ratio"])), float(str(result["seconds"])),
                float(str(first["seconds"])), "", _sample_numbers(result), _sample_numbers(first),
            )  # fmt: skip
        elif len(batch) > 1 and spoiled:
            again.append([built])  # what one spoils, another may be blamed for
        else:
            by_candidate[built.candidate] = Outcome(
                built.candidate, "wrong", said=str(result["wrong"])
            )
    return by_candidate, again


def _sample_numbers(result: Head) -> tuple[float, ...]:
    """Return the sampled sums of a result; empty if malformed."""
    values = result.get("sample")
    is_sound = isinstance(values, list) and all(type(n) is float for n in values)
    return tuple(values) if is_sound and isinstance(values, list) else ()


def _samples_agree(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether two samples agree up to summation order."""
    if len(a) != len(b):
        return False
    scale = max((abs(n) for n in b), default=0.0)
    pairs = zip(a, b, strict=True)
    return all(abs(x - y) <= SAMPLE_RELATIVE_TOLERANCE * (abs(y) + scale + 1) for x, y in pairs)


def _validate_result(result: object) -> Head | None:
    """Validate a result: None unless its numbers are plausible."""
    if not isinstance(result, dict):
        return None
    if "wrong" in result:
        return result
    numbers = (result.get("seconds"), result.get("ratio"))
    # A candidate that wrote over its own process's memory may report any number.
    is_sound = all(type(n) is float and 0 < n < math.inf for n in numbers)
    return result if is_sound else None


def _attribute_crash(
    shared: list[_BuiltCandidate], batch: list[_BuiltCandidate], head: Head
) -> tuple[dict[Candidate, Outcome], list[list[_BuiltCandidate]]]:
    """Attribute a crash to the only candidate of a batch, or to the one being checked, whose batch
    mates are rerun; without a suspect each candidate is rerun alone.
    """
    if len(batch) == 1:
        only = batch[0].candidate
        return {only: _failed_outcome(only, head)}, []
    news = head.get("news")
    position = (
        news[-1].get("at") if isinstance(news, list) and news and isinstance(news[-1], dict) else 0
    )
    # The last progress message names the candidate that was running.
    guilty = position - len(shared) if type(position) is int else -1
    if 0 <= guilty < len(batch):
        only = batch[guilty].candidate
        batch_mates = [b for b in batch if b.candidate != only]
        return {only: _failed_outcome(only, head)}, [batch_mates]
    return {}, [[b] for b in batch]
