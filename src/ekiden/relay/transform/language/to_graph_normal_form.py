"""Conversion to graph normal form: inline let-bound values, the inverse of A-normal form.

    let %a = nn.relu(%x); add(%a, %a)   ->   %0 = nn.relu(%x); add(%0, %0)

A let stays where its value has an effect, refers to itself, or is used inside of a function value,
which would compute it at each call.
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.expr import Let
from ekiden.relay.transform.language.dead_code_elimination import is_pure
from ekiden.relay.transform.language.scope_tree import (
    captured_vars,
    lift_body_rewrite,
    map_functions,
    replace_children,
)
from ekiden.relay.visitor import children, post_order


def to_graph_normal_form(root: RelayExpr) -> RelayExpr:
    """Convert an expression to graph normal form. Shared values stay shared; iterative."""
    order = post_order(root, into_functions=True)
    # A captured value would be computed at each call of the function.
    captured = captured_vars(root)
    dropped: dict[RelayExpr, RelayExpr] = {
        e.var: e.value
        for e in order
        if isinstance(e, Let) and e.var not in captured and is_pure(e.value)
    }
    new: dict[RelayExpr, RelayExpr] = {}
    for expr in order:
        if isinstance(expr, Let) and expr.var in dropped:
            new[expr] = _resolve_value(expr.body, dropped, new)
        else:
            inside = {c: _resolve_value(c, dropped, new) for c in children(expr)}
            new[expr] = replace_children(expr, inside)
    return _resolve_value(root, dropped, new)


def _resolve_value(
    expr: RelayExpr, dropped: dict[RelayExpr, RelayExpr], new: dict[RelayExpr, RelayExpr]
) -> RelayExpr:
    """Return the rewritten expression, looking through inlined variables."""
    while expr in dropped:
        expr = dropped[expr]
    return new.get(expr, expr)


@module_pass(name="ToGraphNormalForm", opt_level=1)
def _to_graph_normal_form(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lift_body_rewrite(to_graph_normal_form))


def ToGraphNormalForm() -> Pass:  # noqa: N802
    """Return a pass that converts functions to graph normal form (TVM's ToGraphNormalForm)."""
    return _to_graph_normal_form
