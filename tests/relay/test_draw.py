"""relay.draw: contents and layout of the picture."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from ekiden import IRModule, relay

pytestmark = pytest.mark.quick
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [item.text or "" for item in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    result = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [(*(float(e.attrib[k]) for k in ("x", "y", "width", "height")),) for e in result]  # type: ignore[misc]


def edges(svg: str) -> list[str]:
    return [item.attrib["d"] for item in ElementTree.fromstring(svg).iter(f"{SVG}path")]


def drawn(body: str, params: str = "%x: Tensor[(n, 4), float32]") -> str:
    func = relay.parse(f"def @main({params}) {{ {body} }}")["main"]
    assert isinstance(func, relay.Function)
    return relay.draw(func)


def test_chain_is_drawn_in_order() -> None:
    svg = drawn("nn.softmax(nn.relu(%x))")
    assert [t for t in texts(svg) if not t.startswith("Tensor")] == [
        "%x", "nn.relu", "nn.softmax", "result",
    ]  # fmt: skip
    assert len(edges(svg)) == 3


def test_types_are_shown_where_they_are_known() -> None:
    assert texts(drawn("nn.relu(%x)")).count("Tensor[(n, 4), float32]") == 2
    x = relay.var("x", shape=(2,))
    assert texts(relay.draw(relay.Function([x], relay.exp(x)))) == ["%x", "exp", "result"]


def test_shared_values_have_one_box_and_lets_are_drawn_where_they_are_used() -> None:
    svg = drawn("let %y = exp(%x); add(%y, %y)")
    assert texts(svg).count("exp") == 1 and texts(svg).count("add") == 1
    assert len(edges(svg)) == 3
    assert texts(drawn("let %y = %x; let %z = %y; exp(%z)")).count("exp") == 1


def test_boxes_do_not_overlap_and_stay_inside() -> None:
    svg = drawn(
        "let %a = split(%x, indices_or_sections=2, axis=1); add(add(%a.0, %a.1), exp(%a.0))"
    )
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    placed = boxes(svg)
    for at, (x, y, w, h) in enumerate(placed):
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height
        for x2, y2, w2, h2 in placed[:at]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_fused_function_box_lists_operators_and_constants() -> None:
    x = relay.var("x", shape=(2, 3))
    total = relay.nn.relu(relay.add(x, relay.const(np.ones((2, 3), "float32"))))
    mod = relay.transform.InferType()(IRModule.from_expr(relay.Function([x], total)))
    main = relay.transform.FuseOps()(mod)["main"]
    assert isinstance(main, relay.Function)
    svg = relay.draw(main)
    assert texts(svg)[2:5] == ["add", "nn.relu", "  float32[2, 3]"]
    assert 'class="fused"' in svg


def test_choices_and_matches_are_boxes_of_their_own() -> None:
    svg = drawn("if (%c) { exp(%x) } else { %x }", "%c: bool, %x: Tensor[(2), float32]")
    assert "if" in texts(svg)


def test_names_are_escaped() -> None:
    x = relay.var("a<b>&", shape=(1,))
    svg = relay.draw(relay.Function([x], x))
    assert texts(svg)[0] == "%a<b>&" and not re.search("<b>", svg)


@pytest.mark.slow
def test_long_chain_needs_no_recursion() -> None:
    value = x = relay.var("x", shape=(1,))
    for _ in range(3000):
        value = relay.exp(value)
    assert relay.draw(relay.Function([x], value)).count("<rect") == 3002
    html = relay.Function([x], value)._repr_html_()
    assert html is not None and "Too large for a picture: 3002 expressions" in html


def test_html_modules_are_collapsible() -> None:
    html = relay.parse("type T { A, }\ndef @main(%x: int32) { %x }")._repr_html_()
    assert html is not None
    assert re.search(r"<details><summary>.*type", html)
    assert re.search(r"<details open><summary>.*def", html)
    assert "<summary>picture</summary>" in html


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "word"),
    [
        ("from ekiden.relay import testing; value = testing.mlp.get_workload(1)[0]", "nn.dense"),
        ("from ekiden.relay.expr import Var; value = Var('x')", "%x"),
        (
            "import ekiden; from ekiden import te; A = te.placeholder((4,));"
            " B = te.compute((4,), lambda i: A[i] + 1);"
            " value = ekiden.IRModule({'main': te.create_prim_func([A, B])})",
            "def main",
        ),
    ],
)
def test_html_needs_nothing_else_to_be_imported(program: str, word: str) -> None:
    text = f"import re; {program}; print(re.sub('<[^>]*>', '', value._repr_html_()))"
    shown = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert word in shown.stdout
