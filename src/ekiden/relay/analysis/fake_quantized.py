"""Fake-quantised regions: float computation between dequantize and quantize."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem
from ekiden.relay.visitor import post_order

DEQUANTIZE_OP = "qnn.dequantize"
QUANTIZE_OP = "qnn.quantize"
"""Operators that begin and end fake-quantised regions."""


def _op_name(expr: RelayExpr) -> str:
    return expr.op.name if isinstance(expr, Call) and isinstance(expr.op, Op) else ""


def region_operands(expr: RelayExpr) -> Sequence[RelayExpr] | None:
    """Return the operands of an expression in a region, or None if it cannot be in one."""
    match expr:
        case Call(op=Op(name=name), args=args):
            if name == DEQUANTIZE_OP:
                return ()
            # Scales and zero points belong to the quantization, not to the region.
            return args[:1] if name == QUANTIZE_OP else args
        case Tuple(fields=fields):
            return fields
        case TupleGetItem(tuple_value=value):
            return (value,)
        case Constant():
            return ()
        case _:
            return None


def fake_quantized_region(root: Call) -> list[RelayExpr] | None:
    """Return the expressions between dequantizes and the quantize `root` in post-order, or None.

    None if there are other expressions between, or no dequantize.
    """
    order: list[RelayExpr] = []
    visited: set[RelayExpr] = set()
    stack: list[tuple[RelayExpr, bool]] = [(root, False)]
    while stack:
        expr, ready = stack.pop()
        if ready:
            order.append(expr)
        elif expr not in visited:
            visited.add(expr)
            below = region_operands(expr)
            if below is None:
                return None
            stack.append((expr, True))
            stack.extend((operand, False) for operand in reversed(below))
    return order if any(_op_name(e) == DEQUANTIZE_OP for e in order) else None


def list_fake_quantized_op_freqs(mod: IRModule) -> dict[str, int]:
    """Count the calls of each operator in fake-quantised regions (TVM's name)."""
    names: dict[RelayExpr, str] = {}
    for function in mod.functions.values():
        if not isinstance(function, Function):
            continue
        for expr in post_order(function, into_functions=True):
            if isinstance(expr, Call) and _op_name(expr) == QUANTIZE_OP:
                names |= {e: _op_name(e) for e in fake_quantized_region(expr) or ()}
    return dict(
        Counter(name for name in names.values() if name not in ("", DEQUANTIZE_OP, QUANTIZE_OP))
    )


__all__ = ["fake_quantized_region", "list_fake_quantized_op_freqs", "region_operands"]
