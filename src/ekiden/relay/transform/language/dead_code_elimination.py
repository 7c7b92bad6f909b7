"""Dead code elimination: remove unused let bindings without effects.

    let %a = nn.relu(%x); let %b = nn.tanh(%x); %b   ->   let %b = nn.tanh(%x); %b

An effect is what a program could observe: writing, reading or creating a reference, drawing random
numbers, calling a function that may do so. An operator that refuses an index counts as pure: a
program that does not use the result may end without the error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Constructor, Function, Let, RefCreate, RefRead, RefWrite, Var
from ekiden.relay.transform.language.let_chains import LetBinding, LetChain, map_chains
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    evaluation_order,
    is_atom,
    lift_body_rewrite,
    map_functions,
    operands,
    rewrite_graph,
)
from ekiden.relay.visitor import free_vars


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


def drop_unused_bindings(
    bindings: list[LetBinding], result: RelayExpr, ignore_impurity: bool = False
) -> list[LetBinding]:
    """Return the live bindings in order: those that a result depends on, and those with effects."""
    used = {e for e in evaluation_order(result) if isinstance(e, Var)}
    live: list[LetBinding] = []
    # Backwards, so that what only dropped bindings used is dropped in the same pass.
    for variable, value in reversed(bindings):
        if variable in used or not (ignore_impurity or is_pure(value)):
            live.append((variable, value))
            used |= {e for e in evaluation_order(value) if isinstance(e, Var)}
    return live[::-1]


def _drop_lets(root: RelayExpr, dead: Set[RelayExpr]) -> RelayExpr:
    """Replace the given lets by their bodies."""
    return rewrite_graph(
        root, lambda old, new: new.body if old in dead and isinstance(new, Let) else new
    )


def _drop_unused_operand_lets(root: RelayExpr, ignore_impurity: bool) -> RelayExpr:
    """Drop unused lets in operand position, outside of let chains: add({ let %a = 1; 3 }, 2) ->
    add(3, 2).
    """
    # Removing one let may leave the variables of others unused.
    while True:
        order = evaluation_order(root)
        used = {o for e in order for o in (*operands(e), *bodies(e)) if isinstance(o, Var)}
        unused = [e for e in order if isinstance(e, Let) and e.var not in used]
        dead = {let for let in unused if ignore_impurity or is_pure(let.value)}
        if not dead:
            return root
        root = _drop_lets(root, dead)


def _inline_single_uses(chain: LetChain) -> LetChain:
    """Inline pure values with a single use that no closure captures."""
    assert chain.result is not None
    uses: Counter[RelayExpr] = Counter()
    captured: set[Var] = set()
    for root in (chain.result, *(value for _, value in chain.bindings)):
        for expr in evaluation_order(root):
            uses.update(operands(expr))
            # A value captured by a function would be recomputed at each call.
            if bodies(expr):
                captured |= set(free_vars(expr))
    uses.update([chain.result])
    new: dict[RelayExpr, RelayExpr] = {}
    remaining: list[LetBinding] = []
    for variable, value in chain.bindings:
        placed = rewrite_graph(value, lambda old, rebuilt: new.get(old, rebuilt))
        once = uses[variable] == 1 and variable not in captured
        if once and is_pure(value) and not isinstance(value, Function):
            new[variable] = placed
        else:
            remaining.append((variable, placed))
    return LetChain(
        remaining,
        rewrite_graph(chain.result, lambda old, rebuilt_result: new.get(old, rebuilt_result)),
    )


def DeadCodeElimination(  # noqa: N802
    inline_once: bool = False, ignore_impurity: bool = False
) -> Pass:
    """Return a pass that eliminates dead code (TVM's DeadCodeElimination).

    Args:
        inline_once: Whether pure values that are used once replace their names.
        ignore_impurity: Whether unused bindings go whatever their effect.
    """

    def drop_dead_bindings(chain: LetChain, is_function_body: bool) -> LetChain:
        """Drop the dead bindings of a let chain.

        Inner chains come first, so that what only a dropped branch used is unused here.
        """
        assert chain.result is not None
        live = drop_unused_bindings(chain.bindings, chain.result, ignore_impurity)
        remaining = LetChain(live, chain.result)
        return _inline_single_uses(remaining) if inline_once else remaining

    def eliminate_dead_code(body: RelayExpr) -> RelayExpr:
        """Drop bindings and operands that nothing uses."""
        return _drop_unused_operand_lets(map_chains(body, drop_dead_bindings), ignore_impurity)

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Eliminate dead code in each function."""
        return map_functions(module, lift_body_rewrite(eliminate_dead_code))

    return Pass("DeadCodeElimination", transform, 1)
