"""Inline the primitive functions that are bound to names.

    let %f = fn (%p, Primitive=1) { nn.relu(%p) }; %f(%x)   ->   fn (%p, Primitive=1) { .. }(%x)

A global function that is primitive is called in place too.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.expr import Call, Function, Let
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    is_atom,
    lift_body_rewrite,
    rewrite_graph,
)


def _is_primitive(value: object) -> bool:
    return isinstance(value, Function) and is_atom(value)


def _inline_primitives_in(body: RelayExpr, functions: Mapping[RelayExpr, RelayExpr]) -> RelayExpr:
    """Inline the given primitive functions, and those that `body` binds by let."""
    lets = [e for e in evaluation_order(body) if isinstance(e, Let) and _is_primitive(e.value)]
    by_name: dict[RelayExpr, RelayExpr] = dict(functions)
    by_name.update((let.var, let.value) for let in lets)
    if not by_name:
        return body

    def inline_primitive(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Drop lets of primitive functions, and replace their variables by the functions; known
        types are kept.
        """
        if isinstance(new, Let) and _is_primitive(new.value):
            body: RelayExpr = new.body
            return body
        if isinstance(new, Call) and new.op in by_name:
            new_call = new.with_fields(op=by_name[new.op])
            if (kind := new.checked_type_or_none()) is not None:
                new_call.set_checked_type(kind)
            return new_call
        # A primitive function may also be passed as a value.
        return by_name.get(new, new)

    return rewrite_graph(body, inline_primitive)


@module_pass(name="InlinePrimitives", opt_level=1)
def _inline_primitives(module: IRModule, context: PassContext) -> IRModule:
    called: dict[RelayExpr, RelayExpr] = {
        g: f for g, f in module.functions.items() if _is_primitive(f)
    }
    rewrite = lift_body_rewrite(lambda body: _inline_primitives_in(body, called))
    remaining = {g: f for g, f in module.functions.items() if g not in called}
    return module.with_functions(
        {g: rewrite(f) if isinstance(f, Function) else f for g, f in remaining.items()}
    )


def InlinePrimitives() -> Pass:  # noqa: N802
    """Return a pass that inlines primitive functions bound to names (TVM's InlinePrimitives)."""
    return _inline_primitives
