"""PrimFuncs as text that reads like Python; every shared sub-expression is written out where it is
used.
"""

from __future__ import annotations

from collections.abc import Iterator

from ekiden.ir.prim import (
    AnyDim,
    BinaryExpr,
    Cast,
    FloatImm,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Not,
    PrimExpr,
    Select,
    Var,
)
from ekiden.ir.prim_visitor import children, post_order
from ekiden.tir.expr import Broadcast, Buffer, BufferLoad, Ramp, VectorReduce
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
    LetStmt,
    Prefetch,
    PrimFunc,
    SeqStmt,
    Stmt,
)

LONGEST = 4000
"""An expression whose text is longer than this is shortened by naming its parts with `...`."""


class _Printer:
    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._taken: dict[str, int] = {}

    def name(self, thing: Var | Buffer) -> str:
        """A name of its own: the hint, numbered when it is taken."""
        if thing not in self._names:
            count = self._taken.get(thing.name, 0)
            self._taken[thing.name] = count + 1
            self._names[thing] = f"{thing.name}_{count}" if count else thing.name
        return self._names[thing]

    def text(self, e: PrimExpr) -> str:
        done: dict[int, str] = {}
        for each in post_order(e):
            text = self._node(each, [done[id(c)] for c in children(each)])
            done[id(each)] = text if len(text) <= LONGEST else f"{type(each).__name__}(...)"
        text = done[id(e)]
        return text[1:-1] if isinstance(e, BinaryExpr) and text.startswith("(") else text

    def _node(self, e: PrimExpr, x: list[str]) -> str:
        match e:
            case Var():
                return self.name(e)
            case AnyDim():
                return "?"
            case IntImm():
                return str(e.value) if e.dtype in ("int64", "bool") else f"{e.dtype}({e.value})"
            case FloatImm():
                return repr(e.value) if e.dtype == "float32" else f"{e.dtype}({e.value!r})"
            case Min() | Max():
                return f"{e.symbol}({x[0]}, {x[1]})"
            case BinaryExpr():
                return f"({x[0]} {e.symbol} {x[1]})"
            case Not():
                return f"(not {x[0]})"
            case Select():
                return f"select({x[0]}, {x[1]}, {x[2]})"
            case Cast():
                return f"{e.dtype}({x[0]})"
            case Intrinsic():
                return f"{e.op}({', '.join(x)})"
            case BufferLoad():
                return f"{self.name(e.buffer)}[{', '.join(_bare(i) for i in x)}]"
            case Ramp():
                return f"ramp({_bare(x[0])}, {x[1]}, {e.lanes})"
            case Broadcast():
                return f"broadcast({_bare(x[0])}, {e.lanes})"
            case VectorReduce():
                return f"reduce_{e.kind}({_bare(x[0])})"
            case _:
                return f"{type(e).__name__}({', '.join(x)})"

    def lines(self, s: Stmt) -> Iterator[str]:
        match s:
            case SeqStmt():
                for each in s.seq:
                    yield from self.lines(each)
            case For():
                yield self._loop(s)
                yield from self._indented(s.body)
            case IfThenElse():
                yield f"if {self.text(s.condition)}:"
                yield from self._indented(s.then_case)
                if s.else_case is not None:
                    yield "else:"
                    yield from self._indented(s.else_case)
            case LetStmt():
                yield f"{self.name(s.var)}: {s.var.dtype} = {self.text(s.value)}"
                yield from self.lines(s.body)
            case Allocate():
                yield f"{self._declaration(s.buffer, '=')}"
                yield from self.lines(s.body)
            case BufferStore():
                index = ", ".join(self.text(i) for i in s.indices)
                guard = "" if s.predicate is None else f"  where {self.text(s.predicate)}"
                yield f"{self.name(s.buffer)}[{index}] = {self.text(s.value)}{guard}"
            case Evaluate():
                yield "pass" if isinstance(s.value, IntImm) else self.text(s.value)
            case AssertStmt():
                yield f"assert {self.text(s.condition)}, {s.message!r}"
            case Prefetch():
                index = ", ".join(map(self.text, s.indices))
                yield f"prefetch({self.name(s.buffer)}[{index}], {s.locality})"
            case BlockRealize():
                yield from self._block(s)
            case Block():
                yield from self.lines(s.body)

    def _indented(self, s: Stmt) -> Iterator[str]:
        for line in self.lines(s):
            yield f"    {line}"

    def _loop(self, s: For) -> str:
        low, extent = self.text(s.min), self.text(s.extent)
        bounds = extent if low == "0" else f"{low}, {low} + {extent}"
        kind = "range" if s.kind is ForKind.SERIAL else s.kind.value
        notes = "".join(f", {k}={v!r}" for k, v in (s.annotations or {}).items())
        return f"for {self.name(s.loop_var)} in {kind}({bounds}{notes}):"

    def _block(self, s: BlockRealize) -> Iterator[str]:
        yield f"with block({s.block.name!r}):"
        for each, value in zip(s.block.iter_vars, s.iter_values, strict=True):
            bound = f"{self.text(each.extent)}, {self.text(value)}"
            yield f"    {self.name(each.var)} = {each.kind.value}({bound})"
        if not isinstance(s.predicate, IntImm):
            yield f"    where({self.text(s.predicate)})"
        if s.block.init is not None:
            yield "    with init():"
            for line in self.lines(s.block.init):
                yield f"        {line}"
        yield from self._indented(s.block.body)

    def _declaration(self, b: Buffer, sign: str) -> str:
        shape = ", ".join(self.text(d) for d in b.shape)
        scope = "" if b.scope == "global" else f", {b.scope!r}"
        kind = "alloc" if sign == "=" else "Buffer"
        return (
            f"{self.name(b)}{' = ' if sign == '=' else ': '}{kind}(({shape}), {b.dtype!r}{scope})"
        )


def _bare(text: str) -> str:
    """Without the parentheses of a binary expression, where a bracket stands around it anyway."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if at == len(text) - 1 else text
    return text


def astext(func: PrimFunc) -> str:
    """The function as text.

    Names are made unique in order of appearance, so equal functions have equal text.
    """
    printer = _Printer()
    params = ", ".join(printer._declaration(b, ":") for b in func.params)
    lines = [f"def {func.name}({params}):"]
    lines += [f"    {line}" for line in printer.lines(func.body)]
    return "\n".join(lines) + "\n"


def text_and_lines(func: PrimFunc) -> tuple[str, dict[Stmt, int]]:
    """As `astext`, and the line (from 1) on which each statement begins: what debuggers show."""
    where: dict[Stmt, int] = {}
    out: list[str] = []

    class _Recorder(_Printer):
        def lines(self, s: Stmt) -> Iterator[str]:
            for line in super().lines(s):
                where.setdefault(s, len(out) + 1)
                yield line

    printer = _Recorder()
    params = ", ".join(printer._declaration(b, ":") for b in func.params)
    out.append(f"def {func.name}({params}):")
    for line in printer.lines(func.body):
        out.append(f"    {line}")
    return "\n".join(out) + "\n", where
