"""Give every intermediate value a name, in the order of evaluation.

    add(nn.relu(%x), %y)   ->   let %v0 = nn.relu(%x); let %v1 = add(%v0, %y); %v1

Constants, names and primitive functions stay in place; an expression shared by two scopes is bound in the innermost scope around
both.
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, module_pass
from ekiden.relay.expr import Constant, Let, Var
from ekiden.relay.transform.chains import Chain
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import (
    Scope,
    bodies,
    find_scopes,
    map_functions,
    on_body,
    operands,
    with_children,
)

Names = dict[RelayExpr, RelayExpr]


def to_a_normal_form(root: RelayExpr) -> RelayExpr:
    """A-normal form of an expression. Needs checked types."""
    scopes = find_scopes(root)
    names = _name_all(scopes)
    chains: dict[RelayExpr, Chain] = {}
    for scope in reversed(scopes):  # inner scopes first: what opens a scope needs its finished body
        chains[scope.result] = _bind(scope, names, chains)
    return chains[root].wrap()


def _name_all(scopes: list[Scope]) -> Names:
    names: Names = {}
    lets: list[Let] = []
    for scope in scopes:
        for expr in scope.nodes:
            if isinstance(expr, Let):
                lets.append(expr)
            elif not isinstance(expr, Constant):
                names[expr] = variable = Var(f"v{len(names)}", expr.checked_type)
                variable.set_checked_type(expr.checked_type)
    for expr in lets:
        at: RelayExpr = expr
        while isinstance(at, Let):
            at = at.body
        names[expr] = names.get(at, at)
    return names


def _bind(scope: Scope, names: Names, chains: dict[RelayExpr, Chain]) -> Chain:
    chain = Chain(result=names.get(scope.result, scope.result))
    for expr in scope.nodes:
        if isinstance(expr, Let):
            chain.bindings.append((expr.var, names.get(expr.value, expr.value)))
            chain.bindings.extend(chains[expr.body].bindings)
        elif expr in names:
            inside = {o: names.get(o, o) for o in operands(expr)} | {
                b: chains[b].wrap() for b in bodies(expr)
            }
            variable = names[expr]
            assert isinstance(variable, Var)
            chain.bindings.append((variable, with_children(expr, inside)))
    return chain


@module_pass("ToANormalForm", opt_level=1, required=(InferType(),))
def _to_a_normal_form(module: IRModule) -> IRModule:
    return map_functions(module, on_body(to_a_normal_form))


def ToANormalForm() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _to_a_normal_form
