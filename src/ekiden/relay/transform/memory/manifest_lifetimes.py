"""Kill variables after their last use, so that their memory can be reused within the function.

    let %y = @f(%x); let %z = @g(%y); %z
    ->  let %y = @f(%x); let %z = @g(%y); let %_ = memory.kill(%y); %z

Variables whose value is used by a later alias (a view, a tuple) die with the last alias.
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.expr import Call, Var
from ekiden.relay.op.memory import kill, unit_relation
from ekiden.relay.transform.language.let_chains import LetBinding, LetChain, map_chains
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    lift_body_rewrite,
    map_functions,
)


def _used_vars(value: RelayExpr) -> set[Var]:
    """Return the variables that a value uses, at any depth."""
    return {e for e in evaluation_order(value) if isinstance(e, Var)}


def _insert_kills(chain: LetChain, is_function_body: bool) -> LetChain:
    assert chain.result is not None
    # Variables of outer chains may be read again after this one.
    binding_index = {v: index for index, (v, _) in enumerate(chain.bindings)}
    alive = _used_vars(chain.result)
    backwards: list[LetBinding] = []
    for variable, value in reversed(chain.bindings):
        used = {v for v in _used_vars(value) if v in binding_index}
        # Walking backwards, the first use that is met is the last one; sorting makes the order
        # stable.
        dying = sorted(used - alive, key=binding_index.__getitem__)
        # Nobody reads it, so it dies where it is made.
        if variable not in alive and not _is_effect_only(value):
            dying.append(variable)
        backwards.extend((Var("_"), kill(v)) for v in reversed(dying))
        backwards.append((variable, value))
        alive |= used | {variable}
    return LetChain(backwards[::-1], chain.result)


def _is_effect_only(value: RelayExpr) -> bool:
    """Return whether a value is computed only for its effect, with a unit result."""
    is_operator = isinstance(value, Call) and isinstance(value.op, Op)
    return is_operator and value.op.definition.relation is unit_relation  # type: ignore[attr-defined]


@module_pass(name="ManifestLifetimes")
def _manifest_lifetimes(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lift_body_rewrite(lambda body: map_chains(body, _insert_kills)))


def ManifestLifetimes() -> Pass:  # noqa: N802
    """Return a pass that inserts kills after last uses (TVM's ManifestLifetimes)."""
    return _manifest_lifetimes
