"""Progress bars of compilation and tuning. Imported only where one is shown, as it brings
`rich`.
"""

from __future__ import annotations

import math
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress import Progress
from rich.table import Table

from ekiden.compiler.machine_peak import measure_peak
from ekiden.runtime import num_threads

if TYPE_CHECKING:
    from ekiden.tune.session import Session

MAX_SHOWN_KERNELS = 20
"""Maximum kernels in the tuner's table."""


class CompileBar:
    """Progress bar of compiled kernels on standard error. It starts at the first compiled kernel:
    its thread must start after the worker processes have been forked.
    """

    def __init__(self) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("compiling kernels", total=None)

    def __call__(self, done: int, total: int, name: str) -> None:
        """Show that `done` of `total` kernels are compiled."""
        self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> CompileBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()


class TuningBar:
    """Progress display of a tuning run: all trials, and each kernel with its best time."""

    def __init__(self) -> None:
        self._live = Live(console=Console(stderr=True), auto_refresh=False)
        self._peak: float | None = None

    def __call__(self, session: Session) -> None:
        """Show the state of a tuning session."""
        if self._peak is None:
            self._peak = measure_peak().flops / num_threads() * session.measurer.threads
        seconds_left = session.seconds_left
        time = f", {seconds_left:.0f} s left" if seconds_left < math.inf else ""
        title = f"{session.trials} of {session.budget} trials{time}"
        table = Table(title=title, box=None, pad_edge=False)
        for head in ("kernel", "trials", "best us", "of the default", "of the peak"):
            table.add_column(head, justify="left" if head == "kernel" else "right")
        for state in sorted(session.states, key=lambda s: -s.weight)[:MAX_SHOWN_KERNELS]:
            seconds = state.default_seconds * state.ratio
            share = state.task.flops / seconds / self._peak
            is_measured = state.default_seconds < math.inf
            table.add_row(
                state.task.name[:48], str(state.trials),
                f"{seconds * 1e6:.1f}" if is_measured else "",
                f"{state.ratio:.2f}" if is_measured else "",
                f"{share:.0%}" if is_measured and state.task.flops else "",
            )  # fmt: skip
        self._live.update(table, refresh=True)

    def __enter__(self) -> TuningBar:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
