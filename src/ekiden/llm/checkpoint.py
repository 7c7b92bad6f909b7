"""Interface of checkpoints, mappings from tensor names to weights: unquantized, or as blocks of
quantized numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ekiden.runtime.artifact.mapped_files import MappedFiles, read_remaining
from ekiden.runtime.errors import LoadError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME

__all__ = [
    "UNQUANTIZED_DTYPES",
    "Checkpoint",
    "FileBacked",
    "HasGenerationConfig",
    "MappedBytes",
    "Weight",
    "check_files",
    "tensor_bytes",
]

UNQUANTIZED_DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
"""Formats of plain numbers."""


MAX_WEIGHT_ELEMENTS = 1 << 48
"""In a tensor, of which one axis may be empty: what NumPy can say the shape of, in any format."""


def tensor_bytes(shape: Sequence[int], size: int, where: str) -> int:
    """Return the size of a tensor with elements of `size` bytes. Raises LoadError, prefixed with
    `where`, for an impossible shape.
    """
    # An empty axis does not lift the limit: NumPy computes strides from the other extents.
    count = math.prod(max(extent, 1) for extent in shape)
    if count > MAX_WEIGHT_ELEMENTS:
        raise LoadError(
            f"{where}: shape {tuple(shape)}: at most {MAX_WEIGHT_ELEMENTS} elements expected"
        )
    return 0 if 0 in shape else count * size


@dataclass(frozen=True, slots=True)
class Weight:
    """Tensor of a checkpoint, as stored in the file.

    format: "float32", "float16" or "bfloat16" for plain numbers, else the name of a block format
    (`topi.nn.block_formats`), such as "q4_0". shape: what it means, outermost axis first; blocks
    run along the last axis. data: plain numbers in `shape`; blocks as uint8 `[*shape[:-1], blocks,
    bytes of a block]`. It may be a view of a mapped file and is not to be written.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: NDArray[Any]

    def values(self) -> NDArray[np.float32]:
        """Return the elements as float32, dequantising blocks."""
        if self.format in UNQUANTIZED_DTYPES:
            return np.asarray(self.data, np.float32)
        return BLOCK_FORMATS_BY_NAME[self.format].decode(self.data).reshape(self.shape)

    @staticmethod
    def of(name: str, values: NDArray[Any], format: str = "float32") -> Weight:
        """Encode an array as a weight in a format. Raises ValueError for an unknown format, or rows
        that are no whole number of its blocks.
        """
        if format in UNQUANTIZED_DTYPES:
            return Weight(
                name, format, values.shape, np.ascontiguousarray(values, UNQUANTIZED_DTYPES[format])
            )
        row = BLOCK_FORMATS_BY_NAME.get(format)
        if row is None:
            known_formats = ", ".join((*UNQUANTIZED_DTYPES, *BLOCK_FORMATS_BY_NAME))
            raise ValueError(f"'{name}': one of {known_formats} expected as format, got '{format}'")
        return Weight(name, format, values.shape, row.encode(np.asarray(values, np.float32)))


class MappedBytes:
    """Bytes of a file as a read-only array, mapped unless the file is small.

    Somebody may cut the file or write to it meanwhile: what has gone is zeros, and `check`, which
    who made something of the bytes calls, says so. Raises LoadError, where `kind` names the format.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._files = path, MappedFiles()
        try:
            # An empty file cannot be mapped, and the system's error would not name the format.
            if path.stat().st_size == 0:
                raise LoadError(f"{path}: no {kind} file: it is empty")
            content = self._files.map(path)
            if content is None:
                # One read takes the whole file, so a second buffer would only cost a copy.
                with open(path, "rb", buffering=0) as file:
                    content = read_remaining(file)
        except OSError as error:
            raise LoadError(f"{path}: cannot be read: {error.strerror}") from error
        # Weights are views of these bytes, so no writable view of the file is passed on.
        self.data: NDArray[np.uint8] = np.frombuffer(content.toreadonly(), np.uint8)

    def check(self) -> None:
        """Raise LoadError if the file has changed since it was opened."""
        self._files.check_unchanged(f"load {str(self._path)!r}", LoadError)


class Checkpoint(Protocol):
    """Interface of a checkpoint: a folder of safetensors with `config.json`, or a GGUF file."""

    @property
    def config(self) -> Mapping[str, object]:
        """Return the hyperparameters under the names of transformers' `config.json`, whatever the
        file calls them ("architectures", "hidden_size", "num_key_value_heads", ...).
        """

    def __iter__(self) -> Iterator[str]:
        """Return an iterator over its tensors' names in transformers: "model.embed_tokens.weight",
        ...
        """

    def __getitem__(self, name: str) -> Weight:
        """Return a tensor. Raises KeyError."""


@runtime_checkable
class HasGenerationConfig(Protocol):
    """Checkpoint with sampling defaults for generation."""

    @property
    def generation(self) -> Mapping[str, object]:
        """Return the defaults under the names of transformers' `generation_config.json`."""


@runtime_checkable
class FileBacked(Protocol):
    """Checkpoint that reads tensors from files on demand."""

    def check(self) -> None:
        """Raise LoadError if a file has changed since it was opened: results computed from its
        tensors must not be used.
        """


def check_files(*sources: object) -> None:
    """Raise LoadError if a file of a source was changed since it was opened.

    A file changed during a compilation would leave torn weights in the program.
    """
    for source in sources:
        if isinstance(source, FileBacked):
            source.check()
