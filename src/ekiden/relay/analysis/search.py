"""Parts of programs, found by what they are."""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Expr, If, Let, Match, Tuple, TupleGetItem, Var
from ekiden.relay.visitor import post_order

_NUMBERED = (Call, Tuple, TupleGetItem, If, Let, Match)


def extract_intermdeiate_expr(mod: IRModule, expr_id: int) -> IRModule:
    """A module of the part of @main that the text numbers so, `%<expr_id>`: calls, tuples and
    fields in the order in which they are computed. (The name is TVM's.) Raises ValueError for a
    number that there is not."""
    parts = [e for e in post_order(mod["main"]) if isinstance(e, _NUMBERED)]
    if not 0 <= expr_id < len(parts):
        raise ValueError(f"extract_intermdeiate_expr: @main has {len(parts)} parts, got {expr_id}")
    return IRModule.from_expr(parts[expr_id])


def transposed_weight(call: Call) -> Var | None:
    """The variable whose transpose is the weight of a product."""
    turn = call.args[1]
    if not isinstance(turn, Call) or not isinstance(turn.op, Op) or turn.op.name != "transpose":
        return None
    axes = getattr(turn.attrs, "axes", None)
    is_turned = not axes or tuple(axes) == (1, 0)
    return turn.args[0] if is_turned and isinstance(turn.args[0], Var) else None


def search_fc_transpose(expr: Expr) -> list[str]:
    """The names of the variables whose transposes are weights of `nn.dense`, each once."""
    calls = (e for e in post_order(expr) if isinstance(e, Call))
    found = (transposed_weight(c) for c in calls if getattr(c.op, "name", "") == "nn.dense")
    return list(dict.fromkeys(v.name_hint for v in found if v is not None))


__all__ = ["extract_intermdeiate_expr", "search_fc_transpose", "transposed_weight"]
