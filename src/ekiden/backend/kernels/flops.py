"""How much work a kernel is: floating point operations, as an expression of its dimensions.

A product of matrices or a convolution counts a multiplication and an addition for each term, a
reduction its input's elements, an elementwise operator its result's. What moves data counts
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ekiden.arith import simplify
from ekiden.ir.op import Op, OpPattern
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.text import prim_text
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.scopes import evaluation_order

__all__ = ["count_flops", "describe_kernel"]

Dims = Sequence[PrimExpr]


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
    return {"operators": operators, "params": shapes, "flops": prim_text(count_flops(function))}


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
    assert isinstance(call.op, Op)
    result, shapes = _shape(call.checked_type), [_shape(a.checked_type) for a in call.args]
    for pattern, terms in _TERMS:
        if pattern.search(call.op.name):
            return 2 * _product(result) * terms(call, shapes)
    if re.search(r"nn\.(lstm|gru|rnn)$", call.op.name):
        return 2 * _product(shapes[0][:2]) * (_product(shapes[1]) + _product(shapes[2]))
    match call.op.definition.pattern:
        case OpPattern.ELEMWISE | OpPattern.BROADCAST:
            return _product(result)
        case OpPattern.COMM_REDUCE:
            return _product(shapes[0])
        case _:
            return IntImm(0, "int64")


def _shape(kind: Type) -> Dims:
    return kind.shape if isinstance(kind, TensorType) else (IntImm(0, "int64"),)


def _product(dims: Dims) -> PrimExpr:
    product: PrimExpr = IntImm(1, "int64")
    for dim in dims:
        product = product * dim
    return product


def _of_convolution(call: Call, shapes: Sequence[Dims]) -> PrimExpr:
    """The terms of one element: the weight without the axes of its output channels."""
    weight = shapes[1]
    axes = re.findall(r"[a-zA-Z]", getattr(call.attrs, "kernel_layout", ""))
    if "".join(axes) == "HWOI":  # depthwise: channels and multipliers
        return _product(weight[:2])
    if len(axes) != len(weight):  # packed in tiles of output channels, which come last
        return _product(weight[-4:-1])
    return _product([d for axis, d in zip(axes, weight, strict=True) if axis not in "Oo"])


def _of_transposed(call: Call, shapes: Sequence[Dims]) -> PrimExpr:
    """Each element of the data goes to a whole kernel of the result."""
    result = _shape(call.checked_type)
    return (_product(shapes[1]) * _product(shapes[0][2:])) // _product(result[1:])


def _of_matmul(call: Call, shapes: Sequence[Dims]) -> PrimExpr:
    return shapes[0][-2 if getattr(call.attrs, "transpose_a", False) else -1]


_TERMS: tuple[tuple[re.Pattern[str], Callable[[Call, Sequence[Dims]], PrimExpr]], ...] = (
    (re.compile("winograd"), lambda _, shapes: 9 * shapes[1][-2]),
    (re.compile(r"conv\dd_transpose"), _of_transposed),
    (re.compile(r"conv\dd"), _of_convolution),
    (re.compile(r"dense|matmul"), _of_matmul),
)
"""Operator -> the terms of each element of its result."""
