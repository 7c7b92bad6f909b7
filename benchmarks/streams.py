"""Many texts at once beside one after the other, of a Llama with random weights.

    python benchmarks/streams.py --format q4_0 --threads 1 --prompts 16 256 --answers 16 128

Prompts and answers have lengths between the two numbers. Prints seconds and tokens of answers a
second of both, and how many times faster all together are; each text is compared with itself alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
from decode import LEAST, Random

from ekiden import llm

Text = tuple[list[int], llm.Sampling]


def texts(options: argparse.Namespace, vocabulary: int) -> list[Text]:
    """Prompts, and how long their answers are."""
    rng = np.random.default_rng(options.seed)
    made = []
    for _ in range(options.streams):
        prompt, answer = (int(rng.integers(low, high + 1)) for low, high in
                          (options.prompts, options.answers))  # fmt: skip
        tokens = rng.integers(LEAST, vocabulary, prompt).tolist()
        made.append((tokens, llm.Sampling(max_tokens=answer, ignore_end=True)))
    return made


def run(engine: llm.Engine, given: Sequence[Text]) -> tuple[float, list[list[int]]]:
    """Seconds, and the answers."""
    start = time.perf_counter()
    streams = [engine.submit(prompt, sampling) for prompt, sampling in given]
    found = [list(stream) for stream in streams]
    return time.perf_counter() - start, found


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="135M")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--cache", default="float16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompts", type=int, nargs=2, default=[16, 256])
    parser.add_argument("--answers", type=int, nargs=2, default=[16, 128])
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = llm.load(
        Random(options.size, options.format), sequences=options.streams, context=1024,
        cache=options.cache, num_threads=options.threads,
    )  # fmt: skip
    given = texts(options, model.config.vocabulary)
    warm, *_ = texts(argparse.Namespace(**{**vars(options), "seed": -1 % 2**32}), LEAST + 1)
    times, answers = {}, {}
    for count in (1, options.streams):
        engine = llm.Engine(model, sequences=count, chunk=options.chunk, steps=options.steps)
        run(engine, [warm] * count)
        times[count], answers[count] = run(engine, given)
    made = sum(map(len, answers[1]))
    read = sum(len(prompt) for prompt, _ in given)
    print(f"{options.streams} texts: {read} tokens of prompts, {made} of answers")
    for count, seconds in times.items():
        print(f"{count:3} at once: {seconds:7.2f} s {made / seconds:8.1f} tokens/s")
    print(f"{times[1] / times[options.streams]:.2f} times; equal to each alone: "
          f"{answers[1] == answers[options.streams]}")  # fmt: skip


if __name__ == "__main__":
    main()
