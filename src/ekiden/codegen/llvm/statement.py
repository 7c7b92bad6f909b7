"""Emit statements as basic blocks. Register buffers become SSA values: phis carry them around loops
and out of branches.

A parallel loop becomes a function of its own, `int body(ctx, begin, end)`, run by ek_parallel_for;
what it uses from outside travels in a structure of 8-byte slots; a vector takes several. So does a
loop annotated with "apart", which is called: LLVM would keep its constants in registers throughout
the loops around it, and spill there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.codegen.common import (
    BOUNDS_ERROR_KIND,
    DEVICE_ID_VAR,
    bounds_error_format,
    check_lanes,
    contract_fma,
    flat_buffer_extent,
)
from ekiden.codegen.llvm import amx, subnormals
from ekiden.codegen.llvm.builder import LlvmModule, Operand
from ekiden.codegen.llvm.debug_info import DebugLocations
from ekiden.codegen.llvm.expression import DemoteRegisterError, RegisterKey
from ekiden.codegen.llvm.intrinsic_call import IntrinsicCallEmitter
from ekiden.codegen.llvm.operations import emit_lane_reduction, is_first_lane_mask
from ekiden.codegen.llvm.quoting import quote_name
from ekiden.codegen.llvm.type_conversion import emit_cast
from ekiden.codegen.llvm.types import intrinsic_suffix, memory_dtype, memory_type, register_type
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, SizeVar, Var, cast, const, is_const
from ekiden.runtime.errors import InternalError
from ekiden.tir.expr import Buffer, BufferAddress, Ramp
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Prefetch,
    SeqStmt,
    Stmt,
    While,
)


# Text and not llvmlite's objects: a kernel is written line by line in the order in which it runs,
# and SSA form is made on the way. `registers` maps each element of a register buffer to its value
# now. A loop gives a phi to every element that its body stores (`carried`), a branch to every one
# that its sides leave different: no memory slots, so that LLVM's pass that would remove them need
# not run.
#
# Every way out of a function frees its workspaces and sets back what it set (flushing of
# subnormals, tiles): `leave` and `fail_unless` are the only two, and `workspaces` what is open at
# this place.
class StatementEmitter(IntrinsicCallEmitter):
    """Emitter of statements into one function that returns int: 0, or -1 with an error set."""

    def __init__(self, module: LlvmModule, name: str, demoted: frozenset[Buffer]) -> None:
        super().__init__(module)
        self.module, self.name, self.demoted = module, name, demoted
        self.workspaces: list[Operand] = []
        self.device_type: int | None = None
        """DLPack device type on which it launches kernels and buffers are allocated."""
        self._sizes: dict[Operand, Operand] = {}
        self.failures: list[str] = []
        self.tile_config: amx.TileConfig | None = None
        """AMX tile configuration, if the function has loaded one."""
        self.flush_mode: subnormals.FlushToZeroMode | None = None
        """Saved control register, if the function flushes subnormals."""
        self._stores: dict[Stmt, frozenset[RegisterKey]] = {}
        self.lines: DebugLocations | None = None

    def emit_stmt(self, s: Stmt) -> None:
        """Emit one statement."""
        self.begin_statement()
        if self.lines is not None:
            self.builder.location = self.lines.enter(s)
        match s:
            case SeqStmt():
                for stmt in s.seq:
                    self.emit_stmt(stmt)
            case BufferStore():
                self.emit_store(s)
            case For():
                self.emit_for(s)
            case LetStmt() | Allocate():
                self.emit_nested(s)
            case While():
                self.emit_while(s)
            case IfThenElse():
                self.emit_if(s)
            case Evaluate(value=Intrinsic(op=op)) if op.startswith("matrix_"):
                self.emit_tile_intrinsic(s.value)
            case Evaluate():
                if not isinstance(s.value, IntImm):
                    self.emit_expr(s.value)
            case AssertStmt():
                self.emit_assert(s)
            case Prefetch():
                self.emit_prefetch(s)
            case _:
                raise InternalError(f"llvm: statement {type(s).__name__} must be lowered first")

    def emit_tile_intrinsic(self, e: PrimExpr) -> None:
        """Lower AMX tile intrinsics."""
        assert isinstance(e, Intrinsic)
        if e.op == "matrix_shape":
            if self.tile_config is None:
                self.tile_config = amx.TileConfig(self.builder)
            return self.tile_config.load_config([self.emit_expr(cast(a, "int64")) for a in e.args])
        numbers = [a.value for a in e.args if isinstance(a, IntImm)]
        if e.op == "matrix_zero":
            return amx.tile_zero(self.builder, numbers[0])
        if e.op in amx.TILE_DOT_INTRINSICS:
            return amx.tile_dot_product(self.builder, e.op, numbers)
        _, region, stride = e.args
        assert isinstance(region, BufferAddress)
        address, _ = self.address(region.buffer, region.indices[0])
        row_bytes = self.emit_expr(cast(stride, "int64"))
        return amx.tile_load(self.builder, numbers[0], address, row_bytes)

    # variables and buffers

    def emit_nested(self, s: Stmt) -> None:
        """Emit nested lets and allocations iteratively, however deep; workspaces are freed in
        reverse order.
        """
        before = len(self.workspaces)
        while isinstance(s, (LetStmt, Allocate)):
            self.begin_statement()
            if self.lines is not None:
                self.builder.location = self.lines.enter(s)
            if isinstance(s, LetStmt):
                self.variables[s.var] = self.emit_expr(s.value)
                if self.is_nonnegative(s.value):
                    self.nonnegative_vars.add(s.var)
            else:
                self.emit_allocate(s.buffer)
            s = s.body
        self.emit_stmt(s)
        # Last allocated is freed first: the workspace allocator is a stack for each thread.
        while len(self.workspaces) > before:
            self.free_workspace(self.workspaces.pop())

    # Stack slots go to the entry block, where LLVM gives each one place for the whole function: in
    # a loop an alloca would take more stack in every turn.
    def emit_allocate(self, buffer: Buffer) -> None:
        """Allocate a buffer's memory, unless it is held in SSA values."""
        if buffer.scope == "register" and buffer not in self.demoted:
            return
        extent: PrimExpr = const(1)
        for d in buffer.shape:
            extent = extent * d
        if buffer.scope != "global" and isinstance(extent, IntImm):
            kind = f"[{max(extent.value, 1)} x {memory_type(buffer.dtype)}]"
            self.pointers[buffer] = name = f"%{self.builder.fresh_name('stack')}"
            self.builder.entry.append(f"  {name} = alloca {kind}, align 64")
            return
        size = self.emit_expr(extent * dt.itemsize(buffer.dtype))
        self.pointers[buffer] = self.allocate_workspace(size)

    def allocate_workspace(self, size: Operand) -> Operand:
        """Allocate scratch memory in bytes, freed at the end of the scope or on failure."""
        if self.device_type is not None:
            self.module.declare("ek_device_workspace_alloc", "ptr", ["i64", "i64", "i64"])
            arguments = f"i64 {self.device_type}, i64 {self.variables[DEVICE_ID_VAR]}, i64 {size}"
            memory = self.builder.append_value(f"call ptr @ek_device_workspace_alloc({arguments})")
            self._sizes[memory] = size
        else:
            self.module.declare("ek_workspace_alloc", "ptr", ["i64"])
            memory = self.builder.append_value(f"call ptr @ek_workspace_alloc(i64 {size})")
        # The test comes before the append, or the failing path would free a null workspace.
        self.fail_unless(self.builder.append_value(f"icmp ne ptr {memory}, null"))
        self.workspaces.append(memory)
        return memory

    def free_workspace(self, memory: Operand) -> None:
        """Free scratch memory."""
        if self.device_type is not None:
            self.module.declare("ek_device_workspace_free", "void", ["i64", "i64", "ptr", "i64"])
            arguments = f"i64 {self.device_type}, i64 {self.variables[DEVICE_ID_VAR]}, ptr {memory}"
            call = f"call void @ek_device_workspace_free({arguments}, i64 {self._sizes[memory]})"
            return self.builder.append_void(call)
        self.module.declare("ek_workspace_free", "void", ["ptr"])
        return self.builder.append_void(f"call void @ek_workspace_free(ptr {memory})")

    def emit_return(self, code: int) -> None:
        """Return from the function."""
        if self.flush_mode is not None:
            self.flush_mode.restore_mode(self.builder)
        if self.tile_config is not None:
            amx.tile_release(self.builder)
        self.builder.append_void(f"ret i32 {code}")

    # failing

    def fail_unless(self, condition: Operand, say: Callable[[], None] | None = None) -> None:
        """Return -1 unless the condition holds, after freeing all workspaces; the error is set
        already, or by `say`.
        """
        going, failed = self.builder.fresh_name("ok"), self.builder.fresh_name("fail")
        self.builder.branch_if(condition, going, failed)
        self.builder.start(failed)
        if say is not None:
            with self.builder.scope():
                say()
        for memory in reversed(self.workspaces):
            self.free_workspace(memory)
        self.emit_return(-1)
        self.builder.start(going)

    def check(self, condition: Operand, kind: str, message: str) -> None:
        """Fail with an error unless the condition holds."""
        self.module.declare("ek_kernel_error", "i32", ["ptr", "ptr"])
        text, name = self.module.string_constant(message), self.module.string_constant(kind)
        call = f"call i32 @ek_kernel_error(ptr {name}, ptr {text})"
        self.fail_unless(condition, lambda: self.builder.append_void(call))

    def emit_assert(self, s: AssertStmt) -> None:
        """Emit a check whose message may show values."""
        if not s.values:
            return self.check(self.emit_expr(s.condition), s.kind, s.message)
        values = [self.emit_expr(cast(v, "int64")) for v in s.values]
        return self.fail_with_values(self.emit_expr(s.condition), s.kind, s.format, values)

    def fail_with_values(
        self, condition: Operand, kind: str, text: str, values: Sequence[Operand]
    ) -> None:
        """Fail with an error that shows 64-bit integers unless the condition holds."""
        self.module.declare("ek_kernel_error_values", "i32", ["ptr", "ptr", "ptr"])
        message, name = self.module.string_constant(text), self.module.string_constant(kind)
        words = self.allocate_words(len(values))

        def set_error() -> None:
            """Store the values in memory and set the error: only where the condition failed."""
            for n, value in enumerate(values):
                self.store_word(words, n, f"i64 {value}")
            arguments = f"ptr {name}, ptr {message}, ptr {words}"
            self.builder.append_void(f"call i32 @ek_kernel_error_values({arguments})")

        self.fail_unless(condition, set_error)

    # One unsigned comparison for both ends: an index below 0 is a very large number.
    def check_access(self, buffer: Buffer, index: PrimExpr, mask: Operand | None) -> None:
        """Fail unless the elements of an access are inside the buffer, if the target requests
        bounds checks. The message shows the smallest wrong index.
        """
        target = self.module.target
        if target is None or not target.bounds:
            return
        b, lanes = self.builder, dt.lanes(index.dtype)
        kind, bits = dt.with_lanes("int64", lanes), dt.with_lanes("bool", lanes)
        position = emit_cast(b, self.emit_expr(index), index.dtype, kind)
        extent = self.emit_expr(flat_buffer_extent(buffer))
        limit = b.splat("int64", extent, lanes) if lanes > 1 else extent
        wrong = b.compare("uge", kind, position, limit)
        if mask is not None and lanes > 1:
            wrong = b.binary("and", bits, wrong, mask)
        shown_index, any_wrong = position, wrong
        if lanes > 1:
            # Lanes in bounds become the largest index, so that the minimum is an index that failed.
            largest = b.splat("int64", b.const(2**63 - 1, "int64"), lanes)
            shown_index = emit_lane_reduction(
                b, "min", kind, b.select(wrong, kind, position, largest, lanes)
            )
            any_wrong = b.any_lane(wrong, lanes)
        self.fail_with_values(
            b.binary("xor", "bool", any_wrong, b.const(True, "bool")),
            BOUNDS_ERROR_KIND,
            bounds_error_format(self.name, buffer),
            (shown_index, extent),
        )

    # stores

    def emit_store(self, s: BufferStore) -> None:
        """Emit `buffer[index] = value`, in registers or in memory, under a predicate if there is
        one.
        """
        if len(s.indices) != 1:
            raise InternalError(
                f"llvm: store to {s.buffer.name!r} has {len(s.indices)} indices;"
                " flatten buffers first"
            )
        if isinstance(s.value, Intrinsic) and s.value.op == "matrix_value":
            return self.emit_tile_store(s)
        check_lanes("llvm: the store to", s.buffer, s.indices[0], s.value.dtype)
        if s.predicate is not None and dt.lanes(s.predicate.dtype) == 1:
            if is_const(s.predicate):
                return (
                    self.emit_store(s.with_fields(predicate=None))
                    if is_const(s.predicate, 1)
                    else None
                )
            return self.emit_if(IfThenElse(s.predicate, s.with_fields(predicate=None)))
        value = self.emit_expr(contract_fma(s))
        if s.buffer.scope == "register" and s.buffer not in self.pointers:
            key = self.register_key(s.buffer, s.indices[0])
            if s.predicate is not None:
                lanes, old = dt.lanes(s.predicate.dtype), self.registers.get(key, "poison")
                mask = self.emit_expr(s.predicate)
                value = self.builder.select(mask, s.value.dtype, value, old, lanes)
            self.registers[key] = value
            return None
        stored_dtype = memory_dtype(s.value.dtype)
        if stored_dtype != s.value.dtype:
            value = self.builder.convert("zext", s.value.dtype, stored_dtype, value)
        self.emit_memory_store(s, stored_dtype, value)
        # A store ends the value numbering of loads from buffers that may overlap this one.
        self.builder.touch_memory(self.memory_id(s.buffer))
        return None

    def emit_tile_store(self, s: BufferStore) -> None:
        """Store the rows of an AMX tile."""
        assert isinstance(s.value, Intrinsic)
        (number,) = s.value.args
        assert isinstance(number, IntImm)
        address, _ = self.address(s.buffer, s.indices[0])
        amx.tile_store(self.builder, number.value, address)
        self.builder.touch_memory(self.memory_id(s.buffer))

    def emit_memory_store(self, s: BufferStore, dtype: str, value: Operand) -> None:
        """Emit a scalar, contiguous, masked or scattered store."""
        b, kind, index = self.builder, register_type(dtype), self.ramp_of(s.indices[0])
        lanes, align = dt.lanes(index.dtype), dt.itemsize(dt.element_dtype(dtype))
        mask = None
        if s.predicate is not None:
            mask = self.emit_expr(s.predicate)
        self.check_access(s.buffer, index, mask)
        address, scatters = self.address(s.buffer, index)
        if not scatters and s.predicate is not None and is_first_lane_mask(s.predicate):
            lanes, element = 1, register_type(dt.element_dtype(dtype))
            kind, value = element, b.pure(f"extractelement {kind} {value}, i64 0")
        pointer, space = self.pointer_type(s.buffer), self.address_spaces.get(s.buffer, 0)
        if lanes == 1 or (mask is None and not scatters):
            where = f"{pointer} {address}, align {align}{self.alias_metadata(s.buffer)}"
            b.append_void(f"store {kind} {value}, {where}")
            return
        bits = register_type(dt.with_lanes("bool", lanes))
        form = (
            f"scatter.{intrinsic_suffix(dtype)}.v{lanes}p"
            if scatters
            else f"store.{intrinsic_suffix(dtype)}.p"
        )
        form = f"{form}{space}"
        pointer_kind = f"<{lanes} x {pointer}>" if scatters else pointer
        mask = mask or b.const(True, dt.with_lanes("bool", lanes))
        b.module.declare(f"llvm.masked.{form}", "void", [kind, pointer_kind, "i32", bits])
        b.append_void(
            f"call void @llvm.masked.{form}({kind} {value}, {pointer_kind} {address},"
            f" i32 {align}, {bits} {mask}){self.alias_metadata(s.buffer)}"
        )

    def emit_prefetch(self, s: Prefetch) -> None:
        """Emit a prefetch hint; it never faults."""
        index = self.ramp_of(s.indices[0])
        address, _ = self.address(s.buffer, index.base if isinstance(index, Ramp) else index)
        self.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
        self.builder.append_void(
            f"call void @llvm.prefetch.p0(ptr {address}, i32 0, i32 {s.locality}, i32 1)"
        )

    # control

    # What was computed before is known on both sides, what on one side is not behind it (`region`).
    # A register that only one side stores had no value before: on the other it is poison, which is
    # never read, or the program would read what it had not written (tir.verify).
    def emit_if(self, s: IfThenElse) -> None:
        """Emit a branch; register buffers written on either side merge in phis."""
        if isinstance(s.condition, IntImm):
            chosen = s.then_case if s.condition.value else s.else_case
            return self.emit_stmt(chosen) if chosen is not None else None
        b, start = self.builder, dict(self.registers)
        then_label, after = b.fresh_name("then"), b.fresh_name("join")
        else_label = b.fresh_name("else") if s.else_case is not None else after
        condition = self.emit_expr(s.condition)
        origin = b.block
        b.branch_if(condition, then_label, else_label)
        ends: list[tuple[dict[RegisterKey, Operand], str]] = []
        for label, case in ((then_label, s.then_case), (else_label, s.else_case)):
            if case is None:
                ends.append((start, origin))
                continue
            b.start(label)
            self.registers = dict(start)
            with self.conditional_region(self.mask):
                self.emit_stmt(case)
            ends.append((self.registers, b.block))
            b.branch(after)
        b.start(after)
        self.begin_statement()
        self.registers = self.merge_registers(*ends)
        return None

    def merge_registers(
        self,
        one: tuple[dict[RegisterKey, Operand], str],
        two: tuple[dict[RegisterKey, Operand], str],
    ) -> dict[RegisterKey, Operand]:
        """Return the register values after two blocks join."""
        (first, left_block), (second, right_block) = one, two
        result: dict[RegisterKey, Operand] = {}
        for key in {**first, **second}:
            a, b = first.get(key, "poison"), second.get(key, "poison")
            result[key] = (
                a
                if a == b
                else self.builder.phi(self.register_dtype(key), (a, left_block), (b, right_block))
            )
        return result

    def register_dtype(self, key: RegisterKey) -> str:
        """Return the dtype of an SSA value of a register buffer."""
        buffer = key[0]
        lanes = self.register_lanes.get(buffer, 1)
        return buffer.dtype if lanes == 1 else dt.with_lanes(buffer.dtype, lanes)

    def emit_for(self, s: For) -> None:
        """Emit a loop; one of extent 0 vanishes, one of extent 1 is its body."""
        if s.kind in (ForKind.VECTORIZED, ForKind.UNROLLED):
            raise InternalError(
                f"llvm: loop over {s.loop_var.name!r} is {s.kind.value}; lower it first"
            )
        if is_const(s.extent, 0):
            return
        if is_const(s.extent, 1):
            self.emit_nested(LetStmt(s.loop_var, s.min, s.body))
        elif s.kind is ForKind.PARALLEL and not self.in_parallel():
            self.emit_parallel_for(s)
        elif "apart" in (s.annotations or {}):
            self.call_outlined(s)
        else:
            begin = self.emit_expr(s.min)
            end = self.emit_expr(s.min + s.extent)
            self.emit_serial_for(s, begin, end, isinstance(s.extent, IntImm))

    def in_parallel(self) -> bool:
        """Return whether this function is the body of a parallel loop already: nested parallel
        loops run serially.
        """
        return False

    def emit_serial_for(self, s: For, begin: Operand, end: Operand, runs: bool) -> None:
        """Emit a bottom-tested loop; unless it provably `runs` at least once, a zero-trip guard
        precedes it.
        """
        b, var = self.builder, s.loop_var
        kind = register_type(var.dtype)
        # Loop inversion: LLVM's passes are not run on this code, so the loop is emitted in the form
        # that they would produce.
        body, after = b.fresh_name("loop"), b.fresh_name("done")
        # Sorted, because text is the key of caches and must not depend on hash order.
        carried = sorted(self.loop_carried_registers(s.body), key=lambda k: (k[0].name, k[1]))
        start = {key: self.registers.get(key, "poison") for key in carried}
        origin, outer = b.block, dict(self.registers)
        if runs:
            b.branch(body)
        else:
            b.branch_if(b.compare("slt", var.dtype, begin, end), body, after)
        # Loads before the loop are not loop-invariant as far as is known here: the body may store.
        b.touch_memory()
        b.start(body)
        # phis come first in the block, with the incoming values of the end filled in afterwards
        counter, following = f"%{b.fresh_name('i')}", f"%{b.fresh_name('next')}"
        header_line = len(b.lines)
        phis = {key: f"%{b.fresh_name('r')}" for key in carried}
        self.registers.update(phis)
        self.variables[var] = counter
        if self.is_nonnegative(s.min):
            self.nonnegative_vars.add(var)
        with self.conditional_region(self.mask):
            self.emit_stmt(s.body)
        if self.lines is not None:
            b.location = self.lines.enter(s)
        b.append_void(f"{following} = add {kind} {counter}, 1")
        again = b.append_value(f"icmp slt {kind} {following}, {end}")
        back = b.block
        b.branch_if(again, body, after)
        header = [f"  {counter} = phi {kind} [ {begin}, %{origin} ], [ {following}, %{back} ]"]
        for key in carried:
            typed = register_type(self.register_dtype(key))
            first, last = f"[ {start[key]}, %{origin} ]", f"[ {self.registers[key]}, %{back} ]"
            header.append(f"  {phis[key]} = phi {typed} {first}, {last}")
        b.lines[header_line:header_line] = header
        b.start(after)
        b.touch_memory()
        self.begin_statement()
        final = {key: self.registers[key] for key in carried}
        # Values that the body computed do not dominate the code behind a loop that may run zero
        # times.
        self.registers = outer
        for key in carried:
            value = final[key]
            if not runs:
                value = b.phi(self.register_dtype(key), (start[key], origin), (value, back))
            self.registers[key] = value

    def emit_while(self, s: While) -> None:
        """Emit a top-tested loop; register buffers written in it are phis of the header."""
        b = self.builder
        head, body, after = b.fresh_name("while"), b.fresh_name("turn"), b.fresh_name("done")
        carried = sorted(self.loop_carried_registers(s.body), key=lambda k: (k[0].name, k[1]))
        origin, outer = b.block, dict(self.registers)
        b.branch(head)
        b.touch_memory()
        b.start(head)
        header_line = len(b.lines)
        phis = {key: f"%{b.fresh_name('r')}" for key in carried}
        self.registers.update(phis)
        with self.conditional_region(self.mask):
            self.begin_statement()
            b.branch_if(self.emit_expr(s.condition), body, after)
            b.start(body)
            self.emit_stmt(s.body)
            back = b.block
            b.branch(head)
        header: list[str] = []
        for key in carried:
            typed = register_type(self.register_dtype(key))
            first = f"[ {outer.get(key, 'poison')}, %{origin} ]"
            last = f"[ {self.registers[key]}, %{back} ]"
            header.append(f"  {phis[key]} = phi {typed} {first}, {last}")
        b.lines[header_line:header_line] = header
        b.start(after)
        b.touch_memory()
        self.begin_statement()
        # The loop leaves from its header, so the header's phis are the final values.
        self.registers = {**outer, **phis}

    # Remembered by statement: of loops in each other every one would else look through all inside.
    def loop_carried_registers(self, root: Stmt) -> frozenset[RegisterKey]:
        """Return the elements of outer register buffers that a statement stores, which are
        loop-carried.
        """
        if root in self._stores:
            return self._stores[root]
        stored_keys: set[RegisterKey] = set()
        inside: set[Buffer] = set()
        stack: list[Stmt] = [root]
        while stack:
            s = stack.pop()
            match s:
                case SeqStmt():
                    stack.extend(s.seq)
                case For() | While() | LetStmt():
                    stack.append(s.body)
                case Allocate():
                    inside.add(s.buffer)
                    stack.append(s.body)
                case IfThenElse():
                    stack.append(s.then_case)
                    if s.else_case is not None:
                        stack.append(s.else_case)
                case BufferStore() if (
                    s.buffer.scope == "register"
                    and s.buffer not in self.pointers
                    and s.buffer not in self.demoted  # memory, of which there is none before it
                ):
                    stored_keys.add(self.register_key(s.buffer, s.indices[0]))
                case _:
                    continue
        result = self._stores[root] = frozenset(key for key in stored_keys if key[0] not in inside)
        return result

    # Flushing of subnormals is a mode of the thread: the pool's own threads, and what the runtime
    # does in between, must not get it. It is left before and set again after.
    def emit_parallel_for(self, s: For) -> None:
        """Emit a call of ek_parallel_for over [0, extent)."""
        grain = int(str((s.annotations or {}).get("grain", 1)))
        self.module.declare("ek_parallel_for", "i32", ["ptr", "ptr", "i64", "i64"])
        function, context, extent = self.outline_loop_body(s)
        arguments = f"ptr @{function}, ptr {context}, i64 {extent}, i64 {max(grain, 1)}"
        if self.flush_mode is not None:
            self.flush_mode.restore_mode(self.builder)
        self.run_function(f"@ek_parallel_for({arguments})")
        if self.flush_mode is not None:
            self.flush_mode.set_flush_to_zero(self.builder)

    def call_outlined(self, s: For) -> None:
        """Outline a loop body as a function and call it over [0, extent)."""
        function, context, extent = self.outline_loop_body(s)
        self.run_function(f"@{function}(ptr {context}, i64 0, i64 {extent})")

    def outline_loop_body(self, s: For) -> tuple[str, Operand, Operand]:
        """Emit the function of a loop's body; return its name, the captured context and the loop's
        extent.
        """
        b, body = self.builder, OutlinedBodyEmitter(self.module, self)
        function = body.write(s)
        slots = max(body.slots, 1)
        context = f"%{b.fresh_name('context')}"
        # In the entry block: an alloca inside a loop would grow the stack in each iteration.
        b.entry.append(f"  {context} = alloca [{slots} x i64], align 8")
        for slot, dtype, value in body.captured:
            slot_address = b.append_value(f"getelementptr i64, ptr {context}, i64 {slot}")
            b.append_void(f"store {register_type(dtype)} {value}, ptr {slot_address}, align 8")
        extent = emit_cast(b, self.emit_expr(s.extent), s.extent.dtype, "int64")
        return function, context, extent

    def run_function(self, call: str) -> None:
        """Emit a call that may write memory and fail."""
        status = self.builder.append_value(f"call i32 {call}")
        self.builder.touch_memory()
        if self.tile_config is not None:
            self.tile_config.invalidate()
        self.fail_unless(self.builder.append_value(f"icmp eq i32 {status}, 0"))


class OutlinedBodyEmitter(StatementEmitter):
    """Emitter of an outlined loop body, which captures what it uses from the enclosing function."""

    def __init__(self, module: LlvmModule, outer: StatementEmitter) -> None:
        super().__init__(module, outer.name, outer.demoted)
        self.alias, self.fast_math = outer.alias, outer.fast_math
        self.enclosing_emitter = outer
        self.captured: list[tuple[int, str, Operand]] = []
        self.slots = 0
        self.builder._count = outer.builder._count

    def in_parallel(self) -> bool:
        """Return True: loops inside run inline."""
        return True

    def _capture_slot(self, dtype: str, value: Operand) -> Operand:
        slot, name = (f"%{self.builder.fresh_name(n)}" for n in ("slot", "c"))
        self.builder.entry.append(f"  {slot} = getelementptr i64, ptr %ctx, i64 {self.slots}")
        self.builder.entry.append(f"  {name} = load {register_type(dtype)}, ptr {slot}, align 8")
        self.captured.append((self.slots, dtype, value))
        self.slots += -(-dt.itemsize(dtype) // 8)
        return name

    # A constant is written again in the body; only what was computed takes a slot.
    def capture_variable(self, var: Var) -> None:
        """Capture a variable of the enclosing function."""
        value = self.enclosing_emitter.variable(var)
        self.variables[var] = value if value[0] != "%" else self._capture_slot(var.dtype, value)
        if isinstance(var, SizeVar) or var in self.enclosing_emitter.nonnegative_vars:
            self.nonnegative_vars.add(var)

    def capture_buffer(self, buffer: Buffer) -> None:
        """Capture a buffer's address of the enclosing function."""
        if buffer.scope == "register" and buffer not in self.demoted:
            raise DemoteRegisterError(buffer)
        self.pointers[buffer] = self._capture_slot("handle", self.enclosing_emitter.pointer(buffer))

    # Captured values are loaded in the entry block, once for a call: a call is a whole chunk of
    # steps.
    def write(self, s: For) -> str:
        """Emit the function; returns its name."""
        name = quote_name(self.module.unique(f"{self.name}.body"))
        if self.module.debug is not None:
            line = self.module.debug.lines.get(s, 1)
            self.lines = DebugLocations(self.module.debug, f"{self.name}.body", line)
            self.builder.location = self.lines.header()
        # The mode belongs to a thread: each worker of the pool sets it for itself.
        if self.enclosing_emitter.flush_mode is not None:
            self.flush_mode = subnormals.enter_flush_to_zero(self.builder)
        start = self.emit_expr(s.min)
        kind = s.loop_var.dtype
        begin = emit_cast(self.builder, "%begin", "int64", kind)
        end = emit_cast(self.builder, "%end", "int64", kind)
        if not is_const(s.min, 0):
            begin = self.builder.binary("add", kind, begin, start)
            end = self.builder.binary("add", kind, end, start)
        self.emit_serial_for(s, begin, end, runs=False)
        self.emit_return(0)
        self.module.functions.append(
            function_text(name, "ptr %ctx, i64 %begin, i64 %end", self, internal=True)
        )
        return name


def function_text(
    name: str, parameters: str, emitter: StatementEmitter, internal: bool = False
) -> str:
    """Return the finished function. Its first block is the entry, which holds stack slots and
    captured values.
    """
    linkage = "internal " if internal else ""
    debug = "" if emitter.lines is None else f" !dbg !{emitter.lines.subprogram}"
    extension = emitter.builder.module.extension("i32")
    head = f"define {linkage}{extension}i32 @{name}({parameters}) #0{debug} {{"
    lines = [head, "entry:", *emitter.builder.entry]
    return "\n".join([*lines, *emitter.builder.lines, "}"])
