"""The page of examples/web in a real browser: a file in, the right answer out; errors are shown."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import Browser, Page, chromium, served
from ekiden.runtime.errors import ImportModelError

pytest.importorskip("ziglang", reason="needs ziglang, a C compiler for WebAssembly")

pytestmark = pytest.mark.usefixtures("web_runtime")

EXAMPLE = Path(__file__).parents[2] / "examples" / "web"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page is served."""
    folder = tmp_path_factory.mktemp("page")
    program = runpy.run_path(str(EXAMPLE / "build.py"))
    try:
        program["build"](folder)
    except ImportModelError as reason:
        pytest.skip(f"needs the package magika from PyPI: {reason}")
    with served(folder) as where:
        yield where


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a screen."""
    with chromium() as result:
        yield result


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, ready, which must say nothing on its console."""
    context = browser.new_context(viewport={"width": 800, "height": 760})
    result, output = context.new_page(), list[str]()
    result.on("console", lambda message: output.append(f"{message.type}: {message.text}"))
    result.on("pageerror", lambda error: output.append(str(error)))
    result.goto(address)
    result.wait_for_selector("html[data-ready]")
    yield result
    assert output == []
    context.close()


def give(page: Page, name: str, data: bytes) -> None:
    """Choose a file."""
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    page.set_input_files("#file", files=[file])


def test_chosen_file_is_classified(page: Page) -> None:
    give(page, "some file", (EXAMPLE / "build.py").read_bytes())
    page.wait_for_selector("#answer:visible")
    assert page.text_content("#best") == "some file: python"
    assert "ms a run on WebAssembly" in page.text_content("#times")
    give(page, "other", (EXAMPLE / "page.css").read_bytes())
    page.locator("#best", has_text="other: css").wait_for()
    assert page.locator("#scores tr").count() == 4


def test_dropped_file_is_classified(page: Page) -> None:
    page.evaluate("""() => {
      const files = new DataTransfer();
      files.items.add(new File(['<html><head><title>x</title></head><body>y</body></html>'], 'z'));
      const options = {dataTransfer: files, bubbles: true, cancelable: true};
      document.getElementById('drop').dispatchEvent(new DragEvent('drop', options));
    }""")
    page.wait_for_selector("#answer:visible")
    assert page.text_content("#best") == "z: html"


def test_invalid_file_shows_an_error(page: Page) -> None:
    give(page, "empty", b"")
    page.wait_for_selector("#error:visible")
    expected = "empty cannot be looked at: it has 0 bytes, 8 are needed"
    assert page.text_content("#error") == expected
    assert page.locator("#error").get_attribute("role") == "alert"
    assert page.locator("#answer").is_hidden()
    give(page, "right", (EXAMPLE / "build.py").read_bytes())
    page.wait_for_selector("#answer:visible")
    assert page.locator("#error").is_hidden()


def test_page_works_offline(page: Page) -> None:
    page.evaluate("navigator.serviceWorker.ready.then(() => 1)")
    page.context.set_offline(True)
    page.reload()
    page.wait_for_selector("html[data-ready]")
    give(page, "some file", (EXAMPLE / "build.py").read_bytes())
    page.wait_for_selector("#answer:visible")
    assert page.text_content("#best") == "some file: python"


def test_page_is_accessible_by_keyboard_and_name(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    assert page.get_by_label("Drop a file here, or choose one").count() == 1
    page.set_viewport_size({"width": 320, "height": 600})
    give(page, "a" * 60 + ".bin", bytes(range(256)) * 8)
    page.wait_for_selector("#answer:visible")
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(width) == 0
