"""`ekiden generate MODEL "text"`: print an answer as it is generated, and the speed."""

from __future__ import annotations

import argparse
import sys
import time

from ekiden.cli.options import thread_count
from ekiden.kernels.attention.kv_layout import CACHE_FORMATS
from ekiden.llm.model import Model, load
from ekiden.llm.sampling import Sampling
from ekiden.runtime.errors import InputError

_SAMPLING_OPTIONS: dict[str, tuple[type, str]] = {
    "max-tokens": (int, "the most tokens of the answer (256)"),
    "temperature": (float, "what logits are divided by; 0 for the likeliest token (0)"),
    "top-k": (int, "only so many of the likeliest tokens"),
    "top-p": (float, "only the likeliest that make up this share together"),
    "min-p": (float, "only those that are at least this share of the likeliest one"),
    "repetition-penalty": (float, "what tokens that came before are made less likely by"),
    "seed": (int, "equal seeds give equal answers (0)"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", help="a folder with config.json and safetensors, or a GGUF file")
    parser.add_argument("text", nargs="?", help="what the answer goes on from (standard input)")
    parser.add_argument("--tokens", help="numbers of tokens instead of a text: 1,529,29871")
    parser.add_argument("--tokenizer", help="a tokenizer.json, where the model has none beside it")
    parser.add_argument("--context", type=int, help="tokens that a text has at most")
    parser.add_argument("--cache", help="format of the cache: " + ", ".join(CACHE_FORMATS))
    parser.add_argument("--threads", type=thread_count, help="threads of a step")
    parser.add_argument("--draft", help="a smaller model of the same tokens, which proposes some")
    parser.add_argument("--proposals", type=int, help="how many of them at once (4)")
    parser.add_argument("--stop", action="append", default=[], help="a text that ends the answer")
    parser.add_argument("--quiet", action="store_true", help="say nothing of tokens a second")
    for name, (kind, text) in _SAMPLING_OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, help=text)


def run(options: argparse.Namespace) -> int:
    """Print the answer as it is generated. Raises InputError for two prompts."""
    if options.tokens is not None and options.text is not None:
        raise InputError("--tokens: give a prompt as text or as tokens, not both")
    option_values = {
        name.replace("-", "_"): getattr(options, name.replace("-", "_"))
        for name in _SAMPLING_OPTIONS
    }
    chosen = {name: value for name, value in option_values.items() if value is not None}
    sampling = Sampling(**chosen, stop=tuple(options.stop))
    model = load(
        options.model, context=options.context, sequences=1, cache=options.cache,
        tokenizer=options.tokenizer, num_threads=options.threads, draft=options.draft,
        proposals=options.proposals,
    )  # fmt: skip
    prompt = _tokenize_prompt(options, model)
    started = time.perf_counter()
    first, count = 0.0, 0
    for piece in model.generate(prompt, sampling):
        if piece.token is not None:
            count += 1
            # The first token ends the prefill; decoding speed is counted from there.
            first = first or time.perf_counter()
        shown = f"{piece.token} " if model.tokenizer is None and piece.token is not None else ""
        print(piece.text or shown, end="", flush=True)
    ended = time.perf_counter()
    print()
    if not options.quiet and count:
        print(
            f"prompt: {len(prompt)} tokens, {len(prompt) / (first - started):.1f} tokens/s;"
            f" answer: {count} tokens, {(count - 1) / max(ended - first, 1e-9):.1f} tokens/s",
            file=sys.stderr,
        )
    return 0


def _tokenize_prompt(options: argparse.Namespace, model: Model) -> list[int]:
    """Return the token ids of the prompt. Raises InputError for malformed `--tokens`."""
    if options.tokens is not None:
        try:
            return [int(token_text) for token_text in options.tokens.split(",")]
        except ValueError as error:
            raise InputError(f"--tokens: numbers with commas expected: {error}") from error
    return model.encode(sys.stdin.read() if options.text is None else options.text)
