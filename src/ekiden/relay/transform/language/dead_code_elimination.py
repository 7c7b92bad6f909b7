"""Dead code elimination: removal of bindings that nothing uses and that have no effect.

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
from ekiden.relay.transform.language.chains import Binding, Chain, map_chains
from ekiden.relay.transform.language.scopes import (
    bodies,
    evaluation_order,
    is_atom,
    map_functions,
    on_body,
    operands,
    rewrite_graph,
)
from ekiden.relay.visitor import free_vars


def _is_pure_call(call: Call) -> bool:
    """Operators without state, constructors and primitive functions have no effect; other calls
    might.
    """
    if isinstance(call.op, Op):
        return not call.op.definition.stateful
    return isinstance(call.op, Constructor) or (isinstance(call.op, Function) and is_atom(call.op))


def has_effect(expr: RelayExpr) -> bool:
    """Return whether the expression itself, apart from its children, might do more than return a
    value.
    """
    if isinstance(expr, Call):
        return not _is_pure_call(expr)
    return isinstance(expr, (RefCreate, RefRead, RefWrite))


def is_pure(value: RelayExpr) -> bool:
    """Return whether evaluating a value can be left out. A function value is pure whatever its body
    does.
    """
    if isinstance(value, Function):
        return True
    return not any(map(has_effect, evaluation_order(value)))


def drop_unused_bindings(
    bindings: list[Binding], result: RelayExpr, ignore_impurity: bool = False
) -> list[Binding]:
    """Return the bindings that a result needs or that have an effect, in order."""
    used = {e for e in evaluation_order(result) if isinstance(e, Var)}
    live: list[Binding] = []
    # Backwards, so that what only dropped bindings used is dropped in the same pass.
    for variable, value in reversed(bindings):
        if variable in used or not (ignore_impurity or is_pure(value)):
            live.append((variable, value))
            used |= {e for e in evaluation_order(value) if isinstance(e, Var)}
    return live[::-1]


def _drop_lets(root: RelayExpr, dead: Set[RelayExpr]) -> RelayExpr:
    """Replace some lets of `root` by their bodies."""
    return rewrite_graph(
        root, lambda old, new: new.body if old in dead and isinstance(new, Let) else new
    )


def _without_unused_operands(root: RelayExpr, ignore_impurity: bool) -> RelayExpr:
    """Remove the unused bindings of lets that are operands, which begin no chain of a scope: add({
    let %a = 1; 3 }, 2) -> add(3, 2).
    """
    while True:
        order = evaluation_order(root)
        used = {o for e in order for o in (*operands(e), *bodies(e)) if isinstance(o, Var)}
        unused = [e for e in order if isinstance(e, Let) and e.var not in used]
        dead = {let for let in unused if ignore_impurity or is_pure(let.value)}
        if not dead:
            return root
        root = _drop_lets(root, dead)


def _inline_single_uses(chain: Chain) -> Chain:
    """Replace names of pure values that are used once by the values, where no function value
    captures them.
    """
    assert chain.result is not None
    uses: Counter[RelayExpr] = Counter()
    captured: set[Var] = set()
    for root in (chain.result, *(value for _, value in chain.bindings)):
        for expr in evaluation_order(root):
            uses.update(operands(expr))
            if bodies(expr):
                captured |= set(free_vars(expr))
    uses.update([chain.result])
    new: dict[RelayExpr, RelayExpr] = {}
    remaining: list[Binding] = []
    for variable, value in chain.bindings:
        placed = rewrite_graph(value, lambda old, rebuilt: new.get(old, rebuilt))
        once = uses[variable] == 1 and variable not in captured
        if once and is_pure(value) and not isinstance(value, Function):
            new[variable] = placed
        else:
            remaining.append((variable, placed))
    return Chain(
        remaining,
        rewrite_graph(chain.result, lambda old, rebuilt_result: new.get(old, rebuilt_result)),
    )


def DeadCodeElimination(  # noqa: N802
    inline_once: bool = False, ignore_impurity: bool = False
) -> Pass:
    """Return the pass described at the top of this file.

    Args:
        inline_once: Whether pure values that are used once replace their names.
        ignore_impurity: Whether unused bindings go whatever their effect.
    """

    def drop(chain: Chain, is_function_body: bool) -> Chain:
        """Remove what nothing needs from a chain.

        Inner chains come first, so that what only a dropped branch used is unused here.
        """
        assert chain.result is not None
        live = drop_unused_bindings(chain.bindings, chain.result, ignore_impurity)
        remaining = Chain(live, chain.result)
        return _inline_single_uses(remaining) if inline_once else remaining

    def live(body: RelayExpr) -> RelayExpr:
        return _without_unused_operands(map_chains(body, drop), ignore_impurity)

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return map_functions(module, on_body(live))

    return Pass("DeadCodeElimination", transform, 1)
