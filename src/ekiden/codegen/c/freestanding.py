"""Lower PrimFuncs to C99 without a runtime: plain functions over pointers.

Loops are serial. Working memory is given by the caller, whose size is known then; what would be an
error with a message is a status other than 0.
"""

from __future__ import annotations

import re

from ekiden.codegen.c.dot_product_nest import DotProductNest
from ekiden.codegen.c.dot_product_writer import HELIUM_DOT_HELPERS, DotProductWriter
from ekiden.codegen.c.helium import HeliumSyntax
from ekiden.codegen.c.helpers import HelperFunctions, c_symbol
from ekiden.codegen.c.types import memory_type
from ekiden.codegen.c.vector_writer import VectorWriter
from ekiden.codegen.common import in_place_params, shape_checks
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, Intrinsic, StringImm
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import AssertStmt, For, Prefetch, PrimFunc, Stmt
from ekiden.tir.transform import remove_no_op
from ekiden.tir.visitor import NO_OP, StmtMutator, buffers_written, with_body

WORKSPACE_ALIGNMENT_BYTES = 16
"""Alignment of buffers in the workspace."""


@dataclass(frozen=True, slots=True)
class FreestandingFunction:
    """Freestanding C function: its text, the type and constness of each parameter, and the size in
    bytes of the workspace that its last argument points to.
    """

    text: str
    parameters: tuple[tuple[str, bool], ...]
    workspace_bytes: int


class FreestandingWriter(VectorWriter):
    """Statement writer of a freestanding function, which returns 0, or -1 where a check fails."""

    def __init__(self, helpers: HelperFunctions, symbol: str) -> None:
        super().__init__(helpers, symbol, HeliumSyntax() if helpers.has("helium") else None)
        self.in_parallel = True  # no loop becomes a function of its own
        self.memory = self.unique("workspace")
        self.at = self.most = 0

    def write_serial_for(self, s: For, low: str, high: str) -> None:
        """Emit a serial loop; int8 dot-product nests use Helium vectors where the target
        has them.
        """
        dots = DotProductNest.match(s) if self.vectors is not None else None
        if dots is None:
            super().write_serial_for(s, low, high)
            return
        self.helpers.texts.setdefault("next", HELIUM_DOT_HELPERS)
        self.invalidate_loads()
        # Both forms are written: the same file compiles for processors without Helium.
        self.lines.append("#if EK_HELIUM")
        self.emit_line("{")
        with self.indented():
            DotProductWriter(self, dots).write()
        self.emit_line("}")
        self.invalidate_loads()
        self.lines.append("#else")
        super().write_serial_for(s, low, high)
        self.lines.append("#endif")

    def write_nested(self, s: Stmt) -> None:
        """Emit a nested statement and release the workspace that it allocated."""
        # The workspace is a stack: later siblings use the same bytes again.
        before = self.at
        super().write_nested(s)
        self.at = before

    def write_allocate(self, buffer: Buffer) -> None:
        """Place a global buffer in the caller's workspace."""
        if buffer.scope != "global":
            super().write_allocate(buffer)
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
        name, inner = self.bind_name(buffer), f"[{lanes}]" if lanes > 1 else ""
        declared = f"(*{name}){inner}" if inner else f"*{name}"
        pointer = f"{kind} (*){inner}" if inner else f"{kind} *"
        self.emit_line(f"{kind} {declared} = ({pointer})(void *)({self.memory} + {self.at});")
        self.at += -(-size // WORKSPACE_ALIGNMENT_BYTES) * WORKSPACE_ALIGNMENT_BYTES
        self.most = max(self.most, self.at)

    def write_assert(self, s: AssertStmt) -> None:
        """Emit a check that returns -1; without a runtime there is no message."""
        self.check(f"!({self.text(s.condition)})", s.kind, s.message)

    def check(self, wrong: str, kind: str, message: str) -> None:
        """Return -1 where the condition is true."""
        self.emit_line(f"if ({wrong}) return -1;")

    def bounds_checked_index(self, buffer: Buffer, index: str) -> str:
        """Return the index unchanged: freestanding functions have no bounds checks."""
        return index

    def call_packed(self, e: Intrinsic) -> str:
        """Raise CompileError: without a runtime there is no packed function to call."""
        name = e.args[0].value if isinstance(e.args[0], StringImm) else "a function"
        raise CompileError(f"{self.symbol}: it calls {name!r}, which needs the runtime")

    def parallel(self, s: For) -> None:
        """Raise AssertionError: freestanding loops are serial."""
        raise AssertionError(s)

    def outline_loop(self, *_: object) -> str:
        """Raise AssertionError: freestanding loops are never outlined."""
        raise AssertionError


class _PrefetchRemover(StmtMutator):
    def visit_prefetch(self, stmt: Prefetch) -> Stmt:
        """Drop the prefetch."""
        return NO_OP


def remove_prefetches(func: PrimFunc) -> PrimFunc:
    """Remove prefetches and the let-bound values that only they use."""
    return remove_no_op(with_body(func, _PrefetchRemover().visit(func.body)))


def emit_freestanding(func: PrimFunc, name: str, helpers: HelperFunctions) -> FreestandingFunction:
    """Emit a lowered function of constant shapes as freestanding C; its helpers are added to
    `helpers`.

    Raises:
        CompileError: if the function needs the runtime (dynamic shapes, scalars, packed calls).
    """
    symbol = c_symbol(name)
    writer = FreestandingWriter(helpers, symbol)
    if any(row.binds_var for row in shape_checks(func)) or func.scalars:
        raise CompileError(f"{symbol}: it has no constant sizes, and there is no allocator")
    written = set(buffers_written(func.body))
    apart = (func.attrs or {}).get("tir.noalias") and not in_place_params(func)
    restrict = "restrict " if apart else ""
    parameters: list[tuple[str, bool]] = []
    arguments: list[str] = []
    for p in func.params:
        assert isinstance(p, Buffer), p
        kind, is_read = memory_type(p.dtype), p not in written
        parameters.append((kind, is_read))
        arguments.append(f"{'const ' * is_read}{kind} *{restrict}{writer.bind_name(p)}")
    writer.collect_vector_arrays(func.body)
    writer.statement(func.body)
    writer.write_epilogue()
    if writer.most:
        arguments.append(f"uint8_t *restrict {writer.memory}")
    body = "\n".join(writer.lines)
    names = [argument.rpartition("*")[2].split()[-1] for argument in arguments]
    # a kernel need not read all that it is given: what is multiplied by 0 is 0
    unused = [name for name in names if not re.search(rf"\b{name}\b", body)]
    body = "\n".join([*(f"  (void){name};" for name in unused), body])
    text = f"int32_t {symbol}({', '.join(arguments)}) {{\n{body}\n}}"
    return FreestandingFunction(text, tuple(parameters), writer.most)


__all__ = ["FreestandingFunction", "emit_freestanding", "remove_prefetches"]
