"""Search for subexpressions: by printed number, and transposed dense weights."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Expr, If, Let, Match, Tuple, TupleGetItem, Var
from ekiden.relay.visitor import post_order

_NUMBERED_NODES = (Call, Tuple, TupleGetItem, If, Let, Match)


def extract_intermdeiate_expr(mod: IRModule, expr_id: int) -> IRModule:
    """Return a module whose main is the expression printed as `%<expr_id>` in @main.

    Calls, tuples and fields are numbered in the order in which they are computed. (The name is
    TVM's.)

    Raises:
        ValueError: There is no such number.
    """
    numbered = [e for e in post_order(mod["main"]) if isinstance(e, _NUMBERED_NODES)]
    if not 0 <= expr_id < len(numbered):
        raise ValueError(
            f"extract_intermdeiate_expr: @main has {len(numbered)} parts, got {expr_id}"
        )
    return IRModule.from_expr(numbered[expr_id])


def find_transposed_weight(call: Call) -> Var | None:
    """Return the variable whose transpose is a product's weight, or None."""
    weight = call.args[1]
    if (
        not isinstance(weight, Call)
        or not isinstance(weight.op, Op)
        or weight.op.name != "transpose"
    ):
        return None
    axes = getattr(weight.attrs, "axes", None)
    # None reverses the axes, which is the same for a matrix.
    is_turned = not axes or tuple(axes) == (1, 0)
    return weight.args[0] if is_turned and isinstance(weight.args[0], Var) else None


def search_fc_transpose(expr: Expr) -> list[str]:
    """Return the names of the variables whose transposes are `nn.dense` weights."""
    calls = (e for e in post_order(expr) if isinstance(e, Call))
    variables = (
        find_transposed_weight(c) for c in calls if getattr(c.op, "name", "") == "nn.dense"
    )
    return list(dict.fromkeys(v.name_hint for v in variables if v is not None))


__all__ = ["extract_intermdeiate_expr", "find_transposed_weight", "search_fc_transpose"]
