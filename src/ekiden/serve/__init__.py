"""Server of compiled models and language models: the Open Inference Protocol over HTTP and gRPC,
and OpenAI's chat.

    from ekiden.serve import Server
    Server("models", port=8000).run()

Everything here runs on one event loop but the models themselves, which have threads of their own
(`batcher`, `generation`). A protocol reads its messages into the same requests (`requests`) and
writes the same answers; what is common to all is the `engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import load_module
from ekiden.runtime.errors import ServeError
from ekiden.serve.config import ModelConfig, ServerConfig
from ekiden.serve.text import (
    EmbeddingModel,
    Embeddings,
    Message,
    Piece,
    RerankModel,
    RerankScores,
    Sampling,
    TextModel,
)

if TYPE_CHECKING:
    from ekiden.serve.server import Server

__all__ = [
    "EmbeddingModel", "Embeddings", "Message", "ModelConfig", "Piece", "RerankModel",
    "RerankScores", "Sampling", "Server", "ServerConfig", "TextModel",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Load `Server`, which needs the packages of `pip install ekiden[serve]`."""
    if name != "Server":
        raise AttributeError(name)
    try:
        return load_module("ekiden.serve.server").Server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("ekiden"):
            raise
        raise ServeError(f"'{error.name}' is missing: pip install ekiden[serve]") from None
