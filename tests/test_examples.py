"""Every program in examples/ runs."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


NEEDS = {"serve_on_ray": "ray.serve", "serve_on_kserve": "kserve"}
"""Examples with a package of others, which say much on standard error: start a server each."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_program_runs(path: Path) -> None:
    if needed := NEEDS.get(path.stem):
        pytest.importorskip(needed, reason=f"needs the package {needed.partition('.')[0]}")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or needed
    assert done.stdout
