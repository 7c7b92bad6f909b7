"""Print device kernels in a dialect of C.

A loop over a thread axis is the number of the thread; what has a place in memory of a block stands
at the top of the kernel; a check that fails notes what it has seen and ends its thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.codegen.c.expression import strip_parentheses
from ekiden.codegen.c.helpers import HelperFunctions, c_symbol
from ekiden.codegen.c.types import memory_type
from ekiden.codegen.device import fragments
from ekiden.codegen.device.dialect import KERNEL_DIALECTS, KernelDialect
from ekiden.codegen.device.wide_access import WideAccessWriter
from ekiden.codegen.warp_shuffle import (
    ACTIVE_MASK_OP,
    evaluated_operands,
    is_full_warp,
    is_warp_shuffle,
    parse_warp_shuffle,
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
from ekiden.tir.visitor import all_exprs, free_vars_and_buffers, pre_order_stmts

MAX_ASSERT_VALUES = 14
"""Maximum number of values in the message of a check."""
MAX_THREAD_LOCAL_BYTES = 1 << 16
"""Maximum size of one thread's arrays in bytes."""


class KernelWriter(WideAccessWriter):
    """Writer of the body of one kernel."""

    def __init__(self, helpers: HelperFunctions, symbol: str, dialect: KernelDialect) -> None:
        super().__init__(helpers, symbol, dialect)
        self.in_parallel = True  # loops that a processor would share run in the thread
        self.checks: list[tuple[str, str]] = []
        self.layouts: dict[Buffer, str] = {}
        self.exchanges = False
        # No name of a program may hide a word of the language.
        self._use_counts |= dialect.keywords

    def collect_vector_arrays(self, body: Stmt) -> None:
        """Collect the layouts of the matrix fragments that warps load."""
        super().collect_vector_arrays(body)
        self.layouts = fragments.fragment_layouts(body)

    def statement(self, s: Stmt) -> None:
        """Write one statement."""
        value = s.value if isinstance(s, Evaluate) else None
        if isinstance(value, Intrinsic) and value.op in fragments.FRAGMENT_CALLS:
            self.emit_line(self.write_fragment_call(value))
            self.invalidate_loads()
            return
        if isinstance(value, Intrinsic) and value.op == "tvm_storage_sync":
            self.emit_line(self.dialect.barrier)
            self.invalidate_loads()
            return
        super().statement(s)

    def write_for(self, s: For) -> None:
        """Emit a loop; a loop bound to a thread axis becomes that thread's index."""
        if s.kind is not ForKind.THREAD_BINDING:
            super().write_for(s)
            return
        axis = str((s.annotations or {}).get("thread"))
        if axis not in self.dialect.thread_indices:
            raise CompileError(f"kernel {self.symbol!r}: there is no thread axis {axis!r}")
        name = self.bind_name(s.loop_var)
        # Thread indices are never negative, so that divisions of them need no correction.
        self.nonnegative_vars.add(s.loop_var)
        kind = self.syntax.type(s.loop_var.dtype)
        self.emit_line(self.syntax.let(kind, name, self.dialect.thread_indices[axis]))
        self.statement(s.body)

    def unaligned_load(self, buffer: Buffer, index: str, count: int, target: str) -> str:
        """Read contiguous elements as one wider value in place: address spaces of some dialects
        rule out a helper that takes a pointer.
        """
        name, source = self.name(buffer), dt.element_dtype(buffer.dtype)
        if self.vectors is not None:
            near = self.vectors.load(name, index, f"{source}x{count}")
            return self.vectors.bits(self.vectors.type_word(target), near)
        if self.dialect.unaligned_word_load and (dt.itemsize(source) * count, target) == (
            4,
            "int32",
        ):
            self.helpers.texts.setdefault("ek_word", self.dialect.unaligned_word_load)
            return f"ek_word(&{name}[{index}])"
        bits, wide_dtype = dt.SCALAR_BITS[source], f"uint{dt.SCALAR_BITS[target]}"
        wide, narrow = self.syntax.type(wide_dtype), self.syntax.type(f"uint{bits}")
        shifted_elements = [
            f"(({wide})({narrow}){name}[{index} + {n}] << {bits * n})" for n in range(count)
        ]
        return self.helpers.reinterpret(wide_dtype, target, f"({' | '.join(shifted_elements)})")

    def write_fragment_call(self, e: Intrinsic) -> str:
        """Return a call of a matrix-fragment helper."""
        lowered = fragments.FRAGMENT_CALLS[e.op](e, self.layouts)
        self.helpers.texts.setdefault(lowered.name, with_include_guard(lowered.text))
        arguments = [
            f"&{self.name(argument[0])}[{self.text(argument[1])}]"
            if isinstance(argument, tuple)
            else self.text(argument)
            for argument in lowered.args
        ]
        return f"{lowered.name}({', '.join(arguments)});"

    def _operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        return evaluated_operands(e) if is_warp_shuffle(e) else super()._operands(e)

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
            return self._assign_temporary(e, form)
        exchange = parse_warp_shuffle(e)
        if not self.dialect.has_shuffle_mask and not is_full_warp(exchange):
            raise CompileError(
                f"kernel {self.symbol!r}: {e.op}: kind {self.dialect.name!r} has no masks: threads "
                "of a warp take part that are there"
            )
        mask, value, lane = (strip_parentheses(self.operand_text(a)) for a in evaluated_operands(e))
        lane = lane if lane.isidentifier() or lane.isdigit() else f"({lane})"
        text = form.format(mask=mask, value=value, lane=lane, width=exchange.width)
        return self._assign_temporary(
            e, text
        )  # on a line of its own: no side of a `?` is for some alone

    def write_allocate(self, buffer: Buffer) -> None:
        """Declare a thread-local array, a block-shared array, or a warp's matrix fragments."""
        if fragments.is_fragment(buffer):
            if not self.dialect.has_fragments:
                raise CompileError(
                    f"kernel {self.symbol!r}: buffer {buffer.name!r} of scope {buffer.scope!r}: "
                    f"kind {self.dialect.name!r} has no matrices of a warp"
                )
            name, text = fragments.fragment_type_helper(buffer)
            self.helpers.texts.setdefault(name, with_include_guard(text))
            self.emit_line(fragments.declare_fragment(buffer, self.bind_name(buffer)))
            return
        if buffer in self.vector_arrays:
            super().write_allocate(buffer)
            return
        lanes, kind = dt.lanes(buffer.dtype), memory_type(buffer.dtype)
        extent: PrimExpr = const(1)
        for d in buffer.shape:
            extent = extent * d
        if not isinstance(extent, IntImm):
            raise CompileError(
                f"kernel {self.symbol!r}: buffer {buffer.name!r} of a thread has no constant size"
            )
        if (
            buffer.scope != "shared"
            and extent.value * dt.itemsize(buffer.dtype) > MAX_THREAD_LOCAL_BYTES
        ):
            raise CompileError(
                f"kernel {self.symbol!r}: buffer {buffer.name!r} of a thread has "
                f"{extent.value * dt.itemsize(buffer.dtype)} bytes, of which there may be "
                f"{MAX_THREAD_LOCAL_BYTES}"
            )
        inner = f"[{lanes}]" if lanes > 1 else ""
        line = f"{kind} {self.bind_name(buffer)}[{max(extent.value, 1)}]{inner};"
        # OpenCL allows __local arrays in the outermost scope of a kernel only.
        if buffer.scope == "shared":
            self.top.append(f"  {self.dialect.shared_qualifier}{line}")
        else:
            self.emit_line(line)

    def write_assert(self, s: AssertStmt) -> None:
        """Emit a check: the lowest failing thread records its index and the values of the
        message.
        """
        if len(s.values) > MAX_ASSERT_VALUES:
            raise InternalError(f"kernel {self.symbol!r}: a check shows {len(s.values)} values")
        check = (s.kind, s.format)
        number = len(self.checks)
        self.checks.append(check)
        self.emit_line(f"if (!({self.text(s.condition)})) {{")
        with self.indented():
            thread = self.unique("thread")
            memory = self.dialect.pointer_qualifier
            self.emit_line(f"const int64_t {thread}_wide = {self.dialect.linear_thread_index};")
            # The atomic minimum works on 32 bits: all threads beyond them share the last number.
            clamped_thread = f"{thread}_wide < 0x7ffffffe ? (int){thread}_wide : 0x7ffffffe"
            self.emit_line(f"const int {thread} = {clamped_thread};")
            self.emit_line(self.dialect.atomic_min.format(place="ek_status", value=thread))
            self.emit_line(f"if (ek_status[1] == {thread}) {{")
            with self.indented():
                status_words = [const(number), *(cast(v, "int64") for v in s.values)]
                texts = [self.text(v) for v in status_words]
                for index, text in enumerate(texts, start=1):
                    self.emit_line(f"(({memory}int64_t *)ek_status)[{index}] = {text};")
            self.emit_line("}")
            self.emit_line("return;")
        self.emit_line("}")

    def write_failure(self, status: str = "-1") -> None:
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


def with_include_guard(text: str) -> str:
    """Wrap a fragment helper in an include guard."""
    return f"#ifndef EK_MATRICES\n{text}\n#endif"


def kernel_parameters(body: Stmt) -> tuple[list[Buffer], list[Var]]:
    """Return the free symbols of a kernel, which become its parameters: buffers, then scalars."""
    used = free_vars_and_buffers(body)
    return [b for b in used if isinstance(b, Buffer)], [v for v in used if isinstance(v, Var)]


def print_kernel(func: PrimFunc, sizes: list[Var], target: Target) -> DeviceKernel:
    """Print a lowered device function in the dialect of the target's kind. Its parameters are its
    buffers, then `sizes`. Raises CompileError for what a device cannot do.
    """
    dialect = KERNEL_DIALECTS[target.kind.name]
    helpers = HelperFunctions(target, dialect.helper_dialect)
    symbol = c_symbol(func.name)
    writer = KernelWriter(helpers, symbol, dialect)
    parameters: list[str] = []
    for buffer in func.buffers:
        _declare_buffer(writer, dialect, buffer, parameters)
    for size in sizes:
        parameters.append(dialect.scalar_parameter.format(name=writer.bind_name(size)))
        if isinstance(size, SizeVar):
            writer.nonnegative_vars.add(size)
    _check_dtypes(func, dialect, symbol)
    writer.collect_vector_arrays(func.body)
    writer.statement(func.body)
    if writer.checks:
        number = dialect.scalar_parameter.format(name="ek_status_at")
        offset = f", {number}" if dialect.has_byte_offsets else ""
        parameters.append(f"{dialect.pointer_qualifier}int *ek_status{offset}")
        if dialect.has_byte_offsets:
            qualifier = dialect.pointer_qualifier
            moved = f"({qualifier}int *)(({qualifier}char *)ek_status + ek_status_at)"
            writer.top.append(f"  ek_status = {moved};")
    body = "\n".join([*writer.top, *writer.lines])
    head = f"/* Made by Ekiden for {target.kind.name}. */\n{dialect.prelude}"
    also = dialect.extra_parameters + (dialect.lane_parameter if writer.exchanges else "")
    kernel = f"{dialect.kernel_qualifier} {symbol}({', '.join(parameters)}{also}) {{\n{body}\n}}"
    text = "\n\n".join([head, *helpers.texts.values(), kernel]) + "\n"
    args = "b" * len(func.buffers) + "l" * len(sizes)
    checks = tuple(writer.checks)
    return DeviceKernel(symbol, target.kind.device_type, dialect.name, args, text.encode(), checks)


def _check_dtypes(func: PrimFunc, dialect: KernelDialect, symbol: str) -> None:
    """Raise CompileError for a dtype that the dialect does not support."""
    memory = [
        s.buffer.dtype for s in pre_order_stmts(func.body) if isinstance(s, (Allocate, BufferStore))
    ]
    values = [e.dtype for e in all_exprs(func.body)] if dialect.missing_dtypes else []
    for dtype in (*memory, *values):
        if dt.element_dtype(dtype) in dialect.missing_dtypes:
            raise CompileError(
                f"kernel {symbol!r}: {dialect.name} has no {dt.element_dtype(dtype)}"
            )


def _declare_buffer(
    writer: KernelWriter, dialect: KernelDialect, buffer: Buffer, parameters: list[str]
) -> None:
    """Declare a buffer's parameter, and its name in the body."""
    kind, name = memory_type(buffer.dtype), writer.bind_name(buffer)
    writer.alignment_flags[buffer] = ""
    pointer = f"{dialect.pointer_qualifier}{kind} *"
    if not dialect.has_byte_offsets:
        parameters.append(f"{pointer}{name}")
        return
    raw, position = writer.unique(f"{name}_memory"), writer.unique(f"{name}_at")
    parameters.append(
        f"{dialect.pointer_qualifier}char *{raw}, {dialect.scalar_parameter.format(name=position)}"
    )
    writer.emit_line(f"{pointer}const {name} = ({pointer})({raw} + {position});")
