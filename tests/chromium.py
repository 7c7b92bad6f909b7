"""Headless Chromium for tests of pages: location, a server of a folder, and a page in it."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
PLAIN = ("--no-sandbox", "--disable-background-networking", "--disable-component-update")
"""What a test of pages of this machine wants: it may run as root, and needs no other host."""
SWIFTSHADER = (
    *PLAIN,
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
)
"""WebGPU on a processor that plays a GPU."""
Browser = Any
Page = Any
"""Of playwright, which need not be there."""


class _Plain(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Isolated(_Plain):
    def end_headers(self) -> None:
        """With what lets a page share memory."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


@contextmanager
def served(folder: Path, *, isolated: bool = False) -> Iterator[str]:
    """The address of a folder's files; `isolated` pages may share memory."""
    handler = functools.partial(_Isolated if isolated else _Plain, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@contextmanager
def chromium(flags: Sequence[str] = PLAIN) -> Iterator[Browser]:
    """A browser of playwright. Leaves the test out where either is missing, and names it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(flags))
        yield browser
        browser.close()


@contextmanager
def page_of(
    folder: Path, flags: Sequence[str] = PLAIN, *, isolated: bool = False
) -> Iterator[Page]:
    """A page of the folder that can import its modules; it is empty, and written there."""
    (folder / "page.html").write_text("<!doctype html><link rel=icon href='data:,'>")
    with served(folder, isolated=isolated) as address, chromium(flags) as browser:
        page = browser.new_page()
        page.goto(f"{address}page.html")
        yield page
