"""What a test run says of tests that fail, and of one that hangs where Python cannot stop it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

CONFTEST = """
import hang_reports
from hang_reports import *

hang_reports.GRACE = 1

def pytest_configure(config):
    hang_reports.open_stderr(config)
"""
RUN = """
import ctypes, signal

def test_fails():
    assert 1 == 2, "as it should"

def test_hangs():
    blocked = ctypes.create_string_buffer(b"\\xff" * 128)
    ctypes.CDLL(None).pthread_sigmask(signal.SIG_BLOCK, blocked, None)
    while True:
        ctypes.CDLL(None).pause()
"""


def test_failure_is_named_at_once_and_a_hang_is_given_up(tmp_path: Path) -> None:
    """The signal of pytest-timeout never comes, as where C code keeps it."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(RUN)
    options = ["-p", "no:randomly", "-p", "no:xdist", "-o", "timeout=1", "--rootdir", tmp_path]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, tmp_path],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(HERE), "PATH": ""},
        timeout=200,
    )
    assert ran.returncode == 1 and "short test summary" not in ran.stdout
    assert "test_some.py::test_fails (call): " in ran.stderr
    assert "Timeout" in ran.stderr and "in test_hangs" in ran.stderr
