"""Table-driven rewriting of operator calls, shared by many passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    infer_local_type,
    lift_body_rewrite,
    map_functions,
    operands,
    rewrite_graph,
)

CallRewrite = Callable[[Call], RelayExpr | None]
"""Function: typed call -> replacement, or None to keep it."""


def infer_new_types(expr: RelayExpr) -> RelayExpr:
    """Infer the types of the untyped subexpressions of an expression, operands first."""
    stack = [expr]
    while stack:
        subexpr = stack[-1]
        # Iterative: new expressions may be deep chains.
        missing = [c for c in operands(subexpr) if c.checked_type_or_none() is None]
        if missing and subexpr.checked_type_or_none() is None:
            stack.extend(missing)
        else:
            infer_local_type(stack.pop())
    return expr


def rewrite_calls(body: RelayExpr, table: Mapping[str, CallRewrite]) -> RelayExpr:
    """Rewrite every call whose operator is in the table, in post-order."""

    def rewrite_call(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Apply the table's rewrite to a call, and infer the result's types."""
        if not isinstance(new, Call) or not isinstance(new.op, Op) or new.op.name not in table:
            return new
        result = table[new.op.name](new)
        # Later rules read the types of what earlier ones have made.
        return new if result is None else infer_new_types(result)

    return rewrite_graph(body, rewrite_call)


def call_pass(
    name: str, opt_level: int, table: Callable[[], Mapping[str, CallRewrite]], rewrites: str = ""
) -> Pass:
    """Return a pass that only rewrites calls by a table.

    Args:
        name: The name of the pass.
        opt_level: Its opt level.
        table: Returns the table when the pass runs: then every operator of the module has its row
            in
            OPS.
        rewrites: The name of the rewrite of floats that it applies, which a context may forbid
            (float_rewrites.py).
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Rewrite the calls of each function, if the context allows the rewrite."""
        if rewrites and not is_rewrite_allowed(rewrites, context):
            return module
        # Tables are made here so that modules of operators load when a pass runs.
        rules = table()
        return map_functions(module, lift_body_rewrite(lambda body: rewrite_calls(body, rules)))

    return Pass(name, transform, opt_level, (InferType(),))
