"""Each block of docs/security.md has tests, or is known to promise nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from claims import CLAIMS

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[str]:
    """Return paragraphs, points of lists and rows of tables, without headings and code."""
    found = []
    for part in FENCE.sub("", (ROOT / "docs/security.md").read_text()).split("\n\n"):
        part = part.strip()
        if part.startswith("|"):
            found += part.splitlines()[2:]  # below the head
        elif part.startswith("* "):
            found += ["* " + point for point in part[2:].split("\n* ")]
        elif part and not part.startswith("#"):
            found.append(part)
    return found


def test_every_block_of_the_page_is_in_the_table() -> None:
    unknown = [b[:80] for b in blocks() if sum(b.startswith(key) for key in CLAIMS) != 1]
    assert not unknown
    gone = [key for key in CLAIMS if not any(b.startswith(key) for b in blocks())]
    assert not gone


@pytest.mark.parametrize("claim", [key for key, tests in CLAIMS.items() if tests])
def test_the_tests_of_a_claim_are_there(claim: str) -> None:
    for test in CLAIMS[claim]:
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text()
        assert not name or f"def {name}(" in text, test
