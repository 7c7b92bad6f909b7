"""How much work a kernel is: floating point operations, as an expression of its dimensions.

A product of matrices or a convolution counts a multiplication and an addition for each term, a
reduction its input's elements, an elementwise operator its result's. What moves data counts
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ekiden.arith import prove_equal, simplify
from ekiden.ir.op import Op, OpPattern
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.text import prim_text
from ekiden.ir.type import TensorType
from ekiden.relay.analysis.count import macs_of
from ekiden.relay.expr import Call, Expr, Function
from ekiden.relay.op.nn._work import product
from ekiden.relay.transform.language.scopes import evaluation_order

__all__ = ["count_flops", "describe_kernel"]


def describe_kernel(function: Function) -> dict[str, object]:
    """What a profile needs to know of a primitive function: its operators, the dimensions of its
    parameters, and its operations, as text.
    """
    shapes = [
        [prim_text(dim) for dim in param.checked_type.shape]
        for param in function.params
        if isinstance(param.checked_type, TensorType)
    ]
    operators = [e.op.name for e in evaluation_order(function.body) if _is_operator(e)]  # type: ignore[attr-defined]
    made: dict[str, object] = {"operators": operators, "params": shapes}
    reads = _reads(function)
    if any(reads):
        made["reads"] = reads
    return {**made, "flops": prim_text(count_flops(function))}


def _reads(function: Function) -> list[str]:
    """For each parameter that is a tensor how many elements are read of it, empty for all: where
    only injective operators take it, such as the rows of a table, each no more than it gives.
    """
    taken: dict[Expr, list[Call]] = {}
    for each in evaluation_order(function.body):
        for argument in each.args if isinstance(each, Call) else ():
            taken.setdefault(argument, []).append(cast(Call, each))
    params = [p for p in function.params if isinstance(p.checked_type, TensorType)]
    return [_read(param, taken.get(param, [])) for param in params]


def _read(param: Expr, calls: Sequence[Call]) -> str:
    given = [c.checked_type for c in calls if _is_injective(c)]
    if len(given) != len(calls) or not given:
        return ""
    total: PrimExpr = IntImm(0, "int64")
    for kind in given:
        if not isinstance(kind, TensorType):
            return ""
        total = total + product(kind.shape)
    whole = product(_shape(param))
    return "" if prove_equal(total, whole) else prim_text(simplify(total))


def _is_injective(call: Call) -> bool:
    pattern = call.op.definition.pattern if isinstance(call.op, Op) else OpPattern.OPAQUE
    return pattern is OpPattern.INJECTIVE


def count_flops(function: Function) -> PrimExpr:
    """The operations of a primitive function whose types are known."""
    total: PrimExpr = IntImm(0, "int64")
    for each in evaluation_order(function.body):
        if isinstance(each, Call) and _is_operator(each):
            total = total + _count(each)
    return simplify(total)


def _is_operator(expr: object) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Op)


def _count(call: Call) -> PrimExpr:
    if (macs := macs_of(call)) is not None:
        return 2 * macs
    match call.op.definition.pattern:  # type: ignore[attr-defined]  # _is_operator
        case OpPattern.ELEMWISE | OpPattern.BROADCAST:
            return product(_shape(call))
        case OpPattern.COMM_REDUCE:
            return product(_shape(call.args[0]))
        case _:
            return IntImm(0, "int64")


def _shape(expr: Expr) -> Sequence[PrimExpr]:
    kind = expr.checked_type
    return kind.shape if isinstance(kind, TensorType) else (IntImm(0, "int64"),)
