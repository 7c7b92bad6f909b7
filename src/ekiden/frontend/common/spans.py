"""Spans: which node of a model an expression comes from."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.op import Op
from ekiden.ir.span import Span
from ekiden.relay.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem
from ekiden.relay.type_infer import infer_expr_type


def with_span(roots: Sequence[Expr], span: Span) -> list[Expr]:
    """Return the same expressions with every new node (one without a span) carrying `span` and its
    inferred type.
    """
    done: dict[int, Expr] = {}
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        each, ready = stack.pop()
        if id(each) in done:
            continue
        if each.span is not None or isinstance(each, Op):
            done[id(each)] = each
        elif ready:
            done[id(each)] = _respan(each, [done[id(c)] for c in _parts(each)], span)
        else:
            stack.append((each, True))
            stack.extend((c, False) for c in _parts(each))
    return [done[id(r)] for r in roots]


def _parts(each: Expr) -> Sequence[Expr]:
    match each:
        case Call():
            return each.args
        case Tuple():
            return each.fields
        case TupleGetItem():
            return (each.tuple_value,)
    assert not isinstance(each, Function), "converters make no functions"
    return ()


def _respan(each: Expr, parts: Sequence[Expr], span: Span) -> Expr:
    found = each.checked_type_or_none()
    if isinstance(each, Constant):
        found = found or infer_expr_type(each)
    made = _rebuild(each, parts, span)
    if found is not None:
        made.set_checked_type(found)
    return made


def _rebuild(each: Expr, parts: Sequence[Expr], span: Span) -> Expr:
    match each:
        case Call():
            return each.with_fields(args=tuple(parts), span=span)
        case Tuple():
            return each.with_fields(fields=tuple(parts), span=span)
        case TupleGetItem():
            return each.with_fields(tuple_value=parts[0], span=span)
    return each.with_fields(span=span)
