"""Arguments of the commands that generate text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ekiden.cli.options import thread_count
from ekiden.kernels.attention.kv_layout import CACHE_FORMATS
from ekiden.llm.json_schema import json_schema_pattern
from ekiden.llm.model import Model, load
from ekiden.llm.prompt_cache import DEFAULT_PROMPT_CACHE_BYTES
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import rewrite_os_errors

__all__ = [
    "add_sampling_arguments",
    "add_text_model_arguments",
    "load_text_model",
    "sampling_fields",
]

_SAMPLING_OPTIONS: dict[str, tuple[type, str]] = {
    "max-tokens": (int, "the most tokens of the answer"),
    "temperature": (float, "what logits are divided by; 0 for the likeliest token"),
    "top-k": (int, "only so many of the likeliest tokens"),
    "top-p": (float, "only the likeliest that make up this share together"),
    "min-p": (float, "only those that are at least this share of the likeliest one"),
    "repetition-penalty": (float, "what tokens that came before are made less likely by"),
    "seed": (int, "equal seeds give equal answers (0)"),
}


def add_text_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the model and its loading."""
    parser.add_argument("model", help="a folder with config.json and safetensors, or a GGUF file")
    parser.add_argument("--tokenizer", help="a tokenizer.json, where the model has none beside it")
    parser.add_argument("--context", type=int, help="tokens that a text has at most")
    parser.add_argument("--cache", help="format of the cache: " + ", ".join(CACHE_FORMATS))
    parser.add_argument(
        "--prompt-cache", help="a folder that keeps what prompts begin with, for later runs"
    )
    parser.add_argument(
        "--prompt-cache-bytes", type=int, default=DEFAULT_PROMPT_CACHE_BYTES,
        help="maximum bytes of that folder (4 GiB)",
    )  # fmt: skip
    parser.add_argument("--threads", type=thread_count, help="threads of a step")
    parser.add_argument("--draft", help="a smaller model of the same tokens, which proposes some")
    parser.add_argument("--proposals", type=int, help="how many of them at once (4)")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sampling arguments and the response's format."""
    parser.add_argument("--stop", action="append", default=[], help="a text that ends the answer")
    parser.add_argument("--grammar", help="a regular expression that the whole answer matches")
    parser.add_argument("--schema", help="a JSON schema of the answer, or its file")
    for name, (kind, text) in _SAMPLING_OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, help=text)


def load_text_model(options: argparse.Namespace, sequences: int = 1) -> Model:
    """Load the model of a command for a number of concurrent sequences."""
    return load(
        options.model, context=options.context, sequences=sequences, cache=options.cache,
        tokenizer=options.tokenizer, num_threads=options.threads, draft=options.draft,
        proposals=options.proposals, prompt_cache=options.prompt_cache,
        prompt_cache_bytes=options.prompt_cache_bytes,
    )  # fmt: skip


def sampling_fields(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `Sampling` that the user set. Raises InputError for a schema that is
    none, or beside a grammar.
    """
    names = [name.replace("-", "_") for name in _SAMPLING_OPTIONS]
    fields = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.schema is not None and options.grammar is not None:
        raise InputError("--schema: give a grammar or a schema, not both")
    if options.grammar is not None:
        fields["grammar"] = options.grammar
    if options.schema is not None:
        fields["grammar"] = json_schema_pattern(_read_schema(options.schema))
    return {**fields, "stop": tuple(options.stop)} if options.stop else fields


def _read_schema(given: str) -> object:
    """Return the JSON schema given as text or as a file. Raises InputError."""
    text = given
    if not given.lstrip().startswith("{"):
        with rewrite_os_errors("read", given):
            text = Path(given).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--schema: no JSON: {error}") from error
