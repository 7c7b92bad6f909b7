"""Conversion to A-normal form: a let binds every intermediate value in order of evaluation.

    add(nn.relu(%x), %y)   ->   let %v0 = nn.relu(%x); let %v1 = add(%v0, %y); %v1

Constants, names and primitive functions stay in place; an expression shared by two scopes is bound
in the innermost scope around both.

After: a function body, branch or right side is a chain of lets that ends in an atom, and operands
are atoms. Sharing is by variables, so that from here on a pass sees a list of steps in the order in
which they run (`let_chains.py`), and effects are ordered. A value shared by two branches is
computed before the If even if neither needs it at run time: pure, so it costs time and never
changes a result. Linear; nested lets are copied once, from the inner list to the outer one.
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.expr import Let, Var
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.let_chains import LetBinding, LetChain
from ekiden.relay.transform.language.scope_tree import (
    RelayScope,
    find_scopes,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)

VarByExpr = dict[RelayExpr, RelayExpr]


def to_a_normal_form(root: RelayExpr) -> RelayExpr:
    """Convert an expression to A-normal form. Needs checked types."""
    scopes = find_scopes(root)
    names = _assign_names(scopes)
    chains: dict[RelayScope, LetChain] = {}
    for scope in reversed(scopes):  # inner scopes first: what opens a scope needs its finished body
        chains[scope] = _scope_bindings(scope, names, chains)
    return _wrap_reversed_chain(chains[scopes[0]])


def _assign_names(scopes: list[RelayScope]) -> VarByExpr:
    """Assign a variable to each expression; a value that a `Let` binds in its own scope keeps that
    variable.
    """
    names: VarByExpr = {}
    lets: list[Let] = []
    for scope in scopes:
        scope_lets = [e for e in scope.nodes if isinstance(e, Let)]
        let_vars = {e.value: e.var for e in reversed(scope_lets) if not isinstance(e.value, Let)}
        for expr in scope.nodes:
            if not isinstance(expr, Let):
                names[expr] = let_vars.get(expr) or _fresh_var(len(names), expr)
        lets.extend(scope_lets)
    for let in lets:
        _name_let(let, names)
    return names


def _name_let(let: Let, names: VarByExpr) -> None:
    """Assign to a `Let` the variable of its body's value."""
    chain: list[Let] = []
    current: RelayExpr = let
    while isinstance(current, Let) and current not in names:
        chain.append(current)
        current = current.body
    name = names.get(current, current)
    names.update((let_expr, name) for let_expr in chain)


def _fresh_var(number: int, expr: RelayExpr) -> Var:
    variable = Var(f"v{number}")
    variable.set_checked_type(expr.checked_type)
    return variable


def _scope_bindings(
    scope: RelayScope, names: VarByExpr, chains: dict[RelayScope, LetChain]
) -> LetChain:
    """Return the bindings of a scope, in reverse order.

    They are gathered from the last to the first, in the list of the `Let` that ends the scope if
    one does: then a chain of lets is copied once.
    """
    nodes = scope.nodes[::-1]
    backwards: list[LetBinding] = []
    if nodes and isinstance(let := nodes[0], Let):
        # Extending the inner list in place keeps a chain of n lets linear.
        backwards = chains[scope.child_scopes[let][0]].bindings
        backwards.extend(_alias_binding(let, names))
        nodes = nodes[1:]
    for expr in nodes:
        if isinstance(expr, Let):
            backwards.extend(chains[scope.child_scopes[expr][0]].bindings)
            backwards.extend(_alias_binding(expr, names))
        else:
            inside = {o: names.get(o, o) for o in operands(expr)}
            inside |= {
                s.result: _wrap_reversed_chain(chains[s]) for s in scope.child_scopes.get(expr, ())
            }
            variable = names[expr]
            assert isinstance(variable, Var)
            backwards.append((variable, replace_children(expr, inside)))
    return LetChain(backwards, names.get(scope.result, scope.result))


def _alias_binding(let: Let, names: VarByExpr) -> list[LetBinding]:
    """Return the alias binding of a `Let`, or none if its value already has that variable."""
    value = names.get(let.value, let.value)
    return [] if value is let.var else [(let.var, value)]


def _wrap_reversed_chain(backwards: LetChain) -> RelayExpr:
    return LetChain(backwards.bindings[::-1], backwards.result).wrap()


@module_pass(name="ToANormalForm", opt_level=1, required=(InferType(),))
def _to_a_normal_form(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lift_body_rewrite(to_a_normal_form))


def ToANormalForm() -> Pass:  # noqa: N802
    """Return a pass that converts functions to A-normal form (TVM's ToANormalForm)."""
    return _to_a_normal_form
