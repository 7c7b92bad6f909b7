"""Parser of types, dimensions and attribute values in Relay text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from ekiden.ir import prim
from ekiden.ir.dtype import SCALAR_BITS
from ekiden.ir.intrinsic import INTRINSICS, call_intrin
from ekiden.ir.prim import AnyDim, BinaryExpr, IntImm, Not, PrimExpr, Select, SizeVar
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.ir.text import FUNCTIONS, PRECEDENCE
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
from ekiden.relay.lexer import Source, Token
from ekiden.relay.metadata import Entries
from ekiden.target.virtual_device import CPU, VirtualDevice

_INFIX = {kind.symbol: (level, kind) for kind, level in PRECEDENCE.items()}
_FUNCTIONS: dict[str, type[BinaryExpr]] = {name: kind for kind, name in FUNCTIONS.items()}


class TypeParser:
    """Token stream with a cursor, and the grammar of types."""

    def __init__(self, source: Source, tokens: list[Token]) -> None:
        self.source = source
        self.tokens = tokens
        self.position = 0
        self.meta: Entries = {}
        self.symbols: dict[str, SizeVar] = {}
        """Named dimensions: one name is one dimension in the whole text."""
        self.global_types: dict[str, GlobalTypeVar] = {}
        self.type_vars: list[dict[str, TypeVar]] = []
        self._line_starts = [0, *(m.end() for m in re.finditer("\n", source.text))]

    # Tokens

    @property
    def token(self) -> Token:
        """Return the next token."""
        return self.tokens[self.position]

    def peek(self, ahead: int) -> Token:
        """Return a token ahead, or the last one at the end."""
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)]

    def advance(self) -> Token:
        """Consume the next token."""
        token = self.tokens[self.position]
        if token.kind != "end":
            self.position += 1
        return token

    def next_is(self, text: str) -> bool:
        """Return whether the next token has the given text."""
        token = self.tokens[self.position]
        return token.text == text and token.kind in ("mark", "name")

    def take(self, text: str) -> bool:
        """Consume the next token if it has the given text."""
        if not self.next_is(text):
            return False
        self.position += 1
        return True

    def expect(self, text: str) -> Token:
        """Consume a token of the given text, or raise an error.

        Raises:
            ParseError: The next token is another.
        """
        if not self.next_is(text):
            self.fail(f"expected {text!r}, got {self.shown()}")
        return self.advance()

    def expect_kind(self, kind: str, what: str) -> Token:
        """Consume a token of a kind, or raise an error.

        Raises:
            ParseError: The next token is of another kind.
        """
        if self.token.kind != kind:
            self.fail(f"expected {what}, got {self.shown()}")
        return self.advance()

    def shown(self) -> str:
        """Return the next token as text for a message."""
        token = self.token
        sigil = {"local": "%", "graph": "%", "global": "@"}.get(token.kind, "")
        return "the end of the text" if token.kind == "end" else repr(sigil + token.text)

    def fail(self, message: str) -> NoReturn:
        """Raise ParseError at the next token."""
        self.source.fail(self.token.at, message)

    def place(self, at: int) -> tuple[int, int]:
        """Return line and column of a position, from 1."""
        # Each token asks for its place: counting newlines from the start would be quadratic.
        line = bisect_right(self._line_starts, at)
        return line, at - self._line_starts[line - 1] + 1

    # Types

    @contextmanager
    def type_params(self) -> Iterator[tuple[TypeVar, ...]]:
        """Parse `[A, B]`, in scope inside the `with` block."""
        names: dict[str, TypeVar] = {}
        if self.take("["):
            while not self.take("]"):
                name = self.expect_kind("name", "a type parameter").text
                names[name] = TypeVar(name)
                if not self.next_is("]"):
                    self.expect(",")
        self.type_vars.append(names)
        try:
            yield tuple(names.values())
        finally:
            self.type_vars.pop()

    def type(self) -> Type:
        """Read a type."""
        if self.next_is("("):
            return TupleType(self.types_in_parentheses())
        token = self.expect_kind("name", "a type")
        match token.text:
            case "Tensor":
                return self._tensor()
            case "fn":
                return self._function()
            case "ref":
                inside = self.types_in_parentheses()
                if len(inside) != 1:
                    self.source.fail(token.at, f"ref takes one type, got {len(inside)}")
                return RelayRefType(inside[0])
            case "_":
                return IncompleteType()
            case "Storage":
                return StorageType()
        return self._named_type(token)

    def _named_type(self, token: Token) -> Type:
        for names in reversed(self.type_vars):
            if token.text in names:
                return names[token.text]
        if token.text in self.global_types:
            args = self.types_in_brackets() if self.next_is("[") else ()
            return TypeCall(self.global_types[token.text], args)
        if not _is_dtype(token.text):
            self.source.fail(token.at, f"no type {token.text!r}")
        return TensorType((), _dtype(token.text))

    def _tensor(self) -> TensorType:
        self.expect("[")
        self.expect("(")
        shape: list[PrimExpr] = []
        while not self.take(")"):
            at = self.token.at
            shape.append(self.prim())
            if isinstance(size := shape[-1], prim.IntImm) and size.value < 0:
                self.source.fail(at, f"no dimension may be below 0, got {size.value}")
            if not self.next_is(")"):
                self.expect(",")
        self.expect(",")
        dtype = self.expect_kind("name", "a dtype")
        if not _is_dtype(dtype.text):
            self.source.fail(
                dtype.at, f"no dtype {dtype.text!r}; there are {', '.join(SCALAR_BITS)}"
            )
        self.expect("]")
        return TensorType(tuple(shape), _dtype(dtype.text))

    def _function(self) -> FuncType:
        with self.type_params() as params:
            args = self.types_in_parentheses()
            self.expect("->")
            return FuncType(args, self.type(), params)

    def types_in_parentheses(self) -> tuple[Type, ...]:
        """Read `(A, B)`."""
        return self._types("(", ")")

    def types_in_brackets(self) -> tuple[Type, ...]:
        """Read `[A, B]`."""
        return self._types("[", "]")

    def _types(self, start: str, end: str) -> tuple[Type, ...]:
        self.expect(start)
        kinds: list[Type] = []
        while not self.take(end):
            kinds.append(self.type())
            if not self.next_is(end):
                self.expect(",")
        return tuple(kinds)

    # Dimensions and attribute values

    def prim(self, tightest: int = 0) -> PrimExpr:
        """Parse a scalar expression of at least the given precedence."""
        result = self._prim_atom()
        while (row := _INFIX.get(self.token.text)) is not None and self.token.kind in (
            "mark",
            "name",
        ):
            level, kind = row
            if level < tightest:
                break
            self.advance()
            result = prim.binary(kind, result, self.prim(level + 1))
        return result

    def _prim_atom(self) -> PrimExpr:
        if self.take("?"):
            return AnyDim()
        if self.take("("):
            inside = self.prim()
            self.expect(")")
            return inside
        if self.token.kind == "int" or self.next_is("-"):
            return IntImm(self._int())
        name = self.expect_kind("name", "a dimension")
        if name.text == "meta" and self.next_is("["):
            return self._meta_dimension(name)
        if name.text in ("True", "False"):
            return IntImm(name.text == "True", "bool")
        if self.next_is("("):
            return self._prim_call(name)
        # One name is one dimension in the whole text, also across functions.
        return self.symbols.setdefault(name.text, SizeVar(name.text))

    def meta_entry(self, start: Token) -> object:
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
            self.source.fail(start.at, f"{which}: the text has no such meta data")
        return entries[position]

    def _meta_dimension(self, start: Token) -> PrimExpr:
        """Return the symbol for a metadata dimension, unique by name within the text."""
        dimension = self.meta_entry(start)
        if not isinstance(dimension, PrimExpr):
            self.source.fail(start.at, f"expected meta data that is a dimension, got {dimension!r}")
        named = [v for v in free_vars(dimension) if isinstance(v, SizeVar)]
        return substitute(dimension, {v: self.symbols.setdefault(v.name, v) for v in named})

    def _prim_call(self, name: Token) -> PrimExpr:
        self.expect("(")
        args: list[PrimExpr] = []
        while not self.take(")"):
            args.append(self.prim())
            if not self.next_is(")"):
                self.expect(",")
        try:
            return _apply(name.text, args)
        except (TypeError, KeyError, ValueError):
            self.source.fail(name.at, f"no function {name.text!r} of {len(args)} dimensions")

    def _int(self) -> int:
        negative = self.take("-")
        token = self.expect_kind("int", "a number")
        digits = token.text.partition("i")[0]
        if not digits.isdigit():
            self.source.fail(token.at, f"{token.text} needs a suffix: f (float32), f16 or f64")
        return -int(digits) if negative else int(digits)

    def value(self) -> object:
        """Parse an attribute value: number, string, bool, None, list or scalar expression."""
        token = self.token
        if token.kind == "string":
            return self.advance().text
        if self.take("["):
            return self._list("]")
        if self.next_is("(") and (inside := self._tuple()) is not None:
            return inside
        if token.kind == "float" or (self.next_is("-") and self.peek(1).kind == "float"):
            sign = -1.0 if self.take("-") else 1.0
            return sign * float(self.advance().text.rpartition("f")[0])
        if self.take("None") or self.take("nullptr"):
            return None
        if token.text == "meta" and token.kind == "name" and self.peek(1).text == "[":
            return self._meta_value()
        if token.text == "VirtualDevice" and self.peek(1).text == "(":
            return self._virtual_device()
        scalar = self.prim()
        if isinstance(scalar, IntImm):
            return bool(scalar.value) if scalar.dtype == "bool" else scalar.value
        return scalar

    def _virtual_device(self) -> VirtualDevice:
        """Parse `VirtualDevice(device_type=1, virtual_device_id=0, target=...,
        memory_scope="")`.
        """
        self.advance()
        self.expect("(")
        numbers: dict[str, int] = {}
        scope = ""
        while not self.take(")"):
            key = self.advance().text
            self.expect("=")
            if key in ("device_type", "virtual_device_id"):
                number = self.value()
                if not isinstance(number, int):
                    self.fail(f"expected a number as {key}, got {number!r}")
                numbers[key] = number
            elif key == "memory_scope":
                scope = str(self.value())
            else:
                self._skip_value()
            if not self.next_is(")"):
                self.expect(",")
        kind, number = numbers.get("device_type", CPU), numbers.get("virtual_device_id", 0)
        return VirtualDevice(kind, memory_scope=scope, virtual_device_id=number)

    def _skip_value(self) -> None:
        """Skip TVM's target description, which compilation supplies here."""
        depth = 0
        while self.token.kind != "end":
            text = self.token.text if self.token.kind == "mark" else ""
            if depth == 0 and text in (",", ")", "}"):
                return
            depth += (text in ("(", "[", "{")) - (text in (")", "]", "}"))
            self.advance()

    def _list(self, end: str) -> tuple[object, ...]:
        values: list[object] = []
        while not self.take(end):
            values.append(self.value())
            if not self.next_is(end):
                self.expect(",")
        return tuple(values)

    def _tuple(self) -> tuple[object, ...] | None:
        """Parse `(a, b)`, or return None if the parenthesis begins a scalar expression."""
        start = self.position
        self.advance()
        values = self._list(")")
        if len(values) == 1 and self.tokens[self.position - 2].text != ",":
            # A parenthesis around one value belongs to a scalar expression: it is read again as
            # such.
            self.position = start
            return None
        return values

    def _meta_value(self) -> object:
        """Parse metadata as an attribute value: None where it has no meaning here."""
        return self.meta_entry(self.advance())


def _is_dtype(name: str) -> bool:
    scalar, _, lanes = _dtype(name).partition("x")
    return scalar in SCALAR_BITS and (not lanes or lanes.isdigit())


_DTYPES = {"int": "int32", "uint": "uint32", "float": "float32", "uint1": "bool"}
"""dtype as TVM's text may have it -> its own name."""


def _dtype(name: str) -> str:
    """Return the canonical name of a dtype."""
    scalar, lanes, count = name.partition("x")
    return f"{_DTYPES.get(scalar, scalar)}{lanes}{count}"


def _apply(name: str, args: list[PrimExpr]) -> PrimExpr:
    """Build `floordiv(a, b)`, `select(c, a, b)`, `int32(a)`, `exp(a)` and other scalar calls."""
    if name in _FUNCTIONS:
        a, b = args
        return prim.binary(_FUNCTIONS[name], a, b)
    if name == "not":
        (a,) = args
        return Not(a)
    if name == "select":
        c, t, f = args
        return Select(c, t, f, t.dtype)
    if name in SCALAR_BITS:
        (a,) = args
        return prim.cast(a, name)
    return call_intrin(name, *args) if name in INTRINSICS else _unknown(name)


def _unknown(name: str) -> NoReturn:
    raise KeyError(name)
