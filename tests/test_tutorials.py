"""The tutorials run: the code of each page is one program, with small sizes here."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))


def code_of(page: Path) -> str:
    """The Python blocks of a page, each on the lines it has there."""
    lines: list[str] = []
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        fence = re.fullmatch(r"```(\w*)", line)
        if fence is not None:
            inside = not inside and fence.group(1) == "python"
            lines.append("")
        else:
            lines.append(line if inside else "")
    return "\n".join(lines)


def _steps(shown: str) -> None:
    steps = re.findall(r"^(\d) .* of the peak$", shown, re.MULTILINE)
    assert steps == [str(n) for n in range(len(steps))] and len(steps) >= 5


def _tuned(shown: str) -> None:
    assert "sch.sample_categorical(" in shown and "2 trials, the best takes " in shown
    assert "fused_nn_contrib_dense_pack (MatMul 'layer') 2 " in shown


SHOWN = {"matmul": _steps, "tuning": _tuned}
"""Page -> what checks what it prints."""
PLOTS = {"matmul"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_tutorial_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EKIDEN_TUTORIAL_SIZE", "192")
    monkeypatch.setenv("EKIDEN_TUTORIAL_TRIALS", "2")
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "1")
    monkeypatch.chdir(tmp_path)
    picture = tmp_path / "page.svg"
    if _has_matplotlib():
        monkeypatch.setenv("EKIDEN_TUTORIAL_PLOT", str(picture))
    names: dict[str, object] = {"__name__": "tutorial"}
    exec(compile(code_of(page), str(page), "exec"), names)
    SHOWN[page.stem](capsys.readouterr().out)
    assert not _has_matplotlib() or page.stem not in PLOTS or "<svg" in picture.read_text("utf-8")
    for picture_name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / picture_name).exists()


def _has_matplotlib() -> bool:
    return find_spec("matplotlib") is not None
