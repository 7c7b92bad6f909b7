"""What is wrong with a program, as values that a user's function may show (TVM's names).

    override_renderer(lambda context: log.extend(d.message for d in context.diagnostics))

The errors that parsing and type inference raise are shown so before they are raised. Without a
function they are only raised: their messages have place, line and caret.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import field
from enum import IntEnum

from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass


class DiagnosticLevel(IntEnum):
    """How bad it is."""

    BUG = 10
    ERROR = 20
    WARNING = 30
    NOTE = 40
    HELP = 50


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that is wrong, and where: `span` is None where the place has none."""

    level: DiagnosticLevel
    span: object
    message: str


@dataclass(slots=True)
class DiagnosticContext:
    """The diagnostics of a module, and what shows them."""

    module: IRModule | None
    renderer: DiagnosticRenderer
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def emit(self, diagnostic: Diagnostic) -> None:
        """Add one."""
        self.diagnostics.append(diagnostic)

    def render(self) -> None:
        """Show all. Raises CompileError, of TVM's name DiagnosticError, if one is an error."""
        self.renderer.render(self)
        errors = [d for d in self.diagnostics if d.level <= DiagnosticLevel.ERROR]
        if errors:
            raise CompileError("\n".join(d.message for d in errors))


@dataclass(frozen=True, slots=True)
class DiagnosticRenderer:
    """Shows diagnostics by a function of their context."""

    render_func: Callable[[DiagnosticContext], object]

    def render(self, ctx: DiagnosticContext) -> None:
        """Show the diagnostics of a context."""
        self.render_func(ctx)


def _print(context: DiagnosticContext) -> None:
    for diagnostic in context.diagnostics:
        prefix = f"{diagnostic.span}: " if diagnostic.span is not None else ""
        print(f"{diagnostic.level.name.lower()}: {prefix}{diagnostic.message}", file=sys.stderr)


_overriding: list[DiagnosticRenderer] = []
_PRINTING = DiagnosticRenderer(_print)


def get_renderer() -> DiagnosticRenderer:
    """Return what shows diagnostics now: a user's function, or one that prints them."""
    return _overriding[-1] if _overriding else _PRINTING


def override_renderer(render_func: Callable[[DiagnosticContext], object] | None) -> None:
    """Let a function show diagnostics; None: nobody any more."""
    # A list and not a name that is bound anew: other modules hold the list.
    _overriding.clear()
    if render_func is not None:
        _overriding.append(DiagnosticRenderer(render_func))


def report(module: IRModule | None, error: CompileError) -> None:
    """Show an error, which its caller then raises, by a user's function if there is one."""
    if not _overriding:
        return
    context = DiagnosticContext(module, _overriding[-1])
    span = getattr(error, "span", None)
    context.emit(Diagnostic(DiagnosticLevel.ERROR, span, str(error)))
    context.renderer.render(context)


__all__ = [
    "Diagnostic",
    "DiagnosticContext",
    "DiagnosticLevel",
    "DiagnosticRenderer",
    "get_renderer",
    "override_renderer",
]
