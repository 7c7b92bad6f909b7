"""Evaluate dimension expressions in an executable's metadata. `n * 64`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

_BINARY_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_COMPARISON_OPERATORS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTION_NAMES: dict[str, Callable[[int, int], int]] = {
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
    "min": min,
    "max": max,
}


def evaluate_dim(text: str, values: Mapping[str, int]) -> int:
    """Return the value of an expression. Raises ValueError for an invalid one, or a name without a
    value.
    """
    try:
        return _evaluate_node(ast.parse(text, mode="eval").body, values)
    except (SyntaxError, KeyError, RecursionError, ZeroDivisionError) as error:
        raise ValueError(f"evaluate '{text}': {error}") from error


def _evaluate_condition(node: ast.expr, values: Mapping[str, int]) -> bool:
    match node:
        case ast.Compare(left=lhs, ops=[op], comparators=[right]) if (
            type(op) in _COMPARISON_OPERATORS
        ):
            return _COMPARISON_OPERATORS[type(op)](
                _evaluate_node(lhs, values), _evaluate_node(right, values)
            )
        case _:
            raise ValueError(f"evaluate '{ast.unparse(node)}': a comparison expected")


def _evaluate_node(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate_node(operand, values)
        case ast.BinOp(left=lhs, op=op, right=right) if type(op) in _BINARY_OPERATORS:
            return _BINARY_OPERATORS[type(op)](
                _evaluate_node(lhs, values), _evaluate_node(right, values)
            )
        case ast.Call(func=ast.Name(id="select"), args=[condition, lhs, right]):
            return _evaluate_node(lhs if _evaluate_condition(condition, values) else right, values)
        case ast.Call(func=ast.Name(id=name), args=[lhs, right]) if name in _FUNCTION_NAMES:
            return _FUNCTION_NAMES[name](_evaluate_node(lhs, values), _evaluate_node(right, values))
        case _:
            raise ValueError(f"evaluate '{ast.unparse(node)}': sums and products expected")
