"""`ekiden tune MODEL -o records.json`"""

from __future__ import annotations

import argparse
import math
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from ekiden.cli.options import (
    add_rpc_session_arguments,
    check_rpc_options,
    parse_dim_sizes,
    parse_host_port,
    parse_shapes,
    positive_float,
    positive_int,
    thread_count,
)
from ekiden.compiler.progress import TuningBar
from ekiden.compiler.tune import SEARCH_STRATEGIES, prepare
from ekiden.compiler.tuning_report import report_html
from ekiden.runtime.files import check_folder, write_text
from ekiden.runtime.terminal import stderr_is_terminal
from ekiden.tune.measure import Measurer
from ekiden.tune.records import Records
from ekiden.tune.remote import Remote
from ekiden.tune.session import Progress, Session

ProgressDisplay: TypeAlias = AbstractContextManager[Progress | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "model", help="a model file or folder of a supported format (docs/frontends.md)"
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help="the file of records; a second run appends to it and continues",
    )
    parser.add_argument(
        "--trials",
        type=positive_int,
        default=200,
        help="number of candidates in all, including earlier runs (200)",
    )
    parser.add_argument(
        "--seconds", type=positive_float, default=math.inf, help="stop after this many seconds"
    )
    parser.add_argument(
        "--target", help="the target to compile for (default: this machine, or that of --remote)"
    )
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,H,W",
                        help="fix dimensions of an input")  # fmt: skip
    parser.add_argument("--dim", action="append", default=[], metavar="SYMBOL=4",
                        help="the size to tune for, of a dimension that is not fixed")  # fmt: skip
    parser.add_argument(
        "--threads", type=thread_count, default=1, help="number of threads of a kernel (1)"
    )
    parser.add_argument(
        "--cold", action="store_true", help="flush the processor's caches before each call"
    )
    parser.add_argument("--search", choices=tuple(SEARCH_STRATEGIES), default="evolution")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kernel", default="", help="only kernels whose name or node contains this text"
    )
    add_rpc_session_arguments(parser)
    parser.add_argument("--report", metavar="FILE.html", help="write a page with plots")


def run(options: argparse.Namespace) -> int:
    """Tune; Ctrl-C ends the run, with everything tried so far in the records."""
    if options.report:
        check_folder(options.report)
    session = prepare(
        options.model,
        options.target,
        dims=parse_dim_sizes(options.dim),
        shape=parse_shapes(options.shape) or None,
        kernels=options.kernel,
        records=Records.open(options.output),
        measurer=Measurer(
            threads=options.threads, cold=options.cold, remote=_parse_remote(options)
        ),
        search=options.search,
        seed=options.seed,
        progress=None,
    )
    ended = 0
    with _create_progress_display() as progress:
        session.progress = progress
        try:
            session.run(options.trials, options.seconds)
        except KeyboardInterrupt:
            ended = 130
    print_tuning_summary(session)
    if session.records.damaged:
        print(f"'{options.output}': lines that are no records: {session.records.damaged}")
    if ended:
        saved_text = (
            f"'{options.output}' has all that was tried" if session.trials else "nothing was tried"
        )
        print(f"ended; {saved_text}, and the next run goes on")
    if options.report:
        write_text(options.report, report_html(session))
    return ended


def _parse_remote(options: argparse.Namespace) -> Remote | None:
    """Return the RPC server that runs the candidates, or None for this machine. Raises InputError
    for its options without `--remote`.
    """
    if options.remote is not None:
        return Remote(*parse_host_port(options.remote), options.key, options.credentials)
    check_rpc_options(options)
    return None


def _create_progress_display() -> ProgressDisplay:
    return TuningBar() if stderr_is_terminal() else nullcontext(_print_progress)


def _print_progress(session: Session) -> None:
    """Print the progress of a session."""
    seconds_left = session.seconds_left
    time = f", {seconds_left:.0f} s left" if seconds_left < math.inf else ""
    print(f"{session.trials} of {session.budget} trials{time}", file=sys.stderr)


def print_tuning_summary(session: Session) -> None:
    """Print a table of the tuned kernels, and the speed-up of a run summed over all of them."""
    table = Table(box=None, pad_edge=False)
    for head in ("kernel", "node", "calls", "trials", "default us", "best us", "ratio", "decision"):
        is_text = head in ("kernel", "node", "decision")
        table.add_column(head, justify="left" if is_text else "right", overflow="fold")
    for state in sorted(session.states, key=lambda s: -s.weight):
        best = state.best
        is_measured = state.default_seconds < math.inf
        table.add_row(
            state.task.name, state.task.node, str(state.task.calls), str(state.trials),
            f"{state.default_seconds * 1e6:.1f}" if is_measured else "",
            f"{state.default_seconds * state.ratio * 1e6:.1f}" if is_measured else "",
            f"{state.ratio:.2f}" if is_measured else "",
            best.choice if best else state.end_reason or "default",
        )  # fmt: skip
    console = Console(width=None if Console().is_terminal else 200, markup=False, highlight=False)
    console.print(table)
    before = sum(s.weight for s in session.states)
    after = sum(s.weight * s.ratio for s in session.states)
    if before:
        console.print(f"these kernels: {before * 1e3:.3f} ms, tuned {after * 1e3:.3f} ms")
    failed = {k for s in session.states for k in s.failures_by_status}
    for status in sorted(failed):
        number = sum(s.failures_by_status.get(status, 0) for s in session.states)
        console.print(f"{number} {status}")
    first = next((s.first_failure for s in session.states if s.first_failure), "")
    if first:
        console.print(f"the first: {first}")
