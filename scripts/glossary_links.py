"""Linker of the first use of each glossary term on a page to its row of docs/glossary.md.

The hooks of the site (site_pages.py) call `anchor_terms` on the glossary and `link_terms` on other
pages, both on rendered HTML, so that the files of docs/ stay free of such links.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

GLOSSARY = "glossary.md"
EVERYDAY_TERMS = frozenset(
    """anchor batch bind block buffer candidate choice default driver engine fact gradient handle
    host image node own page pass plan pool primitive proxy record reference region register rule
    search sequence session space spare stage state step storage symbol tail task template trace
    upgrade variant view""".split()
)
"""Terms that are also everyday words: linked only on the page to which their row leads."""
OTHER_SENSES: dict[str, frozenset[str]] = {
    "arena": frozenset({"bindings.md", "security.md"}),  # Java's
    "bytecode": frozenset({"frontends.md", "threat-model.md"}),  # MLIR's
    "decision": frozenset({"guides/quantise.md", "vm.md"}),  # of a classifier, of a branch
    "device": frozenset({"using-models.md"}),  # a special file
    "page": frozenset({"guides/generate.md"}),  # of the site
    "schedule": frozenset({"rpc.md"}),  # of processes
    "span": frozenset({"serving.md"}),  # OpenTelemetry's
}
"""Term -> pages that use the word in another sense first."""
IRREGULAR_FORMS = {
    "family of kernels": r"famil(?:y|ies)\s+of\s+kernels|kernel\s+famil(?:y|ies)",
    "fold constants": r"fold(?:s|ed|ing)?\s+constants|constant\s+folding",
    "key-value cache": r"(?:key-value|KV)\s+caches?",
    "lower and emit": "lowering|lowered",
    "scale and zero point": r"zero\s+points?",
    "sum type of ranks": r"sum\s+types?",
    "tensorise": "tensoris(?:e[sd]?|ing)",
    "requantise": "requantis(?:e[sd]?|ing|ation)",
    "own": r"instruction\s+Own",
    "tier of a rewrite": r"tiers?\s+of\s+(?:a\s+)?rewrites?",
    "word of bytes": r"words?\s+of\s+bytes",
}
"""Term -> pattern of its uses, where they are more than the singular and the regular plural."""
CODE_FORMS = {
    "PackedFunc": "packed function",
    "PassContext": "pass context",
    "Own": "own",
    'executor="aot"': "AOT executor",
    'executor="async"': "async executor",
}
"""Text of a code element -> the term that it uses."""
UNLINKED_ELEMENTS = frozenset(
    "a button code h1 h2 h3 h4 h5 h6 label nav pre script style summary svg th".split()
)
HTML_TOKEN = re.compile(r"<!--.*?-->|<[^>]*>", re.DOTALL)
TAG = re.compile(r"<(?P<end>/?)(?P<name>[a-z][a-z0-9]*)")
GLOSSARY_ROW = re.compile(
    r"^\| (?:\[(?P<linked>[^]]+)\]\((?P<page>[^)#]+)[^)]*\)|(?P<plain>[^|[]+?))"
    r" \| (?P<meaning>.+?) \| .*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Term:
    """Row of the glossary: the term, its definition and the page to which it leads."""

    name: str
    meaning: str
    page: str

    @property
    def is_code(self) -> bool:
        """Return whether the term is written in the font of code."""
        return self.name.startswith("`")

    @property
    def text(self) -> str:
        """Return the term without the marks of code."""
        return self.name.strip("`")

    @property
    def anchor(self) -> str:
        """Return the id of the term's row."""
        return "term-" + re.sub(r"\W+", "-", self.text.lower()).strip("-")

    @property
    def pattern(self) -> str:
        """Pattern of the term's uses in running text."""
        if self.text in IRREGULAR_FORMS:
            return IRREGULAR_FORMS[self.text]
        words = [re.escape(word) for word in self.text.split()]
        words[-1] = words[-1][:-1] + "(?:y|ies)" if words[-1].endswith("y") else words[-1] + "s?"
        return r"\s+".join(words)


def read_terms(glossary: str) -> list[Term]:
    """Return the terms of the glossary, the longest first."""
    rows = (match for match in GLOSSARY_ROW.finditer(glossary) if match["plain"] != "term")
    terms = [
        Term(match["linked"] or match["plain"], match["meaning"], match["page"] or GLOSSARY)
        for match in rows
        if not set(match[0]) <= set("|- ")
    ]
    return sorted(terms, key=lambda term: (-len(term.text), term.text))


def anchor_terms(content: str, terms: Iterable[Term]) -> str:
    """Return the rendered glossary with an id on the row of each term."""
    anchors = {html.escape(term.text, quote=False): term.anchor for term in terms}

    def add_id(match: re.Match[str]) -> str:
        """Return the beginning of a row with the id of its term, if it has one."""
        text = HTML_TOKEN.sub("", match[1])
        anchor = anchors.get(text)
        return match[0].replace("<tr>", f'<tr id="{anchor}">', 1) if anchor else match[0]

    return re.sub(r"<tr>\s*<td>(.*?)</td>", add_id, content, flags=re.DOTALL)


def link_terms(content: str, page: str, glossary_url: str, terms: Sequence[Term]) -> str:
    """Return a rendered page with the first use of each term linked to the glossary.

    Headings, code, links and heads of tables are left alone. A term that is an everyday word is
    linked only on the page that its row names, and none where its word has another sense.

    Args:
        content: The page's HTML.
        page: Path of the page below docs/.
        glossary_url: Address of the glossary relative to the page.
        terms: Terms, longer ones before those that they contain.

    Returns:
        The HTML with the links.
    """
    linker = TermLinker([term for term in terms if is_linked(term, page)], glossary_url)
    open_elements: list[str] = []
    parts: list[str] = []
    position = 0
    for token in HTML_TOKEN.finditer(content):
        text = content[position : token.start()]
        if open_elements == ["code"]:
            text = linker.link_code(text)
        elif not open_elements:
            text = linker.link_prose(text)
        parts += [text, token[0]]
        position = token.end()
        update_open_elements(open_elements, token[0])
    return "".join([*parts, content[position:]])


def is_linked(term: Term, page: str) -> bool:
    """Return whether uses of a term on a page may be links."""
    if page in OTHER_SENSES.get(term.text, ()):
        return False
    return term.text not in EVERYDAY_TERMS or term.page == page


def update_open_elements(open_elements: list[str], token: str) -> None:
    """Push or pop the elements without links that a tag opens or closes."""
    tag = TAG.match(token)
    if tag is None or tag["name"] not in UNLINKED_ELEMENTS or token.endswith("/>"):
        return
    if not tag["end"]:
        open_elements.append(tag["name"])
    elif open_elements and open_elements[-1] == tag["name"]:
        open_elements.pop()


class TermLinker:
    """Links to the terms that a page has not used so far."""

    def __init__(self, terms: Sequence[Term], glossary_url: str) -> None:
        self.glossary_url = glossary_url
        self.unused = {term.text for term in terms}
        by_text = {term.text: term for term in terms}
        self.code_terms = {term.text: term for term in terms if term.is_code}
        self.code_terms |= {
            code: by_text[text] for code, text in CODE_FORMS.items() if text in by_text
        }
        self.prose_terms = [term for term in terms if not term.is_code]
        # Longer terms first: the "kernel" of "kernel cache" is no use of the term "kernel".
        uses = "|".join(f"({term.pattern})" for term in self.prose_terms)
        self.pattern = re.compile(rf"(?<![\w.-])(?:{uses})(?![\w-])", re.IGNORECASE)

    def link_prose(self, text: str) -> str:
        """Return running text with links."""
        return self.pattern.sub(self.link_use, text)

    def link_use(self, use: re.Match[str]) -> str:
        """Return a use of a term, as a link if it is the first."""
        assert use.lastindex is not None
        return self.link(self.prose_terms[use.lastindex - 1], use[0])

    def link_code(self, text: str) -> str:
        """Return the text of a code element, as a link if it is a term."""
        return self.link(self.code_terms[text], text) if text in self.code_terms else text

    def link(self, term: Term, text: str) -> str:
        """Return a link with the term's definition as its tooltip, or the text if the term was used
        before.
        """
        if term.text not in self.unused:
            return text
        self.unused.remove(term.text)
        meaning = html.escape(re.sub(r"[`*]", "", term.meaning))
        href = f"{self.glossary_url}#{term.anchor}"
        return f'<a class="ek-term" href="{href}" title="{meaning}">{text}</a>'
