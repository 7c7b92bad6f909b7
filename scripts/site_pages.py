"""Pages of the site that are no files of docs/: MkDocs calls these hooks (mkdocs.yml).

- pages of the API, `api/NAME.md` in the table of contents, are made of the module's docstrings;
- pages that lie at the root or elsewhere keep lying there (PLACES);
- pages that a program makes are made (`generated_files.PAGES`);
- notebooks are run, and shown with their outputs;
- a file of the repository that a page links to is shown on a page of its own, under source/.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import generated_files  # noqa: E402
import notebook_cells  # noqa: E402

PLACES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bindings/README.md": "bindings.md",
    "runtime/README.md": "runtime-package.md",
}
"""File of the repository -> its page."""
LANGUAGES = {".c": "c", ".cpp": "cpp", ".h": "c", ".hpp": "cpp", ".py": "python", ".def": "c"}
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)[ \t]*$", re.MULTILINE | re.DOTALL)


def navigated(nav: object) -> Iterator[str]:
    """The pages that the table of contents names."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list):
        for each in nav:
            yield from navigated(each)
    elif isinstance(nav, dict):
        yield from navigated(list(nav.values()))


def source_page(path: str) -> str:
    """A file of the repository as a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{text}````\n"


def folder_page(path: str) -> str:
    """A folder of the repository as a page: what lies there."""
    rows = [f"- `{each.name}`" for each in sorted((ROOT / path).iterdir())]
    return "\n".join([f"# {path}", "", *rows, ""])


def api_page(name: str) -> str:
    """The page of a module: what its source says, then what only importing it tells: names that a
    comprehension adds to `__all__`, of functions that other functions made.
    """
    module = importlib.import_module(name)
    tree = ast.parse(inspect.getsource(module))
    added = [n.value for n in tree.body if isinstance(n, ast.AugAssign)]
    parts = [f"# {name}", f"::: {name}"]
    if any(isinstance(value, ast.ListComp) for value in added):
        constants = (each for each in ast.walk(tree) if isinstance(each, ast.Constant))
        seen = {each.value for each in constants}
        for each in sorted(set(module.__all__) - seen):
            parts += entry(name, each, getattr(module, each))
    return "\n\n".join(parts) + "\n"


def entry(module: str, name: str, value: object) -> list[str]:
    """A function as the reference has it."""
    if not callable(value):
        return []
    head = f"## `{name}` {{ #{module}.{name} data-toc-label='{name}' }}"
    said, declared, row = inspect.cleandoc(value.__doc__ or "").partition("\nOperator: ")
    parts = [head, f"```python\n{signature(name, value)}\n```", said]
    return [*parts, f"```text\nOperator: {row}\n```"] if declared else parts


def signature(name: str, value: Callable[..., object]) -> str:
    """A function's signature, on a line for each parameter where it is long."""
    found = inspect.signature(value)
    rows: list[str] = []
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not any(row.startswith("*") for row in rows):
            rows.append("*")
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        kind = "" if each.annotation is each.empty else f": {written(each.annotation)}"
        default = "" if each.default is each.empty else f" = {each.default!r}"
        rows.append(f"{stars}{each.name}{kind}{default}")
    result = found.return_annotation
    gives = "" if result is inspect.Signature.empty else f" -> {written(result)}"
    line = f"{name}({', '.join(rows)}){gives}"
    if len(line) <= 88:
        return line
    return f"{name}(\n" + "".join(f"    {row},\n" for row in rows) + f"){gives}"


def written(annotation: object) -> str:
    """An annotation as it was written."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def target(link: str, page: str) -> str | None:
    """The file or folder of the repository outside of docs/ that a page's link leads to."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    inside = path.startswith("docs/") and (ROOT / path).exists()
    return None if path.startswith("..") or inside or not (ROOT / path).exists() else path


def page_of(path: str) -> str:
    """Where a file of the repository outside of docs/ stands on the site."""
    return PLACES.get(path) or generated_files.PAGES.get(path) or f"source/{path}.md"


def linked(text: str, source: str) -> set[str]:
    """What a page of the repository links to outside of docs/."""
    plain = FENCE.sub("", text)
    return {path for link, _ in LINK.findall(plain) if (path := target(link, source))}


def moved(text: str, source: str, place: str) -> str:
    """A page's text with its links as they are where the page stands on the site."""
    here = posixpath.dirname(place) or "."

    def link(found: re.Match[str]) -> str:
        """One link as the site has it: to a copied file's page, relative to this one; others
        stay."""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        if (outside := target(found[1], source)) is not None:
            path = f"docs/{page_of(outside)}"
        if not path.startswith("docs/"):
            return found[0]
        return posixpath.relpath(path[len("docs/") :], here) + (found[2] or "")

    parts = FENCE.split(text)
    fences = FENCE.findall(text)
    made = [LINK.sub(link, part) for part in parts]
    return "".join(a + b for a, b in zip(made, [*fences, ""], strict=True))


def texts(files: Files) -> Iterator[tuple[str, str]]:
    """(path in the repository, text) of each page that is there as a file."""
    for file in files.documentation_pages():
        if file.abs_src_path is not None:
            path = Path(file.abs_src_path)
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for name in PLACES:
        if (ROOT / name).exists():
            yield name, (ROOT / name).read_text(encoding="utf-8")
    for generator, place in generated_files.PAGES.items():
        yield f"docs/{place}", generated_files.page_text(generator)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that the table of contents does not name at its end."""
    there = [str(page.relative_to(ROOT / "docs")) for page in sorted(ROOT.glob("docs/**/*.md"))]
    there += [place for source, place in PLACES.items() if (ROOT / source).exists()]
    there += generated_files.PAGES.values()
    named = set(navigated(config.nav))
    (last,) = config.nav[-1].values()
    last.extend(page for page in there if page not in named)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are no files of docs/."""
    made: dict[str, str] = {}
    for source, text in texts(files):
        for path in linked(text, source) - set(PLACES) - set(generated_files.PAGES):
            whole = ROOT / path
            made[page_of(path)] = folder_page(path) if whole.is_dir() else source_page(path)
        if source in PLACES:
            made[PLACES[source]] = moved(text, source, PLACES[source])
        if (place := source.removeprefix("docs/")) in generated_files.PAGES.values():
            made[place] = moved(text, source, place)
    for name in navigated(config.nav):
        if name.startswith("api/") and name != "api/index.md":
            module = name.removeprefix("api/").removesuffix(".md")
            made[name] = api_page(module)
        if name.startswith("notebooks/"):
            made[name] = notebook_cells.page(ROOT / name.replace(".md", ".ipynb"))
        if name.startswith("source/"):
            made[name] = source_page(name.removeprefix("source/").removesuffix(".md"))
    for name, text in made.items():
        shown = (
            InclusionLevel.NOT_IN_NAV if name.startswith("source/") else InclusionLevel.UNDEFINED
        )
        files.append(File.generated(config, name, content=text, inclusion=shown))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead a page's links out of docs/ to where these files stand on the site."""
    if page.file.abs_src_path is None or page.file.generated_by is not None:
        return markdown
    return moved(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
