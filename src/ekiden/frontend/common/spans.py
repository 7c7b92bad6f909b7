"""Source spans of imported expressions: the model node that an expression comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.op import Op
from ekiden.ir.span import Span
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
)
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.visitor import ExprMutator


def attach_span(roots: Sequence[Expr], span: Span) -> list[Expr]:
    """Attach a span and the inferred type to every new expression (one without a span)."""
    done: dict[int, Expr] = {}
    # Iterative: models are deeper than Python's recursion limit.
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        expr, is_ready = stack.pop()
        if id(expr) in done:
            continue
        if expr.span is not None or isinstance(expr, Op):
            done[id(expr)] = expr
        elif is_ready:
            done[id(expr)] = _respan(expr, [done[id(c)] for c in _operands(expr)], span)
        else:
            stack.append((expr, True))
            stack.extend((c, False) for c in _operands(expr))
    return [done[id(r)] for r in roots]


class _SpanRemover(ExprMutator):
    """Mutator that rebuilds every expression without its span, with its checked type."""

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        """Return `new` without a span."""
        if isinstance(new, (Op, GlobalVar, Constructor)) or new.span is None:
            return new
        bare = new.with_fields(span=None)
        checked = old.checked_type_or_none()
        if checked is not None:
            bare.set_checked_type(checked)
        return bare


def drop_spans(functions: Mapping[GlobalVar, BaseFunc]) -> dict[GlobalVar, BaseFunc]:
    """Return the functions of a module with no span in the Relay functions."""
    bare = dict(functions)
    for variable, function in functions.items():
        if isinstance(function, Function):
            body = _SpanRemover().visit(function)
            assert isinstance(body, Function), "a function stays one"
            bare[variable] = body
    return bare


def _operands(expr: Expr) -> Sequence[Expr]:
    """Return the operands of an expression that a converter made."""
    match expr:
        case Call():
            return expr.args
        case Tuple():
            return expr.fields
        case TupleGetItem():
            return (expr.tuple_value,)
    assert not isinstance(expr, Function), "converters make no functions"
    return ()


def _respan(expr: Expr, operands: Sequence[Expr], span: Span) -> Expr:
    """Rebuild an expression with new operands and a span, with its checked type."""
    checked = expr.checked_type_or_none()
    if isinstance(expr, Constant):
        checked = checked or infer_expr_type(expr)
    result = _rebuild(expr, operands, span)
    if checked is not None:
        result.set_checked_type(checked)
    return result


def _rebuild(expr: Expr, operands: Sequence[Expr], span: Span) -> Expr:
    """Rebuild an expression with new operands and a span."""
    match expr:
        case Call():
            return expr.with_fields(args=tuple(operands), span=span)
        case Tuple():
            return expr.with_fields(fields=tuple(operands), span=span)
        case TupleGetItem():
            return expr.with_fields(tuple_value=operands[0], span=span)
    return expr.with_fields(span=span)
