"""Drop bindings that nothing uses and that have no effect.

let %a = nn.relu(%x); let %b = nn.tanh(%x); %b   ->   let %b = nn.tanh(%x); %b
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.expr import Call, Constructor, Function, RefCreate, RefRead, RefWrite, Var
from ekiden.relay.transform.chains import Binding, Chain, map_chains
from ekiden.relay.transform.scopes import evaluation_order, is_atom, map_functions, on_body


def _is_pure_call(call: Call) -> bool:
    """Operators without state, constructors and primitive functions have no effect; other calls
    might.
    """
    if isinstance(call.op, Op):
        return not call.op.definition.stateful
    return isinstance(call.op, Constructor) or (isinstance(call.op, Function) and is_atom(call.op))


def has_effect(expr: RelayExpr) -> bool:
    """Whether the expression itself, apart from what is inside, might do more than give a value."""
    if isinstance(expr, Call):
        return not _is_pure_call(expr)
    return isinstance(expr, (RefCreate, RefRead, RefWrite))


def is_pure(value: RelayExpr) -> bool:
    """Whether evaluating a value can be left out. A function value is pure whatever its body
    does.
    """
    if isinstance(value, Function):
        return True
    return not any(map(has_effect, evaluation_order(value)))


def drop_unused_bindings(bindings: list[Binding], result: RelayExpr) -> list[Binding]:
    """The bindings that a result needs or that have an effect, in order."""
    used = {e for e in evaluation_order(result) if isinstance(e, Var)}
    kept: list[Binding] = []
    for variable, value in reversed(bindings):
        if variable in used or not is_pure(value):
            kept.append((variable, value))
            used |= {e for e in evaluation_order(value) if isinstance(e, Var)}
    return kept[::-1]


def _drop_unused(chain: Chain, is_function_body: bool) -> Chain:
    assert chain.result is not None
    return Chain(drop_unused_bindings(chain.bindings, chain.result), chain.result)


@module_pass(name="DeadCodeElimination", opt_level=1)
def _dead_code_elimination(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, on_body(lambda body: map_chains(body, _drop_unused)))


def DeadCodeElimination() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _dead_code_elimination
