"""Values of expressions of dimensions, as an executable's metadata write them: `n * 64`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "min": min,
    "max": max,
}


def evaluate(text: str, values: Mapping[str, int]) -> int:
    """The value of an expression; ValueError for what is none, or a name without a value."""
    try:
        return _value(ast.parse(text, mode="eval").body, values)
    except (SyntaxError, KeyError, RecursionError, ZeroDivisionError) as error:
        raise ValueError(f"evaluate '{text}': {error}") from error


def _holds(node: ast.expr, values: Mapping[str, int]) -> bool:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return _COMPARISONS[type(op)](_value(left, values), _value(right, values))
        case _:
            raise ValueError(f"evaluate '{ast.unparse(node)}': a comparison expected")


def _value(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.Call(func=ast.Name(id="select"), args=[condition, left, right]):
            return _value(left if _holds(condition, values) else right, values)
        case ast.Call(func=ast.Name(id=name), args=[left, right]) if name in _CALLS:
            return _CALLS[name](_value(left, values), _value(right, values))
        case _:
            raise ValueError(f"evaluate '{ast.unparse(node)}': sums and products expected")
