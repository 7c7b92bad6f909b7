"""Model repository: versions that are loaded, replaced and let go while requests run.

models/NAME/model.toml     configuration, optional
models/NAME/3/model.eki    version 3: one artifact, library or model file in the folder
models/NAME.eki            a model of one version, 1
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from ekiden.runtime import trim_pools
from ekiden.runtime.errors import EkidenError, LoadError, RequestError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.batcher import Batcher, QueuedRequest, RunFunction, RunnerThreads
from ekiden.serve.config import ModelConfig, read_model_config
from ekiden.serve.datatypes import Array
from ekiden.serve.model_files import (
    FileStamp,
    ServedProgram,
    file_stamp,
    is_version_name,
    load_program,
    source_bytes,
    version_files,
)
from ekiden.serve.residency import ResidentModels
from ekiden.serve.sequences import ActiveSequence, SequenceTable
from ekiden.serve.signature import ModelSignature
from ekiden.serve.statistics import VersionStatistics
from ekiden.serve.text import AnyTextModel, TextEngine

__all__ = ["ModelRepository", "ModelVersion", "ServedModel", "VersionState"]

MODEL_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NOT_RESIDENT = "not in memory: the next request loads it"
MAX_CACHED_SHAPES = 256
"""Shapes of inputs whose outputs' bytes are remembered."""


class VersionState(Enum):
    """State of a version, in the protocol's terms."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Configuration of a model in the folder, and the file stamps of its versions."""

    config: ModelConfig
    stamps: dict[int, FileStamp]


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Load failure of a model, with the stamps of the files that failed."""

    reason: str
    files: ModelFiles | None
    """None if they could not be listed."""


@dataclass(eq=False)
class ModelVersion:
    """Loaded version of a model, reference-counted by its users."""

    number: int
    file_stamp: FileStamp
    config: ModelConfig
    program: ServedProgram
    batcher: Batcher
    num_bytes: int = 0
    """Bytes of its files."""
    num_users: int = 0
    """Requests and sequences."""
    is_retired: bool = False
    end_callback: Callable[[], None] = lambda: None
    idle_callback: Callable[[], None] = lambda: None
    """Called when the last user has gone."""
    _answer_sizes: dict[tuple[tuple[int, ...], ...], int] = field(default_factory=dict)
    """Shapes of inputs -> bytes of outputs."""
    text_thread_pool: ThreadPoolExecutor | None = None
    """The threads of a model of text, made with its first answer."""

    @property
    def signature(self) -> ModelSignature:
        """Return the model signature."""
        return self.program.signature

    def answer_bytes(self, arrays: Sequence[Array]) -> int:
        """Return the size of all outputs for such inputs in bytes, as far as the shapes determine
        it.
        """
        shapes = tuple([array.shape for array in arrays])
        size = self._answer_sizes.get(shapes)
        if size is None:
            size = self.signature.min_output_bytes(arrays)
            # Bounded, because clients choose the shapes.
            if len(self._answer_sizes) < MAX_CACHED_SHAPES:
                self._answer_sizes[shapes] = size
        return size

    def add_user(self) -> None:
        """Increment the reference count, which keeps the version loaded."""
        self.num_users += 1

    def remove_user(self) -> None:
        """Decrement the reference count; the last user of a retired version unloads it."""
        self.num_users -= 1
        if self.num_users == 0:
            self.idle_callback()
        self._end_if_unused()

    def retire(self) -> None:
        """Refuse new users; unload with the last one."""
        self.is_retired = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self.is_retired and self.num_users == 0:
            if self.text_thread_pool is not None:
                self.text_thread_pool.shutdown(wait=False)
            if isinstance(self.program.text, TextEngine):
                self.program.text.close()
            self.end_callback()

    async def run(
        self,
        arrays: Sequence[Array],
        *,
        deadline: float,
        priority: int = 0,
        run: RunFunction | None = None,
        is_last: bool = False,
    ) -> list[Array]:
        """Return the outputs of a run, alone or batched.

        Args:
            arrays: The inputs in the program's order.
            deadline: When the request's time ends, by time.monotonic().
            priority: The request's priority; 0 for the model's.
            run: A sequence's run function, which is not batched.
            is_last: As in `Batcher.put`.

        Raises RequestError: "busy" if too many requests wait, "deadline" if the time is over.
        """
        loop = self.batcher.loop
        # Steps of a sequence depend on their own state and are never batched.
        key = self.signature.batch_key(arrays) if run is None else None
        rows = 1 if key is None else len(arrays[0])
        work = QueuedRequest(
            arrays, loop.create_future(), deadline, run or self.program.run, key, rows,
            can_repeat=run is None,
        )  # fmt: skip
        self.batcher.put(work, priority or self.config.priority, is_last)
        try:
            # The batcher already ran it on the loop; no timer is needed.
            if work.future.done():
                return work.future.result()
            timer = loop.call_later(max(0.0, deadline - time.monotonic()), _expire_request, work)
            try:
                return await work.future
            finally:
                timer.cancel()
        finally:
            self.batcher.discard(work)


def _expire_request(work: QueuedRequest) -> None:
    if not work.future.done():
        work.future.set_exception(RequestError("the time of the request is over", "deadline"))


@dataclass(eq=False)
class ServedModel:
    """Served model: a name in the repository, and the versions loaded under it."""

    name: str
    path: Path
    config: ModelConfig = field(default_factory=ModelConfig)
    versions: dict[int, ModelVersion] = field(default_factory=dict)
    states: dict[int, tuple[VersionState, str]] = field(default_factory=dict)
    """Version -> its state and the reason; empty until a load has listed the versions."""
    has_files: bool = True
    """Whether it is of the folder, so that polling updates and removes it."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the load under way."""
    load_failure: LoadFailure | None = None
    """Failure of the last load; loaded versions serve on."""
    is_unloaded: bool = False
    """Whether it was unloaded on request, and so is not loaded on demand."""
    demand_load: asyncio.Future[None] | None = None
    """The load that requests wait for."""
    num_waiting: int = 0
    """Requests that wait for it."""
    row_independence: dict[FileStamp, bool] = field(default_factory=dict)
    """Whether the rows of each version's file are independent, known beyond an eviction."""
    statistics: dict[int, VersionStatistics] = field(default_factory=dict)
    """Statistics by version, which outlive an eviction."""

    def __post_init__(self) -> None:
        self.sequences = SequenceTable(1, 1.0, _release_sequences)

    def statistics_of(self, number: int) -> VersionStatistics:
        """Return the statistics of a version, which may be empty."""
        statistics = self.statistics.get(number)
        if statistics is None:
            statistics = self.statistics[number] = VersionStatistics()
        return statistics

    def version_states(self, absence: str) -> list[tuple[str, VersionState, str]]:
        """Return (version, state, reason) of each version, in order.

        While no version is known there is one row for the model, whose version is empty; its reason
        is that of the failed load, or else `absence`.
        """
        if self.states:
            return [(str(n), state, why) for n, (state, why) in sorted(self.states.items())]
        reason = absence if self.load_failure is None else self.load_failure.reason
        return [("", VersionState.UNAVAILABLE, reason)]

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the files of its loaded versions."""
        return sum(version.num_bytes for version in self.versions.values())

    @property
    def is_pinned(self) -> bool:
        """Return whether the model is exempt from eviction."""
        return self.config.pinned

    @property
    def is_idle(self) -> bool:
        """Return whether no request, sequence or load uses the model."""
        self.sequences.end_idle()
        if self.lock.locked() or self.num_waiting:
            return False
        return all(version.num_users == 0 for version in self.versions.values())

    def get(self, version: str = "") -> ModelVersion:
        """Return a ready version, by default the newest. Raises RequestError."""
        if version == "":
            if self.versions:
                return self.versions[max(self.versions)]
            raise RequestError(f"model '{self.name}' is not loaded", "not_ready", 1.0)
        loaded = self.versions.get(int(version)) if is_version_name(version) else None
        if loaded is None:
            ready_versions = ", ".join(map(str, sorted(self.versions))) or "none"
            raise RequestError(
                f"model '{self.name}': ready are the versions {ready_versions}", "unknown"
            )
        return loaded

    @property
    def text(self) -> AnyTextModel | None:
        """Return the text model object, if it is one."""
        newest = self.versions.get(max(self.versions, default=0))
        return None if newest is None else newest.program.text

    @property
    def adapters(self) -> Sequence[str]:
        """Return the names of adapters that requests may select; those of the configuration while
        the model is not loaded.
        """
        names: Sequence[str] = getattr(self.text, "adapters", ())
        return names if self.versions else tuple(self.config.text.adapters)

    @property
    def is_text(self) -> bool:
        """Return whether it is a text model, loaded or not."""
        return self.text is not None or (not self.versions and self.config.text.is_given)

    def configure(self, config: ModelConfig) -> None:
        """Apply a configuration, keeping the existing sequences."""
        self.config = config
        old_table = self.sequences
        new_table = SequenceTable(
            config.sequences.most, config.sequences.idle_seconds, _release_sequences
        )
        new_table.adopt(old_table)
        self.sequences = new_table


def _release_sequences(live: ActiveSequence) -> None:
    assert isinstance(live.version, ModelVersion)
    live.version.remove_user()


class ModelRepository:
    """Models of a folder, loaded, replaced and unloaded while requests run. Used on the event
    loop's thread; files are read on others.
    """

    def __init__(
        self,
        folder: Path,
        on_event: Callable[..., None] | None = None,
        on_run: Callable[[str, int, float], None] | None = None,
        *,
        threads: int = 0,
        loads_on_demand: bool = False,
        model_bytes: int = 0,
        prompt_cache: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the repository.

        Args:
            folder: The folder of models.
            on_event: Called with changes of models, `on_event(event, **fields)`.
            on_run: Called with each run, `on_run(model, rows, seconds)`.
            threads: Number of concurrent runs; 0 for one per core.
            loads_on_demand: Load a model at its first request, unless it is pinned.
            model_bytes: Maximum bytes of resident models' files; 0 for no limit.
            prompt_cache: Fields of `TextConfig` for text models that name no prompt cache.
        """
        self.folder = folder
        self.models: dict[str, ServedModel] = {}
        self.loads_on_demand = loads_on_demand
        self._prompt_cache = prompt_cache or {}
        self.residents = ResidentModels(model_bytes, self._evict)
        self.runners = RunnerThreads(threads or max(2, len(os.sched_getaffinity(0))))
        self._on_event = on_event or (lambda event, **fields: None)
        self._on_run = on_run or (lambda model, rows, seconds: None)

    def scan(self) -> list[str]:
        """Return the model names in the folder. Raises LoadError if it cannot be read."""
        try:
            entries = sorted(self.folder.iterdir())
        except OSError as error:
            raise LoadError(f"serve '{self.folder}': {(error.strerror or '').lower()}") from None
        names: dict[str, Path] = {}
        for path in entries:
            name = path.name if path.is_dir() else path.stem
            if path.name == "serve.toml" or path.name.startswith("."):
                continue
            if not MODEL_NAME_PATTERN.fullmatch(name):
                raise LoadError(
                    f"serve '{path}': a name of letters, digits, '.', '_', '-' expected"
                )
            if name in names:
                raise LoadError(f"serve: '{path}' and '{names[name]}' have one name")
            names[name] = path
        for name, path in names.items():
            if name not in self.models:
                self.models[name] = ServedModel(name, path)
            self.models[name].path = path
        return list(names)

    def get(self, name: str) -> ServedModel:
        """Return a model by name. Raises RequestError if there is none."""
        model = self.models.get(name)
        if model is None:
            raise RequestError("no model of that name is there", "unknown")
        return model

    async def acquire(self, name: str, seconds: float = 0.0) -> ServedModel:
        """Return a model, loading it on demand if it is not resident.

        Args:
            name: The name of the model.
            seconds: The time that the request allows; 0 for the model's.

        Raises RequestError if there is none, it cannot be loaded, or the load exceeds the time of
        the request; it then continues.
        """
        model = self.get(name)
        if model.versions:
            self.residents.touch(name)
        elif self.loads_on_demand and not model.is_unloaded:
            await self._load_on_demand(model, seconds)
        return model

    async def _load_on_demand(self, model: ServedModel, seconds: float) -> None:
        """Await a load of the model, which concurrent requests share."""
        if not await self._can_load(model):
            raise RequestError(f"model '{model.name}' could not be loaded", "not_ready", 1.0)
        if model.demand_load is None:
            model.demand_load = asyncio.ensure_future(self._load(model))
            model.demand_load.add_done_callback(lambda load: _end_demand_load(model, load))
        # Counted, or another load would evict the model before its first request resumes.
        model.num_waiting += 1
        try:
            async with asyncio.timeout(min(model.config.seconds, seconds or math.inf)):
                # Shielded: a client that leaves must not end the load for the others.
                await asyncio.shield(model.demand_load)
        except TimeoutError:
            raise RequestError("the time of the request is over", "deadline") from None
        except RequestError as error:
            # The reason names files of the server; it is in the log and in the index.
            raise RequestError(
                f"model '{model.name}' could not be loaded", "not_ready", 1.0
            ) from error
        finally:
            model.num_waiting -= 1
            self.residents.notify_idle()

    async def _can_load(self, model: ServedModel) -> bool:
        """Return whether a load may succeed: false after a failure until the files change."""
        failure = model.load_failure
        return failure is None or failure.files != await asyncio.to_thread(_list_files, model)

    async def load_or_configure(self, name: str) -> None:
        """Load a model; with loading on demand, read its configuration, and load it only if it is
        pinned. Raises RequestError.
        """
        model = self.get(name)
        if self.loads_on_demand:
            with suppress(EkidenError):  # the load tells it
                config = await asyncio.to_thread(read_model_config, model.path / "model.toml")
                if config != model.config:
                    model.configure(config)
                if not config.pinned:
                    return
        await self._load(model)

    def _evict(self, name: str) -> None:
        """Unload an idle model, which the next request loads again."""
        model = self.models[name]
        versions, model.versions = model.versions, {}
        model.states = dict.fromkeys(versions, (VersionState.UNAVAILABLE, NOT_RESIDENT))
        for version in versions.values():
            version.retire()
        self.residents.discard(name)
        self._on_event("evicted", model=name)
        trim_pools()

    def find_text(self, name: str) -> tuple[ServedModel, str]:
        """Return a model by its name or that of one of its adapters, with the adapter's name, empty
        for none. Raises RequestError if there is neither.
        """
        if name not in self.models:
            for model in self.models.values():
                if name in model.adapters:
                    return model, name
        return self.get(name), ""

    def add_text(self, name: str, text: AnyTextModel, config: ModelConfig | None = None) -> None:
        """Add a text model that has no file."""
        model = self.models[name] = ServedModel(name, self.folder / name, has_files=False)
        model.configure(config or ModelConfig())
        program = ServedProgram(None, ModelSignature((), ()), None, text)
        self._swap_versions(model, {1: self._make_version(model, 1, ("", 0, 0, 0), program)})

    async def load(self, name: str) -> None:
        """Load a model from the folder and replace the loaded one; running requests finish with the
        version they started with. Raises RequestError where it cannot; then all is as it was.
        """
        try:
            self.scan()
        except LoadError as error:
            raise RequestError(f"load '{name}': {error}", "unprocessable") from error
        await self._load(self.get(name))

    async def _load(self, model: ServedModel) -> None:
        """Load a model's files. Raises RequestError."""
        # One load at a time: two would build the same version twice.
        async with model.lock:
            try:
                await self._load_versions(model)
            except EkidenError as error:
                files = await asyncio.to_thread(_list_files, model)
                model.load_failure = LoadFailure(str(error), files)
                self._on_event(
                    "load_failed", model=model.name, error=type(error).__name__, reason=str(error)
                )  # fmt: skip
                raise RequestError(f"load '{model.name}': {error}", "unprocessable") from error
            model.load_failure, model.is_unloaded = None, False

    async def _load_versions(self, model: ServedModel) -> None:
        """Load the configured versions of a model, reusing unchanged ones."""
        config = await asyncio.to_thread(read_model_config, model.path / "model.toml")
        files = await asyncio.to_thread(version_files, model.path, config)
        stamps = {number: file_stamp(path) for number, path in files.items()}
        new_versions: dict[int, ModelVersion] = {}
        for number, stamp in stamps.items():
            old = model.versions.get(number)
            # An unchanged version is kept, with its queue, its sequences and their state.
            if old is not None and old.file_stamp == stamp and old.config == config:
                new_versions[number] = old
        sizes = {
            number: await asyncio.to_thread(source_bytes, path, config)
            for number, path in files.items()
            if number not in new_versions
        }
        async with self.residents.reserve(model.name, sum(sizes.values())):
            for number, size in sizes.items():
                try:
                    version = await self._load_version(
                        model, number, files[number], stamps[number], config
                    )
                except EkidenError as error:
                    if number not in model.versions:
                        model.states[number] = (VersionState.UNAVAILABLE, str(error))
                    self._discard_versions(model, new_versions)
                    raise
                version.num_bytes = size
                new_versions[number] = version
            model.configure(config)
            self._swap_versions(model, new_versions)
            self.residents.add(model)
        for stamp in model.row_independence.keys() - set(stamps.values()):
            del model.row_independence[stamp]

    async def _load_version(
        self, model: ServedModel, number: int, path: Path, stamp: FileStamp, config: ModelConfig
    ) -> ModelVersion:
        """Load one file of a model. Raises EkidenError."""
        if number not in model.versions:
            model.states[number] = (VersionState.LOADING, "")
        started = time.perf_counter()
        known_independence = model.row_independence.get(stamp)
        loaded_config = config
        if not config.text.prompt_cache:
            loaded_config = replace(config, text=replace(config.text, **self._prompt_cache))
        # Compiling takes seconds to minutes, in which the loop must answer other requests.
        program = await asyncio.to_thread(load_program, path, loaded_config, known_independence)
        if config.batching.enabled and program.make_session is None:
            model.row_independence[stamp] = bool(program.signature.batch_symbol)
        self._on_event(
            "loaded", model=model.name, version=number,
            seconds=round(time.perf_counter() - started, 3),
            batched=bool(program.signature.batch_symbol),
        )  # fmt: skip
        return self._make_version(model, number, stamp, program, config)

    def _make_version(
        self,
        model: ServedModel,
        number: int,
        stamp: FileStamp,
        program: ServedProgram,
        config: ModelConfig | None = None,
    ) -> ModelVersion:
        config = config or model.config
        batcher = Batcher(
            self.runners, instances=config.instances, queue=config.queue,
            rows=config.batching.rows, wait=config.batching.wait_ms / 1e3,
            on_run=partial(self._observe_run, model, number),
        )  # fmt: skip
        version = ModelVersion(number, stamp, config, program, batcher)
        version.idle_callback = self.residents.notify_idle
        return version

    def _observe_run(
        self,
        model: ServedModel,
        number: int,
        rows: int,
        seconds: float,
        num_requests: int,
        queued: float,
    ) -> None:
        """Count a run of a version in its statistics and in the metrics."""
        model.statistics_of(number).count_run(rows, seconds, num_requests, queued)
        self._on_run(model.name, rows, seconds)

    def _discard_versions(self, model: ServedModel, new_versions: dict[int, ModelVersion]) -> None:
        """Retire versions that were loaded for an update that failed."""
        for number, version in new_versions.items():
            if model.versions.get(number) is not version:
                version.retire()

    def _swap_versions(self, model: ServedModel, new_versions: dict[int, ModelVersion]) -> None:
        """Switch new requests to these versions."""
        # New requests see the new versions at once; old ones end with their last user.
        old, model.versions = model.versions, new_versions
        if not new_versions:
            self.residents.discard(model.name)
        model.states = dict.fromkeys(new_versions, (VersionState.READY, ""))
        for number, version in old.items():
            if new_versions.get(number) is version:
                continue
            if number not in new_versions:
                model.states[number] = (VersionState.UNLOADING, "")
                # The state changes only when the last user of the old version is done.
                version.end_callback = lambda number=number: self._on_version_end(model, number)  # type: ignore[misc]
            version.retire()

    def _on_version_end(self, model: ServedModel, number: int) -> None:
        if number not in model.versions:
            model.states[number] = (VersionState.UNAVAILABLE, "unloaded")
            self._on_event("unloaded", model=model.name, version=number)

    async def unload(self, name: str) -> None:
        """Refuse new requests for a model; running ones finish."""
        model = self.get(name)
        async with model.lock:
            for key, _ in model.sequences.items():
                model.sequences.end(key)
            model.load_failure, model.is_unloaded = None, True
            self._swap_versions(model, {})

    def end_idle_sequences(self) -> None:
        """End the sequences that have been idle too long."""
        for model in self.models.values():
            model.sequences.end_idle()

    def close(self) -> None:
        """Unload everything at once: the server ends."""
        for model in self.models.values():
            for key, _ in model.sequences.items():
                model.sequences.end(key)
            for version in model.versions.values():
                version.retire()
        self.runners.close()

    async def poll_folder(self) -> None:
        """Load new and changed models of the folder, and remove deleted ones. Failures are reported
        in the log and in the index, and retried when the files change.
        """
        names = set(self.scan())
        for name, model in list(self.models.items()):
            if not model.has_files:
                continue
            with suppress(RequestError):
                await (self._update(model) if name in names else self._remove(model))

    async def _remove(self, model: ServedModel) -> None:
        """Unload a model whose files are gone; forget it when its last request has ended."""
        if model.versions:
            await self.unload(model.name)
        is_ending = any(state is VersionState.UNLOADING for state, _ in model.states.values())
        if not (is_ending or model.lock.locked() or model.num_waiting):
            del self.models[model.name]

    async def _update(self, model: ServedModel) -> None:
        """Load a model of the folder if its files have changed; one to be loaded on demand is
        configured. Raises RequestError.
        """
        if model.load_failure is not None and not await self._can_load(model):
            return
        if not model.versions and self.loads_on_demand:
            # The next request reads the files as they are then.
            if not model.is_unloaded:
                await self.load_or_configure(model.name)
        elif await asyncio.to_thread(_files_differ, model):
            await self.load(model.name)


def _end_demand_load(model: ServedModel, load: asyncio.Future[None]) -> None:
    """Drop a finished load on demand, and its error if no request awaits it any more."""
    model.demand_load = None
    if not load.cancelled():
        load.exception()


def _list_files(model: ServedModel) -> ModelFiles | None:
    """Return the current files of a model; None if they cannot be listed."""
    try:
        config = read_model_config(model.path / "model.toml")
        files = version_files(model.path, config)
        return ModelFiles(config, {n: file_stamp(path) for n, path in files.items()})
    except (EkidenError, OSError):
        return None


def _files_differ(model: ServedModel) -> bool:
    """Return whether the folder's files differ from the loaded ones."""
    loaded = {number: version.file_stamp for number, version in model.versions.items()}
    return _list_files(model) != ModelFiles(model.config, loaded)
