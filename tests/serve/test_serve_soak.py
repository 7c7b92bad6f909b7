"""A soak of a server of text: nothing wrong, nothing dead, nothing held at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak_texts import soak_server

from long_runs import HOURS, sizes


@pytest.mark.timeout(2 * HOURS)
@sizes("seconds", 2, HOURS)
def test_text_server_survives_soak(tmp_path: Path, seconds: int) -> None:
    pytest.importorskip("jinja2", reason="the package jinja2 renders templates")
    seen = soak_server(tmp_path, seconds, clients=8, seed=1)
    assert seen["faults"] == [] and seen["counts"]["stream"] > 0, seen
    # Pools and arenas of the allocator fill at first; what grows with requests is a leak.
    assert seen["after"]["rss_mb"] < seen["before"]["rss_mb"] + 100, seen
