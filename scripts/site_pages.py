"""Pages of the site that are not files of docs/: MkDocs calls these hooks (mkdocs.yml).

- pages of the API, `api/NAME.md` in the table of contents, are made of the module's docstrings;
- pages that lie at the root or elsewhere keep lying there (PLACES);
- pages that a program makes are made (`generated_files.PAGES`);
- notebooks are run, and shown with their outputs;
- a file of the repository that a page links to is shown on a page of its own, under source/;
- the first use of a glossary term on a page links to the glossary (`glossary_links`).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

REPOSITORY_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY_ROOT / "scripts"))

import generated_files  # noqa: E402
import glossary_links  # noqa: E402
import notebook_cells  # noqa: E402

PAGE_BY_SOURCE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bindings/README.md": "bindings.md",
    "runtime/README.md": "runtime-package.md",
}
"""File of the repository -> its page."""
FENCE_LANGUAGES = {".c": "c", ".cpp": "cpp", ".h": "c", ".hpp": "cpp", ".py": "python", ".def": "c"}
SEARCH_TAGS = {
    "guides/quantise.md": [
        f"{prefix}quanti{letter}{ending}"
        for prefix in ("", "de")
        for letter in "sz"
        for ending in ("e", "ed", "ing", "ation")
    ],
}
"""Page -> words whose searches list it first, in both spellings: a guide precedes references."""
TERMS_UNLINKED = ("api/", "notebooks/", "source/", "changelog.md")
"""Prefixes of pages without links to the glossary: API references, code and the change log."""
MARKDOWN_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(#[^)\s]*)?(?=\))")
CODE_FENCE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)[ \t]*$", re.MULTILINE | re.DOTALL)


def iter_navigation(nav: object) -> Iterator[str]:
    """Yield the pages of the navigation tree."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list):
        for entry in nav:
            yield from iter_navigation(entry)
    elif isinstance(nav, dict):
        yield from iter_navigation(list(nav.values()))


def render_source(path: str) -> str:
    """Return a source file as a page."""
    text = (REPOSITORY_ROOT / path).read_text(encoding="utf-8")
    language = FENCE_LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{text}````\n"


def render_folder(path: str) -> str:
    """Return a listing of a folder as a page."""
    rows = [f"- `{entry.name}`" for entry in sorted((REPOSITORY_ROOT / path).iterdir())]
    return "\n".join([f"# {path}", "", *rows, ""])


def render_api(name: str) -> str:
    """Return the API page of a module, with entries for names that its `__all__` adds by a
    comprehension.
    """
    module = importlib.import_module(name)
    tree = ast.parse(inspect.getsource(module))
    added = [n.value for n in tree.body if isinstance(n, ast.AugAssign)]
    sections = [f"# {name}", f"::: {name}"]
    if any(isinstance(value, ast.ListComp) for value in added):
        constants = (constant for constant in ast.walk(tree) if isinstance(constant, ast.Constant))
        literals = {node.value for node in constants}
        for name_left in sorted(set(module.__all__) - literals):
            sections += render_api_entry(name, name_left, getattr(module, name_left))
    return "\n\n".join(sections) + "\n"


def render_api_entry(module: str, name: str, value: object) -> list[str]:
    """Return a function's reference section."""
    if not callable(value):
        return []
    head = f"## `{name}` {{ #{module}.{name} data-toc-label='{name}' }}"
    description, declared, row = inspect.cleandoc(value.__doc__ or "").partition("\nOperator: ")
    sections = [head, f"```python\n{format_signature(name, value)}\n```", description]
    return [*sections, f"```text\nOperator: {row}\n```"] if declared else sections


def format_signature(name: str, value: Callable[..., object]) -> str:
    """Return a function's signature, one parameter per line if it exceeds 88 columns."""
    function_signature = inspect.signature(value)
    rows: list[str] = []
    for parameter in function_signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(
            row.startswith("*") for row in rows
        ):
            rows.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        kind = (
            ""
            if parameter.annotation is parameter.empty
            else f": {format_annotation(parameter.annotation)}"
        )
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        rows.append(f"{stars}{parameter.name}{kind}{default}")
    result = function_signature.return_annotation
    gives = "" if result is inspect.Signature.empty else f" -> {format_annotation(result)}"
    line = f"{name}({', '.join(rows)}){gives}"
    if len(line) <= 88:
        return line
    return f"{name}(\n" + "".join(f"    {row},\n" for row in rows) + f"){gives}"


def format_annotation(annotation: object) -> str:
    """Return an annotation as it was written."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def external_link_target(link: str, page: str) -> str | None:
    """Return the repository file or folder outside docs/ to which a link points, or None."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    inside = path.startswith("docs/") and (REPOSITORY_ROOT / path).exists()
    return (
        None if path.startswith("..") or inside or not (REPOSITORY_ROOT / path).exists() else path
    )


def source_page_path(path: str) -> str:
    """Return the site path of a file outside docs/."""
    return PAGE_BY_SOURCE.get(path) or generated_files.PAGES.get(path) or f"source/{path}.md"


def external_links(text: str, source: str) -> set[str]:
    """Return the files outside docs/ to which a page links."""
    plain = CODE_FENCE.sub("", text)
    return {
        path
        for link, _ in MARKDOWN_LINK.findall(plain)
        if (path := external_link_target(link, source))
    }


def relocate_links(text: str, source: str, destination: str) -> str:
    """Return a page's text with relative links adjusted to its place on the site."""
    site_folder = posixpath.dirname(destination) or "."

    def relocate_link(match: re.Match[str]) -> str:
        """Return one link as on the site: relative to the page if it leads to a copied file, else
        unchanged.
        """
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if (outside := external_link_target(match[1], source)) is not None:
            path = f"docs/{source_page_path(outside)}"
        if not path.startswith("docs/"):
            return match[0]
        return posixpath.relpath(path[len("docs/") :], site_folder) + (match[2] or "")

    # Code fences are left alone: what looks like a link there is code.
    prose = CODE_FENCE.split(text)
    fences = CODE_FENCE.findall(text)
    relinked = [MARKDOWN_LINK.sub(relocate_link, prose_part) for prose_part in prose]
    return "".join(a + b for a, b in zip(relinked, [*fences, ""], strict=True))


def iter_page_texts(files: Files) -> Iterator[tuple[str, str]]:
    """Yield (path in the repository, text) for each page that exists as a file."""
    for file in files.documentation_pages():
        if file.abs_src_path is not None:
            path = Path(file.abs_src_path)
            yield str(path.relative_to(REPOSITORY_ROOT)), path.read_text(encoding="utf-8")
    for name in PAGE_BY_SOURCE:
        if (REPOSITORY_ROOT / name).exists():
            yield name, (REPOSITORY_ROOT / name).read_text(encoding="utf-8")
    for generator, place in generated_files.PAGES.items():
        yield f"docs/{place}", generated_files.page_text(generator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append pages missing from the table of contents."""
    pages = [
        str(page.relative_to(REPOSITORY_ROOT / "docs"))
        for page in sorted(REPOSITORY_ROOT.glob("docs/**/*.md"))
    ]
    pages += [
        site_page
        for source, site_page in PAGE_BY_SOURCE.items()
        if (REPOSITORY_ROOT / source).exists()
    ]
    pages += generated_files.PAGES.values()
    named = set(iter_navigation(config.nav))
    (last,) = config.nav[-1].values()
    last.extend(page for page in pages if page not in named)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/."""
    generated: dict[str, str] = {}
    for source, text in iter_page_texts(files):
        for path in external_links(text, source) - set(PAGE_BY_SOURCE) - set(generated_files.PAGES):
            full_path = REPOSITORY_ROOT / path
            generated[source_page_path(path)] = (
                render_folder(path) if full_path.is_dir() else render_source(path)
            )
        if source in PAGE_BY_SOURCE:
            generated[PAGE_BY_SOURCE[source]] = relocate_links(text, source, PAGE_BY_SOURCE[source])
        if (place := source.removeprefix("docs/")) in generated_files.PAGES.values():
            generated[place] = relocate_links(text, source, place)
    for name in iter_navigation(config.nav):
        if name.startswith("api/") and name != "api/index.md":
            module = name.removeprefix("api/").removesuffix(".md")
            generated[name] = render_api(module)
        if name.startswith("notebooks/"):
            generated[name] = notebook_cells.page(REPOSITORY_ROOT / name.replace(".md", ".ipynb"))
        if name.startswith("source/"):
            generated[name] = render_source(name.removeprefix("source/").removesuffix(".md"))
    for name, text in generated.items():
        shown = (
            InclusionLevel.NOT_IN_NAV if name.startswith("source/") else InclusionLevel.UNDEFINED
        )
        files.append(File.generated(config, name, content=text, inclusion=shown))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Redirect links to files outside docs/ to the site pages of those files, and tag the page for
    searches.
    """
    if page.file.src_uri in SEARCH_TAGS:
        page.meta["tags"] = SEARCH_TAGS[page.file.src_uri]
    if page.file.abs_src_path is None or page.file.generated_by is not None:
        return markdown
    return relocate_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the first use of each glossary term to the glossary, whose rows get anchors."""
    path = page.file.src_uri
    terms = glossary_links.read_terms(
        (REPOSITORY_ROOT / "docs" / glossary_links.GLOSSARY).read_text(encoding="utf-8")
    )
    if path == glossary_links.GLOSSARY:
        return glossary_links.anchor_terms(content, terms)
    if path.startswith(TERMS_UNLINKED):
        return content
    glossary = files.get_file_from_path(glossary_links.GLOSSARY)
    assert glossary is not None
    glossary_url = get_relative_url(glossary.url, page.url)
    return glossary_links.link_terms(content, path, glossary_url, terms)
