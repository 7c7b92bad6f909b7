"""Pass instruments: timing, printing, dumping, verification and bisection.

with PassContext(instruments=[DumpIR("passes"), Verify(relay.analysis.verify)]):
    module = pipeline(module)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TextIO

from ekiden.ir.ir_dump import DumpIR
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import PassContext, PassInfo, PassInstrument
from ekiden.runtime.errors import EkidenError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = [
    "DumpIR",
    "PassInstrument",
    "PassPrintingInstrument",
    "PassTimingInstrument",
    "PrintAfterAll",
    "PrintBeforeAll",
    "StopAfter",
    "Verify",
    "find_breaking_pass",
    "pass_instrument",
]


class PassPrintingInstrument(PassInstrument):
    """Pass instrument that prints the module before and after the named passes."""

    def __init__(
        self,
        print_before_pass_names: Iterable[str] = (),
        print_after_pass_names: Iterable[str] = (),
        file: TextIO | None = None,
    ) -> None:
        """Choose the passes to print before and after.

        `file` defaults to the standard error stream at the time of printing.
        """
        self.before = frozenset(print_before_pass_names)
        self.after = frozenset(print_after_pass_names)
        self._file = file

    def _print_module(self, when: str, module: IRModule, info: PassInfo) -> None:
        print(f"// {when} {info.name}\n{module}", file=self._file or sys.stderr)

    def run_before_pass(self, module: IRModule, info: PassInfo) -> None:
        """Print the module if the pass is in `before`."""
        if info.name in self.before:
            self._print_module("before", module, info)

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Print the module if the pass is in `after`."""
        if info.name in self.after:
            self._print_module("after", module, info)


class PrintBeforeAll(PassPrintingInstrument):
    """Pass instrument that prints the module before every pass."""

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__(file=file)

    def run_before_pass(self, module: IRModule, info: PassInfo) -> None:
        """Print the module unless the pass is a sequence."""
        if not info.is_sequence:
            self._print_module("before", module, info)


class PrintAfterAll(PassPrintingInstrument):
    """Pass instrument that prints the module after every pass."""

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__(file=file)

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Print the module unless the pass is a sequence."""
        if not info.is_sequence:
            self._print_module("after", module, info)


class Verify(PassInstrument):
    """Pass instrument that runs a module verifier after each pass and names the pass in its errors.
    The check of Relay is `relay.analysis.verify`.
    """

    def __init__(self, check: Callable[[IRModule], None]) -> None:
        """Set the check, which raises an EkidenError for a module that is not legal."""
        self._check = check

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Verify the module that the pass returned."""
        if info.is_sequence:
            return
        try:
            self._check(module)
        except EkidenError as error:
            error.add_note(f"after pass {info.name!r}")
            raise


class StopAfter(PassInstrument):
    """Pass instrument that runs the first `count` passes and skips the rest.

    `ran` holds the names of the passes that ran, `find_breaking_pass` bisects with it.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.ran: list[str] = []

    def should_run(self, module: IRModule, info: PassInfo) -> bool:
        """Return whether fewer than `count` passes have run."""
        return info.is_sequence or len(self.ran) < self.count

    def run_before_pass(self, module: IRModule, info: PassInfo) -> None:
        """Record the pass name."""
        if not info.is_sequence:
            self.ran.append(info.name)


def find_breaking_pass(
    pipeline: Callable[[IRModule], IRModule],
    module: IRModule,
    is_right: Callable[[IRModule], bool],
) -> tuple[int, str] | None:
    """Return (index, name) of the first pass after which `is_right` fails, by bisection.

    None when the whole pipeline keeps the module right. Bisects: runs the pipeline once for each
    halving, and assumes that what is broken stays broken. An EkidenError of the pipeline counts as
    broken. Raises EkidenError when the module is not right before the first pass.
    """

    def run_prefix(count: int) -> tuple[bool, list[str]]:
        """Run the first `count` passes; return whether the module is right, and the passes that
        ran.
        """
        stop = StopAfter(count)
        try:
            # A context of its own: instruments around it would see each trial as a compilation.
            with PassContext(opt_level=PassContext.current().opt_level, instruments=[stop]):
                return is_right(pipeline(module)), stop.ran
        except EkidenError:
            return False, stop.ran

    right, names = run_prefix(sys.maxsize)
    if right:
        return None
    if not run_prefix(0)[0]:
        raise EkidenError("find_breaking_pass: the module is not right before the first pass")
    # Right after `good` passes, not right after `bad`: they close in on the pass between them.
    good, bad = 0, len(names)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if run_prefix(middle)[0] else (good, middle)
    return bad - 1, names[bad - 1]


@dataclass(slots=True)
class PassProfile:
    """Duration in seconds of one run of a pass, nested passes included."""

    name: str
    seconds: float = 0.0
    children: list[PassProfile] = field(default_factory=list)

    @property
    def self_seconds(self) -> float:
        """Return the duration in seconds without the nested passes."""
        return self.seconds - sum(child.seconds for child in self.children)


class PassTimingInstrument(PassInstrument):
    """Pass instrument that times passes and phases as a call tree.

    `render()` after (or within) the context gives it as text, `seconds` the sum by name.
    """

    def __init__(self) -> None:
        self.root = PassProfile("all")
        self._open: list[tuple[PassProfile, float]] = []

    def run_before_pass(self, module: IRModule, info: PassInfo) -> None:
        """Start the pass's timer."""
        self.enter_phase(info.name)

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Stop the pass's timer, and drop passes that an exception left open."""
        self.exit_phase(info.name)

    def enter_phase(self, name: str) -> None:
        """Start the phase's timer."""
        profile = PassProfile(name)
        (self._open[-1][0] if self._open else self.root).children.append(profile)
        self._open.append((profile, time.perf_counter()))

    def exit_phase(self, name: str) -> None:
        """Stop the phase's timer, and those nested in it that an exception left open."""
        while self._open:
            profile, started = self._open.pop()
            # Phases above the named one were left open by an exception, and end now too.
            profile.seconds = time.perf_counter() - started
            if profile.name == name:
                return

    @property
    def seconds(self) -> dict[str, float]:
        """Return {pass name: total own seconds}."""
        total: dict[str, float] = {}
        stack = list(self.root.children)
        while stack:
            profile = stack.pop()
            total[profile.name] = total.get(profile.name, 0.0) + profile.self_seconds
            stack.extend(profile.children)
        return total

    def render(self) -> str:
        """Return the call tree as text, one indented line per pass: milliseconds, own milliseconds,
        share of the total.
        """
        total_seconds = sum(child.seconds for child in self.root.children) or 1.0
        lines = []
        stack = [(child, 0) for child in reversed(self.root.children)]
        while stack:
            profile, depth = stack.pop()
            lines.append(
                f"{'  ' * depth}{profile.name}: {profile.seconds * 1e3:.3f} ms "
                f"[{profile.self_seconds * 1e3:.3f} own] ({profile.seconds / total_seconds:.1%})"
            )
            stack.extend((child, depth + 1) for child in reversed(profile.children))
        return "\n".join(lines)


INSTRUMENT_HOOKS = (
    "enter_pass_ctx",
    "exit_pass_ctx",
    "should_run",
    "run_before_pass",
    "run_after_pass",
    "run_failed",
    "enter_phase",
    "exit_phase",
    "see_product",
    "compiles_cached",
    "dumps_compilation",
    "for_worker",
    "take_seen",
    "add_seen",
)


def pass_instrument(cls: type) -> type:
    """Class decorator that makes a class with some of PassInstrument's hooks a pass instrument.

    Its constructor is its own; it need not derive from PassInstrument.
    """
    # Only what the class lacks: hooks of PassInstrument do nothing.
    missing = {
        name: getattr(PassInstrument, name) for name in INSTRUMENT_HOOKS if not hasattr(cls, name)
    }
    return type(cls.__name__, (cls, PassInstrument), {"__doc__": cls.__doc__, **missing})
