"""Flame charts: positions and labels of bars."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from ekiden.runtime.profile.flame_chart import CHART_WIDTH_PX, ROW_HEIGHT_PX, FlameBar, flame_chart

pytestmark = pytest.mark.quick
SVG = "{http://www.w3.org/2000/svg}"


def bars(svg: str) -> dict[str, tuple[float, float, float, str]]:
    """What is said of a bar -> left, top, width, colour."""
    result = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        title, box = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None and title.text and box is not None
        left, top, width = (float(box.attrib[key]) for key in ("x", "y", "width"))
        result[title.text.partition(":")[0]] = (left, top, width, box.attrib["fill"])
    return result


def test_calls_stand_below_their_callers() -> None:
    result = bars(
        flame_chart([
            FlameBar("kernel", 1000, 500, "Conv 'a'"),
            FlameBar("main", 0, 4000, is_function=True),
            FlameBar("inner", 2000, 1000, is_function=True),
            FlameBar("other", 2100, 400),
        ])
    )  # fmt: skip
    assert result["main"][:3] == (0, 0, CHART_WIDTH_PX)
    assert result["kernel"][:3] == (CHART_WIDTH_PX / 4, ROW_HEIGHT_PX, CHART_WIDTH_PX / 8)
    assert result["inner"][:3] == (CHART_WIDTH_PX / 2, ROW_HEIGHT_PX, CHART_WIDTH_PX / 4)
    assert result["other"][1] == 2 * ROW_HEIGHT_PX
    assert result["main"][3] == result["inner"][3] != result["kernel"][3]


def test_one_name_has_one_colour_and_is_escaped() -> None:
    svg = flame_chart([FlameBar("a<b", 0, 10), FlameBar("c", 10, 10), FlameBar("a<b", 20, 10)])
    assert "a<b" not in svg and svg.count("a&lt;b: ") == 2
    assert len({row[3] for row in bars(svg).values()}) == 2


def test_empty_profile_gives_an_empty_chart() -> None:
    assert flame_chart([]) == ""
    assert "nothing" in flame_chart([FlameBar("nothing", 5, 0)])
