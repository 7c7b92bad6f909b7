"""What a checkpoint holds: named tensors, plain or as blocks of small numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Checkpoint", "Weight"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a checkpoint, as it lies in the file.

    format: "float32", "float16" or "bfloat16" for plain numbers, else the name of a block format
    (`topi.nn.block_formats`), such as "q4_0".
    shape: what it means, outermost axis first; blocks run along the last axis.
    data: plain numbers in `shape`; blocks as uint8 `[*shape[:-1], blocks, bytes of a block]`. It
    may be a view of a mapped file and is not to be written.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: NDArray[Any]

    def values(self) -> NDArray[np.float32]:
        """Its numbers as float32, decoded where they are blocks."""
        raise NotImplementedError


class Checkpoint(Protocol):
    """A folder of safetensors with `config.json`, or a GGUF file."""

    @property
    def config(self) -> Mapping[str, object]:
        """The hyperparameters under the names of `config.json` of transformers, whatever the file
        calls them ("architectures", "hidden_size", "num_key_value_heads", ...)."""

    def __iter__(self) -> Iterator[str]:
        """The names of its tensors as transformers has them, "model.layers.0.mlp.up_proj.weight"."""

    def __getitem__(self, name: str) -> Weight:
        """One tensor. Raises KeyError."""
