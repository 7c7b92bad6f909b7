"""Diagnostics through a user's renderer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ekiden as tvm
from ekiden import relay
from ekiden.ir.diagnostics import (
    Diagnostic,
    DiagnosticContext,
    DiagnosticLevel,
    get_renderer,
    override_renderer,
)
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError


@pytest.fixture
def seen() -> Iterator[list[Diagnostic]]:
    result: list[Diagnostic] = []
    override_renderer(lambda context: result.extend(context.diagnostics))
    yield result
    override_renderer(None)


def test_errors_of_parsing_are_shown_and_raised(seen: list[Diagnostic]) -> None:
    with pytest.raises(tvm.error.DiagnosticError) as raised:
        relay.fromtext("def @main( { 1 }")
    assert [d.message for d in seen] == [str(raised.value)]


def test_errors_of_scripts_are_shown_with_their_line(seen: list[Diagnostic]) -> None:
    text = "@T.prim_func\ndef f(a: T.handle):\n    A = T.match_buffer((16, 16))\n"
    with pytest.raises(tvm.error.DiagnosticError) as raised:
        tvm.tir.parse(text)
    (shown,) = seen
    assert shown.message == str(raised.value) and isinstance(shown.span, relay.Span)
    assert (shown.span.line, shown.span.column) == (3, 5)


def test_errors_of_types_are_shown_and_raised(seen: list[Diagnostic]) -> None:
    body = relay.add(relay.var("x", shape=(2,)), relay.var("y", shape=(3,)))
    with pytest.raises(tvm.error.DiagnosticError) as raised:
        relay.transform.InferType()(IRModule.from_expr(body))
    (shown,) = seen
    assert shown.level is DiagnosticLevel.ERROR and shown.message in str(raised.value)
    with pytest.raises(tvm.error.DiagnosticError):
        relay.fromtext('#[version = "0.0.5"]\ndef @main() { add(1f, 2) }')
    assert len(seen) == 2 and "add" in seen[1].message


def test_contexts_are_shown_by_their_renderer(capsys: pytest.CaptureFixture[str]) -> None:
    context = DiagnosticContext(None, get_renderer())
    context.emit(Diagnostic(DiagnosticLevel.HELP, None, "look there"))
    context.render()
    assert capsys.readouterr().err == "help: look there\n"
    context.emit(Diagnostic(DiagnosticLevel.ERROR, None, "wrong"))
    with pytest.raises(CompileError, match="^wrong$"):
        context.render()


def test_calls_without_a_place() -> None:
    body = relay.exp(relay.add(relay.const(1.0), relay.const(2.0)))
    with pytest.raises(CompileError, match="SpanCheck: @main: 2 calls without a span: add, exp"):
        relay.SpanCheck()(IRModule.from_expr(body))
    placed = relay.transform.AnnotateSpans()(IRModule.from_expr(body))
    assert relay.SpanCheck()(placed) is placed
