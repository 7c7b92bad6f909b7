"""Lowered PrimFuncs to C99 that needs no runtime: plain functions over addresses.

Loops are serial. Working memory is given by the caller, whose size is known then; what would be an
error with a message is a status other than 0.
"""

from __future__ import annotations

import re

from ekiden.codegen.c.dots import Dots
from ekiden.codegen.c.dots_writer import NEXT, DotsWriter
from ekiden.codegen.c.helium import HeliumSyntax
from ekiden.codegen.c.helpers import Helpers, c_symbol
from ekiden.codegen.c.types import memory_type
from ekiden.codegen.c.vector_writer import VectorWriter
from ekiden.codegen.common import dimensions, in_place
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, Intrinsic, StringImm
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import AssertStmt, For, Prefetch, PrimFunc, Stmt
from ekiden.tir.transform import remove_no_op
from ekiden.tir.visitor import NOTHING, StmtMutator, buffers_written, with_body

ALIGNMENT = 16
"""Of what is put into working memory."""


@dataclass(frozen=True, slots=True)
class BareFunction:
    """A function: its text, for each parameter its type and whether it is only read, and the bytes
    of working memory that it wants as its last argument."""

    text: str
    parameters: tuple[tuple[str, bool], ...]
    workspace: int


class BareWriter(VectorWriter):
    """Writes the statements of a function that gives 0, or -1 where a check fails."""

    def __init__(self, helpers: Helpers, symbol: str) -> None:
        super().__init__(helpers, symbol, HeliumSyntax() if helpers.has("helium") else None)
        self.in_parallel = True  # no loop becomes a function of its own
        self.memory = self.unique("workspace")
        self.at = self.most = 0

    def serial(self, s: For, low: str, high: str) -> None:
        """A loop; sums of products of bytes go by vectors where the target has them."""
        dots = Dots.of(s) if self.vectors is not None else None
        if dots is None:
            super().serial(s, low, high)
            return
        self.helpers.texts.setdefault("next", NEXT)
        self.forget()
        self.lines.append("#if EK_HELIUM")
        self.put("{")
        with self.indented():
            DotsWriter(self, dots).write()
        self.put("}")
        self.forget()
        self.lines.append("#else")
        super().serial(s, low, high)
        self.lines.append("#endif")

    def nested(self, s: Stmt) -> None:
        """What was allocated inside is free again after."""
        before = self.at
        super().nested(s)
        self.at = before

    def allocate(self, buffer: Buffer) -> None:
        """Global buffers lie in the working memory."""
        if buffer.scope != "global":
            super().allocate(buffer)
            return
        size = dt.itemsize(buffer.dtype)
        for extent in buffer.shape:
            if not isinstance(extent, IntImm):
                raise CompileError(
                    f"{self.symbol}: buffer {buffer.name!r} has no constant size, and there is no "
                    "allocator"
                )
            size *= extent.value
        lanes, kind = dt.lanes(buffer.dtype), memory_type(buffer.dtype)
        name, inner = self.define(buffer), f"[{lanes}]" if lanes > 1 else ""
        declared = f"(*{name}){inner}" if inner else f"*{name}"
        pointer = f"{kind} (*){inner}" if inner else f"{kind} *"
        self.put(f"{kind} {declared} = ({pointer})(void *)({self.memory} + {self.at});")
        self.at += -(-size // ALIGNMENT) * ALIGNMENT
        self.most = max(self.most, self.at)

    def assertion(self, s: AssertStmt) -> None:
        """A check: only that it failed can be told."""
        self.check(f"!({self.text(s.condition)})", s.kind, s.message)

    def check(self, wrong: str, kind: str, message: str) -> None:
        """Give up where something is wrong."""
        self.put(f"if ({wrong}) return -1;")

    def checked(self, buffer: Buffer, index: str) -> str:
        """Accesses are not checked."""
        return index

    def call_packed(self, e: Intrinsic) -> str:
        """There is nobody to call."""
        name = e.args[0].value if isinstance(e.args[0], StringImm) else "a function"
        raise CompileError(f"{self.symbol}: it calls {name!r}, which needs the runtime")

    def parallel(self, s: For) -> None:
        """Never: the writer says that it is inside of a parallel loop."""
        raise AssertionError(s)

    def write_loop(self, *_: object) -> str:
        """Never, as `parallel`."""
        raise AssertionError


class _WithoutPrefetches(StmtMutator):
    def visit_prefetch(self, stmt: Prefetch) -> Stmt:
        """Nothing: there is hardly a cache."""
        return NOTHING


def without_prefetches(func: PrimFunc) -> PrimFunc:
    """The function without prefetches, and without what only they use."""
    return remove_no_op(with_body(func, _WithoutPrefetches().visit(func.body)))


def emit_bare(func: PrimFunc, name: str, helpers: Helpers) -> BareFunction:
    """A lowered function of constant sizes as C; what it calls goes to `helpers`. Raises
    CompileError for what needs the runtime."""
    symbol = c_symbol(name)
    writer = BareWriter(helpers, symbol)
    if any(row.binds for row in dimensions(func)) or func.scalars:
        raise CompileError(f"{symbol}: it has no constant sizes, and there is no allocator")
    written = set(buffers_written(func.body))
    apart = (func.attrs or {}).get("tir.noalias") and not in_place(func)
    restrict = "restrict " if apart else ""
    parameters: list[tuple[str, bool]] = []
    arguments: list[str] = []
    for p in func.params:
        assert isinstance(p, Buffer), p
        kind, is_read = memory_type(p.dtype), p not in written
        parameters.append((kind, is_read))
        arguments.append(f"{'const ' * is_read}{kind} *{restrict}{writer.define(p)}")
    writer.prepare(func.body)
    writer.statement(func.body)
    writer.end()
    if writer.most:
        arguments.append(f"uint8_t *restrict {writer.memory}")
    body = "\n".join(writer.lines)
    names = [argument.rpartition("*")[2].split()[-1] for argument in arguments]
    # a kernel need not read all that it is given: what is multiplied by 0 is 0
    unused = [name for name in names if not re.search(rf"\b{name}\b", body)]
    body = "\n".join([*(f"  (void){name};" for name in unused), body])
    text = f"int32_t {symbol}({', '.join(arguments)}) {{\n{body}\n}}"
    return BareFunction(text, tuple(parameters), writer.most)


__all__ = ["BareFunction", "emit_bare", "without_prefetches"]
