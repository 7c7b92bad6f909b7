"""The site builds without a warning, and Chromium opens every page of it without a fault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHROMIUM = os.environ.get("EKIDEN_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def run(*command: str, **more: str) -> str:
    """What a program prints; it must end well."""
    environment = {**os.environ, **more, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_site_builds_and_chromium_opens_every_page(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings", "playwright"):
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    if CHROMIUM is None:
        pytest.skip("the program chromium is not installed")
    run(str(ROOT / "scripts/build_site"), "--site-dir", str(tmp_path / "site"))
    checker = str(ROOT / "scripts/check_site")
    completed = run(checker, "--site", str(tmp_path / "site"), EKIDEN_CHROMIUM=CHROMIUM)
    assert completed.endswith(" 0 faults\n")
