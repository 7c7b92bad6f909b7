"""Where the first compilation of a model spends its time: seconds of the processor by phase, of a
fresh process with empty caches and of those it forks.

    python benchmarks/cold_compile.py MODEL.onnx... [--rounds 3] [--json FILE] [--python PYTHON]

`peak` is the largest memory of this process and of one of the forked ones in MB, `weights` what the
model's file has. Given `--python` of another checkout, that one is measured in turns with this one,
and its figures stand in the row below, then the ratio. Every figure is the least of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

PROGRAM = """
import json, resource, sys
from ekiden.__main__ import main
status = main(sys.argv[1:])
kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
print("peak", json.dumps([resource.getrusage(kind).ru_maxrss / 1e3 for kind in kinds]))
sys.exit(status)
"""
GROUPS = {
    "start": "start", "load compiler": "start", "import": "import", "kernel": "other",
    "schedule": "schedule", "tir.lower": "tir", "llvm text": "text", "llvm read": "llvm",
    "llvm compile": "llvm", "link": "link", "write": "write", "bytecode": "bytecode",
}  # fmt: skip
"""Phase -> the column its own time and that of what is inside it is in; all others are "relay"."""
COLUMNS = (
    "start", "import", "relay", "schedule", "tir", "text", "llvm", "other", "bytecode", "link",
    "write",
)  # fmt: skip


def group_of(path: list[str]) -> str:
    """The column of a row of the table: that of the innermost phase that has one."""
    return next((GROUPS[name] for name in reversed(path) if name in GROUPS), "relay")


def compile_cold(python: str, model: Path) -> dict[str, float]:
    """Seconds by column, and memory, of one compilation."""
    with tempfile.TemporaryDirectory() as folder:
        rows, made = Path(folder, "rows.json"), Path(folder, "model.eki")
        args = ["compile", str(model), "-o", str(made), "--timings-file", str(rows)]
        environment = dict(os.environ, EKIDEN_CACHE_DIR=str(Path(folder, "cache")))
        done = subprocess.run(
            [python, "-c", PROGRAM, *args], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        found: dict[str, float] = defaultdict(float)
        for row in json.loads(rows.read_text())["phases"]:
            found[group_of(row["phase"])] += row["own_cpu_s"]
        found["all"] = sum(found.values())
        own, forked = json.loads(done.stdout.rpartition("peak ")[2])
        return found | {"peak": own, "worker peak": forked}


def least(runs: list[dict[str, float]]) -> dict[str, float]:
    """The least of each figure."""
    return {name: min(run.get(name, 0.0) for run in runs) for name in {n for r in runs for n in r}}


def line(name: str, row: dict[str, float]) -> str:
    """A row of the table."""
    seconds = "".join(f"{row.get(column, 0.0):9.2f}" for column in (*COLUMNS, "all"))
    return f"{name[-32:]:32}{seconds}{row['peak']:8.0f}{row['worker peak']:8.0f}"


def main(arguments: list[str]) -> int:
    """Print a row for each model, of both checkouts if there are two."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--python", help="of another checkout")
    options = parser.parse_args(arguments)
    pythons = [sys.executable, *([options.python] if options.python else [])]
    heads = "".join(f"{column:>9}" for column in (*COLUMNS, "all"))
    print(f"{'seconds of the processor':32}{heads}{'peak':>8}{'worker':>8}")
    table = {}
    for model in options.models:
        runs: list[list[dict[str, float]]] = [[] for _ in pythons]
        for _ in range(options.rounds):
            for own, python in zip(runs, pythons, strict=True):
                own.append(compile_cold(python, model))
        rows = [least(own) for own in runs]
        table[model.name] = rows
        print(line(model.name, rows[0]), flush=True)
        for other in rows[1:]:
            print(line("  the other", other))
            ratio = {name: rows[0].get(name, 0.0) / (value or 1.0) for name, value in other.items()}
            print(f"  ratio of all {ratio['all']:.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
