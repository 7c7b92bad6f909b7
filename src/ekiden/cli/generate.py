"""`ekiden generate MODEL "text"`: print an answer as it is generated, and the speed; with
`--prompts` the answers to many.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ekiden.cli.text_options import (
    add_sampling_arguments,
    add_text_model_arguments,
    load_text_model,
    sampling_fields,
)
from ekiden.llm.conversation import is_conversation
from ekiden.llm.model import Model
from ekiden.llm.sampling import Sampling
from ekiden.runtime.errors import InputError
from ekiden.runtime.files import rewrite_os_errors

MAX_TEXTS_AT_ONCE = 16
"""Maximum number of prompts of a `--prompts` file that are answered concurrently."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_text_model_arguments(parser)
    parser.add_argument("text", nargs="?", help="the prompt (default: standard input)")
    parser.add_argument("--tokens", help="numbers of tokens instead of a text: 1,529,29871")
    parser.add_argument(
        "--prompts",
        help="a file of prompts, one a line: a text in JSON, or a list of messages of a"
        " conversation; answers come as lines of JSON",
    )
    parser.add_argument("--quiet", action="store_true", help="do not print the speed")
    add_sampling_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the response as it is generated. Raises InputError for two prompts."""
    if options.tokens is not None and options.text is not None:
        raise InputError("--tokens: give a prompt as text or as tokens, not both")
    if options.prompts is not None and (options.tokens, options.text) != (None, None):
        raise InputError("--prompts: give prompts in a file or one as an argument, not both")
    sampling = Sampling(**sampling_fields(options))
    if options.prompts is not None:
        return _answer_all(options, sampling)
    model = load_text_model(options)
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


def _answer_all(options: argparse.Namespace, sampling: Sampling) -> int:
    """Print the responses to a file's prompts, in its order. Raises InputError."""
    prompts = _read_prompts(options.prompts)
    model = load_text_model(options, sequences=min(max(len(prompts), 1), MAX_TEXTS_AT_ONCE))
    for text in model.generate_texts(prompts, sampling):
        print(json.dumps({"text": text}, ensure_ascii=False), flush=True)
    return 0


def _read_prompts(path: str) -> list[Any]:
    """Return the prompts of a file. Raises InputError for a line that is no prompt."""
    with rewrite_os_errors("read", path):
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    prompts: list[Any] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--prompts: line {number}: not valid JSON: {error}") from error
        if not isinstance(prompt, str) and not is_conversation(prompt):
            raise InputError(f"--prompts: line {number}: a text or a list of messages expected")
        prompts.append(prompt)
    return prompts


def _tokenize_prompt(options: argparse.Namespace, model: Model) -> list[int]:
    """Return the token ids of the prompt. Raises InputError for malformed `--tokens`."""
    if options.tokens is not None:
        try:
            return [int(token_text) for token_text in options.tokens.split(",")]
        except ValueError as error:
            raise InputError(f"--tokens: numbers with commas expected: {error}") from error
    return model.encode(sys.stdin.read() if options.text is None else options.text)
