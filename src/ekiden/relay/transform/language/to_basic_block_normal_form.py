"""Conversion to basic-block normal form: lets bind values shared between scopes; the rest stays a
graph.

    if (%c) { add(%0, %0) } else { %0 }  with %0 = exp(%x)
    ->  let %v0 = exp(%x); if (%c) { add(%v0, %v0) } else { %v0 }

Each branch is then a basic block: a graph over names bound outside of it.
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.expr import Var
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.let_chains import LetBinding, build_lets
from ekiden.relay.transform.language.scope_tree import (
    RelayScope,
    bodies,
    find_scopes,
    is_scoped,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)


def to_basic_block_normal_form(root: RelayExpr) -> RelayExpr:
    """Convert an expression to basic-block normal form. Needs checked types."""
    scopes = find_scopes(root)
    shared = _shared_across_scopes(scopes)
    names: dict[RelayExpr, RelayExpr] = {}
    for number, expr in enumerate(shared):
        names[expr] = variable = Var(f"v{number}")
        variable.set_checked_type(expr.checked_type)
    done: dict[RelayExpr, RelayExpr] = {}
    # Inner scopes first: an expression that opens one contains its finished result.
    for scope in reversed(scopes):
        done[scope.result] = _finish_scope(scope, names, done)
    return done[root]


def _shared_across_scopes(scopes: list[RelayScope]) -> list[RelayExpr]:
    """Return the expressions that a nested scope uses or returns."""
    where = {expr: scope for scope in scopes for expr in scope.nodes}
    shared: dict[RelayExpr, None] = {}
    for scope in scopes:
        uses = [o for e in scope.nodes for o in operands(e)]
        for expr in (*uses, scope.result):
            if is_scoped(expr) and where[expr] is not scope:
                shared[expr] = None
    return list(shared)


def _finish_scope(
    scope: RelayScope, names: dict[RelayExpr, RelayExpr], done: dict[RelayExpr, RelayExpr]
) -> RelayExpr:
    """Return a scope's result as a graph, with lets in front for values that nested scopes use."""
    inside: dict[RelayExpr, RelayExpr] = {}
    bindings: list[LetBinding] = []
    for expr in scope.nodes:
        new = {o: names.get(o, inside.get(o, o)) for o in operands(expr)}
        new |= {body: done.get(body, body) for body in bodies(expr)}
        inside[expr] = replace_children(expr, new)
        name = names.get(expr)
        if isinstance(name, Var):
            bindings.append((name, inside[expr]))
    result = scope.result
    return build_lets(bindings, names.get(result, inside.get(result, result)))


@module_pass(name="ToBasicBlockNormalForm", opt_level=1, required=(InferType(),))
def _to_basic_block_normal_form(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lift_body_rewrite(to_basic_block_normal_form))


def ToBasicBlockNormalForm() -> Pass:  # noqa: N802
    """Return a pass that converts functions to basic-block normal form (TVM's
    ToBasicBlockNormalForm).
    """
    return _to_basic_block_normal_form
