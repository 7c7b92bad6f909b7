"""Configuration of a server and its models: dataclasses, and their text in TOML.

models/serve.toml         [server] and [limits]
models/NAME/model.toml    [model], [batching], [sequences] and [text]
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ekiden.runtime.errors import ServeError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "BatchingConfig", "Limits", "ModelConfig", "SequenceConfig", "ServerConfig", "TextConfig",
    "read_model_config", "read_server_config",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of clients; exceeding one is an error."""

    body_bytes: int = 64 << 20
    """The most bytes of a request, and of its tensors in memory."""
    text_bytes: int = 8 << 20
    """The most bytes of a request to a model of text."""
    grpc_bytes: int = 8 << 20
    """The most bytes of a request over gRPC, whose library copies each several times before it can
    be asked to stop."""
    answer_bytes: int = 64 << 20
    """The most bytes of an answer's tensors."""
    held_bytes: int = 1 << 30
    """The most bytes of all requests that are arriving or under way together."""
    body_seconds: float = 30.0
    """How long a request may take to arrive, and each part of an answer to be taken."""
    idle_seconds: float = 75.0
    """How long a connection may say nothing: before its first request, and between two."""
    stop_seconds: float = 30.0
    """How long requests in flight may go on when the server is told to stop."""
    connections: int = 16384
    """The most connections; a further one is closed."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Configuration of a server. Paths are as the process sees them."""

    host: str = "127.0.0.1"
    port: int = 8000
    """HTTP's port; 0 for any."""
    grpc: bool = True
    """Serve gRPC too."""
    grpc_port: int = 0
    """gRPC's port; 0 for one above HTTP's, or any where that is any."""
    token_file: str = ""
    """A file of bearer tokens, one a line, of which a request must carry one."""
    control_token_file: str = ""
    """The same for loading and unloading models."""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    """Clients must have a certificate that this one signed."""
    open: bool = False
    """Listen beyond this machine without tokens or certificates of clients: all that needs no
    control token is open to everybody who reaches the address."""
    memory: int = 0
    """The most bytes that programs may hold together; 0: what is free when the server starts."""
    poll_seconds: float = 0.0
    """How often the folder is looked at for new versions; 0: only when asked."""
    traces: bool = False
    """OpenTelemetry, whose own environment variables say where spans go."""
    log: str = "info"
    """The least level that is written: debug (every request), info, warning or error."""
    limits: Limits = field(default_factory=Limits)
    allow_control: bool = False
    """Load and unload without a token, for programs of this machine: on the loopback interface
    alone."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, beside localhost and addresses, by which a server without tokens, TLS or `open` may be
    asked, and whose pages may ask any."""
    load: str = "start"
    """When models are loaded: "start", or "demand" for the first request of each; pinned models are
    loaded at the start."""
    model_bytes: int = 0
    """With loading on demand, the maximum bytes of the files of all loaded models: the least
    recently used idle ones are evicted for others. 0 for no limit."""
    prompt_cache: str = ""
    """The folder of the prompt cache of text models whose configuration has none."""
    prompt_cache_bytes: int = 0
    """The most bytes of its files; 0: 4 GiB."""


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """Dynamic batching of one model's requests, along their shared dimension."""

    enabled: bool = True
    """Where the model allows it: see `ekiden.serve.signature`."""
    rows: int = 64
    """The most rows of a run."""
    wait_ms: float = 0.0
    """How long the first request may wait for others when nothing runs. Requests that come while
    a run is under way wait for it and go together, whatever this is."""


@dataclass(frozen=True, slots=True)
class SequenceConfig:
    """Sequences of requests that share state."""

    most: int = 1024
    """Sequences at once."""
    idle_seconds: float = 600.0
    """A sequence that was not asked for so long is forgotten."""
    state: Mapping[str, str] = field(default_factory=dict)
    """Input -> output: what the output gave is the input of the next request; zeros at first. A
    program that keeps values of its own (`Executable.state`) needs none."""


@dataclass(frozen=True, slots=True)
class TextConfig:
    """Configuration of a text model: a Python object (see `ekiden.serve.text.TextModel`), or a
    checkpoint.
    """

    object: str = ""
    """`package.module:name`: the object, or what makes it when called without arguments."""
    checkpoint: str = ""
    """A folder of transformers, or a GGUF file (`ekiden.llm.load`); a path that is not absolute
    begins at the folder of the model."""
    context: int = 0
    """Tokens of a conversation at most; 0: what the model can, up to 4,096."""
    sequences: int = 16
    """Answers that are made together."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Name -> folder of a LoRA of the checkpoint, which requests choose by that name; a path that
    is not absolute begins at the folder of the model."""
    prompt_cache: str = ""
    """A folder that keeps pages of prompts for later processes, of which several models may have
    the same; empty for that of the server, if it has one. A path that is not absolute begins at
    the folder of the model."""
    prompt_cache_bytes: int = 0
    """The most bytes of its files; 0: 4 GiB."""

    @property
    def is_given(self) -> bool:
        """Return whether a text model is configured."""
        return bool(self.object or self.checkpoint)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Configuration of a model."""

    versions: object = "latest"
    """"latest", "all", or a list of numbers."""
    instances: int = 1
    """Runs at once."""
    queue: int = 256
    """Requests that may wait; a further one is told to come again."""
    seconds: float = 30.0
    """How long a request may take, waiting included, where it does not say less."""
    threads: int = 0
    """Threads of a run at most; 0: all that the runtime has."""
    priority: int = 0
    """Of requests that say none; 1 is served first, and 0 last."""
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    sequences: SequenceConfig = field(default_factory=SequenceConfig)
    text: TextConfig = field(default_factory=TextConfig)
    pinned: bool = False
    """Where models load on demand: load it at the start, and never evict it."""


LOAD_TIMES = ("start", "demand")
LOG_LEVELS = ("debug", "info", "warning", "error")
Config = TypeVar("Config")
_SETTING_MINIMUMS = {
    "body_bytes": 1, "text_bytes": 1, "grpc_bytes": 1, "answer_bytes": 1, "held_bytes": 1,
    "body_seconds": 0.01, "idle_seconds": 0.01, "connections": 1, "instances": 1,
    "queue": 1, "seconds": 0.001, "sequences": 1, "rows": 1, "most": 1,
}  # fmt: skip
"""The least value of a number; of others it is 0."""


def read_server_config(path: Path, overrides: Mapping[str, object] | None = None) -> ServerConfig:
    """Read a server's configuration: defaults, then the file if it exists, then `overrides`. Raises
    ServeError naming the file and key.
    """
    config = _read_toml(path, ServerConfig(), "server") if path.exists() else ServerConfig()
    config = _apply_settings(config, overrides or {}, "option")
    if config.log not in LOG_LEVELS:
        raise ServeError(
            f"'{path}': log: one of {', '.join(LOG_LEVELS)} expected, got '{config.log}'"
        )
    if config.load not in LOAD_TIMES:
        raise ServeError(
            f"'{path}': load: one of {', '.join(LOAD_TIMES)} expected, got '{config.load}'"
        )
    if config.model_bytes and config.load != "demand":
        raise ServeError(f"'{path}': model_bytes: needs load = 'demand'")
    return config


def read_model_config(path: Path) -> ModelConfig:
    """Read a model's configuration. Raises ServeError naming the file and key."""
    if not path.exists():
        return ModelConfig()
    config = _read_toml(path, ModelConfig(), "model")
    versions = config.versions
    numbers = isinstance(versions, list) and all(type(v) is int and v > 0 for v in versions)
    if versions not in ("latest", "all") and not (numbers and versions):
        raise ServeError(f"'{path}': versions: 'latest', 'all' or a list of numbers expected")
    return config


def _read_toml(path: Path, default: Config, top: str) -> Config:
    """Read a file: the table `top` holds the configuration's own fields, the other tables its
    parts.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ServeError(f"'{path}': it cannot be read as TOML: {error}") from None
    own = tables.pop(top, {})
    if not isinstance(own, dict):
        raise ServeError(f"'{path}': {top}: a table expected")
    return _apply_settings(default, {**own, **tables}, f"'{path}'")


def _apply_settings(default: Config, settings: Mapping[str, object], where: str) -> Config:
    """Return a configuration in which validated settings replace the defaults. Raises
    ServeError.
    """
    kinds = get_type_hints(type(default))
    names = [config_field.name for config_field in fields(default)]  # type: ignore[arg-type]  # a dataclass
    checked: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"; '{near[0]}' is near" if near else f"; there are {', '.join(names)}"
            raise ServeError(f"{where}: no setting is named '{key}'{hint}")
        checked[key] = _check_value(getattr(default, key), kinds[key], value, f"{where}: {key}")
    return replace(default, **checked)  # type: ignore[type-var]  # a dataclass


def _check_value(default: object, kind: object, value: object, where: str) -> object:
    """Validate a setting's value. Raises ServeError for a wrong type, or a value out of range."""
    if isinstance(default, (Limits, BatchingConfig, SequenceConfig, TextConfig)):
        if not isinstance(value, Mapping):
            raise ServeError(f"{where}: a table expected")
        return _apply_settings(default, value, where)
    if kind is object:
        return value
    if kind == Mapping[str, str]:
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise ServeError(f"{where}: a table of names expected")
        return value
    if kind == tuple[str, ...]:
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            raise ServeError(f"{where}: a list of names expected")
        return tuple(value)
    assert isinstance(kind, type)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ServeError(f"{where}: {kind.__name__} expected, got {value!r}")
    if isinstance(value, (int, float)) and kind is not bool:
        minimum = _SETTING_MINIMUMS.get(where.rpartition(" ")[2], 0)
        if not minimum <= value < 2**63:
            raise ServeError(f"{where}: a number from {minimum} on expected, got {value!r}")
    return value
