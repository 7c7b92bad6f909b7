"""`tune()`: autotuning of a model's kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import cast

from ekiden.codegen.llvm import link_image
from ekiden.compiler.build import Model, import_model
from ekiden.frontend.common.options import ImportOptions, Shapes
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Var
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.type import TensorType, Type
from ekiden.kernels.family import known_extent
from ekiden.relay.expr import Function
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.shapes.name_dimensions import NameDimensions
from ekiden.runtime import Device, load_image
from ekiden.runtime.errors import InputError, LoadError
from ekiden.runtime.files import PathName
from ekiden.target import Target, TargetLike, target_or_current
from ekiden.tune.measure import Measurer
from ekiden.tune.records import Records
from ekiden.tune.remote import Remote
from ekiden.tune.search import Evolution, Random, Search
from ekiden.tune.session import Progress, Session
from ekiden.tune.task import Extracted, Sizes, SizesLike, Task, module_tasks

SEARCH_STRATEGIES: Mapping[str, Search] = {s.name: s for s in (Evolution(), Random())}
"""Search strategies by name."""


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
    """Tune the kernels of a model, or tasks; return the session with the trials of each task, and
    the records for `compile(records=...)`.

    `model`, `target`, `shape` are as in `compile`. `trials` is how many candidates are tried in
    all, those of earlier runs that `records` (a file, to which each trial is appended at once) has
    of this machine included; the search ends earlier after `seconds`, or where nothing more is to
    be won. `dims` says what sizes the model's symbols have: a number each, or those of several
    runs, `{"batch": [1, 8]}`, which count alike; what is found is used for all sizes. `threads` is
    how many a kernel runs on: with 1 its time is that of the thread, which others on the machine
    lengthen little. `cold` empties the caches before each call. `search` is "evolution", "random"
    or a `tune.Search`. `executor` is any concurrent.futures.Executor, of this machine or of a
    cluster of equal ones, that runs `runners` batches at a time. With `remote`, a `tune.Remote`,
    candidates run in sessions with that server, which may be a page; `target` is its own. Equal
    `seed`s ask for the same candidates as long as they are measured alike. `kernels` keeps those
    whose name or node holds it.

    Raises what `compile` does, InputError for a size that is not given, an option that cannot be or
    a target that this machine cannot run (where it is to), OSError for records that cannot be read
    or written.
    """
    session = prepare(
        model, target, dims=dims, shape=shape, kernels=kernels,
        records=records if isinstance(records, Records) else _open_records(records),
        measurer=Measurer(
            executor=executor, runners=runners, threads=threads, cold=cold, remote=remote
        ),
        search=search, seed=seed, progress=progress,
    )  # fmt: skip
    session.run(trials, seconds)
    return session


def _open_records(path: PathName | None) -> Records:
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
    """Create a tuning session without starting it. Arguments and errors are those of `tune`."""
    if isinstance(search, str):
        if search not in SEARCH_STRATEGIES:
            kinds = " or ".join(map(repr, SEARCH_STRATEGIES))
            raise InputError(f"tune: search {kinds} or a Search expected, got {search!r}")
        search = SEARCH_STRATEGIES[search]
    tasks = _tasks_of(model, target, dims, shape)
    chosen = [t for t in tasks if kernels in t.name or kernels in t.node]
    if not chosen:
        task_names = ", ".join(map(str, tasks))
        raise InputError(
            f"tune: no kernel's name or node holds '{kernels}'; there are {task_names}"
        )
    if measurer.remote is None and measurer.executor is None:
        for tuned_target in dict.fromkeys(t.target.code_host for t in chosen):
            _check_host_target(tuned_target)
        for tuned_target in dict.fromkeys(t.target for t in chosen if not t.target.kind.is_cpu):
            _check_device(tuned_target)
    return Session(chosen, records, measurer, search, seed, progress)


def _check_host_target(target: Target) -> None:
    """Raise InputError for a CPU target whose code this machine cannot run."""
    if target.architecture != Target.host().architecture:
        why = f"this machine is no {target.architecture}"
    else:
        try:
            load_image(link_image([], [], target))
            return
        except LoadError as error:
            why = str(error).rpartition("header: ")[2]
    raise InputError(
        f"tune: code for '{target}' cannot be measured here: {why}; remote= (--remote) measures on"
        " a server"
    )


def _check_device(target: Target) -> None:
    """Raise InputError for a target whose device is absent."""
    first_device = Device(target.kind.device_type, 0)
    if not first_device.exist:
        raise InputError(
            f"tune: code for '{target}' cannot be measured here: there is no {first_device}; "
            "remote="
            " (--remote) measures on a server"
        )


def _tasks_of(
    model: Model | Sequence[Task],
    target: TargetLike | None,
    dims: SizesLike | None,
    shape: Shapes | None,
) -> Sequence[Task]:
    if isinstance(model, Sequence) and not isinstance(model, (str, bytes)):
        if not all(isinstance(item, Task) for item in model):
            raise InputError("tune: a model or a sequence of tasks expected")
        return [task for task in model if isinstance(task, Task)]
    extracted = extract_tasks(model, target, dims, shape)
    if not extracted.tasks:
        reasons = (
            "; ".join(f"{name}: {why}" for name, why in extracted.skipped) or "it has no kernels"
        )
        raise InputError(f"tune: no kernel of the model can be tuned: {reasons}")
    return extracted.tasks


def extract_tasks(
    model: Model,
    target: TargetLike | None = None,
    dims: SizesLike | None = None,
    shape: Shapes | None = None,
) -> Extracted:
    """Return the tuning tasks of a model: its distinct kernels with calls per run, and the
    untunable ones with the reason. Arguments are as in `tune`. Raises InputError for the size of an
    unknown symbol, a missing size of an input's symbol, or several targets, and what `compile`
    raises.
    """
    given_target: object = target  # whatever the caller's types say
    if isinstance(given_target, (list, tuple)):
        several = ", ".join(map(str, given_target))
        raise InputError(
            f"tune: one target expected, got {several}: tune for each, and compile with all records"
        )
    module = _import_typed(model, shape)
    names = _free_symbol_names(module)
    sized_names = _bound_symbols(dims or {})
    if unknown := [n for n in sized_names if n not in names]:
        known_names = ", ".join(f"'{n}'" for n in names) or "none"
        raise InputError(f"tune: no symbol is named '{unknown[0]}'; there are: {known_names}")
    if missing := [n for n in names if n not in sized_names]:
        missing_names = " and ".join(f"'{n}'" for n in missing)
        which = (
            f"size of {missing_names} is" if len(missing) == 1 else f"sizes of {missing_names} are"
        )
        options = " ".join(f"--dim {n}=1" for n in missing)
        raise InputError(
            f"tune: the {which} not known: dims={dict.fromkeys(missing, 1)} ({options}) tunes for"
            " one, shape= (--shape) fixes an input's"
        )
    return module_tasks(module, target_or_current(target), dims)


def profile_sizes(
    model: Model, runs: Iterable[Mapping[str, object]], shape: Shapes | None = None
) -> list[tuple[Sizes, float]]:
    """Return the sizes of a model's symbols in sample runs, with their frequencies, as `dims`
    accepts. A run maps each input's name to an array or its shape. Raises InputError for an unknown
    input, or for sizes that contradict its type.
    """
    main = _import_typed(model, shape)["main"]
    assert isinstance(main, Function)
    kinds = {p.name_hint: p.checked_type for p in main.params}
    counts = Counter(tuple(sorted(_run_sizes(kinds, run).items())) for run in runs)
    total = sum(counts.values())
    return [(dict(sizes), count / total) for sizes, count in counts.most_common()]


def _run_sizes(kinds: Mapping[str, Type], run: Mapping[str, object]) -> Sizes:
    sizes: dict[str, int] = {}
    for name, value in run.items():
        kind = kinds.get(name)
        if not isinstance(kind, TensorType):
            input_names = ", ".join(kinds)
            raise InputError(f"profile_sizes: no input is named '{name}'; there are {input_names}")
        shape = [int(d) for d in cast("Sequence[int]", getattr(value, "shape", value))]
        if len(shape) != len(kind.shape):
            raise InputError(f"profile_sizes: '{name}' has {len(kind.shape)} axes, got {shape}")
        for dim, size in zip(kind.shape, shape, strict=True):
            expected_size = (
                sizes.setdefault(dim.name, size) if isinstance(dim, Var) else known_extent(dim)
            )
            if expected_size not in (None, size):
                raise InputError(f"profile_sizes: '{name}' is of {kind.shape}, got {shape}")
    return sizes


def _import_typed(model: Model, shape: Shapes | None) -> IRModule:
    return NameDimensions()(InferType()(import_model(model, ImportOptions(shape))))


def _bound_symbols(dims: SizesLike) -> list[str]:
    """Return the symbols that have a size in every run of `dims`."""
    if isinstance(dims, Mapping):
        return list(dims)
    names_per_run = [set(sizes) for sizes, _ in dims]
    return sorted(set.intersection(*names_per_run)) if names_per_run else []


def _free_symbol_names(module: IRModule) -> list[str]:
    """Return the names of the unknown sizes of `main`'s inputs."""
    main = module["main"]
    assert isinstance(main, Function)
    kinds = [p.checked_type for p in main.params]
    dims = [d for k in kinds if isinstance(k, TensorType) for d in k.shape]
    return list(dict.fromkeys(v.name for d in dims for v in free_vars(d)))


__all__ = ["SEARCH_STRATEGIES", "extract_tasks", "prepare", "profile_sizes", "tune"]
