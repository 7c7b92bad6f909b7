"""Generated pages list all rows of their tables, and their links resolve."""

from __future__ import annotations

import posixpath
import re
import runpy
from pathlib import Path

import pytest

from ekiden.ir.op import OPS
from ekiden.relay.transform.graph.float_rewrites import FLOAT_REWRITES
from ekiden.relay.transform.graph.simplify_rules import SIMPLIFY_RULES
from test_pages import folder  # noqa: F401  the folder in which a page's program runs
from test_tutorials import code_of

ROOT = Path(__file__).parents[1]


GENERATORS = runpy.run_path(str(ROOT / "scripts/generated_files.py"))
PAGES: dict[str, str] = GENERATORS["PAGES"]
"""Program -> the page that it makes."""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Name of each page -> its text."""
    return {page: GENERATORS["page_text"](script) for script, page in PAGES.items()}


def test_page_of_operators_describes_each(pages: dict[str, str]) -> None:
    described = set(re.findall(r"^### `([\w.]+)\(", pages["operators.md"], re.MULTILINE))
    assert described == set(OPS)


def test_page_of_float_rewrites_lists_each(pages: dict[str, str]) -> None:
    rewrites = [row.equation for row in (*FLOAT_REWRITES, *SIMPLIFY_RULES)]
    text = pages["float-rewrites.md"].replace("\\|", "|")
    assert [equation for equation in rewrites if f"`{equation}`" not in text] == []


@pytest.mark.usefixtures("folder")
def test_program_of_the_page_of_float_rewrites_runs(pages: dict[str, str], tmp_path: Path) -> None:
    page = tmp_path / "float-rewrites.md"
    page.write_text(pages["float-rewrites.md"])
    names: dict[str, object] = {}
    exec(compile(code_of(page), str(page), "exec"), names)
    assert "exe" in names


def test_page_of_relay_says_of_each_name_whether_it_exists(pages: dict[str, str]) -> None:
    rows = re.findall(r"^\| `[^`]+` \| (.*) \|$", pages["relay-coverage.md"], re.MULTILINE)
    assert len(rows) > 20 and all(rows)


def test_links_of_generated_pages_lead_to_pages(pages: dict[str, str]) -> None:
    links = [link for text in pages.values() for link in re.findall(r"\]\(([\w./-]+)\)", text)]
    assert links
    assert [
        link for link in links if link not in pages and not (ROOT / "docs" / link).exists()
    ] == []


def test_no_file_has_the_place_of_a_generated_page() -> None:
    for script, page in PAGES.items():
        assert (ROOT / script).is_file()
        assert not (ROOT / "docs" / page).exists()


def test_pages_link_to_generators_by_paths_that_exist() -> None:
    """On the forge a link leads to the program; the site leads it to the page."""
    for page in (ROOT / "docs").rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s:]+)", page.read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(str(page.parent.relative_to(ROOT)), link))
            assert path.removeprefix("docs/") not in PAGES.values(), (page, link)
            if "generate_" in link:
                assert path in PAGES, (page, link)
