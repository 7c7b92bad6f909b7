#!/usr/bin/env python3
"""Record the README's terminal session: commands are run, and an SVG plays what they printed in 20
seconds.

scripts/record_terminal.py           writes docs/assets/terminal.svg
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

import onnx
from generate_stage_pages import example_model
from generated_files import REPOSITORY_ROOT

RECORDED_COMMANDS = (
    "ekiden check model.onnx",
    "ekiden compile model.onnx -o model.eki",
    "ekiden verify model.onnx --dim n=8",
    "ekiden profile model.eki --dim n=512",
    "ekiden export model.eki -o model.so && ls -sh model.*",
)
SECONDS, COLUMNS, ROWS = 20.0, 104, 30
GLYPH_WIDTH, LINE_HEIGHT, PADDING = 7.25, 16, 14
SECONDS_PER_GLYPH = 0.03
"""Seconds a glyph that is typed takes."""
POSTER_SECONDS = 1.5
"""Seconds at the start that show the last screen: previews and printers show the first frame."""
TERMINAL_COLOURS = (
    "text{font:12px ui-monospace,'DejaVu Sans Mono',monospace;fill:#1d2733;white-space:pre}"
    ".c{fill:#1d6b35;font-weight:600}.screen{fill:#f6f8fa;stroke:#d0d7de}"
    "@media (prefers-color-scheme:dark){text{fill:#d6dde6}.c{fill:#8fd18f}"
    ".screen{fill:#1b232d;stroke:#303b47}}"
)


def capture_output(command: str, folder: Path) -> list[str]:
    """Return the lines that a command prints, truncated to the terminal's width."""
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).rstrip().splitlines()
    return [line[:COLUMNS].rstrip() for line in lines]


def record_frames() -> list[tuple[float, str, bool]]:
    """Return (time of appearance in seconds, text, whether it is typed) of each line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(example_model(), folder / "model.onnx")
        transcripts = [(command, capture_output(command, folder)) for command in RECORDED_COMMANDS]
    command_time = (SECONDS - POSTER_SECONDS - 1.5) / len(transcripts)
    shown: list[tuple[float, str, bool]] = []
    for index, (command, lines) in enumerate(transcripts):
        begin = POSTER_SECONDS + 0.3 + index * command_time
        shown.append((begin, f"$ {command}", True))
        begin += len(command) * SECONDS_PER_GLYPH + 0.3
        shown += [(begin + 0.02 * number, line, False) for number, line in enumerate(lines)]
    return shown


def draw_terminal(shown: list[tuple[float, str, bool]]) -> str:
    """Return an animated SVG in which lines appear at their times, scrolling when the screen is
    full.

    The first frame, and the only one where animations are off, is the last screen.
    """
    width, height = COLUMNS * GLYPH_WIDTH + 2 * PADDING, ROWS * LINE_HEIGHT + 2 * PADDING + 20
    last_offset = -LINE_HEIGHT * max(0, len(shown) - ROWS)
    poster = 100 * POSTER_SECONDS / SECONDS
    style, body = [], []
    scroll = [
        f"0%,{poster:.2f}%{{transform:translateY({last_offset}px)}}",
        f"{poster + 0.01:.2f}%{{transform:translateY(0)}}",
    ]
    for index, (second, line, typed) in enumerate(shown):
        share = 100 * second / SECONDS
        style.append(
            f"@keyframes l{index}{{0%,{poster:.2f}%{{opacity:1}}"
            f"{poster + 0.01:.2f}%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}"
            f"#l{index}{{animation:l{index} {SECONDS:g}s infinite}}"
        )
        mark = ' class="c"' if typed else ""
        y = PADDING + 20 + LINE_HEIGHT * (index + 1) - 4
        body.append(f'<text id="l{index}"{mark} x="{PADDING}" y="{y}">{escape(line)}</text>')
        if index >= ROWS:
            up = f"translateY(-{LINE_HEIGHT * (index - ROWS + 1)}px)"
            before = f"translateY(-{LINE_HEIGHT * (index - ROWS)}px)"
            scroll.append(
                f"{share:.2f}%{{transform:{before}}}{share + 0.01:.2f}%{{transform:{up}}}"
            )
    scroll.append(f"100%{{transform:translateY({last_offset}px)}}")
    style.append(
        f"#s{{transform:translateY({last_offset}px);animation:s {SECONDS:g}s infinite}}"
        f"@keyframes s{{{''.join(scroll)}}}"
        "@media (prefers-reduced-motion:reduce){text,#s{animation:none!important}}"
    )
    dots = "".join(
        f'<circle cx="{PADDING + 4 + 18 * n}" cy="15" r="5.5" fill="{colour}"/>'
        for n, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}">'
        f"<style>{TERMINAL_COLOURS}{''.join(style)}</style>"
        f'<rect class="screen" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" '
        f'rx="8"/>{dots}'
        f'<clipPath id="w"><rect x="0" y="32" width="100%" height="{height - 38}"/></clipPath>'
        f'<g clip-path="url(#w)"><g id="s">{"".join(body)}</g></g></svg>\n'
    )


if __name__ == "__main__":
    (REPOSITORY_ROOT / "docs/assets/terminal.svg").write_text(
        draw_terminal(record_frames()), encoding="utf-8"
    )
