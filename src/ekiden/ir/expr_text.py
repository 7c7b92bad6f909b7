"""Text of scalar expressions and types for printers and error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ekiden.ir.node import Node
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    AnyDim,
    BinaryExpr,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    Not,
    Or,
    PrimExpr,
    Select,
    Sub,
    Var,
)
from ekiden.ir.prim_visitor import children
from ekiden.ir.type import (
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RelayRefType,
    StorageType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeRelation,
    TypeVar,
)

# fmt: off
OPERATOR_PRECEDENCE: dict[type[BinaryExpr], int] = {
    Or: 1, And: 2,
    EQ: 3, NE: 3, LT: 3, LE: 3, GT: 3, GE: 3,
    Add: 4, Sub: 4,
    Mul: 5, Div: 5,
}
"""Infix operators in order of increasing precedence."""
CALL_SYNTAX_OPERATORS: dict[type[BinaryExpr], str] = {
    Min: "min", Max: "max", FloorDiv: "floordiv", FloorMod: "floormod",
}  # fmt: skip
"""Operators written as calls; `//` would be a comment in Relay text."""
# fmt: on


Names = Mapping[Node, str]
"""Names that a printer has assigned to variables; others print under their own."""
_NO_NAMES: Names = {}


_TextPiece: TypeAlias = "str | tuple[PrimExpr, int]"
"""Text, or an expression with the precedence of its context."""
_ATOM_PRECEDENCE = 9
"""Precedence of a name, a number or a call."""


def format_prim_expr(
    value: PrimExpr, names: Names = _NO_NAMES, outer: int = 0, max_chars: int | None = None
) -> str:
    """Format a scalar expression, parenthesized where it binds weaker than `outer`. Text beyond
    `max_chars` characters is cut, and never made: shared parts are written wherever they are
    used, so that the whole may be as long as 2 to the depth.
    """
    out: list[str] = []
    # Messages show the beginning; sizes of deep networks may print as megabytes.
    remaining = max_chars
    stack: list[_TextPiece] = [(value, outer)]
    while stack:
        piece = stack.pop()
        if isinstance(piece, str):
            out.append(piece)
            if remaining is not None and (remaining := remaining - len(piece)) < 0:
                return "".join(out)[:max_chars] + " ..."
            continue
        pieces, level = _format_fragments(piece[0], names)
        # A stack is read from its end: pieces go on it reversed, brackets too.
        stack.extend((")", *reversed(pieces), "(") if level < piece[1] else reversed(pieces))
    return "".join(out)


def _format_call(name: str, args: Sequence[PrimExpr]) -> tuple[list[_TextPiece], int]:
    pieces: list[_TextPiece] = [f"{name}("]
    for n, arg in enumerate(args):
        pieces += [", "] * (n > 0)
        pieces.append((arg, 0))
    return [*pieces, ")"], _ATOM_PRECEDENCE


def _format_fragments(value: PrimExpr, names: Names) -> tuple[list[_TextPiece], int]:
    """Return the text pieces of a node and its operator precedence."""
    match value:
        case IntImm(value=number, dtype="bool"):
            return [str(bool(number))], _ATOM_PRECEDENCE
        case IntImm(value=number) | FloatImm(value=number):
            return [str(number)], _ATOM_PRECEDENCE
        case Var(name=name):
            return [names.get(value, name)], _ATOM_PRECEDENCE
        case AnyDim():
            return ["?"], _ATOM_PRECEDENCE
        case BinaryExpr() if type(value) in CALL_SYNTAX_OPERATORS:
            return _format_call(CALL_SYNTAX_OPERATORS[type(value)], (value.a, value.b))
        case BinaryExpr():
            level = OPERATOR_PRECEDENCE[type(value)]
            # Left-associative: an operand on the right that binds alike needs parentheses.
            return [(value.a, level), f" {value.symbol} ", (value.b, level + 1)], level
        case Not(a=a):
            return _format_call("not", (a,))
        case Select():
            return _format_call("select", children(value))
        case Cast(value=cast, dtype=dtype):
            return _format_call(dtype, (cast,))
        case Intrinsic(op=op, args=args):
            return _format_call(op, args)
        case _:
            return _format_call(type(value).__name__, children(value))


if PrimExpr.printer is None:  # tir's knows more kinds, and may have come first
    PrimExpr.printer = staticmethod(format_prim_expr)


def format_shape(shape: tuple[PrimExpr, ...], names: Names = _NO_NAMES) -> str:
    """Format a shape: `(1, n, 3)`, with a trailing comma for one dimension."""
    inside = ", ".join(format_prim_expr(d, names) for d in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def format_type(kind: Type, names: Names = _NO_NAMES) -> str:
    """Format a type in Relay's text syntax; a scalar tensor prints as its dtype, a hole as `_`."""

    def join_types(kinds: Sequence[Type]) -> str:
        """Format types, separated by commas."""
        return ", ".join(format_type(k, names) for k in kinds)

    match kind:
        case TensorType(shape=(), dtype=dtype):
            return dtype
        case TensorType(shape=shape, dtype=dtype):
            return f"Tensor[{format_shape(shape, names)}, {dtype}]"
        case TupleType(fields=(only,)):
            return f"({format_type(only, names)},)"
        case TupleType(fields=fields):
            return f"({join_types(fields)})"
        case FuncType(arg_types=args, ret_type=ret, type_params=params, type_constraints=held):
            where = f" where {join_types(held)}" if held else ""
            text = f"fn {format_type_params(params, names)}({join_types(args)})"
            return f"{text} -> {format_type(ret, names)}{where}"
        case TypeRelation(func=relation, args=args):
            return f"{relation.name if relation else '_'}({join_types(args)})"
        case TypeVar(name_hint=name) | GlobalTypeVar(name_hint=name):
            return names.get(kind, name)
        case TypeCall(func=func, args=args):
            return (
                f"{format_type(func, names)}[{join_types(args)}]"
                if args
                else format_type(func, names)
            )
        case RelayRefType(value=value):
            return f"ref({format_type(value, names)})"
        case IncompleteType():
            return "_"
        case StorageType():
            return "Storage"
        case _:
            return type(kind).__name__


def format_type_params(params: tuple[TypeVar, ...], names: Names = _NO_NAMES) -> str:
    """Format type parameters as `[A, B]`, or "" if there are none."""
    return f"[{', '.join(format_type(p, names) for p in params)}]" if params else ""


Type.printer = staticmethod(format_type)
