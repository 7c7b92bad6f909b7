"""Print device kernels in a dialect of C.

A loop over a thread axis is the number of the thread; what has a place in memory of a block stands
at the top of the kernel; a check that fails notes what it has seen and ends its thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.codegen.c.expression import stripped
from ekiden.codegen.c.helpers import Helpers, c_symbol
from ekiden.codegen.c.types import memory_type
from ekiden.codegen.device import fragments
from ekiden.codegen.device.dialect import DIALECTS, KernelDialect
from ekiden.codegen.device.wide_access import WideAccessWriter
from ekiden.codegen.shuffles import (
    ACTIVE_MASK_OP,
    is_full_warp,
    is_warp_shuffle,
    operands_of,
    warp_shuffle_of,
)
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, SizeVar, StringImm, Var, cast, const
from ekiden.runtime.artifact.device_code import DeviceKernel
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferAddress
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    PrimFunc,
    Stmt,
)
from ekiden.tir.visitor import all_expressions, used_inside, walk

MAX_MESSAGE_VALUES = 14
"""Values that the message of a check can show."""
MAX_LOCAL_BYTES = 1 << 16
"""Bytes of arrays of one thread."""


class KernelWriter(WideAccessWriter):
    """Writer of the body of one kernel."""

    def __init__(self, helpers: Helpers, symbol: str, dialect: KernelDialect) -> None:
        super().__init__(helpers, symbol, dialect)
        self.in_parallel = True  # loops that a processor would share run in the thread
        self.checks: list[tuple[str, str]] = []
        self.layouts: dict[Buffer, str] = {}
        self.exchanges = False
        self._used |= dialect.keywords

    def prepare(self, body: Stmt) -> None:
        """Collect the layouts of the matrix fragments that warps load."""
        super().prepare(body)
        self.layouts = fragments.layouts_of(body)

    def statement(self, s: Stmt) -> None:
        """Write one statement."""
        value = s.value if isinstance(s, Evaluate) else None
        if isinstance(value, Intrinsic) and value.op in fragments.FRAGMENT_CALLS:
            self.put(self.fragment_call(value))
            self.forget()
            return
        if isinstance(value, Intrinsic) and value.op == "tvm_storage_sync":
            self.put(self.dialect.barrier)
            self.forget()
            return
        super().statement(s)

    def loop(self, s: For) -> None:
        """Emit a loop; a loop bound to a thread axis becomes that thread's index."""
        if s.kind is not ForKind.THREAD_BINDING:
            super().loop(s)
            return
        axis = str((s.annotations or {}).get("thread"))
        if axis not in self.dialect.threads:
            raise CompileError(f"kernel {self.symbol!r}: there is no thread axis {axis!r}")
        name = self.define(s.loop_var)
        self.positive.add(s.loop_var)
        kind = self.syntax.type(s.loop_var.dtype)
        self.put(self.syntax.let(kind, name, self.dialect.threads[axis]))
        self.statement(s.body)

    def together(self, buffer: Buffer, index: str, count: int, target: str) -> str:
        """Read contiguous elements as one wider value in place: address spaces of some dialects
        rule out a helper that takes a pointer.
        """
        name, source = self.name(buffer), dt.element(buffer.dtype)
        if self.vectors is not None:
            near = self.vectors.load(name, index, f"{source}x{count}")
            return self.vectors.bits(self.vectors.word(target), near)
        if self.dialect.word and (dt.itemsize(source) * count, target) == (4, "int32"):
            self.helpers.texts.setdefault("ek_word", self.dialect.word)
            return f"ek_word(&{name}[{index}])"
        bits, wide_dtype = dt.SCALAR_BITS[source], f"uint{dt.SCALAR_BITS[target]}"
        wide, narrow = self.syntax.type(wide_dtype), self.syntax.type(f"uint{bits}")
        shifted_elements = [
            f"(({wide})({narrow}){name}[{index} + {n}] << {bits * n})" for n in range(count)
        ]
        return self.helpers.reinterpret(wide_dtype, target, f"({' | '.join(shifted_elements)})")

    def fragment_call(self, e: Intrinsic) -> str:
        """Return a call of a matrix-fragment helper."""
        lowered = fragments.FRAGMENT_CALLS[e.op](e, self.layouts)
        self.helpers.texts.setdefault(lowered.name, guarded(lowered.text))
        arguments = [
            f"&{self.name(argument[0])}[{self.text(argument[1])}]"
            if isinstance(argument, tuple)
            else self.text(argument)
            for argument in lowered.args
        ]
        return f"{lowered.name}({', '.join(arguments)});"

    def _operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        return operands_of(e) if is_warp_shuffle(e) else super()._operands(e)

    def intrinsic(self, e: Intrinsic) -> str:
        """Return an intrinsic's call; warp shuffles too."""
        if not is_warp_shuffle(e):
            return super().intrinsic(e)
        form = self.dialect.shuffles.get(e.op)
        if form is None:
            raise CompileError(
                f"kernel {self.symbol!r}: {e.op}: kind {self.dialect.name!r} has no shuffles of a "
                "warp"
            )
        self.exchanges = True
        if e.op == ACTIVE_MASK_OP:
            return self._named(e, form)
        exchange = warp_shuffle_of(e)
        if not self.dialect.masked and not is_full_warp(exchange):
            raise CompileError(
                f"kernel {self.symbol!r}: {e.op}: kind {self.dialect.name!r} has no masks: threads "
                "of a warp take part that are there"
            )
        mask, value, lane = (stripped(self.of(a)) for a in operands_of(e))
        lane = lane if lane.isidentifier() or lane.isdigit() else f"({lane})"
        text = form.format(mask=mask, value=value, lane=lane, width=exchange.width)
        return self._named(e, text)  # on a line of its own: no side of a `?` is for some alone

    def allocate(self, buffer: Buffer) -> None:
        """Declare a thread-local array, a block-shared array, or a warp's matrix fragments."""
        if fragments.is_fragment(buffer):
            if not self.dialect.matrices:
                raise CompileError(
                    f"kernel {self.symbol!r}: buffer {buffer.name!r} of scope {buffer.scope!r}: "
                    f"kind {self.dialect.name!r} has no matrices of a warp"
                )
            name, text = fragments.helpers_of(buffer)
            self.helpers.texts.setdefault(name, guarded(text))
            self.put(fragments.declared(buffer, self.define(buffer)))
            return
        if buffer in self.arrays:
            super().allocate(buffer)
            return
        lanes, kind = dt.lanes(buffer.dtype), memory_type(buffer.dtype)
        extent: PrimExpr = const(1)
        for d in buffer.shape:
            extent = extent * d
        if not isinstance(extent, IntImm):
            raise CompileError(
                f"kernel {self.symbol!r}: buffer {buffer.name!r} of a thread has no constant size"
            )
        if buffer.scope != "shared" and extent.value * dt.itemsize(buffer.dtype) > MAX_LOCAL_BYTES:
            raise CompileError(
                f"kernel {self.symbol!r}: buffer {buffer.name!r} of a thread has "
                f"{extent.value * dt.itemsize(buffer.dtype)} bytes, of which there may be "
                f"{MAX_LOCAL_BYTES}"
            )
        inner = f"[{lanes}]" if lanes > 1 else ""
        line = f"{kind} {self.define(buffer)}[{max(extent.value, 1)}]{inner};"
        if buffer.scope == "shared":
            self.top.append(f"  {self.dialect.shared}{line}")
        else:
            self.put(line)

    def assertion(self, s: AssertStmt) -> None:
        """Emit a check: the lowest failing thread records its index and the values of the
        message.
        """
        if len(s.values) > MAX_MESSAGE_VALUES:
            raise InternalError(f"kernel {self.symbol!r}: a check shows {len(s.values)} values")
        check = (s.kind, s.format)
        number = len(self.checks)
        self.checks.append(check)
        self.put(f"if (!({self.text(s.condition)})) {{")
        with self.indented():
            thread = self.unique("thread")
            memory = self.dialect.memory
            self.put(f"const int64_t {thread}_wide = {self.dialect.linear};")
            clamped_thread = f"{thread}_wide < 0x7ffffffe ? (int){thread}_wide : 0x7ffffffe"
            self.put(f"const int {thread} = {clamped_thread};")
            self.put(self.dialect.least.format(place="ek_status", value=thread))
            self.put(f"if (ek_status[1] == {thread}) {{")
            with self.indented():
                status_words = [const(number), *(cast(v, "int64") for v in s.values)]
                texts = [self.text(v) for v in status_words]
                for at, text in enumerate(texts, start=1):
                    self.put(f"(({memory}int64_t *)ek_status)[{at}] = {text};")
            self.put("}")
            self.put("return;")
        self.put("}")

    def fail(self, status: str = "-1") -> None:
        """Raise InternalError: kernels have no failing calls."""
        raise InternalError(f"kernel {self.symbol!r}: {status} has no meaning on a device")

    def extern(self, name: str, result: str, arguments: Sequence[str | None]) -> str:
        """Return the symbol unchanged: the kernel language or its headers declare it."""
        return name

    def extern_argument(self, a: PrimExpr) -> str:
        """Return an argument of an external function; an address keeps its buffer's
        address space.
        """
        if isinstance(a, BufferAddress):
            offset = f" + ({self.text(a.indices[0])})" if a.indices else ""
            return f"{self.name(a.buffer)}{offset}"
        return super().extern_argument(a)

    def call_packed(self, e: Intrinsic) -> str:
        """Raise CompileError: device threads cannot call host functions."""
        name = e.args[0].value if isinstance(e.args[0], StringImm) else ""
        raise CompileError(f"kernel {self.symbol!r}: a thread cannot call {name!r} of the host")


def guarded(text: str) -> str:
    """Wrap a fragment helper in an include guard."""
    return f"#ifndef EK_MATRICES\n{text}\n#endif"


def free_symbols(body: Stmt) -> tuple[list[Buffer], list[Var]]:
    """Return the free symbols of a kernel, which become its parameters: buffers, then scalars."""
    used = used_inside(body)
    return [b for b in used if isinstance(b, Buffer)], [v for v in used if isinstance(v, Var)]


def print_kernel(func: PrimFunc, sizes: list[Var], target: Target) -> DeviceKernel:
    """Print a lowered device function in the dialect of the target's kind. Its parameters are its
    buffers, then `sizes`. Raises CompileError for what a device cannot do.
    """
    dialect = DIALECTS[target.kind.name]
    helpers = Helpers(target, dialect.form)
    symbol = c_symbol(func.name)
    writer = KernelWriter(helpers, symbol, dialect)
    parameters: list[str] = []
    for buffer in func.buffers:
        _declare(writer, dialect, buffer, parameters)
    for size in sizes:
        parameters.append(dialect.number.format(name=writer.define(size)))
        if isinstance(size, SizeVar):
            writer.positive.add(size)
    _check_types(func, dialect, symbol)
    writer.prepare(func.body)
    writer.statement(func.body)
    if writer.checks:
        number = dialect.number.format(name="ek_status_at")
        offset = f", {number}" if dialect.offsets else ""
        parameters.append(f"{dialect.memory}int *ek_status{offset}")
        if dialect.offsets:
            moved = f"({dialect.memory}int *)(({dialect.memory}char *)ek_status + ek_status_at)"
            writer.top.append(f"  ek_status = {moved};")
    body = "\n".join([*writer.top, *writer.lines])
    head = f"/* Made by Ekiden for {target.kind.name}. */\n{dialect.head}"
    also = dialect.also + (dialect.lane if writer.exchanges else "")
    kernel = f"{dialect.kernel} {symbol}({', '.join(parameters)}{also}) {{\n{body}\n}}"
    text = "\n\n".join([head, *helpers.texts.values(), kernel]) + "\n"
    args = "b" * len(func.buffers) + "l" * len(sizes)
    checks = tuple(writer.checks)
    return DeviceKernel(symbol, target.kind.device_type, dialect.name, args, text.encode(), checks)


def _check_types(func: PrimFunc, dialect: KernelDialect, symbol: str) -> None:
    """Raise CompileError for a dtype that the dialect lacks."""
    memory = [s.buffer.dtype for s in walk(func.body) if isinstance(s, (Allocate, BufferStore))]
    values = [e.dtype for e in all_expressions(func.body)] if dialect.missing else []
    for dtype in (*memory, *values):
        if dt.element(dtype) in dialect.missing:
            raise CompileError(f"kernel {symbol!r}: {dialect.name} has no {dt.element(dtype)}")


def _declare(
    writer: KernelWriter, dialect: KernelDialect, buffer: Buffer, parameters: list[str]
) -> None:
    """Declare a buffer's parameter, and its name in the body."""
    kind, name = memory_type(buffer.dtype), writer.define(buffer)
    writer.arguments[buffer] = ""
    pointer = f"{dialect.memory}{kind} *"
    if not dialect.offsets:
        parameters.append(f"{pointer}{name}")
        return
    raw, at = writer.unique(f"{name}_memory"), writer.unique(f"{name}_at")
    parameters.append(f"{dialect.memory}char *{raw}, {dialect.number.format(name=at)}")
    writer.put(f"{pointer}const {name} = ({pointer})({raw} + {at});")
