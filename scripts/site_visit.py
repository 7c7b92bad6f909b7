#!/usr/bin/env python3
"""Open every page of the built site in headless Chromium, wide and narrow, as files.

scripts/check_site [--site FOLDER] [--shots FOLDER] [--pages WORD ...]

Fails for errors in the console, anything that is fetched from elsewhere, links and anchors that
lead nowhere, pages that scroll sideways on a phone of 360 pixels, a search that does not list the
expected page first (FIRST_RESULTS), and a switch to dark colours that does not work. `--shots`
keeps a picture of each page in both widths, `--pages` opens those alone whose path has one of the
words. Needs the package playwright and a Chromium of the system (Debian: `apt-get install
chromium`), or the one that EKIDEN_CHROMIUM names.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    TimeoutError,
    sync_playwright,
)

REPOSITORY_ROOT = Path(__file__).resolve().parents[1]
VIEWPORT_SIZES = {"wide": (1280, 900), "narrow": (360, 780)}
SEARCH_TIMEOUT_MS = 60_000
PAGE_TIMEOUT_MS = 600_000
"""Of each action: a hang ends the run, a busy machine does not."""
RESULT_LINKS = ".md-search-result__item > a"
FIRST_RESULTS = {
    "schedule": "",
    **dict.fromkeys(
        ("quantize", "quantise", "quantization", "quantisation"), "/guides/quantise.html"
    ),
}
"""Searched word -> the page that comes first; any page where it is empty."""
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
LINK_ELEMENTS_SCRIPT = (
    "[...document.querySelectorAll('a[href], img[src], link[href], script[src]')]"
)
OVERFLOW_SCRIPT = """() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  const all = [...document.querySelectorAll('body *')];
  const over = all.filter(e => e.getBoundingClientRect().right > wide + 1).slice(0, 3);
  return [`scrolls sideways (${document.documentElement.scrollWidth} > ${wide})`,
          ...over.map(e => `${e.tagName}.${e.className} ${(e.textContent || '').slice(0, 60)}`)];
}"""


def find_chromium() -> str:
    """Return the path of a Chromium. Raises SystemExit if there is none."""
    named = os.environ.get("EKIDEN_CHROMIUM")
    executable = named or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if executable is None:
        raise SystemExit("check_site: no Chromium; Debian: apt-get install chromium")
    return executable


def page_anchors(path: Path, cache: dict[Path, frozenset[str]]) -> frozenset[str]:
    """Return the anchors of a page."""
    if path not in cache:
        text = path.read_text(encoding="utf-8")
        cache[path] = frozenset(re.findall(r'\b(?:id|name)="?([^"\s>]+)', text))
    return cache[path]


def iter_broken_links(
    page: Page, site: Path, anchor_cache: dict[Path, frozenset[str]]
) -> Iterator[str]:
    """Yield a page's broken links."""
    for link in set(page.evaluate(f"{LINK_ELEMENTS_SCRIPT}.map(e => e.href || e.src)")):
        url = urlsplit(str(link))
        if url.scheme in ("http", "https", "mailto"):
            continue
        path = Path(unquote(url.path))
        if url.scheme != "file" or not path.is_relative_to(site):
            yield f"a link out of the site: {link}"
        elif not path.is_file():
            yield f"a broken link: {link}"
        elif path.suffix == ".html" and url.fragment:
            name = unquote(url.fragment)
            if name not in page_anchors(path, anchor_cache):
                yield f"no such anchor: {link}"


class Visitor:
    """Browser session that opens pages and records their faults."""

    def __init__(self, browser: Browser, site: Path, shots: Path | None) -> None:
        self.site = site
        self.shots = shots
        self.anchor_cache: dict[Path, frozenset[str]] = {}
        self.faults: list[str] = []
        self.name = ""
        self.pages = {
            width: browser.new_page(viewport={"width": size[0], "height": size[1]})
            for width, size in VIEWPORT_SIZES.items()
        }
        for page in self.pages.values():
            page.set_default_timeout(PAGE_TIMEOUT_MS)
            page.on("console", self._on_console)
            page.on("pageerror", lambda error: self._record_fault(f"an exception: {error}"))
            page.on("request", self._on_request)
            page.on(
                "requestfailed", lambda request: self._record_fault(f"not loaded: {request.url}")
            )

    def _record_fault(self, what: str) -> None:
        self.faults.append(f"{self.name}: {what}")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._record_fault(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self._record_fault(f"fetched from elsewhere: {request.url}")

    def visit_page(self, path: Path) -> None:
        """Open a page at each width."""
        self.name = str(path.relative_to(self.site))
        for width, page in self.pages.items():
            page.goto(path.as_uri(), wait_until="load")
            if width == "wide":
                for what in iter_broken_links(page, self.site, self.anchor_cache):
                    self._record_fault(what)
            elif overflow := page.evaluate(OVERFLOW_SCRIPT):
                self._record_fault("; ".join(map(str, overflow)))
            if self.shots is not None:
                file = (
                    self.shots / f"{self.name.removesuffix('.html').replace('/', '-')}-{width}.png"
                )
                page.screenshot(path=file)

    def check_search(self, word: str, first: str = "") -> None:
        """Check that searching a word finds a page, also from the file system.

        Args:
            word: The word to type.
            first: Path of the page that is to be the first result; any page if it is empty.
        """
        page = self.pages["wide"]
        self.name = f"search for {word!r}"
        page.goto((self.site / "index.html").as_uri(), wait_until="load")
        page.click("input.md-search__input")
        page.keyboard.type(word, delay=50)
        try:
            # The results of a part of the word are replaced as soon as the next letter is typed.
            first_results = f"[...document.querySelectorAll('{RESULT_LINKS}')].slice(0, 1)"
            page.wait_for_function(
                f"{first_results}.some(e => e.href.includes({first!r}))", timeout=SEARCH_TIMEOUT_MS
            )
        except TimeoutError:
            self._record_fault(f"{first or 'a page'} is not the first result")
        if self.shots is not None:
            page.screenshot(path=self.shots / "search-wide.png")

    def check_dark_mode(self) -> None:
        """Switch to dark mode."""
        page = self.pages["wide"]
        self.name = "dark colours"
        page.goto((self.site / "index.html").as_uri(), wait_until="load")
        page.click("label[for=__palette_1]")
        if page.evaluate("document.body.dataset.mdColorScheme") != "slate":
            self._record_fault("the switch does nothing")
        if self.shots is not None:
            page.screenshot(path=self.shots / "dark-wide.png")
        page.click("label[for=__palette_0]")


def main() -> int:
    """Visit all pages; return 1 if any has a fault."""
    parser = argparse.ArgumentParser(description="Open every page of the site in Chromium.")
    parser.add_argument("--site", type=Path, default=REPOSITORY_ROOT / "build/site")
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--pages", nargs="*", default=[])
    options = parser.parse_args()
    site = options.site.resolve()
    pages = [p for p in sorted(site.rglob("*.html")) if p.name != "404.html"]
    if options.pages:
        pages = [
            p for p in pages if any(word in str(p.relative_to(site)) for word in options.pages)
        ]
    if not pages:
        raise SystemExit(f"check_site: no pages in {site}; run scripts/build_site")
    if options.shots is not None:
        options.shots.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        visitor = Visitor(browser, site, options.shots)
        for path in pages:
            visitor.visit_page(path)
        if not options.pages:
            for word, first in FIRST_RESULTS.items():
                visitor.check_search(word, first)
            visitor.check_dark_mode()
        browser.close()
    for what in visitor.faults:
        print(what)
    print(f"{len(pages)} pages in {len(VIEWPORT_SIZES)} widths, {len(visitor.faults)} faults")
    return 1 if visitor.faults else 0


if __name__ == "__main__":
    sys.exit(main())
