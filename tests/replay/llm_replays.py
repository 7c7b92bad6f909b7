"""Programs of the replay that are decoders of language models and the loop that generates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from replay_programs import Program
from tiny_models import tiny

from ekiden.ir.module import IRModule
from ekiden.llm.decoder import CacheLayout, decoder_module
from ekiden.llm.decoder_config import read_config
from ekiden.llm.generation_program import build_generation_program


def decoder(name: str, cache: str) -> IRModule:
    """Return the step of a decoder of one layer, whose cache has pages of 16 tokens of a dtype."""
    checkpoint = tiny(name, num_hidden_layers=1)
    return decoder_module(checkpoint, read_config(checkpoint.config, 64), CacheLayout(16, cache))


def generation(name: str) -> IRModule:
    """Return such a decoder in float32 with the choice of tokens and the loop of steps."""
    checkpoint = tiny(name, num_hidden_layers=1)
    return build_generation_program(checkpoint, read_config(checkpoint.config, 64), CacheLayout(16))


HOST = ("vnni", "haswell", "neon", "c")
"""A decoder's cache is a reference, which stays on the host."""
PROGRAMS: Mapping[str, Program] = {
    "llama": Program(partial(generation, "llama"), targets=("vnni", "neon")),
    "qwen3_bytes": Program(partial(decoder, "qwen3", "int8"), targets=HOST),
}
