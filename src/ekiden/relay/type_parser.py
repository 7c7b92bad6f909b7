"""Parser of types, dimensions and attribute values in Relay text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from ekiden.ir import prim
from ekiden.ir.dtype import SCALAR_BITS
from ekiden.ir.expr_text import CALL_SYNTAX_OPERATORS, OPERATOR_PRECEDENCE
from ekiden.ir.intrinsic import INTRINSICS, call_intrin
from ekiden.ir.prim import AnyDim, BinaryExpr, IntImm, Not, PrimExpr, Select, SizeVar
from ekiden.ir.prim_visitor import free_vars, substitute
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
from ekiden.relay.lexer import LexerToken, SourceText
from ekiden.relay.metadata import Entries
from ekiden.target.virtual_device import CPU_DEVICE_TYPE, VirtualDevice

_INFIX_PRIM_OPS = {kind.symbol: (level, kind) for kind, level in OPERATOR_PRECEDENCE.items()}
_PRIM_FUNCTIONS: dict[str, type[BinaryExpr]] = {
    name: kind for kind, name in CALL_SYNTAX_OPERATORS.items()
}


class TypeParser:
    """Token stream with a cursor, and the grammar of types."""

    def __init__(self, source: SourceText, tokens: list[LexerToken]) -> None:
        self.source = source
        self.tokens = tokens
        self.position = 0
        self.meta: Entries = {}
        self.symbols: dict[str, SizeVar] = {}
        """Dimension symbols by name, shared across the text."""
        self.global_types: dict[str, GlobalTypeVar] = {}
        self.type_vars: list[dict[str, TypeVar]] = []
        self._line_starts = [0, *(m.end() for m in re.finditer("\n", source.text))]

    # Tokens

    @property
    def next_token(self) -> LexerToken:
        """Return the next token."""
        return self.tokens[self.position]

    def peek_token(self, ahead: int) -> LexerToken:
        """Return a token ahead, or the last one at the end."""
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)]

    def advance(self) -> LexerToken:
        """Consume the next token."""
        token = self.tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def next_is(self, text: str) -> bool:
        """Return whether the next token has the given text."""
        token = self.tokens[self.position]
        return token.text == text and token.kind in ("mark", "name")

    def accept(self, text: str) -> bool:
        """Consume the next token if it has the given text."""
        if not self.next_is(text):
            return False
        self.position += 1
        return True

    def expect(self, text: str) -> LexerToken:
        """Consume a token of the given text, or raise an error.

        Raises:
            ParseError: The next token is another.
        """
        if not self.next_is(text):
            self.raise_error(f"expected {text!r}, got {self.token_description()}")
        return self.advance()

    def expect_kind(self, kind: str, what: str) -> LexerToken:
        """Consume a token of a kind, or raise an error.

        Raises:
            ParseError: The next token is of another kind.
        """
        if self.next_token.kind != kind:
            self.raise_error(f"expected {what}, got {self.token_description()}")
        return self.advance()

    def token_description(self) -> str:
        """Return the next token as text for a message."""
        token = self.next_token
        sigil = {"local": "%", "graph": "%", "global": "@"}.get(token.kind, "")
        return "the end of the text" if token.kind == "end" else repr(sigil + token.text)

    def raise_error(self, message: str) -> NoReturn:
        """Raise ParseError at the next token."""
        self.source.raise_parse_error(self.next_token.at, message)

    def line_and_column(self, at: int) -> tuple[int, int]:
        """Return line and column of a position, from 1."""
        # Each token asks for its place: counting newlines from the start would be quadratic.
        line = bisect_right(self._line_starts, at)
        return line, at - self._line_starts[line - 1] + 1

    # Types

    @contextmanager
    def parse_type_params(self) -> Iterator[tuple[TypeVar, ...]]:
        """Parse `[A, B]`, in scope inside the `with` block."""
        names: dict[str, TypeVar] = {}
        if self.accept("["):
            while not self.accept("]"):
                name = self.expect_kind("name", "a type parameter").text
                names[name] = TypeVar(name)
                if not self.next_is("]"):
                    self.expect(",")
        self.type_vars.append(names)
        try:
            yield tuple(names.values())
        finally:
            self.type_vars.pop()

    def parse_type(self) -> Type:
        """Read a type."""
        if self.next_is("("):
            return TupleType(self.parse_types_in_parentheses())
        token = self.expect_kind("name", "a type")
        match token.text:
            case "Tensor":
                return self._parse_tensor_type()
            case "fn":
                return self._parse_function_type()
            case "ref":
                inside = self.parse_types_in_parentheses()
                if len(inside) != 1:
                    self.source.raise_parse_error(
                        token.at, f"ref takes one type, got {len(inside)}"
                    )
                return RelayRefType(inside[0])
            case "_":
                return IncompleteType()
            case "Storage":
                return StorageType()
        return self._parse_named_type(token)

    def _parse_named_type(self, token: LexerToken) -> Type:
        for names in reversed(self.type_vars):
            if token.text in names:
                return names[token.text]
        if token.text in self.global_types:
            args = self.parse_types_in_brackets() if self.next_is("[") else ()
            return TypeCall(self.global_types[token.text], args)
        if not _is_dtype(token.text):
            self.source.raise_parse_error(token.at, f"no type {token.text!r}")
        return TensorType((), _canonical_dtype(token.text))

    def _parse_tensor_type(self) -> TensorType:
        self.expect("[")
        self.expect("(")
        shape: list[PrimExpr] = []
        while not self.accept(")"):
            position = self.next_token.at
            shape.append(self.parse_prim())
            if isinstance(size := shape[-1], prim.IntImm) and size.value < 0:
                self.source.raise_parse_error(
                    position, f"no dimension may be below 0, got {size.value}"
                )
            if not self.next_is(")"):
                self.expect(",")
        self.expect(",")
        dtype = self.expect_kind("name", "a dtype")
        if not _is_dtype(dtype.text):
            self.source.raise_parse_error(
                dtype.at, f"no dtype {dtype.text!r}; there are {', '.join(SCALAR_BITS)}"
            )
        self.expect("]")
        return TensorType(tuple(shape), _canonical_dtype(dtype.text))

    def _parse_function_type(self) -> FuncType:
        with self.parse_type_params() as params:
            args = self.parse_types_in_parentheses()
            self.expect("->")
            return FuncType(args, self.parse_type(), params)

    def parse_types_in_parentheses(self) -> tuple[Type, ...]:
        """Read `(A, B)`."""
        return self._parse_types("(", ")")

    def parse_types_in_brackets(self) -> tuple[Type, ...]:
        """Read `[A, B]`."""
        return self._parse_types("[", "]")

    def _parse_types(self, start: str, end: str) -> tuple[Type, ...]:
        self.expect(start)
        kinds: list[Type] = []
        while not self.accept(end):
            kinds.append(self.parse_type())
            if not self.next_is(end):
                self.expect(",")
        return tuple(kinds)

    # Dimensions and attribute values

    def parse_prim(self, tightest: int = 0) -> PrimExpr:
        """Parse a scalar expression of at least the given precedence."""
        result = self._parse_prim_atom()
        while (
            row := _INFIX_PRIM_OPS.get(self.next_token.text)
        ) is not None and self.next_token.kind in (
            "mark",
            "name",
        ):
            level, kind = row
            if level < tightest:
                break
            self.advance()
            result = prim.fold_binary(kind, result, self.parse_prim(level + 1))
        return result

    def _parse_prim_atom(self) -> PrimExpr:
        if self.accept("?"):
            return AnyDim()
        if self.accept("("):
            inside = self.parse_prim()
            self.expect(")")
            return inside
        if self.next_token.kind == "int" or self.next_is("-"):
            return IntImm(self._parse_int())
        name = self.expect_kind("name", "a dimension")
        if name.text == "meta" and self.next_is("["):
            return self._resolve_meta_dimension(name)
        if name.text in ("True", "False"):
            return IntImm(name.text == "True", "bool")
        if self.next_is("("):
            return self._parse_prim_call(name)
        # One name is one dimension in the whole text, also across functions.
        return self.symbols.setdefault(name.text, SizeVar(name.text))

    def parse_meta_entry(self, start: LexerToken) -> object:
        """Parse `[relay.Constant][3]`, and return the metadata entry.

        Raises:
            ParseError: There is no such entry.
        """
        self.expect("[")
        key = self.expect_kind("name", "relay.Constant")
        self.expect("]")
        self.expect("[")
        index = self.expect_kind("int", "a number")
        self.expect("]")
        entries = self.meta.get(key.text, ())
        position = int(index.text) if index.text.isdigit() else len(entries)
        if position >= len(entries):
            which = f"meta[{key.text}][{index.text}]"
            self.source.raise_parse_error(start.at, f"{which}: the text has no such meta data")
        return entries[position]

    def _resolve_meta_dimension(self, start: LexerToken) -> PrimExpr:
        """Return the symbol for a metadata dimension, unique by name within the text."""
        dimension = self.parse_meta_entry(start)
        if not isinstance(dimension, PrimExpr):
            self.source.raise_parse_error(
                start.at, f"expected meta data that is a dimension, got {dimension!r}"
            )
        named = [v for v in free_vars(dimension) if isinstance(v, SizeVar)]
        return substitute(dimension, {v: self.symbols.setdefault(v.name, v) for v in named})

    def _parse_prim_call(self, name: LexerToken) -> PrimExpr:
        self.expect("(")
        args: list[PrimExpr] = []
        while not self.accept(")"):
            args.append(self.parse_prim())
            if not self.next_is(")"):
                self.expect(",")
        try:
            return _build_prim_call(name.text, args)
        except (TypeError, KeyError, ValueError):
            self.source.raise_parse_error(
                name.at, f"no function {name.text!r} of {len(args)} dimensions"
            )

    def _parse_int(self) -> int:
        negative = self.accept("-")
        token = self.expect_kind("int", "a number")
        digits = token.text.partition("i")[0]
        if not digits.isdigit():
            self.source.raise_parse_error(
                token.at, f"{token.text} needs a suffix: f (float32), f16 or f64"
            )
        return -int(digits) if negative else int(digits)

    def parse_attr_value(self) -> object:
        """Parse an attribute value: number, string, bool, None, list or scalar expression."""
        token = self.next_token
        if token.kind == "string":
            return self.advance().text
        if self.accept("["):
            return self._parse_list("]")
        if self.next_is("(") and (inside := self._parse_tuple()) is not None:
            return inside
        if token.kind == "float" or (self.next_is("-") and self.peek_token(1).kind == "float"):
            sign = -1.0 if self.accept("-") else 1.0
            return sign * float(self.advance().text.rpartition("f")[0])
        if self.accept("None") or self.accept("nullptr"):
            return None
        if token.text == "meta" and token.kind == "name" and self.peek_token(1).text == "[":
            return self._parse_meta_value()
        if token.text == "VirtualDevice" and self.peek_token(1).text == "(":
            return self._parse_virtual_device()
        scalar = self.parse_prim()
        if isinstance(scalar, IntImm):
            return bool(scalar.value) if scalar.dtype == "bool" else scalar.value
        return scalar

    def _parse_virtual_device(self) -> VirtualDevice:
        """Parse `VirtualDevice(device_type=1, virtual_device_id=0, target=...,
        memory_scope="")`.
        """
        self.advance()
        self.expect("(")
        numbers: dict[str, int] = {}
        scope = ""
        while not self.accept(")"):
            key = self.advance().text
            self.expect("=")
            if key in ("device_type", "virtual_device_id"):
                number = self.parse_attr_value()
                if not isinstance(number, int):
                    self.raise_error(f"expected a number as {key}, got {number!r}")
                numbers[key] = number
            elif key == "memory_scope":
                scope = str(self.parse_attr_value())
            else:
                self._skip_value()
            if not self.next_is(")"):
                self.expect(",")
        kind, number = (
            numbers.get("device_type", CPU_DEVICE_TYPE),
            numbers.get("virtual_device_id", 0),
        )
        return VirtualDevice(kind, memory_scope=scope, virtual_device_id=number)

    def _skip_value(self) -> None:
        """Skip TVM's target description, which compilation supplies here."""
        depth = 0
        while self.next_token.kind != "end":
            text = self.next_token.text if self.next_token.kind == "mark" else ""
            if depth == 0 and text in (",", ")", "}"):
                return
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
            self.advance()

    def _parse_list(self, end: str) -> tuple[object, ...]:
        values: list[object] = []
        while not self.accept(end):
            values.append(self.parse_attr_value())
            if not self.next_is(end):
                self.expect(",")
        return tuple(values)

    def _parse_tuple(self) -> tuple[object, ...] | None:
        """Parse `(a, b)`, or return None if the parenthesis begins a scalar expression."""
        start = self.position
        self.advance()
        values = self._parse_list(")")
        if len(values) == 1 and self.tokens[self.position - 2].text != ",":
            # A parenthesis around one value belongs to a scalar expression: it is read again as
            # such.
            self.position = start
            return None
        return values

    def _parse_meta_value(self) -> object:
        """Parse metadata as an attribute value: None where it has no meaning here."""
        return self.parse_meta_entry(self.advance())


def _is_dtype(name: str) -> bool:
    scalar, _, lanes = _canonical_dtype(name).partition("x")
    return scalar in SCALAR_BITS and (not lanes or lanes.isdigit())


_DTYPE_ALIASES = {"int": "int32", "uint": "uint32", "float": "float32", "uint1": "bool"}
"""Canonical dtype by TVM's spelling."""


def _canonical_dtype(name: str) -> str:
    """Return the canonical name of a dtype."""
    scalar, lanes, count = name.partition("x")
    return f"{_DTYPE_ALIASES.get(scalar, scalar)}{lanes}{count}"


def _build_prim_call(name: str, args: list[PrimExpr]) -> PrimExpr:
    """Build `floordiv(a, b)`, `select(c, a, b)`, `int32(a)`, `exp(a)` and other scalar calls."""
    if name in _PRIM_FUNCTIONS:
        a, b = args
        return prim.fold_binary(_PRIM_FUNCTIONS[name], a, b)
    if name == "not":
        (a,) = args
        return Not(a)
    if name == "select":
        c, t, f = args
        return Select(c, t, f, t.dtype)
    if name in SCALAR_BITS:
        (a,) = args
        return prim.cast(a, name)
    return call_intrin(name, *args) if name in INTRINSICS else _raise_unknown_function(name)


def _raise_unknown_function(name: str) -> NoReturn:
    raise KeyError(name)
