"""Large language models: decoders from checkpoints, with the loop that generates text.

model = ekiden.llm.load("folder")             # config.json, *.safetensors, tokenizer.json
for piece in model.generate("Once upon", max_tokens=50):
    print(piece.text, end="", flush=True)
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden.llm.chat import ChatAnswer
from ekiden.llm.embedding import EmbeddingModel, Pooling, load_embedding_model
from ekiden.llm.encoder_models import Reranker, load_reranker
from ekiden.llm.engine import Engine, Stream
from ekiden.llm.grammar import Grammar
from ekiden.llm.model import Model, Piece, load
from ekiden.llm.sampling import Sampling

__all__ = [
    "ChatAnswer",
    "EmbeddingModel",
    "Engine",
    "Grammar",
    "Model",
    "Piece",
    "Pooling",
    "Reranker",
    "Sampling",
    "Stream",
    "load",
    "load_embedding_model",
    "load_reranker",
]
