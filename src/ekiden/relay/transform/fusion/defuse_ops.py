"""Undo FuseOps: inline the primitive functions at their calls.

fn (%p, Primitive=1) { exp(tanh(%p)) }(%x)   ->   exp(tanh(%x))
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.language.inline import inline_application
from ekiden.relay.transform.language.scope_tree import (
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)


def defuse(
    root: RelayExpr, is_selected: Callable[[Function], bool] = lambda function: True
) -> RelayExpr:
    """Inline the calls of primitive functions below `root`, of all or of those selected."""

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Replace a call of a primitive function by its body."""
        if not isinstance(old, Call) or not isinstance(new, Call):
            return new
        typed, function = old.op, new.op
        if not isinstance(typed, Function) or not isinstance(function, Function):
            return new
        if not function.attr("Primitive") or not is_selected(typed):
            return new
        return inline_application(function, new)

    return rewrite_graph(root, rewrite)


@module_pass(name="DefuseOps", opt_level=3)
def _defuse_ops(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lift_body_rewrite(defuse))


def DefuseOps() -> Pass:  # noqa: N802
    """Return a pass that inlines primitive functions at their calls (TVM's DefuseOps)."""
    return _defuse_ops
