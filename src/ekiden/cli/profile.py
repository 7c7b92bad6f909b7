"""`ekiden profile FILE`"""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from ekiden.cli.options import (
    MODEL_FILE_HELP,
    add_dim_argument,
    add_remote_arguments,
    load_named_arrays,
    open_local_or_remote,
    parse_dim_sizes,
    positive_int,
)
from ekiden.compiler.sample_inputs import random_inputs
from ekiden.runtime.files import check_folder, write_text
from ekiden.runtime.profile.report import COLUMN_HEADERS, TEXT_COLUMNS, Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("file", help=MODEL_FILE_HELP)
    add_dim_argument(parser)
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=array.npy",
        help="the array of an input (default: random numbers)",
    )
    parser.add_argument("--calls", action="store_true", help="print one line per call, in order")
    parser.add_argument(
        "--top", type=positive_int, default=30, help="maximum number of lines of the table (30)"
    )
    parser.add_argument("--long", action="store_true", help="print the symbol names of kernels")
    parser.add_argument("--json", metavar="FILE", help="write the whole report as JSON")
    add_remote_arguments(parser)
    parser.add_argument("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev")


def run(options: argparse.Namespace) -> int:
    """Profile one run; print a table and write the requested files."""
    for path in filter(None, (options.json, options.trace)):
        check_folder(path)
    executable = open_local_or_remote(options)
    feed = random_inputs(executable, parse_dim_sizes(options.dim), load_named_arrays(options.input))
    report = executable.profile(*(feed[info.name] for info in executable.inputs))
    _print_report(report, not options.calls, options.top, options.long)
    for path, text in ((options.json, report.json()), (options.trace, report.trace())):
        if path is not None:
            write_text(path, text)
    return 0


def _print_report(report: Report, aggregate: bool, top: int, long_names: bool) -> None:
    table = Table(box=None, pad_edge=False)
    for index, head in enumerate(COLUMN_HEADERS):
        table.add_column(
            head, justify="left" if index in TEXT_COLUMNS else "right", overflow="fold"
        )
    rows = report.rows(aggregate)
    for row in rows[:top]:
        table.add_row(*report.cells(row, long_names))
    if len(rows) > top:
        table.add_row(f"and {len(rows) - top} more")
    table.add_row(*report.sums())
    # Redirected output has no terminal width: 200 columns keep rows on one line.
    console = Console(width=None if Console().is_terminal else 200, markup=False, highlight=False)
    if report.peak is not None:
        flops, bandwidth = report.peak.flops / 1e9, report.peak.bandwidth / 1e9
        threads = f"{report.threads} thread{'s' * (report.threads > 1)}"
        console.print(f"limits of {threads}: {flops:.0f} GFLOP/s, {bandwidth:.1f} GB/s")
    console.print(table)
    for line in report.regions:
        console.print(line)
