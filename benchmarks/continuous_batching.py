"""Continuous batching of many generation requests, compared with one request after the other, on a
Llama with random weights.

    python benchmarks/continuous_batching.py --format q4_0 --threads 1 --prompts 16 256
        --answers 16 128

Prompts and answers have lengths between the two numbers. Prints seconds and tokens of answers a
second of both, and how many times faster all together are; each text is compared with itself alone.

What is possible is measured beside it: the tokens a second of one text that is under way, of as
many as there are, and of a prompt that fills a step, in turns, after prompts of the middle length.
Every token goes through all weights, in steps of these kinds, so all together take no less than
their tokens at the greater of the last two rates.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
from decode import FIRST_ORDINARY_TOKEN, RandomCheckpoint

from ekiden import llm

Text = tuple[list[int], llm.Sampling]
STEPS, ROUNDS = 8, 5
"""Of a measurement of a rate, and how often it is made."""


def random_prompts(options: argparse.Namespace, vocabulary: int) -> list[Text]:
    """Return random prompts with the lengths of their answers."""
    rng = np.random.default_rng(options.seed)
    requests = []
    for _ in range(options.streams):
        prompt, answer = (int(rng.integers(low, high + 1)) for low, high in
                          (options.prompts, options.answers))  # fmt: skip
        tokens = rng.integers(FIRST_ORDINARY_TOKEN, vocabulary, prompt).tolist()
        requests.append((tokens, llm.Sampling(max_tokens=answer, ignore_end=True)))
    return requests


def generate_all(engine: llm.Engine, requests: Sequence[Text]) -> tuple[float, list[list[int]]]:
    """Generate all answers, and return the seconds and the answers."""
    start = time.perf_counter()
    streams = [engine.submit(prompt, sampling) for prompt, sampling in requests]
    answers = [list(stream) for stream in streams]
    return time.perf_counter() - start, answers


class DecodingStreams:
    """Streams past their prompts that decode as long as requested."""

    def __init__(self, model: llm.Model, count: int, options: argparse.Namespace) -> None:
        engine = llm.Engine(model, sequences=count, chunk=options.chunk, steps=options.steps)
        rng = np.random.default_rng(count)
        sampling = llm.Sampling(max_tokens=2 * STEPS * ROUNDS * options.steps, ignore_end=True)
        prompt_length = sum(options.prompts) // 2
        self.streams = [
            engine.submit(
                rng.integers(FIRST_ORDINARY_TOKEN, model.config.vocabulary, prompt_length), sampling
            )
            for _ in range(count)
        ]
        for stream in self.streams:
            next(stream)

    def decode_rate(self) -> float:
        """Return the tokens per second."""
        start, count = time.perf_counter(), 0
        for _ in range(STEPS):
            for stream in self.streams:
                next(stream)
                count += 1
        return count / (time.perf_counter() - start)

    def close(self) -> None:
        """End the texts."""
        for stream in self.streams:
            stream.close()


def prefill_rate(model: llm.Model, options: argparse.Namespace) -> float:
    """Return the tokens per second of a prompt that fills a chunk."""
    engine = llm.Engine(model, sequences=1, chunk=options.chunk)
    rng = np.random.default_rng(time.perf_counter_ns())
    prompt = rng.integers(FIRST_ORDINARY_TOKEN, model.config.vocabulary, options.chunk)
    start = time.perf_counter()
    stream = engine.submit(prompt, llm.Sampling(max_tokens=1))
    next(stream)
    return options.chunk / (time.perf_counter() - start)


def measure_rates(model: llm.Model, options: argparse.Namespace) -> tuple[float, float, float]:
    """Return the decoding rate of one stream, of all streams, and the prefill rate, measured
    alternately.
    """
    several = [DecodingStreams(model, count, options) for count in (1, options.streams)]
    samples = [
        (*(running_texts.decode_rate() for running_texts in several), prefill_rate(model, options))
        for _ in range(ROUNDS)
    ]
    for running in several:
        running.close()
    one, all_rate, read = (statistics.median(column) for column in zip(*samples, strict=True))
    return one, all_rate, read


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
        RandomCheckpoint(options.size, options.format), sequences=options.streams, context=1024,
        cache=options.cache, num_threads=options.threads,
    )  # fmt: skip
    requests = random_prompts(options, model.config.vocabulary)
    warm, *_ = random_prompts(
        argparse.Namespace(**{**vars(options), "seed": -1 % 2**32}), FIRST_ORDINARY_TOKEN + 1
    )
    times, answers = {}, {}
    for count in (1, options.streams):
        engine = llm.Engine(model, sequences=count, chunk=options.chunk, steps=options.steps)
        generate_all(engine, [warm] * count)
        times[count], answers[count] = generate_all(engine, requests)
    token_count = sum(map(len, answers[1]))
    read = sum(len(prompt) for prompt, _ in requests)
    print(f"{options.streams} texts: {read} tokens of prompts, {token_count} of answers")
    for count, seconds in times.items():
        print(f"{count:3} at once: {seconds:7.2f} s {token_count / seconds:8.1f} tokens/s")
    print(f"{times[1] / times[options.streams]:.2f} times; equal to each alone: "
          f"{answers[1] == answers[options.streams]}")  # fmt: skip
    one, all_rate, prompt = measure_rates(model, options)
    max_length = times[1] * max(all_rate, prompt) / (read + token_count)
    print(f"tokens/s under way: {one:.0f} alone, {all_rate:.0f} of {options.streams} texts; "
          f"of prompts {prompt:.0f}; so at most {max_length:.2f} times")  # fmt: skip


if __name__ == "__main__":
    main()
