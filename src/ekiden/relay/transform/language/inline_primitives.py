"""Put primitive functions in the place of the names that they are called by.

let %f = fn (%p, Primitive=1) { nn.relu(%p) }; %f(%x)   ->   fn (%p, Primitive=1) { .. }(%x)

A global function that is primitive is called in place too.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.relay.expr import Call, Function, Let
from ekiden.relay.transform.language.scopes import evaluation_order, is_atom, on_body, rewrite_graph


def _is_primitive(value: object) -> bool:
    return isinstance(value, Function) and is_atom(value)


def _in_place(body: RelayExpr, functions: Mapping[RelayExpr, RelayExpr]) -> RelayExpr:
    """`body` with these functions, and those it binds, in the place of their names."""
    lets = [e for e in evaluation_order(body) if isinstance(e, Let) and _is_primitive(e.value)]
    known: dict[RelayExpr, RelayExpr] = dict(functions)
    known.update((let.var, let.value) for let in lets)
    if not known:
        return body

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Drops the lets of primitive functions and puts the functions in the place of their names;
        types that were known stay known.
        """
        if isinstance(new, Let) and _is_primitive(new.value):
            body: RelayExpr = new.body
            return body
        if isinstance(new, Call) and new.op in known:
            made = new.with_fields(op=known[new.op])
            if (kind := new.checked_type_or_none()) is not None:
                made.set_checked_type(kind)
            return made
        return known.get(new, new)

    return rewrite_graph(body, rewrite)


@module_pass(name="InlinePrimitives", opt_level=1)
def _inline_primitives(module: IRModule, context: PassContext) -> IRModule:
    called: dict[RelayExpr, RelayExpr] = {
        g: f for g, f in module.functions.items() if _is_primitive(f)
    }
    rewrite = on_body(lambda body: _in_place(body, called))
    left = {g: f for g, f in module.functions.items() if g not in called}
    return module.with_functions(
        {g: rewrite(f) if isinstance(f, Function) else f for g, f in left.items()}
    )


def InlinePrimitives() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _inline_primitives
