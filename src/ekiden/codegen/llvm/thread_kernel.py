"""Kernels of NVIDIA's devices through LLVM: a device function to PTX.

    for t in thread_binding(64, "threadIdx.x"):  ->  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
        b[t] = a[t]                                  ... ret void

What has a place in memory of a block is a global of address space 3, seen through a generic
address, as all memory is: LLVM finds out which it is. A check that fails notes what it has seen and
ends its thread, as in CUDA C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ekiden.codegen.llvm.builder import Module, Operand
from ekiden.codegen.llvm.compiler import held, machine_of, parsed
from ekiden.codegen.llvm.expression import DemoteRegisterError
from ekiden.codegen.llvm.near_emitter import NearEmitter
from ekiden.codegen.llvm.types import memory_type
from ekiden.codegen.shuffles import ACTIVE, exchange_of, is_exchange, operands_of
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import WARP
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, SizeVar, StringImm, Var, cast, const
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.runtime.late import Late
from ekiden.runtime.late_methods import dataclass
from ekiden.target import Target
from ekiden.tir.expr import FRAGMENTS, Buffer
from ekiden.tir.stmt import AssertStmt, Evaluate, For, ForKind, PrimFunc, Stmt

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = Late("llvmlite.binding")

TRIPLE = "nvptx64-nvidia-cuda"
LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
OLDEST = "sm_75"
"""The architecture of code for devices of which nothing is said: later ones run its PTX too."""
MOST_LOCAL = 1 << 16
"""Bytes of arrays of one thread."""
SHARED = "shared"
REGISTERS = {
    **{f"threadIdx.{a}": f"tid.{a}" for a in "xyz"},
    **{f"blockIdx.{a}": f"ctaid.{a}" for a in "xyz"},
    **{f"blockDim.{a}": f"ntid.{a}" for a in "xyz"},
    **{f"gridDim.{a}": f"nctaid.{a}" for a in "xyz"},
}
"""Thread axis -> the register that has the number of the thread, or how many there are."""
SHUFFLES = {
    "tvm_warp_shuffle": "idx",
    "tvm_warp_shuffle_up": "up",
    "tvm_warp_shuffle_down": "down",
}
"""Intrinsic -> PTX's word for it."""


@dataclass(frozen=True, slots=True)
class Text:
    """A kernel as LLVM's text, and the kind and format of C of each error it may report."""

    ir: str
    checks: tuple[tuple[str, str], ...]


class KernelEmitter(NearEmitter):
    """Emits one kernel."""

    def __init__(self, module: Module, name: str, demoted: frozenset[Buffer]) -> None:
        super().__init__(module, name, demoted)
        self.checks: list[tuple[str, str]] = []
        self.globals: list[str] = []
        self.b.entry = []

    def in_parallel(self) -> bool:
        """Loops that a processor would share run in the thread."""
        return True

    def apart(self, s: For) -> None:
        """What has a function of its own elsewhere runs here."""
        annotations = {k: v for k, v in (s.annotations or {}).items() if k != "apart"}
        self.loop(s.with_fields(annotations=annotations))

    def leave(self, code: int) -> None:
        """The end of the thread."""
        self.b.effect("ret void")

    def statement(self, s: Stmt) -> None:
        """Emit one statement; a barrier is one."""
        value = s.value if isinstance(s, Evaluate) else None
        if isinstance(value, Intrinsic) and value.op == "tvm_storage_sync":
            self.module.declare("llvm.nvvm.barrier.cta.sync.aligned.all", "void", ["i32"])
            self.b.effect("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)")
            self.b.touch_memory()
            return
        if isinstance(value, Intrinsic) and value.op in ("call_packed", "call_function"):
            name = value.args[0].value if isinstance(value.args[0], StringImm) else ""
            raise CompileError(f"kernel {self.name!r}: a thread cannot call {name!r} of the host")
        super().statement(s)

    def thread(self, axis: str, dtype: str = "int64") -> Operand:
        """The number of the thread along an axis, or how many there are."""
        if axis not in REGISTERS:
            raise CompileError(f"kernel {self.name!r}: there is no thread axis {axis!r}")
        register = f"llvm.nvvm.read.ptx.sreg.{REGISTERS[axis]}"
        self.module.declare(register, "i32", [])
        number = self.b.pure(f"call i32 @{register}()")
        return number if dtype == "int32" else self.b.pure(f"sext i32 {number} to i64")

    def operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        """Of what another thread of the warp has, all but the sizes."""
        return operands_of(e) if is_exchange(e) else super().operands(e)

    def emit(self, e: PrimExpr) -> Operand:
        """Also what another thread of the warp has."""
        if not isinstance(e, Intrinsic) or not is_exchange(e):
            return super().emit(e)
        if e.op == ACTIVE:
            self.module.declare("llvm.nvvm.activemask", "i32", [])
            return self.b.value("call i32 @llvm.nvvm.activemask()")
        exchange = exchange_of(e)
        way = SHUFFLES[e.op]
        kind, name = ("float", "f32") if e.dtype == "float32" else ("i32", "i32")
        last = 0 if way == "up" else WARP - 1
        within = (WARP - exchange.width) << 8 | last  # of the segment: its bits, its end
        mask, value, lane = (self.value(a) for a in operands_of(e))
        function = f"llvm.nvvm.shfl.sync.{way}.{name}"
        self.module.declare(function, kind, ["i32", kind, "i32", "i32"])
        given = f"i32 {mask}, {kind} {value}, i32 {lane}, i32 {within}"
        return self.b.value(f"call {kind} @{function}({given})")

    def loop(self, s: For) -> None:
        """A loop over threads is one of them; others are loops."""
        if s.kind is not ForKind.THREAD_BINDING:
            super().loop(s)
            return
        axis = str((s.annotations or {}).get("thread"))
        self.variables[s.loop_var] = self.thread(axis, s.loop_var.dtype)
        self.positive.add(s.loop_var)
        self.statement(s.body)

    def allocate(self, buffer: Buffer) -> None:
        """An array of the thread or of its block, unless it is SSA values."""
        if buffer.scope in FRAGMENTS:
            raise CompileError(
                f"kernel {self.name!r}: buffer {buffer.name!r} of scope {buffer.scope!r}: kind "
                "'nvptx' has no matrices of a warp; kind 'cuda' has"
            )
        if buffer.scope not in ("global", SHARED):
            super().allocate(buffer)
            return
        extent: PrimExpr = const(1)
        for d in buffer.shape:
            extent = extent * d
        if not isinstance(extent, IntImm):
            raise CompileError(
                f"kernel {self.name!r}: buffer {buffer.name!r} of a thread has no constant size"
            )
        kind = f"[{max(extent.value, 1)} x {memory_type(buffer.dtype)}]"
        if buffer.scope == "global":
            self._own(buffer, kind, extent.value * dt.itemsize(buffer.dtype))
            return
        name = f"@shared.{len(self.globals)}"
        self.globals.append(f"{name} = internal addrspace(3) global {kind} undef, align 64")
        self.pointers[buffer] = self.b.pure(f"addrspacecast ptr addrspace(3) {name} to ptr")

    def _own(self, buffer: Buffer, kind: str, size: int) -> None:
        if size > MOST_LOCAL:
            raise CompileError(
                f"kernel {self.name!r}: buffer {buffer.name!r} of a thread has {size} bytes, of "
                f"which there may be {MOST_LOCAL}"
            )
        self.pointers[buffer] = name = f"%{self.b.fresh('stack')}"
        self.b.entry.append(f"  {name} = alloca {kind}, align 16")

    def assertion(self, s: AssertStmt) -> None:
        """The first thread that fails tells which check it was, and its values."""
        number = len(self.checks)
        self.checks.append((s.kind, s.format))
        condition = self.value(s.condition)
        told = [self.value(e) for e in (const(number), *(cast(v, "int64") for v in s.values))]
        self.fail_unless(condition, lambda: self._tell(told))

    def _tell(self, told: Sequence[Operand]) -> None:
        b = self.b
        least = b.value(f"trunc i64 {self._linear()} to i32")
        b.effect(f"%{b.fresh('before')} = atomicrmw min ptr %ek_status, i32 {least} monotonic")
        first, mine, others = (b.fresh(n) for n in ("first", "mine", "others"))
        b.effect(f"%{first}.at = getelementptr i32, ptr %ek_status, i64 1")
        b.effect(f"%{first} = load volatile i32, ptr %{first}.at, align 4")
        is_first = b.value(f"icmp eq i32 %{first}, {least}")
        b.branch_if(is_first, mine, others)
        b.start(mine)
        for at, value in enumerate(told, start=1):
            place = b.value(f"getelementptr i64, ptr %ek_status, i64 {at}")
            b.effect(f"store i64 {value}, ptr {place}, align 8")
        b.branch(others)
        b.start(others)

    def _linear(self) -> Operand:
        """The number of a thread among all of the launch."""
        b = self.b
        total: Operand = "0"
        for axis in "zyx":
            block, threads = self.thread(f"blockIdx.{axis}"), self.thread(f"blockDim.{axis}")
            own = b.value(f"mul i64 {block}, {threads}")
            own = b.value(f"add i64 {own}, {self.thread(f'threadIdx.{axis}')}")
            size = b.value(f"mul i64 {self.thread(f'gridDim.{axis}')}, {threads}")
            total = b.value(f"add i64 {b.value(f'mul i64 {total}, {size}')}, {own}")
        return total

    def write(self, func: PrimFunc, sizes: Sequence[Var]) -> str:
        """The kernel of a function."""
        given = []
        for n, buffer in enumerate(func.buffers):
            given.append(f"ptr %buffer.{n}")
            self.pointers[buffer] = f"%buffer.{n}"
        for n, size in enumerate(sizes):
            given.append(f"i64 %size.{n}")
            kind = {"int64": f"%size.{n}"}.get(size.dtype)
            self.variables[size] = kind or self.b.value(f"trunc i64 %size.{n} to i{_bits(size)}")
            if isinstance(size, SizeVar):
                self.positive.add(size)
        self.statement(func.body)
        self.leave(0)
        if self.checks:
            given.append("ptr %ek_status")
        head = f"define ptx_kernel void @{self.name}({', '.join(given)}) #0 {{"
        return "\n".join([head, "entry:", *self.b.entry, *self.b.lines, "}"])


def _bits(var: Var) -> int:
    bits = dt.SCALAR_BITS.get(var.dtype)
    if bits is None or not dt.is_int(var.dtype):
        raise InternalError(f"kernel: a number of {var.dtype} is not given as an integer")
    return bits


def kernel_text(func: PrimFunc, name: str, sizes: Sequence[Var], target: Target) -> Text:
    """A lowered device function in LLVM's language; its arguments are its buffers, then `sizes`.

    Raises CompileError for what a device cannot do.
    """
    demoted: frozenset[Buffer] = frozenset()
    while True:
        module = Module(target)
        emitter = KernelEmitter(module, name, demoted)
        try:
            text = emitter.write(func, sizes)
            break
        except DemoteRegisterError as found:
            demoted |= {found.buffer}
    module.functions.append("\n".join([*emitter.globals, text]))
    head = [f"; for {target}", f'target triple = "{TRIPLE}"', f'target datalayout = "{LAYOUT}"']
    return Text(module.text(head) + "attributes #0 = { nounwind }\n", tuple(emitter.checks))


def ptx(text: Text, target: Target) -> bytes:
    """PTX of a kernel."""
    with held():
        machine = machine_of(TRIPLE, target.arch or str(target.attrs.get("mcpu") or OLDEST))
        module = parsed(text.ir)
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
        builder.getModulePassManager().run(module, builder)
        made: str = machine.emit_assembly(module)
    return made.encode()


__all__ = ["KernelEmitter", "Text", "kernel_text", "ptx"]
