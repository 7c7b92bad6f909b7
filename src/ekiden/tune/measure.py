"""Building candidates and running them."""

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
from ekiden.tune.program import NAME
from ekiden.tune.records import processor
from ekiden.tune.remote import Remote
from ekiden.tune.task import Task
from ekiden.tune.wire import Head, Message
from ekiden.tune.workers import Job, ask, close_workers

STATUSES: Mapping[str, str] = {
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
"""What became of a candidate -> what that means."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate. ratio: to the time of the default, in the same process."""

    candidate: Candidate
    status: str
    ratio: float = math.inf
    seconds: float = math.inf
    untuned: float = math.inf
    said: str = ""
    sample: tuple[float, ...] = ()
    """A few sums of its results, and of the default's."""
    untuned_sample: tuple[float, ...] = ()

    @property
    def is_ok(self) -> bool:
        """Whether it has a time."""
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class _Built:
    candidate: Candidate
    image: bytes
    args: list[object]
    outputs: int


@dataclass(frozen=True)
class Measurer:
    """Builds candidates in parallel processes, and runs them in others, one after the other.

    executor: where that is done, any concurrent.futures.Executor; None for threads of this process
    that each ask a process. With an executor several batches run at the same time, on as many
    machines as it has: `runners`. threads: of a run; with 1, times are those of the thread, which
    others on the machine lengthen little. cold: whether caches are emptied before each call.
    turns, race_seconds: of a batch at most. build_seconds, run_seconds, memory: of a process.
    """

    executor: Executor | None = None
    runners: int = 1
    jobs: int = field(default_factory=environment.compile_jobs)
    threads: int = 1
    cold: bool = False
    turns: int = 12
    race_seconds: float = 1.5
    build_seconds: float = 60.0
    run_seconds: float = 30.0
    memory: int = 4 << 30
    batch: int = 8
    """Candidates that run in turns in one process, beside the default and the best so far."""
    retries: int = 2
    """How often a job is tried again whose machine is gone."""
    remote: Remote | None = None
    """The server in whose sessions candidates run; None for this machine's processes."""
    build_function: str = "ekiden.tune.build_job:job"
    run_function: str = "ekiden.tune.run_job:job"
    _kept: dict[tuple[str, Candidate], _Built] = field(
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
        """What records call the machine that candidates run on."""
        return processor() if self.remote is None else self.remote.processor

    def measure(
        self,
        task: Task,
        candidates: Sequence[Candidate],
        incumbent: Candidate | None = None,
        seed: int = 0,
    ) -> list[Outcome]:
        """What becomes of each candidate, in their order. Raises RunError where the default itself
        cannot be built or run."""
        default = task.space.default
        asked = [default, *dict.fromkeys(c for c in (incumbent, *candidates) if c is not None)]
        made = dict(zip(asked, self._build(task, asked), strict=True))
        base = made[default]
        if isinstance(base, Outcome):
            raise NoDefaultError(f"tune: {task}: the default: {base.status}: {base.said}")
        found: dict[Candidate, Outcome] = {c: o for c, o in made.items() if isinstance(o, Outcome)}
        images = [b for c in candidates if isinstance(b := made[c], _Built) and c != default]
        shared = [base]
        if incumbent is not None and isinstance(also := made[incumbent], _Built):
            shared.append(also)
        batches = [images[i : i + self.batch] for i in range(0, len(images), self.batch)]
        for outcomes in self._run(task, shared, batches, seed):
            found.update(outcomes)
        return [found[c] for c in candidates]

    @contextmanager
    def _pool(self, width: int) -> Iterator[Executor]:
        if self.executor is not None:
            yield self.executor
            return
        with ThreadPoolExecutor(max(1, width), "ekiden-tune") as pool:
            yield pool

    def _ask(self, jobs: Sequence[Job], width: int) -> list[Message]:
        """The replies to jobs; one whose machine is gone is asked again, then lost."""
        replies: dict[int, Message] = {}
        with self._pool(min(width, len(jobs))) as pool:
            for attempt in range(self.retries + 1):
                left = [i for i in range(len(jobs)) if i not in replies]
                waiting = {i: _submitted(pool, jobs[i]) for i in left}
                for i, future in waiting.items():
                    try:
                        replies[i] = future.result()
                    except Exception as error:  # whatever an executor says of a lost machine
                        if attempt == self.retries:
                            lost: Head = {"error": "lost", "said": f"{error}", "news": []}
                            replies[i] = lost, []
        return [replies[i] for i in range(len(jobs))]

    def release(self) -> None:
        """Ask the executor to end the workers that its processes keep for the next job.

        Which process of it runs a task is its own choice, so that each is asked several times;
        workers that were not reached end when they have had no job for a minute.
        """
        if self.executor is None:
            return
        tasks = []
        with suppress(Exception):  # an executor that takes no more
            tasks = [self.executor.submit(close_workers) for _ in range(2 * self._width)]
        for task in tasks:
            with suppress(Exception):  # the machine is gone, and its workers with it
                task.result()

    @property
    def _width(self) -> int:
        """How many jobs run at the same time, at most."""
        return max(self.runners, self.jobs)

    def _build(self, task: Task, candidates: Sequence[Candidate]) -> list[_Built | Outcome]:
        """The code of each. That of the last ones is kept: a winner is measured again, the default
        with every batch."""
        kept = self._kept
        key = f"{task.key} {task.sizes}"
        new = [c for c in candidates if (key, c) not in kept]
        made = dict(zip(new, self._built(task, new), strict=True)) if new else {}
        found = [kept.get((key, c)) or made[c] for c in candidates]
        for each in found:
            if isinstance(each, _Built):
                kept.pop((key, each.candidate), None)
                kept[key, each.candidate] = each
        for old in list(kept)[:-KEPT]:
            del kept[old]
        return found

    def _built(self, task: Task, candidates: Sequence[Candidate]) -> list[_Built | Outcome]:
        jobs: dict[Candidate, Job] = {}
        found: dict[Candidate, _Built | Outcome] = {}
        for each in candidates:
            try:
                jobs[each] = self._build_job(task, each)
            except EkidenError as error:  # of a template
                found[each] = Outcome(each, "refused", said=f"{type(error).__name__}: {error}")
        replies = self._ask(list(jobs.values()), self.jobs) if jobs else []
        found |= {c: _built(c, reply) for c, reply in zip(jobs, replies, strict=True)}
        return [found[c] for c in candidates]

    def _build_job(self, task: Task, candidate: Candidate) -> Job:
        source, sent = task.sent(candidate)
        head: dict[str, object] = {
            "target": str(task.target),
            "rule": sent.rule,
            "choice": sent.choice,
            "sizes": [dict(s) for s in task.sizes],
            "key": task.key,
        }
        function = self.build_function if self.remote is None else REMOTE_BUILD
        return Job(function, head, source.texts(), self.build_seconds, self.memory)

    def _run(
        self, task: Task, shared: list[_Built], batches: list[list[_Built]], seed: int
    ) -> Iterator[dict[Candidate, Outcome]]:
        """Of each batch; what went with one that crashed is run again, alone if need be."""
        waiting = [b for b in batches if b]
        while waiting:
            now, waiting = waiting[: self.runners], waiting[self.runners :]
            jobs = [self._run_job(task, [*shared, *each], seed) for each in now]
            width = self.runners if self.executor is not None else 1
            for batch, reply in zip(now, self._ask(jobs, width), strict=True):
                outcomes, again = _outcomes(shared, batch, reply)
                yield outcomes
                waiting.extend(again)

    def _run_job(self, task: Task, built: Sequence[_Built], seed: int) -> Job:
        count = len(task.sizes)
        head: dict[str, object] = {
            "name": NAME,
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
        return Job(function, head, images, self.run_seconds, self.memory)

    def confirm(self, task: Task, candidate: Candidate, seed: int, times: int = 2) -> list[Outcome]:
        """The same candidate against the default in so many processes. One that fails there, or
        whose results are not those that the default has in the other processes, comes last."""
        found: list[Outcome] = []
        for _ in range(times):
            (outcome,) = self.measure(task, [candidate], seed=seed)
            found.append(outcome)
            if not outcome.is_ok:
                break
            if not all(_alike(outcome.sample, other.untuned_sample) for other in found):
                said = "its results are not those of the default in another process"
                found.append(Outcome(candidate, "lies", said=said))
                break
        return found


REMOTE_BUILD, REMOTE_RUN = "ekiden.tune.remote:build", "ekiden.tune.remote:run"
KEPT = 32
"""Candidates whose code is kept."""
SAME = 1e-3
"""How far sums of results may be apart that orders of summation made."""


class NoDefaultError(InputError):
    """The default of a task cannot be built or run: there is nothing to compare with."""


def _submitted(pool: Executor, job: Job) -> Future[Message]:
    try:
        return pool.submit(ask, job)
    except Exception as error:  # an executor that takes no more
        failed: Future[Message] = Future()
        failed.set_exception(error)
        return failed


def _built(candidate: Candidate, reply: Message) -> _Built | Outcome:
    head, parts = reply
    if "answer" not in head:
        return _failed(candidate, head, "build ")
    answer = cast(Head, head["answer"])
    if "refused" in answer:
        return Outcome(candidate, "refused", said=str(answer["refused"]))
    if len(parts) != 1 or not isinstance(answer.get("args"), list):
        return Outcome(candidate, "build crash", said="the process gave no code")
    return _Built(
        candidate, parts[0], cast("list[object]", answer["args"]), int(str(answer["outputs"]))
    )


_ENDS = {"crash": "crash", "timeout": "timeout", "MemoryError": "memory", "lost": "lost"}


def _failed(candidate: Candidate, head: Head, what: str = "") -> Outcome:
    """Of a job without an answer."""
    error = str(head.get("error"))
    status = _ENDS.get(error, "crash")
    said = " ".join(filter(None, (str(head.get("message", "")), str(head.get("said", "")))))
    if error not in _ENDS:
        said = f"{error}: {said}"
    return Outcome(candidate, status if status == "lost" else what + status, said=said.strip())


def _outcomes(
    shared: list[_Built], batch: list[_Built], reply: Message
) -> tuple[dict[Candidate, Outcome], list[list[_Built]]]:
    """(what became of them, batches that are to run again) after a process had them."""
    head, _ = reply
    if "answer" not in head:
        return _after_crash(shared, batch, head)
    results = cast(Head, head["answer"]).get("results")
    if not isinstance(results, list) or len(results) != len(shared) + len(batch):
        return _after_crash(shared, batch, {"error": "crash", "said": "it gave no results"})
    sound = [_sound(r) for r in results]
    first = sound[0]
    if first is None or "wrong" in first:
        return _after_crash(shared, batch, {"error": "crash", "said": f"the default: {first}"})
    spoiled = any(r is not None and "wrong" in r for r in sound)
    found: dict[Candidate, Outcome] = {}
    again: list[list[_Built]] = []
    for each, result in zip(batch, sound[len(shared) :], strict=True):
        if result is None:
            found[each.candidate] = Outcome(each.candidate, "lies", said="times that cannot be")
        elif "wrong" not in result:
            found[each.candidate] = Outcome(
                each.candidate, "ok", float(str(result["ratio"])), float(str(result["seconds"])),
                float(str(first["seconds"])), "", _numbers(result), _numbers(first),
            )  # fmt: skip
        elif len(batch) > 1 and spoiled:
            again.append([each])  # what one spoils, another may be blamed for
        else:
            found[each.candidate] = Outcome(each.candidate, "wrong", said=str(result["wrong"]))
    return found, again


def _numbers(result: Head) -> tuple[float, ...]:
    found = result.get("sample")
    is_sound = isinstance(found, list) and all(type(n) is float for n in found)
    return tuple(found) if is_sound and isinstance(found, list) else ()


def _alike(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether sums of results are those of the same results up to the order of sums."""
    if len(a) != len(b):
        return False
    scale = max((abs(n) for n in b), default=0.0)
    pairs = zip(a, b, strict=True)
    return all(abs(x - y) <= SAME * (abs(y) + scale + 1) for x, y in pairs)


def _sound(result: object) -> Head | None:
    """A result whose numbers can be."""
    if not isinstance(result, dict):
        return None
    if "wrong" in result:
        return result
    numbers = (result.get("seconds"), result.get("ratio"))
    is_sound = all(type(n) is float and 0 < n < math.inf for n in numbers)
    return result if is_sound else None


def _after_crash(
    shared: list[_Built], batch: list[_Built], head: Head
) -> tuple[dict[Candidate, Outcome], list[list[_Built]]]:
    """One that was alone is to blame; of several, the one that was being checked and each of the
    others is run again, alone."""
    if len(batch) == 1:
        only = batch[0].candidate
        return {only: _failed(only, head)}, []
    news = head.get("news")
    at = news[-1].get("at") if isinstance(news, list) and news and isinstance(news[-1], dict) else 0
    guilty = at - len(shared) if type(at) is int else -1
    if 0 <= guilty < len(batch):
        only = batch[guilty].candidate
        rest = [b for b in batch if b.candidate != only]
        return {only: _failed(only, head)}, [rest]
    return {}, [[b] for b in batch]
