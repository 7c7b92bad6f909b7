"""Pages keep one spelling, and pictures are readable on light and dark pages without animation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("docs/**/*.md"),
        *(ROOT / f"{n}.md" for n in ("README", "CONTRIBUTING", "CHANGELOG")),
    ]
)
PICTURES = sorted(p for p in ROOT.glob("docs/**/*.svg") if p.name != "logo.svg")
AMERICAN_SPELLING = re.compile(
    r"\b(?:(?:de|re)?quantiz|optimiz|vectoriz|serializ|normaliz|initializ|specializ|recogniz"
    r"|summariz|materializ|synchroniz|canonicaliz|paralleliz|minimiz|maximiz)(?:e[sd]?|ing|ations?)\b"
    r"|\b(?:behavior|color|favor|neighbor)(?:s|ed|ing)?\b",
    re.IGNORECASE,
)
CODE = re.compile(
    r"^(?P<fence>`{3,}|~~~).*?^(?P=fence)[ \t]*$|^## ekiden .*?$|(?P<tick>`+).+?(?P=tick)"
    r"|\]\([^)]*\)|\*[^*\n`]+\*|<!--.*?-->",
    re.MULTILINE | re.DOTALL,
)
"""Code, targets of links, comments, and emphasised words, which quote the other spelling."""
DECLARES_OTHER_SPELLING = "American spelling:"


def american_words(page: Path) -> list[str]:
    prose = CODE.sub(" ", page.read_text(encoding="utf-8"))
    return [
        match[0]
        for line in prose.splitlines()
        if DECLARES_OTHER_SPELLING not in line
        for match in AMERICAN_SPELLING.finditer(line)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_has_british_spelling_outside_code(page: Path) -> None:
    assert american_words(page) == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda p: p.name)
def test_picture_has_colours_for_dark_pages(picture: Path) -> None:
    style = picture.read_text(encoding="utf-8").replace(" ", "")
    assert "@media(prefers-color-scheme:dark){" in style


@pytest.mark.parametrize(
    "picture", [p for p in PICTURES if "@keyframes" in p.read_text("utf-8")], ids=lambda p: p.name
)
def test_first_frame_of_an_animation_is_complete(picture: Path) -> None:
    """Readers without animation, previews and printers show it."""
    svg = picture.read_text(encoding="utf-8")
    frames = re.findall(r"@keyframes l\d+\{0%,[\d.]+%\{opacity:(\d)\}", svg)
    assert len(frames) == len(re.findall(r'<text id="l\d+"', svg)) > 0
    assert set(frames) == {"1"}
    assert "@media (prefers-reduced-motion:reduce)" in svg
