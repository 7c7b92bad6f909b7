"""The progress bar over kernels. Imported only where one is shown, as it brings `rich`."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import Progress


class Bar:
    """A bar on standard error, from the first kernel that is done: its thread starts after the
    processes that compile have been forked.
    """

    def __init__(self) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("compiling kernels", total=None)

    def __call__(self, done: int, total: int, name: str) -> None:
        """Show that `done` of `total` kernels are compiled."""
        self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
