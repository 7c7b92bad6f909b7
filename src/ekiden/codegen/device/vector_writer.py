"""Statements with whole vectors, where a dialect has them.

    b[i : i + 16] = exp(a[i : i + 16]) * 2   ->   vstore16(ek_exp_float32x16(vload16(0, a + i)) *
                                                            (float16)(2.0f), 0, b + i);

What has no words over vectors (a gather, a table, half a conversion) goes through an array, lane by
lane, as in C. Inside of such a loop over lanes everything is written for one lane.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.codegen.c.expression import PLAIN
from ekiden.codegen.c.helpers import Form, Helpers, NoVectorsError
from ekiden.codegen.c.statement import StatementWriter
from ekiden.codegen.common import check_lanes, is_nonnegative, stored_value
from ekiden.codegen.device.vectors import VectorSyntax
from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    BOOLEAN,
    Add,
    And,
    BinaryExpr,
    Cast,
    Div,
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
from ekiden.tir.expr import Broadcast, BufferLoad, Ramp, VectorReduce
from ekiden.tir.stmt import BufferStore

_INFIX: dict[type, str] = {Add: "+", Sub: "-", Mul: "*", And: "&", Or: "|"}
_COMBINE: dict[str, type[BinaryExpr]] = {"sum": Add, "prod": Mul, "max": Max, "min": Min}


class VectorWriter(StatementWriter):
    """Writes a function in a dialect that may have vectors."""

    def __init__(self, helpers: Helpers, symbol: str, vectors: VectorSyntax | None) -> None:
        super().__init__(helpers, symbol, [])
        self.vectors = vectors
        self.whole: dict[Var, str] = {}
        """Variables that are vectors of the dialect -> their names; `names` has their lanes."""
        self._in_lanes = False
        if vectors is not None:
            form = Form(helpers.form.function, helpers.form.table, vectors.bits, vectors)
            self._functions_of_vectors = helpers.over(form)

    def _writes(self, dtype: str) -> bool:
        """Whether a value of this type is written as a whole here."""
        return not self._in_lanes and self.vectors is not None and self.vectors.has(dtype)

    # the walk

    def lane_loop(self, lanes: int, line: Callable[[], str]) -> None:
        """A loop in which everything is of one lane."""
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
                case Ramp(base=base, stride=stride) if is_const(stride, 1):
                    return (base,)
                case Broadcast(value=value):
                    return (value,)
        return super()._operands(e)

    def _memoised(self, e: PrimExpr) -> str | None:
        return next((table[e] for table in reversed(self._memo) if e in table), None)

    def _named(self, e: PrimExpr, text: str) -> str:
        if not self._writes(e.dtype):
            return super()._named(e, text)
        return self._kept("t", e.dtype, text)

    def _kept(self, hint: str, dtype: str, text: str) -> str:
        """A variable that holds a vector."""
        assert self.vectors is not None
        name = self.unique(hint)
        self.put(self.vectors.let(self.vectors.type(dtype), name, text))
        return name

    def _node(self, e: PrimExpr) -> str:
        match e:
            case VectorReduce() if self._writes(e.value.dtype):
                return self._halved(e)
            case Intrinsic(op="reinterpret") if self._writes(e.args[0].dtype):
                return self._as_bits(e)
        if not self._writes(e.dtype):
            return super()._node(e)
        try:
            return self._vector(e)
        except NoVectorsError:
            return self._by_lanes(e)

    def _by_lanes(self, e: PrimExpr) -> str:
        """Through an array, which a loop over lanes fills."""
        assert self.vectors is not None
        name, lanes = self.unique("lanes"), dt.lanes(e.dtype)
        self.put(self.vectors.var(self.vectors.lane_type(e.dtype), name, lanes))
        sign = "-(int)" if dt.element(e.dtype) == "bool" else ""
        self.lane_loop(lanes, lambda: f"{name}[lane] = {sign}({self.text(e)});")
        return self._kept("t", e.dtype, self.vectors.of_lanes(name, e.dtype))

    # what nodes are

    def _vector(self, e: PrimExpr) -> str:
        """A node whose operands are written. Raises NoVectorsError."""
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
        if kind in BOOLEAN and element in PLAIN:
            return self.vectors.comparison(f"{x} {e.symbol} {y}", dtype)
        if kind in (Add, Sub, Mul) and element in PLAIN:
            return f"({x} {e.symbol} {y})"
        if kind is Div and dt.is_float(element) and element in PLAIN:
            return f"({x} / {y})"
        if kind in (FloorDiv, FloorMod) and self._divides_plainly(e):
            return f"({x} {'/' if kind is FloorDiv else '%'} {y})"
        if kind in (Min, Max) and element in PLAIN and dt.is_int(element):
            return f"{'min' if kind is Min else 'max'}({x}, {y})"
        return self._functions_of_vectors.binary(kind, dtype, x, y)

    def _divides_plainly(self, e: BinaryExpr) -> bool:
        divisor = e.b.value if isinstance(e.b, Broadcast) else e.b
        is_positive = isinstance(divisor, IntImm) and divisor.value > 0
        return is_positive and is_nonnegative(e.a, self.positive)

    def _converted(self, e: Cast) -> str:
        assert self.vectors is not None
        source, target = dt.element(e.value.dtype), dt.element(e.dtype)
        x, kind = self.of(e.value), self.vectors.type(e.dtype)
        if source == target:
            return x
        exact = dt.is_int(source) or source == "bool" or {source, target} == {"float32", "float64"}
        if exact and target not in ("bool", "float16", "bfloat16"):
            is_flag = source == "bool"
            return self.vectors.cast(kind, self.vectors.flag(x, e.dtype) if is_flag else x)
        return self._functions_of_vectors.cast(e.value.dtype, e.dtype, x)

    def _called(self, e: Intrinsic) -> str:
        argument, given = e.args[0].dtype, [self.of(a) for a in e.args]
        functions = self._functions_of_vectors
        if (function := functions.math(e.op, argument)) is not None:
            return f"{function}({', '.join(given)})"
        return functions.intrinsic(e.op, e.dtype, argument, given)

    def _as_bits(self, e: Intrinsic) -> str:
        """`as_int4(x)`, of neighbours in memory too."""
        assert self.vectors is not None
        kind = self.vectors.type(e.dtype)
        return self.vectors.bits(kind.removesuffix("_t"), self.of(e.args[0]))

    def _neighbours(self, e: BufferLoad) -> str:
        assert self.vectors is not None and len(e.indices) == 1
        check_lanes("c: the load of", e.buffer, e.indices[0], e.dtype)
        index = e.indices[0]
        if dt.lanes(e.buffer.dtype) > 1:
            raise NoVectorsError
        if isinstance(index, Ramp) and is_const(index.stride, 1):
            return self.vectors.load(self.name(e.buffer), self.text(index.base), e.dtype)
        if isinstance(index, Broadcast):
            one = BufferLoad(e.buffer, (index.value,), dt.element(e.dtype))
            return self.vectors.broadcast(self.text(one), e.dtype)
        raise NoVectorsError

    # conditions

    def _where(self, e: Intrinsic) -> str:
        """By a branch where a condition holds in all lanes or in none, which is how borders are
        mostly met; else lane by lane."""
        assert self.vectors is not None
        condition, *sides = e.args
        is_pure = not any(isinstance(x, BufferLoad) for x in post_order(*sides))
        is_vector = dt.lanes(condition.dtype) > 1
        if is_vector and is_pure:
            yes, no = (self._evaluated(side) for side in sides)
            return self.vectors.select(self.of(condition), yes, no, e.dtype)
        name = self.unique("t")
        held = self.of(condition)
        if is_vector and not held.isidentifier():
            held = self._kept("mask", condition.dtype, held)
        self.put(self.vectors.var(self.vectors.type(e.dtype), name))
        tests = [f"all({held})", f"!any({held})"] if is_vector else [held, ""]
        for n, (test, side) in enumerate(zip(tests, sides, strict=True)):
            head = f"if ({test}) {{" if test else "{"
            self.put(head if n == 0 else f"}} else {head}")
            lines, text = self._side(side)
            self.lines += lines
            self.put(f"  {name} = {text};")
        if is_vector:
            self.put("} else {")
            with self.indented():
                self.put(f"{name} = {self._by_lanes(e)};")
        self.put("}")
        return name

    def _evaluated(self, e: PrimExpr) -> str:
        self._walk(e)
        return self.of(e)

    def _halved(self, e: VectorReduce) -> str:
        """Halves are combined until one lane is left, in the order LLVM's code has."""
        assert self.vectors is not None
        kind, dtype = _COMBINE[e.kind], e.value.dtype
        self._walk(e.value)
        name = self._kept("parts", dtype, self.of(e.value))
        while dt.lanes(dtype) > 1:
            dtype = dt.with_lanes(dtype, dt.lanes(dtype) // 2)
            low, high = self.vectors.halves(name)
            if dt.element(dtype) in PLAIN and kind in (Add, Mul):
                text = f"{low} {kind.symbol} {high}"
            elif dt.lanes(dtype) > 1:
                text = self._functions_of_vectors.binary(kind, dtype, low, high)
            else:
                text = self.helpers.binary(kind, dtype, low, high)
            name = self._kept("parts", dtype, text)
        return name

    # statements

    def let(self, var: Var, value: PrimExpr) -> None:
        """A variable of a vector."""
        if not self._writes(var.dtype) or dt.element(var.dtype) == "bool":
            super().let(var, value)
            return
        assert self.vectors is not None
        self.learn(var, value)
        text = self.text(value)
        self.whole[var] = self._kept(var.name, var.dtype, text)
        self.names[var] = self.vectors.lanes_of(self.whole[var], var.dtype)

    def store(self, s: BufferStore) -> None:
        """Neighbours at once; elsewhere the value at once, and a store for each lane."""
        value = stored_value(s)
        lanes = dt.lanes(value.dtype)
        if not self._writes(value.dtype) or dt.lanes(s.buffer.dtype) > 1:
            super().store(s)
            return
        assert self.vectors is not None
        index = s.indices[0]
        check_lanes("c: the store to", s.buffer, index, value.dtype)
        text = self.text(value)
        is_near = isinstance(index, Ramp) and is_const(index.stride, 1)
        is_masked = s.predicate is not None and not is_const(s.predicate, 1)
        held = ""
        if is_near and not is_masked:
            self._store_near(s, text, value.dtype)
            self.forget()
            return
        name = Var("value", value.dtype)
        self.whole[name] = self._kept("value", value.dtype, text)
        self.names[name] = self.vectors.lanes_of(self.whole[name], value.dtype)
        each = f"{self.names[name]}[lane]"
        if is_near and s.predicate is not None and dt.lanes(s.predicate.dtype) > 1:
            held = self._kept("mask", s.predicate.dtype, self.text(s.predicate))
            self.put(f"if (all({held})) {{")
            with self.indented():
                self._store_near(s, self.whole[name], value.dtype)
            self.put("} else {")
        self.lane_loop(lanes, lambda: self.assigned(s, each))
        if held:
            self.put("}")
        self.forget()

    def _store_near(self, s: BufferStore, text: str, dtype: str) -> None:
        assert self.vectors is not None
        index = s.indices[0]
        assert isinstance(index, Ramp)
        self.put(self.vectors.store(self.name(s.buffer), self.text(index.base), text, dtype))
