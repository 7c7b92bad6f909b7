"""Cold-start time: from a model's file to its first output in a fresh process with empty caches,
compared with ONNX Runtime and OpenVINO.

    python benchmarks/cold_start.py MODEL.onnx... [--rounds 3] [--threads 2] [--json FILE]
    python benchmarks/cold_start.py --manifest models.json --models-cache FOLDER [--only ID ...]

    first     seconds on the clock from the file to the first answer; the import of the engine,
              which a program does before it has a model, is not in it
    import    that import
    process   seconds from the start of the process, by the clock of who starts it, to the first
              answer: Python, NumPy, the import of the engine and `first`
    cpu       seconds of the processor of the process and its workers until then, the import in them
    general   speed after the first answer over full speed, what compiles being stopped meanwhile
    full      seconds from the first answer until every kernel has its own code, that stop left out
    second    as `first`, of a process that finds what the first has compiled

Two ratios to a peer: that of `first`, what an engine takes for a model once it is imported, and
that of `process`, what a user waits for. `import ekiden` loads nothing, and the modules that
compile are loaded within `first`; peers load theirs at their import, which is in `process` alone.

Every figure is the median of the rounds, geometric means are of ratios in one row. Python's own
caches of modules are as after an installation: one round before them fills these. A model of a
manifest comes through the `fetch_models.py` beside it; inputs of others are random, a size that has
no number is 1, or as `--dim NAME=SIZE` says. Answers that differ from ONNX Runtime's are marked. A
peer that cannot run a model says so in its row, and means are of the models that it runs. Given
`--python` of another checkout, that one is measured in turns with this one. `--only-first` measures
nothing that comes after the first answer. `--json FILE` keeps what it measures, beside what the
file has of other models, so that a manifest may be measured in parts; `--page FILE` makes a page of
all that is there, measured now or before.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from cold_start_worker import ENGINE_LOADERS, Feed, Figures

PROCESS_TIMEOUT_S = 600
"""How long a process may take."""
DEFAULT_TOLERANCE = (2e-3, 1e-4, 0.0)
"""Relative, absolute, and relative to the largest element: where no manifest says another."""
PEER_ENGINES = ("onnxruntime", "openvino")
WORKER_SCRIPT = Path(__file__).with_name("cold_start_worker.py")
BYTECODE_DIR = tempfile.TemporaryDirectory()
"""Where Python keeps modules that it has read."""


class EngineFailedError(Exception):
    """Failure of an engine on a model; the text is the last line of its process's output."""


def measure_cold_start(
    python: str, engine: str, path: Path, threads: int, feed: Path, cache: str, second: bool = False
) -> tuple[Figures, list[np.ndarray]]:
    """Run an engine in a fresh process, and return its figures and outputs. Raises
    EngineFailedError if
    it fails.
    """
    environment = dict(os.environ, EKIDEN_CACHE_DIR=cache, PYTHONPYCACHEPREFIX=BYTECODE_DIR.name)
    # Without cached bytecode every process would also compile Python sources.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    what = (engine, str(path), str(threads), str(feed))
    args = [python, str(WORKER_SCRIPT), *what, repr(time.monotonic()), str(int(second))]
    done = subprocess.run(
        args, env=environment, capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S
    )
    if done.returncode:
        error_lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        if engine not in PEER_ENGINES:
            raise SystemExit(f"{engine}, {path}: {done.stderr[-2000:]}")
        raise EngineFailedError(error_lines[-1])
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    with open(f"{feed}.answer", "rb") as file:
        answer: list[np.ndarray] = pickle.load(file)
    return figures, answer


def max_relative_error(
    expected: Sequence[np.ndarray], actual: Sequence[np.ndarray], by: Sequence[float]
) -> float:
    """Return the largest difference in multiples of the tolerance."""
    relative, absolute, of_largest = by
    worst = 0.0
    for a, b in zip(expected, actual, strict=True):
        if a.dtype.kind not in "fc":
            worst = max(worst, float("inf") if (a != b).any() else 0.0)
        elif a.size:
            a, b = a.astype(float), b.astype(float)
            scale = absolute + relative * np.abs(a) + of_largest * np.abs(a).max()
            worst = max(worst, float((np.abs(a - b) / scale).max()))
    return worst


def random_feed(path: Path, dims: Mapping[str, int]) -> Feed:
    """Return random inputs of a model."""
    import onnx

    graph = onnx.load(path, load_external_data=False).graph
    weights = {initializer.name for initializer in graph.initializer}
    random, feed = np.random.default_rng(0), {}
    for value in graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value or dims.get(d.dim_param, 1) for d in kind.shape.dim]
        numbers = random.random(shape)
        feed[value.name] = numbers.astype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return feed


def iter_models(options: argparse.Namespace) -> Iterator[tuple[str, Path, Feed, Sequence[float]]]:
    """Yield (name, file, inputs, tolerance) of each requested model."""
    dims = {name: int(size) for name, size in (text.split("=") for text in options.dim)}
    for path in options.models:
        yield path.stem, path, random_feed(path, dims), DEFAULT_TOLERANCE
    if options.manifest is None:
        return
    tools = runpy.run_path(str(options.manifest.resolve().parent / "fetch_models.py"))
    for entry in tools["load"](str(options.manifest)):
        is_selected = not options.only or entry["id"] in options.only
        if entry["format"] == "onnx" and is_selected:
            file = tools["fetch"]([entry], options.models_cache)[entry["id"]]
            path = Path(tools["prepare"](entry, file, options.models_cache))
            feed = tools["make_inputs"](entry, entry["cases"][0], 0)
            yield entry["id"], path, feed, entry.get("tolerance", DEFAULT_TOLERANCE)


def describe_processor() -> str:
    """Return this machine's processor name, and how fast its Python is."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    info = {
        key.strip(): value.strip()
        for key, _, value in (cpuinfo_line.partition(":") for cpuinfo_line in lines)
    }
    name = f"{info.get('model name', 'unknown')}, family {info.get('cpu family', '?')}"
    samples = []
    for _ in range(7):
        started = time.perf_counter()
        for _ in range(1000):
            sum(range(1000))
        samples.append((time.perf_counter() - started) * 1e3)
    took = f"sum(range(1000)) takes {min(samples):.1f} us"
    return f"{name} model {info.get('model', '?')}, {len(os.sched_getaffinity(0))} cores; {took}"


def measure_model(
    options: argparse.Namespace, path: Path, feed: Feed, tolerance: Sequence[float]
) -> tuple[dict[str, Figures], dict[str, str]]:
    """Return the median figures of each engine on a model, and why peers cannot run it."""
    pythons = dict.fromkeys(options.engines, sys.executable)
    if options.python:
        pythons |= {
            f"other {name}": options.python for name in options.engines if name in EKIDEN_TIERS
        }
    runs: dict[str, list[Figures]] = {name: [] for name in pythons}
    refused: dict[str, str] = {}
    answers: dict[str, list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as folder:
        feed_file = Path(folder, "feed")
        feed_file.write_bytes(pickle.dumps(feed))
        # Round -1 is not counted: it fills the bytecode cache.
        for round_index in range(
            0 if any(Path(BYTECODE_DIR.name).iterdir()) else -1, options.rounds
        ):
            for name, python in pythons.items():
                if name in refused:
                    continue
                cache = str(Path(folder, f"{name}{round_index}"))
                try:
                    figures, answers[name] = measure_restarts(
                        python, name.rpartition(" ")[2], path, options, feed_file, cache
                    )
                except EngineFailedError as reason:
                    refused[name] = str(reason)
                    continue
                if round_index >= 0:
                    runs[name].append(figures)
    medians_by_engine = {
        name: median_measurements(engine_runs)
        for name, engine_runs in runs.items()
        if name not in refused
    }
    for name in medians_by_engine:
        if "onnxruntime" in medians_by_engine:
            medians_by_engine[name]["error"] = max_relative_error(
                answers["onnxruntime"], answers[name], tolerance
            )
    return medians_by_engine, refused


def measure_restarts(
    python: str, engine: str, path: Path, options: argparse.Namespace, feed: Path, cache: str
) -> tuple[Figures, list[np.ndarray]]:
    """Measure a cold start and, for Ekiden, a second start on warm caches."""
    threads = options.threads
    figures, answer = measure_cold_start(
        python, engine, path, threads, feed, cache, second=options.only_first
    )
    if engine in EKIDEN_TIERS and not options.only_first:
        again, _ = measure_cold_start(python, engine, path, threads, feed, cache, second=True)
        figures["second"] = again["first"]
        figures["second_import"] = again["import"]
    return figures, answer


EKIDEN_TIERS = ("quick", "full")
SHORT_MODEL_S = 8
"""Seconds after which full speed shall be there."""


def median_measurements(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


TABLE_HEAD = (
    f"{'':26}{'engine':>13}{'first':>8}{'import':>8}{'process':>9}{'cpu':>7}{'peak MB':>9}"
    f"{'general':>9}{'full':>7}{'second':>8}{'ms':>10}"
)


def format_row(model: str, engine: str, row: Figures) -> str:
    """Format a row of the table."""
    text = f"{model[-26:]:26}{engine:>13}{row['first']:8.2f}{row['import']:8.2f}"
    text += f"{row['process']:9.2f}{row['cpu']:7.2f}{row['peak_mb']:9.0f}"
    if "ms" in row:
        speed = row["ms"] / row["early_ms"]
        text += f"{speed:9.2f}{row['full']:7.1f}{row['second']:8.3f}{row['ms']:10.3f}"
    wrong = row.get("error", 0.0)
    return text + (f"  WRONG: {wrong:.1f} times the tolerance" if not wrong <= 1 else "")


def peer_ratios(both: Sequence[tuple[Figures, Figures]]) -> Iterator[tuple[str, list[float]]]:
    """Yield for each model Ekiden's figures divided by a peer's."""
    yield "first answer", [own["first"] / peer["first"] for own, peer in both]
    yield "whole process", [own["process"] / peer["process"] for own, peer in both]
    if all("second" in own for own, _ in both):
        yield "second start", [own["second"] / peer["first"] for own, peer in both]
        yield (
            "with imports",
            [
                (own["second"] + own["second_import"]) / (peer["first"] + peer["import"])
                for own, peer in both
            ],
        )


def summary_lines(table: Mapping[str, Mapping[str, Figures]]) -> Iterator[str]:
    """Yield geometric means of Ekiden's tiers relative to the peers and to the full tier."""
    mean = statistics.geometric_mean
    rows = list(table.values())
    subjects = [name for name in rows[0] if name.rpartition(" ")[2] in EKIDEN_TIERS]
    for subject in subjects:
        for peer in PEER_ENGINES:
            both = [(row[subject], row[peer]) for row in rows if peer in row]
            texts = [f"{n} {mean(r):.2f} (worst {max(r):.2f})" for n, r in peer_ratios(both) if r]
            if texts:
                yield f"{subject} over {peer}, {len(both)} models: {', '.join(texts)}"
        firsts = [row[subject]["first"] for row in rows]
        yield f"{subject}: first answer after {mean(firsts):.2f} s (worst {max(firsts):.2f})"
        speeds = [
            row[subject]["ms"] / row[subject]["early_ms"] for row in rows if "ms" in row[subject]
        ]
        late = [row[subject]["full"] for row in rows if "full" in row[subject]]
        if late:
            yield f"{subject}: at {mean(speeds):.2f} of full speed (worst {min(speeds):.2f})"
            soon = sum(late_seconds <= SHORT_MODEL_S for late_seconds in late)
            yield (
                f"{subject}: full speed {statistics.median(late):.1f} s later (worst"
                f" {max(late):.1f}), within {SHORT_MODEL_S} s for {soon} of {len(late)}"
            )
    tiers = [row for row in rows if all("ms" in row.get(name, {}) for name in EKIDEN_TIERS)]
    if tiers:
        tier_ratios = [row["quick"]["ms"] / row["full"]["ms"] for row in tiers]
        worst = f"(worst {max(tier_ratios):.2f})"
        yield f"a run in the end, quick over full: {mean(tier_ratios):.3f} {worst}"
    for subject in subjects:
        if f"other {subject}" in rows[0]:
            for what in ("cpu", "first", "process"):
                tier_ratios = [row[subject][what] / row[f"other {subject}"][what] for row in rows]
                worst = f"(worst {max(tier_ratios):.3f})"
                yield f"{subject} over the other's: {what} {mean(tier_ratios):.3f} {worst}"


PAGE_TEMPLATE = """# First answers

Made by `python benchmarks/cold_start.py --manifest models.json --json FILE --page
docs/first-answers.md`; do not edit.

Each figure is of a fresh process and empty caches, or for the second start of a full one; {threads}
threads; {machine}. `first`: seconds from the model's file to the first answer, of Ekiden with
`tier="quick"`, ONNX Runtime and OpenVINO; their imports are not in it, Ekiden's modules that compile
are. `process`: the same with imports, from the start of the process. `speed`: that of the first
answers as a share of full speed. `full`: seconds until full speed.

{summary}

| model | first | ONNX Runtime | OpenVINO | process | ONNX Runtime | OpenVINO | speed | full | second | peak, MB |
|---|---|---|---|---|---|---|---|---|---|---|
{rows}
"""  # noqa: E501


def render_page(machine: str, threads: int, table: Mapping[str, Mapping[str, Figures]]) -> str:
    """Return the Markdown page of all measurements."""
    engines = ("quick", *PEER_ENGINES)

    def render_row(model: str) -> str:
        """Format a row of the page."""
        by_engine = table[model]
        ekiden_figures = by_engine["quick"]
        cells = [
            f"{by_engine[name][what]:.2f}" if name in by_engine else "does not run"
            for what in ("first", "process")
            for name in engines
        ]
        cells += [
            f"{ekiden_figures['ms'] / ekiden_figures['early_ms']:.2f}",
            f"{ekiden_figures['full']:.1f}",
        ]
        cells += [f"{ekiden_figures['second']:.2f}", f"{ekiden_figures['peak_mb']:.0f}"]
        return f"| {model} | {' | '.join(cells)} |"

    measured = [model for model in table if "ms" in table[model].get("quick", {})]
    texts = [f"- {text}" for text in summary_lines({model: table[model] for model in measured})]
    rows = [render_row(model) for model in measured]
    text = PAGE_TEMPLATE.format(
        machine=machine, threads=threads, summary="\n".join(texts), rows="\n".join(rows)
    )
    return text


def cold_run_parser(docstring: str) -> argparse.ArgumentParser:
    """Return a parser with the options that benchmarks of cold runs share."""
    parser = argparse.ArgumentParser(description=docstring.partition("\n")[0])
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--models-cache", default="models-cache")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", help="interpreter of another checkout, measured alternately")
    parser.add_argument("--json", type=Path, help="results; rows of other models stay")
    parser.add_argument("--page", type=Path, help="page of the results")
    parser.add_argument("--conditions", default="", help="measuring conditions, for the page")
    return parser


def main(arguments: list[str]) -> int:
    """Print a row for each model and engine, then the means."""
    parser = cold_run_parser(__doc__)
    parser.add_argument(
        "--engines", nargs="+", default=["quick", *PEER_ENGINES], choices=ENGINE_LOADERS
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only-first", action="store_true")
    options = parser.parse_args(arguments)
    machine = describe_processor()
    print(f"{machine}; {options.threads} threads")
    print(TABLE_HEAD)
    table: dict[str, dict[str, Figures]] = {}
    if options.json and options.json.exists():
        table = json.loads(options.json.read_text())["models"]
    for model, file, feed, tolerance in iter_models(options):
        table[model], refused = measure_model(options, file, feed, tolerance)
        for engine, row in table[model].items():
            print(format_row(model, engine, row), flush=True)
        for engine, reason in refused.items():
            print(f"{model[-26:]:26}{engine:>13}  does not run it: {reason}", flush=True)
        if options.json:
            options.json.write_text(json.dumps({"machine": machine, "models": table}, indent=1))
    for text in summary_lines(table) if table else ():
        print(text)
    if options.page:
        where = f"{machine}, {options.conditions}" if options.conditions else machine
        options.page.write_text(render_page(where, options.threads, table))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
