"""Expressions to C: one lane at a time.

A vector expression is written for the lane `lane` of the loop around it. What is used twice, or is
long, gets a variable on a line of its own; a conditional whose sides need such lines becomes an
`if`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ekiden.codegen.c.helpers import Helpers, quoted
from ekiden.codegen.c.types import KEYWORDS, is_macro_like
from ekiden.codegen.common import (
    addressed,
    called_with,
    check_compiled,
    check_lanes,
    extern_name,
    is_nonnegative,
    shuffle_order,
    undefined,
)
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import row_of
from ekiden.ir.prim import (
    BOOLEAN,
    Add,
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
    PrimExpr,
    Select,
    SizeVar,
    StringImm,
    Sub,
    Var,
)
from ekiden.ir.prim_visitor import children
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.tir.expr import Broadcast, Buffer, BufferAddress, BufferLoad, Ramp, VectorReduce

MAX_EXPRESSION_CHARS = 96
"""An expression longer than this is given a name."""
NATIVE_C_DTYPES = frozenset(("int32", "int64", "uint32", "uint64", "float32", "float64"))
"""Types on which C's own operators mean what the nodes mean."""
_INFIX = {"and": "&&", "or": "||"}


class ExpressionWriter:
    """Writer of the expressions of one C function; lines go to `lines` at the current depth."""

    def __init__(self, helpers: Helpers) -> None:
        self.helpers, self.syntax = helpers, helpers.form.syntax
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[Var | Buffer, str] = {}
        self.positive: set[Var] = set()
        self._taken: dict[str, int] = {}
        self._used: set[str] = set()
        self._memo: list[dict[PrimExpr, str]] = [{}]

    # names and lines

    def put(self, line: str) -> None:
        """Append a line at the current indentation depth."""
        self.lines.append("  " * self.depth + line)

    def unique(self, hint: str) -> str:
        """Return a C identifier that this function has not used before."""
        clean = "".join(c if c.isalnum() and c.isascii() else "_" for c in hint) or "v"
        clean = f"_{clean}" if clean[0].isdigit() else clean
        clean = clean.lower() if is_macro_like(clean) else clean
        count = self._taken.get(clean, 0)
        name = clean
        while name in self._used or name in KEYWORDS:
            count += 1
            name = f"{clean}_{count}"
        self._taken[clean] = count
        self._used.add(name)
        return name

    def define(self, symbol: Var | Buffer) -> str:
        """Return a new C name for a variable or buffer that comes into scope."""
        self.names[symbol] = self.unique(symbol.name)
        return self.names[symbol]

    def name(self, symbol: Var | Buffer) -> str:
        """Return the C name of a variable or buffer in scope. Raises InternalError if it is
        undefined.
        """
        if symbol not in self.names:
            raise undefined("c", symbol)
        return self.names[symbol]

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent the lines of a block; values named inside are forgotten after."""
        self.depth += 1
        self._memo.append({})
        try:
            yield
        finally:
            self._memo.pop()
            self.depth -= 1

    def forget(self) -> None:
        """Invalidate cached loads: memory may have changed."""
        self._memo = [{} for _ in self._memo]

    # the walk

    def text(self, root: PrimExpr) -> str:
        """Return the expression as C, without enclosing parentheses."""
        self._walk(root)
        return stripped(self._known(root) or "")

    def _known(self, e: PrimExpr) -> str | None:
        if isinstance(e, (IntImm, FloatImm)):
            return self.syntax.constant(e.value, e.dtype)
        if isinstance(e, Var):
            return self.name(e) + ("[lane]" if dt.lanes(e.dtype) > 1 else "")
        for table in reversed(self._memo):
            if e in table:
                return table[e]
        return None

    def _walk(self, root: PrimExpr) -> None:
        uses = self._uses(root)
        stack = [root]
        while stack:
            e = stack[-1]
            if self._known(e) is not None:
                stack.pop()
                continue
            waiting = [c for c in self._operands(e) if self._known(c) is None]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            text = self._node(e)
            # Shared nodes become temporaries, so that the text stays linear in the size of the DAG.
            if (uses.get(e, 0) > 1 or len(text) > MAX_EXPRESSION_CHARS) and not _is_name(text):
                text = self._named(e, text)
            self._memo[-1][e] = text
            stack.pop()

    def _uses(self, root: PrimExpr) -> dict[PrimExpr, int]:
        """Count the uses of each node among the nodes that are evaluated with the root."""
        use_counts: dict[PrimExpr, int] = {}
        visited: set[PrimExpr] = set()
        stack = [root]
        while stack:
            e = stack.pop()
            if e in visited:
                continue
            visited.add(e)
            for child in self._operands(e):
                use_counts[child] = use_counts.get(child, 0) + 1
                stack.append(child)
        return use_counts

    def _operands(self, e: PrimExpr) -> tuple[PrimExpr, ...]:
        """Return the operands that are evaluated unconditionally before a node."""
        if isinstance(e, Intrinsic) and e.op == "if_then_else":
            return e.args[:1]
        if isinstance(e, (Var, IntImm, FloatImm, VectorReduce)):
            return ()
        if isinstance(e, Intrinsic) and e.op in ("shuffle", "same_memory"):
            return ()
        if (index := _wide_access(e)) is not None:
            return (index.base,)
        if isinstance(e, Intrinsic):
            check_compiled(e)
        if isinstance(e, Intrinsic) and row_of(e.op).calls:
            return called_with(e)
        return children(e)

    def _named(self, e: PrimExpr, text: str) -> str:
        name = self.unique("t")
        self.put(self.syntax.let(self.syntax.type(e.dtype), name, stripped(text)))
        return name

    def keep(self, e: PrimExpr) -> None:
        """Evaluate an expression into a temporary variable at this point."""
        self._walk(e)
        if not _is_name(text := self.of(e)):
            self._memo[-1][e] = self._named(e, text)

    def of(self, e: PrimExpr) -> str:
        """Return the C text of an operand that was emitted before."""
        operand_text = self._known(e)
        assert operand_text is not None, e
        return operand_text

    def _node(self, e: PrimExpr) -> str:
        match e:
            case BinaryExpr():
                return self._binary(e)
            case Cast():
                return self._cast(dt.element(e.value.dtype), dt.element(e.dtype), self.of(e.value))
            case Not():
                return f"!{self.of(e.a)}"
            case Select():
                chosen = (self.of(x) for x in (e.condition, e.true_value, e.false_value))
                condition, yes, no = chosen
                return f"({self.syntax.choose(condition, yes, no)})"
            case Intrinsic(op="if_then_else"):
                return self._guarded(e)
            case Intrinsic(op="call_packed" | "call_function"):
                return self.call_packed(e)
            case Intrinsic(op="call_extern" | "call_pure_extern"):
                return self.call_extern(e)
            case Intrinsic(op="call_llvm_intrin" | "call_llvm_pure_intrin"):
                raise CompileError(
                    f"c: {e.op} {e.args[0]}: C has no intrinsics of LLVM; the target llvm has them"
                )
            case Intrinsic(op="same_memory"):
                one, second = (self.name(buffer) for buffer in addressed(e))
                return f"({one} == {second})"
            case Intrinsic(op="shuffle"):
                return self._shuffled(e)
            case Intrinsic():
                return self.intrinsic(e)
            case Ramp():
                return _sum(self.of(e.base), _product("lane", self.of(e.stride)))
            case Broadcast():
                return self.of(e.value)
            case VectorReduce():
                return self._reduce(e)
            case BufferLoad():
                return self._load(e)
        raise InternalError(f"c: {type(e).__name__} has no meaning in a kernel: {e!r}")

    def _binary(self, e: BinaryExpr) -> str:
        kind, dtype = type(e), dt.element(e.a.dtype)
        x, y = self.of(e.a), self.of(e.b)
        if kind in (FloorDiv, FloorMod) and dt.is_int(dtype):
            plain = is_nonnegative(e.a, self.positive) and isinstance(e.b, IntImm) and e.b.value > 0
            if plain:
                return f"({x} {'/' if kind is FloorDiv else '%'} {y})"
        infix = kind in (Add, Sub, Mul) or (kind is Div and dt.is_float(dtype))
        if dtype in NATIVE_C_DTYPES and (infix or kind in BOOLEAN):
            return f"({x} {e.symbol} {y})"
        if dtype == "bool" and e.symbol in _INFIX:
            return f"({x} {_INFIX[e.symbol]} {y})"
        if (
            kind in (Min, Max)
            and dtype in NATIVE_C_DTYPES
            and dt.is_int(dtype)
            and _are_names(x, y)
        ):
            before = f"{x} {'<' if kind is Min else '>'} {y}"
            return f"({self.syntax.choose(before, x, y)})"
        return self.helpers.binary(kind, dtype, stripped(x), stripped(y))

    def _cast(self, source: str, target: str, x: str) -> str:
        if source == target:
            return x
        if target == "bool":
            return (
                f"({x} != 0)"
                if source not in ("bfloat16", "float16")
                else self._helper(source, target, x)
            )
        exact = dt.is_int(source) or source == "bool" or {source, target} == {"float32", "float64"}
        if exact and target not in ("float16", "bfloat16"):
            return self.syntax.cast(self.syntax.type(target), x)
        return self._helper(source, target, x)

    def _helper(self, source: str, target: str, x: str) -> str:
        return self.helpers.cast(source, target, stripped(x))

    def intrinsic(self, e: Intrinsic) -> str:
        """Return a call of a <math.h> function or of a helper function."""
        if e.op == "reinterpret":
            return self.reinterpreted(e)
        argument, operands = dt.element(e.args[0].dtype), [stripped(self.of(a)) for a in e.args]
        if (function := self.helpers.math(e.op, argument)) is not None:
            return f"{function}({', '.join(operands)})"
        return self.helpers.intrinsic(e.op, dt.element(e.dtype), argument, operands)

    def reinterpreted(self, e: Intrinsic) -> str:
        """Return the bits of a lane as another type, or several contiguous elements as one wider
        value.
        """
        value, target = e.args[0], dt.element(e.dtype)
        if dt.lanes(value.dtype) == dt.lanes(e.dtype):
            return self.helpers.reinterpret(dt.element(value.dtype), target, self.of(value))
        index = _wide_access(e)
        if not isinstance(value, BufferLoad) or index is None:
            raise InternalError(f"c: lanes can only be taken together from memory: {e!r}")
        step = dt.lanes(value.dtype) // dt.lanes(e.dtype)
        lane = f" + lane * {step}" if dt.lanes(e.dtype) > 1 else ""
        at = self.checked(value.buffer, self.text(index.base) + lane)
        return self.together(value.buffer, at, step, target)

    def together(self, buffer: Buffer, index: str, count: int, target: str) -> str:
        """Return an unaligned load of `count` contiguous elements as one value."""
        return self.helpers.load(target, f"&{self.name(buffer)}[{index}]")

    def _shuffled(self, e: Intrinsic) -> str:
        """Return one lane of a shuffle of two named vectors."""
        one, two = e.args[:2]
        if not isinstance(one, Var) or not isinstance(two, Var):
            raise CompileError(f"c: name the vectors first (T.LetStmt) whose lanes move: {e!r}")
        order, lanes = shuffle_order(e), dt.lanes(one.dtype)
        at = f"((const unsigned char[]){{{', '.join(map(str, order))}}})[lane]"
        a, b = (f"{self.names[v]}[{at}" for v in (one, two))
        return f"({at} < {lanes} ? {a}] : {b} - {lanes}])"

    def call_extern(self, e: Intrinsic) -> str:
        """Return a call of a C function by its symbol. A call with side effects goes into a
        variable, so that it is made once.
        """
        name = extern_name(e, "c")
        arguments = ", ".join(self.extern_argument(a) for a in e.args[1:])
        kinds = [None if isinstance(a, StringImm) else a.dtype for a in e.args[1:]]
        call = f"{self.extern(name, e.dtype, kinds)}({arguments})"
        return self._named(e, call) if row_of(e.op).effects else call

    def extern(self, name: str, result: str, arguments: Sequence[str | None]) -> str:
        """Declare an external C function for these dtypes (None: a string) and return its
        C name.
        """
        raise CompileError(f"c: call_extern {name!r}: here is no C function to call")

    def extern_argument(self, a: PrimExpr) -> str:
        """Return an argument of a C function: a number, a string, or the address of an element."""
        if isinstance(a, StringImm):
            return quoted(a.value)
        if isinstance(a, BufferAddress):
            offset = f" + ({self.text(a.indices[0])})" if a.indices else ""
            return f"(void *)({self.name(a.buffer)}{offset})"
        return stripped(self.of(a))

    def call_packed(self, e: Intrinsic) -> str:
        """Raise InternalError: a packed call may fail and is a statement, not an expression."""
        raise InternalError(f"c: {e!r} has no place here")

    # conditionals

    def _guarded(self, e: Intrinsic) -> str:
        """Return `c ? a : b`, or emit an `if` where a side needs lines of its own."""
        condition = self.of(e.args[0])
        sides = [self._side(side) for side in e.args[1:]]
        if not any(lines for lines, _ in sides):
            return f"({self.syntax.choose(condition, sides[0][1], sides[1][1])})"
        name = self.unique("t")
        self.put(self.syntax.var(self.syntax.type(e.dtype), name))
        self.put(f"if ({stripped(condition)}) {{")
        for n, (lines, text) in enumerate(sides):
            self.lines += lines
            self.put(f"  {name} = {stripped(text)};")
            self.put("}" if n else "} else {")
        return name

    def _side(self, side: PrimExpr) -> tuple[list[str], str]:
        # Lines of a conditional side must not run before the test: they may read out of bounds.
        outer, self.lines = self.lines, []
        try:
            with self.indented():
                self._walk(side)
                return self.lines, self.of(side)
        finally:
            self.lines = outer

    # vectors and memory

    def _reduce(self, e: VectorReduce) -> str:
        """Combine the halves of a vector until one lane is left, in the order of LLVM's
        reductions.
        """
        lanes, kind = dt.lanes(e.value.dtype), dt.element(e.dtype)
        name = self.unique("lanes")
        self.put(self.syntax.var(self.syntax.type(kind), name, lanes))
        self.lane_loop(lanes, lambda: f"{name}[lane] = {self.text(e.value)};")
        combine = {"sum": Add, "prod": Mul, "max": Max, "min": Min}[e.kind]
        # The order of additions must equal LLVM's, or the two targets give different float sums.
        while lanes > 1 and lanes % 2 == 0:
            lanes //= 2
            self._combine_lanes(combine, kind, name, lanes)
        for i in range(1, lanes):
            value = self._combined(combine, kind, f"{name}[0]", f"{name}[{i}]")
            self.put(f"{name}[0] = {value};")
        return f"{name}[0]"

    def _combine_lanes(self, kind: type[BinaryExpr], dtype: str, name: str, half: int) -> None:
        value = self._combined(kind, dtype, f"{name}[lane]", f"{name}[lane + {half}]")
        self.put(self.syntax.loop("int", "lane", "0", str(half)))
        self.put(f"  {name}[lane] = {value};")
        self.put("}")

    def _combined(self, kind: type[BinaryExpr], dtype: str, x: str, y: str) -> str:
        if dtype in NATIVE_C_DTYPES and kind in (Add, Mul):
            return f"{x} {kind.symbol} {y}"
        return self.helpers.binary(kind, dtype, x, y)

    def lane_loop(self, lanes: int, line: Callable[[], str]) -> None:
        """Emit a loop over lanes around one line."""
        self.put(self.syntax.loop("int", "lane", "0", str(lanes)))
        outer = self._memo
        # Only scalar values stay valid inside the loop: a cached vector text would refer to no
        # lane.
        scalars = {e: t for table in outer for e, t in table.items() if dt.lanes(e.dtype) == 1}
        self._memo = [scalars]
        self.depth += 1
        self.put(line())
        self.depth -= 1
        self._memo = outer
        self.put("}")

    def element(self, buffer: Buffer, index: str) -> str:
        """Return an element access; the current lane of it where the buffer holds vectors."""
        lane = "[lane]" if dt.lanes(buffer.dtype) > 1 else ""
        return f"{self.name(buffer)}[{self.checked(buffer, stripped(index))}]{lane}"

    def checked(self, buffer: Buffer, index: str) -> str:
        """Return the index of an access, bounds-checked if the target asks for it."""
        return index

    def _load(self, e: BufferLoad) -> str:
        if len(e.indices) != 1:
            raise InternalError(f"c: access of {e.buffer.name!r}: flatten buffers first")
        check_lanes("c: the load of", e.buffer, e.indices[0], e.dtype)
        text = self.element(e.buffer, self.of(e.indices[0]))
        return f"({text} != 0)" if dt.element(e.dtype) == "bool" else text

    def learn(self, var: Var, value: PrimExpr) -> None:
        """Record that a variable is non-negative if its value provably is."""
        if isinstance(var, SizeVar) or is_nonnegative(value, self.positive):
            self.positive.add(var)


def _wide_access(e: PrimExpr) -> Ramp | None:
    """Return the Ramp of a reinterpreted contiguous load (one wider value), or None."""
    if not isinstance(e, Intrinsic) or e.op != "reinterpret":
        return None
    value = e.args[0]
    index = value.indices[0] if isinstance(value, BufferLoad) else None
    return index if isinstance(index, Ramp) and dt.lanes(value.dtype) != dt.lanes(e.dtype) else None


def _is_name(text: str) -> bool:
    return text.replace("[lane]", "").isidentifier() or text.isdigit()


def _are_names(*texts: str) -> bool:
    return all(_is_name(t) for t in texts)


def _sum(a: str, b: str) -> str:
    return b if a == "0" else f"({a} + {b})"


def _product(a: str, b: str) -> str:
    return a if b == "1" else f"{a} * {b}"


def stripped(text: str) -> str:
    """Return the text without parentheses that enclose all of it."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            # `(-x)` keeps its parentheses: `- -x` must not become `--x`.
            return text[1:-1] if at == len(text) - 1 and not text.startswith("(-") else text
    return text
