"""Emit statements as C.

A vector statement is a loop over its lanes. A parallel loop becomes a function of its own, run by
ek_parallel_for; what it uses from outside travels in a structure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ekiden.arith import simplify
from ekiden.codegen.c.expression import ExpressionWriter
from ekiden.codegen.c.helpers import FLUSH_SUBNORMALS_HELPERS, HelperFunctions, c_string_literal
from ekiden.codegen.c.scalarize import scalarize_vector_loop
from ekiden.codegen.c.types import c_type, memory_type
from ekiden.codegen.common import (
    DEVICE_ID_VAR,
    bounds_error_format,
    check_lanes,
    contract_fma,
    flat_buffer_extent,
    pack_dtype,
)
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import (
    IntImm,
    Intrinsic,
    PrimExpr,
    Select,
    StringImm,
    Var,
    cast,
    const,
    is_const,
)
from ekiden.ir.prim_visitor import is_same_expr, post_order, rewrite
from ekiden.runtime.errors import InternalError
from ekiden.tir.expr import Broadcast, Buffer, BufferAddress, BufferLoad, Ramp, VectorReduce
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
from ekiden.tir.visitor import conditional_nodes, free_vars_and_buffers, stmt_exprs


class StatementWriter(ExpressionWriter):
    """Writer of the statements of one C function that returns int: 0, or -1 with an error set."""

    scalarizes_vector_loops: ClassVar = False
    """Whether vector loops are written as loops over elements, which the C compiler vectorises."""

    def __init__(self, helpers: HelperFunctions, symbol: str, functions: list[str]) -> None:
        super().__init__(helpers)
        self.symbol, self.functions = symbol, functions
        self.cleanup_calls: list[str] = []
        """Calls that free scratch memory, in order of allocation."""
        self.device_type: int | None = None
        """DLPack device type on which it launches kernels and buffers are allocated."""
        self.in_parallel = False
        self.aliasing_buffers: frozenset[Buffer] | None = None
        """Buffers that may alias element by element; None if any may alias arbitrarily."""
        self.saved_rounding_mode = ""
        """Variable with the control register saved before flushing subnormals, if they are flushed.
        """

    def statement(self, s: Stmt) -> None:
        """Write one statement."""
        match s:
            case SeqStmt():
                for stmt in s.seq:
                    self.statement(stmt)
            case BufferStore():
                self.write_store(s)
            case For():
                self.write_for(s)
            case LetStmt() | Allocate():
                self.write_nested(s)
            case While():
                self.write_while(s)
            case IfThenElse():
                self.write_if(s)
            case Evaluate():
                if not isinstance(s.value, IntImm):
                    self.emit_line(self.syntax.discard(self.text(s.value)))
                    self.invalidate_loads()
            case AssertStmt():
                self.write_assert(s)
            case Prefetch():
                address = f"{self.name(s.buffer)} + ({self.text(s.indices[0])})"
                self.emit_line(f"__builtin_prefetch({address}, 0, {s.locality});")
            case _:
                raise InternalError(f"c: statement {type(s).__name__} must be lowered first")

    # beginning and ending

    def flush_subnormals(self) -> None:
        """Flush subnormals to zero from here to the end of the function."""
        self.helpers.texts.setdefault("subnormals", FLUSH_SUBNORMALS_HELPERS)
        self.saved_rounding_mode = self.unique("mode")
        self.emit_line(f"const uint64_t {self.saved_rounding_mode} = ek_flush_subnormals();")

    def _cleanup_lines(self) -> list[str]:
        """Return the cleanup lines that run before the function returns: free scratch memory,
        restore the rounding mode.
        """
        frees = self.cleanup_calls[::-1]
        return (
            [*frees, f"ek_set_rounding({self.saved_rounding_mode});"]
            if self.saved_rounding_mode
            else frees
        )

    def write_epilogue(self) -> None:
        """Emit the function's epilogue."""
        for line in (*self._cleanup_lines(), "return 0;"):
            self.emit_line(line)

    def write_failure(self, status: str = "-1") -> None:
        """Release what has been acquired, and return -1."""
        for line in (*self._cleanup_lines(), f"return {status};"):
            self.emit_line(f"  {line}")

    def check(self, wrong: str, kind: str, message: str) -> None:
        """Emit an error return where the condition is true."""
        self.emit_line(f"if ({wrong}) {{")
        self.write_failure(
            f"ek_kernel_error({c_string_literal(kind)}, {c_string_literal(message)})"
        )
        self.emit_line("}")

    def write_assert(self, s: AssertStmt) -> None:
        """Emit a check whose message may show values."""
        wrong = f"!({self.text(s.condition)})"
        if not s.values:
            return self.check(wrong, s.kind, s.message)
        values = ", ".join(self.text(cast(v, "int64")) for v in s.values)
        kind, format = c_string_literal(s.kind), c_string_literal(s.format)
        arguments = f"{kind}, {format}, (const int64_t[]){{{values}}}"
        self.emit_line(f"if ({wrong}) {{")
        self.write_failure(f"ek_kernel_error_values({arguments})")
        self.emit_line("}")
        return None

    def bounds_checked_index(self, buffer: Buffer, index: str) -> str:
        """Return the index, with a bounds check that returns from the function."""
        if not self.helpers.bounds_mode:
            return index
        extent = self.text(flat_buffer_extent(buffer))
        text = c_string_literal(bounds_error_format(self.symbol, buffer))
        return f"EK_AT({index}, {extent}, {{ {' '.join(self._cleanup_lines())} }}, {text})"

    def call_packed(self, e: Intrinsic) -> str:
        """Emit `ek_call_packed` over values and tensors on the stack; the result is a variable."""
        name = e.args[0]
        assert isinstance(name, StringImm), e
        values = ", ".join(self.packed_value(a) for a in e.args[1:])
        count, result = len(e.args) - 1, self.unique("result")
        arguments = "NULL"
        if count:
            arguments = self.unique("arguments")
            self.emit_line(f"const ek_value {arguments}[{count}] = {{{values}}};")
        self.emit_line(f"ek_value {result} = ek_value_none();")
        callee = f"ek_call_packed(&{self.helpers.call_site(name.value)}"
        if e.op == "call_function":
            callee = f"{self.helpers.function(name.value)}(NULL"
        self.emit_line(f"if ({callee}, {arguments}, {count}, &{result}) != 0) {{")
        self.write_failure()
        self.emit_line("}")
        value, kind = self.unique("value"), c_type(e.dtype)
        sides = f"({kind}){result}.v.f64 : ({kind}){result}.v.i64"
        self.emit_line(f"const {kind} {value} = {result}.type_index == EK_FLOAT ? {sides};")
        # Dropped after its value was read: this may free an object.
        self.emit_line(f"ek_value_drop(&{result});")
        return value

    def extern(self, name: str, result: str, arguments: Sequence[str | None]) -> str:
        """Declare an external C function for these dtypes and return its C name."""
        return self.helpers.extern(name, result, arguments)

    def packed_value(self, a: PrimExpr) -> str:
        """Return an argument as an initializer of `ek_value`."""
        if isinstance(a, StringImm):
            return f"{{EK_RAW_STR, 0, {{.ptr = {c_string_literal(a.value)}}}}}"
        if isinstance(a, BufferAddress):
            return f"{{EK_DLTENSOR_PTR, 0, {{.ptr = &{self.tensor(a)}}}}}"
        if dt.is_float(a.dtype):
            return f"{{EK_FLOAT, 0, {{.f64 = {self.text(a)}}}}}"
        kind = "EK_BOOL" if a.dtype == "bool" else "EK_INT"
        return f"{{{kind}, 0, {{.i64 = {self.text(a)}}}}}"

    def tensor(self, a: BufferAddress) -> str:
        """Declare a DLTensor over a buffer or a region of it and return its name."""
        buffer = a.buffer
        extents = a.extents or buffer.shape
        shape, strides = self.unique("shape"), self.unique("strides")
        steps: list[PrimExpr] = [const(1)]
        for extent in reversed(buffer.shape[1:]):
            steps.insert(0, extent * steps[0])
        sizes = ", ".join(self.text(e) for e in extents) or "0"
        strides_text = ", ".join(self.text(e) for e in buffer.strides or steps)
        rank, tensor_name = len(extents), self.unique("tensor")
        self.emit_line(f"int64_t {shape}[] = {{{sizes}}};")
        self.emit_line(f"int64_t {strides}[] = {{{strides_text}}};")
        offset = f" + ({self.text(a.indices[0])})" if a.indices else ""
        word = pack_dtype(buffer.dtype)
        dtype = f"{{{word & 255}, {word >> 8 & 255}, 1}}"
        self.emit_line(
            f"const ek_dltensor {tensor_name} = "
            f"{{(void *)({self.name(buffer)}{offset}), {{EK_CPU, 0}}, "
            f"{rank}, {dtype}, {shape}, {strides}, 0}};"
        )
        return tensor_name

    # variables and buffers

    def write_nested(self, s: Stmt) -> None:
        """Emit nested lets and allocations iteratively, however deep."""
        before = len(self.cleanup_calls)
        while isinstance(s, (LetStmt, Allocate)):
            if isinstance(s, LetStmt):
                self.let(s.var, s.value)
            else:
                self.write_allocate(s.buffer)
            s = s.body
        self.statement(s)
        # Last allocated is freed first: the workspace allocator is a stack for each thread.
        while len(self.cleanup_calls) > before:
            self.emit_line(self.cleanup_calls.pop())

    def let(self, var: Var, value: PrimExpr) -> None:
        """Declare a variable; one of several lanes is an array."""
        self.record_nonnegative(var, value)
        lanes, kind = dt.lanes(var.dtype), self.syntax.type(var.dtype)
        if lanes == 1:
            text = self.text(value)
            self.emit_line(self.syntax.let(kind, self.bind_name(var), text))
            return
        self.hoist_lane_reductions(value)
        name = self.unique(var.name)
        self.emit_line(self.syntax.var(kind, name, lanes))
        self.write_lane_loop(lanes, lambda: f"{name}[lane] = {self.text(value)};")
        self.names[var] = name

    def hoist_lane_reductions(self, *values: PrimExpr) -> None:
        """Hoist lane reductions out of a loop over lanes: each is evaluated once."""
        for value in values:
            order = post_order(value)
            guarded = conditional_nodes(value, order)
            for e in order:
                if isinstance(e, VectorReduce) and id(e) not in guarded:
                    self.text(e)

    def write_allocate(self, buffer: Buffer) -> None:
        """Allocate scratch memory for global buffers and arrays for the others."""
        lanes, kind = dt.lanes(buffer.dtype), memory_type(buffer.dtype)
        extent: PrimExpr = const(1)
        for d in buffer.shape:
            extent = extent * d
        inner = f"[{lanes}]" if lanes > 1 else ""
        if buffer.scope == "global" or not isinstance(extent, IntImm):
            size = self.text(extent * dt.itemsize(buffer.dtype))
            name = self.bind_name(buffer)
            declared = f"(*{name}){inner}" if inner else f"*{name}"
            if self.device_type is None:
                allocation, free = f"ek_workspace_alloc({size})", f"ek_workspace_free({name});"
            else:
                device_arguments = f"{self.device_type}, {self.name(DEVICE_ID_VAR)}"
                allocation = f"ek_device_workspace_alloc({device_arguments}, {size})"
                free = f"ek_device_workspace_free({device_arguments}, {name}, {size});"
            self.emit_line(f"{kind} {declared} = {allocation};")
            self.emit_line(f"if ({name} == NULL) {{")
            self.write_failure()
            self.emit_line("}")
            self.cleanup_calls.append(free)
            return
        self.emit_line(f"{kind} {self.bind_name(buffer)}[{max(extent.value, 1)}]{inner};")

    def restrict_qualifier(self, symbol: Var | Buffer) -> str:
        """Return `restrict` for a pointer that no other pointer aliases."""
        is_apart = isinstance(symbol, Buffer) and self.aliasing_buffers is not None
        return "restrict " if is_apart and symbol not in (self.aliasing_buffers or ()) else ""

    def is_elementwise(self, loop: For) -> bool:
        """Return whether each iteration reads, from buffers that may alias the stored one, only the
        element that it stores.
        """
        store = loop.body
        assert isinstance(store, BufferStore)
        near = {store.buffer, *(self.aliasing_buffers or ())}
        loads = [e for e in post_order(store.value) if isinstance(e, BufferLoad)]
        return all(is_same_expr(e.indices[0], store.indices[0]) for e in loads if e.buffer in near)

    # stores

    def write_store(self, s: BufferStore) -> None:
        """Emit `buffer[index] = value;` per lane, through a copy where a lane could read what
        another lane has written.
        """
        if len(s.indices) != 1:
            raise InternalError(f"c: store to {s.buffer.name!r}: flatten buffers first")
        index, value = s.indices[0], contract_fma(s)
        check_lanes("c: the store to", s.buffer, index, value.dtype)
        lanes = max(dt.lanes(index.dtype), dt.lanes(value.dtype))
        if lanes == 1:
            self.emit_line(self.element_store(s, self.text(value)))
        elif _has_lane_dependence(s, value):
            self.store_through_copy(s, value, lanes)
        else:
            self.hoist_lane_reductions(value, index)
            self.store_each_lane(s, value, lanes)
        self.invalidate_loads()

    def store_each_lane(self, s: BufferStore, value: PrimExpr, lanes: int) -> None:
        """Emit a loop over lanes. Guarded loads are made unconditional when their addresses are
        inside the buffer: compilers do not vectorise a load that depends on a condition.
        """
        guarded = (
            _guarded_loads(value)
            if self.scalarizes_vector_loops and not self.helpers.bounds_mode
            else []
        )
        in_bounds = self.in_bounds_condition(*guarded) if guarded else None
        if in_bounds is None:
            self.write_lane_loop(lanes, lambda: self.element_store(s, self.text(value)))
            return
        chosen = rewrite(value, _if_then_else_to_select)

        def lane_store_line() -> str:
            """Emit the loads first, so that the compiler sees that they are unconditional."""
            for load in guarded:
                self.materialize(load)
            return self.element_store(s, self.text(chosen))

        self.emit_line(f"if ({in_bounds}) {{")
        with self.indented():
            self.write_lane_loop(lanes, lane_store_line)
        self.emit_line("} else {")
        with self.indented():
            self.write_lane_loop(lanes, lambda: self.element_store(s, self.text(value)))
        self.emit_line("}")

    def in_bounds_condition(self, *sides: PrimExpr) -> str | None:
        """Return the C condition under which all loads are in bounds; None if unknown, "" if there
        are none.
        """
        conditions: list[str] = []
        for e in post_order(*sides):
            if isinstance(e, Intrinsic) and (
                e.op == "if_then_else" or find_intrinsic(e.op).has_effects
            ):
                return None
            if not isinstance(e, BufferLoad):
                continue
            index, extent = e.indices[0], simplify(flat_buffer_extent(e.buffer))
            lanes = dt.lanes(index.dtype)
            if isinstance(index, Ramp) and (step := contiguous_stride(index)):
                index, lanes = index.base, (lanes - 1) * step + 1
            elif isinstance(index, Broadcast):
                index, lanes = index.value, 1
            elif lanes > 1:
                return None
            reads = any(isinstance(node, BufferLoad) for node in post_order(index))
            if reads or not isinstance(extent, IntImm) or dt.lanes(e.buffer.dtype) > 1:
                return None
            position = self.text(index)
            conditions.append(f"({position}) >= 0 && ({position}) <= {extent.value - lanes}")
        return " && ".join(dict.fromkeys(conditions))

    def element_store(self, s: BufferStore, value: str) -> str:
        """Return the store of one element, under its predicate if it has one."""
        if dt.element_dtype(s.buffer.dtype) == "bool":
            value = f"(uint8_t)({value})"
        line = f"{self.element_access(s.buffer, self.text(s.indices[0]))} = {value};"
        if s.predicate is None or is_const(s.predicate, 1):
            return line
        return f"if ({self.text(s.predicate)}) {{ {line} }}"

    def store_through_copy(self, s: BufferStore, value: PrimExpr, lanes: int) -> None:
        """Store through a local copy: evaluate all lanes, then store them, as a lane may read what
        another lane overwrites.
        """
        self.hoist_lane_reductions(value, s.indices[0])
        # A vector store reads all its operands before it writes; a C loop over lanes would not.
        name = self.unique("staged")
        self.emit_line(self.syntax.var(self.syntax.type(value.dtype), name, lanes))
        self.write_lane_loop(lanes, lambda: f"{name}[lane] = {self.text(value)};")
        self.write_lane_loop(lanes, lambda: self.element_store(s, f"{name}[lane]"))

    # control

    def write_if(self, s: IfThenElse) -> None:
        """Emit `if`, `else if`, `else`."""
        if isinstance(s.condition, IntImm):
            chosen = s.then_case if s.condition.value else s.else_case
            return None if chosen is None else self.statement(chosen)
        self.emit_line(f"if ({self.text(s.condition)}) {{")
        with self.indented():
            self.statement(s.then_case)
        self.invalidate_loads()
        if s.else_case is not None:
            self.emit_line("} else {")
            with self.indented():
                self.statement(s.else_case)
            self.invalidate_loads()
        self.emit_line("}")
        return None

    def write_while(self, s: While) -> None:
        """Emit `while`; the condition may need statements of its own."""
        self.invalidate_loads()
        # The condition may emit lines, so it is evaluated inside the loop rather than in a `while
        # (...)`.
        self.emit_line("for (;;) {")
        with self.indented():
            self.emit_line(f"if (!({self.text(s.condition)})) {{ break; }}")
            self.statement(s.body)
        self.emit_line("}")
        self.invalidate_loads()

    def write_for(self, s: For) -> None:
        """Emit `for`; an outermost parallel loop becomes a function."""
        if s.kind in (ForKind.VECTORIZED, ForKind.UNROLLED):
            raise InternalError(
                f"c: loop over {s.loop_var.name!r} is {s.kind.value}; lower it first"
            )
        if s.kind is ForKind.PARALLEL and not self.in_parallel:
            self.parallel(s)
            return
        longer = scalarize_vector_loop(s) if self.scalarizes_vector_loops else None
        s = longer or s
        low, high = self.text(s.min), self.text(s.min + s.extent)
        # No iteration reads what another one stores, which compilers cannot prove by themselves.
        if longer is not None and self.aliasing_buffers is not None and self.is_elementwise(s):
            self.emit_line("#pragma GCC ivdep")
        self.write_serial_for(s, low, f"({high})" if " ? " in high else high)

    def write_serial_for(self, s: For, low: str, high: str) -> None:
        """Emit a loop between two bounds."""
        self.invalidate_loads()
        name, kind = self.bind_name(s.loop_var), self.syntax.type(s.loop_var.dtype)
        self.record_nonnegative(s.loop_var, s.min)
        self.emit_line(self.syntax.for_header(kind, name, low, high))
        with self.indented():
            self.statement(s.body)
        self.emit_line("}")
        self.invalidate_loads()

    def parallel(self, s: For) -> None:
        """Emit a call of `ek_parallel_for` over [0, extent)."""
        grain = int(str((s.annotations or {}).get("grain", 1)))
        body = type(self)(self.helpers, self.symbol, self.functions)
        function = f"{self.symbol}_loop{len(self.functions)}"
        captured = _captured_symbols(s, self.helpers.bounds_mode)
        fields = [_capture_declaration(symbol, self.name(symbol)) for symbol in captured]
        body.in_parallel, body.nonnegative_vars = True, set(self.nonnegative_vars)
        body.aliasing_buffers = self.aliasing_buffers
        if self.saved_rounding_mode:
            body.flush_subnormals()
        self.functions.append("")
        slot = len(self.functions) - 1
        self.functions[slot] = body.outline_loop(s, function, captured, fields, self)
        values = ", ".join(self.name(symbol) for symbol in captured)
        context = self.unique("context")
        self.emit_line(f"struct {function}_context {context} = {{{values or '0'}}};")
        extent = self.text(s.extent)
        call = f"ek_parallel_for({function}, &{context}, {extent}, {max(grain, 1)})"
        if self.saved_rounding_mode:  # a thread that is made begins with what its maker has set
            self.emit_line(f"ek_set_rounding({self.saved_rounding_mode});")
        self.emit_line(f"if ({call} != 0) {{")
        self.write_failure()
        self.emit_line("}")
        if self.saved_rounding_mode:
            self.emit_line("(void)ek_flush_subnormals();")
        self.invalidate_loads()

    def outline_loop(
        self,
        s: For,
        function: str,
        captured: Sequence[Var | Buffer],
        fields: Sequence[str],
        outer: ExpressionWriter,
    ) -> str:
        """Outline a parallel loop: emit the captured context's structure and the body function."""
        members = "".join(f"  {field};\n" for field in fields) or "  int unused;\n"
        self.emit_line(f"const struct {function}_context *restrict given = context;")
        for symbol in captured:
            self.names[symbol] = self.unique(outer.name(symbol))
            # The context's fields are declared by the outer function's names.
            assert self.names[symbol] == outer.name(symbol), symbol
            declared = _capture_declaration(
                symbol, self.names[symbol], self.restrict_qualifier(symbol)
            )
            self.emit_line(f"{declared} = given->{self.names[symbol]};")
        low = "begin" if is_const(s.min, 0) else f"({self.text(s.min)}) + begin"
        high = "end" if is_const(s.min, 0) else f"({self.text(s.min)}) + end"
        self.write_serial_for(s, low, high)
        self.write_epilogue()
        lines = "\n".join(self.lines)
        return (
            f"struct {function}_context {{\n{members}}};\n\n"
            f"static int {function}(void *context, int64_t begin, int64_t end) {{\n{lines}\n}}"
        )


def _capture_declaration(symbol: Var | Buffer, name: str, qualifier: str = "") -> str:
    """Return the declaration of a captured variable or buffer, for the structure and the
    function.
    """
    lanes = dt.lanes(symbol.dtype)
    if isinstance(symbol, Var):
        kind = c_type(symbol.dtype)
        return f"{kind} {name}" if lanes == 1 else f"const {kind} *{name}"
    kind = memory_type(symbol.dtype)
    return f"{kind} *{qualifier}{name}" if lanes == 1 else f"{kind} (*{qualifier}{name})[{lanes}]"


def _captured_symbols(loop: For, bounds: bool) -> list[Var | Buffer]:
    """Return the variables and buffers that a loop uses and does not define, with those in buffer
    extents if `bounds` are checked.
    """

    def loop_body_expressions(s: Stmt) -> tuple[PrimExpr, ...]:
        """Return the expressions that a statement evaluates in the loop's body, without its child
        statements.
        """
        # the extent of the loop itself is evaluated outside
        evaluated = (loop.min,) if s is loop else stmt_exprs(s)
        if not bounds:
            return evaluated
        loads = (e for e in post_order(*evaluated) if isinstance(e, (BufferLoad, BufferAddress)))
        buffers = [e.buffer for e in loads]
        if isinstance(s, (BufferStore, Prefetch)):
            buffers.append(s.buffer)
        return (*evaluated, *map(flat_buffer_extent, buffers))

    return free_vars_and_buffers(loop, loop_body_expressions)


def _guarded_loads(value: PrimExpr) -> list[PrimExpr]:
    """Return the vector loads under per-lane conditions, or [] if other conditions exist."""
    order = post_order(value)
    choices = [e for e in order if isinstance(e, Intrinsic) and e.op == "if_then_else"]
    if not all(dt.lanes(e.args[0].dtype) > 1 for e in choices):
        return []
    guarded = post_order(*(side for e in choices for side in e.args[1:]))
    return [e for e in guarded if isinstance(e, BufferLoad) and dt.lanes(e.dtype) > 1]


def _if_then_else_to_select(e: PrimExpr) -> PrimExpr:
    """Rewrite `if_then_else` to a Select, which evaluates both sides."""
    if isinstance(e, Intrinsic) and e.op == "if_then_else":
        return Select(e.args[0], e.args[1], e.args[2], e.dtype)
    return e


def contiguous_stride(index: Ramp) -> int:
    """Return 1 or 2 for indices that are loaded as contiguous vectors, else 0."""
    return next((n for n in (1, 2) if is_const(index.stride, n)), 0)


def _has_lane_dependence(s: BufferStore, value: PrimExpr) -> bool:
    """Return whether a lane's value may be read from where another lane is stored."""
    for e in post_order(value, *s.indices):
        is_same_buffer = isinstance(e, BufferLoad) and e.buffer is s.buffer
        if (
            is_same_buffer
            and isinstance(e, BufferLoad)
            and not is_same_expr(e.indices[0], s.indices[0])
        ):
            return True
    return False


__all__ = ["StatementWriter"]
