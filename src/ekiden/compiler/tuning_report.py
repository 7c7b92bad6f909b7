"""HTML report of a tuning session: time before and after per kernel, and the search's progress."""

from __future__ import annotations

import math
from html import escape

from ekiden.tune.session import Session, TaskState

PLOT_WIDTH_PX, PLOT_HEIGHT_PX, PLOT_MARGIN_PX = 420, 140, 34
"""Width, height and margin of a plot in pixels."""
TUNING_REPORT_STYLESHEET = """
body { font: 14px/1.45 sans-serif; margin: 2em; max-width: 70em }
table { border-collapse: collapse } td, th { padding: .2em .8em; text-align: right }
td.t, th.t { text-align: left } .plots { display: flex; flex-wrap: wrap; gap: 1.5em }
figure { margin: 0 } figcaption { max-width: 420px; overflow-wrap: anywhere }
.line { fill: none; stroke: #0a6; stroke-width: 2 } .axis { stroke: #999 }
.before { fill: #bbb } .after { fill: #0a6 }
"""


def report_html(session: Session) -> str:
    """Return the report as self-contained HTML."""
    states = sorted((s for s in session.states if s.trials), key=lambda s: -s.weight)
    before = sum(s.weight for s in states)
    after = sum(s.weight * s.ratio for s in states)
    summary = f"{session.trials} trials; kernels of a run: {before * 1e3:.3f} ms by default,"
    html_lines = [
        "<!DOCTYPE html><html><head><meta charset='utf-8'><title>Tuning</title>",
        f"<style>{TUNING_REPORT_STYLESHEET}</style></head><body><h1>Tuning</h1>",
        f"<p>{escape(summary)} {after * 1e3:.3f} ms tuned. Threads: {session.measurer.threads}.",
        f"Search: {escape(session.search.name)}.</p>",
        _time_bars(states),
        "<table><tr><th class='t'>kernel<th class='t'>node<th>calls<th>trials<th>default us"
        "<th>best us<th>ratio<th class='t'>decision</tr>",
        *map(_task_row, states),
        "</table><h2>The best so far, as a share of the default's time</h2><div class='plots'>",
        *map(_progress_curve, states),
        "</div></body></html>\n",
    ]
    return "\n".join(html_lines)


def _format_microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds < math.inf else ""


def _task_row(state: TaskState) -> str:
    task, best = state.task, state.best
    decision = f"{best.rule}: {best.choice}" if best else "the default"
    return (
        f"<tr><td class='t'>{escape(task.name)}<td class='t'>{escape(task.node)}<td>{task.calls}"
        f"<td>{state.trials}<td>{_format_microseconds(state.default_seconds)}"
        f"<td>{_format_microseconds(state.default_seconds * state.ratio)}"
        f"<td>{state.ratio:.3f}<td class='t'>{escape(decision)}</tr>"
    )


def _time_bars(states: list[TaskState]) -> str:
    """Return a bar chart of each kernel's time per run, default and tuned."""
    longest = max((s.weight for s in states), default=0.0) or 1.0
    rows = []
    for number, state in enumerate(states):
        top = 24 * number
        for kind, share, at in (("before", 1.0, 0), ("after", state.ratio, 10)):
            width = PLOT_WIDTH_PX * share * state.weight / longest
            rows.append(
                f"<rect class='{kind}' x='0' y='{top + at}' width='{width:.1f}' height='9'/>"
            )
        label = f"{escape(state.task.name[:48])} {state.weight * 1e3:.3f} ms"
        rows.append(f"<text x='{PLOT_WIDTH_PX + 8}' y='{top + 14}' font-size='12'>{label}</text>")
    size = f"width='{2 * PLOT_WIDTH_PX}' height='{24 * len(states)}'"
    return f"<h2>Before and after</h2><svg {size}>{''.join(rows)}</svg>"


def _progress_curve(state: TaskState) -> str:
    """Return a plot of the best confirmed ratio after each trial."""
    low = min(0.95, *state.curve)
    count = max(1, len(state.curve) - 1)
    wide, high = PLOT_WIDTH_PX - PLOT_MARGIN_PX, PLOT_HEIGHT_PX - PLOT_MARGIN_PX
    points = " ".join(
        f"{PLOT_MARGIN_PX + wide * n / count:.1f},{high * (1 - ratio) / (1 - low) + 8:.1f}"
        for n, ratio in enumerate(state.curve)
    )
    return (
        f"<figure><svg width='{PLOT_WIDTH_PX}' height='{PLOT_HEIGHT_PX}'>"
        f"<line class='axis' x1='{PLOT_MARGIN_PX}' y1='8' x2='{PLOT_MARGIN_PX}' y2='{high + 8}'/>"
        f"<line class='axis' x1='{PLOT_MARGIN_PX}' y1='{high + 8}' x2='{PLOT_WIDTH_PX}' "
        f"y2='{high + 8}'/>"
        f"<text x='0' y='14' font-size='11'>1.00</text>"
        f"<text x='0' y='{high + 10}' font-size='11'>{low:.2f}</text>"
        f"<text x='{PLOT_WIDTH_PX - 70}' y='{PLOT_HEIGHT_PX - 8}' "
        f"font-size='11'>{len(state.curve)} trials</text>"
        f"<polyline class='line' points='{points}'/></svg>"
        f"<figcaption>{escape(str(state.task))}</figcaption></figure>"
    )
