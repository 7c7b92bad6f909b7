"""Notebook representations of modules, functions, executables and reports."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, tir
from ekiden.runtime.profile.report import MachinePeak, profile

pytestmark = pytest.mark.quick
PROGRAM = "def @main(%x: Tensor[(n, 4), float32]) { nn.softmax(%x) }"


class Balanced(HTMLParser):
    """Fails where an element is not closed; keeps the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_modules_and_functions_have_html(capsys: pytest.CaptureFixture[str]) -> None:
    mod = relay.parse(PROGRAM)
    mod.show()
    text = capsys.readouterr().out
    assert "def @main(%x: Tensor[(n, 4), float32]" in text
    html = mod._repr_html_()
    assert html is not None and text.rstrip() in "".join(Balanced(html).text)
    mod["main"].show()
    assert "nn.softmax(%x" in capsys.readouterr().out
    func = tir.parse("""
@T.prim_func
def copy(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
    for i in range(4):
        b[i] = a[i]
""")
    func.show()
    assert "def copy(" in capsys.readouterr().out
    html = func._repr_html_()
    assert html is not None and "in range(4)" in "".join(Balanced(html).text)


def test_constants_are_shown_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    x = relay.var("x", shape=(3,))
    mod = ekiden.IRModule.from_expr(
        relay.Function((x,), x + relay.const(np.arange(3.0, dtype="f")))
    )
    mod.show()
    short = capsys.readouterr().out
    mod.show(show_meta_data=True)
    assert len(capsys.readouterr().out) > len(short) and "meta[" in short


def test_executables_and_reports_have_html(artifact: Path) -> None:
    exe = ekiden.load(artifact)
    shown = Balanced(exe._repr_html_()).text
    assert shown[:5] == [f"Executable for {exe.target}", "name", "dtype", "shape", "input"]
    assert shown[5:8] == ["x", "float32", "n, 3"]
    inputs = [np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)]
    report = profile(exe.raw, "main", inputs, peak=MachinePeak(1e9, 1e9))
    assert "Relu 'last'" in Balanced(report._repr_html_()).text
