"""Which reader a path is for."""

from __future__ import annotations

import os
from pathlib import Path

from ekiden.llm.gguf import GGUFCheckpoint
from ekiden.llm.safetensors import SafetensorsCheckpoint
from ekiden.llm.weights import Checkpoint
from ekiden.runtime.errors import LoadError

__all__ = ["open_checkpoint"]


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at a path: a folder of safetensors, or a GGUF file. Raises LoadError."""
    place = Path(path)
    if place.is_dir():
        return SafetensorsCheckpoint(place)
    if not place.is_file():
        raise LoadError(f"{place}: no such file or folder")
    return GGUFCheckpoint(place)
