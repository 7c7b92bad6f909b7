"""tune(): search for faster kernels of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from ekiden.driver.build import Model, import_model
from ekiden.frontend.common.options import ImportOptions, Shapes
from ekiden.ir.module import IRModule
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Function
from ekiden.relay.transform import InferType, NameDimensions
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import PathName
from ekiden.target import Target, TargetLike, target_or_current
from ekiden.tune.measure import Measurer
from ekiden.tune.records import Records
from ekiden.tune.remote import Remote
from ekiden.tune.search import Evolution, Random, Search
from ekiden.tune.session import Progress, Session
from ekiden.tune.task import Extracted, SizesLike, Task, extract_tasks

SEARCHES: Mapping[str, Search] = {s.name: s for s in (Evolution(), Random())}
"""What can be asked for by name."""


def tune(
    model: Model | Sequence[Task],
    target: TargetLike | None = None,
    *,
    trials: int = 200,
    records: PathName | Records | None = None,
    seconds: float = math.inf,
    dims: SizesLike | None = None,
    shape: Shapes | None = None,
    threads: int = 1,
    cold: bool = False,
    search: str | Search = "evolution",
    executor: Executor | None = None,
    runners: int = 1,
    remote: Remote | None = None,
    seed: int = 0,
    kernels: str = "",
    progress: Progress | None = None,
) -> Session:
    """Search for faster kernels of a model, or for tasks; gives the session: `states` has each task
    with its trials, its best and its default's time; `records` what `compile(records=)` takes.

    `model`, `target`, `shape` are as in `compile`. `trials` is how many candidates are tried in
    all, those of earlier runs that `records` (a file, to which each trial is appended at once) has
    of this machine included; the search ends earlier after `seconds`, or where nothing more is to
    be won. `dims` says what sizes the model's symbols have: a number each, or those of several
    runs, `{"batch": [1, 8]}`, which count alike; what is found is used for all sizes.
    `threads` is how many a kernel runs on: with 1 its time is that of the thread, which others on
    the machine lengthen little. `cold` empties the caches before each call. `search` is
    "evolution", "random" or a `tune.Search`. `executor` is any concurrent.futures.Executor, of this
    machine or of a cluster of equal ones, that runs `runners` batches at a time. With `remote`, a
    `tune.Remote`, candidates run in sessions with that server, which may be a page; `target` is its
    own. Equal `seed`s ask for the same candidates as long as they are measured alike. `kernels`
    keeps those whose name or node holds it.

    Raises what `compile` does, InputError for a size that is not given or an option that cannot be,
    OSError for records that cannot be read or written.
    """
    session = prepare(
        model, target, dims=dims, shape=shape, kernels=kernels,
        records=records if isinstance(records, Records) else _records(records),
        measurer=Measurer(
            executor=executor, runners=runners, threads=threads, cold=cold, remote=remote
        ),
        search=search, seed=seed, progress=progress,
    )  # fmt: skip
    session.run(trials, seconds)
    return session


def _records(path: PathName | None) -> Records:
    return Records() if path is None else Records.open(path)


def prepare(
    model: Model | Sequence[Task],
    target: TargetLike | None,
    *,
    dims: SizesLike | None,
    shape: Shapes | None,
    kernels: str,
    records: Records,
    measurer: Measurer,
    search: str | Search,
    seed: int,
    progress: Progress | None,
) -> Session:
    """A session that has not begun. Arguments and errors are those of `tune`."""
    if isinstance(search, str):
        if search not in SEARCHES:
            kinds = " or ".join(map(repr, SEARCHES))
            raise InputError(f"tune: search {kinds} or a Search expected, got {search!r}")
        search = SEARCHES[search]
    tasks = _tasks(model, target, dims, shape)
    chosen = [t for t in tasks if kernels in t.name or kernels in t.node]
    if not chosen:
        there = ", ".join(map(str, tasks))
        raise InputError(f"tune: no kernel's name or node holds '{kernels}'; there are {there}")
    return Session(chosen, records, measurer, search, seed, progress)


def _tasks(
    model: Model | Sequence[Task],
    target: TargetLike | None,
    dims: SizesLike | None,
    shape: Shapes | None,
) -> Sequence[Task]:
    if isinstance(model, Sequence) and not isinstance(model, (str, bytes)):
        if not all(isinstance(each, Task) for each in model):
            raise InputError("tune: a model or a sequence of tasks expected")
        return [each for each in model if isinstance(each, Task)]
    found = model_tasks(model, target_or_current(target), dims, shape)
    if not found.tasks:
        reasons = "; ".join(f"{name}: {why}" for name, why in found.skipped) or "it has no kernels"
        raise InputError(f"tune: there is no kernel to tune: {reasons}")
    return found.tasks


def model_tasks(
    model: Model, target: Target, dims: SizesLike | None = None, shape: Shapes | None = None
) -> Extracted:
    """The tasks of a model, and the kernels that are none. Raises InputError for a size of a symbol
    that the model has not, or without one of a symbol of its inputs."""
    module = NameDimensions()(InferType()(import_model(model, ImportOptions(shape))))
    names = _symbols(module)
    given = dict(dims or {})
    if unknown := [n for n in given if n not in names]:
        there = ", ".join(f"'{n}'" for n in names) or "none"
        raise InputError(f"tune: no symbol is named '{unknown[0]}'; there are: {there}")
    if missing := [n for n in names if n not in given]:
        raise InputError(
            f"tune: the size of '{missing[0]}' is not known: dims={{'{missing[0]}': 1}} tunes for"
            " one, shape= fixes an input's"
        )
    return extract_tasks(module, target, given)


def _symbols(module: IRModule) -> list[str]:
    """The names of the sizes of the inputs of `main` that are not known."""
    main = module["main"]
    assert isinstance(main, Function)
    kinds = [p.checked_type for p in main.params]
    dims = [d for k in kinds if isinstance(k, TensorType) for d in k.shape]
    return list(dict.fromkeys(v.name for d in dims for v in free_vars(d)))


__all__ = ["SEARCHES", "model_tasks", "prepare", "tune"]
