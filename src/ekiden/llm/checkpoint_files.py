"""Loading of checkpoints and tokenizers by path."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from ekiden.llm.checkpoint import Checkpoint
from ekiden.llm.gguf import GGUFCheckpoint
from ekiden.llm.gguf_tokenizer import build_gguf_tokenizer
from ekiden.llm.quantized_weights import with_decoded_weights
from ekiden.llm.safetensors import SafetensorsCheckpoint
from ekiden.llm.stacked_experts import with_unstacked_experts
from ekiden.llm.tokenizer import FILE, Tokenizer
from ekiden.runtime.errors import LoadError

__all__ = ["find_tokenizer", "open_checkpoint"]


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a folder of safetensors or torch.save files, or a GGUF file. Raises LoadError, and
    UnsupportedError for weights of an unknown quantisation.
    """
    location = Path(path)
    if location.is_dir():
        return with_unstacked_experts(with_decoded_weights(SafetensorsCheckpoint(location)))
    if not location.is_file():
        raise LoadError(f"{location}: no such file or folder")
    return GGUFCheckpoint(location)


def find_tokenizer(path: str | os.PathLike[str], checkpoint: Checkpoint) -> Tokenizer | None:
    """Return the tokenizer in a checkpoint's folder, or the one stored inside it; None if there is
    none or the package tokenizers is not installed. Raises LoadError for a broken one.
    """
    if find_spec("tokenizers") is None:
        return None
    folder = Path(path)
    file = (folder if folder.is_dir() else folder.parent) / FILE
    if file.is_file():
        return Tokenizer.read(file)
    return build_gguf_tokenizer(checkpoint) if isinstance(checkpoint, GGUFCheckpoint) else None
