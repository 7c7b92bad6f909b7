"""Scalar expressions and types as text: what printers and error messages share."""

from __future__ import annotations

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
    Mul: 5, Div: 5, FloorDiv: 5, FloorMod: 5,
}
# fmt: on


def prim_text(value: PrimExpr, outer: int = 0) -> str:
    """A scalar expression as text, parenthesised where it binds weaker than `outer`. Variables print their name."""
    match value:
        case IntImm(value=number, dtype="bool"):
            return str(bool(number))
        case IntImm(value=number) | FloatImm(value=number):
            return str(number)
        case Var(name=name):
            return name
        case AnyDim():
            return "?"
        case Min() | Max():
            return f"{value.symbol}({prim_text(value.a)}, {prim_text(value.b)})"
        case BinaryExpr():
            level = PRECEDENCE[type(value)]
            text = f"{prim_text(value.a, level)} {value.symbol} {prim_text(value.b, level + 1)}"
            return f"({text})" if level < outer else text
        case Not(a=a):
            return f"not({prim_text(a)})"
        case Select(condition=c, true_value=t, false_value=f):
            return f"select({prim_text(c)}, {prim_text(t)}, {prim_text(f)})"
        case Cast(value=inner, dtype=dtype):
            return f"{dtype}({prim_text(inner)})"
        case Intrinsic(op=op, args=args):
            return f"{op}({', '.join(map(prim_text, args))})"
        case _:
            return repr(value)


def shape_text(shape: tuple[PrimExpr, ...]) -> str:
    """`(1, n, 3)`; a shape of one dimension keeps its comma."""
    inside = ", ".join(map(prim_text, shape))
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def _joined(kinds: tuple[Type, ...]) -> str:
    return ", ".join(map(type_text, kinds))


def type_text(kind: Type) -> str:
    """A type in Relay's text format; a scalar tensor is its dtype alone, a hole is `_`."""
    match kind:
        case TensorType(shape=(), dtype=dtype):
            return dtype
        case TensorType(shape=shape, dtype=dtype):
            return f"Tensor[{shape_text(shape)}, {dtype}]"
        case TupleType(fields=(only,)):
            return f"({type_text(only)},)"
        case TupleType(fields=fields):
            return f"({_joined(fields)})"
        case FuncType(arg_types=args, ret_type=ret, type_params=params):
            return f"fn {type_params_text(params)}({_joined(args)}) -> {type_text(ret)}"
        case TypeVar(name_hint=name) | GlobalTypeVar(name_hint=name):
            return name
        case TypeCall(func=func, args=args):
            return f"{type_text(func)}[{_joined(args)}]" if args else type_text(func)
        case RelayRefType(value=value):
            return f"ref({type_text(value)})"
        case IncompleteType():
            return "_"
        case StorageType():
            return "Storage"
        case _:
            return repr(kind)


def type_params_text(params: tuple[TypeVar, ...]) -> str:
    """`[A, B]`, or nothing."""
    return f"[{', '.join(p.name_hint for p in params)}]" if params else ""
