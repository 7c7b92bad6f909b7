"""Each sentence of docs/security.md has tests, or a reason why it promises nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from claims import CLAIMS, REMARKS

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
END = re.compile(r"(?<=[.!?:])\)?\s+(?=[A-Z`\"\[*(])")
"""Where one sentence ends and another begins."""


def _blocks() -> list[str]:
    """Return paragraphs, points of lists and rows of tables, without headings and code."""
    blocks: list[str] = []
    for paragraph in FENCE.sub("", (ROOT / "docs/security.md").read_text()).split("\n\n"):
        text = paragraph.strip()
        if text.startswith("|"):
            # The first cell of a row names what the others are about.
            rows = (line.strip("|").split(" | ") for line in text.splitlines()[2:])
            blocks += [" ".join(cell.strip() for cell in row[1:]) for row in rows]
        elif text.startswith("* "):
            blocks += text[2:].split("\n* ")
        elif text and not text.startswith("#"):
            blocks.append(text)
    return blocks


def sentences() -> list[str]:
    return [s for block in _blocks() for s in END.split(" ".join(block.split()))]


def test_every_sentence_of_the_page_is_in_one_table() -> None:
    keys = [*CLAIMS, *REMARKS]
    unknown = [s[:80] for s in sentences() if sum(s.startswith(key) for key in keys) != 1]
    assert not unknown
    stale = [key for key in keys if not any(s.startswith(key) for s in sentences())]
    assert not stale


@pytest.mark.parametrize("claim", CLAIMS)
def test_tests_of_a_claim_exist(claim: str) -> None:
    assert CLAIMS[claim]
    for test in CLAIMS[claim]:
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text()
        assert not name or f"def {name}(" in text, test
