"""Dead code elimination: remove unused let bindings without effects.

    let %a = nn.relu(%x); let %b = nn.tanh(%x); %b   ->   let %b = nn.tanh(%x); %b

An effect is what a program could observe: writing, reading or creating a reference, drawing random
numbers, calling a function that may do so. An operator that refuses an index counts as pure: a
program that does not use the result may end without the error.
"""

from __future__ import annotations

from collections.abc import Iterable

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Constructor, Function, Let, RefCreate, RefRead, RefWrite, Var
from ekiden.relay.transform.language.let_chains import (
    LetBinding,
    LetChain,
    drop_bindings,
    iter_bindings,
    map_chains,
)
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    count_uses,
    evaluation_order,
    is_atom,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)


def _is_pure_call(call: Call) -> bool:
    """Return whether a call has no effect: stateless operators, constructors and primitive
    functions.
    """
    if isinstance(call.op, Op):
        return not call.op.definition.stateful
    return isinstance(call.op, Constructor) or (isinstance(call.op, Function) and is_atom(call.op))


def has_effect(expr: RelayExpr) -> bool:
    """Return whether an expression itself, apart from its children, may have a side effect."""
    if isinstance(expr, Call):
        return not _is_pure_call(expr)
    return isinstance(expr, (RefCreate, RefRead, RefWrite))


def is_pure(value: RelayExpr) -> bool:
    """Return whether a value has no effect, so that its evaluation may be omitted. A function value
    is pure whatever its body does.
    """
    # Making a closure has no effect, whatever its body does.
    if isinstance(value, Function):
        return True
    return not any(map(has_effect, evaluation_order(value)))


def _impure_expressions(order: Iterable[RelayExpr]) -> set[RelayExpr]:
    """Return those expressions of an evaluation order whose evaluation, with all below them, may
    have an effect.
    """
    impure: set[RelayExpr] = set()
    for expr in order:
        if has_effect(expr) or not impure.isdisjoint((*operands(expr), *bodies(expr))):
            impure.add(expr)
    return impure


def drop_dead_bindings(root: RelayExpr, ignore_impurity: bool = False) -> RelayExpr:
    """Drop every let, wherever it is nested, on whose variable neither the result nor an effect
    depends.

    Args:
        root: The expression.
        ignore_impurity: Whether values with effects are dropped too.
    """
    # Mark and sweep: each expression is visited once, however deep lets are nested in values.
    impure = set() if ignore_impurity else _impure_expressions(evaluation_order(root))
    unused: dict[Var, list[RelayExpr]] = {}
    """Values of the variables that nothing marked uses."""
    marked: set[RelayExpr] = set()
    stack = [root]
    while stack:
        expr = stack.pop()
        if expr in marked:
            continue
        marked.add(expr)
        if isinstance(expr, Var):
            stack += unused.pop(expr, ())
        elif isinstance(expr, Let):
            # `impure` includes functions for their bodies, but making a closure has no effect.
            is_effect = expr.value in impure and not isinstance(expr.value, Function)
            if is_effect or expr.var in marked:
                stack.append(expr.value)
            else:
                unused.setdefault(expr.var, []).append(expr.value)
            stack.append(expr.body)
        else:
            stack += (*operands(expr), *bodies(expr))
    return drop_bindings(root, unused.keys())


def _inline_single_uses(body: RelayExpr) -> RelayExpr:
    """Inline pure values that are used once, in the scope that binds them: a function or a branch
    would compute them elsewhere, or more often.
    """
    uses = count_uses(body)
    impure = _impure_expressions(evaluation_order(body))
    inlinable = {
        variable
        for variable, value in iter_bindings(body)
        if uses[variable] == 1 and value not in impure and not isinstance(value, Function)
    }

    def inline(chain: LetChain, is_function_body: bool) -> LetChain:
        """Inline the single uses of one chain."""
        assert chain.result is not None
        new: dict[RelayExpr, RelayExpr] = {}
        roots = [value for _, value in chain.bindings] + [chain.result]
        orders = [evaluation_order(root, into_bodies=False) for root in roots]
        used_here = {chain.result, *(o for order in orders for e in order for o in operands(e))}
        remaining: list[LetBinding] = []
        for (variable, value), order in zip(chain.bindings, orders, strict=False):
            placed = _replace_in_order(value, order, new)
            if variable in inlinable and variable in used_here:
                new[variable] = placed
            else:
                remaining.append((variable, placed))
        return LetChain(remaining, _replace_in_order(chain.result, orders[-1], new))

    return map_chains(body, inline)


def _replace_in_order(
    root: RelayExpr, order: Iterable[RelayExpr], new: dict[RelayExpr, RelayExpr]
) -> RelayExpr:
    """Return the root of an evaluation order with the replacements `new`, to which those of its
    expressions are added.
    """
    for expr in order:
        if expr not in new and (replaced := replace_children(expr, new)) is not expr:
            new[expr] = replaced
    return new.get(root, root)


def DeadCodeElimination(  # noqa: N802
    inline_once: bool = False, ignore_impurity: bool = False
) -> Pass:
    """Return a pass that eliminates dead code (TVM's DeadCodeElimination).

    Args:
        inline_once: Whether pure values that are used once replace their names.
        ignore_impurity: Whether unused bindings go whatever their effect.
    """

    def eliminate_dead_code(body: RelayExpr) -> RelayExpr:
        """Drop what nothing uses; inline what is used once."""
        live = drop_dead_bindings(body, ignore_impurity)
        return _inline_single_uses(live) if inline_once else live

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Eliminate dead code in each function."""
        return map_functions(module, lift_body_rewrite(eliminate_dead_code))

    return Pass("DeadCodeElimination", transform, 1)
