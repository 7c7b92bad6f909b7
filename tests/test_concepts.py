"""The pages of docs/concepts match the compiler's current output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts/generate_stage_pages.py"


def test_concept_pages_are_current() -> None:
    environment = {**os.environ, "EKIDEN_COMPILE_JOBS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
