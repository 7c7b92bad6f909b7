"""Perplexity of a GGUF decoder on a fixed text, compared with llama.cpp on the same file.

    python benchmarks/perplexity.py MODEL.gguf --node FOLDER      where the folder has
        npm install node-llama-cpp
    python benchmarks/perplexity.py MODEL.gguf --caches float16 int8 int4

All get the same tokens, those of the file's own tokenizer. "floats" are the file's own weights as
floats and a cache of floats, so that nothing else is rounded: which of the others is nearer to what
the file says. llama.cpp is compared with the first cache.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ekiden import llm
from ekiden.llm.checkpoint import Checkpoint, Weight
from ekiden.llm.checkpoint_files import open_checkpoint

EVALUATION_TEXT = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having \
nothing to do: once or twice she had peeped into the book her sister was reading, but it had \
no pictures or conversations in it, "and what is the use of a book," thought Alice, "without \
pictures or conversations?" So she was considering in her own mind (as well as she could, for \
the hot day made her feel very sleepy and stupid), whether the pleasure of making a daisy- \
chain would be worth the trouble of getting up and picking the daisies, when suddenly a White \
Rabbit with pink eyes ran close by her. There was nothing so very remarkable in that; nor did \
Alice think it so very much out of the way to hear the Rabbit say to itself, "Oh dear! Oh \
dear! I shall be late!" But when the Rabbit actually took a watch out of its waistcoat-pocket, \
and looked at it, and then hurried on, Alice started to her feet, for it flashed across her \
mind that she had never before seen a rabbit with either a waistcoat-pocket, or a watch to \
take out of it, and burning with curiosity, she ran across the field after it, and fortunately \
was just in time to see it pop down a large rabbit-hole under the hedge."""
"""The first of `Alice's Adventures in Wonderland` (1865)."""


class DequantizedCheckpoint:
    """Checkpoint whose quantized blocks are decoded to float32."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.whole, self.config = checkpoint, checkpoint.config

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __getitem__(self, name: str) -> Weight:
        return Weight.encode(name, self.whole[name].values())

    def check(self) -> None:
        """Check the underlying checkpoint."""
        self.whole.check()


def ekiden_log_probs(model: llm.Model, tokens: list[int]) -> list[float]:
    """Return Ekiden's log probability of each token from the second on."""
    logits = np.asarray(model.logits(tokens), np.float64)[:-1]
    top = logits.max(axis=1, keepdims=True)
    sums = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
    return list(logits[np.arange(len(logits)), tokens[1:]] - sums)


def llama_cpp_log_probs(node: Path, file: Path, tokens: list[int]) -> list[float]:
    """Return llama.cpp's log probability of each token from the second on."""
    script = Path(__file__).with_name("perplexity_llama.mjs")
    done = subprocess.run(
        ["node", str(script), str(node), str(file)],
        input=json.dumps(tokens), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print both, and their difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--node", type=Path, help="where node_modules is")
    parser.add_argument("--text", type=Path, help="another text")
    parser.add_argument("--tokens", type=int, default=265, help="how many of it (265)")
    parser.add_argument("--caches", nargs="+", default=["float16"], help="of Ekiden")
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8") if options.text else EVALUATION_TEXT
    models = {
        f"Ekiden, {cache}":
            llm.load(options.model, sequences=1, context=options.tokens + 1, cache=cache)
        for cache in options.caches
    }  # fmt: skip
    first = next(iter(models))
    tokens = models[first].encode(text)[: options.tokens]
    models["floats"] = llm.load(
        DequantizedCheckpoint(open_checkpoint(options.model)), sequences=1, context=len(tokens) + 1
    )
    logs_by_engine = {name: ekiden_log_probs(model, tokens) for name, model in models.items()}
    print_perplexities(logs_by_engine, tokens)
    if options.node is not None:
        logs_by_engine["llama.cpp"] = llama_cpp_log_probs(options.node, options.model, tokens)
        print_perplexities({"llama.cpp": logs_by_engine["llama.cpp"]}, tokens)
    exact = np.asarray(logs_by_engine.pop("floats"))
    for name, logs in logs_by_engine.items():
        apart = np.asarray(logs) - exact
        print(
            f"{name} beside floats: {math.expm1(-apart.mean()):+.2%}; one token's logarithm is "
            f"{np.sqrt((apart**2).mean()):.4f} apart, at most {np.abs(apart).max():.3f}"
        )
    if options.node is not None:
        ours, theirs = (np.asarray(logs_by_engine[name]) for name in (first, "llama.cpp"))
        print(f"{math.expm1(theirs.mean() - ours.mean()):+.2%} beside llama.cpp")


def print_perplexities(logs_by_engine: dict[str, list[float]], tokens: list[int]) -> None:
    """Print the perplexity of each engine."""
    for name, logs in logs_by_engine.items():
        print(
            f"{name:<18}{math.exp(-sum(logs) / len(logs)):>10.4f}  {len(tokens)} tokens", flush=True
        )


if __name__ == "__main__":
    main()
