"""PrimFuncs as Python text that `ekiden.tir.script` reads back: the manner of TVMScript.

`astext` is the text, `text_and_lines` also says on which line each statement stands. A scalar
sub-expression that is long and used more than once, or nested too deep for Python's parser, is
named on a line of its own: `t = T.meta_var(...)`.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import result_dtype
from ekiden.ir.module import IRModule
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
    SizeVar,
    StringImm,
    Sub,
    Var,
    is_const,
)
from ekiden.ir.prim_visitor import children, free_vars, post_order
from ekiden.tir.expr import Broadcast, Buffer, BufferAddress, BufferLoad, Ramp, VectorReduce
from ekiden.tir.regions import BufferRegion, block_regions
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    Block,
    BlockRealize,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    LetStmt,
    Prefetch,
    PrimFunc,
    SeqStmt,
    Stmt,
)

HEADER = "# from ekiden.script import tir as T"
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
_AXES = {IterKind.SPATIAL: "spatial", IterKind.REDUCE: "reduce", IterKind.OPAQUE: "opaque"}
_KINDS = {**{k: k.value for k in ForKind}, ForKind.UNROLLED: "unroll"}
_RESERVED = frozenset(("T", "I", "pass", "range", *keyword.kwlist))


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


class _Names:
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
        if not clean or clean[0].isdigit() or clean in _RESERVED or not clean.isidentifier():
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


class _Expressions:
    """Expressions as text; long shared parts go to `before`."""

    def __init__(self, names: _Names) -> None:
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

    def element(self, buffer: Buffer, indices: Sequence[PrimExpr]) -> str:
        """`A[i, j]`."""
        return f"{self.names.of(buffer)}[{self.many(indices) or '()'}]"

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
                return _Text(f"{self.names.of(e.buffer)}[{inside}]", _ATOM, _deepest(parts))
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
                if e.op == "call_extern":
                    return f'T.call_extern("{e.dtype}", {", ".join(x)})'
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


@dataclass(frozen=True, slots=True)
class _Line:
    """A line to write when its turn comes."""

    text: str
    indent: int


_LEAVE = object()
_Task = tuple[Stmt, int, bool] | _Line | object
"""A statement with its indentation and whether it ends its block; a line; or a scope's end."""


class _Printer:
    """Writes statements with a stack of its own, whatever their depth."""

    def __init__(self) -> None:
        self.names = _Names()
        self.exprs = _Expressions(self.names)
        self.lines: list[str] = []
        self.line_of: dict[Stmt, int] = {}
        self._stack: list[_Task] = []
        self._loops: dict[Var, PrimExpr] = {}
        """Extents of the loops from 0 around the statement, for T.axis.remap."""

    def put(self, text: str, indent: int) -> None:
        """Add a line, after those that its expressions need."""
        if self.exprs.before:
            self.lines.extend("    " * indent + line for line in self.exprs.before)
            self.exprs.before.clear()
        self.lines.append("    " * indent + text)

    def run(self, root: Stmt, indent: int) -> None:
        """Write a statement and everything inside."""
        stack = self._stack
        stack.append((root, indent, True))
        while stack:
            task = stack.pop()
            if isinstance(task, tuple):
                self._statement(*task)
            elif isinstance(task, _Line):
                self.put(task.text, task.indent)
            else:
                self.names.leave()

    def _inside(self, body: Stmt, indent: int) -> None:
        """Write a body as a block of its own, later; names until then are its."""
        self.names.enter()
        self._stack.append(_LEAVE)
        self._stack.append((body, indent, True))

    def _statement(self, s: Stmt, indent: int, last: bool) -> None:
        e = self.exprs
        match s:
            case SeqStmt():
                count = len(s.seq) - 1
                for n in range(count, -1, -1):
                    self._stack.append((s.seq[n], indent, last and n == count))
                return
            case BufferStore():
                self._store(s, indent)
            case For():
                self._loop(s, indent)
                return
            case BlockRealize():
                self._block(s, indent)
                return
            case IfThenElse():
                self._branch(s, indent)
                return
            case LetStmt():
                self._let(s, indent, last)
                return
            case Allocate():
                self._allocate(s, indent, last)
                return
            case Evaluate():
                self._evaluate(s, indent)
            case AssertStmt():
                message = quoted(s.message)
                what = message if s.kind == "RunError" else f"({quoted(s.kind)}, {message})"
                self.put(f"assert {e.text(s.condition)}, {what}", indent)
            case Prefetch():
                at = e.element(s.buffer, s.indices)
                self.put(f"T.prefetch({at}, {s.locality})", indent)
            case Block():
                self._stack.append((s.body, indent, last))
                return
            case _:
                self.put(f"T.{type(s).__name__}()", indent)
        self.line_of.setdefault(s, len(self.lines))

    def _opened(self, s: Stmt, head: str, indent: int) -> None:
        self.put(head, indent)
        self.line_of.setdefault(s, len(self.lines))

    def _store(self, s: BufferStore, indent: int) -> None:
        e = self.exprs
        value = e.stored(s.value, s.buffer.dtype)
        if s.predicate is None:
            self.put(f"{e.element(s.buffer, s.indices)} = {value}", indent)
            return
        at = f"{e.names.of(s.buffer)}.vstore([{e.many(s.indices)}], {value}"
        self.put(f"{at}, predicate={e.text(s.predicate)})", indent)

    def _evaluate(self, s: Evaluate, indent: int) -> None:
        if is_const(s.value, 0) and s.value.dtype == "int64":
            self.put("pass", indent)
            return
        text = self.exprs.text(s.value)
        self.put(text if isinstance(s.value, Intrinsic) else f"T.evaluate({text})", indent)

    def _let(self, s: LetStmt, indent: int, last: bool) -> None:
        value = self.exprs.text(s.value)
        if last:
            name = self.names.make(s.var, s.var.name)
            self._opened(s, f"{name}: T.{s.var.dtype} = {value}", indent)
            self._stack.append((s.body, indent, True))
            return
        self._inside(s.body, indent + 1)
        name = self.names.make(s.var, s.var.name)
        dtype = "" if s.var.dtype == s.value.dtype else f', "{s.var.dtype}"'
        self._opened(s, f"with T.LetStmt({value}{dtype}) as {name}:", indent)

    def _allocate(self, s: Allocate, indent: int, last: bool) -> None:
        arguments = self.exprs.buffer(s.buffer)
        if last:
            name = self.names.make(s.buffer, s.buffer.name)
            self._opened(s, f"{name} = T.alloc_buffer({arguments})", indent)
            self._stack.append((s.body, indent, True))
            return
        self._inside(s.body, indent + 1)
        name = self.names.make(s.buffer, s.buffer.name)
        self._opened(s, f"with T.alloc_buffer({arguments}) as {name}:", indent)

    def _branch(self, s: IfThenElse, indent: int) -> None:
        self._opened(s, f"if {self.exprs.text(s.condition)}:", indent)
        if s.else_case is not None:
            self._stack.append(_LEAVE)
            self._stack.append((s.else_case, indent + 1, True))
            self._stack.append(_Line("else:", indent))
            self.names.enter()
        self._inside(s.then_case, indent + 1)

    # Loops.

    def _loop(self, s: For, indent: int) -> None:
        nest = _grid(s)
        extents = [self.exprs.text(f.extent) for f in nest]
        lows = [self.exprs.text(f.min) for f in nest]
        kind = self._kind(nest[0], lows[0], extents[0])
        self._inside(nest[-1].body, indent + 1)
        names = []
        for each in nest:
            names.append(self.names.make(each.loop_var, each.loop_var.name))
            self.line_of.setdefault(each, len(self.lines) + len(self.exprs.before) + 1)
            if is_const(each.min, 0):
                self._loops[each.loop_var] = each.extent
        head = f"T.grid({', '.join(extents)})" if len(nest) > 1 else kind
        self.put(f"for {', '.join(names)} in {head}:", indent)

    def _kind(self, s: For, low: str, extent: str) -> str:
        notes = dict(s.annotations or {})
        more = ""
        if s.kind is ForKind.THREAD_BINDING and "thread" in notes:
            more = f', thread="{notes.pop("thread")}"'
        if notes or (s.annotations is not None and not s.annotations):
            more += f", annotations={self.exprs.mapping(notes)}"
        if is_const(s.min, 0) and s.min.dtype == s.extent.dtype:
            bounds = extent
        elif isinstance(s.min, IntImm) and isinstance(s.extent, IntImm) and s.min.dtype == "int64":
            bounds = f"{low}, {s.min.value + s.extent.value}"
        else:
            bounds = f"{low}, extent={extent}"
        if s.kind is ForKind.SERIAL and not more and "extent=" not in bounds:
            return f"range({bounds})"
        return f"T.{_KINDS[s.kind]}({bounds}{more})"

    # Blocks.

    def _block(self, s: BlockRealize, indent: int) -> None:
        b = s.block
        self._opened(s, f"with T.block({quoted(b.name)}):", indent)
        self.line_of.setdefault(b, len(self.lines))
        self.names.enter()
        self._stack.append(_LEAVE)
        indent += 1
        self._axes(s, indent)
        if not (isinstance(s.predicate, IntImm) and s.predicate.value):
            self.put(f"T.where({self.exprs.text(s.predicate)})", indent)
        reads, writes = block_regions(b)
        for word, found in (("reads", reads), ("writes", writes)):
            text = ", ".join([self.exprs.region(r) for r in found])
            self.put(f"T.{word}({text})", indent)
        if b.annotations is not None:
            self.put(f"T.block_attr({self.exprs.mapping(b.annotations)})", indent)
        self._stack.append((b.body, indent, True))
        if b.init is not None:
            self.names.enter()
            self._stack.append(_LEAVE)
            self._stack.append((b.init, indent + 1, True))
            self.put("with T.init():", indent)

    def _axes(self, s: BlockRealize, indent: int) -> None:
        pairs = list(zip(s.block.iter_vars, s.iter_values, strict=False))  # verify's to refuse
        at = 0
        while at < len(pairs):
            end = at
            while end < len(pairs) and self._is_loop(*pairs[end]):
                end += 1
            if end - at > 1:
                run = pairs[at:end]
                kinds = "".join(v.kind.value[0].upper() for v, _ in run)
                values = ", ".join([self.exprs.text(value) for _, value in run])
                names = ", ".join([self.names.make(v.var, v.var.name) for v, _ in run])
                self.put(f'{names} = T.axis.remap("{kinds}", [{values}])', indent)
                at = end
                continue
            each, value = pairs[at]
            bound = f"{self.exprs.text(each.extent)}, {self.exprs.text(value)}"
            name = self.names.make(each.var, each.var.name)
            self.put(f"{name} = T.axis.{_AXES[each.kind]}({bound})", indent)
            at += 1

    def _is_loop(self, each: object, value: PrimExpr) -> bool:
        """Whether an axis is a loop of the same extent."""
        extent = self._loops.get(value) if isinstance(value, Var) else None
        own = each.extent  # type: ignore[attr-defined]
        return extent is not None and (
            extent is own
            or (
                isinstance(extent, IntImm)
                and isinstance(own, IntImm)
                and (extent.value, extent.dtype) == (own.value, own.dtype)
            )
        )

    # Functions.

    def function(self, func: PrimFunc, indent: int = 0, own_name: str | None = None) -> None:
        """Write a whole function; `own_name` is the name it has in a module."""
        attrs = dict(func.attrs) if func.attrs is not None else None
        symbol = None if attrs is None else attrs.get("global_symbol")
        name = own_name or (symbol if _is_name(symbol) else "main")
        if attrs is not None and symbol == name:
            del attrs["global_symbol"]
        symbols = _symbols(func.params)
        handles: list[tuple[Buffer, str]] = []
        params = []
        for b in func.params:
            if symbols.keys() & free_vars(*b.sizes()):
                handle = self.names.make(object(), f"{b.name}_handle")
                handles.append((b, handle))
                params.append(f"{handle}: T.handle")
                self.names.make(b, b.name)
            else:
                own = self.names.make(b, b.name)
                params.append(f"{own}: T.Buffer({self.exprs.buffer(b)})")
        private = symbol is None
        self.put("@T.prim_func(private=True)" if private else "@T.prim_func", indent)
        self._signature(name, params, indent)
        if attrs or (attrs is not None and private):
            self.put(f"T.func_attr({self.exprs.mapping(attrs)})", indent + 1)
        for var in symbols:
            own = self.names.make(var, var.name)
            self.put(f"{own} = {_declared(var)}", indent + 1)
        for b, handle in handles:
            arguments = self.exprs.buffer(b)
            self.put(f"{self.names.of(b)} = T.match_buffer({handle}, {arguments})", indent + 1)
        self.run(func.body, indent + 1)

    def _signature(self, name: object, params: Sequence[str], indent: int) -> None:
        line = f"def {name}({', '.join(params)}):"
        if len(line) + 4 * indent <= 100:
            self.put(line, indent)
            return
        self.put(f"def {name}(", indent)
        for each in params:
            self.put(f"{each},", indent + 1)
        self.put("):", indent)


def _is_name(symbol: object) -> bool:
    return isinstance(symbol, str) and symbol.isidentifier() and symbol not in _RESERVED


def _declared(var: Var) -> str:
    if not isinstance(var, SizeVar):
        return f"T.{var.dtype}()"
    upper = "" if var.upper is None else f", upper={var.upper}"
    return f"T.{var.dtype}(is_size_var=True{upper})"


def _symbols(params: Sequence[Buffer]) -> dict[Var, None]:
    """The variables in the sizes of parameters, in order of appearance."""
    return dict.fromkeys(v for b in params for v in free_vars(*b.sizes()))


def _grid(s: For) -> list[For]:
    """The perfect nest of plain loops that starts here; extents must not use its variables."""
    nest = [s]
    if not _is_plain(s):
        return nest
    bound = {s.loop_var}
    while isinstance(inner := nest[-1].body, For) and _is_plain(inner):
        if not isinstance(inner.extent, IntImm) and bound & set(free_vars(inner.extent)):
            break
        nest.append(inner)
        bound.add(inner.loop_var)
    return nest


def _is_plain(s: For) -> bool:
    return (
        s.kind is ForKind.SERIAL
        and s.annotations is None
        and is_const(s.min, 0)
        and s.min.dtype == s.extent.dtype
    )


def text_and_lines(func: PrimFunc) -> tuple[str, dict[Stmt, int]]:
    """The text, and the line (from 1) of each statement: what debug information and errors name."""
    printer = _Printer()
    printer.lines += [HEADER, ""]
    printer.function(func)
    return "\n".join(printer.lines) + "\n", printer.line_of


def astext(func: PrimFunc) -> str:
    """The function as Python text that `ekiden.tir.parse` reads back.

    Names are made unique where they are in scope, so equal functions have equal text.
    """
    return text_and_lines(func)[0]


def statement_text(stmt: Stmt) -> str:
    """A statement alone, for messages; what it uses from outside stands by name."""
    printer = _Printer()
    printer.run(stmt, 0)
    return "\n".join(printer.lines)


def expression_text(expr: PrimExpr) -> str:
    """An expression alone, for messages: named parts stand on lines above it."""
    exprs = _Expressions(_Names())
    text = exprs.text(expr)
    return "\n".join([*exprs.before, text])


def module_text(module: IRModule) -> str:
    """A module as a Python class: loop programs as its methods, Relay functions and types as Relay
    text in a string.

    Raises ValueError for a loop program whose name is no Python name.
    """
    functions = {g.name_hint: f for g, f in module.functions.items()}
    loops = {name: f for name, f in functions.items() if isinstance(f, PrimFunc)}
    lines = [HEADER.replace("tir as T", "ir as I, tir as T"), "", "@I.ir_module", "class Module:"]
    if module.attrs:
        attrs = _Expressions(_Names()).mapping(module.attrs)
        lines += [f"    I.module_attrs({attrs})", ""]
    for name, func in loops.items():
        if not _is_name(name):
            raise ValueError(f"module script: {name!r} is no Python name")
        printer = _Printer()
        printer.function(func, 1, name)
        lines += [*printer.lines, ""]
    rest = {g: f for g, f in module.functions.items() if g.name_hint not in loops}
    if rest or module.type_definitions:
        text = IRModule(dict(rest.items()), module.type_definitions).astext()
        escaped = text.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        lines += [f'    relay = I.relay("""\n{escaped}\n""")', ""]
    if len(lines) == 4:
        lines.append("    pass")
    return "\n".join(lines).rstrip() + "\n"


IRModule.script_printer = staticmethod(module_text)
PrimFunc.script_printer = staticmethod(astext)
Stmt.printer = staticmethod(statement_text)
PrimExpr.printer = staticmethod(expression_text)
