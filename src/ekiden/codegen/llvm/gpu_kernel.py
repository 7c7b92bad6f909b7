"""GPU kernels through LLVM: a device function to PTX or SPIR-V.

    for t in thread_binding(64, "threadIdx.x"):  ->  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
        b[t] = a[t]                                  ... ret void

Parameters lie in address space 1 (global memory), a block's shared memory is a global of address
space 3, and a thread's own memory is on its stack. A check that fails records its operands and ends
its thread, as in the C dialects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.arith import simplify
from ekiden.codegen.common import flat_buffer_extent
from ekiden.codegen.compile_task import CompileTask
from ekiden.codegen.llvm.builder import LlvmModule, Operand
from ekiden.codegen.llvm.compiler import (
    cached_target_machine,
    create_target_machine,
    llvm_lock,
    parse_ir,
    run_isolated,
)
from ekiden.codegen.llvm.expression import DemoteRegisterError, is_contiguous
from ekiden.codegen.llvm.gpu_backends import GLOBAL_SPACE, SHARED_SPACE, GpuBackend
from ekiden.codegen.llvm.program_intrinsics import user_intrinsics
from ekiden.codegen.llvm.type_conversion import emit_cast
from ekiden.codegen.llvm.types import memory_type, register_type
from ekiden.codegen.llvm.wide_access import WideAccessEmitter
from ekiden.codegen.warp_shuffle import (
    ACTIVE_MASK_OP,
    evaluated_operands,
    is_warp_shuffle,
    parse_warp_shuffle,
)
from ekiden.codegen.worker_process import compile_isolated
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import WARP_SIZE
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, SizeVar, StringImm, Var, cast, const
from ekiden.runtime import environment
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import FRAGMENTS, Buffer, Ramp
from ekiden.tir.stmt import AssertStmt, BufferStore, Evaluate, For, ForKind, PrimFunc, Stmt

if TYPE_CHECKING:
    import llvmlite.binding as llvm
else:
    llvm = LazyModule("llvmlite.binding")

GLOBAL_POINTER = f"ptr addrspace({GLOBAL_SPACE})"
STATUS_PARAMETER = f"{GLOBAL_POINTER} %ek_status"
MAX_THREAD_LOCAL_BYTES = 1 << 16
"""Bytes of arrays of one thread."""


@dataclass(frozen=True, slots=True)
class KernelIr:
    """LLVM IR of a kernel, with the kind and C format of each error that it may report."""

    name: str
    ir: str
    checks: tuple[tuple[str, str], ...]


class GpuKernelEmitter(WideAccessEmitter):
    """Emitter of one kernel."""

    def __init__(
        self, module: LlvmModule, name: str, demoted: frozenset[Buffer], backend: GpuBackend
    ) -> None:
        super().__init__(module, name, demoted)
        self.backend = backend
        self.checks: list[tuple[str, str]] = []
        self.globals: list[str] = []
        self.builder.entry = []

    def in_parallel(self) -> bool:
        """Return True: parallel loops run serially in the thread."""
        return True

    def call_outlined(self, s: For) -> None:
        """Emit an outlined loop inline."""
        annotations = {k: v for k, v in (s.annotations or {}).items() if k != "apart"}
        self.emit_for(s.with_fields(annotations=annotations))

    def emit_return(self, code: int) -> None:
        """Emit the end of the thread."""
        self.builder.append_void("ret void")

    def emit_stmt(self, s: Stmt) -> None:
        """Emit one statement; a barrier is one."""
        value = s.value if isinstance(s, Evaluate) else None
        if isinstance(value, Intrinsic) and value.op == "tvm_storage_sync":
            self.builder.append_void(self.backend_call("barrier", "there is no barrier"))
            # Other threads may have stored to shared memory before the barrier.
            self.builder.touch_memory()
            return
        if isinstance(value, Intrinsic) and value.op in ("call_packed", "call_function"):
            name = value.args[0].value if isinstance(value.args[0], StringImm) else ""
            raise CompileError(f"kernel {self.name!r}: a thread cannot call {name!r} of the host")
        super().emit_stmt(s)

    def backend_call(self, word: str, missing: str, *computed: str) -> str:
        """Return the call of a backend function with computed, typed arguments. Raises CompileError
        where the backend has none.
        """
        call = self.backend.intrinsic_calls.get(word)
        if call is None:
            raise CompileError(f"kernel {self.name!r}: {missing}")
        arguments = (*computed, *call.fixed_arguments)
        kinds = ", ".join(argument.split()[0] for argument in arguments)
        declared = f"declare {call.result} @{call.name}({kinds}) {call.attributes}".rstrip()
        self.module.declarations.setdefault(call.name, declared)
        return f"call {call.result} @{call.name}({', '.join(arguments)})"

    def thread_index(self, axis: str, dtype: str = "int64") -> Operand:
        """Return the index of the thread along an axis, or the axis's extent."""
        number = self.builder.pure(self.backend_call(axis, f"there is no thread axis {axis!r}"))
        return emit_cast(self.builder, number, self.backend.index_type, dtype)

    def operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        """Return the operands to emit; the sizes of warp shuffles are constants and left out."""
        return evaluated_operands(e) if is_warp_shuffle(e) else super().operands(e)

    def emit(self, e: PrimExpr) -> Operand:
        """Emit a node; warp shuffles too."""
        if not isinstance(e, Intrinsic) or not is_warp_shuffle(e):
            return super().emit(e)
        missing = f"{e.op}: kind {self.backend.kind!r} has no shuffles of a warp"
        if e.op == ACTIVE_MASK_OP:
            return self.builder.append_value(self.backend_call(ACTIVE_MASK_OP, missing))
        exchange = parse_warp_shuffle(e)
        kind, name = ("float", "f32") if e.dtype == "float32" else ("i32", "i32")
        last = 0 if e.op.endswith("_up") else WARP_SIZE - 1
        # The c operand of PTX shfl.sync: segment mask in bits 8 to 12, clamp in bits 0 to 4.
        within = (WARP_SIZE - exchange.width) << 8 | last  # of the segment: its bits, its end
        mask, value, lane = (self.emit_expr(a) for a in evaluated_operands(e))
        arguments = f"i32 {mask}", f"{kind} {value}", f"i32 {lane}", f"i32 {within}"
        return self.builder.append_value(self.backend_call(f"{e.op}.{name}", missing, *arguments))

    def emit_for(self, s: For) -> None:
        """Emit a loop; a loop bound to a thread axis becomes that thread's index."""
        if s.kind is not ForKind.THREAD_BINDING:
            super().emit_for(s)
            return
        axis = str((s.annotations or {}).get("thread"))
        self.variables[s.loop_var] = self.thread_index(axis, s.loop_var.dtype)
        # Thread indices are never negative, so that divisions of them need no correction.
        self.nonnegative_vars.add(s.loop_var)
        self.emit_stmt(s.body)

    def emit_allocate(self, buffer: Buffer) -> None:
        """Allocate a thread-local or block-shared array, unless it is held in SSA values."""
        if buffer.scope in FRAGMENTS:
            raise CompileError(
                f"kernel {self.name!r}: buffer {buffer.name!r} of scope {buffer.scope!r}: kind "
                f"{self.backend.kind!r} has no matrices of a warp; kind 'cuda' has"
            )
        if buffer.scope not in ("global", "shared"):
            super().emit_allocate(buffer)
            return
        extent: PrimExpr = const(1)
        for d in buffer.shape:
            extent = extent * d
        if not isinstance(extent, IntImm):
            raise CompileError(
                f"kernel {self.name!r}: buffer {buffer.name!r} of a thread has no constant size"
            )
        kind = f"[{max(extent.value, 1)} x {memory_type(buffer.dtype)}]"
        # A global buffer allocated in a kernel belongs to one thread: it becomes an array on its
        # stack.
        if buffer.scope == "global":
            self._allocate_local(buffer, kind, extent.value * dt.itemsize(buffer.dtype))
            return
        self.pointers[buffer] = name = f"@{self.name}.shared.{len(self.globals)}"
        self.address_spaces[buffer] = SHARED_SPACE
        space = f"addrspace({SHARED_SPACE})"
        self.globals.append(f"{name} = internal {space} global {kind} undef, align 64")

    def _allocate_local(self, buffer: Buffer, kind: str, size: int) -> None:
        if size > MAX_THREAD_LOCAL_BYTES:
            raise CompileError(
                f"kernel {self.name!r}: buffer {buffer.name!r} of a thread has {size} bytes, of "
                f"which there may be {MAX_THREAD_LOCAL_BYTES}"
            )
        self.pointers[buffer] = name = f"%{self.builder.fresh_name('stack')}"
        self.builder.entry.append(f"  {name} = alloca {kind}, align 16")

    # Threads have no instructions that take several addresses or leave lanes out: each lane is an
    # access of its own, behind a branch where a mask may leave it out. Of neighbours that are all
    # in the buffer, as nearly always, all are read.

    def masked_load(
        self, buffer: Buffer, index: PrimExpr, dtype: str, mask: Operand | None
    ) -> Operand:
        """Load the lanes in a mask, with undefined values in the others; all lanes without
        a mask.
        """
        index = self.ramp_of(index)
        if dt.lanes(index.dtype) == 1 or (mask is None and is_contiguous_access(index)):
            return super().masked_load(buffer, index, dtype, mask)
        inside = None if mask is None else self.in_bounds(buffer, index)
        if inside is None:
            return self.load_lanes(buffer, index, dtype, mask)
        b, incoming = self.builder, []
        wide_block, lanes_block, after = (b.fresh_name(n) for n in ("whole", "each", "join"))
        b.branch_if(inside, wide_block, lanes_block)
        for label, lane_mask in ((wide_block, None), (lanes_block, mask)):
            b.start(label)
            with self.conditional_region(self.mask):
                load = super().masked_load if lane_mask is None else self.load_lanes
                incoming.append((load(buffer, index, dtype, lane_mask), b.block))
            b.branch(after)
        b.start(after)
        return b.phi(dtype, *incoming)

    def in_bounds(self, buffer: Buffer, index: PrimExpr) -> Operand | None:
        """Emit the test whether all elements of an access are in bounds; None where no test is
        needed.
        """
        extent, lanes = simplify(flat_buffer_extent(buffer)), dt.lanes(index.dtype)
        if not is_contiguous_access(index) or dt.lanes(buffer.dtype) > 1:
            return None
        if not isinstance(extent, IntImm) or extent.value < lanes:
            return None
        assert isinstance(index, Ramp)
        # One unsigned comparison covers both ends: a negative base is a very large number.
        last = self.builder.const(extent.value - lanes, index.base.dtype)
        return self.builder.compare("ule", index.base.dtype, self.emit_expr(index.base), last)

    def load_lanes(
        self, buffer: Buffer, index: PrimExpr, dtype: str, mask: Operand | None
    ) -> Operand:
        """Load each lane by itself; masked-off lanes are 0."""
        b, kind, scalar = self.builder, register_type(dtype), dt.element_dtype(dtype)
        vector, element = "zeroinitializer", register_type(scalar)
        for lane, address in enumerate(self.lane_addresses(buffer, index)):
            load = f"load {element}, {self.pointer_type(buffer)} {address}"
            load += f", align {dt.itemsize(scalar)}{self.alias_metadata(buffer)}"
            if mask is None:
                one = b.load(load, self.memory_id(buffer))
            else:
                before, load_block, after = b.block, b.fresh_name("on"), b.fresh_name("lane")
                b.branch_if(
                    self.extract_lane(mask, "bool", dt.lanes(dtype), lane), load_block, after
                )
                b.start(load_block)
                # Not `b.load`: its value does not dominate later blocks, where it must not be
                # reused.
                loaded = b.append_value(load)
                b.branch(after)
                b.start(after)
                one = b.phi(scalar, (b.const(0, scalar), before), (loaded, load_block))
            vector = b.pure(f"insertelement {kind} {vector}, {element} {one}, i64 {lane}")
        return vector

    def emit_memory_store(self, s: BufferStore, dtype: str, value: Operand) -> None:
        """Store the lanes in a predicate; all lanes without one."""
        b, index, lanes = self.builder, self.ramp_of(s.indices[0]), dt.lanes(s.indices[0].dtype)
        if lanes == 1 or (s.predicate is None and is_contiguous_access(index)):
            super().emit_memory_store(s, dtype, value)
            return
        mask = None if s.predicate is None else self.emit_expr(s.predicate)
        element = register_type(dt.element_dtype(dtype))
        alignment = dt.itemsize(dt.element_dtype(dtype))
        for lane, address in enumerate(self.lane_addresses(s.buffer, index)):
            one = self.extract_lane(value, dt.element_dtype(dtype), lanes, lane)
            where = f"{self.pointer_type(s.buffer)} {address}, align {alignment}"
            store = f"store {element} {one}, {where}{self.alias_metadata(s.buffer)}"
            if mask is None:
                b.append_void(store)
                continue
            store_block, after = b.fresh_name("on"), b.fresh_name("lane")
            b.branch_if(self.extract_lane(mask, "bool", lanes, lane), store_block, after)
            b.start(store_block)
            b.append_void(store)
            b.branch(after)
            b.start(after)

    def extract_lane(self, vector: Operand, element: str, lanes: int, number: int) -> Operand:
        """Extract one lane of a vector."""
        kind = register_type(dt.with_lanes(element, lanes))
        return self.builder.pure(f"extractelement {kind} {vector}, i64 {number}")

    def lane_addresses(self, buffer: Buffer, index: PrimExpr) -> list[Operand]:
        """Return the address of each lane of an access."""
        lanes = dt.lanes(index.dtype)
        if isinstance(index, Ramp):
            lane_indices = [index.base + index.stride * n for n in range(lanes)]
            return [self.address(buffer, one)[0] for one in lane_indices]
        index_vector = self.emit_expr(index)
        kind, pointer = memory_type(buffer.dtype), self.pointer_type(buffer)
        addresses = []
        for n in range(lanes):
            one = self.extract_lane(index_vector, dt.element_dtype(index.dtype), lanes, n)
            position = emit_cast(self.builder, one, dt.element_dtype(index.dtype), "int64")
            base = self.pointer(buffer)
            addresses.append(
                self.builder.pure(f"getelementptr {kind}, {pointer} {base}, i64 {position}")
            )
        return addresses

    def emit_assert(self, s: AssertStmt) -> None:
        """Emit a check; the first failing thread records which one it was, and its values."""
        number = len(self.checks)
        self.checks.append((s.kind, s.format))
        condition = self.emit_expr(s.condition)
        reported = [
            self.emit_expr(e) for e in (const(number), *(cast(v, "int64") for v in s.values))
        ]
        self.fail_unless(condition, lambda: self._report_failure(reported))

    def _report_failure(self, reported: Sequence[Operand]) -> None:
        b = self.builder
        thread = b.append_value(f"trunc i64 {self._linear_thread_index()} to i32")
        # The lowest failing thread wins whatever the schedule, so that the message is
        # deterministic.
        b.append_void(
            f"%{b.fresh_name('before')} = atomicrmw min {STATUS_PARAMETER}, i32 {thread} monotonic"
        )
        first, own_label, join = (b.fresh_name(n) for n in ("first", "mine", "others"))
        b.append_void(f"%{first}.at = getelementptr i32, {STATUS_PARAMETER}, i64 1")
        b.append_void(f"%{first} = load volatile i32, {GLOBAL_POINTER} %{first}.at, align 4")
        # Only the thread that still holds the minimum writes its values.
        is_first = b.append_value(f"icmp eq i32 %{first}, {thread}")
        b.branch_if(is_first, own_label, join)
        b.start(own_label)
        for index, value in enumerate(reported, start=1):
            slot = b.append_value(f"getelementptr i64, {STATUS_PARAMETER}, i64 {index}")
            b.append_void(f"store i64 {value}, {GLOBAL_POINTER} {slot}, align 8")
        b.branch(join)
        b.start(join)

    def _linear_thread_index(self) -> Operand:
        """Return the linear index of the thread in the launch."""
        b = self.builder
        total: Operand = "0"
        for axis in "zyx":
            block, threads = (
                self.thread_index(f"blockIdx.{axis}"),
                self.thread_index(f"blockDim.{axis}"),
            )
            global_index = b.append_value(f"mul i64 {block}, {threads}")
            global_index = b.append_value(
                f"add i64 {global_index}, {self.thread_index(f'threadIdx.{axis}')}"
            )
            size = b.append_value(f"mul i64 {self.thread_index(f'gridDim.{axis}')}, {threads}")
            total = b.append_value(
                f"add i64 {b.append_value(f'mul i64 {total}, {size}')}, {global_index}"
            )
        return total

    def write(self, func: PrimFunc, sizes: Sequence[Var]) -> str:
        """Emit the kernel of a function and return its text."""
        parameters: list[str] = []
        for n, buffer in enumerate(func.buffers):
            self.pointers[buffer] = self.declare_memory_parameter(f"buffer.{n}", parameters)
            self.address_spaces[buffer] = GLOBAL_SPACE
        for n, size in enumerate(sizes):
            parameters.append(f"i64 %size.{n}")
            kind = {"int64": f"%size.{n}"}.get(size.dtype)
            self.variables[size] = kind or self.builder.append_value(
                f"trunc i64 %size.{n} to i{_integer_bits(size)}"
            )
            if isinstance(size, SizeVar):
                self.nonnegative_vars.add(size)
        self.emit_stmt(func.body)
        self.emit_return(0)
        if self.checks:
            self.declare_memory_parameter("ek_status", parameters)
        hint = self.vector_width_metadata()
        signature = f"void @{self.name}({', '.join(parameters)})"
        head = f"define {self.backend.calling_convention} {signature} #0{hint} {{"
        return "\n".join([head, "entry:", *self.builder.entry, *self.builder.lines, "}"])

    # Intel's compiler for processors makes vectors across threads else, of vectors too: a softmax
    # took four times as long (Zen 3).
    def vector_width_metadata(self) -> str:
        """Return the metadata that declares the kernel's vector width, if it has vectors and the
        backend a name for it.
        """
        lane_counts = (
            re.findall(r"<(\d+) x float>", "\n".join(self.builder.lines))
            if self.backend.vector_width_hint
            else []
        )
        if not lane_counts:
            return ""
        self.module.metadata.append(
            f"!0 = !{{<{max(map(int, lane_counts))} x float> poison, i32 1}}"
        )
        return f" !{self.backend.vector_width_hint} !0"

    def declare_memory_parameter(self, name: str, parameters: list[str]) -> Operand:
        """Declare a memory parameter of the kernel and return its address."""
        if not self.backend.has_byte_offsets:
            parameters.append(f"{GLOBAL_POINTER} %{name}")
            return f"%{name}"
        parameters += [f"{GLOBAL_POINTER} %{name}.memory", f"i64 %{name}.at"]
        offset_address = f"getelementptr i8, {GLOBAL_POINTER} %{name}.memory, i64 %{name}.at"
        self.builder.entry.append(f"  %{name} = {offset_address}")
        return f"%{name}"


def is_contiguous_access(index: PrimExpr) -> bool:
    """Return whether the elements of an access are contiguous."""
    return isinstance(index, Ramp) and is_contiguous(index)


def _integer_bits(var: Var) -> int:
    bits = dt.SCALAR_BITS.get(var.dtype)
    if bits is None or not dt.is_int(var.dtype):
        raise InternalError(f"kernel: a number of {var.dtype} is not given as an integer")
    return bits


def emit_kernel_ir(
    func: PrimFunc, name: str, sizes: Sequence[Var], target: Target, backend: GpuBackend
) -> KernelIr:
    """Emit a lowered device function as LLVM IR; its parameters are its buffers, then `sizes`.
    Raises CompileError for what a device cannot do.
    """
    demoted: frozenset[Buffer] = frozenset()
    while True:
        # Emission starts anew after each demotion: a register buffer changes every access emitted
        # before.
        module = LlvmModule(target)
        module.constant_address_space, module.has_gather = backend.constant_space, False
        emitter = GpuKernelEmitter(module, name, demoted, backend)
        try:
            text = emitter.write(func, sizes)
            break
        except DemoteRegisterError as error:
            demoted |= {error.buffer}
    module.functions.append("\n".join([*emitter.globals, text]))
    head = [f"; for {target}", f'target triple = "{backend.triple_of(target)}"']
    head.append(f'target datalayout = "{backend.data_layout}"')
    ir = module.text(head) + "attributes #0 = { nounwind }\n"
    return KernelIr(name, ir, tuple(emitter.checks))


# SPIR-V goes to a compiler that optimises, and LLVM 22 computes wrong masks for it when it does so
# itself. Its generator keeps addresses of the module before: of the next ones one in three came out
# wrong, and some crashed. And what it has not, as vectors of 32 lanes, ends
# the process. So each module is the first of a process of its own.
def _compile_kernel_ir(
    text: KernelIr, target: Target, backend: GpuBackend, readable: bool
) -> bytes:
    triple, cpu = backend.triple_of(target), backend.cpu(target)
    # This backend of LLVM may end the process, or work only once in it.
    if backend.is_binary:
        name = f"kernel {text.name!r}: as {backend.format}"
        task = CompileTask("", name, _emit_machine_code, (text.ir, triple, cpu, readable))
        return compile_isolated(task, environment.kernel_timeout_s())
    if user_intrinsics(text.ir):
        return run_isolated(
            _optimize_to_assembly, text.ir, triple, cpu, name=f"kernel {text.name!r}"
        )
    return _optimize_to_assembly(text.ir, triple, cpu)


def _optimize_to_assembly(ir: str, triple: str, cpu: str) -> bytes:
    """Return the assembly of LLVM IR after LLVM's passes."""
    with llvm_lock():
        module = parse_ir(ir)
        machine = cached_target_machine(triple, cpu)
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
        builder.getModulePassManager().run(module, builder)
        assembly: str = machine.emit_assembly(module)
    return assembly.encode()


def _emit_machine_code(ir: str, triple: str, cpu: str, readable: bool) -> bytes:
    """Return the object code or the assembly of LLVM IR, by a target machine of its own."""
    machine, module = create_target_machine(triple, cpu, opt=0), parse_ir(ir)
    return (
        machine.emit_assembly(module).encode() if readable else bytes(machine.emit_object(module))
    )


def compile_device_code(text: KernelIr, target: Target, backend: GpuBackend) -> bytes:
    """Compile a kernel to the code that its device loads."""
    return _compile_kernel_ir(text, target, backend, readable=False)


def device_assembly(text: KernelIr, target: Target, backend: GpuBackend) -> bytes:
    """Return a kernel's assembly."""
    return _compile_kernel_ir(text, target, backend, readable=True)


__all__ = [
    "GpuKernelEmitter",
    "KernelIr",
    "compile_device_code",
    "device_assembly",
    "emit_kernel_ir",
]
