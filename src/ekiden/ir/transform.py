"""Passes.

Small functions from module to module with a name, run under a PassContext that instruments can
watch.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ekiden.ir.module import IRModule
from ekiden.runtime.errors import EkidenError


class PassInstrument:
    """Watches passes run. Override what is needed; `should_run` False skips the pass."""

    def should_run(self, module: IRModule, info: Pass) -> bool:
        """Whether to run the pass at all."""
        return True

    def run_before_pass(self, module: IRModule, info: Pass) -> None:
        """Called with the module a pass is about to see."""

    def run_after_pass(self, module: IRModule, info: Pass) -> None:
        """Called with the module a pass has made."""


@dataclass(frozen=True, slots=True)
class PassContext:
    """Options of a compilation: opt level, config by key, instruments, passes by name.

    `with PassContext(opt_level=3):` makes it the current one of this thread of control.
    """

    opt_level: int = 3
    config: Mapping[str, object] = field(default_factory=dict)
    instruments: Sequence[PassInstrument] = ()
    required_pass: frozenset[str] = frozenset()
    disabled_pass: frozenset[str] = frozenset()

    @staticmethod
    def current() -> PassContext:
        """The innermost context, or a default one."""
        return _CURRENT.get()

    @contextmanager
    def scope(self) -> Iterator[PassContext]:
        """Make this the current context for a `with` block."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)

    def enables(self, info: Pass) -> bool:
        """Whether the opt level and the lists let a pass run."""
        if info.name in self.disabled_pass:
            return False
        return info.name in self.required_pass or info.opt_level <= self.opt_level


_DEFAULT = PassContext()
_CURRENT: contextvars.ContextVar[PassContext] = contextvars.ContextVar(
    "PassContext", default=_DEFAULT
)


@dataclass(frozen=True, slots=True)
class Pass:
    """A named module transformation.

    Calling it runs it under the current context, with instruments around.
    """

    name: str
    transform: Callable[[IRModule], IRModule]
    opt_level: int = 0
    required: tuple[Pass, ...] = ()

    def __call__(self, module: IRModule) -> IRModule:
        """Run the pass; the module itself where the context leaves it out."""
        context = PassContext.current()
        if not context.enables(self):
            return module
        if not all(i.should_run(module, self) for i in context.instruments):
            return module
        for needed in self.required:
            module = needed(module)
        for instrument in context.instruments:
            instrument.run_before_pass(module, self)
        try:
            result = self.transform(module)
        except EkidenError as error:
            error.add_note(f"in pass {self.name!r}")
            raise
        for instrument in context.instruments:
            instrument.run_after_pass(result, self)
        return result


@dataclass(frozen=True, slots=True)
class Sequential:
    """Passes one after the other; itself called like a pass."""

    passes: Sequence[Pass | Sequential]
    name: str = "sequential"

    def __call__(self, module: IRModule) -> IRModule:
        """Run all passes in order."""
        for each in self.passes:
            module = each(module)
        return module


def module_pass(
    name: str, opt_level: int = 0, required: Sequence[Pass] = ()
) -> Callable[[Callable[[IRModule], IRModule]], Pass]:
    """Decorator: a function from module to module becomes a Pass."""
    return lambda transform: Pass(name, transform, opt_level, tuple(required))


class TimePasses(PassInstrument):
    """Adds up the seconds spent in each pass, in `seconds`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started: list[float] = []

    def run_before_pass(self, module: IRModule, info: Pass) -> None:
        """Start the clock."""
        self._started.append(time.perf_counter())

    def run_after_pass(self, module: IRModule, info: Pass) -> None:
        """Stop it."""
        spent = time.perf_counter() - self._started.pop()
        self.seconds[info.name] = self.seconds.get(info.name, 0.0) + spent
