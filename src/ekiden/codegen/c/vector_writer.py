"""Emit statements with whole vectors in dialects of C that have them.

    b[i : i + 16] = exp(a[i : i + 16]) * 2   ->   vstore16(ek_exp_float32x16(vload16(0, a + i)) *
                                                            (float16)(2.0f), 0, b + i);

What has no words over vectors (a gather, a table, half a conversion) goes through an array, lane by
lane, as in C. Inside of such a loop over lanes everything is written for one lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ekiden.arith import simplify
from ekiden.codegen.c.expression import NATIVE_C_DTYPES, strip_parentheses
from ekiden.codegen.c.helpers import HelperDialect, HelperFunctions
from ekiden.codegen.c.statement import StatementWriter, contiguous_stride
from ekiden.codegen.c.vectors import UnsupportedVectorError, VectorSyntax
from ekiden.codegen.common import check_lanes, contract_fma, is_nonnegative
from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    BOOL_VALUED_OPS,
    Add,
    And,
    BinaryExpr,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    Not,
    Or,
    PrimExpr,
    Select,
    Sub,
    Var,
    is_const,
)
from ekiden.ir.prim_visitor import post_order
from ekiden.tir.expr import Broadcast, Buffer, BufferAddress, BufferLoad, Ramp, VectorReduce
from ekiden.tir.stmt import Allocate, BufferStore, Stmt
from ekiden.tir.visitor import pre_order_stmts, stmt_exprs

THREAD_LOCAL_SCOPES = ("local", "register")
VECTOR_INFIX_SYMBOLS: dict[type, str] = {Add: "+", Sub: "-", Mul: "*", And: "&", Or: "|"}
_REDUCTION_NODES: dict[str, type[BinaryExpr]] = {"sum": Add, "prod": Mul, "max": Max, "min": Min}


class VectorWriter(StatementWriter):
    """Statement writer for a dialect that may have vector types."""

    def __init__(self, helpers: HelperFunctions, symbol: str, vectors: VectorSyntax | None) -> None:
        super().__init__(helpers, symbol, [])
        self.vectors = vectors
        self.vector_names: dict[Var, str] = {}
        """C names of vector variables; `names` has those of their lanes."""
        self.vector_arrays: dict[Buffer, int] = {}
        """Number of lanes per element of thread-local buffers that are arrays of vectors."""
        self._is_in_lane_loop = False
        if vectors is not None:
            form = HelperDialect(
                helpers.dialect.function_qualifier,
                helpers.dialect.table_qualifier,
                vectors.bits,
                vectors,
            )
            self._functions_of_vectors = helpers.with_dialect(form)

    def _is_vector_type(self, dtype: str) -> bool:
        """Return whether a value of this dtype is emitted as a whole vector here."""
        return not self._is_in_lane_loop and self.vectors is not None and self.vectors.has(dtype)

    def collect_vector_arrays(self, body: Stmt) -> None:
        """Collect the buffers that become arrays of vectors. OpenCL compilers need not keep scalar
        arrays in registers (PoCL does not: a 512 x 512 product has 24 GFLOP/s instead of 90).
        """
        if self.vectors is not None:
            self.vector_arrays = find_vector_arrays(body, self.vectors)

    def write_allocate(self, buffer: Buffer) -> None:
        """Allocate an array of vectors where every access is one whole vector."""
        # Accesses are flat, whatever the rank of the shape is.
        extents = [dim.value for dim in buffer.shape if isinstance(dim, IntImm)]
        is_static = len(extents) == len(buffer.shape)
        if self._has_vector_elements(buffer) and is_static and self.vectors is not None:
            kind = self.vectors.type(buffer.dtype)
            self.emit_line(self.vectors.var(kind, self.bind_name(buffer), math.prod(extents)))
            return
        lanes = self.vector_arrays.get(buffer)
        if lanes is None or self.vectors is None or not is_static:
            super().write_allocate(buffer)
            return
        kind = self.vectors.type(dt.with_lanes(buffer.dtype, lanes))
        count = -(-math.prod(extents) // lanes)
        self.emit_line(self.vectors.var(kind, self.bind_name(buffer), count))

    def _has_vector_elements(self, buffer: Buffer) -> bool:
        """Return whether the buffer's own elements are vectors."""
        return (
            self.vectors is not None
            and self.vectors.has_vector_arrays
            and self.vectors.has(buffer.dtype)
        )

    def element_access(self, buffer: Buffer, index: str) -> str:
        """Return a scalar access; into an array of vectors through a pointer cast."""
        if buffer not in self.vector_arrays or self.vectors is None:
            return super().element_access(buffer, index)
        return f"(({self.vectors.lane_type(buffer.dtype)} *){self.name(buffer)})[{index}]"

    # the walk

    def write_lane_loop(self, lanes: int, line: Callable[[], str]) -> None:
        """Emit a loop in which every expression is of one lane."""
        outer, self._is_in_lane_loop = self._is_in_lane_loop, True
        try:
            super().write_lane_loop(lanes, line)
        finally:
            self._is_in_lane_loop = outer

    def _cached_text(self, e: PrimExpr) -> str | None:
        if isinstance(e, Var) and self._is_vector_type(e.dtype):
            return self.vector_names.get(e) or self._memoized_text(e)
        return super()._cached_text(e)

    def _operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        if isinstance(e, BufferLoad) and self._is_vector_type(e.dtype) and len(e.indices) == 1:
            match e.indices[0]:
                case Ramp(base=base) as index if contiguous_stride(index):
                    return (base,)
                case Broadcast(value=value):
                    return (value,)
        match e:
            case Intrinsic(op="reinterpret", args=(value,)) if self._can_reinterpret(
                value.dtype, e.dtype
            ):
                return (value,)
        return super()._operands(e)

    def _memoized_text(self, e: PrimExpr) -> str | None:
        return next((table[e] for table in reversed(self._memo) if e in table), None)

    def _assign_temporary(self, e: PrimExpr, text: str) -> str:
        if not self._is_vector_type(e.dtype):
            return super()._assign_temporary(e, text)
        return self._vector_variable("t", e.dtype, text)

    def _vector_variable(self, hint: str, dtype: str, text: str) -> str:
        """Declare a vector variable for an expression and return its name."""
        assert self.vectors is not None
        name = self.unique(hint)
        self.emit_line(self.vectors.let(self.vectors.type(dtype), name, text))
        return name

    def _write_node(self, e: PrimExpr) -> str:
        match e:
            case VectorReduce() if self._is_vector_type(e.value.dtype) and self._has_halves(
                e.value.dtype
            ):
                return self._write_halving_reduction(e)
            case Intrinsic(op="reinterpret") if self._can_reinterpret(e.args[0].dtype, e.dtype):
                return self._write_vector_reinterpret(e)
        if not self._is_vector_type(e.dtype):
            return super()._write_node(e)
        try:
            return self._write_vector(e)
        except UnsupportedVectorError:
            return self._write_by_lanes(e)

    def _write_by_lanes(self, e: PrimExpr) -> str:
        """Evaluate a vector through an array, which a loop over lanes fills."""
        assert self.vectors is not None
        name, lanes = self.unique("lanes"), dt.lanes(e.dtype)
        self.emit_line(self.vectors.var(self.vectors.lane_type(e.dtype), name, lanes))
        # A mask is -1, all bits set, in lanes that are true.
        sign = "-(int)" if dt.element_dtype(e.dtype) == "bool" else ""
        self.write_lane_loop(lanes, lambda: f"{name}[lane] = {sign}({self.text(e)});")
        return self._vector_variable("t", e.dtype, self.vectors.load_lanes(name, e.dtype))

    # what nodes are

    def _write_vector(self, e: PrimExpr) -> str:
        """Return a vector node whose operands have been written. Raises UnsupportedVectorError."""
        assert self.vectors is not None
        syntax = self.vectors
        match e:
            case BinaryExpr():
                return self._write_vector_binary(e)
            case Cast():
                return self._write_vector_cast(e)
            case Not():
                return f"~{self.operand_text(e.a)}"
            case Select() if dt.lanes(e.condition.dtype) > 1:
                chosen = (self.operand_text(x) for x in (e.condition, e.true_value, e.false_value))
                condition, true_value, false_value = chosen
                return syntax.select(condition, true_value, false_value, e.dtype)
            case Intrinsic(op="if_then_else"):
                return self._write_vector_if_then_else(e)
            case Intrinsic() if all(dt.lanes(a.dtype) == dt.lanes(e.dtype) for a in e.args):
                return self._write_vector_call(e)
            case Ramp():
                return syntax.ramp(self.operand_text(e.base), self.operand_text(e.stride), e.dtype)
            case Broadcast():
                return syntax.broadcast(self.operand_text(e.value), e.dtype)
            case BufferLoad():
                return self._write_vector_load(e)
        raise UnsupportedVectorError

    def _write_vector_binary(self, e: BinaryExpr) -> str:
        assert self.vectors is not None
        kind, dtype, element = type(e), e.a.dtype, dt.element_dtype(e.a.dtype)
        x, y = self.operand_text(e.a), self.operand_text(e.b)
        if kind in (And, Or) and element == "bool":
            return f"({x} {VECTOR_INFIX_SYMBOLS[kind]} {y})"
        if kind in BOOL_VALUED_OPS and element in NATIVE_C_DTYPES:
            return self.vectors.comparison(self.vectors.compare(x, e.symbol, y, dtype), dtype)
        if kind in (Add, Sub, Mul) and element in NATIVE_C_DTYPES:
            return f"({x} {e.symbol} {y})"
        if element in NATIVE_C_DTYPES and (
            own := self.vectors.native_operation(kind, dtype, x, y, _is_never_nan(e.b))
        ):
            return own
        if kind is Div and dt.is_float(element) and element in NATIVE_C_DTYPES:
            return f"({x} / {y})"
        if kind in (FloorDiv, FloorMod) and self._has_native_division(e):
            return f"({x} {'/' if kind is FloorDiv else '%'} {y})"
        return self._functions_of_vectors.binary(kind, dtype, x, y)

    def _has_native_division(self, e: BinaryExpr) -> bool:
        divisor = e.b.value if isinstance(e.b, Broadcast) else e.b
        is_positive = isinstance(divisor, IntImm) and divisor.value > 0
        return is_positive and is_nonnegative(e.a, self.nonnegative_vars)

    def _write_vector_cast(self, e: Cast) -> str:
        assert self.vectors is not None
        source, target = dt.element_dtype(e.value.dtype), dt.element_dtype(e.dtype)
        x = self.operand_text(e.value)
        if source == target:
            return x
        exact = dt.is_int(source) or source == "bool" or {source, target} == {"float32", "float64"}
        if exact and target not in ("bool", "float16", "bfloat16"):
            x = self.vectors.bool_to_int(x, e.dtype) if source == "bool" else x
            return self.vectors.convert(e.value.dtype, e.dtype, x)
        # The clamp keeps the value in range, so that the plain conversion is defined.
        if (
            self.vectors.has_vector_arrays
            and source == "float32"
            and _is_clamped_to(e.value, target)
        ):
            word = dt.with_lanes("int32", dt.lanes(e.dtype))
            return self.vectors.convert(e.value.dtype, word, x)
        return self._functions_of_vectors.cast(e.value.dtype, e.dtype, x)

    def _write_vector_call(self, e: Intrinsic) -> str:
        argument, operands = e.args[0].dtype, [self.operand_text(a) for a in e.args]
        functions = self._functions_of_vectors
        if (function := functions.native_math(e.op, argument)) is not None:
            return f"{function}({', '.join(operands)})"
        return functions.intrinsic(e.op, e.dtype, argument, operands)

    def _write_vector_reinterpret(self, e: Intrinsic) -> str:
        """Return a reinterpretation such as `as_int4(x)`, also of contiguous memory."""
        assert self.vectors is not None
        return self.vectors.bits(self.vectors.type_word(e.dtype), self.operand_text(e.args[0]))

    def _write_vector_load(self, e: BufferLoad) -> str:
        assert self.vectors is not None and len(e.indices) == 1
        check_lanes("c: the load of", e.buffer, e.indices[0], e.dtype)
        index = e.indices[0]
        if self._has_vector_elements(e.buffer):
            return f"{self.name(e.buffer)}[{self.operand_text(index)}]"
        if dt.lanes(e.buffer.dtype) > 1:
            raise UnsupportedVectorError
        if (slot := self._vector_array_element(e.buffer, index)) is not None:
            return slot
        if isinstance(index, Ramp) and (step := contiguous_stride(index)):
            load = self.vectors.load if step == 1 else self.vectors.load_stride2
            return load(self.name(e.buffer), self.text(index.base), e.dtype)
        if isinstance(index, Broadcast):
            one = BufferLoad(e.buffer, (index.value,), dt.element_dtype(e.dtype))
            return self.vectors.broadcast(self.text(one), e.dtype)
        raise UnsupportedVectorError

    def _vector_array_element(self, buffer: Buffer, index: PrimExpr) -> str | None:
        """Return the element of a vector array that an aligned index selects, or None for other
        buffers.
        """
        if buffer not in self.vector_arrays:
            return None
        number = _vector_index(index)
        assert number is not None
        return f"{self.name(buffer)}[{self.text(number)}]"

    # conditions

    def _write_vector_if_then_else(self, e: Intrinsic) -> str:
        """Emit a vector if_then_else. If all reads are provably in bounds both sides are evaluated
        and selected; where that is unknown, one side if the lanes agree, else lane by lane.
        """
        assert self.vectors is not None
        condition, true_value, false_value = e.args
        if dt.lanes(condition.dtype) == 1:
            rows = [(self.operand_text(condition), lambda: self._write_operand(true_value))]
            return self._write_if_chain(e.dtype, rows, lambda: self._write_operand(false_value))
        inside = self.in_bounds_condition(true_value, false_value)
        if inside == "":
            return self._write_vector_select(e)
        if inside is not None:
            rows = [(inside, lambda: self._write_vector_select(e))]
            return self._write_if_chain(e.dtype, rows, lambda: self._write_by_lanes(e))
        held = self.operand_text(condition)
        if not held.isidentifier():
            held = self._vector_variable("mask", condition.dtype, held)
        rows = [(self.vectors.all_lanes(held), lambda: self._write_operand(true_value))]
        rows.append((f"!{self.vectors.any_lane(held)}", lambda: self._write_operand(false_value)))
        return self._write_if_chain(e.dtype, rows, lambda: self._write_by_lanes(e))

    def _write_operand(self, e: PrimExpr) -> str:
        self._write_postorder(e)
        return strip_parentheses(self.operand_text(e))

    def _write_vector_select(self, e: Intrinsic) -> str:
        """Emit a lane-wise select with both sides evaluated."""
        assert self.vectors is not None
        true_value, false_value = (self._write_operand(side) for side in e.args[1:])
        return self.vectors.select(self.operand_text(e.args[0]), true_value, false_value, e.dtype)

    def _write_if_chain(
        self, dtype: str, rows: Sequence[tuple[str, Callable[[], str]]], last: Callable[[], str]
    ) -> str:
        """Emit an if / else-if chain that assigns a variable the value of the first test that
        holds, or the last value.
        """
        assert self.vectors is not None
        name = self.unique("t")
        self.emit_line(self.vectors.var(self.vectors.type(dtype), name))
        before = ""
        for test, value in (*rows, ("", last)):
            self.emit_line(f"{before}if ({strip_parentheses(test)}) {{" if test else f"{before}{{")
            before = "} else "
            with self.indented():
                self.emit_line(f"{name} = {value()};")
        self.emit_line("}")
        return name

    def _can_reinterpret(self, source: str, target: str) -> bool:
        """Return whether a vector's bits can be reinterpreted as the other type."""
        return (
            self._is_vector_type(source)
            and self.vectors is not None
            and self.vectors.can_reinterpret(source, target)
        )

    def _has_halves(self, dtype: str) -> bool:
        """Return whether the halves of such a vector are vectors or scalars."""
        lanes = dt.lanes(dtype) // 2
        half = dt.with_lanes(dtype, lanes)
        return lanes == 1 or (self.vectors is not None and self.vectors.has(half))

    def _write_halving_reduction(self, e: VectorReduce) -> str:
        """Combine the halves of a vector until one lane is left, in the order of LLVM's
        reductions.
        """
        assert self.vectors is not None
        kind, dtype = _REDUCTION_NODES[e.kind], e.value.dtype
        self._write_postorder(e.value)
        name = self._vector_variable("parts", dtype, self.operand_text(e.value))
        while dt.lanes(dtype) > 1:
            dtype = dt.with_lanes(dtype, dt.lanes(dtype) // 2)
            low, high = self.vectors.halves(name)
            if dt.element_dtype(dtype) in NATIVE_C_DTYPES and kind in (Add, Mul):
                text = f"{low} {kind.symbol} {high}"
            elif dt.lanes(dtype) > 1:
                text = self._functions_of_vectors.binary(kind, dtype, low, high)
            else:
                text = self.helpers.binary(kind, dtype, low, high)
            name = self._vector_variable("parts", dtype, text)
        return name

    # statements

    def let(self, var: Var, value: PrimExpr) -> None:
        """Declare a vector variable."""
        if not self._is_vector_type(var.dtype) or dt.element_dtype(var.dtype) == "bool":
            super().let(var, value)
            return
        assert self.vectors is not None
        self.record_nonnegative(var, value)
        text = self.text(value)
        self.vector_names[var] = self._vector_variable(var.name, var.dtype, text)
        self.names[var] = self.vectors.lane_array(self.vector_names[var], var.dtype)

    def write_store(self, s: BufferStore) -> None:
        """Store contiguous lanes at once; elsewhere evaluate the value at once and store
        each lane.
        """
        value = contract_fma(s)
        lanes = dt.lanes(value.dtype)
        if (
            self._is_vector_type(value.dtype)
            and self._has_vector_elements(s.buffer)
            and s.predicate is None
        ):
            text = self.text(value)
            self.emit_line(f"{self.name(s.buffer)}[{self.text(s.indices[0])}] = {text};")
            self.invalidate_loads()
            return
        if not self._is_vector_type(value.dtype) or dt.lanes(s.buffer.dtype) > 1:
            super().write_store(s)
            return
        assert self.vectors is not None
        index = s.indices[0]
        check_lanes("c: the store to", s.buffer, index, value.dtype)
        text = self.text(strip_redundant_casts(value) if self.vectors.has_vector_arrays else value)
        is_near = isinstance(index, Ramp) and is_const(index.stride, 1)
        is_masked = s.predicate is not None and not is_const(s.predicate, 1)
        held = ""
        if is_near and not is_masked:
            self._store_contiguous(s, text, value.dtype)
            self.invalidate_loads()
            return
        name = Var("value", value.dtype)
        self.vector_names[name] = self._vector_variable("value", value.dtype, text)
        self.names[name] = self.vectors.lane_array(self.vector_names[name], value.dtype)
        lane_value = f"{self.names[name]}[lane]"
        if is_near and s.predicate is not None and dt.lanes(s.predicate.dtype) > 1:
            held = self._vector_variable("mask", s.predicate.dtype, self.text(s.predicate))
            self.emit_line(f"if ({self.vectors.all_lanes(held)}) {{")
            with self.indented():
                self._store_contiguous(s, self.vector_names[name], value.dtype)
            self.emit_line("} else {")
        self.write_lane_loop(lanes, lambda: self.element_store(s, lane_value))
        if held:
            self.emit_line("}")
        self.invalidate_loads()

    def _store_contiguous(self, s: BufferStore, text: str, dtype: str) -> None:
        assert self.vectors is not None
        index = s.indices[0]
        assert isinstance(index, Ramp)
        if (slot := self._vector_array_element(s.buffer, index)) is not None:
            self.emit_line(f"{slot} = {text};")
            return
        self.emit_line(self.vectors.store(self.name(s.buffer), self.text(index.base), text, dtype))


def strip_redundant_casts(value: PrimExpr) -> PrimExpr:
    """Strip casts whose effect a truncating store repeats."""
    bits = dt.SCALAR_BITS.get(dt.element_dtype(value.dtype), 32)
    if bits >= 32 or not dt.is_int(value.dtype):
        return value
    word = dt.with_lanes("int32", dt.lanes(value.dtype))
    match value:
        case Cast(value=inner) if (
            dt.is_int(inner.dtype) or dt.element_dtype(inner.dtype) == "float32"
        ):
            at_least = dt.SCALAR_BITS.get(dt.element_dtype(inner.dtype), 32)
            if not dt.is_int(inner.dtype):
                return Cast(inner, word)
            return strip_redundant_casts(inner) if bits <= at_least < 32 else Cast(inner, word)
        case BinaryExpr(a=a, b=b) if isinstance(value, (Add, Sub, Mul)):
            return type(value)(strip_redundant_casts(a), strip_redundant_casts(b), word)
    return Cast(value, word)


def _is_clamped_to(e: PrimExpr, dtype: str) -> bool:
    """Return whether a value clamped between two constants is representable in an integer dtype."""
    if not dt.is_int(dtype) or dt.SCALAR_BITS[dtype] > 16:
        return False
    ends: dict[type, float] = {}
    while isinstance(e, (Min, Max)) and len(ends) < 2:
        end = e.b.value if isinstance(e.b, Broadcast) else None
        if not isinstance(end, FloatImm):
            return False
        ends[type(e)], e = end.value, e.a
    bits = dt.SCALAR_BITS[dtype]
    lowest = 0 if dt.is_unsigned(dtype) else -(1 << (bits - 1))
    low, high = ends.get(Max, -math.inf), ends.get(Min, math.inf)
    return lowest <= low and high <= lowest + (1 << bits) - 1


def _is_never_nan(e: PrimExpr) -> bool:
    """Return whether a value is known to be NaN in no lane."""
    one = e.value if isinstance(e, Broadcast) else e
    return isinstance(one, FloatImm) and not math.isnan(one.value)


def _vector_index(index: PrimExpr | None) -> PrimExpr | None:
    """Return the position of the vector that an index selects in an array of vectors, or None if it
    may straddle two.
    """
    if not isinstance(index, Ramp) or not isinstance(index.lanes, int):
        return None
    exact = is_const(simplify(index.base % index.lanes), 0)
    return simplify(index.base // index.lanes) if exact else None


def find_vector_arrays(body: Stmt, vectors: VectorSyntax) -> dict[Buffer, int]:
    """Return the thread-local buffers whose every access is an aligned vector of one width, with
    that width. Such arrays are allocated as vectors, whose natural alignment keeps an access
    within one cache line.
    """
    lanes_of: dict[Buffer, int] = {}
    refused: set[Buffer] = set()
    for buffer, index in _buffer_accesses(body):
        is_vector = isinstance(index, Ramp) and is_const(index.stride, 1)
        lanes = index.lanes if isinstance(index, Ramp) else 0
        fits = is_vector and isinstance(lanes, int) and lanes_of.setdefault(buffer, lanes) == lanes
        if not fits or _vector_index(index) is None:
            refused.add(buffer)
    allocated = {s.buffer for s in pre_order_stmts(body) if isinstance(s, Allocate)}
    return {
        b: n
        for b, n in lanes_of.items()
        if b in allocated - refused
        and b.scope in THREAD_LOCAL_SCOPES
        and vectors.has(dt.with_lanes(b.dtype, n))
        and b.dtype != "bool"
        and dt.lanes(b.dtype) == 1
    }


def _buffer_accesses(body: Stmt) -> Iterator[tuple[Buffer, PrimExpr | None]]:
    """Yield every buffer that is read, written or passed to a call, with the index (None:
    unknown).
    """
    for s in pre_order_stmts(body):
        if isinstance(s, BufferStore):
            yield s.buffer, s.indices[0] if s.predicate is None else None
        for e in post_order(*stmt_exprs(s)):
            if isinstance(e, BufferLoad):
                yield e.buffer, e.indices[0]
            elif isinstance(e, BufferAddress):
                yield e.buffer, None
