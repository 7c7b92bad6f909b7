"""Emit kernels as SPIR-V for Vulkan directly, without an intermediate compiler.

A kernel has one push constant, the address of its argument words of 64 bits: the numbers of blocks
along x, y and z, then the memory address or the number of each argument. Memory is accessed by
address (PhysicalStorageBuffer). Blocks are launched as a line, which is folded where it exceeds the
limit of a dimension; blocks beyond the last one do nothing. All widths of integers and floats are
supported (arithmetic of 16-bit floats is that of float32) unless the driver reports that the device
lacks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ekiden.codegen.common import (
    buffer_address_args,
    check_lanes,
    check_supported_call,
    shuffle_indices,
)
from ekiden.codegen.device import spirv_module as spv
from ekiden.codegen.device.spirv_builder import SpirvBuilder, spirv_type
from ekiden.codegen.device.spirv_module import Id, SpirvModule
from ekiden.codegen.llvm.builder import LlvmModule, Operand
from ekiden.codegen.llvm.intrinsics import emit_intrinsic
from ekiden.codegen.llvm.operations import REDUCTION_NODES, emit_binary
from ekiden.codegen.llvm.type_conversion import emit_cast
from ekiden.codegen.warp_shuffle import is_warp_shuffle
from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    BinaryExpr,
    Cast,
    FloatImm,
    IntImm,
    Intrinsic,
    Not,
    PrimExpr,
    Select,
    StringImm,
    Var,
    const,
)
from ekiden.ir.prim_visitor import children
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.tir.expr import Broadcast, Buffer, BufferLoad, Ramp, VectorReduce
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
)

MAX_SPIRV_LOCAL_BYTES = 1 << 16
"""Maximum size of a thread-local array in bytes."""
LAST_REPORTED_THREAD = 0x7FFFFFFE
"""Highest thread index that a failed check can report."""
_AXIS_LETTERS = "xyz"
_WORD_DTYPE = "int64"
_BARRIER_OPERANDS = (2, 2, 0x8 | 0x40 | 0x100)
"""Operands of a block-wide barrier with acquire-release semantics for shared and device memory."""

LaneOperands = list[Operand]


@dataclass(frozen=True, slots=True)
class _BufferLocation:
    """Location of a buffer: a pointer to its first element, or a thread-local or block-shared
    array.
    """

    storage: int
    base: Id
    address: Operand = ""
    """Address of a memory parameter as an integer."""


class SpirvKernelEmitter:
    """Emitter of one lowered device function."""

    def __init__(self, target: Target, name: str, threads: Sequence[int]) -> None:
        self.name, self.threads = name, threads
        self.spirv = SpirvModule()
        self.builder = SpirvBuilder(LlvmModule(target), self.spirv)
        self.variables: dict[Var, LaneOperands] = {}
        self.buffer_locations: dict[Buffer, _BufferLocation] = {}
        self.checks: list[tuple[str, str]] = []
        self.grid: dict[str, Operand] = {}
        """Number of blocks and index of this block along each axis ("x", "at x")."""
        self.arguments = ""
        """Address of the kernel's argument block."""

    # What the kernel is given.

    def begin(self, buffers: Sequence[Buffer], sizes: Sequence[Var]) -> None:
        """Emit the prologue: read the arguments and compute the block's index."""
        b, spirv = self.builder, self.spirv
        word = spirv.type("i64")
        block = spirv.fresh_id()
        spirv.declarations.append(("TypeStruct", (block, word)))
        spirv.decorate(block, spv.DECORATION_BLOCK)
        spirv.decorations.append(("MemberDecorate", (block, 0, spv.DECORATION_OFFSET, 0)))
        push_constants = spirv.global_variable(spv.STORAGE_CLASS_PUSH_CONSTANT, block)
        zero = spirv.constant("i32", 0)
        kind = spirv.pointer(spv.STORAGE_CLASS_PUSH_CONSTANT, word)
        arguments_pointer = b.append_pure("AccessChain", kind, push_constants, zero)
        self.arguments = b.append_pure("Load", word, b.operand_id(arguments_pointer, _WORD_DTYPE))
        for n, axis in enumerate(_AXIS_LETTERS):
            self.grid[axis] = self._load_argument_word(n)
        self._decompose_block_index()
        for n, buffer in enumerate(buffers):
            self._bind_buffer(buffer, self._load_argument_word(len(_AXIS_LETTERS) + n))
        for n, size in enumerate(sizes):
            number = self._load_argument_word(len(_AXIS_LETTERS) + len(buffers) + n)
            self.variables[size] = [emit_cast(b, number, _WORD_DTYPE, size.dtype)]

    def _load_argument_word(self, n: int) -> Operand:
        """Load the n-th 64-bit word of the arguments."""
        b, spirv = self.builder, self.spirv
        position = b.binary("add", _WORD_DTYPE, self.arguments, b.const(8 * n, _WORD_DTYPE))
        pointer = spirv.pointer(spv.STORAGE_CLASS_PHYSICAL, spirv.type("i64"), 8)
        word_pointer = b.append_pure("ConvertUToPtr", pointer, b.operand_id(position, _WORD_DTYPE))
        return b.append_pure(
            "Load", spirv.type("i64"), b.operand_id(word_pointer, _WORD_DTYPE), 2, 8
        )

    def _bind_buffer(self, buffer: Buffer, address: Operand) -> None:
        kind, stride = self._storage_type(buffer)
        pointer = self.spirv.pointer(spv.STORAGE_CLASS_PHYSICAL, self.spirv.type(kind), stride)
        b = self.builder
        base = b.append_pure("ConvertUToPtr", pointer, b.operand_id(address, _WORD_DTYPE))
        location = spv.STORAGE_CLASS_PHYSICAL, b.operand_id(base, _WORD_DTYPE), address
        self.buffer_locations[buffer] = _BufferLocation(*location)

    def _storage_type(self, buffer: Buffer) -> tuple[str, int]:
        """Return the type of a buffer's elements in memory and their size in bytes."""
        element = dt.element_dtype(buffer.dtype)
        kind = "i8" if element == "bool" else spirv_type(element)
        size = {"i8": 1, "i16": 2}.get(kind, dt.itemsize(element))
        # Elements of 8 and of 16 bits in memory need a capability each.
        if size < 4:
            self.spirv.require_capability(f"StorageBuffer{8 * size}BitAccess")
        return kind, size

    def _decompose_block_index(self) -> None:
        """Decompose the linear block index into x, y and z; return from the kernel beyond the last
        block.
        """
        b = self.builder
        x, y = (self._built_in_component(spv.BUILT_IN_WORKGROUP_ID, n) for n in (0, 1))
        width = self._built_in_component(spv.BUILT_IN_NUM_WORKGROUPS, 0)
        line = b.binary("add", _WORD_DTYPE, x, b.binary("mul", _WORD_DTYPE, y, width))
        plane = b.binary(
            "mul",
            _WORD_DTYPE,
            self.grid["x"],
            self.grid["y"],
        )
        total = b.binary("mul", _WORD_DTYPE, plane, self.grid["z"])
        self._return_if(b.compare("uge", _WORD_DTYPE, line, total))
        self.grid["at x"] = b.binary("urem", _WORD_DTYPE, line, self.grid["x"])
        quotient = b.binary("udiv", _WORD_DTYPE, line, self.grid["x"])
        self.grid["at y"] = b.binary("urem", _WORD_DTYPE, quotient, self.grid["y"])
        self.grid["at z"] = b.binary("udiv", _WORD_DTYPE, line, plane)

    def _built_in_component(self, which: int, axis: int) -> Operand:
        """Return one component of a built-in input as a 64-bit word."""
        b, spirv = self.builder, self.spirv
        all_three = b.append_pure("Load", spirv.type("v3"), spirv.built_in(which))
        one = b.append_typed(
            "CompositeExtract", "int32", b.operand_id(all_three, _WORD_DTYPE), axis
        )
        return b.convert("zext", "uint32", _WORD_DTYPE, one)

    def thread_index(self, axis: str) -> Operand:
        """Return the number of a thread or block along an axis ("threadIdx.x"), as a word."""
        kind, _, letter = axis.partition(".")
        if letter not in tuple(_AXIS_LETTERS) or kind not in ("blockIdx", "threadIdx"):
            raise CompileError(f"kernel {self.name!r}: there is no thread axis {axis!r}")
        if kind == "blockIdx":
            return self.grid[f"at {letter}"]
        return self._built_in_component(
            spv.BUILT_IN_LOCAL_INVOCATION_ID, _AXIS_LETTERS.index(letter)
        )

    # Control.

    @contextmanager
    def _branch_block(self, label: Id, merge: Id) -> Iterator[None]:
        """Emit a block of a structured branch, which jumps to the merge block at its end."""
        self.builder.start_block(label)
        with self.builder.scope():
            yield
            self.builder.jump(merge)

    def _emit_if(
        self,
        condition: Operand,
        then_body: Callable[[], object],
        else_body: Callable[[], object] | None = None,
    ) -> None:
        b, spirv = self.builder, self.spirv
        yes, merge = spirv.fresh_id(), spirv.fresh_id()
        no = merge if else_body is None else spirv.fresh_id()
        b.append("SelectionMerge", merge, 0)
        b.append("BranchConditional", b.operand_id(condition, "bool"), yes, no)
        with self._branch_block(yes, merge):
            then_body()
        if else_body is not None:
            with self._branch_block(no, merge):
                else_body()
        b.start_block(merge)

    def _return_if(self, condition: Operand) -> None:
        b, spirv = self.builder, self.spirv
        out, on = spirv.fresh_id(), spirv.fresh_id()
        b.append("SelectionMerge", on, 0)
        b.append("BranchConditional", b.operand_id(condition, "bool"), out, on)
        b.start_block(out)
        b.append("Return")
        b.start_block(on)

    def _emit_loop(self, going: Callable[[], Operand], body: Callable[[], object]) -> None:
        """Emit a structured loop: `going` emits the condition before each iteration, `body` the
        iteration.
        """
        b, spirv = self.builder, self.spirv
        head, ask, body_label, again, merge = (spirv.fresh_id() for _ in range(5))
        b.jump(head)
        b.touch_memory()
        b.start_block(head)
        b.append("LoopMerge", merge, again, 0)
        b.jump(ask)
        b.start_block(ask)
        with b.scope():
            condition = b.operand_id(going(), "bool")
            b.append("BranchConditional", condition, body_label, merge)
            b.start_block(body_label)
            body()
            b.jump(again)
        b.start_block(again)
        b.jump(head)
        b.start_block(merge)
        b.touch_memory()

    # Statements.

    def emit_stmt(self, s: Stmt) -> None:
        """Emit one statement."""
        match s:
            case SeqStmt():
                for stmt in s.seq:
                    self.emit_stmt(stmt)
            case BufferStore():
                self.store(s)
            case For():
                self.emit_for(s)
            case LetStmt():
                self.variables[s.var] = self.emit_expr(s.value)
                self.emit_stmt(s.body)
            case Allocate():
                self.emit_allocate(s.buffer)
                self.emit_stmt(s.body)
            case While():
                self._emit_loop(
                    lambda: self.emit_expr(s.condition)[0], lambda: self.emit_stmt(s.body)
                )
            case IfThenElse():
                else_case = s.else_case
                self._emit_if(
                    self.emit_expr(s.condition)[0],
                    lambda: self.emit_stmt(s.then_case),
                    None if else_case is None else lambda: self.emit_stmt(else_case),
                )
                self.builder.touch_memory()
            case Evaluate():
                self.emit_evaluate(s.value)
            case AssertStmt():
                self.emit_assert(s)
            case _:
                raise InternalError(f"SPIR-V: statement {type(s).__name__} must be lowered first")

    def emit_evaluate(self, e: PrimExpr) -> None:
        """Emit a barrier or the value's effects; other calls are refused."""
        if isinstance(e, IntImm):
            return
        if isinstance(e, Intrinsic) and e.op == "tvm_storage_sync":
            constants = (self.spirv.constant("i32", n) for n in _BARRIER_OPERANDS)
            self.builder.append("ControlBarrier", *constants)
            self.builder.touch_memory()
            return
        self.emit_expr(e)

    def emit_for(self, s: For) -> None:
        """Emit a loop; a loop bound to a thread axis becomes that thread's index."""
        b, dtype = self.builder, s.loop_var.dtype
        if s.kind is ForKind.THREAD_BINDING:
            axis = str((s.annotations or {}).get("thread"))
            self.variables[s.loop_var] = [emit_cast(b, self.thread_index(axis), _WORD_DTYPE, dtype)]
            self.emit_stmt(s.body)
            return
        (low,), (extent,) = self.emit_expr(s.min), self.emit_expr(s.extent)
        end = b.binary("add", dtype, low, emit_cast(b, extent, s.extent.dtype, dtype))
        kind = self.spirv.type(spirv_type(dtype))
        counter = self.spirv.local_variable(kind)
        b.append("Store", counter, b.operand_id(low, dtype))
        number: LaneOperands = []

        def emit_condition() -> Operand:
            """Emit the loop condition."""
            number.append(b.append_result("Load", kind, counter))
            return b.compare("slt", dtype, number[0], end)

        def emit_iteration() -> None:
            """Emit one iteration and the increment of the counter."""
            self.variables[s.loop_var] = number
            self.emit_stmt(s.body)
            following = b.binary("add", dtype, number[0], b.const(1, dtype))
            b.append("Store", counter, b.operand_id(following, dtype))

        self._emit_loop(emit_condition, emit_iteration)

    def emit_allocate(self, buffer: Buffer) -> None:
        """Declare an array of the thread, or of its block."""
        extent: PrimExpr = const(dt.lanes(buffer.dtype))
        for dim in buffer.shape:
            extent = extent * dim
        if not isinstance(extent, IntImm):
            raise CompileError(
                f"kernel {self.name!r}: buffer {buffer.name!r} of a thread has no constant size"
            )
        is_shared = buffer.scope.startswith("shared")
        element = dt.element_dtype(buffer.dtype)
        size = int(extent.value) * (1 if element == "bool" else dt.itemsize(element))
        if not is_shared and size > MAX_SPIRV_LOCAL_BYTES:
            raise CompileError(
                f"kernel {self.name!r}: buffer {buffer.name!r} of a thread has {size} bytes, of"
                f" which there may be {MAX_SPIRV_LOCAL_BYTES}"
            )
        name = "i8" if element == "bool" else spirv_type(element)
        kind = self.spirv.array(self.spirv.type(name), max(int(extent.value), 1))
        if is_shared:
            variable = self.spirv.global_variable(spv.STORAGE_CLASS_WORKGROUP, kind)
            self.buffer_locations[buffer] = _BufferLocation(spv.STORAGE_CLASS_WORKGROUP, variable)
        else:
            self.buffer_locations[buffer] = _BufferLocation(
                spv.STORAGE_CLASS_FUNCTION, self.spirv.local_variable(kind)
            )

    def emit_assert(self, s: AssertStmt) -> None:
        """Emit a check; the first failing thread records which one it was, and its values."""
        number = len(self.checks)
        self.checks.append((s.kind, s.format))
        (condition,) = self.emit_expr(s.condition)
        # An atomic minimum decides which thread reports, so that the message does not depend on
        # scheduling.
        wrong = self.builder.binary("xor", "bool", condition, "true")
        self._emit_if(wrong, lambda: self._report_failure([const(number), *s.values]))
        self._return_if(wrong)

    def _report_failure(self, values: Sequence[PrimExpr]) -> None:
        b, spirv = self.builder, self.spirv
        word = spirv.type("i32")
        linear: Operand = b.const(0, _WORD_DTYPE)
        for n, axis in reversed(list(enumerate(_AXIS_LETTERS))):
            threads = b.const(self.threads[n], _WORD_DTYPE)
            axis_threads = b.binary("mul", _WORD_DTYPE, self.grid[axis], threads)
            own = b.binary("mul", _WORD_DTYPE, self.thread_index(f"blockIdx.{axis}"), threads)
            own = b.binary("add", _WORD_DTYPE, own, self.thread_index(f"threadIdx.{axis}"))
            linear = b.binary(
                "add", _WORD_DTYPE, b.binary("mul", _WORD_DTYPE, linear, axis_threads), own
            )
        last = b.const(LAST_REPORTED_THREAD, _WORD_DTYPE)
        clamped_thread = b.select(
            b.compare("slt", _WORD_DTYPE, linear, last), _WORD_DTYPE, linear, last
        )
        thread_index = b.operand_id(
            b.convert("trunc", _WORD_DTYPE, "int32", clamped_thread), "int32"
        )
        pointer = spirv.pointer(spv.STORAGE_CLASS_PHYSICAL, word, 4)
        status = b.operand_id(self.status_address(), _WORD_DTYPE)
        status_pointer = b.append_pure("ConvertUToPtr", pointer, status)
        scope, relaxed = (spirv.constant("i32", n) for n in (1, 0))
        b.append_result(
            "AtomicSMin",
            word,
            b.operand_id(status_pointer, _WORD_DTYPE),
            scope,
            relaxed,
            thread_index,
        )
        second = b.operand_id(
            b.binary("add", _WORD_DTYPE, f"%{status}", b.const(4, _WORD_DTYPE)), _WORD_DTYPE
        )
        first = b.append_result(
            "Load",
            word,
            b.operand_id(b.append_pure("ConvertUToPtr", pointer, second), _WORD_DTYPE),
            2,
            4,
        )
        is_first = b.compare("eq", "int32", first, f"%{thread_index}")
        self._emit_if(is_first, lambda: self._report_values(values))

    def _report_values(self, values: Sequence[PrimExpr]) -> None:
        b, spirv = self.builder, self.spirv
        pointer = spirv.pointer(spv.STORAGE_CLASS_PHYSICAL, spirv.type("i64"), 8)
        for n, value in enumerate(values, start=1):
            number = emit_cast(b, self.emit_expr(value)[0], value.dtype, _WORD_DTYPE)
            slot = b.binary("add", _WORD_DTYPE, self.status_address(), b.const(8 * n, _WORD_DTYPE))
            slot_pointer = b.append_pure("ConvertUToPtr", pointer, b.operand_id(slot, _WORD_DTYPE))
            b.append(
                "Store",
                b.operand_id(slot_pointer, _WORD_DTYPE),
                b.operand_id(number, _WORD_DTYPE),
                2,
                8,
            )

    def status_address(self) -> Operand:
        """Return the address of the error status that checks write, which follows all arguments."""
        return self._load_argument_word(len(_AXIS_LETTERS) + self.num_arguments)

    num_arguments = 0

    # Memory.

    def _element_pointer(
        self, buffer: Buffer, index: Operand, dtype: str
    ) -> tuple[Id, tuple[int, ...]]:
        """Return the pointer to an element, and the memory-access operands of its load or store."""
        b, spirv = self.builder, self.spirv
        memory = self.buffer_locations.get(buffer)
        if memory is None:
            raise InternalError(f"kernel {self.name!r}: buffer {buffer.name!r} is not in scope")
        element = dt.element_dtype(buffer.dtype)
        kind = spirv.type("i8" if element == "bool" else spirv_type(element))
        position = b.operand_id(index, dtype)
        if memory.storage == spv.STORAGE_CLASS_PHYSICAL:
            _, stride = self._storage_type(buffer)
            pointer = spirv.pointer(spv.STORAGE_CLASS_PHYSICAL, kind, stride)
            element_pointer = b.append_pure("PtrAccessChain", pointer, memory.base, position)
            return b.operand_id(element_pointer, _WORD_DTYPE), (2, stride)
        pointer = spirv.pointer(memory.storage, kind)
        element = b.append_pure("AccessChain", pointer, memory.base, position)
        return b.operand_id(element, _WORD_DTYPE), ()

    def _load_element(self, buffer: Buffer, index: Operand, dtype: str) -> Operand:
        b = self.builder
        element_pointer, access = self._element_pointer(buffer, index, dtype)
        element = dt.element_dtype(buffer.dtype)
        kind = self.spirv.type("i8" if element == "bool" else spirv_type(element))
        loaded = b.append_pure(
            "Load", kind, element_pointer, *access, epoch=b.memory_epoch(id(buffer))
        )
        if element != "bool":
            return loaded
        return b.compare("ne", "uint8", loaded, "0")

    def _lane_indices(self, buffer: Buffer, index: PrimExpr) -> LaneOperands:
        """Return the element index of each lane of an access; for a buffer of vectors, of all lanes
        of an element.
        """
        b, own = self.builder, dt.lanes(buffer.dtype)
        lane_indices = self.emit_expr(index)
        if own == 1:
            return lane_indices
        scaled = [b.binary("mul", dt.element_dtype(index.dtype), p, b.const(own, index.dtype))
                  for p in lane_indices]  # fmt: skip
        return [
            b.binary(
                "add", dt.element_dtype(index.dtype), p, b.const(n, dt.element_dtype(index.dtype))
            )
            for p in scaled
            for n in range(own)
        ]

    def load(self, e: BufferLoad) -> LaneOperands:
        """Return the lanes of a load."""
        if len(e.indices) != 1:
            raise InternalError(f"SPIR-V: access of {e.buffer.name!r}: flatten buffers first")
        check_lanes("SPIR-V: the load of", e.buffer, e.indices[0], e.dtype)
        dtype = dt.element_dtype(e.indices[0].dtype)
        return [
            self._load_element(e.buffer, position, dtype)
            for position in self._lane_indices(e.buffer, e.indices[0])
        ]

    def store(self, s: BufferStore) -> None:
        """Emit a store, lane by lane, under the predicate of each."""
        b, buffer = self.builder, s.buffer
        check_lanes("SPIR-V: the store to", buffer, s.indices[0], s.value.dtype)
        values, index = self.emit_expr(s.value), s.indices[0]
        lane_indices = self._lane_indices(buffer, index)
        if len(values) == 1 and len(lane_indices) > 1:
            values = values * len(lane_indices)
        masks = [None] * len(lane_indices) if s.predicate is None else self.emit_expr(s.predicate)
        for position, value, mask in zip(lane_indices, values, masks, strict=True):
            if mask is None:
                self._store_element(buffer, position, dt.element_dtype(index.dtype), value)
            else:
                put = (buffer, position, dt.element_dtype(index.dtype), value)
                self._emit_if(mask, lambda put=put: self._store_element(*put))  # type: ignore[misc]
        # Buffers of the caller may overlap; arrays of a thread or a block do not.
        b.touch_memory(
            0 if self.buffer_locations[buffer].storage == spv.STORAGE_CLASS_PHYSICAL else id(buffer)
        )

    def _store_element(self, buffer: Buffer, index: Operand, dtype: str, value: Operand) -> None:
        b, element = self.builder, dt.element_dtype(buffer.dtype)
        element_pointer, access = self._element_pointer(buffer, index, dtype)
        if element == "bool":
            value, element = b.convert("zext", "bool", "uint8", value), "uint8"
        b.append("Store", element_pointer, b.operand_id(value, element), *access)

    # Expressions.

    def emit_expr(self, root: PrimExpr) -> LaneOperands:
        """Emit an expression, each shared node once, and return its lanes."""
        computed: dict[PrimExpr, LaneOperands] = {}
        stack = [root]
        while stack:
            e = stack[-1]
            if e in computed:
                stack.pop()
                continue
            waiting = [c for c in self._operands(e) if c not in computed]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            computed[e] = self._emit_node(e, computed)
            stack.pop()
        return computed[root]

    def _operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        """Return the operands that are evaluated unconditionally before a node."""
        if isinstance(e, Intrinsic) and e.op == "if_then_else":
            return e.args[:1]
        if isinstance(e, (Var, IntImm, FloatImm, BufferLoad)):
            return ()
        if isinstance(e, Intrinsic) and e.op == "same_memory":
            return ()
        if isinstance(e, Intrinsic):
            self._check_call(e)
        return children(e)

    def _check_call(self, e: Intrinsic) -> None:
        if is_warp_shuffle(e):
            raise CompileError(
                f"kernel {self.name!r}: {e.op}: kind 'vulkan' has no shuffles of a warp"
            )
        if e.op in ("call_packed", "call_function", "call_extern", "call_pure_extern"):
            name = e.args[0].value if isinstance(e.args[0], StringImm) else ""
            raise CompileError(f"kernel {self.name!r}: a thread cannot call {name!r} of the host")
        check_supported_call(e)

    def _emit_node(self, e: PrimExpr, computed: dict[PrimExpr, LaneOperands]) -> LaneOperands:
        b, kind = self.builder, dt.element_dtype(e.dtype) if e.dtype else ""
        match e:
            case IntImm() | FloatImm():
                return [b.const(e.value, kind)]
            case Var():
                if e not in self.variables:
                    raise InternalError(f"kernel {self.name!r}: variable {e.name!r} is unknown")
                return self.variables[e]
            case BinaryExpr():
                of = dt.element_dtype(e.a.dtype)
                pairs = zip(*_broadcast_operands(computed[e.a], computed[e.b]), strict=True)
                return [emit_binary(b, type(e), of, x, y) for x, y in pairs]
            case Cast():
                source = dt.element_dtype(e.value.dtype)
                return [emit_cast(b, x, source, kind) for x in computed[e.value]]
            case Not():
                return [b.binary("xor", "bool", x, "true") for x in computed[e.a]]
            case Select():
                lanes_by_operand = _broadcast_operands(
                    computed[e.condition], computed[e.true_value], computed[e.false_value]
                )
                return [b.select(c, kind, x, y) for c, x, y in zip(*lanes_by_operand, strict=True)]
            case Ramp():
                (base,), (step,) = computed[e.base], computed[e.stride]
                return [
                    b.binary("add", kind, base, b.binary("mul", kind, step, b.const(n, kind)))
                    for n in range(dt.lanes(e.dtype))
                ]
            case Broadcast():
                return computed[e.value] * dt.lanes(e.dtype)
            case VectorReduce():
                return [self._emit_vector_reduce(e, computed[e.value])]
            case BufferLoad():
                return self.load(e)
            case Intrinsic():
                return self._emit_intrinsic(e, kind, computed)
        raise InternalError(f"SPIR-V: {type(e).__name__} has no meaning in a kernel: {e!r}")

    def _emit_vector_reduce(self, e: VectorReduce, lanes: LaneOperands) -> Operand:
        """Combine the halves of a vector until one lane is left, in the order of LLVM's
        reductions.
        """
        kind, node = dt.element_dtype(e.dtype), REDUCTION_NODES[e.kind]
        while len(lanes) > 1 and len(lanes) % 2 == 0:
            half = len(lanes) // 2
            pairs = zip(lanes[:half], lanes[half:], strict=True)
            lanes = [emit_binary(self.builder, node, kind, x, y) for x, y in pairs]
        total = lanes[0]
        for lane in lanes[1:]:
            total = emit_binary(self.builder, node, kind, total, lane)
        return total

    def _emit_intrinsic(
        self, e: Intrinsic, kind: str, computed: dict[PrimExpr, LaneOperands]
    ) -> LaneOperands:
        b = self.builder
        if e.op == "if_then_else":
            return self._emit_branch(e, kind, computed[e.args[0]])
        if e.op == "same_memory":
            one, second = (
                self.buffer_locations[buffer].address for buffer in buffer_address_args(e)
            )
            return [b.compare("eq", _WORD_DTYPE, one, second)]
        if e.op == "likely":
            return computed[e.args[0]]
        if e.op == "shuffle":
            both = [*computed[e.args[0]], *computed[e.args[1]]]
            return [both[n] for n in shuffle_indices(e)]
        source = dt.element_dtype(e.args[0].dtype)
        if e.op == "reinterpret" and dt.lanes(e.args[0].dtype) != dt.lanes(e.dtype):
            raise CompileError(f"kernel {self.name!r}: neighbours in memory are read as one")
        lanes_by_operand = _broadcast_operands(*(computed[a] for a in e.args))
        lanes = zip(*lanes_by_operand, strict=True)
        return [emit_intrinsic(b, e.op, kind, source, list(xs)) for xs in lanes]

    def _emit_branch(self, e: Intrinsic, kind: str, conditions: LaneOperands) -> LaneOperands:
        """Emit a branch that evaluates only the chosen side: the other may read out of bounds."""
        b, spirv = self.builder, self.spirv
        sides: list[tuple[LaneOperands, Id]] = []
        if len(conditions) > 1:
            raise CompileError(
                f"kernel {self.name!r}: lanes of vectors choose between values: do not vectorize"
            )

        def emit_side(value: PrimExpr) -> None:
            """Emit one side in its own block."""
            lanes = [f"%{b.operand_id(x, kind)}" for x in self.emit_expr(value)]
            sides.append((lanes, b.label))

        self._emit_if(conditions[0], lambda: emit_side(e.args[1]), lambda: emit_side(e.args[2]))
        (yes, after_yes), (no, after_no) = sides
        of = spirv.type(spirv_type(kind))
        return [
            b.append_result(
                "Phi", of, b.operand_id(x, kind), after_yes, b.operand_id(y, kind), after_no
            )
            for x, y in zip(yes, no, strict=True)
        ]


def _broadcast_operands(*values: LaneOperands) -> list[LaneOperands]:
    """Broadcast operands to the largest number of lanes among them."""
    width = max(map(len, values))
    return [lanes * width if len(lanes) == 1 else lanes for lanes in values]


@dataclass(frozen=True, slots=True)
class SpirvCode:
    """Kernel code as words and as readable text, with the checks that its threads may fail."""

    code: bytes
    text: str
    checks: tuple[tuple[str, str], ...]


def emit_vulkan_kernel(
    func: PrimFunc, name: str, sizes: Sequence[Var], target: Target, threads: Sequence[int]
) -> SpirvCode:
    """Return the code of a lowered device function for blocks of `threads` along x, y and z; its
    arguments are its buffers, then `sizes`. Raises CompileError for what a device cannot do.
    """
    kernel = SpirvKernelEmitter(target, name, threads)
    kernel.num_arguments = len(func.buffers) + len(sizes)
    kernel.begin(func.buffers, sizes)
    kernel.emit_stmt(func.body)
    kernel.builder.append("Return")
    spirv = kernel.spirv
    code, text = spirv.encode(name, threads), spirv.disassemble(name, threads)
    return SpirvCode(code, text, tuple(kernel.checks))


__all__ = ["SpirvCode", "SpirvKernelEmitter", "emit_vulkan_kernel"]
