"""Report of real models: the share of its limit that each kernel reaches, and the documentation's
results page.

    python benchmarks/performance_report.py kernels MODEL.onnx ... [--dim NAME=VALUE ...]
        [--threads N] [--top 10] [--json KERNELS]
    python benchmarks/performance_report.py kernels --manifest models.json [--only ID ...]
    python benchmarks/performance_report.py page COMPARED.json ... [--kernels KERNELS ...]
        [--out docs] [--threads N ...] [--note TEXT] [--name NAME]

`kernels` runs each model under `exe.profile`, takes the least time of each kernel call over the
rounds, and holds it against what the machine does at best, measured in the same process:
multiply-adds, and copies of as many bytes as the call touches (small ones stay in caches). The
nearer of the two limits bounds a kernel; time beyond it is lost. It ends with the kernels that lose
most over all models. Models of a manifest come through the `fetch_models.py` beside it.

`page` writes `NAME.md` (performance.md) with the table of what a comparison of engines measured
(JSON: rows of model, threads, and engines with `ms` and `speedup`), and `NAME.svg`, which needs
matplotlib (`pip install ekiden[docs]`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import ekiden
from ekiden.compiler.machine_peak import measure_peak
from ekiden.runtime import num_threads
from ekiden.runtime.profile.report import MachinePeak, Report, ReportRow

Record: TypeAlias = dict[str, Any]
"""An object of a JSON file."""
Axis: TypeAlias = Any
"""A picture of matplotlib."""
Feed: TypeAlias = Mapping[str, np.ndarray[Any, Any]]

CACHED_COPY_BYTES = (1 << 18, 1 << 22)
"""Bytes of copies that caches of a core, and then of the chip, hold."""
DARK_STYLE = """
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 !important }
  [style*="fill: #ffffff"] { fill: #161b22 !important }
  [style*="stroke: #000000"], [style*="stroke: #808080"] { stroke: #9aa7b4 !important }
  [style*="stroke: #b0b0b0"] { stroke: #6a7785 !important }
}
"""
"""Colours on dark pages: matplotlib sets the light ones per element, hence `!important`."""


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The machine's peak: operations per second, and bytes per second by the number of bytes
    touched, ascending.
    """

    flops: float
    copy_bandwidths: tuple[tuple[int, float], ...]

    def seconds(self, row: ReportRow) -> float:
        """Return the minimum time of a kernel's calls."""
        bytes_per_call = row.nbytes // max(row.count, 1)
        speed = next(
            (s for size, s in self.copy_bandwidths if bytes_per_call <= size),
            self.copy_bandwidths[-1][1],
        )
        return max(row.flops / self.flops, row.nbytes / speed)

    def limiting_resource(self, row: ReportRow) -> str:
        """Return which limit is closer."""
        return "flops" if row.flops / self.flops >= self.seconds(row) else "bytes"


class KernelLoss(NamedTuple):
    """Kernel of a model with its time beyond the roofline limit: its calls on one set of shapes,
    and the seconds beyond its limit.
    """

    model: str
    row: ReportRow
    lost: float
    share: float
    bound: str

    def record(self) -> Record:
        """Return the loss as JSON values."""
        return {
            "model": self.model,
            "kernel": self.row.name,
            "source": self.row.source,
            "shapes": self.row.shapes,
            "calls": self.row.count,
            "ms": self.row.duration / 1e6,
            "gflops": self.row.flops / max(self.row.duration, 1),
            "share": self.share,
            "bound": self.bound,
            "lost_ms": self.lost * 1e3,
        }


def measure_limits(peak: MachinePeak) -> MachineLimits:
    """Return the measured peak, with copies within caches."""
    copies = []
    for size in CACHED_COPY_BYTES:
        source, copy = np.ones(size // 2, np.uint8), np.ones(size // 2, np.uint8)
        calls, spent = max(1, (1 << 22) // size), []
        for _ in range(15):
            start = time.perf_counter()
            for _ in range(calls):
                np.copyto(copy, source)
            spent.append(time.perf_counter() - start)
        copies.append((size, size * calls / min(spent)))
    # 2^62 stands for any larger size: the bandwidth of main memory.
    return MachineLimits(peak.flops, (*copies, (1 << 62, peak.bandwidth)))


def merge_min_times(reports: Sequence[Report]) -> Report:
    """Return the first report with each call's minimum over all reports, which have the
    same calls.
    """
    # Disturbances only lengthen a call, so the minimum of each is the best estimate.
    calls = tuple(
        replace(same[0], duration=min(call.duration for call in same))
        for same in zip(*(r.calls for r in reports), strict=True)
    )
    return replace(reports[0], calls=calls)


def kernel_losses(model: str, report: Report, limits: MachineLimits) -> list[KernelLoss]:
    """Return each kernel's loss, in the order of its first call."""
    kernel_losses = []
    for row in report.rows():
        spent, limit_s = row.duration * 1e-9, limits.seconds(row)
        share = min(1.0, limit_s / max(spent, 1e-9))
        kernel_losses.append(
            KernelLoss(model, row, max(0.0, spent - limit_s), share, limits.limiting_resource(row))
        )
    return kernel_losses


def print_losses(kernel_losses: Sequence[KernelLoss], top: int) -> None:
    """Print the kernels with the largest losses."""
    print(f"{'ms':>9} {'lost':>9} {'calls':>5} {'GFLOP/s':>8} {'of limit':>11}  kernel, arguments")
    for loss in sorted(kernel_losses, key=lambda loss_entry: -loss_entry.lost)[:top]:
        row = loss.row
        rate = f"{row.flops / row.duration:8.1f}" if row.flops else f"{'':8}"
        name = row.name.rpartition("_")[0].removeprefix("fused_")[:60]
        cells = f"{row.duration / 1e6:9.3f} {loss.lost * 1e3:9.3f} {row.count:5} {rate}"
        print(f"{cells} {loss.share:5.0%} {loss.bound}  {loss.model} {name} {row.shapes[:100]}")


def iter_models(options: argparse.Namespace) -> Iterator[tuple[str, Path, Feed]]:
    """Yield (name, file, inputs) of each requested model."""
    for path in options.models:
        dims = {name: int(size) for name, size in (text.split("=") for text in options.dim)}
        yield Path(path).stem, Path(path), random_feed(ekiden.compile(path), dims)
    if options.manifest is None:
        return
    manifest = Path(options.manifest).resolve()
    sys.path.insert(0, str(manifest.parent))
    fetching = importlib.import_module("fetch_models")
    selected = set(options.only or ())
    for entry in fetching.load(manifest):
        chosen = not selected or entry["id"] in selected or selected & set(entry["tags"])
        if entry["format"] == "onnx" and chosen:
            file = fetching.fetch([entry], options.cache)[entry["id"]]
            path = fetching.prepare(entry, file, options.cache)
            yield entry["id"], Path(path), fetching.make_inputs(entry, entry["cases"][0], 0)


def random_feed(exe: ekiden.Executable, dims: Mapping[str, int]) -> Feed:
    """Return random inputs of a model; symbolic dimensions that are not given are one."""
    random, feed = np.random.default_rng(0), {}
    for info in exe.inputs:
        shape = [d if isinstance(d, int) else dims.get(d, 1) for d in info.shape]
        feed[info.name] = random.random(shape).astype(info.dtype)
    return feed


def run_kernels_command(options: argparse.Namespace) -> None:
    """Run the command `kernels`."""
    num_threads(options.threads)
    everything: list[KernelLoss] = []
    for name, path, feed in iter_models(options):
        exe = ekiden.compile(path)
        peak = measure_peak()
        report = merge_min_times([exe.profile(peak=False, **feed) for _ in range(options.rounds)])
        limits = measure_limits(peak)
        losses = kernel_losses(name, report, limits)
        spent, lost = sum(f.row.duration for f in losses), sum(f.lost for f in losses)
        print(
            f"\n{name}: {spent / 1e6:.3f} ms in kernels, {lost * 1e3:.3f} ms lost; at best"
            f" {limits.flops / 1e9:.0f} GFLOP/s, copies"
            f" {', '.join(f'{speed / 1e9:.0f}' for _, speed in limits.copy_bandwidths)} GB/s"
        )
        print_losses(losses, options.top)
        sys.stdout.flush()
        everything += losses
    print(f"\nthe {options.top} that lose most over all models")
    print_losses(everything, options.top)
    if options.json:
        records = [{"threads": options.threads, **f.record()} for f in everything]
        Path(options.json).write_text(json.dumps(records, indent=1))


def run_page_command(options: argparse.Namespace) -> None:
    """Run the command `page`."""
    rows = [row for path in options.compared for row in json.loads(Path(path).read_text())]
    layers = [row for path in options.kernels for row in json.loads(Path(path).read_text())]
    folder = Path(options.out)
    rows = [row for row in rows if row["threads"] in options.threads]
    text = render_page(rows, options.note, options.name)
    (folder / f"{options.name}.md").write_text(text)
    plot_results(rows, layers, folder / f"{options.name}.svg")


def render_page(rows: Sequence[Record], note: str = "", name: str = "performance") -> str:
    """Return the page: the measurements, and a table per number of threads; `name` is its
    picture's.
    """
    text = [
        f"{PAGE_TEMPLATE}\n\n![Time of each model]({name}.svg)",
        *([f"\n{note}"] if note else []),
    ]
    for threads in sorted({row["threads"] for row in rows}):
        mine = [row for row in rows if row["threads"] == threads]
        engines = list(dict.fromkeys(e for row in mine for e in row["engines"]))
        text.append(f"\n## On {threads} {'core' if threads == 1 else 'cores'}\n")
        text.append(format_summary(mine, engines))
        text.append("| model | " + " | ".join(f"{e}, ms" for e in engines) + " | over the best |")
        text.append("|---" * (len(engines) + 2) + "|")
        text += [format_row(row, engines) for row in mine]
    return "\n".join(text) + "\n"


def format_summary(rows: Sequence[Record], engines: Sequence[str]) -> str:
    """Return the geometric mean speed-up over each peer, and over the best peer of each model."""
    sentences = []
    for engine in engines[1:]:
        figures = [row["engines"][engine] for row in rows if engine in row["engines"]]
        ratios = [
            engine_figures["speedup"]
            for engine_figures in figures
            if "speedup" in engine_figures and is_accurate(engine_figures)
        ]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            sentences.append(f"{mean:.2f} times as fast as {engine} ({len(ratios)} models)")
    best = [row["speedup_over_best"] for row in rows if "speedup_over_best" in row]
    if best:
        mean = statistics.geometric_mean(best)
        sentences.append(f"{mean:.2f} times the better one of each model, {min(best):.2f} at worst")
    return f"Geometric means: {'; '.join(sentences)}.\n"


def is_accurate(figures: Record) -> bool:
    """Return whether an engine's result matches the reference, if it was compared."""
    error = figures.get("error_over_tolerance", 0.0)
    return isinstance(error, float) and error <= 1


def format_row(row: Record, engines: Sequence[str]) -> str:
    """Return a row of the table."""
    cells = [f"{row['model']}"]
    for engine in engines:
        figures = row["engines"].get(engine, {})
        shown = f"{figures['ms']:.3f}" if "ms" in figures else "fails"
        cells.append(shown if is_accurate(figures) else f"{shown} (differs)")
    best = row.get("speedup_over_best")
    cells.append("" if best is None else f"{best:.2f}")
    return f"| {' | '.join(cells)} |"


def plot_results(rows: Sequence[Record], layers: Sequence[Record], path: Path) -> None:
    """Draw two pictures: each peer's time over ours for each model, and the share of their limit
    that kernels in `layers` reach.
    """
    # Optional, and slow to import.
    import matplotlib  # noqa: PLC0415

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: a third of the size
    from matplotlib import pyplot  # noqa: PLC0415

    threads = sorted({row["threads"] for row in rows})
    panels = len(threads) + bool(layers)
    figure, grid = pyplot.subplots(
        1, panels, figsize=(6 * panels, 9), layout="constrained", squeeze=False
    )
    axes = grid[0]
    for axis, count in zip(axes, threads, strict=False):
        _plot_peer_ratios(axis, [row for row in rows if row["threads"] == count])
        axis.set_title(f"{count} thread{'s' * (count > 1)}")
        axis.set_xlabel("time of the other engine / time of Ekiden")
    if layers:
        _plot_percent_of_limit(axes[-1], layers)
    # Two lines: the title of one panel must fit its width.
    figure.suptitle("Time of other engines, relative to Ekiden\n(right of 1: Ekiden is faster)")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    path.write_text(add_dark_style(path.read_text(encoding="utf-8")), encoding="utf-8")


def add_dark_style(svg: str) -> str:
    """Return a picture of matplotlib with a second set of colours for dark pages."""
    return svg.replace("</style>", f"{DARK_STYLE}</style>", 1)


def _plot_peer_ratios(axis: Axis, rows: Sequence[Record]) -> None:
    """Draw the peers' times relative to ours."""
    names = [row["model"] for row in rows]
    engines = list(dict.fromkeys(e for row in rows for e in row["engines"]))[1:]
    ratios_by_engine = {engine: [_time_ratio(row, engine) for row in rows] for engine in engines}
    ratios_measured = [
        ratio for ratios in ratios_by_engine.values() for ratio in ratios if ratio is not None
    ]
    ticks = ratio_ticks(min([1.0, *ratios_measured]), max([1.0, *ratios_measured]))
    axis.axvline(1, color="gray", linewidth=0.8)
    for number, (engine, mark) in enumerate(zip(engines, "os^v", strict=False)):
        ratios = [float("nan") if ratio is None else ratio for ratio in ratios_by_engine[engine]]
        (points,) = axis.plot(ratios, names, mark, label=engine)
        failed = [
            name
            for name, ratio in zip(names, ratios_by_engine[engine], strict=True)
            if ratio is None
        ]
        position = ticks[0] / 1.06 ** (number + 1)  # beside the scale, a column for each engine
        label = f"{engine} fails or differs"
        if failed:
            axis.plot([position] * len(failed), failed, "x", color=points.get_color(), label=label)
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(axis="x", linewidth=0.3)
    axis.invert_yaxis()
    axis.legend(fontsize="small")


def _time_ratio(row: Record, engine: str) -> float | None:
    """Return an engine's time relative to Ekiden's; None if it fails or its result differs."""
    figures = row["engines"].get(engine, {})
    return figures.get("speedup") if is_accurate(figures) else None


RATIO_TICKS = (0.1, 0.2, 0.5, 0.8, 1, 1.2, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return the ticks that enclose the lowest and highest ratio."""
    first = max((n for n, tick in enumerate(RATIO_TICKS) if tick <= low), default=0)
    last = min(
        (n for n, tick in enumerate(RATIO_TICKS) if tick >= high), default=len(RATIO_TICKS) - 1
    )
    return list(RATIO_TICKS[first : last + 1])


def _plot_percent_of_limit(axis: Axis, layers: Sequence[Record]) -> None:
    by_model: dict[str, list[Record]] = {}
    for row in layers:
        by_model.setdefault(row["model"], []).append(row)
    for model, mine in by_model.items():
        heavy = [row for row in mine if row["bound"] == "flops"]
        shares = sorted((100 * row["share"] for row in heavy), reverse=True)
        axis.plot(np.linspace(0, 100, len(shares)), shares, label=model, linewidth=1)
    axis.set_title("matrix products and convolutions: % of peak")
    axis.set_xlabel("% of the layers of a model")
    axis.set_ylim(0, 105)
    if 0 < len(by_model) <= 12:
        axis.legend(fontsize="small")


PAGE_TEMPLATE = """\
# Performance

Made by `python benchmarks/performance_report.py page` from measurements of one machine; do not
edit.

Models run as they come, without tuning. The engines take turns, each in a process of its own; the
time is the median over rounds, of a call from Python with NumPy arrays. What is over 1 in the last
column is faster than the best other engine that gives the same result."""


def main() -> None:
    """Run the requested command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("kernels")
    command.set_defaults(run=run_kernels_command)
    command.add_argument("models", nargs="*")
    command.add_argument("--dim", action="append", default=[])
    command.add_argument("--manifest")
    command.add_argument("--only", nargs="*")
    command.add_argument("--cache", default=str(Path.home() / ".cache" / "ekiden-bench"))
    command.add_argument("--threads", type=int, default=1)
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--top", type=int, default=10)
    command.add_argument("--json")
    command = commands.add_parser("page")
    command.set_defaults(run=run_page_command)
    command.add_argument("compared", nargs="+")
    command.add_argument("--kernels", nargs="*", default=[])
    command.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    command.add_argument("--note", default="", help="of the machine, and what else ran on it")
    command.add_argument("--name", default="performance", help="of the page: one a processor")
    command.add_argument("--out", default=str(Path(__file__).resolve().parent.parent / "docs"))
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
