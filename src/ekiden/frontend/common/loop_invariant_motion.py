"""Loop-invariant code motion at import: values that a loop body captures are computed once, before
the loop.

    %0 = topk(%x);  let %loop = fn (%i, %v) { ...; %loop(%i + 1, add(%v, %0.0)) }; ...
->  let %captured = topk(%x).0;  let %loop = fn (%i, %v) { ...; add(%v, %captured) ... }; ...

Graphs have no places: an expression is evaluated in the innermost scope around its uses, which is
the body where nothing else uses it. The importer knows more: what existed before the loop was begun
does not depend on its iterations, and the model computes it once, also where only a branch inside
of the body reads it or where it may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekiden.relay.expr import Call, Constant, Expr, Function, Var
from ekiden.relay.transform.language.scope_tree import is_atom, replace_children
from ekiden.relay.visitor import children


def bind_captured_exprs(
    function: Function,
    values: Mapping[Var, Expr],
    is_captured: Callable[[Expr], bool],
    name: Callable[[Expr], Expr],
) -> Function:
    """Replace each captured expression of a function by `name(expr)`, and each variable in `values`
    likewise.

    Only what is new in the function is walked, not what captured expressions are made of;
    iteratively.
    """
    new: dict[Expr, Expr] = {var: name(expr) for var, expr in values.items()}
    # Iterative: models are deeper than Python's recursion limit.
    stack: list[tuple[Expr, bool]] = [(function, False)]
    while stack:
        expr, is_ready = stack.pop()
        if expr in new:
            continue
        # Capturing these would lengthen the closure without saving work.
        if is_atom(expr) or isinstance(expr, Constant) or _is_cheap_fill(expr):
            new[expr] = expr
        elif is_captured(expr):
            new[expr] = name(expr)
        elif is_ready:
            new[expr] = replace_children(expr, new)
        else:
            stack.append((expr, True))
            stack.extend((child, False) for child in children(expr))
    rebuilt = new[function]
    assert isinstance(rebuilt, Function)
    return rebuilt


def _is_cheap_fill(expr: Expr) -> bool:
    """Return whether an expression is a fill of constants, which costs no more than reading its
    result.
    """
    return (
        isinstance(expr, Call)
        and not is_atom(expr)
        and getattr(getattr(expr.op, "definition", None), "fills", None) is not None
        and all(isinstance(arg, Constant) for arg in expr.args)
    )
