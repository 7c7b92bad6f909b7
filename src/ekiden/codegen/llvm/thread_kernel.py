"""Kernels of devices through LLVM: a device function to PTX or SPIR-V, as a row of `roads` says.

    for t in thread_binding(64, "threadIdx.x"):  ->  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
        b[t] = a[t]                                  ... ret void

Memory that is given lies in address space 1, memory of a block is a global of address space 3, and
what a thread keeps for itself is on its stack. A check that fails notes what it has seen and ends
its thread, as in the languages of C.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.arith import simplify
from ekiden.codegen.common import flat_extent
from ekiden.codegen.llvm.builder import Module, Operand
from ekiden.codegen.llvm.cast import emit_cast
from ekiden.codegen.llvm.compiler import (
    held,
    isolated,
    machine_of,
    new_machine,
    parsed,
    program_intrinsics,
)
from ekiden.codegen.llvm.expression import DemoteRegisterError, is_contiguous
from ekiden.codegen.llvm.roads import MEMORY, SHARED, Road
from ekiden.codegen.llvm.types import memory_type, register_type
from ekiden.codegen.llvm.wide_access import WideAccessEmitter
from ekiden.codegen.shuffles import ACTIVE, exchange_of, is_exchange, operands_of
from ekiden.codegen.task import Task
from ekiden.codegen.worker_process import compile_isolated
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import WARP
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

GIVEN = f"ptr addrspace({MEMORY})"
STATUS = f"{GIVEN} %ek_status"
MOST_LOCAL = 1 << 16
"""Bytes of arrays of one thread."""


@dataclass(frozen=True, slots=True)
class Text:
    """A kernel as LLVM's text, and the kind and format of C of each error it may report."""

    name: str
    ir: str
    checks: tuple[tuple[str, str], ...]


class KernelEmitter(WideAccessEmitter):
    """Emits one kernel."""

    def __init__(self, module: Module, name: str, demoted: frozenset[Buffer], road: Road) -> None:
        super().__init__(module, name, demoted)
        self.road = road
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
            self.b.effect(self.called("barrier", "there is no barrier"))
            self.b.touch_memory()
            return
        if isinstance(value, Intrinsic) and value.op in ("call_packed", "call_function"):
            name = value.args[0].value if isinstance(value.args[0], StringImm) else ""
            raise CompileError(f"kernel {self.name!r}: a thread cannot call {name!r} of the host")
        super().statement(s)

    def called(self, word: str, missing: str, *computed: str) -> str:
        """The call that a word of the road is, given what is computed, each with its type. Raises
        CompileError where it has none."""
        call = self.road.calls.get(word)
        if call is None:
            raise CompileError(f"kernel {self.name!r}: {missing}")
        given = (*computed, *call.given)
        kinds = ", ".join(each.split()[0] for each in given)
        declared = f"declare {call.result} @{call.name}({kinds}) {call.attributes}".rstrip()
        self.module.declarations.setdefault(call.name, declared)
        return f"call {call.result} @{call.name}({', '.join(given)})"

    def thread(self, axis: str, dtype: str = "int64") -> Operand:
        """The number of the thread along an axis, or how many there are."""
        number = self.b.pure(self.called(axis, f"there is no thread axis {axis!r}"))
        return emit_cast(self.b, number, self.road.numbers, dtype)

    def operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        """Of what another thread of the warp has, all but the sizes."""
        return operands_of(e) if is_exchange(e) else super().operands(e)

    def emit(self, e: PrimExpr) -> Operand:
        """Also what another thread of the warp has."""
        if not isinstance(e, Intrinsic) or not is_exchange(e):
            return super().emit(e)
        missing = f"{e.op}: kind {self.road.kind!r} has no shuffles of a warp"
        if e.op == ACTIVE:
            return self.b.value(self.called(ACTIVE, missing))
        exchange = exchange_of(e)
        kind, name = ("float", "f32") if e.dtype == "float32" else ("i32", "i32")
        last = 0 if e.op.endswith("_up") else WARP - 1
        within = (WARP - exchange.width) << 8 | last  # of the segment: its bits, its end
        mask, value, lane = (self.value(a) for a in operands_of(e))
        given = f"i32 {mask}", f"{kind} {value}", f"i32 {lane}", f"i32 {within}"
        return self.b.value(self.called(f"{e.op}.{name}", missing, *given))

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
                f"{self.road.kind!r} has no matrices of a warp; kind 'cuda' has"
            )
        if buffer.scope not in ("global", "shared"):
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
        self.pointers[buffer] = name = f"@{self.name}.shared.{len(self.globals)}"
        self.spaces[buffer] = SHARED
        space = f"addrspace({SHARED})"
        self.globals.append(f"{name} = internal {space} global {kind} undef, align 64")

    def _own(self, buffer: Buffer, kind: str, size: int) -> None:
        if size > MOST_LOCAL:
            raise CompileError(
                f"kernel {self.name!r}: buffer {buffer.name!r} of a thread has {size} bytes, of "
                f"which there may be {MOST_LOCAL}"
            )
        self.pointers[buffer] = name = f"%{self.b.fresh('stack')}"
        self.b.entry.append(f"  {name} = alloca {kind}, align 16")

    # Threads have no instructions that take several addresses or leave lanes out: each lane is an
    # access of its own, behind a branch where a mask may leave it out. Of neighbours that are all
    # in the buffer, as nearly always, all are read.

    def masked_load(
        self, buffer: Buffer, index: PrimExpr, dtype: str, mask: Operand | None
    ) -> Operand:
        """A load of the lanes that a mask has, anything in the others; of all without one."""
        index = self.affine(index)
        if dt.lanes(index.dtype) == 1 or (mask is None and is_near(index)):
            return super().masked_load(buffer, index, dtype, mask)
        inside = None if mask is None else self.inside(buffer, index)
        if inside is None:
            return self.load_lanes(buffer, index, dtype, mask)
        b, found = self.b, []
        whole, each, after = (b.fresh(n) for n in ("whole", "each", "join"))
        b.branch_if(inside, whole, each)
        for label, kept in ((whole, None), (each, mask)):
            b.start(label)
            with self.region(self.mask):
                load = super().masked_load if kept is None else self.load_lanes
                found.append((load(buffer, index, dtype, kept), b.block))
            b.branch(after)
        b.start(after)
        return b.phi(dtype, *found)

    def inside(self, buffer: Buffer, index: PrimExpr) -> Operand | None:
        """Whether all elements of an access are the buffer's; None where that is not looked at."""
        extent, lanes = simplify(flat_extent(buffer)), dt.lanes(index.dtype)
        if not is_near(index) or dt.lanes(buffer.dtype) > 1:
            return None
        if not isinstance(extent, IntImm) or extent.value < lanes:
            return None
        assert isinstance(index, Ramp)
        last = self.b.const(extent.value - lanes, index.base.dtype)
        return self.b.compare("ule", index.base.dtype, self.value(index.base), last)

    def load_lanes(
        self, buffer: Buffer, index: PrimExpr, dtype: str, mask: Operand | None
    ) -> Operand:
        """Each lane by itself; 0 where a mask has it not."""
        b, kind, scalar = self.b, register_type(dtype), dt.element(dtype)
        made, element = "zeroinitializer", register_type(scalar)
        for lane, place in enumerate(self.places(buffer, index)):
            load = f"load {element}, {self.pointer_type(buffer)} {place}"
            load += f", align {dt.itemsize(scalar)}{self.scope_of(buffer)}"
            if mask is None:
                one = b.load(load, self.place_of(buffer))
            else:
                before, then, after = b.block, b.fresh("on"), b.fresh("lane")
                b.branch_if(self.lane(mask, "bool", dt.lanes(dtype), lane), then, after)
                b.start(then)
                loaded = b.value(load)
                b.branch(after)
                b.start(after)
                one = b.phi(scalar, (b.const(0, scalar), before), (loaded, then))
            made = b.pure(f"insertelement {kind} {made}, {element} {one}, i64 {lane}")
        return made

    def memory_store(self, s: BufferStore, dtype: str, value: Operand) -> None:
        """A store of the lanes that a predicate has; of all without one."""
        b, index, lanes = self.b, self.affine(s.indices[0]), dt.lanes(s.indices[0].dtype)
        if lanes == 1 or (s.predicate is None and is_near(index)):
            super().memory_store(s, dtype, value)
            return
        mask = None if s.predicate is None else self.value(s.predicate)
        element = register_type(dt.element(dtype))
        for lane, place in enumerate(self.places(s.buffer, index)):
            one = self.lane(value, dt.element(dtype), lanes, lane)
            where = f"{self.pointer_type(s.buffer)} {place}, align {dt.itemsize(dt.element(dtype))}"
            store = f"store {element} {one}, {where}{self.scope_of(s.buffer)}"
            if mask is None:
                b.effect(store)
                continue
            then, after = b.fresh("on"), b.fresh("lane")
            b.branch_if(self.lane(mask, "bool", lanes, lane), then, after)
            b.start(then)
            b.effect(store)
            b.branch(after)
            b.start(after)

    def lane(self, vector: Operand, element: str, lanes: int, number: int) -> Operand:
        """One lane of a vector."""
        kind = register_type(dt.with_lanes(element, lanes))
        return self.b.pure(f"extractelement {kind} {vector}, i64 {number}")

    def places(self, buffer: Buffer, index: PrimExpr) -> list[Operand]:
        """The address of each lane of an access."""
        lanes = dt.lanes(index.dtype)
        if isinstance(index, Ramp):
            each = [index.base + index.stride * n for n in range(lanes)]
            return [self.address(buffer, one)[0] for one in each]
        many = self.value(index)
        kind, pointer = memory_type(buffer.dtype), self.pointer_type(buffer)
        found = []
        for n in range(lanes):
            one = self.lane(many, dt.element(index.dtype), lanes, n)
            at = emit_cast(self.b, one, dt.element(index.dtype), "int64")
            base = self.pointer(buffer)
            found.append(self.b.pure(f"getelementptr {kind}, {pointer} {base}, i64 {at}"))
        return found

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
        b.effect(f"%{b.fresh('before')} = atomicrmw min {STATUS}, i32 {least} monotonic")
        first, mine, others = (b.fresh(n) for n in ("first", "mine", "others"))
        b.effect(f"%{first}.at = getelementptr i32, {STATUS}, i64 1")
        b.effect(f"%{first} = load volatile i32, {GIVEN} %{first}.at, align 4")
        is_first = b.value(f"icmp eq i32 %{first}, {least}")
        b.branch_if(is_first, mine, others)
        b.start(mine)
        for at, value in enumerate(told, start=1):
            place = b.value(f"getelementptr i64, {STATUS}, i64 {at}")
            b.effect(f"store i64 {value}, {GIVEN} {place}, align 8")
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
        given: list[str] = []
        for n, buffer in enumerate(func.buffers):
            self.pointers[buffer] = self.given(f"buffer.{n}", given)
            self.spaces[buffer] = MEMORY
        for n, size in enumerate(sizes):
            given.append(f"i64 %size.{n}")
            kind = {"int64": f"%size.{n}"}.get(size.dtype)
            self.variables[size] = kind or self.b.value(f"trunc i64 %size.{n} to i{_bits(size)}")
            if isinstance(size, SizeVar):
                self.positive.add(size)
        self.statement(func.body)
        self.leave(0)
        if self.checks:
            self.given("ek_status", given)
        hint = self.hint()
        head = f"define {self.road.convention} void @{self.name}({', '.join(given)}) #0{hint} {{"
        return "\n".join([head, "entry:", *self.b.entry, *self.b.lines, "}"])

    # Intel's compiler for processors makes vectors across threads else, of vectors too: a softmax
    # took four times as long (Zen 3).
    def hint(self) -> str:
        """What says that a kernel computes in vectors, if it does and the road has words for it."""
        found = re.findall(r"<(\d+) x float>", "\n".join(self.b.lines)) if self.road.hint else []
        if not found:
            return ""
        self.module.metadata.append(f"!0 = !{{<{max(map(int, found))} x float> poison, i32 1}}")
        return f" !{self.road.hint} !0"

    def given(self, name: str, given: list[str]) -> Operand:
        """Memory that the kernel is given, which adds its parameters."""
        if not self.road.offsets:
            given.append(f"{GIVEN} %{name}")
            return f"%{name}"
        given += [f"{GIVEN} %{name}.memory", f"i64 %{name}.at"]
        place = f"getelementptr i8, {GIVEN} %{name}.memory, i64 %{name}.at"
        self.b.entry.append(f"  %{name} = {place}")
        return f"%{name}"


def is_near(index: PrimExpr) -> bool:
    """Whether the elements of an access are neighbours."""
    return isinstance(index, Ramp) and is_contiguous(index)


def _bits(var: Var) -> int:
    bits = dt.SCALAR_BITS.get(var.dtype)
    if bits is None or not dt.is_int(var.dtype):
        raise InternalError(f"kernel: a number of {var.dtype} is not given as an integer")
    return bits


def kernel_text(
    func: PrimFunc, name: str, sizes: Sequence[Var], target: Target, road: Road
) -> Text:
    """A lowered device function in LLVM's language; its arguments are its buffers, then `sizes`.

    Raises CompileError for what a device cannot do.
    """
    demoted: frozenset[Buffer] = frozenset()
    while True:
        module = Module(target)
        module.constants, module.gathers = road.constants, False
        emitter = KernelEmitter(module, name, demoted, road)
        try:
            text = emitter.write(func, sizes)
            break
        except DemoteRegisterError as found:
            demoted |= {found.buffer}
    module.functions.append("\n".join([*emitter.globals, text]))
    head = [f"; for {target}", f'target triple = "{road.triple_of(target)}"']
    head.append(f'target datalayout = "{road.layout}"')
    ir = module.text(head) + "attributes #0 = { nounwind }\n"
    return Text(name, ir, tuple(emitter.checks))


# SPIR-V goes to a compiler that optimises, and LLVM 22 computes wrong masks for it when it does so
# itself. Its generator keeps addresses of the module before: of the next ones one in three came out
# wrong, and some crashed. And what it has not, as vectors of 32 lanes, ends
# the process. So each module is the first of a process of its own.
def _made(text: Text, target: Target, road: Road, readable: bool) -> bytes:
    triple, cpu = road.triple_of(target), road.cpu(target)
    if road.binary:
        name = f"kernel {text.name!r}: as {road.format}"
        task = Task("", name, _emit, (text.ir, triple, cpu, readable))
        return compile_isolated(task, environment.kernel_timeout())
    if program_intrinsics(text.ir):
        return isolated(_optimised, text.ir, triple, cpu, name=f"kernel {text.name!r}")
    return _optimised(text.ir, triple, cpu)


def _optimised(ir: str, triple: str, cpu: str) -> bytes:
    """Return the assembly of LLVM IR after LLVM's passes."""
    with held():
        module = parsed(ir)
        machine = machine_of(triple, cpu)
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
        builder.getModulePassManager().run(module, builder)
        made: str = machine.emit_assembly(module)
    return made.encode()


def _emit(ir: str, triple: str, cpu: str, readable: bool) -> bytes:
    """Return the object code or the assembly of LLVM IR, by a target machine of its own."""
    machine, module = new_machine(triple, cpu, opt=0), parsed(ir)
    return (
        machine.emit_assembly(module).encode() if readable else bytes(machine.emit_object(module))
    )


def device_code(text: Text, target: Target, road: Road) -> bytes:
    """The code of a kernel, as its device takes it."""
    return _made(text, target, road, readable=False)


def readable_code(text: Text, target: Target, road: Road) -> bytes:
    """The same to read: LLVM's assembly."""
    return _made(text, target, road, readable=True)


__all__ = ["KernelEmitter", "Text", "device_code", "kernel_text", "readable_code"]
