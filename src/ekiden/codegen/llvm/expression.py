"""Emit expressions as LLVM operands; iteratively, each shared node once, loads under the mask of
the conditional around them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ekiden.codegen.common import (
    buffer_address_args,
    check_lanes,
    check_supported_call,
    extern_symbol,
    is_nonnegative,
    shuffle_indices,
    undefined_symbol_error,
    value_arguments,
)
from ekiden.codegen.llvm.alias_metadata import AliasScopes
from ekiden.codegen.llvm.builder import FunctionBuilder, LlvmModule, Operand
from ekiden.codegen.llvm.even_odd_multiply import split_even_odd
from ekiden.codegen.llvm.intrinsics import emit_intrinsic
from ekiden.codegen.llvm.operations import emit_binary, emit_lane_reduction
from ekiden.codegen.llvm.strided_loads import emit_shuffle, emit_strided, is_shufflable
from ekiden.codegen.llvm.type_conversion import emit_cast, emit_round_to_int
from ekiden.codegen.llvm.types import intrinsic_suffix, memory_dtype, memory_type, register_type
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import (
    Add,
    BinaryExpr,
    Cast,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Min,
    Mul,
    Not,
    PrimExpr,
    Select,
    Sub,
    Var,
)
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Broadcast, Buffer, BufferLoad, Ramp, VectorReduce


class DemoteRegisterError(Exception):
    """Exception for a register buffer that SSA values cannot hold; it becomes stack memory
    instead.
    """

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(buffer.name)
        self.buffer = buffer


@dataclass(frozen=True, slots=True)
class LaneMask:
    """Lanes in which a conditional side is evaluated."""

    value: Operand
    lanes: int


RegisterKey = tuple[Buffer, int]


class ExpressionEmitter:
    """Emitter of expressions into a builder. `variables` and `pointers` map variables and buffers
    to operands.
    """

    def __init__(self, module: LlvmModule) -> None:
        self.builder = FunctionBuilder(module)
        self.variables: dict[Var, Operand] = {}
        self.pointers: dict[Buffer, Operand] = {}
        self.address_spaces: dict[Buffer, int] = {}
        """Address space of each buffer outside the default one."""
        self.registers: dict[RegisterKey, Operand] = {}
        self.register_lanes: dict[Buffer, int] = {}
        self.nonnegative_vars: set[Var] = set()
        self.mask: LaneMask | None = None
        self.alias: AliasScopes | None = None
        self.fast_math = ""
        self._affine: dict[PrimExpr, PrimExpr] = {}
        self._half_width_forms: dict[Cast, PrimExpr | None] = {}
        self._memo: list[dict[PrimExpr, Operand]] = [{}]

    # what expressions refer to

    def variable(self, var: Var) -> Operand:
        """Return the value of a variable in scope."""
        if var not in self.variables:
            self.capture_variable(var)
        return self.variables[var]

    def pointer(self, buffer: Buffer) -> Operand:
        """Return the address of a buffer in scope."""
        if buffer not in self.pointers:
            self.capture_buffer(buffer)
        return self.pointers[buffer]

    def pointer_type(self, buffer: Buffer) -> str:
        """Return the pointer type of a buffer's address space."""
        space = self.address_spaces.get(buffer, 0)
        return f"ptr addrspace({space})" if space else "ptr"

    def capture_variable(self, var: Var) -> None:
        """Bring a variable from an outer function into scope."""
        raise undefined_symbol_error("llvm", var)

    def capture_buffer(self, buffer: Buffer) -> None:
        """Bring a buffer from an outer function into scope."""
        raise undefined_symbol_error("llvm", buffer)

    # the walk

    # `_memo` is a stack of tables, one for each condition around: a value that was computed under
    # one does not dominate what stands behind it. Loads are why a statement begins with an empty
    # one.
    def begin_statement(self) -> None:
        """Forget values of nodes: memory may have changed between statements."""
        self._memo = [{}]

    @contextmanager
    def conditional_region(self, mask: LaneMask | None) -> Iterator[None]:
        """Emit a conditional part: its values do not outlive it."""
        outer, self.mask = self.mask, mask
        self._memo.append({})
        try:
            with self.builder.scope():
                yield
        finally:
            del self._memo[-1:]  # a statement that failed inside may have left none
            self.mask = outer

    def cached_operand(self, e: PrimExpr) -> Operand | None:
        """Return the operand of a constant, a variable or a node emitted before, else None."""
        if isinstance(e, (IntImm, FloatImm)):
            return self.builder.const(e.value, e.dtype)
        if isinstance(e, Var):
            return self.variable(e)
        for table in reversed(self._memo):
            if e in table:
                return table[e]
        return None

    def has_operand(self, e: PrimExpr) -> bool:
        """Return whether a node has an operand already; a variable from outside the scope is
        captured.
        """
        if isinstance(e, (IntImm, FloatImm)):
            return True
        if isinstance(e, Var):
            self.variable(e)
            return True
        return any(e in table for table in self._memo)

    # A walk with a stack of its own. A node stays on it until its operands are known, and is looked
    # at again then: twice in all, as its operands are pushed once.
    def emit_expr(self, root: PrimExpr) -> Operand:
        """Emit an expression and return its operand."""
        operand = self.cached_operand(root)
        if operand is not None:
            return operand
        stack = [root]
        while stack:
            e = stack[-1]
            if self.has_operand(e):
                stack.pop()
                continue
            waiting = [c for c in self.operands(e) if not self.has_operand(c)]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            self._memo[-1][e] = self.emit(e)
            stack.pop()
        operand = self.cached_operand(root)
        assert operand is not None, root
        return operand

    # Of a guarded choice only the condition: its sides are emitted where they are chosen, as a load
    # in one may be out of range where it is not.
    def operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        """Return the children that must be emitted before a node."""
        match e:
            case BinaryExpr():
                return (e.a, e.b)
            case Cast():
                alternative = self.half_width_form(e)
                if alternative is None:
                    alternative = self.rounded_operand(e)
                return (e.value if alternative is None else alternative,)
            case Broadcast() | VectorReduce():
                return (e.value,)
            case Intrinsic(op="if_then_else"):
                return (e.args[0],)
            case Intrinsic(op="same_memory"):
                return ()
            case Intrinsic() if find_intrinsic(e.op).is_function_call:
                return value_arguments(e)
            case Intrinsic(op="shuffle"):
                return e.args[:2]
            case Intrinsic():
                check_supported_call(e)
                return e.args
            case Select():
                return (e.condition, e.true_value, e.false_value)
            case Not():
                return (e.a,)
            case Ramp():
                return (e.base, e.stride)
            case BufferLoad():
                return self.index_operands(e.buffer, e.indices)
        raise InternalError(f"llvm: {type(e).__name__} has no meaning in a kernel: {e!r}")

    def index_operands(self, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> tuple[PrimExpr, ...]:
        """Return the expressions that the address of an access is computed from."""
        if len(indices) != 1:
            raise InternalError(
                f"llvm: access of {buffer.name!r} has {len(indices)} indices; flatten buffers first"
            )
        if buffer.scope == "register" and buffer not in self.pointers:
            return ()
        index = self.ramp_of(indices[0])
        if not isinstance(index, Ramp):
            return split_offset(index)[:1]
        return split_offset(index.base)[:1] if is_contiguous(index) else (index.base, index.stride)

    def ramp_of(self, index: PrimExpr) -> PrimExpr:
        """Return `as_ramp(index)`, the same object for the same index."""
        ramp = self._affine.get(index)
        if ramp is None:
            ramp = self._affine[index] = as_ramp(index)
        return ramp

    def emit(self, e: PrimExpr) -> Operand:
        """Emit one node whose operands have been emitted."""
        b = self.builder
        match e:
            case FloorDiv() | FloorMod() if self.is_unsigned_division(e):
                return self.unsigned_division(e)
            case BinaryExpr():
                operands = [self.emit_expr(e.a), self.emit_expr(e.b)]
                # Set for this instruction alone: the lowering of intrinsics relies on exact
                # rounding.
                b.flags = self.fast_math
                try:
                    return emit_binary(b, type(e), e.a.dtype, *operands)
                finally:
                    b.flags = ""
            case Cast():
                form = self.half_width_form(e)
                if form is not None:
                    return self.emit_expr(form)
                levels = self.rounded_operand(e)
                if levels is not None:
                    return emit_round_to_int(b, self.emit_expr(levels), levels.dtype, e.dtype)
                return emit_cast(b, self.emit_expr(e.value), e.value.dtype, e.dtype)
            case Broadcast():
                return b.splat(e.value.dtype, self.emit_expr(e.value), dt.lanes(e.dtype))
            case VectorReduce():
                return emit_lane_reduction(b, e.kind, e.value.dtype, self.emit_expr(e.value))
            case Intrinsic(op="if_then_else"):
                return self.emit_if_then_else(e)
            case Intrinsic(op="same_memory"):
                buffers = buffer_address_args(e)
                one, second = (self.pointer(buffer) for buffer in buffers)
                return b.append_value(f"icmp eq {self.pointer_type(buffers[0])} {one}, {second}")
            case Intrinsic(op="call_packed" | "call_function"):
                return self.call_packed(e)
            case Intrinsic(op="call_extern" | "call_pure_extern"):
                return self.call_extern(e)
            case Intrinsic(op="call_llvm_intrin" | "call_llvm_pure_intrin"):
                return self.call_llvm(e)
            case Intrinsic(op="shuffle"):
                one, two = (self.emit_expr(a) for a in e.args[:2])
                return emit_shuffle(b, e.args[0].dtype, one, two, shuffle_indices(e))
            case Intrinsic():
                operands = [self.emit_expr(a) for a in e.args]
                below = len(e.args) == 1 and is_nonpositive(e.args[0])
                return emit_intrinsic(b, e.op, e.dtype, e.args[0].dtype, operands, below)
            case Select():
                lanes = dt.lanes(e.condition.dtype)
                chosen = (self.emit_expr(x) for x in (e.condition, e.true_value, e.false_value))
                condition, true_value, false_value = chosen
                return b.select(condition, e.dtype, true_value, false_value, lanes)
            case Not():
                return b.binary("xor", e.a.dtype, self.emit_expr(e.a), b.const(True, e.a.dtype))
            case Ramp():
                return self.emit_ramp(e)
            case BufferLoad():
                return self.load(e)
        raise InternalError(f"llvm: {type(e).__name__} has no meaning in a kernel: {e!r}")

    def half_width_form(self, e: Cast) -> PrimExpr | None:
        """Return the even/odd-halves form (PMULDQ) of a cast from int64 arithmetic to int32, else
        None; the same object for the same cast.
        """
        if e not in self._half_width_forms:
            has = self.builder.module.has("mul_even_s32")
            self._half_width_forms[e] = split_even_odd(e) if has else None
        return self._half_width_forms[e]

    def rounded_operand(self, e: Cast) -> PrimExpr | None:
        """Return the operand of a round-to-int32 that the processor does in one instruction, else
        None.
        """
        is_round = isinstance(e.value, Intrinsic) and e.value.op == "round"
        if not is_round or not self.builder.module.has("rounds_to_int"):
            return None
        assert isinstance(e.value, Intrinsic)
        kinds = dt.element_dtype(e.value.dtype), dt.element_dtype(e.dtype)
        return e.value.args[0] if kinds == ("float32", "int32") else None

    def emit_ramp(self, e: Ramp) -> Operand:
        """Emit base + stride * <0, 1, ...>."""
        scalar = dt.element_dtype(e.dtype)
        steps = ", ".join(f"{register_type(scalar)} {i}" for i in range(dt.lanes(e.dtype)))
        base = self.builder.splat(scalar, self.emit_expr(e.base), dt.lanes(e.dtype))
        stride = self.builder.splat(scalar, self.emit_expr(e.stride), dt.lanes(e.dtype))
        return self.builder.binary(
            "add", e.dtype, base, self.builder.binary("mul", e.dtype, stride, f"<{steps}>")
        )

    # integers known to be non-negative divide without corrections

    def is_nonnegative(self, e: PrimExpr) -> bool:
        """Return whether an index expression is provably >= 0."""
        return is_nonnegative(e, self.nonnegative_vars)

    def is_unsigned_division(self, e: FloorDiv | FloorMod) -> bool:
        """Return whether both operands are non-negative integers."""
        return dt.is_int(e.dtype) and self.is_nonnegative(e.a) and self.is_nonnegative(e.b)

    def unsigned_division(self, e: FloorDiv | FloorMod) -> Operand:
        """Emit a division of non-negative integers that gives 0 for a zero divisor."""
        unsigned = dt.with_lanes("u" + dt.element_dtype(e.dtype).lstrip("u"), dt.lanes(e.dtype))
        return emit_binary(
            self.builder, type(e), unsigned, self.emit_expr(e.a), self.emit_expr(e.b)
        )

    def call_extern(self, e: Intrinsic) -> Operand:
        """Raise CompileError: there are no C functions to call here; subclasses override it."""
        name = extern_symbol(e, "llvm")
        raise CompileError(f"llvm: {e.op} {name!r}: there is no C function to call here")

    def call_llvm(self, e: Intrinsic) -> Operand:
        """Raise InternalError; subclasses emit calls of LLVM intrinsics."""
        raise InternalError(f"llvm: {e!r} has no place here")

    def call_packed(self, e: Intrinsic) -> Operand:
        """Raise InternalError: a packed call may fail and is a statement; subclasses
        override it.
        """
        raise InternalError(f"llvm: {e!r} has no place here")

    # guarded values

    # Cheapest first: nothing that can fail in the sides, so both are computed and one selected; one
    # condition for all, so a branch; else both sides under masks, where loads give 0 in lanes that
    # do not take them.
    def emit_if_then_else(self, e: Intrinsic) -> Operand:
        """Emit if_then_else: a branch on a scalar condition, masked evaluation on a vector, a
        select where neither side can fail.
        """
        condition, true_value, false_value = e.args
        test, lanes = self.emit_expr(condition), dt.lanes(condition.dtype)
        if is_speculatable(true_value) and is_speculatable(false_value):
            return self.builder.select(
                test, e.dtype, self.emit_expr(true_value), self.emit_expr(false_value), lanes
            )
        if lanes == 1:
            return self.emit_branch(test, e)
        with self.conditional_region(self.narrow_mask(test, lanes)):
            chosen = self.emit_expr(true_value)
        inverse = self.builder.binary(
            "xor", condition.dtype, test, self.builder.const(True, condition.dtype)
        )
        with self.conditional_region(self.narrow_mask(inverse, lanes)):
            else_value = self.emit_expr(false_value)
        return self.builder.select(test, e.dtype, chosen, else_value, lanes)

    def narrow_mask(self, test: Operand, lanes: int) -> LaneMask:
        """Return the enclosing lane mask restricted to the lanes in which `test` holds."""
        outer = self.mask
        if outer is not None and outer.lanes == lanes:
            test = self.builder.binary("and", dt.with_lanes("bool", lanes), outer.value, test)
        return LaneMask(test, lanes)

    def emit_branch(self, test: Operand, e: Intrinsic) -> Operand:
        """Emit a branch that evaluates only one side."""
        b = self.builder
        labels = [b.fresh_name("then"), b.fresh_name("else")]
        after = b.fresh_name("join")
        b.branch_if(test, *labels)
        incoming: list[tuple[Operand, str]] = []
        for label, side in zip(labels, e.args[1:], strict=True):
            b.start(label)
            with self.conditional_region(self.mask):
                result = self.emit_expr(side)
            incoming.append((result, b.block))
            b.branch(after)
        b.start(after)
        return b.phi(e.dtype, *incoming)

    # memory

    def load(self, e: BufferLoad) -> Operand:
        """Emit a scalar, contiguous, strided or gathered load; bool bytes become bits."""
        index = self.ramp_of(e.indices[0])
        check_lanes("llvm: the load of", e.buffer, index, e.dtype)
        if e.buffer.scope == "register" and e.buffer not in self.pointers:
            return self.register_value(e.buffer, index, e.dtype)
        stored = memory_dtype(e.dtype)
        if isinstance(index, Broadcast):
            one = self.scalar_load(e.buffer, index.value, dt.element_dtype(stored))
            raw = self.builder.splat(dt.element_dtype(stored), one, dt.lanes(index.dtype))
        elif dt.lanes(index.dtype) == 1 and self.mask is not None:
            raw = self.scalar_load(e.buffer, index, stored)
        else:
            raw = self.memory_load(e.buffer, index, stored)
        if stored == e.dtype:
            return raw
        return self.builder.compare("ne", stored, raw, self.builder.const(0, stored))

    def memory_load(self, buffer: Buffer, index: PrimExpr, dtype: str) -> Operand:
        """Emit a load under the current mask."""
        lanes = dt.lanes(index.dtype)
        mask = self.mask.value if self.mask is not None and self.mask.lanes == lanes else None
        index = self.ramp_of(index)
        stride = index.stride if isinstance(index, Ramp) else None
        if not isinstance(stride, IntImm) or not is_shufflable(stride.value, lanes):
            return self.masked_load(buffer, index, dtype, mask)
        assert isinstance(index, Ramp)
        neighbours = index.with_fields(stride=IntImm(1, stride.dtype))

        def load_window(offset: int, within: Operand | None) -> Operand:
            """Load a part of the window, masked by the lanes that are within."""
            moved = neighbours.with_fields(base=neighbours.base + offset)
            return self.masked_load(buffer, moved, dtype, within)

        return emit_strided(self.builder, dtype, stride.value, mask, load_window)

    def masked_load(
        self, buffer: Buffer, index: PrimExpr, dtype: str, mask: Operand | None
    ) -> Operand:
        """Emit a load of the lanes in a mask, or of all lanes without one."""
        b, kind, lanes = self.builder, register_type(dtype), dt.lanes(index.dtype)
        align = dt.itemsize(dt.element_dtype(dtype))
        self.check_access(buffer, index, mask)
        address, gathers = self.address(buffer, index)
        pointer = self.pointer_type(buffer)
        # A masked scalar load is behind a branch already (scalar_load, emit_branch).
        if lanes == 1 or (mask is None and not gathers):
            return b.load(
                f"load {kind}, {pointer} {address}, align {align}{self.alias_metadata(buffer)}",
                self.memory_id(buffer),
            )
        bits = dt.with_lanes("bool", lanes)
        space = self.address_spaces.get(buffer, 0)
        name = (
            f"llvm.masked.gather.{intrinsic_suffix(dtype)}.v{lanes}p{space}"
            if gathers
            else f"llvm.masked.load.{intrinsic_suffix(dtype)}.p{space}"
        )
        pointer_kind = f"<{lanes} x {pointer}>" if gathers else pointer
        mask = mask or b.const(True, bits)
        b.module.declare(name, kind, [pointer_kind, "i32", register_type(bits), kind])
        zero = "zeroinitializer"
        return b.load(
            f"call {kind} @{name}({pointer_kind} {address}, i32 {align},"
            f" {register_type(bits)} {mask}, {kind} {zero}){self.alias_metadata(buffer)}",
            self.memory_id(buffer),
        )

    def check_access(self, buffer: Buffer, index: PrimExpr, mask: Operand | None) -> None:
        """Check the lanes of an access before it; the base class checks nothing."""

    def alias_metadata(self, buffer: Buffer) -> str:
        """Return the alias metadata of an access of a buffer."""
        return "" if self.alias is None else self.alias.access_metadata(buffer)

    def memory_id(self, buffer: Buffer) -> int:
        """Return the id of the memory that a store to a buffer changes; 0 is all memory."""
        return 0 if self.alias is None else self.alias.scope_id(buffer)

    def scalar_load(self, buffer: Buffer, index: PrimExpr, dtype: str) -> Operand:
        """Emit a load of one element under a vector mask: only if any lane is active."""
        b, mask = self.builder, self.mask
        if mask is None or mask.lanes == 1:
            return self.memory_load(buffer, index, dtype)
        before, load_block, after = b.block, b.fresh_name("some"), b.fresh_name("join")
        # With no active lane the address may be out of bounds, so the load must not be executed.
        b.branch_if(b.any_lane(mask.value, mask.lanes), load_block, after)
        b.start(load_block)
        with self.conditional_region(None):
            loaded = self.memory_load(buffer, index, dtype)
        end = b.block
        b.branch(after)
        b.start(after)
        return b.phi(dtype, ("zeroinitializer", before), (loaded, end))

    def address(self, buffer: Buffer, index: PrimExpr) -> tuple[Operand, bool]:
        """Return the address of an access, and whether it is a vector of addresses."""
        index = self.ramp_of(index)
        base, kind = self.pointer(buffer), memory_type(buffer.dtype)
        pointer = self.pointer_type(buffer)
        if isinstance(index, Ramp) and is_contiguous(index):
            index = index.base
        lanes = dt.lanes(index.dtype)
        if lanes > 1:
            offsets = dt.with_lanes("int64", lanes)
            offset_vector = emit_cast(self.builder, self.emit_expr(index), index.dtype, offsets)
            pointer_vector = (
                f"getelementptr {kind}, {pointer} {base}, {register_type(offsets)} {offset_vector}"
            )
            return self.builder.pure(pointer_vector), True
        variable, offset = split_offset(index)
        address = base
        if not isinstance(variable, IntImm) or variable.value != 0:
            one = emit_cast(self.builder, self.emit_expr(variable), variable.dtype, "int64")
            # The constant offset stays apart, so that neighbouring accesses share this instruction.
            address = self.builder.pure(f"getelementptr {kind}, {pointer} {base}, i64 {one}")
        if offset:
            # loads of WebAssembly add a constant in more bits than an address has: it may not wrap
            flag = "nuw " if offset > 0 and self.builder.module.is_wasm else ""
            address = self.builder.pure(
                f"getelementptr {flag}{kind}, {pointer} {address}, i64 {offset}"
            )
        return address, False

    def register_key(self, buffer: Buffer, index: PrimExpr) -> RegisterKey:
        """Return the SSA value that an access of a register buffer names. Raises
        DemoteRegisterError if it has none.
        """
        index = self.ramp_of(index)
        start = index.base if isinstance(index, Ramp) and is_contiguous(index) else index
        lanes = dt.lanes(index.dtype)
        constant = isinstance(start, IntImm) and start.value % lanes == 0
        # SSA values cannot be indexed: all accesses must be aligned constants of one vector width.
        if not constant or self.register_lanes.setdefault(buffer, lanes) != lanes:
            raise DemoteRegisterError(buffer)
        assert isinstance(start, IntImm)
        return buffer, start.value

    def register_value(self, buffer: Buffer, index: PrimExpr, dtype: str) -> Operand:
        """Return the current value of an element of a register buffer."""
        # An element that was never stored has no defined value.
        return self.registers.get(self.register_key(buffer, index), "poison")


def is_nonpositive(e: PrimExpr) -> bool:
    """Return whether an expression is provably <= 0 or NaN: a minimum with such a constant."""
    if not isinstance(e, Min):
        return False
    caps = (c.value if isinstance(c, Broadcast) else c for c in (e.a, e.b))
    return any(isinstance(c, FloatImm) and c.value <= 0 for c in caps)


def is_contiguous(index: Ramp) -> bool:
    """Return whether a ramp has stride 1."""
    return isinstance(index.stride, IntImm) and index.stride.value == 1


def split_offset(index: PrimExpr) -> tuple[PrimExpr, int]:
    """Split `x + c` into (x, c), so that accesses that differ by a constant share an address."""
    if isinstance(index, Add) and isinstance(index.b, IntImm):
        return index.a, index.b.value
    if isinstance(index, Add) and isinstance(index.a, IntImm):
        return index.b, index.a.value
    if isinstance(index, IntImm):
        return IntImm(0, index.dtype), index.value
    return index, 0


def as_ramp(index: PrimExpr) -> PrimExpr:
    """Rewrite sums and products of one Ramp and Broadcasts to a Ramp; other expressions
    unchanged.
    """
    if not isinstance(index, (Add, Sub, Mul)) or dt.lanes(index.dtype) == 1:
        return index
    a, b = as_ramp(index.a), as_ramp(index.b)
    if isinstance(a, Broadcast) and isinstance(b, Broadcast):
        return Broadcast(rebuild_binary(index, a.value, b.value), a.lanes, index.dtype)
    # `c - ramp` has a negative stride and is left as it is.
    if isinstance(a, Broadcast) and isinstance(b, Ramp) and not isinstance(index, Sub):
        a, b = b, a
    if not (isinstance(a, Ramp) and isinstance(b, Broadcast)):
        return index
    if isinstance(index, Mul):
        return Ramp(a.base * b.value, a.stride * b.value, a.lanes, a.dtype)
    return Ramp(rebuild_binary(index, a.base, b.value), a.stride, a.lanes, a.dtype)


def rebuild_binary(kind: Add | Sub | Mul, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return the same operation on other operands."""
    return a + b if isinstance(kind, Add) else a - b if isinstance(kind, Sub) else a * b


def is_speculatable(root: PrimExpr, limit: int = 24) -> bool:
    """Return whether an expression may be speculated: no loads, no divisions, few nodes."""
    stack, count = [root], 0
    while stack:
        e = stack.pop()
        count += 1
        # Where its side is not chosen, a load may be out of bounds and a division may trap.
        if count > limit or isinstance(e, (BufferLoad, FloorDiv, FloorMod)):
            return False
        match e:
            case BinaryExpr():
                stack += [e.a, e.b]
            case Cast() | Broadcast() | VectorReduce():
                stack.append(e.value)
            case Select():
                stack += [e.condition, e.true_value, e.false_value]
            case Not():
                stack.append(e.a)
            case Ramp():
                stack += [e.base, e.stride]
            case Intrinsic():
                return False
            case _:
                continue
    return True
