"""Printing of scalar expressions and names as Python text.

A scalar sub-expression that is long and used more than once, or nested too deep for Python's
parser, is named on a line of its own: `t = T.meta_var(...)`.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Mapping, Sequence

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import INTRINSICS, find_intrinsic, infer_intrinsic_dtype
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    AnyDim,
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
    StringImm,
    Sub,
    Var,
    is_const,
)
from ekiden.ir.prim_visitor import children, post_order
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.access_regions import BufferRegion
from ekiden.tir.comm_reducer import CommReducer
from ekiden.tir.expr import Broadcast, Buffer, BufferAddress, BufferLoad, Ramp, VectorReduce

_MAX_SHARED_EXPR_CHARS = 100
"""Maximum length of a repeated subexpression that is printed inline."""
_MAX_EXPR_CHARS = 1000
"""Maximum length of any expression that is printed inline."""
_MAX_BRACKET_DEPTH = 40
"""Maximum nesting of brackets in a printed expression; Python's parser accepts 200."""

# fmt: off
_INFIX_OPERATORS: dict[type[BinaryExpr], tuple[str, int]] = {
    Or: ("or", 1), And: ("and", 2),
    EQ: ("==", 4), NE: ("!=", 4), LT: ("<", 4), LE: ("<=", 4), GT: (">", 4), GE: (">=", 4),
    Add: ("+", 5), Sub: ("-", 5),
    Mul: ("*", 6), Div: ("/", 6), FloorDiv: ("//", 6), FloorMod: ("%", 6),
}
# fmt: on
_NOT_PRECEDENCE, _ATOM_PRECEDENCE = 3, 9
_CALL_NAMES: dict[type[BinaryExpr], str] = {Min: "min", Max: "max"}
RESERVED_NAMES = frozenset(("T", "I", "pass", "range", *keyword.kwlist))


@dataclass(frozen=True, slots=True)
class _PrintedExpr:
    """The text of an expression with its operator precedence and its depth of nested brackets."""

    text: str
    precedence: int = _ATOM_PRECEDENCE
    depth: int = 0

    def parenthesized(self, level: int) -> str:
        """Return the text, in parentheses where the surrounding precedence `level` is higher."""
        return self.text if self.precedence >= level else f"({self.text})"


def _number_literal(e: IntImm | FloatImm) -> str:
    """Return the number as Python writes it."""
    if e.dtype == "bool":
        return str(bool(e.value))
    if isinstance(e, IntImm):
        return str(int(e.value))
    return repr(float(e.value)) if math.isfinite(e.value) else f'T.{e.dtype}("{e.value}")'


def quote_string(text: str) -> str:
    """Return a string literal, in double quotes where that needs no escapes."""
    plain = repr(text)
    return f'"{plain[1:-1]}"' if plain[0] == "'" and '"' not in plain else plain


def constant_text(e: IntImm | FloatImm) -> str:
    """Return the text of a constant on its own: plain where its dtype is the default one."""
    plain = e.dtype in ("int64", "bool") if isinstance(e, IntImm) else e.dtype == "float32"
    text = _number_literal(e)
    return text if plain or text.startswith("T.") else f"T.{e.dtype}({text})"


class NameScope:
    """A table of unique names of the variables and buffers in scope."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._used_names: set[str] = set()
        self._next_suffix: dict[str, int] = {}
        """First number to try as a suffix, by name hint."""
        self._scope_stack: list[list[tuple[object, str, int, str | None]]] = [[]]
        """Names assigned in each open scope: (symbol, hint, number, name in the outer scope)."""

    def name_of(self, binding: Var | Buffer) -> str:
        """Return the name of a variable or buffer, assigning one in this scope where it
        has none.
        """
        return self._names.get(binding) or self.define(binding, binding.name)

    def lookup(self, binding: object) -> str | None:
        """Return the name in scope, or None."""
        return self._names.get(binding)

    def define(self, binding: object, hint: str) -> str:
        """Assign a name based on the hint, made a valid identifier and numbered where it
        is in use.
        """
        clean = "".join(c if c.isalnum() or c == "_" else "_" for c in hint)
        if not clean or clean[0].isdigit() or clean in RESERVED_NAMES or not clean.isidentifier():
            clean = f"v_{clean}" if clean.isascii() else "v"
        name, number = clean, 0
        if name in self._used_names:
            number = self._next_suffix.get(clean, 1)
            while (name := f"{clean}_{number}") in self._used_names:
                number += 1
            self._next_suffix[clean] = number + 1
        self._scope_stack[-1].append((binding, clean, number, self._names.get(binding)))
        self._names[binding] = name
        self._used_names.add(name)
        return name

    def push_scope(self) -> None:
        """Open a scope of names."""
        self._scope_stack.append([])

    def pop_scope(self) -> None:
        """Close the innermost scope: its names become free again."""
        for binding, clean, number, outside in reversed(self._scope_stack.pop()):
            self._used_names.discard(self._names.pop(binding))
            if outside is not None:
                self._names[binding] = outside
            if number:
                self._next_suffix[clean] = min(self._next_suffix[clean], number)


class ExpressionPrinter:
    """A printer of expressions; lines that name long shared sub-expressions are collected in
    `preceding_lines`.
    """

    def __init__(self, names: NameScope) -> None:
        self.names = names
        self.preceding_lines: list[str] = []
        """Lines to print above the current statement."""

    def print_expr(self, e: PrimExpr, level: int = 0) -> str:
        """Return the text of a standalone expression."""
        if isinstance(e, Var):
            return self.names.name_of(e)
        if isinstance(e, (IntImm, FloatImm)):
            return constant_text(e)
        order = post_order(e)
        # An expression of up to 30 nodes never exceeds the limit of shared text by much; the count
        # of uses is skipped.
        shared = _shared_nodes(order) if len(order) > 30 else frozenset()
        printed_by_id: dict[int, _PrintedExpr] = {}
        for sub_expr in order:
            name_in_scope = self.names.lookup(sub_expr)
            if name_in_scope is not None:
                printed_by_id[id(sub_expr)] = _PrintedExpr(name_in_scope)
                continue
            printed = self._print_node(sub_expr, printed_by_id)
            size = len(printed.text)
            if sub_expr is not e and (
                size > _MAX_EXPR_CHARS
                or printed.depth > _MAX_BRACKET_DEPTH
                or (size > _MAX_SHARED_EXPR_CHARS and id(sub_expr) in shared)
            ):
                name = self.names.define(sub_expr, "t")
                self.preceding_lines.append(f"{name} = T.meta_var({printed.text})")
                printed = _PrintedExpr(name)
            printed_by_id[id(sub_expr)] = printed
        return printed_by_id[id(e)].parenthesized(level)

    def print_exprs(self, values: Sequence[PrimExpr]) -> str:
        """Return the expressions' texts, separated by commas."""
        return ", ".join([self.print_expr(v) for v in values])

    def print_shape(self, values: Sequence[PrimExpr]) -> str:
        """Return a tuple literal of expressions."""
        return (
            f"({self.print_exprs(values)},)"
            if len(values) == 1
            else f"({self.print_exprs(values)})"
        )

    def print_element(self, buffer: Buffer, indices: Sequence[PrimExpr], dtype: str) -> str:
        """Return `A[i, j]`, or `A.bytes[i]` for a byte access to a small type."""
        return f"{self._print_accessed_buffer(buffer, dtype)}[{self.print_exprs(indices) or '()'}]"

    def _print_accessed_buffer(self, buffer: Buffer, dtype: str) -> str:
        as_bytes = (
            dt.is_byte_stored(dt.element_dtype(buffer.dtype)) and dt.element_dtype(dtype) == "uint8"
        )
        return f"{self.names.name_of(buffer)}{'.bytes' if as_bytes else ''}"

    def print_typed(self, e: PrimExpr, dtype: str) -> str:
        """Return the text of a value in a context that would type a number as `dtype`."""
        is_plain = isinstance(e, (IntImm, FloatImm)) and e.dtype == dtype
        return _number_literal(e) if is_plain else self.print_expr(e)  # type: ignore[arg-type]

    def _print_node(self, e: PrimExpr, printed_by_id: Mapping[int, _PrintedExpr]) -> _PrintedExpr:
        match e:
            case Var():
                return _PrintedExpr(self.names.name_of(e))
            case IntImm() | FloatImm():
                return _PrintedExpr(constant_text(e))
            case BinaryExpr():
                return self._print_binary(e, printed_by_id)
            case Not():
                inner = printed_by_id[id(e.a)]
                if is_const(e.a):
                    return _PrintedExpr(f"T.Not({inner.text})")
                return _PrintedExpr(
                    f"not {inner.parenthesized(_NOT_PRECEDENCE)}", _NOT_PRECEDENCE, inner.depth + 1
                )
            case BufferLoad():
                indices_or_operands = [printed_by_id[id(i)] for i in e.indices]
                inside = ", ".join([p.text for p in indices_or_operands]) or "()"
                owner = self._print_accessed_buffer(e.buffer, e.dtype)
                return _PrintedExpr(
                    f"{owner}[{inside}]", _ATOM_PRECEDENCE, _max_bracket_depth(indices_or_operands)
                )
            case _:
                indices_or_operands = [printed_by_id[id(c)] for c in children(e)]
                return _PrintedExpr(
                    self._print_call(e, [p.text for p in indices_or_operands]),
                    _ATOM_PRECEDENCE,
                    _max_bracket_depth(indices_or_operands),
                )

    def _print_binary(
        self, e: BinaryExpr, printed_by_id: Mapping[int, _PrintedExpr]
    ) -> _PrintedExpr:
        a, b = printed_by_id[id(e.a)], printed_by_id[id(e.b)]
        depth = max(a.depth, b.depth) + 1
        kind = type(e)
        if kind in _CALL_NAMES:
            return _PrintedExpr(
                f"T.{_CALL_NAMES[kind]}({a.text}, {b.text})", _ATOM_PRECEDENCE, depth
            )
        # An infix operator between two constants would be folded when the text is parsed.
        if (is_const(e.a) and is_const(e.b)) or (kind is Div and not dt.is_float(e.dtype)):
            name = "truncdiv" if kind is Div else kind.__name__
            return _PrintedExpr(f"T.{name}({a.text}, {b.text})", _ATOM_PRECEDENCE, depth)
        symbol, level = _INFIX_OPERATORS[kind]
        # Python chains comparisons: (a < b) == c needs its parentheses.
        left_level = level + 1 if level == 4 else level
        first = self._print_operand(e.a, a, e.b, left_level)
        return _PrintedExpr(
            f"{first} {symbol} {self._print_operand(e.b, b, e.a, level + 1)}", level, depth
        )

    def _print_operand(
        self, e: PrimExpr, printed: _PrintedExpr, sibling: PrimExpr, level: int
    ) -> str:
        """Return an operand's text; a number next to an operand of its dtype needs no dtype of its
        own.
        """
        if isinstance(e, (IntImm, FloatImm)) and e.dtype == sibling.dtype:
            return _number_literal(e)
        return printed.parenthesized(level)

    def _print_call(self, e: PrimExpr, x: list[str]) -> str:
        match e:
            case Select():
                return f"T.Select({x[0]}, {x[1]}, {x[2]})"
            case Cast():
                return f'T.Cast("{e.dtype}", {x[0]})'
            case Intrinsic():
                if find_intrinsic(e.op).is_typed:
                    return f'T.{e.op}("{e.dtype}", {", ".join(x)})'
                # A user's intrinsic is no attribute of T, and nothing infers its dtype.
                is_builtin = e.op in INTRINSICS
                if is_builtin and e.dtype == infer_intrinsic_dtype(e.op, e.args):
                    return f"T.{e.op}({', '.join(x)})"
                return (
                    f"T.call_intrin({', '.join([quote_string(e.dtype), quote_string(e.op), *x])})"
                )
            case Ramp():
                return f"T.Ramp({x[0]}, {x[1]}, {e.lanes})"
            case Broadcast():
                return f"T.Broadcast({x[0]}, {e.lanes})"
            case VectorReduce():
                return f'T.VectorReduce("{e.kind}", {x[0]})'
            case BufferAddress():
                return self._print_address(e)
            case StringImm():
                return quote_string(e.value)
            case AnyDim():
                return f'T.Any("{e.dtype}")'
            case _:
                return f"T.{type(e).__name__}({', '.join(x)})"

    def _print_address(self, e: BufferAddress) -> str:
        name = self.names.name_of(e.buffer)
        if not e.indices and e.access == "rw":
            return name
        region = (
            f", {self.print_shape(e.indices)}, {self.print_shape(e.extents)}" if e.indices else ""
        )
        return f'{name}.access_ptr("{e.access}"{region})'

    def print_attribute(self, value: object) -> str:
        """Return the value of an attribute or annotation as a Python literal."""
        if isinstance(value, PrimExpr):
            return self.print_expr(value)
        if isinstance(value, (tuple, list)):
            inside = ", ".join(map(self.print_attribute, value))
            return (
                f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
            )
        if isinstance(value, Mapping):
            return self.print_dict(value)
        if isinstance(value, CommReducer):
            return self.print_reducer(value)
        return quote_string(value) if isinstance(value, str) else repr(value)

    def print_dict(self, values: Mapping[str, object]) -> str:
        """Return a dictionary literal."""
        items = (f"{quote_string(k)}: {self.print_attribute(v)}" for k, v in values.items())
        return f"{{{', '.join(items)}}}"

    def print_reducer(self, reducer: CommReducer) -> str:
        """Return a reducer as the call that constructs it; its variables are parameters of a lambda
        and take fresh names."""
        self.names.push_scope()
        parameters = [self.names.define(v, v.name) for v in (*reducer.lhs, *reducer.rhs)]
        results = ", ".join(map(self.print_expr, reducer.result))
        body = results if len(reducer.result) == 1 else f"({results})"
        self.names.pop_scope()
        start = ", ".join(map(self.print_expr, reducer.identity_element))
        return f"T.comm_reducer(lambda {', '.join(parameters)}: {body}, [{start}])"

    def print_buffer_args(self, b: Buffer) -> str:
        """Return the argument list that constructs a buffer."""
        arguments = [self.print_shape(b.shape), f'"{b.dtype}"']
        if b.scope != "global":
            arguments.append(f'scope="{b.scope}"')
        if b.strides:
            arguments.append(f"strides={self.print_shape(b.strides)}")
        if b.elem_offset is not None:
            arguments.append(f"elem_offset={self.print_expr(b.elem_offset)}")
        return ", ".join(arguments)

    def print_region(self, r: BufferRegion) -> str:
        """Return a buffer region as text, as in `A[i, 0:16]`."""
        axis_texts = []
        for axis_range in r.region:
            low = self.print_expr(axis_range.min)
            if is_const(axis_range.extent, 1):
                axis_texts.append(low)
            else:
                axis_texts.append(f"{low}:{self.print_expr(axis_range.min + axis_range.extent)}")
        return f"{self.names.name_of(r.buffer)}[{', '.join(axis_texts) or '()'}]"


def _max_bracket_depth(printed: Sequence[_PrintedExpr]) -> int:
    return max((p.depth for p in printed), default=0) + 1


def _shared_nodes(order: Sequence[PrimExpr]) -> frozenset[int]:
    """Return the nodes that occur more than once, which are printed as names."""
    used_once: set[int] = set()
    twice: set[int] = set()
    for parent in order:
        for child in children(parent):
            (twice if id(child) in used_once else used_once).add(id(child))
    return frozenset(twice)


def expression_text(expr: PrimExpr) -> str:
    """Return the text of a standalone expression, for messages; named sub-expressions are on lines
    above it.
    """
    exprs = ExpressionPrinter(NameScope())
    text = exprs.print_expr(expr)
    return "\n".join([*exprs.preceding_lines, text])
