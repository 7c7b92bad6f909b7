#!/usr/bin/env python
"""Compare small models of every family of decoders with transformers, and write the table of
`docs/llm-families.md`.

    scripts/llm_families.py            print the table
    scripts/llm_families.py --write    write the page
    scripts/llm_families.py gpt2 olmo  some families

The models are those of `tests/llm/families.py`: random weights in float32, saved by transformers
and read from the folder. It needs transformers and torch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ekiden import llm

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "llm"))
from families import FAMILIES, save_family  # noqa: E402  # of the tests

PAGE = ROOT / "docs" / "llm-families.md"
PROMPT_TOKENS, ANSWER_TOKENS = 12, 200
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


@dataclass(frozen=True)
class Comparison:
    """One family beside transformers: the largest difference of a logit, relative to the largest
    logit, and how many greedy tokens are equal.
    """

    name: str
    architecture: str
    error: float
    equal_tokens: int


def compare(name: str) -> Comparison:
    """Compile a small model of a family and compare it with transformers."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        other = save_family(name, Path(folder))
        model = llm.load(folder, page=16, sequences=1, cache="float32")
        prompt = np.random.default_rng(1).integers(0, 97, PROMPT_TOKENS).tolist()
        answer = model.engine.run([prompt], llm.Sampling(max_tokens=ANSWER_TOKENS))[0]
        # One pass over prompt and answer: each argmax must be the token that follows.
        expected = other(torch.tensor([[*prompt, *answer]])).logits[0].numpy()
        actual = model.logits([*prompt, *answer])
    error = float(np.abs(actual - expected).max() / np.abs(expected).max())
    likeliest = expected.argmax(-1)[PROMPT_TOKENS - 1 : -1]
    return Comparison(name, FAMILIES[name][0], error, int((likeliest == answer).sum()))


def format_table(rows: list[Comparison]) -> str:
    """Return the comparisons as a table of Markdown."""
    lines = [
        "| model | architecture | largest error of logits | equal greedy tokens |",
        "|---|---|--:|--:|",
    ]
    lines += [
        f"| {row.name} | `{row.architecture}` | {row.error:.1e} | {row.equal_tokens} of"
        f" {ANSWER_TOKENS} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    """Run the comparison; return 1 if a family differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="families, all without one")
    parser.add_argument("--write", action="store_true", help="write the page")
    options = parser.parse_args()
    rows = []
    for name in options.names or FAMILIES:
        rows.append(compare(name))
        print(rows[-1], file=sys.stderr, flush=True)
    table = format_table(rows)
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    else:
        print(table)
    return int(any(row.error > 1e-5 or row.equal_tokens < ANSWER_TOKENS for row in rows))


if __name__ == "__main__":
    sys.exit(main())
