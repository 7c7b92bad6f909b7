"""Diagnostics of a program that a user's renderer may display (TVM's names).

    override_renderer(lambda context: log.extend(d.message for d in context.diagnostics))

The errors that type inference and the parsers of Relay and scripts raise are shown so before they
are raised. Without a function they are only raised: their messages have place, line and caret.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from enum import IntEnum

from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass


class DiagnosticLevel(IntEnum):
    """Severity of a diagnostic."""

    BUG = 10
    ERROR = 20
    WARNING = 30
    NOTE = 40
    HELP = 50


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One diagnostic message with its level and source span (None if unknown)."""

    level: DiagnosticLevel
    span: object
    message: str


@dataclass(slots=True)
class DiagnosticContext:
    """Diagnostics collected for a module, with their renderer."""

    module: IRModule | None
    renderer: DiagnosticRenderer
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def emit(self, diagnostic: Diagnostic) -> None:
        """Append a diagnostic."""
        self.diagnostics.append(diagnostic)

    def render(self) -> None:
        """Render all diagnostics. Raises CompileError, of TVM's name DiagnosticError, if one is an
        error.
        """
        self.renderer.render(self)
        # Levels count down in severity: ERROR and BUG are at most ERROR.
        errors = [d for d in self.diagnostics if d.level <= DiagnosticLevel.ERROR]
        if errors:
            raise CompileError("\n".join(d.message for d in errors))


@dataclass(frozen=True, slots=True)
class DiagnosticRenderer:
    """Renderer of diagnostics: a function of their context."""

    render_func: Callable[[DiagnosticContext], object]

    def render(self, ctx: DiagnosticContext) -> None:
        """Render the diagnostics of the context."""
        self.render_func(ctx)


def _print_diagnostics(context: DiagnosticContext) -> None:
    for diagnostic in context.diagnostics:
        prefix = f"{diagnostic.span}: " if diagnostic.span is not None else ""
        print(f"{diagnostic.level.name.lower()}: {prefix}{diagnostic.message}", file=sys.stderr)


_override_stack: list[DiagnosticRenderer] = []
_DEFAULT_RENDERER = DiagnosticRenderer(_print_diagnostics)


def get_renderer() -> DiagnosticRenderer:
    """Return the active renderer: the user's, or the default that prints to stderr."""
    return _override_stack[-1] if _override_stack else _DEFAULT_RENDERER


def override_renderer(render_func: Callable[[DiagnosticContext], object] | None) -> None:
    """Install a user's render function, or restore the default with None."""
    # A list and not a name that is bound anew: other modules hold the list.
    _override_stack.clear()
    if render_func is not None:
        _override_stack.append(DiagnosticRenderer(render_func))


def report_error(module: IRModule | None, error: CompileError) -> None:
    """Render an error that the caller is about to raise, if the user has installed a renderer."""
    if not _override_stack:
        return
    context = DiagnosticContext(module, _override_stack[-1])
    # Only errors of parsers and type inference know their place.
    span = getattr(error, "span", None)
    context.emit(Diagnostic(DiagnosticLevel.ERROR, span, str(error)))
    context.renderer.render(context)


@contextmanager
def reports_errors() -> Iterator[None]:
    """Render an error of the enclosed code, if the user has installed a renderer, and raise it."""
    try:
        yield
    except CompileError as error:
        report_error(None, error)
        raise


__all__ = [
    "Diagnostic",
    "DiagnosticContext",
    "DiagnosticLevel",
    "DiagnosticRenderer",
    "get_renderer",
    "override_renderer",
    "reports_errors",
]
