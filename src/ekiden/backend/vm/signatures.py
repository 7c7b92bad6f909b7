"""Parameter types of functions as words of the section TYPES, against which the machine checks
arguments. docs/artifact-format.md and runtime/src/ek_signature.h specify them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import field

from ekiden.ir.prim import (
    Add,
    BinaryExpr,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    PrimExpr,
    SizeVar,
    Sub,
    Var,
)
from ekiden.ir.text import prim_text
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.runtime.binding.dtypes import dtype_code
from ekiden.runtime.binding.layout import DimWord, TypeLimit, TypeWord
from ekiden.runtime.lazy_dataclass import dataclass

ANY_DIM_WORD = -(2**63)
NO_LIMIT = 2**63 - 1
_OPERATIONS: dict[type[PrimExpr], int] = {
    Add: DimWord.ADD, Sub: DimWord.SUB, Mul: DimWord.MUL, FloorDiv: DimWord.FLOORDIV,
    FloorMod: DimWord.FLOORMOD, Min: DimWord.MIN, Max: DimWord.MAX,
}  # fmt: skip


@dataclass(slots=True)
class _Symbol:
    """Symbolic size: its name, upper bound and defining words."""

    name: str
    most: int
    definition: tuple[int, ...]


@dataclass(slots=True)
class _Symbols:
    """Symbols of all functions; within a function by identity, across functions by equal
    description.
    """

    table: list[_Symbol] = field(default_factory=list)
    own: dict[Var | str, int] = field(default_factory=dict)
    """Of the function being written."""

    def number(self, dim: PrimExpr) -> int:
        """Return the number of a dimension that is not constant."""
        text = prim_text(dim)
        key = dim if isinstance(dim, Var) else text
        if key not in self.own:
            upper = dim.upper if isinstance(dim, SizeVar) else None
            symbol = _Symbol(text, NO_LIMIT if upper is None else upper, self.definition(dim))
            self.own[key] = self._place(symbol)
        return self.own[key]

    def _place(self, symbol: _Symbol) -> int:
        used_numbers = set(self.own.values())
        for number, row in enumerate(self.table):
            if number not in used_numbers and row == symbol:
                return number
        self.table.append(symbol)
        return len(self.table) - 1

    def definition(self, dim: PrimExpr) -> tuple[int, ...]:
        """Return the words of an expression in other symbols; none for a symbol, and for what has
        no encoding.
        """
        words: list[int] = []
        stack: list[tuple[PrimExpr, bool]] = [(dim, False)] if not isinstance(dim, Var) else []
        while stack:
            at, is_open = stack.pop()
            match at:
                case IntImm(value=value):
                    words += (DimWord.CONST, value)
                case Var():
                    words += (DimWord.SYMBOL, self.number(at))
                case BinaryExpr(a=a, b=b) if (
                    type(at) in _OPERATIONS and len(stack) < TypeLimit.STACK
                ):
                    if is_open:
                        words.append(_OPERATIONS[type(at)])
                    else:
                        stack += [(at, True), (b, False), (a, False)]
                case _:
                    return ()
        return tuple(words)


def _type_words(kind: Type, symbols: _Symbols, depth: int) -> list[int]:
    """Encode a type. The recursion ends at TypeLimit.NESTING: deeper components are unchecked."""
    match kind:
        case TensorType(shape=shape, dtype=dtype):
            code, bits, _ = dtype_code(dtype)
            dims = [_dim_word(dim, symbols) for dim in shape]
            return [TypeWord.TENSOR, code | bits << 8, len(dims), *dims]
        case TupleType(fields=fields) if depth + 1 < TypeLimit.NESTING:
            inner = [_type_words(field, symbols, depth + 1) for field in fields]
            return [TypeWord.TUPLE, len(inner), *(word for words in inner for word in words)]
        case _:
            return [TypeWord.ANY]


def _dim_word(dim: PrimExpr, symbols: _Symbols) -> int:
    match dim:
        case IntImm(value=value):
            return value
        case Var() | BinaryExpr():
            return -1 - symbols.number(dim)
        case _:
            return ANY_DIM_WORD


def signatures(functions: Sequence[Sequence[Type]]) -> bytes:
    """Encode the section TYPES: the parameter types of each function in order; none where nothing
    is declared.
    """
    symbols, rows = _Symbols(), []
    for types in functions:
        symbols.own = {}
        words = [word for kind in types for word in _type_words(kind, symbols, 0)]
        rows.append(_words(words))
    heads = [
        _string(symbol.name) + struct.pack("<Q", symbol.most) + _words(symbol.definition)
        for symbol in symbols.table
    ]
    return b"".join([struct.pack("<I", len(heads)), *heads, *rows])


def _words(words: Sequence[int]) -> bytes:
    return struct.pack(f"<I{len(words)}q", len(words), *words)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


__all__ = ["signatures"]
