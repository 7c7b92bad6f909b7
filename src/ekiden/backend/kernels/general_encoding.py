"""Instruction encoding of general forms: sizes computed per call, and the code of a stage, whose
instructions process strips of elements (runtime/general/general.h).

    c[i, j] = a[i, j] * 2 + 1, over n x 4

    sizes   s0 = 0, s1 = 1, s2 = 4
    loads   of a: a step of s2 for i and of s1 for j, offset s0
    code    r0 = load 0; r1 = const 2.0; r2 = mul r0 r1; r3 = const 1.0; r0 = add r2 r3
    result  r0

What is of symbols and numbers alone is a size, computed once per call; of an index, what is linear
in the axes goes into the steps of its load, so that most loads take one instruction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
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
)
from ekiden.ir.prim_visitor import children, post_order, unvisited_post_order


class NoGeneralFormError(Exception):
    """Exception that states why a kernel has no general form."""


# In the order of the enumerations of general.h.
GENERAL_ELEMENT_DTYPES = ("float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8",
                          "uint16",
            "uint32", "float16", "bfloat16")  # fmt: skip
HALF_PRECISION_DTYPES = ("float16", "bfloat16")
FLOAT32_REGISTER, FLOAT64_REGISTER, INT64_REGISTER = range(3)
SIZE_OP_CONST, SIZE_OP_SYMBOL = 0, 1
SIZE_OP_NUMBERS: dict[type[PrimExpr], int] = {
    kind: number
    for number, kind in enumerate(
        (Add, Sub, Mul, Div, FloorDiv, FloorMod, Min, Max, EQ, NE, LT, LE, GT, GE, And, Or), 2
    )
}
SIZE_OP_NOT, SIZE_OP_SELECT = 18, 19
GENERAL_OPCODES = (
    "const", "size", "axis", "load", "add", "sub", "mul", "div", "floordiv", "floormod", "min",
    "max", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "select", "to_f32", "to_f64",
    "to_int", "wrap", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "sin", "cos", "pow",
    "abs", "floor", "ceil", "round", "trunc", "isnan", "isinf", "fma", "bitwise_and", "bitwise_or",
    "bitwise_xor",
)  # fmt: skip
GENERAL_OPCODE_NUMBERS = {name: number for number, name in enumerate(GENERAL_OPCODES)}
BINARY_OPCODES: dict[type[PrimExpr], str] = {
    Add: "add", Sub: "sub", Mul: "mul", Div: "div", FloorDiv: "floordiv", FloorMod: "floormod",
    Min: "min", Max: "max", EQ: "eq", NE: "ne", LT: "lt", LE: "le", GT: "gt", GE: "ge",
    And: "and", Or: "or",
}  # fmt: skip
FLOAT_ONLY_OPS = frozenset(
    (
        "exp",
        "log",
        "sqrt",
        "rsqrt",
        "tanh",
        "erf",
        "sigmoid",
        "sin",
        "cos",
        "pow",
        "floor",
        "ceil",
        "round",
        "trunc",
        "isnan",
        "isinf",
        "fma",
    )
)
INTEGER_ONLY_OPS = frozenset(("bitwise_and", "bitwise_or", "bitwise_xor"))
HALF_EXACT_OPS = frozenset(("min", "max", "abs", "floor", "ceil", "round", "trunc"))
"""Operations that are exact on half-precision floats."""
CONSTANT_OPS = ("const", "size")
OP_ALIASES = {"nearbyint": "round"}
OVERFLOWING_OPS = frozenset(("add", "sub", "mul", "div", "abs"))
"""Operations that may leave the range of a narrow integer."""
STAGE_LIMITS = {"axes": 16, "loads": 1024, "results": 16, "instructions": 4096, "registers": 512}
MAX_SYMBOLS = 256
MAX_SHIFT = 63
"""Exclusive bound of right shifts that are lowered to floor divisions by a power of two."""


def element_type_number(dtype: str) -> int:
    """Return the number of an element type. Raises NoGeneralFormError if the interpreter
    lacks it.
    """
    if dtype not in GENERAL_ELEMENT_DTYPES:
        raise NoGeneralFormError(f"elements of {dtype}")
    return GENERAL_ELEMENT_DTYPES.index(dtype)


def register_kind(dtype: str) -> int:
    """Return the register kind of a dtype."""
    number = element_type_number(dtype)
    return FLOAT32_REGISTER if dtype in HALF_PRECISION_DTYPES else min(number, INT64_REGISTER)


class SizeTable:
    """Integers that are computed once per call from the arguments' dimensions, without
    duplicates.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        """Encoded size operations with operands as row numbers (for a constant, its value)."""
        self._interned_rows: dict[tuple[int, int, int, int], int] = {}
        self._symbols: dict[Var, int] = {}
        self._are_sizes: dict[int, bool] = {}
        """Cached results of `has` for expressions that are kept alive."""
        self._keepalive: list[PrimExpr] = []

    def bind(self, symbol: Var) -> bool:
        """Bind a symbol to the next argument dimension; return whether it is new. Raises
        NoGeneralFormError beyond MAX_SYMBOLS.
        """
        if symbol in self._symbols:
            return False
        if len(self._symbols) == MAX_SYMBOLS:
            raise NoGeneralFormError(f"more than {MAX_SYMBOLS} symbols")
        self._symbols[symbol] = len(self._symbols)
        self._are_sizes.clear()
        return True

    def constant(self, value: int) -> int:
        """Return a constant."""
        return self._intern_row(SIZE_OP_CONST, value)

    def add(self, a: int, b: int) -> int:
        """Return a sum of sizes."""
        return self._fold_constants(SIZE_OP_NUMBERS[Add], a, b, lambda x, y: x + y)

    def mul(self, a: int, b: int) -> int:
        """Return a product of sizes."""
        return self._fold_constants(SIZE_OP_NUMBERS[Mul], a, b, lambda x, y: x * y)

    def num_elements(self, shape: Sequence[PrimExpr]) -> int:
        """Return the number of elements of a shape."""
        total = self.constant(1)
        for dim in shape:
            total = self.mul(total, self.size_number(dim))
        return total

    def strides(self, shape: Sequence[PrimExpr]) -> list[int]:
        """Return the row-major strides of a shape."""
        strides = [self.constant(1)]
        for dim in reversed(shape[1:]):
            strides.append(self.mul(strides[-1], self.size_number(dim)))
        return strides[: len(shape)][::-1]

    def has(self, expr: PrimExpr) -> bool:
        """Return whether an expression consists of symbols and numbers only."""
        is_size_of = self._are_sizes
        for node in unvisited_post_order((expr,), is_size_of):
            if isinstance(node, Var):
                is_size = node in self._symbols
            else:
                is_size = isinstance(node, (IntImm, Not, Select)) or type(node) in SIZE_OP_NUMBERS
            is_size_of[id(node)] = is_size and all(is_size_of[id(c)] for c in children(node))
            self._keepalive.append(node)
        return is_size_of[id(expr)]

    def size_number(self, expr: PrimExpr) -> int:
        """Return the number of a size. Raises NoGeneralFormError for another expression."""
        if isinstance(expr, (IntImm, Var)):
            return self._encode_size(expr, ())
        numbers: dict[int, int] = {}
        for node in post_order(expr):
            numbers[id(node)] = self._encode_size(node, [numbers[id(c)] for c in children(node)])
        return numbers[id(expr)]

    def _encode_size(self, expr: PrimExpr, inside: Sequence[int]) -> int:
        match expr:
            case IntImm(value=value):
                return self.constant(int(value))
            case Var():
                if expr not in self._symbols:
                    raise NoGeneralFormError(f"a size that depends on {expr.name}")
                return self._intern_row(SIZE_OP_SYMBOL, self._symbols[expr])
            case Add():
                return self.add(*inside)
            case Mul():
                return self.mul(*inside)
            case Not():
                return self._intern_row(SIZE_OP_NOT, *inside)
            case Select():
                return self._intern_row(SIZE_OP_SELECT, *inside)
        if type(expr) not in SIZE_OP_NUMBERS:
            raise NoGeneralFormError(f"a size by {type(expr).__name__}")
        return self._intern_row(SIZE_OP_NUMBERS[type(expr)], *inside)

    def _fold_constants(self, op: int, a: int, b: int, by: Callable[[int, int], int]) -> int:
        lhs, rhs = self.rows[a], self.rows[b]
        if lhs[0] == rhs[0] == SIZE_OP_CONST:
            return self.constant(by(lhs[1], rhs[1]))
        return self._intern_row(op, a, b)

    def _intern_row(self, op: int, a: int, b: int = 0, c: int = 0) -> int:
        row = (op, a, b, c)
        if row not in self._interned_rows:
            self._interned_rows[row] = len(self.rows)
            self.rows.append(row)
        return self._interned_rows[row]

    def encode(self) -> list[int]:
        """Encode the sizes, preceded by their count."""
        return [len(self.rows), *(word for row in self.rows for word in row)]


LoadAddress = tuple[list[int], int, list[tuple[PrimExpr, int]]]
"""Stride per axis, offset, and further index expressions with their strides."""


class CodeBuilder:
    """Builder of the code of a stage over its axes, with virtual registers that are allocated at
    the end.
    """

    def __init__(
        self, axes: Sequence[Var], sizes: SizeTable, buffers: Mapping[te.Tensor, int]
    ) -> None:
        self.axes = {axis: n for n, axis in enumerate(axes)}
        self.sizes = sizes
        self.buffers = buffers
        self.loads: list[list[int]] = []
        """Loads: buffer, whether indices are checked, stride per axis, offset."""
        self.rows: list[list[int]] = []
        """Instructions as (operation, kind, result, operands), with row numbers until registers are
        allocated.
        """
        self._instruction_of_expr: dict[int, int] = {}
        self._addresses: dict[int, LoadAddress] = {}
        self._depths: dict[int, int] = {}
        self._interned_instructions: dict[tuple[int, ...], int] = {}
        """Interned instructions, and loads after a -1."""
        self._keepalive: list[PrimExpr] = []

    def encode(self, results: Sequence[PrimExpr]) -> list[int]:
        """Encode the code that computes some values. Raises NoGeneralFormError beyond
        STAGE_LIMITS.
        """
        instructions = [self.emit_value(result) for result in results]
        registers, count = self._allocate_registers(instructions)
        counts = {"axes": len(self.axes), "loads": len(self.loads), "results": len(results),
                  "instructions": len(self.rows), "registers": count}  # fmt: skip
        for what, number in counts.items():
            if number > STAGE_LIMITS[what]:
                raise NoGeneralFormError(f"{number} {what}")
        loads = [word for load in self.loads for word in load]
        rows = [word for row in self.rows for word in row]
        return [len(self.loads), *loads, count, len(self.rows), *rows, *registers]

    def emit_value(self, expr: PrimExpr) -> int:
        """Emit an expression, operands first, and return its instruction."""
        stack = [(expr, False)]
        while stack:
            node, is_ready = stack.pop()
            if id(node) in self._instruction_of_expr:
                continue
            if is_ready:
                self._instruction_of_expr[id(node)] = self._emit_node(node)
                continue
            self._keepalive.append(node)
            stack.append((node, True))
            # what needs most registers comes first, while few others are held
            # Deepest operand first: registers needed stay at the Sethi-Ullman bound rather than
            # growing with the expression.
            needs = sorted(self._dependencies(node), key=self._expr_depth)
            stack += [(inner, False) for inner in needs]
        return self._instruction_of_expr[id(expr)]

    def _expr_depth(self, expr: PrimExpr) -> int:
        """Return the depth of an expression."""
        if id(expr) not in self._depths:
            for node in unvisited_post_order((expr,), self._depths):
                inside = [self._depths[id(c)] for c in children(node)]
                self._depths[id(node)] = 1 + max(inside, default=0)
            self._keepalive.append(expr)
        return self._depths[id(expr)]

    def _dependencies(self, expr: PrimExpr) -> list[PrimExpr]:
        """Return the operands that must be emitted before an expression."""
        if isinstance(expr, te.ProducerLoad):
            address = self.address(expr.indices, expr.producer.whole_shape)
            self._addresses[id(expr)] = address
            return [term for term, _ in address[2]]
        if self._is_size(expr):
            return []
        return list(children(expr))

    def _is_size(self, expr: PrimExpr) -> bool:
        is_whole = dt.is_int(expr.dtype) and not isinstance(expr, (Cast, Intrinsic))
        return is_whole and self.sizes.has(expr)

    def address(self, indices: Sequence[PrimExpr], shape: Sequence[PrimExpr]) -> LoadAddress:
        """Return the address of an element in a buffer of a shape."""
        steps = [self.sizes.constant(0)] * len(self.axes)
        offset = self.sizes.constant(0)
        more: list[tuple[PrimExpr, int]] = []
        stack = self._merge_address_terms(
            list(zip(indices, self.sizes.strides(shape), strict=True))
        )
        while stack:
            expr, scale = stack.pop()
            match expr:
                case Var() if expr in self.axes:
                    position = self.axes[expr]
                    steps[position] = self.sizes.add(steps[position], scale)
                case Add(a=a, b=b):
                    stack += [(a, scale), (b, scale)]
                case Sub(a=a, b=b):
                    stack += [(a, scale), (b, self.sizes.mul(scale, self.sizes.constant(-1)))]
                case Mul(a=a, b=b) if self.sizes.has(b):
                    stack.append((a, self.sizes.mul(scale, self.sizes.size_number(b))))
                case Mul(a=a, b=b) if self.sizes.has(a):
                    stack.append((b, self.sizes.mul(scale, self.sizes.size_number(a))))
                case _ if self.sizes.has(expr):
                    offset = self.sizes.add(
                        offset, self.sizes.mul(scale, self.sizes.size_number(expr))
                    )
                case _:
                    more.append((expr, scale))
        return steps, offset, more

    def _merge_address_terms(self, terms: list[tuple[PrimExpr, int]]) -> list[tuple[PrimExpr, int]]:
        """Merge the address terms of a quotient and its remainder where they are contiguous: x // 8
        * 8 + x % 8 is x.
        """
        merged: list[tuple[PrimExpr, int]] = []
        for expr, scale in terms:
            if (
                isinstance(expr, FloorMod)
                and merged
                and self._is_exact_quotient(*merged[-1], expr, scale)
            ):
                merged[-1] = (expr.a, scale)
            else:
                merged.append((expr, scale))
        return merged

    def _is_exact_quotient(
        self, outer: PrimExpr, wide: int, remainder: FloorMod, scale: int
    ) -> bool:
        """Return whether a scaled quotient and a scaled remainder recombine to one scaled
        number.
        """
        if not isinstance(outer, FloorDiv) or outer.a is not remainder.a:
            return False
        if outer.b is not remainder.b and not (
            isinstance(remainder.b, IntImm) and remainder.b == outer.b
        ):
            return False
        is_size = self.sizes.has(remainder.b)
        return is_size and self.sizes.mul(scale, self.sizes.size_number(remainder.b)) == wide

    # Instructions --------------------------------------------------------------------------------

    def _append(self, op: str, kind: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        row_index = self._interned_instructions.setdefault(
            (GENERAL_OPCODE_NUMBERS[op], kind, a, b, c), len(self.rows)
        )
        if row_index == len(self.rows):
            self.rows.append([GENERAL_OPCODE_NUMBERS[op], kind, row_index, a, b, c])
        return row_index

    def _emit_node(self, expr: PrimExpr) -> int:
        match expr:
            case te.ProducerLoad():
                return self._emit_load(expr)
            case IntImm(value=value):
                element_type_number(expr.dtype)
                return self._append("const", INT64_REGISTER, int(value))
            case FloatImm(value=value):
                row_index = self._append("const", register_kind(expr.dtype), _float64_bits(value))
                return self._wrap_to_dtype("const", row_index, expr.dtype)
            case Var() if expr in self.axes:
                return self._append("axis", INT64_REGISTER, self.axes[expr])
            case _ if self._is_size(expr):
                return self._append("size", INT64_REGISTER, self.sizes.size_number(expr))
            case Cast():
                return self._emit_cast(
                    self._instruction_of_expr[id(expr.value)], expr.value.dtype, expr.dtype
                )
            case Not(a=a):
                return self._append("not", INT64_REGISTER, self._instruction_of_expr[id(a)])
            case Select(condition=c, true_value=a, false_value=b):
                kind = register_kind(expr.dtype)
                return self._append(
                    "select", kind, *(self._instruction_of_expr[id(x)] for x in (c, a, b))
                )
            case Intrinsic():
                return self._emit_intrinsic(expr)
            case BinaryExpr():
                return self._emit_binary(expr)
        raise NoGeneralFormError(f"an expression of {type(expr).__name__}")

    def _emit_load(self, expr: te.ProducerLoad) -> int:
        if expr.producer not in self.buffers:
            raise NoGeneralFormError(f"{expr.producer.name} is read before it is there")
        steps, offset, more = self._addresses[id(expr)]
        buffer = self.buffers[expr.producer]
        load = [buffer, 1, *steps, offset]
        number, by = self._interned_instructions.setdefault((-1, *load), len(self.loads)), -1
        if number == len(self.loads):
            self.loads.append(load)
        for term_expr, scale in more:
            term = self._append(
                "mul",
                INT64_REGISTER,
                self._instruction_of_expr[id(term_expr)],
                self._append("size", INT64_REGISTER, scale),
            )
            by = term if by < 0 else self._append("add", INT64_REGISTER, by, term)
        return self._append("load", register_kind(expr.dtype), number, by)

    def _emit_binary(self, expr: BinaryExpr) -> int:
        if type(expr) not in BINARY_OPCODES:
            raise NoGeneralFormError(f"an expression of {type(expr).__name__}")
        op, kind = BINARY_OPCODES[type(expr)], register_kind(expr.a.dtype)
        if op in ("floordiv", "floormod") and kind != INT64_REGISTER:
            raise NoGeneralFormError("a floor division of floats")
        row_index = self._append(
            op, kind, self._instruction_of_expr[id(expr.a)], self._instruction_of_expr[id(expr.b)]
        )
        return self._wrap_to_dtype(op, row_index, expr.dtype)

    def _wrap_to_dtype(self, op: str, row_index: int, dtype: str) -> int:
        """Wrap a number to its dtype: an integer to its range, a half float rounded."""
        if dtype in HALF_PRECISION_DTYPES and op not in HALF_EXACT_OPS:
            return self._append("wrap", FLOAT32_REGISTER, row_index, element_type_number(dtype))
        if op in OVERFLOWING_OPS and register_kind(dtype) == INT64_REGISTER and dtype != "int64":
            return self._append("wrap", INT64_REGISTER, row_index, element_type_number(dtype))
        return row_index

    def _emit_cast(self, row_index: int, source: str, target: str) -> int:
        before, after = register_kind(source), register_kind(target)
        if before == after:
            if source == target or (
                after != INT64_REGISTER and target not in HALF_PRECISION_DTYPES
            ):
                return row_index
            return self._append("wrap", after, row_index, element_type_number(target))
        if after == INT64_REGISTER:
            return self._append("to_int", before, row_index, element_type_number(target))
        row_index = self._append(
            "to_f32" if after == FLOAT32_REGISTER else "to_f64", before, row_index
        )
        return (
            self._wrap_to_dtype("cast", row_index, target)
            if target in HALF_PRECISION_DTYPES
            else row_index
        )

    def _emit_intrinsic(self, expr: Intrinsic) -> int:
        name = OP_ALIASES.get(expr.op, expr.op)
        args = [self._instruction_of_expr[id(a)] for a in expr.args]
        if name == "likely":
            return args[0]
        if name == "if_then_else":
            return self._append("select", register_kind(expr.dtype), *args)
        kind = register_kind(expr.args[0].dtype)
        by = expr.args[1] if name == "right_shift" else None
        if isinstance(by, IntImm) and 0 <= by.value < MAX_SHIFT and kind == INT64_REGISTER:
            return self._append(
                "floordiv",
                INT64_REGISTER,
                args[0],
                self._append("const", INT64_REGISTER, 1 << by.value),
            )
        fits = (
            name == "abs"
            or (name in FLOAT_ONLY_OPS and kind != INT64_REGISTER)
            or (name in INTEGER_ONLY_OPS and kind == INT64_REGISTER)
        )
        if not fits:
            raise NoGeneralFormError(f"{expr.op} of {expr.args[0].dtype}")
        return self._wrap_to_dtype(name, self._append(name, kind, *args), expr.dtype)

    # Registers -----------------------------------------------------------------------------------

    def _allocate_registers(self, results: Sequence[int]) -> tuple[list[int], int]:
        """Allocate registers by linear scan; return those of the results and the count. No
        instruction writes a register that it reads, and constants keep theirs: they are written
        once for all strips.
        """
        last = {row_index: len(self.rows) for row_index in results}
        for index, row in enumerate(self.rows):
            for operand_column in _operand_columns(row):
                last[row[operand_column]] = max(last.get(row[operand_column], 0), index)
        free: list[int] = []
        home: dict[int, int] = {}
        constant = {
            index for index, row in enumerate(self.rows) if GENERAL_OPCODES[row[0]] in CONSTANT_OPS
        }
        count = 0
        for index, row in enumerate(self.rows):
            if free and index not in constant:
                home[index] = free.pop()
            else:
                home[index], count = count, count + 1
            operands = {row[column] for column in _operand_columns(row)}
            for operand_column in _operand_columns(row):
                row[operand_column] = home[row[operand_column]]
            row[2] = home[index]
            free += [home[o] for o in operands if last[o] == index and o not in constant]
            if index not in last and index not in constant:
                free.append(home[index])
        return [home[result_row] for result_row in results], count


def _operand_columns(row: Sequence[int]) -> tuple[int, ...]:
    """Return the instruction fields that hold operand registers."""
    name = GENERAL_OPCODES[row[0]]
    if name in CONSTANT_OPS or name == "axis":
        return ()
    if name == "load":
        return (4,) if row[4] >= 0 else ()
    if name in ("select", "fma"):
        return (3, 4, 5)
    if name in BINARY_OPCODES.values() or name == "pow" or name in INTEGER_ONLY_OPS:
        return (3, 4)
    return (3,)


def _float64_bits(value: float) -> int:
    """Return the bits of a double."""
    return int(struct.unpack("<q", struct.pack("<d", float(value)))[0])


__all__ = ["CodeBuilder", "NoGeneralFormError", "SizeTable", "element_type_number"]
