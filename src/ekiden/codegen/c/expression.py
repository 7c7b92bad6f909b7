"""Expressions to C: one lane at a time.

A vector expression is written for the lane `lane` of the loop around it. What is used twice, or is
long, gets a variable on a line of its own; a conditional whose sides need such lines becomes an
`if`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ekiden.codegen.c.helpers import HelperFunctions, c_string_literal
from ekiden.codegen.c.types import C_KEYWORDS, is_macro_like
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
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import (
    BOOL_VALUED_OPS,
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
"""Maximum length of an inline expression; longer ones are assigned to a variable."""
NATIVE_C_DTYPES = frozenset(("int32", "int64", "uint32", "uint64", "float32", "float64"))
"""Dtypes whose C operators have the semantics of the IR's nodes."""
INFIX_SYMBOLS = {"and": "&&", "or": "||"}


class ExpressionWriter:
    """Writer of the expressions of one C function; lines go to `lines` at the current depth."""

    def __init__(self, helpers: HelperFunctions) -> None:
        self.helpers, self.syntax = helpers, helpers.dialect.syntax
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[Var | Buffer, str] = {}
        self.nonnegative_vars: set[Var] = set()
        self._used_names: dict[str, int] = {}
        self._use_counts: set[str] = set()
        self._memo: list[dict[PrimExpr, str]] = [{}]

    # names and lines

    def emit_line(self, line: str) -> None:
        """Append a line at the current indentation depth."""
        self.lines.append("  " * self.depth + line)

    def unique(self, hint: str) -> str:
        """Return a C identifier that this function has not used before."""
        clean = "".join(c if c.isalnum() and c.isascii() else "_" for c in hint) or "v"
        clean = f"_{clean}" if clean[0].isdigit() else clean
        # A name in capitals could be a macro of a header.
        clean = clean.lower() if is_macro_like(clean) else clean
        count = self._used_names.get(clean, 0)
        name = clean
        while name in self._use_counts or name in C_KEYWORDS:
            count += 1
            name = f"{clean}_{count}"
        self._used_names[clean] = count
        self._use_counts.add(name)
        return name

    def bind_name(self, symbol: Var | Buffer) -> str:
        """Return a new C name for a variable or buffer that comes into scope."""
        self.names[symbol] = self.unique(symbol.name)
        return self.names[symbol]

    def name(self, symbol: Var | Buffer) -> str:
        """Return the C name of a variable or buffer in scope. Raises InternalError if it is
        undefined.
        """
        if symbol not in self.names:
            raise undefined_symbol_error("c", symbol)
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

    def invalidate_loads(self) -> None:
        """Invalidate cached loads: memory may have changed."""
        self._memo = [{} for _ in self._memo]

    # the walk

    def text(self, root: PrimExpr) -> str:
        """Return the expression as C, without enclosing parentheses."""
        self._write_postorder(root)
        return strip_parentheses(self._cached_text(root) or "")

    def _cached_text(self, e: PrimExpr) -> str | None:
        if isinstance(e, (IntImm, FloatImm)):
            return self.syntax.constant(e.value, e.dtype)
        if isinstance(e, Var):
            return self.name(e) + ("[lane]" if dt.lanes(e.dtype) > 1 else "")
        for table in reversed(self._memo):
            if e in table:
                return table[e]
        return None

    def _write_postorder(self, root: PrimExpr) -> None:
        uses = self._count_uses(root)
        stack = [root]
        while stack:
            e = stack[-1]
            if self._cached_text(e) is not None:
                stack.pop()
                continue
            waiting = [c for c in self._operands(e) if self._cached_text(c) is None]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            text = self._write_node(e)
            # Shared nodes become temporaries, so that the text stays linear in the size of the DAG.
            if (uses.get(e, 0) > 1 or len(text) > MAX_EXPRESSION_CHARS) and not _is_identifier(
                text
            ):
                text = self._assign_temporary(e, text)
            self._memo[-1][e] = text
            stack.pop()

    def _count_uses(self, root: PrimExpr) -> dict[PrimExpr, int]:
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
        # Sides are written where they are chosen: elsewhere their loads may be out of bounds.
        if isinstance(e, Intrinsic) and e.op == "if_then_else":
            return e.args[:1]
        if isinstance(e, (Var, IntImm, FloatImm, VectorReduce)):
            return ()
        if isinstance(e, Intrinsic) and e.op in ("shuffle", "same_memory"):
            return ()
        if (index := _contiguous_ramp(e)) is not None:
            return (index.base,)
        if isinstance(e, Intrinsic):
            check_supported_call(e)
        if isinstance(e, Intrinsic) and find_intrinsic(e.op).is_function_call:
            return value_arguments(e)
        return children(e)

    def _assign_temporary(self, e: PrimExpr, text: str) -> str:
        name = self.unique("t")
        self.emit_line(self.syntax.let(self.syntax.type(e.dtype), name, strip_parentheses(text)))
        return name

    def materialize(self, e: PrimExpr) -> None:
        """Evaluate an expression into a temporary variable at this point."""
        self._write_postorder(e)
        if not _is_identifier(text := self.operand_text(e)):
            self._memo[-1][e] = self._assign_temporary(e, text)

    def operand_text(self, e: PrimExpr) -> str:
        """Return the C text of an operand that was emitted before."""
        operand_text = self._cached_text(e)
        assert operand_text is not None, e
        return operand_text

    def _write_node(self, e: PrimExpr) -> str:
        match e:
            case BinaryExpr():
                return self._write_binary(e)
            case Cast():
                return self._write_cast(
                    dt.element_dtype(e.value.dtype),
                    dt.element_dtype(e.dtype),
                    self.operand_text(e.value),
                )
            case Not():
                return f"!{self.operand_text(e.a)}"
            case Select():
                chosen = (self.operand_text(x) for x in (e.condition, e.true_value, e.false_value))
                condition, true_value, false_value = chosen
                return f"({self.syntax.conditional(condition, true_value, false_value)})"
            case Intrinsic(op="if_then_else"):
                return self._write_if_then_else(e)
            case Intrinsic(op="call_packed" | "call_function"):
                return self.call_packed(e)
            case Intrinsic(op="call_extern" | "call_pure_extern"):
                return self.call_extern(e)
            case Intrinsic(op="call_llvm_intrin" | "call_llvm_pure_intrin"):
                raise CompileError(
                    f"c: {e.op} {e.args[0]}: C has no intrinsics of LLVM; the target llvm has them"
                )
            case Intrinsic(op="same_memory"):
                one, second = (self.name(buffer) for buffer in buffer_address_args(e))
                return f"({one} == {second})"
            case Intrinsic(op="shuffle"):
                return self._write_shuffle(e)
            case Intrinsic():
                return self.intrinsic(e)
            case Ramp():
                return _format_sum(
                    self.operand_text(e.base), _format_product("lane", self.operand_text(e.stride))
                )
            case Broadcast():
                return self.operand_text(e.value)
            case VectorReduce():
                return self._write_vector_reduce(e)
            case BufferLoad():
                return self._write_load(e)
        raise InternalError(f"c: {type(e).__name__} has no meaning in a kernel: {e!r}")

    def _write_binary(self, e: BinaryExpr) -> str:
        kind, dtype = type(e), dt.element_dtype(e.a.dtype)
        x, y = self.operand_text(e.a), self.operand_text(e.b)
        if kind in (FloorDiv, FloorMod) and dt.is_int(dtype):
            # C truncates quotients, which for non-negative numbers is the floor.
            plain = (
                is_nonnegative(e.a, self.nonnegative_vars)
                and isinstance(e.b, IntImm)
                and e.b.value > 0
            )
            if plain:
                return f"({x} {'/' if kind is FloorDiv else '%'} {y})"
        infix = kind in (Add, Sub, Mul) or (kind is Div and dt.is_float(dtype))
        if dtype in NATIVE_C_DTYPES and (infix or kind in BOOL_VALUED_OPS):
            return f"({x} {e.symbol} {y})"
        if dtype == "bool" and e.symbol in INFIX_SYMBOLS:
            return f"({x} {INFIX_SYMBOLS[e.symbol]} {y})"
        # The text names each operand twice: only an identifier is not evaluated twice.
        if (
            kind in (Min, Max)
            and dtype in NATIVE_C_DTYPES
            and dt.is_int(dtype)
            and _are_identifiers(x, y)
        ):
            before = f"{x} {'<' if kind is Min else '>'} {y}"
            return f"({self.syntax.conditional(before, x, y)})"
        return self.helpers.binary(kind, dtype, strip_parentheses(x), strip_parentheses(y))

    def _write_cast(self, source: str, target: str, x: str) -> str:
        if source == target:
            return x
        if target == "bool":
            return (
                f"({x} != 0)"
                if source not in ("bfloat16", "float16")
                else self._cast_helper_call(source, target, x)
            )
        # C defines conversions of integers; of floats that are out of range they are undefined.
        exact = dt.is_int(source) or source == "bool" or {source, target} == {"float32", "float64"}
        if exact and target not in ("float16", "bfloat16"):
            return self.syntax.cast(self.syntax.type(target), x)
        return self._cast_helper_call(source, target, x)

    def _cast_helper_call(self, source: str, target: str, x: str) -> str:
        return self.helpers.cast(source, target, strip_parentheses(x))

    def intrinsic(self, e: Intrinsic) -> str:
        """Return a call of a <math.h> function or of a helper function."""
        if e.op == "reinterpret":
            return self.write_reinterpret(e)
        argument, operands = (
            dt.element_dtype(e.args[0].dtype),
            [strip_parentheses(self.operand_text(a)) for a in e.args],
        )
        if (function := self.helpers.native_math(e.op, argument)) is not None:
            return f"{function}({', '.join(operands)})"
        return self.helpers.intrinsic(e.op, dt.element_dtype(e.dtype), argument, operands)

    def write_reinterpret(self, e: Intrinsic) -> str:
        """Return the bits of a lane as another type, or several contiguous elements as one wider
        value.
        """
        value, target = e.args[0], dt.element_dtype(e.dtype)
        if dt.lanes(value.dtype) == dt.lanes(e.dtype):
            return self.helpers.reinterpret(
                dt.element_dtype(value.dtype), target, self.operand_text(value)
            )
        index = _contiguous_ramp(e)
        if not isinstance(value, BufferLoad) or index is None:
            raise InternalError(f"c: lanes can only be taken together from memory: {e!r}")
        step = dt.lanes(value.dtype) // dt.lanes(e.dtype)
        lane = f" + lane * {step}" if dt.lanes(e.dtype) > 1 else ""
        position = self.bounds_checked_index(value.buffer, self.text(index.base) + lane)
        return self.unaligned_load(value.buffer, position, step, target)

    def unaligned_load(self, buffer: Buffer, index: str, count: int, target: str) -> str:
        """Return an unaligned load of `count` contiguous elements as one value."""
        return self.helpers.load(target, f"&{self.name(buffer)}[{index}]")

    def _write_shuffle(self, e: Intrinsic) -> str:
        """Return one lane of a shuffle of two named vectors."""
        one, two = e.args[:2]
        if not isinstance(one, Var) or not isinstance(two, Var):
            raise CompileError(f"c: name the vectors first (T.LetStmt) whose lanes move: {e!r}")
        order, lanes = shuffle_indices(e), dt.lanes(one.dtype)
        location = f"((const unsigned char[]){{{', '.join(map(str, order))}}})[lane]"
        a, b = (f"{self.names[v]}[{location}" for v in (one, two))
        return f"({location} < {lanes} ? {a}] : {b} - {lanes}])"

    def call_extern(self, e: Intrinsic) -> str:
        """Return a call of a C function by its symbol. A call with side effects goes into a
        variable, so that it is made once.
        """
        name = extern_symbol(e, "c")
        arguments = ", ".join(self.extern_argument(a) for a in e.args[1:])
        kinds = [None if isinstance(a, StringImm) else a.dtype for a in e.args[1:]]
        call = f"{self.extern(name, e.dtype, kinds)}({arguments})"
        return self._assign_temporary(e, call) if find_intrinsic(e.op).has_effects else call

    def extern(self, name: str, result: str, arguments: Sequence[str | None]) -> str:
        """Declare an external C function for these dtypes (None: a string) and return its
        C name.
        """
        raise CompileError(f"c: call_extern {name!r}: here is no C function to call")

    def extern_argument(self, a: PrimExpr) -> str:
        """Return an argument of a C function: a number, a string, or the address of an element."""
        if isinstance(a, StringImm):
            return c_string_literal(a.value)
        if isinstance(a, BufferAddress):
            offset = f" + ({self.text(a.indices[0])})" if a.indices else ""
            return f"(void *)({self.name(a.buffer)}{offset})"
        return strip_parentheses(self.operand_text(a))

    def call_packed(self, e: Intrinsic) -> str:
        """Raise InternalError: a packed call may fail and is a statement, not an expression."""
        raise InternalError(f"c: {e!r} has no place here")

    # conditionals

    def _write_if_then_else(self, e: Intrinsic) -> str:
        """Return `c ? a : b`, or emit an `if` where a side needs lines of its own."""
        condition = self.operand_text(e.args[0])
        sides = [self._write_branch(side) for side in e.args[1:]]
        if not any(lines for lines, _ in sides):
            return f"({self.syntax.conditional(condition, sides[0][1], sides[1][1])})"
        name = self.unique("t")
        self.emit_line(self.syntax.var(self.syntax.type(e.dtype), name))
        self.emit_line(f"if ({strip_parentheses(condition)}) {{")
        for n, (lines, text) in enumerate(sides):
            self.lines += lines
            self.emit_line(f"  {name} = {strip_parentheses(text)};")
            self.emit_line("}" if n else "} else {")
        return name

    def _write_branch(self, side: PrimExpr) -> tuple[list[str], str]:
        # Lines of a conditional side must not run before the test: they may read out of bounds.
        outer, self.lines = self.lines, []
        try:
            with self.indented():
                self._write_postorder(side)
                return self.lines, self.operand_text(side)
        finally:
            self.lines = outer

    # vectors and memory

    def _write_vector_reduce(self, e: VectorReduce) -> str:
        """Combine the halves of a vector until one lane is left, in the order of LLVM's
        reductions.
        """
        lanes, kind = dt.lanes(e.value.dtype), dt.element_dtype(e.dtype)
        name = self.unique("lanes")
        self.emit_line(self.syntax.var(self.syntax.type(kind), name, lanes))
        self.write_lane_loop(lanes, lambda: f"{name}[lane] = {self.text(e.value)};")
        combine = {"sum": Add, "prod": Mul, "max": Max, "min": Min}[e.kind]
        # The order of additions must equal LLVM's, or the two targets give different float sums.
        while lanes > 1 and lanes % 2 == 0:
            lanes //= 2
            self._write_halving_step(combine, kind, name, lanes)
        for i in range(1, lanes):
            value = self._combine(combine, kind, f"{name}[0]", f"{name}[{i}]")
            self.emit_line(f"{name}[0] = {value};")
        return f"{name}[0]"

    def _write_halving_step(self, kind: type[BinaryExpr], dtype: str, name: str, half: int) -> None:
        value = self._combine(kind, dtype, f"{name}[lane]", f"{name}[lane + {half}]")
        self.emit_line(self.syntax.for_header("int", "lane", "0", str(half)))
        self.emit_line(f"  {name}[lane] = {value};")
        self.emit_line("}")

    def _combine(self, kind: type[BinaryExpr], dtype: str, x: str, y: str) -> str:
        if dtype in NATIVE_C_DTYPES and kind in (Add, Mul):
            return f"{x} {kind.symbol} {y}"
        return self.helpers.binary(kind, dtype, x, y)

    def write_lane_loop(self, lanes: int, line: Callable[[], str]) -> None:
        """Emit a loop over lanes around one line."""
        self.emit_line(self.syntax.for_header("int", "lane", "0", str(lanes)))
        outer = self._memo
        # Only scalar values stay valid inside the loop: a cached vector text would refer to no
        # lane.
        scalars = {e: t for table in outer for e, t in table.items() if dt.lanes(e.dtype) == 1}
        self._memo = [scalars]
        self.depth += 1
        self.emit_line(line())
        self.depth -= 1
        self._memo = outer
        self.emit_line("}")

    def element_access(self, buffer: Buffer, index: str) -> str:
        """Return an element access; the current lane of it where the buffer holds vectors."""
        lane = "[lane]" if dt.lanes(buffer.dtype) > 1 else ""
        name = self.name(buffer)
        checked_index = self.bounds_checked_index(buffer, strip_parentheses(index))
        return f"{name}[{checked_index}]{lane}"

    def bounds_checked_index(self, buffer: Buffer, index: str) -> str:
        """Return the index of an access, bounds-checked if the target requests it."""
        return index

    def _write_load(self, e: BufferLoad) -> str:
        if len(e.indices) != 1:
            raise InternalError(f"c: access of {e.buffer.name!r}: flatten buffers first")
        check_lanes("c: the load of", e.buffer, e.indices[0], e.dtype)
        text = self.element_access(e.buffer, self.operand_text(e.indices[0]))
        return f"({text} != 0)" if dt.element_dtype(e.dtype) == "bool" else text

    def record_nonnegative(self, var: Var, value: PrimExpr) -> None:
        """Record that a variable is non-negative if its value provably is."""
        if isinstance(var, SizeVar) or is_nonnegative(value, self.nonnegative_vars):
            self.nonnegative_vars.add(var)


def _contiguous_ramp(e: PrimExpr) -> Ramp | None:
    """Return the Ramp of a reinterpreted contiguous load (one wider value), or None."""
    if not isinstance(e, Intrinsic) or e.op != "reinterpret":
        return None
    value = e.args[0]
    index = value.indices[0] if isinstance(value, BufferLoad) else None
    return index if isinstance(index, Ramp) and dt.lanes(value.dtype) != dt.lanes(e.dtype) else None


def _is_identifier(text: str) -> bool:
    return text.replace("[lane]", "").isidentifier() or text.isdigit()


def _are_identifiers(*texts: str) -> bool:
    return all(_is_identifier(t) for t in texts)


def _format_sum(a: str, b: str) -> str:
    return b if a == "0" else f"({a} + {b})"


def _format_product(a: str, b: str) -> str:
    return a if b == "1" else f"{a} * {b}"


def strip_parentheses(text: str) -> str:
    """Return the text without parentheses that enclose all of it."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for index, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            # `(-x)` keeps its parentheses: `- -x` must not become `--x`.
            return text[1:-1] if index == len(text) - 1 and not text.startswith("(-") else text
    return text
