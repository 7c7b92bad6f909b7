"""GGUF language-model files as checkpoints, under transformers' names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ekiden.llm.checkpoint import Weight
from ekiden.llm.generation_config import GGUF_SAMPLING_KEYS
from ekiden.llm.gguf_architectures import (
    architecture_of,
    read_gguf_config,
    to_transformers_name,
    to_transformers_weight,
)
from ekiden.llm.gguf_file import Entry, GGUFFile, write_gguf
from ekiden.runtime.cached_property import cached_property
from ekiden.runtime.errors import LoadError

__all__ = ["GGUFCheckpoint", "GGUFFile", "write_gguf"]


class GGUFCheckpoint(Mapping[str, Weight]):
    """GGUF language model as a checkpoint, under the tensor names of transformers.

    Query and key rows that the file permutes are restored to transformers' order (copied when they
    are requested). `file` is the file's own metadata. Raises LoadError, also for an unknown
    architecture.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = GGUFFile(path)
        self._architecture = architecture_of(self.path, self.file.metadata)
        self._names: dict[str, str] = {}
        for name in self.file:
            new = to_transformers_name(self._architecture, name)
            if new in self._names:
                raise LoadError(
                    f"{self.path}: tensors '{self._names[new]}' and '{name}': both mean '{new}'"
                )
            self._names[new] = name

    @property
    def path(self) -> Path:
        """Return the file's path."""
        return self.file.path

    @cached_property
    def config(self) -> Mapping[str, object]:
        """Return the hyperparameters in the form of transformers' `config.json`. Raises
        LoadError.
        """
        return read_gguf_config(self._architecture, self.file)

    @property
    def generation(self) -> Mapping[str, object]:
        """Return the file's sampling defaults in the form of `generation_config.json`."""
        metadata = self.file.metadata
        keys = {key: name for key, name in GGUF_SAMPLING_KEYS.items() if key in metadata}
        return {name: metadata[key] for key, name in keys.items()}

    @property
    def tokenizer(self) -> Mapping[str, Entry]:
        """Return the tokenizer's entries: "ggml.tokens", "ggml.merges", "chat_template", ..."""
        entries = self.file.metadata.items()
        prefix = "tokenizer."
        return {k.removeprefix(prefix): v for k, v in entries if k.startswith(prefix)}

    def check(self) -> None:
        """Raise LoadError if the file has changed since it was opened."""
        self.file.check()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Weight:
        return to_transformers_weight(self._architecture, self.file, self._names[name], name)
