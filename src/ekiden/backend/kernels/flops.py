"""Count the floating-point operations of a kernel, as an expression of its dimensions.

A product of matrices or a convolution counts a multiplication and an addition for each term, a
reduction its input's elements, an elementwise operator its result's. What moves data counts
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ekiden.arith import prove_equal, simplify
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.op import Op, OpPattern
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.type import TensorType
from ekiden.relay.analysis.op_counts import call_macs
from ekiden.relay.expr import Call, Expr, Function
from ekiden.relay.op.nn._macs import multiply_dims
from ekiden.relay.transform.language.scope_tree import evaluation_order

__all__ = ["count_flops", "describe_kernel"]


def describe_kernel(function: Function) -> dict[str, object]:
    """Return what a profile shows of a primitive function: its operators, its parameters'
    dimensions and its operation count, as text.
    """
    shapes = [
        [format_prim_expr(dim) for dim in param.checked_type.shape]
        for param in function.params
        if isinstance(param.checked_type, TensorType)
    ]
    operators = [e.op.name for e in evaluation_order(function.body) if _is_operator(e)]  # type: ignore[attr-defined]
    description: dict[str, object] = {"operators": operators, "params": shapes}
    reads = _elements_read(function)
    if any(reads):
        description["reads"] = reads
    return {**description, "flops": format_prim_expr(count_flops(function))}


def _elements_read(function: Function) -> list[str]:
    """Return for each tensor parameter the number of its elements that are read, "" for all. It is
    smaller where only injective operators use it, such as a gather of table rows.
    """
    users: dict[Expr, list[Call]] = {}
    for expr in evaluation_order(function.body):
        for argument in expr.args if isinstance(expr, Call) else ():
            users.setdefault(argument, []).append(cast(Call, expr))
    params = [p for p in function.params if isinstance(p.checked_type, TensorType)]
    return [_param_elements_read(param, users.get(param, [])) for param in params]


def _param_elements_read(param: Expr, calls: Sequence[Call]) -> str:
    user_types = [c.checked_type for c in calls if _is_injective(c)]
    if len(user_types) != len(calls) or not user_types:
        return ""
    total: PrimExpr = IntImm(0, "int64")
    for kind in user_types:
        if not isinstance(kind, TensorType):
            return ""
        total = total + multiply_dims(kind.shape)
    element_count = multiply_dims(_tensor_shape(param))
    return "" if prove_equal(total, element_count) else format_prim_expr(simplify(total))


def _is_injective(call: Call) -> bool:
    pattern = call.op.definition.pattern if isinstance(call.op, Op) else OpPattern.OPAQUE
    return pattern is OpPattern.INJECTIVE


def count_flops(function: Function) -> PrimExpr:
    """Return the operation count of a typed primitive function."""
    total: PrimExpr = IntImm(0, "int64")
    for expr in evaluation_order(function.body):
        if isinstance(expr, Call) and _is_operator(expr):
            total = total + _count_call_flops(expr)
    return simplify(total)


def _is_operator(expr: object) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Op)


def _count_call_flops(call: Call) -> PrimExpr:
    if (macs := call_macs(call)) is not None:
        return 2 * macs
    match call.op.definition.pattern:  # type: ignore[attr-defined]  # _is_operator
        case OpPattern.ELEMWISE | OpPattern.BROADCAST:
            return multiply_dims(_tensor_shape(call))
        case OpPattern.COMM_REDUCE:
            return multiply_dims(_tensor_shape(call.args[0]))
        case _:
            return IntImm(0, "int64")


def _tensor_shape(expr: Expr) -> Sequence[PrimExpr]:
    kind = expr.checked_type
    return kind.shape if isinstance(kind, TensorType) else (IntImm(0, "int64"),)
