"""Reader of checkpoint tensors that checks their shapes and records which were read."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.checkpoint import Checkpoint, Weight
from ekiden.runtime.errors import ImportModelError

__all__ = ["UNQUANTIZED_FORMATS", "TensorReader", "dequantize", "format_shape"]

UNQUANTIZED_FORMATS = ("float32", "float16", "bfloat16")


class TensorReader:
    """Reader of a checkpoint's tensors that records which were read. Raises ImportModelError naming
    a tensor that is missing or has another shape.
    """

    def __init__(self, checkpoint: Checkpoint, prefix: str, probe: str) -> None:
        """Create a reader.

        Args:
            checkpoint: The tensors.
            prefix: What names begin with; checkpoints may lack it, or have another one.
            probe: A name that every checkpoint has, with its usual prefix.
        """
        self._checkpoint, self._usual_prefix = checkpoint, prefix
        self._names = frozenset(checkpoint)
        self._prefix = _stored_prefix(self._names, prefix, probe)
        self._read: set[str] = set()

    @property
    def unread(self) -> list[str]:
        """Return the names, in order, of tensors that were not read."""
        return sorted(self._names - self._read)

    def has_tensor(self, name: str) -> bool:
        """Return whether a tensor exists."""
        return self.stored_name(name) in self._names

    def stored_name(self, name: str) -> str:
        """Return a tensor's name in the checkpoint: its prefix may be another one."""
        if self._prefix == self._usual_prefix or not name.startswith(self._usual_prefix):
            return name
        return self._prefix + name.removeprefix(self._usual_prefix)

    def read_weight(self, name: str, shape: tuple[int | None, ...]) -> Weight:
        """Return a tensor after checking its shape, in which None matches any size. Raises
        ImportModelError if it is missing or has another shape.
        """
        name = self.stored_name(name)
        if name not in self._names:
            near = difflib.get_close_matches(name, self._names, 1)
            hint = f" (there is '{near[0]}')" if near else ""
            raise ImportModelError(f"checkpoint: no tensor '{name}'{hint}")
        self._read.add(name)
        tensor = self._checkpoint[name]
        fits = len(tensor.shape) == len(shape) and all(
            expected in (None, size) for expected, size in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            raise ImportModelError(
                f"checkpoint: '{name}' must have the shape {format_shape(shape)}, got"
                f" {format_shape(tensor.shape)}"
            )
        return tensor

    def read_vector(self, name: str, size: int) -> NDArray[np.float32]:
        """Return a vector as float32."""
        return dequantize(self.read_weight(name, (size,)))


def _stored_prefix(stored: frozenset[str], prefix: str, probe: str) -> str:
    """Return the name prefix that a checkpoint uses in place of `prefix`: none in those of a model
    without its head, another one in those of a multimodal model.
    """
    suffix = probe.removeprefix(prefix)
    candidates = (prefix, "", "model.language_model.", f"language_model.{prefix}")
    return next((candidate for candidate in candidates if candidate + suffix in stored), prefix)


def dequantize(weight: Weight) -> NDArray[np.float32]:
    """Return a weight as a contiguous float32 array."""
    if weight.format in UNQUANTIZED_FORMATS:
        return np.ascontiguousarray(weight.data, np.float32)
    return weight.values()


def format_shape(shape: Sequence[int | None]) -> str:
    """Return a shape as text, with a question mark for any size."""
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ")"
