"""Places to look between any two passes: print, dump to a folder, verify, stop after the n-th.

with PassContext(instruments=[DumpIR("passes"), Verify(relay.analysis.verify)]).scope():
    module = pipeline(module)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassInstrument, TimePasses
from ekiden.runtime.errors import EkidenError

__all__ = ["DumpIR", "PrintIR", "StopAfter", "TimePasses", "Verify"]


class PrintIR(PassInstrument):
    """Prints the module before and after the named passes; with no names, after every pass."""

    def __init__(
        self, before: Iterable[str] = (), after: Iterable[str] = (), file: TextIO | None = None
    ) -> None:
        """`file` defaults to the standard error stream at the time of printing."""
        self.before, self.after = frozenset(before), frozenset(after)
        self._is_all = not self.before and not self.after
        self._file = file

    def _print(self, when: str, module: IRModule, info: Pass) -> None:
        print(f"// {when} {info.name}\n{module}", file=self._file or sys.stderr)

    def run_before_pass(self, module: IRModule, info: Pass) -> None:
        """Print, if the pass is named."""
        if info.name in self.before:
            self._print("before", module, info)

    def run_after_pass(self, module: IRModule, info: Pass) -> None:
        """Print, if the pass is named or none is."""
        if self._is_all or info.name in self.after:
            self._print("after", module, info)


class DumpIR(PassInstrument):
    """Writes the module after each pass to `folder/03-FuseOps.relay`; a pass that changes nothing
    writes nothing.
    """

    def __init__(self, folder: str | Path, show_meta_data: bool = False) -> None:
        """The folder is made when it is missing."""
        self.folder = Path(folder)
        self._show_meta_data = show_meta_data
        self._count = 0
        self._last = ""

    def run_before_pass(self, module: IRModule, info: Pass) -> None:
        """Write what the first pass gets."""
        if self._count == 0 and not self._last:
            self._write("input", module)

    def run_after_pass(self, module: IRModule, info: Pass) -> None:
        """Write what a pass has made."""
        self._count += 1
        self._write(info.name, module)

    def _write(self, name: str, module: IRModule) -> None:
        text = module.astext(self._show_meta_data)
        if text != self._last:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{self._count:02}-{name}.relay").write_text(text, encoding="utf-8")
            self._last = text


class Verify(PassInstrument):
    """Calls a check after each pass; its error names the pass. The check of Relay is
    `relay.analysis.verify`.
    """

    def __init__(self, check: Callable[[IRModule], None]) -> None:
        """`check` raises an EkidenError for a module that is not legal."""
        self._check = check

    def run_after_pass(self, module: IRModule, info: Pass) -> None:
        """Check what a pass has made."""
        try:
            self._check(module)
        except EkidenError as error:
            error.add_note(f"after pass {info.name!r}")
            raise


class StopAfter(PassInstrument):
    """Runs the first `count` passes and skips the rest, to find by bisection the one that breaks a
    program.
    """

    def __init__(self, count: int) -> None:
        """`ran` holds the names of the passes that ran."""
        self.count = count
        self.ran: list[str] = []

    def should_run(self, module: IRModule, info: Pass) -> bool:
        """Whether there are passes left to run."""
        return len(self.ran) < self.count

    def run_after_pass(self, module: IRModule, info: Pass) -> None:
        """Count."""
        self.ran.append(info.name)
