"""The models of a folder: versions that are loaded, replaced and let go while requests run.

models/NAME/model.toml     configuration, optional
models/NAME/3/model.eki    version 3: one artifact, library or model file in the folder
models/NAME.eki            a model of one version, 1
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from enum import Enum
from functools import partial
from pathlib import Path

import ekiden
from ekiden.compiler.sample_inputs import random_inputs
from ekiden.frontend.registry import is_model_file
from ekiden.runtime.errors import EkidenError, LoadError, RequestError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.serve.batcher import Batcher, QueuedRequest, RunFunction, RunnerThreads
from ekiden.serve.config import ModelConfig, read_model_config
from ekiden.serve.datatypes import Array
from ekiden.serve.encoders import open_text_model
from ekiden.serve.sequences import ActiveSequence, SequenceSession, SequenceTable, session_factory
from ekiden.serve.signature import (
    BATCH_TRIAL_ROWS,
    ModelSignature,
    has_independent_rows,
    output_arrays,
    read_signature,
)
from ekiden.serve.text import AnyTextModel, TextEngine, find_text_model

__all__ = ["ModelRepository", "ModelVersion", "ServedModel", "VersionState"]

MODEL_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MAX_CACHED_SHAPES = 256
"""Shapes of inputs whose outputs' bytes are remembered."""


class VersionState(Enum):
    """State of a version, in the protocol's terms."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


FileStamp = tuple[str, int, int, int]
"""A file as it was when it was loaded: path, inode, size, time of its last change."""


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """Program of a version's file, independent of the event loop."""

    executable: Executable | None
    signature: ModelSignature
    make_session: Callable[[], SequenceSession] | None
    text: AnyTextModel | None = None

    def run(self, arrays: Sequence[Array], seconds: float) -> list[Array]:
        """Run the program. Raises what the executable raises."""
        assert self.executable is not None
        return output_arrays(self.executable(*arrays, timeout=seconds))


@dataclass(eq=False)
class ModelVersion:
    """Loaded version of a model, kept while it has users."""

    number: int
    file_stamp: FileStamp
    config: ModelConfig
    program: ServedProgram
    batcher: Batcher
    num_users: int = 0
    """Requests and sequences."""
    is_retired: bool = False
    end_callback: Callable[[], None] = lambda: None
    _answer_sizes: dict[tuple[tuple[int, ...], ...], int] = field(default_factory=dict)
    """Shapes of inputs -> bytes of outputs."""
    text_thread_pool: ThreadPoolExecutor | None = None
    """The threads of a model of text, made with its first answer."""

    @property
    def signature(self) -> ModelSignature:
        """Return its inputs and outputs."""
        return self.program.signature

    def answer_bytes(self, arrays: Sequence[Array]) -> int:
        """Return the size of all outputs for such arrays, as far as the shapes determine it."""
        shapes = tuple([array.shape for array in arrays])
        size = self._answer_sizes.get(shapes)
        if size is None:
            size = self.signature.min_output_bytes(arrays)
            # Bounded, because clients choose the shapes.
            if len(self._answer_sizes) < MAX_CACHED_SHAPES:
                self._answer_sizes[shapes] = size
        return size

    def add_user(self) -> None:
        """Add a user, which keeps the version loaded."""
        self.num_users += 1

    def remove_user(self) -> None:
        """Remove a user; the last user of a retired version unloads it."""
        self.num_users -= 1
        self._end_if_unused()

    def retire(self) -> None:
        """Refuse new users; end with the last."""
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
    """Version -> where it stands, and why."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the load under way."""

    def __post_init__(self) -> None:
        self.sequences = SequenceTable(1, 1.0, _release_sequences)

    def get(self, version: str = "") -> ModelVersion:
        """Return a ready version, by default the newest. Raises RequestError."""
        if version == "":
            if self.versions:
                return self.versions[max(self.versions)]
            raise RequestError(f"model '{self.name}' is not loaded", "not_ready", 1.0)
        loaded = self.versions.get(int(version)) if _is_version_name(version) else None
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
        """Return the names of adapters that requests for answers may choose."""
        names: Sequence[str] = getattr(self.text, "adapters", ())
        return names

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


def _is_version_name(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


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
    ) -> None:
        """Create the repository. `on_event(event, **fields)` reports changes of models,
        `on_run(model, rows, seconds)` each run; `threads` is the number of concurrent runs, 0
        for one per core.
        """
        self.folder = folder
        self.models: dict[str, ServedModel] = {}
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

    def find_text(self, name: str) -> tuple[ServedModel, str]:
        """Return a model by its name, or the name of one of its adapters, with the adapter's name,
        empty for none. Raises RequestError if there is neither.
        """
        if name not in self.models:
            for model in self.models.values():
                if name in model.adapters:
                    return model, name
        return self.get(name), ""

    def add_text(self, name: str, text: AnyTextModel, config: ModelConfig | None = None) -> None:
        """Add a text model that has no file."""
        model = self.models[name] = ServedModel(name, self.folder / name)
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
        model = self.get(name)
        # One load at a time: two would build the same version twice.
        async with model.lock:
            try:
                await self._load_versions(model)
            except EkidenError as error:
                self._on_event(
                    "load_failed", model=name, error=type(error).__name__, reason=str(error)
                )  # fmt: skip
                raise RequestError(f"load '{name}': {error}", "unprocessable") from error

    async def _load_versions(self, model: ServedModel) -> None:
        """Load the configured versions of a model, reusing unchanged ones."""
        config = await asyncio.to_thread(read_model_config, model.path / "model.toml")
        files = await asyncio.to_thread(version_files, model.path, config)
        new_versions: dict[int, ModelVersion] = {}
        for number, path in files.items():
            stamp = file_stamp(path)
            old = model.versions.get(number)
            # An unchanged version is kept, with its queue, its sequences and their state.
            if old is not None and old.file_stamp == stamp and old.config == config:
                new_versions[number] = old
                continue
            if number not in model.versions:
                model.states[number] = (VersionState.LOADING, "")
            started = time.perf_counter()
            try:
                # Compiling takes seconds to minutes, in which the loop must answer other requests.
                program = await asyncio.to_thread(load_program, path, config)
            except EkidenError as error:
                if number not in model.versions:
                    model.states[number] = (VersionState.UNAVAILABLE, str(error))
                self._discard_versions(model, new_versions)
                raise
            new_versions[number] = self._make_version(model, number, stamp, program, config)
            self._on_event(
                "loaded", model=model.name, version=number,
                seconds=round(time.perf_counter() - started, 3),
                batched=bool(program.signature.batch_symbol),
            )  # fmt: skip
        model.configure(config)
        self._swap_versions(model, new_versions)

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
            on_run=partial(self._on_run, model.name),
        )  # fmt: skip
        return ModelVersion(number, stamp, config, program, batcher)

    def _discard_versions(self, model: ServedModel, new_versions: dict[int, ModelVersion]) -> None:
        """Retire versions that were loaded for an update that failed."""
        for number, version in new_versions.items():
            if model.versions.get(number) is not version:
                version.retire()

    def _swap_versions(self, model: ServedModel, new_versions: dict[int, ModelVersion]) -> None:
        """Switch new requests to these versions."""
        # New requests see the new versions at once; old ones end with their last user.
        old, model.versions = model.versions, new_versions
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
            self._swap_versions(model, {})

    def close(self) -> None:
        """Unload everything at once: the server ends."""
        for model in self.models.values():
            for key, _ in model.sequences.items():
                model.sequences.end(key)
            for version in model.versions.values():
                version.retire()
        self.runners.close()

    async def poll_folder(self) -> None:
        """Load models that are new or changed in the folder, and unload those that are gone."""
        names = self.scan()
        for name, model in list(self.models.items()):
            # A model added by add_text has no file and is never unloaded here.
            is_file = model.path.parent == self.folder and name in names
            if not is_file and model.versions and model.text is None:
                await self.unload(name)
            elif is_file and await asyncio.to_thread(_files_differ, model):
                await self.load(name)


def _files_differ(model: ServedModel) -> bool:
    """Return whether the folder's files differ from the loaded ones."""
    try:
        config = read_model_config(model.path / "model.toml")
        stamps = {n: file_stamp(p) for n, p in version_files(model.path, config).items()}
    except (EkidenError, OSError):
        return True
    return stamps != {n: v.file_stamp for n, v in model.versions.items()} or config != model.config


def file_stamp(path: Path) -> FileStamp:
    """Return a fingerprint of a file's identity and time of change. Raises LoadError if it is not
    readable.
    """
    if str(path) == "":
        return ("", 0, 0, 0)
    try:
        stat = path.stat()
    except OSError as error:
        raise LoadError(f"load '{path}': {(error.strerror or '').lower()}") from None
    # The inode changes when a file is replaced by rename, even within the resolution of mtime.
    return (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns)


def version_files(path: Path, config: ModelConfig) -> dict[int, Path]:
    """Return the file of each configured version. Raises LoadError if one is missing or
    ambiguous.
    """
    if config.text.is_given:
        return {1: path / "model.toml"}
    if not path.is_dir():
        return {1: path}
    numbers = [int(p.name) for p in path.iterdir() if p.is_dir() and _is_version_name(p.name)]
    if isinstance(config.versions, list):
        if missing := [n for n in config.versions if n not in numbers]:
            raise LoadError(f"load '{path}': there is no version {missing[0]}")
        numbers = config.versions
    elif config.versions == "latest":
        numbers = sorted(numbers)[-1:]
    if not numbers:
        raise LoadError(f"load '{path}': a folder of each version expected, such as '{path}/1'")
    return {number: _single_model_file(path / str(number)) for number in numbers}


def _single_model_file(folder: Path) -> Path:
    """Return the single model file of a folder. Raises LoadError."""
    files = [p for p in folder.iterdir() if not p.name.startswith(".")]
    models = [p for p in files if p.stem == "model"] or files
    if len(models) != 1:
        raise LoadError(f"load '{folder}': one file expected, got {len(models)}")
    return models[0]


def load_program(path: Path, config: ModelConfig) -> ServedProgram:
    """Load a file: an artifact, a library, or a model that is compiled first. An artifact is read,
    not mapped, since overwriting a mapped file would change answers. Raises EkidenError for what
    cannot be served.
    """
    if config.text.object:
        return ServedProgram(
            None, ModelSignature((), ()), None, find_text_model(config.text.object)
        )
    if config.text.checkpoint:
        text = open_text_model(path.parent, config.text)
        return ServedProgram(None, ModelSignature((), ()), None, text)
    executable = _open_executable(path)
    if config.threads:
        executable.num_threads = config.threads
    full_signature = read_signature(executable, str(path))
    signature, maker = session_factory(
        executable, full_signature, config.sequences.state, str(path)
    )
    # Batching is enabled only for programs that were shown to treat rows independently.
    if signature.batch_symbol and (
        maker is not None
        or not config.batching.enabled
        or not _has_independent_rows(executable, signature)
    ):
        signature = ModelSignature(signature.inputs, signature.outputs)
    return ServedProgram(executable, signature, maker)


def _open_executable(path: Path) -> Executable:
    try:
        if path.is_dir() or (path.suffix != ".eki" and is_model_file(path)):
            return ekiden.compile(path)
        return ekiden.load(path.read_bytes() if path.suffix == ".eki" else path)
    except OSError as error:
        raise LoadError(f"load '{path}': {(error.strerror or '').lower()}") from None


def _has_independent_rows(executable: Executable, signature: ModelSignature) -> bool:
    """Return whether batch rows are independent, tested on rows that differ; false if no inputs can
    be generated.
    """
    if any(port.datatype.is_text for port in signature.inputs):
        return False
    try:
        sample_inputs = random_inputs(executable, {signature.batch_symbol: BATCH_TRIAL_ROWS})
    except EkidenError:
        return False
    feeds = [sample_inputs[port.name] for port in signature.inputs]
    return has_independent_rows(executable, signature, feeds)
