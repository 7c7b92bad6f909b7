"""Which reader a path is for, and where its tokenizer is."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from ekiden.llm.gguf import GGUFCheckpoint
from ekiden.llm.gguf_tokenizer import tokenizer_of
from ekiden.llm.safetensors import SafetensorsCheckpoint
from ekiden.llm.text import FILE, Tokenizer
from ekiden.llm.weights import Checkpoint
from ekiden.runtime.errors import LoadError

__all__ = ["find_tokenizer", "open_checkpoint"]


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at a path: a folder of safetensors, or a GGUF file. Raises LoadError."""
    place = Path(path)
    if place.is_dir():
        return SafetensorsCheckpoint(place)
    if not place.is_file():
        raise LoadError(f"{place}: no such file or folder")
    return GGUFCheckpoint(place)


def find_tokenizer(path: str | os.PathLike[str], checkpoint: Checkpoint) -> Tokenizer | None:
    """The tokenizer that lies beside a checkpoint, else the one in its file; None where there is
    none, or the package tokenizers is not installed. Raises LoadError for a broken one."""
    if find_spec("tokenizers") is None:
        return None
    folder = Path(path)
    file = (folder if folder.is_dir() else folder.parent) / FILE
    if file.is_file():
        return Tokenizer.read(file)
    return tokenizer_of(checkpoint) if isinstance(checkpoint, GGUFCheckpoint) else None
