"""Other commits as importable folders."""

from __future__ import annotations

import subprocess
from pathlib import Path

from other_commit import ROOT, check_out, git


def test_commit_whose_runtime_is_installed_imports_from_its_own_folder(tmp_path: Path) -> None:
    checkout = check_out(git("rev-parse", "HEAD"), tmp_path / "tree")
    program = "import ekiden.runtime.binding._core as core; print(core.__file__)"
    ran = subprocess.run(
        [*checkout.python, "-c", program],
        env=checkout.environment, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert Path(ran.stdout.strip()).is_relative_to(checkout.folder)
    assert not checkout.folder.is_relative_to(ROOT)
