"""Scalar expressions and names as Python text: the printer's words.

A scalar sub-expression that is long and used more than once, or nested too deep for Python's
parser, is named on a line of its own: `t = T.meta_var(...)`.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping, Sequence

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import result_dtype, row_of
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
    StringImm,
    Sub,
    Var,
    is_const,
)
from ekiden.ir.prim_visitor import children, post_order
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Broadcast, Buffer, BufferAddress, BufferLoad, Ramp, VectorReduce
from ekiden.tir.regions import BufferRegion

_LONG = 100
"""A sub-expression used twice is named when its text is longer than this."""
_LONGEST = 1000
"""So is any whose text is longer than this."""
_DEEPEST = 40
"""And any with more brackets inside each other than this; Python's parser takes 200."""

# fmt: off
_INFIX: dict[type[BinaryExpr], tuple[str, int]] = {
    Or: ("or", 1), And: ("and", 2),
    EQ: ("==", 4), NE: ("!=", 4), LT: ("<", 4), LE: ("<=", 4), GT: (">", 4), GE: (">=", 4),
    Add: ("+", 5), Sub: ("-", 5),
    Mul: ("*", 6), Div: ("/", 6), FloorDiv: ("//", 6), FloorMod: ("%", 6),
}
# fmt: on
_NOT, _ATOM = 3, 9
_CALLS: dict[type[BinaryExpr], str] = {Min: "min", Max: "max"}
RESERVED = frozenset(("T", "I", "pass", "range", *keyword.kwlist))


@dataclass(frozen=True, slots=True)
class _Text:
    """An expression's text, how strongly it binds, and how deep its brackets nest."""

    text: str
    level: int = _ATOM
    depth: int = 0

    def at(self, level: int) -> str:
        """The text where what stands around binds with `level`."""
        return self.text if self.level >= level else f"({self.text})"


def _literal(e: IntImm | FloatImm) -> str:
    """The number as Python writes it."""
    if e.dtype == "bool":
        return str(bool(e.value))
    if isinstance(e, IntImm):
        return str(int(e.value))
    return repr(float(e.value)) if math.isfinite(e.value) else f'T.{e.dtype}("{e.value}")'


def quoted(text: str) -> str:
    """A string literal, in double quotes where that needs no escapes."""
    plain = repr(text)
    return f'"{plain[1:-1]}"' if plain[0] == "'" and '"' not in plain else plain


def constant_text(e: IntImm | FloatImm) -> str:
    """A constant that stands alone: plain where its dtype is the default one."""
    plain = e.dtype in ("int64", "bool") if isinstance(e, IntImm) else e.dtype == "float32"
    text = _literal(e)
    return text if plain or text.startswith("T.") else f"T.{e.dtype}({text})"


class Names:
    """A name of its own for each variable and buffer in scope."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._used: set[str] = set()
        self._counts: dict[str, int] = {}
        """Hint -> a number from which to look for a free name."""
        self._frames: list[list[tuple[object, str, int, str | None]]] = [[]]
        """What each scope named: (thing, hint, number, the name it had outside)."""

    def of(self, thing: Var | Buffer) -> str:
        """The name; a new one in this scope where it has none."""
        return self._names.get(thing) or self.make(thing, thing.name)

    def known(self, thing: object) -> str | None:
        """The name it has in this scope."""
        return self._names.get(thing)

    def make(self, thing: object, hint: str) -> str:
        """A name like the hint, made an identifier and numbered when it is taken."""
        clean = "".join(c if c.isalnum() or c == "_" else "_" for c in hint)
        if not clean or clean[0].isdigit() or clean in RESERVED or not clean.isidentifier():
            clean = f"v_{clean}" if clean.isascii() else "v"
        name, number = clean, 0
        if name in self._used:
            number = self._counts.get(clean, 1)
            while (name := f"{clean}_{number}") in self._used:
                number += 1
            self._counts[clean] = number + 1
        self._frames[-1].append((thing, clean, number, self._names.get(thing)))
        self._names[thing] = name
        self._used.add(name)
        return name

    def enter(self) -> None:
        """Begin a block of the text."""
        self._frames.append([])

    def leave(self) -> None:
        """End it: its names are free again."""
        for thing, clean, number, outside in reversed(self._frames.pop()):
            self._used.discard(self._names.pop(thing))
            if outside is not None:
                self._names[thing] = outside
            if number:
                self._counts[clean] = min(self._counts[clean], number)


class Expressions:
    """Expressions as text; long shared parts go to `before`."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.before: list[str] = []
        """Lines that must stand above the statement being written."""

    def text(self, e: PrimExpr, level: int = 0) -> str:
        """An expression that stands alone."""
        if isinstance(e, Var):
            return self.names.of(e)
        if isinstance(e, (IntImm, FloatImm)):
            return constant_text(e)
        order = post_order(e)
        shared = _used_twice(order) if len(order) > 30 else frozenset()
        done: dict[int, _Text] = {}
        for each in order:
            known = self.names.known(each)
            if known is not None:
                done[id(each)] = _Text(known)
                continue
            found = self._node(each, done)
            size = len(found.text)
            if each is not e and (
                size > _LONGEST or found.depth > _DEEPEST or (size > _LONG and id(each) in shared)
            ):
                name = self.names.make(each, "t")
                self.before.append(f"{name} = T.meta_var({found.text})")
                found = _Text(name)
            done[id(each)] = found
        return done[id(e)].at(level)

    def many(self, values: Sequence[PrimExpr]) -> str:
        """Expressions separated by commas."""
        return ", ".join([self.text(v) for v in values])

    def shape(self, values: Sequence[PrimExpr]) -> str:
        """A tuple of expressions."""
        return f"({self.many(values)},)" if len(values) == 1 else f"({self.many(values)})"

    def element(self, buffer: Buffer, indices: Sequence[PrimExpr], dtype: str) -> str:
        """`A[i, j]`; `A.bytes[i]` where a small type is stored to as bytes."""
        return f"{self._owner(buffer, dtype)}[{self.many(indices) or '()'}]"

    def _owner(self, buffer: Buffer, dtype: str) -> str:
        as_bytes = dt.is_small(dt.element(buffer.dtype)) and dt.element(dtype) == "uint8"
        return f"{self.names.of(buffer)}{'.bytes' if as_bytes else ''}"

    def stored(self, e: PrimExpr, dtype: str) -> str:
        """A value where a number would get this dtype."""
        is_plain = isinstance(e, (IntImm, FloatImm)) and e.dtype == dtype
        return _literal(e) if is_plain else self.text(e)  # type: ignore[arg-type]

    def _node(self, e: PrimExpr, done: Mapping[int, _Text]) -> _Text:
        match e:
            case Var():
                return _Text(self.names.of(e))
            case IntImm() | FloatImm():
                return _Text(constant_text(e))
            case BinaryExpr():
                return self._binary(e, done)
            case Not():
                inner = done[id(e.a)]
                if is_const(e.a):
                    return _Text(f"T.Not({inner.text})")
                return _Text(f"not {inner.at(_NOT)}", _NOT, inner.depth + 1)
            case BufferLoad():
                parts = [done[id(i)] for i in e.indices]
                inside = ", ".join([p.text for p in parts]) or "()"
                owner = self._owner(e.buffer, e.dtype)
                return _Text(f"{owner}[{inside}]", _ATOM, _deepest(parts))
            case _:
                parts = [done[id(c)] for c in children(e)]
                return _Text(self._call(e, [p.text for p in parts]), _ATOM, _deepest(parts))

    def _binary(self, e: BinaryExpr, done: Mapping[int, _Text]) -> _Text:
        a, b = done[id(e.a)], done[id(e.b)]
        depth = max(a.depth, b.depth) + 1
        kind = type(e)
        if kind in _CALLS:
            return _Text(f"T.{_CALLS[kind]}({a.text}, {b.text})", _ATOM, depth)
        if (is_const(e.a) and is_const(e.b)) or (kind is Div and not dt.is_float(e.dtype)):
            name = "truncdiv" if kind is Div else kind.__name__
            return _Text(f"T.{name}({a.text}, {b.text})", _ATOM, depth)
        symbol, level = _INFIX[kind]
        left = level + 1 if level == 4 else level
        first = self._beside(e.a, a, e.b, left)
        return _Text(f"{first} {symbol} {self._beside(e.b, b, e.a, level + 1)}", level, depth)

    def _beside(self, e: PrimExpr, found: _Text, other: PrimExpr, level: int) -> str:
        """An operand: a number beside something of its dtype needs no dtype of its own."""
        if isinstance(e, (IntImm, FloatImm)) and e.dtype == other.dtype:
            return _literal(e)
        return found.at(level)

    def _call(self, e: PrimExpr, x: list[str]) -> str:
        match e:
            case Select():
                return f"T.Select({x[0]}, {x[1]}, {x[2]})"
            case Cast():
                return f'T.Cast("{e.dtype}", {x[0]})'
            case Intrinsic():
                if row_of(e.op).is_typed:
                    return f'T.{e.op}("{e.dtype}", {", ".join(x)})'
                if e.dtype == result_dtype(e.op, e.args):
                    return f"T.{e.op}({', '.join(x)})"
                return f"T.call_intrin({', '.join([quoted(e.dtype), quoted(e.op), *x])})"
            case Ramp():
                return f"T.Ramp({x[0]}, {x[1]}, {e.lanes})"
            case Broadcast():
                return f"T.Broadcast({x[0]}, {e.lanes})"
            case VectorReduce():
                return f'T.VectorReduce("{e.kind}", {x[0]})'
            case BufferAddress():
                return self._address(e)
            case StringImm():
                return quoted(e.value)
            case AnyDim():
                return f'T.Any("{e.dtype}")'
            case _:
                return f"T.{type(e).__name__}({', '.join(x)})"

    def _address(self, e: BufferAddress) -> str:
        name = self.names.of(e.buffer)
        if not e.indices and e.access == "rw":
            return name
        region = f", {self.shape(e.indices)}, {self.shape(e.extents)}" if e.indices else ""
        return f'{name}.access_ptr("{e.access}"{region})'

    def attribute(self, value: object) -> str:
        """The value of an attribute or annotation, as a Python literal."""
        if isinstance(value, PrimExpr):
            return self.text(value)
        if isinstance(value, (tuple, list)):
            inside = ", ".join(map(self.attribute, value))
            return (
                f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
            )
        if isinstance(value, Mapping):
            return self.mapping(value)
        return quoted(value) if isinstance(value, str) else repr(value)

    def mapping(self, values: Mapping[str, object]) -> str:
        """A dictionary literal."""
        return f"{{{', '.join(f'{quoted(k)}: {self.attribute(v)}' for k, v in values.items())}}}"

    def buffer(self, b: Buffer) -> str:
        """The arguments that make a buffer."""
        parts = [self.shape(b.shape), f'"{b.dtype}"']
        if b.scope != "global":
            parts.append(f'scope="{b.scope}"')
        if b.strides:
            parts.append(f"strides={self.shape(b.strides)}")
        if b.elem_offset is not None:
            parts.append(f"elem_offset={self.text(b.elem_offset)}")
        return ", ".join(parts)

    def region(self, r: BufferRegion) -> str:
        """`A[i, 0:16]`."""
        parts = []
        for each in r.region:
            low = self.text(each.min)
            if is_const(each.extent, 1):
                parts.append(low)
            else:
                parts.append(f"{low}:{self.text(each.min + each.extent)}")
        return f"{self.names.of(r.buffer)}[{', '.join(parts) or '()'}]"


def _deepest(parts: Sequence[_Text]) -> int:
    return max((p.depth for p in parts), default=0) + 1


def _used_twice(order: Sequence[PrimExpr]) -> frozenset[int]:
    seen: set[int] = set()
    twice: set[int] = set()
    for each in order:
        for child in children(each):
            (twice if id(child) in seen else seen).add(id(child))
    return frozenset(twice)


def expression_text(expr: PrimExpr) -> str:
    """An expression alone, for messages: named parts stand on lines above it."""
    exprs = Expressions(Names())
    text = exprs.text(expr)
    return "\n".join([*exprs.before, text])
