"""The first use of a glossary term on a page links to its definition."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import glossary_links  # noqa: E402

pytestmark = pytest.mark.quick

GLOSSARY = """| term | meaning | nearest term elsewhere |
|---|---|---|
| [`IRModule`](relay-text.md#a-module) | An `IRModule` holds functions. | |
| [kernel](concepts/index.md) | A kernel is "native" code. | |
| [kernel cache](cli.md#cache) | The kernel cache stores object code. | |
| [page](guides/generate.md#3) | A page is a block. | |
| [task](tuning.md#what-is-tuned) | A task is a kernel. | |
| [pass context](guides/add-pass.md) | A pass context carries options. | |
| anchor | The anchor is a product. | |
"""
TERMS = glossary_links.read_terms(GLOSSARY)


def link(content: str, page: str = "x.md") -> list[tuple[str, str]]:
    linked = glossary_links.link_terms(content, page, "glossary.html", TERMS)
    assert re.sub(r'<a class="ek-term"[^>]*>(.*?)</a>', r"\1", linked) == content
    return re.findall(r'<a class="ek-term" href="glossary.html#([^"]*)"[^>]*>(.*?)</a>', linked)


def test_first_use_of_a_term_is_linked() -> None:
    assert link("<p>Kernels and a kernel.</p>") == [("term-kernel", "Kernels")]


def test_term_inside_a_longer_term_is_no_use_of_it() -> None:
    expected = [("term-kernel-cache", "kernel cache"), ("term-kernel", "kernel")]
    assert link("<p>The kernel cache, that kernel cache, a kernel.</p>") == expected


@pytest.mark.parametrize("element", ["h2", "pre", "code", "th"])
def test_headings_code_and_heads_of_tables_have_no_links(element: str) -> None:
    assert link(f"<{element}>kernel</{element}>") == []


def test_link_has_no_links_inside() -> None:
    assert link('<a href="y">the <em>kernel</em></a>') == []


def test_term_of_code_is_linked_in_code_alone() -> None:
    assert link("<p>IRModule, <code>IRModule</code></p>") == [("term-irmodule", "IRModule")]


def test_name_of_a_term_in_code_is_a_use_of_it() -> None:
    assert link("<p><code>KernelCache</code>, <code>PassContext</code></p>") == [
        ("term-pass-context", "PassContext")
    ]


def test_word_within_another_is_no_term() -> None:
    assert link("<p>micro-kernel, kernel-side, akernel, ek.kernel</p>") == []


def test_everyday_word_is_linked_on_its_subjects_page_alone() -> None:
    assert link("<p>a task</p>") == []
    assert link("<p>a task</p>", "tuning.md") == [("term-task", "task")]


def test_word_in_another_sense_is_no_term() -> None:
    assert link("<p>a page</p>", "guides/generate.md") == []


def test_link_shows_the_definition() -> None:
    linked = glossary_links.link_terms("<p>kernel</p>", "x.md", "glossary.html", TERMS)
    assert 'title="A kernel is &quot;native&quot; code."' in linked


def test_rows_of_the_glossary_have_anchors() -> None:
    rendered = '<tr>\n<td><a href="r">kernel cache</a></td><td>x</td></tr>'
    rendered += "<tr>\n<td>anchor</td></tr>"
    anchors = re.findall(r'<tr id="([^"]*)">', glossary_links.anchor_terms(rendered, TERMS))
    assert anchors == ["term-kernel-cache", "term-anchor"]


def test_terms_of_the_glossary_have_anchors_of_their_own() -> None:
    terms = glossary_links.read_terms((ROOT / "docs/glossary.md").read_text(encoding="utf-8"))
    assert len(terms) > 100
    assert len({term.anchor for term in terms}) == len(terms)
    texts = {term.text for term in terms}
    assert texts >= glossary_links.EVERYDAY_TERMS
    assert texts >= set(glossary_links.OTHER_SENSES)
    assert texts >= set(glossary_links.CODE_FORMS.values())
    assert texts >= set(glossary_links.IRREGULAR_FORMS)
