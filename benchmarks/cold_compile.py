"""CPU seconds of a cold compilation by phase, from reading the model's file to its first output,
in a fresh process with empty caches and in the processes that it forks to compile kernels.

    python benchmarks/cold_compile.py MODEL.onnx... [--rounds 3] [--tier quick] [--dim NAME=SIZE]
        [--json FILE] [--python PYTHON] [--page docs/compile-phases.md]
    python benchmarks/cold_compile.py --manifest models.json --models-cache FOLDER --only ID ...

    imports   the start of Python, NumPy, Ekiden's modules
    read      the model's file, by ONNX's reader and checks
    import    to Relay
    passes    over Relay
    lower     schedules, and passes over loop programs
    code      LLVM: writing its text, reading it, compiling
    kernels   the rest of making kernels: keys, general forms
    artifact  bytecode, linking, writing
    load      what `compile` does beside all that: keys of the cache, the program in memory
    run       the first answer
    all       their sum
    clock     seconds on the clock from the start of the process to the first answer, of another
              process that nobody watches
    peak      the largest memory in MB, of the process or of one that it forked

Given `--python` of another checkout, that one is measured in turns with this one; `--other-tier` is
"full", for who knows no tiers; its figures stand in the row above, then the ratio. A figure is the
least of the rounds, of which the first fills Python's caches of modules. Phases that another
checkout does not have are in those around them. Models and inputs are as cold_start.py has them.
`--json FILE` keeps rows of models measured before; `--page` puts all into a page, between its
marks.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from cold_start import Feed, cold_run_parser, describe_processor, iter_models

COMPILE_PROGRAM = """
import json, os, pickle, resource, sys, time

kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)

def used():
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime

path, tier, feed, begun, watched = sys.argv[1:]
import numpy
import ekiden

compiler = ekiden.compile  # which loads what it needs to look into the cache
options = {} if tier == "full" else {"tier": tier}
with open(feed, "rb") as file:
    inputs = pickle.load(file)
rows, inside = [], 0.0
if watched == "1":
    from ekiden.ir.pass_context import PassContext
    from ekiden.ir.timings import Timings
    timings = Timings()
    imported = used()
    with PassContext(instruments=[timings]):
        exe = compiler(path, **options)
    ready = used()
    rows = json.loads(timings.as_json())["phases"]
    inside = sum(r["own_cpu_s"] for r in rows if r["phase"][0] != "workers")
else:
    imported = used()
    exe = compiler(path, **options)
    ready = used()
exe(**inputs)
clock, done = time.monotonic() - float(begun), used()
peak = max(resource.getrusage(kind).ru_maxrss for kind in kinds) / 1e3
print(json.dumps({"phases": rows, "imports": imported, "load": ready - imported - inside,
                  "run": done - ready, "clock": clock, "peak": peak}), flush=True)
os._exit(0)
"""
PHASE_GROUPS = {
    "start": "imports", "load compiler": "imports", "import": "import", "read model": "read",
    "kernels": "kernels", "kernel": "kernels", "kernel keys": "kernels", "schedule": "lower",
    "tir.lower": "lower", "llvm text": "code", "llvm read": "code", "llvm compile": "code",
    "link": "artifact", "write": "artifact", "bytecode": "artifact",
}  # fmt: skip
"""Phase -> the column its own time and that of what is inside it is in; all others are passes."""
PHASE_COLUMNS = (
    "imports", "read", "import", "passes", "lower", "code", "kernels", "artifact", "load", "run",
)  # fmt: skip
PAGE_MARKERS = "<!-- phases -->\n", "<!-- end of phases -->\n"


def phase_column(path: list[str]) -> str:
    """Return the column of a phase path: that of its innermost grouped phase."""
    return next((PHASE_GROUPS[name] for name in reversed(path) if name in PHASE_GROUPS), "passes")


def run_compile_process(
    python: str, path: Path, tier: str, feed: Path, watched: bool
) -> dict[str, object]:
    """Compile a model in a fresh process, and return the figures that it reports."""
    with tempfile.TemporaryDirectory() as cache:
        environment = dict(os.environ, EKIDEN_CACHE_DIR=cache)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        what = (str(path), tier, str(feed), repr(time.monotonic()), str(int(watched)))
        args = [python, "-c", COMPILE_PROGRAM, *what]
        done = subprocess.run(args, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        report: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return report


def measure_cold_compile(python: str, path: Path, tier: str, feed: Path) -> dict[str, float]:
    """Return the CPU seconds by phase of a compilation with empty caches."""
    watched = run_compile_process(python, path, tier, feed, watched=True)
    columns: dict[str, float] = defaultdict(float)
    phases = watched["phases"]
    assert isinstance(phases, list)
    for row in phases:
        columns[phase_column(row["phase"])] += row["own_cpu_s"]
    for name in ("imports", "load", "run"):
        columns[name] += float(str(watched[name]))
    columns["all"] = sum(columns[name] for name in PHASE_COLUMNS)
    # Instrumentation costs time: the clock and the peak come from a run without it.
    alone = run_compile_process(python, path, tier, feed, watched=False)
    return dict(columns) | {name: float(str(alone[name])) for name in ("clock", "peak")}


def elementwise_min(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the minimum of each figure."""
    return {name: min(run.get(name, 0.0) for run in runs) for name in {n for r in runs for n in r}}


def format_cells(row: Mapping[str, float]) -> list[str]:
    """Format the figures of a row."""
    seconds = [f"{row.get(column, 0.0):.2f}" for column in (*PHASE_COLUMNS, "all", "clock")]
    return [*seconds, f"{row['peak']:.0f}"]


TABLE_HEADS = (*PHASE_COLUMNS, "all", "clock", "peak")


def format_row(name: str, texts: list[str]) -> str:
    """Format a row of the printed table."""
    return f"{name[-26:]:26}" + "".join(f"{text:>9}" for text in texts)


def markdown_rows(table: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Return the Markdown table with rows for both checkouts."""
    lines = [f"| model | | {' | '.join(TABLE_HEADS)} |", "|---|---|" + "---|" * len(TABLE_HEADS)]
    for model, rows in table.items():
        for when in ("before", "after"):
            if when in rows:
                lines.append(f"| {model} | {when} | {' | '.join(format_cells(rows[when]))} |")
    return lines


def update_page(
    path: Path, machine: str, table: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> None:
    """Replace the table between the markers of a page."""
    before, _, after_begin = path.read_text().partition(PAGE_MARKERS[0])
    after = after_begin.partition(PAGE_MARKERS[1])[2]
    body = "\n".join(
        [f"{machine}; each figure the least of its rounds.", "", *markdown_rows(table)]
    )
    path.write_text(f"{before}{PAGE_MARKERS[0]}\n{body}\n\n{PAGE_MARKERS[1]}{after}")


def main(arguments: list[str]) -> int:
    """Print a row for each model, for both checkouts if there are two."""
    parser = cold_run_parser(__doc__)
    parser.add_argument("--tier", default="quick", choices=("quick", "full"))
    parser.add_argument("--other-tier", default="full", choices=("quick", "full"))
    options = parser.parse_args(arguments)
    configurations = {"after": (sys.executable, options.tier)}
    if options.python:
        configurations = {"before": (options.python, options.other_tier)} | configurations
    machine = describe_processor() + (f", {options.conditions}" if options.conditions else "")
    print(format_row(machine[:26], list(TABLE_HEADS)))
    table: dict[str, dict[str, dict[str, float]]] = {}
    if options.json and options.json.exists():
        table = json.loads(options.json.read_text())["models"]
    for model, path, inputs, _ in iter_models(options):
        table[model] = rows = measure_configurations(path, configurations, options.rounds, inputs)
        for when, row in rows.items():
            print(format_row(f"{model} {when}", format_cells(row)), flush=True)
        if len(rows) == 2:
            shares = [
                rows["after"].get(n, 0.0) / (rows["before"].get(n) or 1.0) for n in TABLE_HEADS
            ]
            print(format_row("  ratio", [f"{share:.2f}" for share in shares]), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"machine": machine, "models": table}, indent=1))
    if options.page:
        update_page(options.page, machine, table)
    return 0


def measure_configurations(
    model: Path, configurations: Mapping[str, tuple[str, str]], rounds: int, inputs: Feed
) -> dict[str, dict[str, float]]:
    """Measure a model in all configurations, alternating between them."""
    runs: dict[str, list[dict[str, float]]] = {when: [] for when in configurations}
    with tempfile.TemporaryDirectory() as folder:
        feed = Path(folder, "feed")
        feed.write_bytes(pickle.dumps(inputs))
        for _ in range(rounds):
            for when, (python, tier) in configurations.items():
                runs[when].append(measure_cold_compile(python, model, tier, feed))
    return {when: elementwise_min(model_runs) for when, model_runs in runs.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
