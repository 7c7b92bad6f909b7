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
from ekiden.codegen.c.expression import NATIVE_C_DTYPES, stripped
from ekiden.codegen.c.helpers import HelperDialect, Helpers
from ekiden.codegen.c.statement import StatementWriter, contiguous_stride
from ekiden.codegen.c.vectors import NoVectorsError, VectorSyntax
from ekiden.codegen.common import check_lanes, is_nonnegative, stored_value
from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    BOOLEAN,
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
from ekiden.tir.visitor import expressions, walk

THREAD_SCOPES = ("local", "register")
_INFIX: dict[type, str] = {Add: "+", Sub: "-", Mul: "*", And: "&", Or: "|"}
_COMBINE: dict[str, type[BinaryExpr]] = {"sum": Add, "prod": Mul, "max": Max, "min": Min}


class VectorWriter(StatementWriter):
    """Statement writer for a dialect that may have vector types."""

    def __init__(self, helpers: Helpers, symbol: str, vectors: VectorSyntax | None) -> None:
        super().__init__(helpers, symbol, [])
        self.vectors = vectors
        self.whole: dict[Var, str] = {}
        """Variables that are vectors of the dialect -> their names; `names` has their lanes."""
        self.arrays: dict[Buffer, int] = {}
        """Buffers of a thread that are arrays of vectors -> lanes of each."""
        self._in_lanes = False
        if vectors is not None:
            form = HelperDialect(helpers.form.function, helpers.form.table, vectors.bits, vectors)
            self._functions_of_vectors = helpers.over(form)

    def _writes(self, dtype: str) -> bool:
        """Return whether a value of this dtype is emitted as a whole vector here."""
        return not self._in_lanes and self.vectors is not None and self.vectors.has(dtype)

    def prepare(self, body: Stmt) -> None:
        """Collect the buffers that become arrays of vectors. OpenCL compilers need not keep scalar
        arrays in registers (PoCL does not: a 512 x 512 product has 24 GFLOP/s instead of 90).
        """
        if self.vectors is not None:
            self.arrays = whole_vectors(body, self.vectors)

    def allocate(self, buffer: Buffer) -> None:
        """Allocate an array of vectors where every access is one whole vector."""
        extent = buffer.shape[0] if len(buffer.shape) == 1 else None
        if self._holds(buffer) and isinstance(extent, IntImm) and self.vectors is not None:
            kind = self.vectors.type(buffer.dtype)
            self.put(self.vectors.var(kind, self.define(buffer), extent.value))
            return
        lanes = self.arrays.get(buffer)
        if lanes is None or self.vectors is None or not isinstance(extent, IntImm):
            super().allocate(buffer)
            return
        kind = self.vectors.type(dt.with_lanes(buffer.dtype, lanes))
        count = -(-extent.value // lanes)
        self.put(self.vectors.var(kind, self.define(buffer), count))

    def _holds(self, buffer: Buffer) -> bool:
        """Return whether the buffer's own elements are vectors."""
        return self.vectors is not None and self.vectors.holds and self.vectors.has(buffer.dtype)

    def element(self, buffer: Buffer, index: str) -> str:
        """Return a scalar access; into an array of vectors through a pointer cast."""
        if buffer not in self.arrays or self.vectors is None:
            return super().element(buffer, index)
        return f"(({self.vectors.lane_type(buffer.dtype)} *){self.name(buffer)})[{index}]"

    # the walk

    def lane_loop(self, lanes: int, line: Callable[[], str]) -> None:
        """Emit a loop in which every expression is of one lane."""
        outer, self._in_lanes = self._in_lanes, True
        try:
            super().lane_loop(lanes, line)
        finally:
            self._in_lanes = outer

    def _known(self, e: PrimExpr) -> str | None:
        if isinstance(e, Var) and self._writes(e.dtype):
            return self.whole.get(e) or self._memoised(e)
        return super()._known(e)

    def _operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        if isinstance(e, BufferLoad) and self._writes(e.dtype) and len(e.indices) == 1:
            match e.indices[0]:
                case Ramp(base=base) as index if contiguous_stride(index):
                    return (base,)
                case Broadcast(value=value):
                    return (value,)
        match e:
            case Intrinsic(op="reinterpret", args=(value,)) if self._has_bits(value.dtype, e.dtype):
                return (value,)
        return super()._operands(e)

    def _memoised(self, e: PrimExpr) -> str | None:
        return next((table[e] for table in reversed(self._memo) if e in table), None)

    def _named(self, e: PrimExpr, text: str) -> str:
        if not self._writes(e.dtype):
            return super()._named(e, text)
        return self._vector_variable("t", e.dtype, text)

    def _vector_variable(self, hint: str, dtype: str, text: str) -> str:
        """Declare a vector variable for an expression and return its name."""
        assert self.vectors is not None
        name = self.unique(hint)
        self.put(self.vectors.let(self.vectors.type(dtype), name, text))
        return name

    def _node(self, e: PrimExpr) -> str:
        match e:
            case VectorReduce() if self._writes(e.value.dtype) and self._has_halves(e.value.dtype):
                return self._halved(e)
            case Intrinsic(op="reinterpret") if self._has_bits(e.args[0].dtype, e.dtype):
                return self._as_bits(e)
        if not self._writes(e.dtype):
            return super()._node(e)
        try:
            return self._vector(e)
        except NoVectorsError:
            return self._by_lanes(e)

    def _by_lanes(self, e: PrimExpr) -> str:
        """Evaluate a vector through an array, which a loop over lanes fills."""
        assert self.vectors is not None
        name, lanes = self.unique("lanes"), dt.lanes(e.dtype)
        self.put(self.vectors.var(self.vectors.lane_type(e.dtype), name, lanes))
        sign = "-(int)" if dt.element(e.dtype) == "bool" else ""
        self.lane_loop(lanes, lambda: f"{name}[lane] = {sign}({self.text(e)});")
        return self._vector_variable("t", e.dtype, self.vectors.of_lanes(name, e.dtype))

    # what nodes are

    def _vector(self, e: PrimExpr) -> str:
        """Return a vector node whose operands have been written. Raises NoVectorsError."""
        assert self.vectors is not None
        syntax = self.vectors
        match e:
            case BinaryExpr():
                return self._vector_binary(e)
            case Cast():
                return self._converted(e)
            case Not():
                return f"~{self.of(e.a)}"
            case Select() if dt.lanes(e.condition.dtype) > 1:
                chosen = (self.of(x) for x in (e.condition, e.true_value, e.false_value))
                condition, yes, no = chosen
                return syntax.select(condition, yes, no, e.dtype)
            case Intrinsic(op="if_then_else"):
                return self._where(e)
            case Intrinsic() if all(dt.lanes(a.dtype) == dt.lanes(e.dtype) for a in e.args):
                return self._called(e)
            case Ramp():
                return syntax.ramp(self.of(e.base), self.of(e.stride), e.dtype)
            case Broadcast():
                return syntax.broadcast(self.of(e.value), e.dtype)
            case BufferLoad():
                return self._neighbours(e)
        raise NoVectorsError

    def _vector_binary(self, e: BinaryExpr) -> str:
        assert self.vectors is not None
        kind, dtype, element = type(e), e.a.dtype, dt.element(e.a.dtype)
        x, y = self.of(e.a), self.of(e.b)
        if kind in (And, Or) and element == "bool":
            return f"({x} {_INFIX[kind]} {y})"
        if kind in BOOLEAN and element in NATIVE_C_DTYPES:
            return self.vectors.comparison(self.vectors.compared(x, e.symbol, y, dtype), dtype)
        if kind in (Add, Sub, Mul) and element in NATIVE_C_DTYPES:
            return f"({x} {e.symbol} {y})"
        if element in NATIVE_C_DTYPES and (
            own := self.vectors.own(kind, dtype, x, y, _is_number(e.b))
        ):
            return own
        if kind is Div and dt.is_float(element) and element in NATIVE_C_DTYPES:
            return f"({x} / {y})"
        if kind in (FloorDiv, FloorMod) and self._divides_plainly(e):
            return f"({x} {'/' if kind is FloorDiv else '%'} {y})"
        return self._functions_of_vectors.binary(kind, dtype, x, y)

    def _divides_plainly(self, e: BinaryExpr) -> bool:
        divisor = e.b.value if isinstance(e.b, Broadcast) else e.b
        is_positive = isinstance(divisor, IntImm) and divisor.value > 0
        return is_positive and is_nonnegative(e.a, self.positive)

    def _converted(self, e: Cast) -> str:
        assert self.vectors is not None
        source, target = dt.element(e.value.dtype), dt.element(e.dtype)
        x = self.of(e.value)
        if source == target:
            return x
        exact = dt.is_int(source) or source == "bool" or {source, target} == {"float32", "float64"}
        if exact and target not in ("bool", "float16", "bfloat16"):
            x = self.vectors.flag(x, e.dtype) if source == "bool" else x
            return self.vectors.converted(e.value.dtype, e.dtype, x)
        if self.vectors.holds and source == "float32" and _fits(e.value, target):
            word = dt.with_lanes("int32", dt.lanes(e.dtype))
            return self.vectors.converted(e.value.dtype, word, x)
        return self._functions_of_vectors.cast(e.value.dtype, e.dtype, x)

    def _called(self, e: Intrinsic) -> str:
        argument, operands = e.args[0].dtype, [self.of(a) for a in e.args]
        functions = self._functions_of_vectors
        if (function := functions.math(e.op, argument)) is not None:
            return f"{function}({', '.join(operands)})"
        return functions.intrinsic(e.op, e.dtype, argument, operands)

    def _as_bits(self, e: Intrinsic) -> str:
        """Return a reinterpretation such as `as_int4(x)`, also of contiguous memory."""
        assert self.vectors is not None
        return self.vectors.bits(self.vectors.word(e.dtype), self.of(e.args[0]))

    def _neighbours(self, e: BufferLoad) -> str:
        assert self.vectors is not None and len(e.indices) == 1
        check_lanes("c: the load of", e.buffer, e.indices[0], e.dtype)
        index = e.indices[0]
        if self._holds(e.buffer):
            return f"{self.name(e.buffer)}[{self.of(index)}]"
        if dt.lanes(e.buffer.dtype) > 1:
            raise NoVectorsError
        if (slot := self._slot(e.buffer, index)) is not None:
            return slot
        if isinstance(index, Ramp) and (step := contiguous_stride(index)):
            load = self.vectors.load if step == 1 else self.vectors.load_seconds
            return load(self.name(e.buffer), self.text(index.base), e.dtype)
        if isinstance(index, Broadcast):
            one = BufferLoad(e.buffer, (index.value,), dt.element(e.dtype))
            return self.vectors.broadcast(self.text(one), e.dtype)
        raise NoVectorsError

    def _slot(self, buffer: Buffer, index: PrimExpr) -> str | None:
        """Return the element of a vector array that an aligned index selects, or None for other
        buffers.
        """
        if buffer not in self.arrays:
            return None
        number = _number_of(index)
        assert number is not None
        return f"{self.name(buffer)}[{self.text(number)}]"

    # conditions

    def _where(self, e: Intrinsic) -> str:
        """Emit a vector if_then_else. If all reads are provably in bounds both sides are evaluated
        and selected; where that is unknown, one side if the lanes agree, else lane by lane.
        """
        assert self.vectors is not None
        condition, yes, no = e.args
        if dt.lanes(condition.dtype) == 1:
            rows = [(self.of(condition), lambda: self._side_of(yes))]
            return self._branches(e.dtype, rows, lambda: self._side_of(no))
        inside = self.inside(yes, no)
        if inside == "":
            return self._chosen(e)
        if inside is not None:
            rows = [(inside, lambda: self._chosen(e))]
            return self._branches(e.dtype, rows, lambda: self._by_lanes(e))
        held = self.of(condition)
        if not held.isidentifier():
            held = self._vector_variable("mask", condition.dtype, held)
        rows = [(self.vectors.every(held), lambda: self._side_of(yes))]
        rows.append((f"!{self.vectors.some(held)}", lambda: self._side_of(no)))
        return self._branches(e.dtype, rows, lambda: self._by_lanes(e))

    def _side_of(self, e: PrimExpr) -> str:
        self._walk(e)
        return stripped(self.of(e))

    def _chosen(self, e: Intrinsic) -> str:
        """Emit a lane-wise select with both sides evaluated."""
        assert self.vectors is not None
        yes, no = (self._side_of(side) for side in e.args[1:])
        return self.vectors.select(self.of(e.args[0]), yes, no, e.dtype)

    def _branches(
        self, dtype: str, rows: Sequence[tuple[str, Callable[[], str]]], last: Callable[[], str]
    ) -> str:
        """Emit an if / else-if chain that assigns a variable the value of the first test that
        holds, or the last value.
        """
        assert self.vectors is not None
        name = self.unique("t")
        self.put(self.vectors.var(self.vectors.type(dtype), name))
        before = ""
        for test, value in (*rows, ("", last)):
            self.put(f"{before}if ({stripped(test)}) {{" if test else f"{before}{{")
            before = "} else "
            with self.indented():
                self.put(f"{name} = {value()};")
        self.put("}")
        return name

    def _has_bits(self, source: str, target: str) -> bool:
        """Return whether a vector's bits can be reinterpreted as the other type."""
        return (
            self._writes(source)
            and self.vectors is not None
            and self.vectors.has_bits(source, target)
        )

    def _has_halves(self, dtype: str) -> bool:
        """Return whether the halves of such a vector are vectors or scalars."""
        lanes = dt.lanes(dtype) // 2
        half = dt.with_lanes(dtype, lanes)
        return lanes == 1 or (self.vectors is not None and self.vectors.has(half))

    def _halved(self, e: VectorReduce) -> str:
        """Combine the halves of a vector until one lane is left, in the order of LLVM's
        reductions.
        """
        assert self.vectors is not None
        kind, dtype = _COMBINE[e.kind], e.value.dtype
        self._walk(e.value)
        name = self._vector_variable("parts", dtype, self.of(e.value))
        while dt.lanes(dtype) > 1:
            dtype = dt.with_lanes(dtype, dt.lanes(dtype) // 2)
            low, high = self.vectors.halves(name)
            if dt.element(dtype) in NATIVE_C_DTYPES and kind in (Add, Mul):
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
        if not self._writes(var.dtype) or dt.element(var.dtype) == "bool":
            super().let(var, value)
            return
        assert self.vectors is not None
        self.learn(var, value)
        text = self.text(value)
        self.whole[var] = self._vector_variable(var.name, var.dtype, text)
        self.names[var] = self.vectors.lanes_of(self.whole[var], var.dtype)

    def store(self, s: BufferStore) -> None:
        """Store contiguous lanes at once; elsewhere evaluate the value at once and store
        each lane.
        """
        value = stored_value(s)
        lanes = dt.lanes(value.dtype)
        if self._writes(value.dtype) and self._holds(s.buffer) and s.predicate is None:
            text = self.text(value)
            self.put(f"{self.name(s.buffer)}[{self.text(s.indices[0])}] = {text};")
            self.forget()
            return
        if not self._writes(value.dtype) or dt.lanes(s.buffer.dtype) > 1:
            super().store(s)
            return
        assert self.vectors is not None
        index = s.indices[0]
        check_lanes("c: the store to", s.buffer, index, value.dtype)
        text = self.text(low_bits(value) if self.vectors.holds else value)
        is_near = isinstance(index, Ramp) and is_const(index.stride, 1)
        is_masked = s.predicate is not None and not is_const(s.predicate, 1)
        held = ""
        if is_near and not is_masked:
            self._store_near(s, text, value.dtype)
            self.forget()
            return
        name = Var("value", value.dtype)
        self.whole[name] = self._vector_variable("value", value.dtype, text)
        self.names[name] = self.vectors.lanes_of(self.whole[name], value.dtype)
        lane_value = f"{self.names[name]}[lane]"
        if is_near and s.predicate is not None and dt.lanes(s.predicate.dtype) > 1:
            held = self._vector_variable("mask", s.predicate.dtype, self.text(s.predicate))
            self.put(f"if ({self.vectors.every(held)}) {{")
            with self.indented():
                self._store_near(s, self.whole[name], value.dtype)
            self.put("} else {")
        self.lane_loop(lanes, lambda: self.assigned(s, lane_value))
        if held:
            self.put("}")
        self.forget()

    def _store_near(self, s: BufferStore, text: str, dtype: str) -> None:
        assert self.vectors is not None
        index = s.indices[0]
        assert isinstance(index, Ramp)
        if (slot := self._slot(s.buffer, index)) is not None:
            self.put(f"{slot} = {text};")
            return
        self.put(self.vectors.store(self.name(s.buffer), self.text(index.base), text, dtype))


def low_bits(value: PrimExpr) -> PrimExpr:
    """Strip casts whose effect a truncating store repeats."""
    bits = dt.SCALAR_BITS.get(dt.element(value.dtype), 32)
    if bits >= 32 or not dt.is_int(value.dtype):
        return value
    word = dt.with_lanes("int32", dt.lanes(value.dtype))
    match value:
        case Cast(value=inner) if dt.is_int(inner.dtype) or dt.element(inner.dtype) == "float32":
            at_least = dt.SCALAR_BITS.get(dt.element(inner.dtype), 32)
            if not dt.is_int(inner.dtype):
                return Cast(inner, word)
            return low_bits(inner) if bits <= at_least < 32 else Cast(inner, word)
        case BinaryExpr(a=a, b=b) if isinstance(value, (Add, Sub, Mul)):
            return type(value)(low_bits(a), low_bits(b), word)
    return Cast(value, word)


def _fits(e: PrimExpr, dtype: str) -> bool:
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


def _is_number(e: PrimExpr) -> bool:
    """Return whether a value is known to be NaN in no lane."""
    one = e.value if isinstance(e, Broadcast) else e
    return isinstance(one, FloatImm) and not math.isnan(one.value)


def _number_of(index: PrimExpr | None) -> PrimExpr | None:
    """Return the position of the vector that an index selects in an array of vectors, or None if it
    may straddle two.
    """
    if not isinstance(index, Ramp) or not isinstance(index.lanes, int):
        return None
    exact = is_const(simplify(index.base % index.lanes), 0)
    return simplify(index.base // index.lanes) if exact else None


def whole_vectors(body: Stmt, vectors: VectorSyntax) -> dict[Buffer, int]:
    """Return the thread-local buffers whose every access is an aligned vector of one width, with
    that width. Such arrays are allocated as vectors, whose natural alignment keeps an access
    within one cache line.
    """
    lanes_of: dict[Buffer, int] = {}
    refused: set[Buffer] = set()
    for buffer, index in _accesses(body):
        is_vector = isinstance(index, Ramp) and is_const(index.stride, 1)
        lanes = index.lanes if isinstance(index, Ramp) else 0
        fits = is_vector and isinstance(lanes, int) and lanes_of.setdefault(buffer, lanes) == lanes
        if not fits or _number_of(index) is None:
            refused.add(buffer)
    own = {s.buffer for s in walk(body) if isinstance(s, Allocate)}
    return {
        b: n
        for b, n in lanes_of.items()
        if b in own - refused
        and b.scope in THREAD_SCOPES
        and vectors.has(dt.with_lanes(b.dtype, n))
        and b.dtype != "bool"
        and dt.lanes(b.dtype) == 1
    }


def _accesses(body: Stmt) -> Iterator[tuple[Buffer, PrimExpr | None]]:
    """Yield every buffer that is read, written or passed to a call, with the index (None:
    unknown).
    """
    for s in walk(body):
        if isinstance(s, BufferStore):
            yield s.buffer, s.indices[0] if s.predicate is None else None
        for e in post_order(*expressions(s)):
            if isinstance(e, BufferLoad):
                yield e.buffer, e.indices[0]
            elif isinstance(e, BufferAddress):
                yield e.buffer, None
