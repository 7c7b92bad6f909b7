"""Scalar expressions and types as text: what printers and error messages share."""

from __future__ import annotations

from collections.abc import Mapping

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
from ekiden.ir.prim_visitor import children, post_order
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
    TypeVar,
)

# fmt: off
PRECEDENCE: dict[type[BinaryExpr], int] = {
    Or: 1, And: 2,
    EQ: 3, NE: 3, LT: 3, LE: 3, GT: 3, GE: 3,
    Add: 4, Sub: 4,
    Mul: 5, Div: 5,
}
"""Infix operators, the weakest first."""
FUNCTIONS: dict[type[BinaryExpr], str] = {
    Min: "min", Max: "max", FloorDiv: "floordiv", FloorMod: "floormod",
}  # fmt: skip
"""Operators written as calls; `//` would be a comment in Relay text."""
# fmt: on


Names = Mapping[Node, str]
"""Names given to variables by a printer that keeps them apart; a variable without one prints its
own.
"""
_NO_NAMES: Names = {}


def prim_text(value: PrimExpr, names: Names = _NO_NAMES, outer: int = 0) -> str:
    """A scalar expression as text, parenthesised where it binds weaker than `outer`."""
    done: dict[int, tuple[str, int]] = {}
    for each in post_order(value):
        done[id(each)] = _node_text(each, names, done)
    text, level = done[id(value)]
    return f"({text})" if level < outer else text


_TIGHT = 9
"""How strongly a name, a number or a call binds."""


def _node_text(
    value: PrimExpr, names: Names, done: Mapping[int, tuple[str, int]]
) -> tuple[str, int]:
    """The text of a node whose children have theirs, and how strongly it binds."""

    def inner(each: PrimExpr, outer: int = 0) -> str:
        text, level = done[id(each)]
        return f"({text})" if level < outer else text

    match value:
        case IntImm(value=number, dtype="bool"):
            return str(bool(number)), _TIGHT
        case IntImm(value=number) | FloatImm(value=number):
            return str(number), _TIGHT
        case Var(name=name):
            return names.get(value, name), _TIGHT
        case AnyDim():
            return "?", _TIGHT
        case BinaryExpr() if type(value) in FUNCTIONS:
            return f"{FUNCTIONS[type(value)]}({inner(value.a)}, {inner(value.b)})", _TIGHT
        case BinaryExpr():
            level = PRECEDENCE[type(value)]
            a, b = inner(value.a, level), inner(value.b, level + 1)
            return f"{a} {value.symbol} {b}", level
        case Not(a=a):
            return f"not({inner(a)})", _TIGHT
        case Select(condition=c, true_value=t, false_value=f):
            return f"select({inner(c)}, {inner(t)}, {inner(f)})", _TIGHT
        case Cast(value=cast, dtype=dtype):
            return f"{dtype}({inner(cast)})", _TIGHT
        case Intrinsic(op=op, args=args):
            return f"{op}({', '.join(map(inner, args))})", _TIGHT
        case _:
            return f"{type(value).__name__}({', '.join(map(inner, children(value)))})", _TIGHT


if PrimExpr.printer is None:  # tir's knows more kinds, and may have come first
    PrimExpr.printer = staticmethod(prim_text)


def shape_text(shape: tuple[PrimExpr, ...], names: Names = _NO_NAMES) -> str:
    """`(1, n, 3)`; a shape of one dimension keeps its comma."""
    inside = ", ".join(prim_text(d, names) for d in shape)
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def type_text(kind: Type, names: Names = _NO_NAMES) -> str:
    """A type in Relay's text format; a scalar tensor is its dtype alone, a hole is `_`."""

    def joined(kinds: tuple[Type, ...]) -> str:
        return ", ".join(type_text(k, names) for k in kinds)

    match kind:
        case TensorType(shape=(), dtype=dtype):
            return dtype
        case TensorType(shape=shape, dtype=dtype):
            return f"Tensor[{shape_text(shape, names)}, {dtype}]"
        case TupleType(fields=(only,)):
            return f"({type_text(only, names)},)"
        case TupleType(fields=fields):
            return f"({joined(fields)})"
        case FuncType(arg_types=args, ret_type=ret, type_params=params):
            return (
                f"fn {type_params_text(params, names)}({joined(args)}) -> {type_text(ret, names)}"
            )
        case TypeVar(name_hint=name) | GlobalTypeVar(name_hint=name):
            return names.get(kind, name)
        case TypeCall(func=func, args=args):
            return f"{type_text(func, names)}[{joined(args)}]" if args else type_text(func, names)
        case RelayRefType(value=value):
            return f"ref({type_text(value, names)})"
        case IncompleteType():
            return "_"
        case StorageType():
            return "Storage"
        case _:
            return type(kind).__name__


def type_params_text(params: tuple[TypeVar, ...], names: Names = _NO_NAMES) -> str:
    """`[A, B]`, or nothing."""
    return f"[{', '.join(type_text(p, names) for p in params)}]" if params else ""


Type.printer = staticmethod(type_text)
