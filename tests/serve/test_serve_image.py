"""The server's image, as far as it can be tried without a Docker daemon."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from serving import Running, put, serving

DOCKERFILE = Path(__file__).parents[2] / "Dockerfile"


@pytest.fixture(scope="module")
def health_check() -> list[str]:
    """The command of the image's HEALTHCHECK, in this interpreter."""
    text = DOCKERFILE.read_text().replace("\\\n", "")
    (command,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", text, re.MULTILINE)
    _, *arguments = json.loads(command)
    return [sys.executable, *arguments]


def check(command: list[str], port: int) -> int:
    environment = {**os.environ, "EKIDEN_HEALTH_PORT": str(port)}
    return subprocess.run(command, env=environment, capture_output=True).returncode


def test_health_check_passes_while_the_server_lives(
    health_check: list[str], tmp_path: Path
) -> None:
    put(tmp_path, "soft")
    (tmp_path / "bad.eki").write_bytes(b"nothing")
    running: Running
    with serving(tmp_path) as running:
        port = running.port
        assert running.ask("GET", "/v2/health/ready").status == 503
        assert check(health_check, port) == 0
    assert check(health_check, port) != 0
