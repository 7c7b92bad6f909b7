"""Every code block of the pages runs in a test, or the page says why not."""

from __future__ import annotations

import io
import logging
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from ekiden.cli import main
from ekiden.frontend.onnx import registry as onnx_registry
from ekiden.ir.node import NODE_TYPES
from ekiden.ir.op import OP_ATTRS, OP_NODES, OPS
from test_generated_pages import PAGES as GENERATED
from test_pages import folder  # noqa: F401  the folder that each page finds

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
SHOWN = frozenset({"text", "json", "toml"})
"""Languages of blocks that are no programs: output, drawings, data, settings."""
RUN_ELSEWHERE = {
    "docs/cli.md": "tests/test_pages.py",
    "docs/coming-from-tvm.md": "tests/relay/test_coming_from_tvm.py",
    "docs/cross-compiling.md": "tests/rpc/test_rpc_cross_architecture.py",
    "docs/frontends.md": "tests/test_pages.py",
    "docs/guides/from-torch-compile.md": "tests/test_pages.py",
    "docs/relay-text.md": "tests/relay/test_relay_text_page.py",
    "docs/rpc.md": "tests/test_pages.py",
    "docs/tuning.md": "tests/test_pages.py",
    "docs/tutorials/matmul.md": "tests/test_tutorials.py",
    "docs/tutorials/tuning.md": "tests/test_tutorials.py",
    "docs/using-models.md": "tests/test_pages.py",
}
"""Page -> the test that runs its programs, where that is not this one."""
NEEDS = {"docs/guides/serve.md": "starlette"}
"""Page -> the optional package that its programs import."""
BLOCK = re.compile(
    r"^(?:<!-- (?:not run|command): (?P<reason>[^\n]+) -->\n)?"
    r"(?P<fence>`{3,})(?P<language>[\w-]*)[^\n]*\n"
    r"(?P<text>.*?)^(?P=fence)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and why it does not run, if the page says so."""

    language: str
    text: str
    reason: str

    @property
    def commands(self) -> list[str]:
        """Its lines, without comments; a line that ends with a backslash goes on."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for item in lines if (line := item.partition("  #")[0].strip())]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    result = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(f["language"], f["text"], (f["reason"] or "").strip()) for f in result]


def program(page: Path) -> str:
    """The Python of a page, each block on the lines that it has there."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for result in BLOCK.finditer(text):
        if result["language"] == "python" and not result["reason"]:
            first = text.count("\n", 0, result.start("text"))
            code = result["text"].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines)


def runs(page: Path) -> bool:
    """Whether this test has something to run."""
    is_program = any(b.language in ("python", "sh") and not b.reason for b in blocks(page))
    return is_program and name_of(page) not in RUN_ELSEWHERE


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_block_runs_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        if block.reason or block.language in SHOWN or name_of(page) in RUN_ELSEWHERE:
            continue
        assert block.language in ("python", "sh"), f"{name_of(page)}: nothing runs {block}"
        if block.language == "sh":
            strange = [line for line in block.commands if not line.startswith("ekiden ")]
            assert strange == [], f"{name_of(page)}: not commands of Ekiden"


@pytest.mark.quick
def test_pages_that_other_tests_run_are_named_there() -> None:
    for page, test in RUN_ELSEWHERE.items():
        text = (ROOT / test).read_text(encoding="utf-8")
        assert Path(page).name in text or Path(page).parent.name in text, (page, test)


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_the_page_lead_to_files(page: Path) -> None:
    plain = re.sub(r"`[^`]*`", "", BLOCK.sub("", page.read_text(encoding="utf-8")))
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", plain)
    paths = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    missing = [p for p in paths if not (page.parent / p).exists() and not is_made(page, p)]
    assert missing == []


def is_made(page: Path, link: str) -> bool:
    """Whether a link leads to a page of the API, which is made when the site is built."""
    path = (page.parent / link).resolve()
    return path.parent == ROOT / "docs/api" and f"api/{path.name}" in navigation()


def navigation() -> list[str]:
    """The pages of the table of contents."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return re.findall(r"^ *- (?:.*: )?(\S+\.md)$", nav, re.MULTILINE)


@pytest.mark.quick
def test_table_of_contents_names_pages_once_and_no_others() -> None:
    named = navigation()
    result = ("api/", "notebooks/", "source/")
    files = [page for page in named if not page.startswith(result) or page == "api/index.md"]
    outside = {"architecture.md", "bindings.md", "contributing.md", "changelog.md"}
    outside |= set(GENERATED.values())
    assert [page for page in files if not (ROOT / "docs" / page).exists()] == [
        page for page in files if page in outside
    ]
    assert len(named) == len(set(named)) > 60


@pytest.mark.filterwarnings("ignore")  # frameworks warn of their own deprecations
@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)], ids=name_of)
def test_programs_of_the_page_run(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if (package := NEEDS.get(name_of(page))) is not None:
        pytest.importorskip(package, reason=f"the package {package} is not installed")
    monkeypatch.setenv("EKIDEN_COMPILE_JOBS", "1")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    tables = (OPS, OP_NODES, NODE_TYPES, onnx_registry.CONVERTER_TABLE, *OP_ATTRS.values())
    before = [dict(table) for table in tables]
    try:
        module = ModuleType("page")  # which decorators of classes look up
        monkeypatch.setitem(sys.modules, "page", module)
        exec(compile(program(page), name_of(page), "exec"), vars(module))
        for block in blocks(page):
            for line in block.commands if block.language == "sh" and not block.reason else ():
                assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
    finally:
        logging.getLogger("ekiden").setLevel(logging.NOTSET)
        for table, kept in zip(tables, before, strict=True):
            for key in set(table) - set(kept):
                del table[key]
