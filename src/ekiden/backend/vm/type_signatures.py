"""Encoding of functions' parameter types in the section TYPES, against which the machine checks
arguments. docs/artifact-format.md and runtime/src/ek_signature.h specify it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import field

from ekiden.ir.expr_text import format_prim_expr
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
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.runtime.binding.dtypes import dtype_code
from ekiden.runtime.binding.layout import DimWord, TypeLimit, TypeWord
from ekiden.runtime.lazy_dataclass import dataclass

ANY_DIM_ENCODING = -(2**63)
NO_UPPER_BOUND = 2**63 - 1
_DIM_OPERATION_WORDS: dict[type[PrimExpr], int] = {
    Add: DimWord.ADD, Sub: DimWord.SUB, Mul: DimWord.MUL, FloorDiv: DimWord.FLOORDIV,
    FloorMod: DimWord.FLOORMOD, Min: DimWord.MIN, Max: DimWord.MAX,
}  # fmt: skip


@dataclass(slots=True)
class _EncodedSymbol:
    """Encoded symbolic size: its name, upper bound and definition."""

    name: str
    upper_bound: int
    definition: tuple[int, ...]


@dataclass(slots=True)
class _SymbolTable:
    """Symbol table of all functions: symbols are identified by identity within a function, and by
    description across functions.
    """

    table: list[_EncodedSymbol] = field(default_factory=list)
    function_symbols: dict[Var | str, int] = field(default_factory=dict)
    """Symbols of the function being encoded."""

    def symbol_number(self, dim: PrimExpr) -> int:
        """Return the number of a dimension that is not constant."""
        text = format_prim_expr(dim)
        key = dim if isinstance(dim, Var) else text
        if key not in self.function_symbols:
            upper = dim.upper if isinstance(dim, SizeVar) else None
            symbol = _EncodedSymbol(
                text, NO_UPPER_BOUND if upper is None else upper, self.encode_definition(dim)
            )
            self.function_symbols[key] = self._intern_symbol(symbol)
        return self.function_symbols[key]

    def _intern_symbol(self, symbol: _EncodedSymbol) -> int:
        used_numbers = set(self.function_symbols.values())
        for number, row in enumerate(self.table):
            if number not in used_numbers and row == symbol:
                return number
        self.table.append(symbol)
        return len(self.table) - 1

    def encode_definition(self, dim: PrimExpr) -> tuple[int, ...]:
        """Return the words of an expression in other symbols; none for a symbol, and for what has
        no encoding.
        """
        words: list[int] = []
        stack: list[tuple[PrimExpr, bool]] = [(dim, False)] if not isinstance(dim, Var) else []
        while stack:
            position, is_open = stack.pop()
            match position:
                case IntImm(value=value):
                    words += (DimWord.CONST, value)
                case Var():
                    words += (DimWord.SYMBOL, self.symbol_number(position))
                case BinaryExpr(a=a, b=b) if (
                    type(position) in _DIM_OPERATION_WORDS and len(stack) < TypeLimit.STACK
                ):
                    if is_open:
                        words.append(_DIM_OPERATION_WORDS[type(position)])
                    else:
                        stack += [(position, True), (b, False), (a, False)]
                case _:
                    return ()
        return tuple(words)


def _encode_type(kind: Type, symbols: _SymbolTable, depth: int) -> list[int]:
    """Encode a type. The recursion ends at TypeLimit.NESTING: deeper components are unchecked."""
    match kind:
        case TensorType(shape=shape, dtype=dtype):
            code, bits, _ = dtype_code(dtype)
            dims = [_encode_dim(dim, symbols) for dim in shape]
            return [TypeWord.TENSOR, code | bits << 8, len(dims), *dims]
        case TupleType(fields=fields) if depth + 1 < TypeLimit.NESTING:
            inner = [_encode_type(field, symbols, depth + 1) for field in fields]
            return [TypeWord.TUPLE, len(inner), *(word for words in inner for word in words)]
        case _:
            return [TypeWord.ANY]


def _encode_dim(dim: PrimExpr, symbols: _SymbolTable) -> int:
    match dim:
        case IntImm(value=value):
            return value
        case Var() | BinaryExpr():
            return -1 - symbols.symbol_number(dim)
        case _:
            return ANY_DIM_ENCODING


def encode_signatures(functions: Sequence[Sequence[Type]]) -> bytes:
    """Encode the section TYPES: the parameter types of each function in order; none where nothing
    is declared.
    """
    symbols, rows = _SymbolTable(), []
    for types in functions:
        symbols.function_symbols = {}
        words = [word for kind in types for word in _encode_type(kind, symbols, 0)]
        rows.append(_encode_words(words))
    heads = [
        _encode_string(symbol.name)
        + struct.pack("<Q", symbol.upper_bound)
        + _encode_words(symbol.definition)
        for symbol in symbols.table
    ]
    return b"".join([struct.pack("<I", len(heads)), *heads, *rows])


def _encode_words(words: Sequence[int]) -> bytes:
    return struct.pack(f"<I{len(words)}q", len(words), *words)


def _encode_string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


__all__ = ["encode_signatures"]
