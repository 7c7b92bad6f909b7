"""What generators of files share: write what they make, or say that it is out of date."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_or_check(made: Mapping[Path, str], script: str) -> int:
    """Write the texts of files, or with `--check` only compare them; the exit status."""
    status = 0
    for path, text in made.items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            print(f"{path.relative_to(ROOT)} is out of date: run scripts/{script}")
            status = 1
        else:
            path.write_text(text, encoding="utf-8")
    return status
