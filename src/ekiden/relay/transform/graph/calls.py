"""Rewriting operator calls by a table, the shape of many passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call
from ekiden.relay.transform.graph.float_rewrites import allows
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import (
    infer_here,
    map_functions,
    on_body,
    operands,
    rewrite_graph,
)

Rewrite = Callable[[Call], RelayExpr | None]
"""What stands for a call whose arguments have checked types; None leaves it."""


def typed(expr: RelayExpr) -> RelayExpr:
    """The expression with the types of its new parts filled in from their operands."""
    stack = [expr]
    while stack:
        part = stack[-1]
        missing = [c for c in operands(part) if c.checked_type_or_none() is None]
        if missing and part.checked_type_or_none() is None:
            stack.extend(missing)
        else:
            infer_here(stack.pop())
    return expr


def rewrite_calls(body: RelayExpr, table: Mapping[str, Rewrite]) -> RelayExpr:
    """`body` with each call of an operator in the table replaced, arguments first."""

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """What the table's rewrite gives, typed; the call where it gives None, or is not in the
        table.
        """
        if not isinstance(new, Call) or not isinstance(new.op, Op) or new.op.name not in table:
            return new
        made = table[new.op.name](new)
        return new if made is None else typed(made)

    return rewrite_graph(body, rewrite)


def call_pass(
    name: str, opt_level: int, table: Callable[[], Mapping[str, Rewrite]], rewrites: str = ""
) -> Pass:
    """A pass that does nothing but rewrite calls by a table, which is made when it runs: then every
    operator of the module has its row in OPS. `rewrites` is the name of the rewrite of floats that
    it makes, which a context may forbid (float_rewrites.py).
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        if rewrites and not allows(rewrites, context):
            return module
        found = table()
        return map_functions(module, on_body(lambda body: rewrite_calls(body, found)))

    return Pass(name, transform, opt_level, (InferType(),))
