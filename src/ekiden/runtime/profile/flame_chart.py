"""Flame chart of a run; time to the right, functions on top of what they call."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

__all__ = ["FlameBar", "flame_chart"]

CHART_WIDTH_PX, ROW_HEIGHT_PX, SCALE_HEIGHT_PX, GLYPH_WIDTH_PX = 900, 20, 18, 6.6
"""Pixels: of the chart, of a row, of the scale below, of a glyph."""
BAR_COLOURS = (
    "#e8a15b",
    "#7fb2dd",
    "#8cc69b",
    "#d9a0c3",
    "#c9b46a",
    "#9aa7e0",
    "#74c2bd",
    "#e0907f",
)
SCALE_STYLE = (
    "<style>.scale{fill:#59636e}@media (prefers-color-scheme:dark){.scale{fill:#9aa7b4}}</style>"
)
"""Colours of the time scale alone: bars carry dark text on light fills, readable on any page."""


class FlameBar(NamedTuple):
    """Bar of a flame chart: name, start and duration in nanoseconds, and tooltip."""

    name: str
    start: int
    """Nanoseconds."""
    duration: int
    tooltip: str = ""
    is_function: bool = False


def flame_chart(bars: Sequence[FlameBar]) -> str:
    """Return the chart as SVG. A bar is drawn below those that were active when it began; kernels
    of one name have one colour.
    """
    if not bars:
        return ""
    ordered = sorted(bars, key=lambda bar: (bar.start, -bar.duration))
    begin = ordered[0].start
    end = max(bar.start + bar.duration for bar in ordered)
    scale = CHART_WIDTH_PX / max(end - begin, 1)
    names = list(dict.fromkeys(bar.name for bar in ordered if not bar.is_function))
    colour = {name: BAR_COLOURS[index % len(BAR_COLOURS)] for index, name in enumerate(names)}
    open_until: list[int] = []
    drawn: list[str] = []
    rows = 0
    for bar in ordered:
        while open_until and open_until[-1] <= bar.start:
            open_until.pop()
        x, y = (bar.start - begin) * scale, ROW_HEIGHT_PX * len(open_until)
        fill = "#c3ccd6" if bar.is_function else colour[bar.name]
        drawn.append(_draw_bar(bar, x, y, bar.duration * scale, fill))
        open_until.append(bar.start + bar.duration)
        rows = max(rows, len(open_until))
    height = rows * ROW_HEIGHT_PX + SCALE_HEIGHT_PX
    size = (
        f'viewBox="0 0 {CHART_WIDTH_PX} {height}" style="width:100%;max-width:{CHART_WIDTH_PX}px"'
    )
    foot = f'<text x="0" y="{height - 5}" class="scale">0</text>' + (
        f'<text x="{CHART_WIDTH_PX}" y="{height - 5}" class="scale" text-anchor="end">'
        f"{(end - begin) / 1e3:.1f} us</text>"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="11">'
    return f"{head}{SCALE_STYLE}{''.join(drawn)}{foot}</svg>"


def _draw_bar(bar: FlameBar, x: float, y: float, width: float, fill: str) -> str:
    room = int((width - 6) / GLYPH_WIDTH_PX)
    text = bar.name if len(bar.name) <= room else bar.name[: max(room - 1, 0)] + "…"
    label = "" if room < 3 else f'<text x="{x + 3:.1f}" y="{y + 14:.0f}">{escape(text)}</text>'
    tooltip = f"{bar.name}: {bar.duration / 1e3:.2f} us {bar.tooltip}".rstrip()
    return (
        f"<g><title>{escape(tooltip)}</title>"
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{max(width, 0.5):.1f}" height="{ROW_HEIGHT_PX - 1}" '
        f'fill="{fill}" rx="2"></rect>{label}</g>'
    )
