"""Shared helpers of file generators:

Files are written, or said to be out of date; pages are made when the site is built, and are no
files.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

REPOSITORY_ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "scripts/generate_operators.py": "operators.md",
    "scripts/generate_float_rewrites.py": "float-rewrites.md",
    "scripts/generate_relay_coverage.py": "relay-coverage.md",
}
"""Generator -> the page of the site that its function `page` makes. Other pages link to the
generator, which is what the repository has; the site leads such links to the page."""


@cache
def page_text(generator: str) -> str:
    """Return the text of a page by its generator, a row of PAGES."""
    text: str = runpy.run_path(str(REPOSITORY_ROOT / generator))["page"]()
    return text


def write_or_check(texts: Mapping[Path, str], script: str) -> int:
    """Write files, or with `--check` only compare them; return the exit status."""
    status = 0
    for path, text in texts.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(REPOSITORY_ROOT)} is out of date: run scripts/{script}")
            status = 1
        else:
            path.write_text(text, encoding="utf-8")
    return status
