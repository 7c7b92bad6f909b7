"""Evaluation of a script's Python expressions to scalar expressions without simplification.

`a + b` of expressions builds an Add without folding; numbers, strings, tuples and the surrounding
program's values stay Python values.
"""

from __future__ import annotations

import ast
import builtins
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir import prim
from ekiden.ir.prim import BinaryExpr, IntImm, PrimExpr
from ekiden.ir.range import Range
from ekiden.ir.span import Span
from ekiden.runtime.errors import ParseError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.access_regions import BufferRegion
from ekiden.tir.expr import Buffer, BufferLoad, ByteView, Ramp
from ekiden.tir.script import builtins as script

_BINARY_NODES: dict[type[ast.operator], type[BinaryExpr]] = {
    ast.Add: prim.Add,
    ast.Sub: prim.Sub,
    ast.Mult: prim.Mul,
    ast.Div: prim.Div,
    ast.FloorDiv: prim.FloorDiv,
    ast.Mod: prim.FloorMod,
}
_COMPARISON_NODES: dict[type[ast.cmpop], type[BinaryExpr]] = {
    ast.Eq: prim.EQ,
    ast.NotEq: prim.NE,
    ast.Lt: prim.LT,
    ast.LtE: prim.LE,
    ast.Gt: prim.GT,
    ast.GtE: prim.GE,
}
_BITWISE_INTRINSICS = {
    ast.LShift: "left_shift",
    ast.RShift: "right_shift",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
}
_REPORTED_ERRORS = (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError)


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A script's text, its name in messages, and its position in its file."""

    text: str
    name: str = "script"
    first_line: int = 1
    indent: int = 0

    def raise_error(self, node: ast.AST, message: str) -> NoReturn:
        """Raise ParseError with the line and a caret under the node."""
        line = getattr(node, "lineno", 1)
        shown = self.text.split("\n")[line - 1]
        # Offsets of `ast` count UTF-8 bytes; the caret needs characters.
        column = len(shown.encode()[: getattr(node, "col_offset", 0)].decode())
        self.raise_error_at(line, column, message)

    def emit_warning(self, node: ast.AST, message: str) -> None:
        """Warn of something at a node, with its file position."""
        position = f"{self.name}:{getattr(node, 'lineno', 1) + self.first_line - 1}"
        warnings.warn(f"{position}: {message}", UserWarning, stacklevel=2)

    def raise_error_at(self, line: int, column: int, message: str) -> NoReturn:
        """Raise ParseError at a line (from 1) and a column (from 0) of the text."""
        lines = self.text.split("\n")
        shown = lines[line - 1] if line <= len(lines) else ""
        position = f"{self.name}:{line + self.first_line - 1}:{column + self.indent + 1}"
        # Tabs are copied, so that the caret stays under its column whatever the terminal's tab
        # width.
        caret = "".join("\t" if c == "\t" else " " for c in shown[:column]) + "^"
        error = ParseError(f"{position}: {message}\n{shown}\n{caret}")
        error.span = Span(self.name, line + self.first_line - 1, 0, column + self.indent + 1)
        raise error


class Evaluator:
    """An evaluator of expressions under the names in scope."""

    def __init__(self, source: ScriptSource, names: Mapping[str, object]) -> None:
        self.source = source
        self.globals = names
        self.names: dict[str, object] = {}
        """Names that the script has defined so far."""

    def raise_error(self, node: ast.AST, message: str) -> NoReturn:
        """Raise ParseError at a node."""
        self.source.raise_error(node, message)

    def evaluate(self, node: ast.expr) -> object:
        """Return the value of an expression."""
        method = _EVALUATORS.get(type(node))
        if method is None:
            return self._eval_by_python(node)
        return method(self, node)

    def evaluate_expr(self, node: ast.expr, dtype: str | None = None) -> PrimExpr:
        """Return an expression that must be a scalar; a number gets `dtype` or its default."""
        return self.to_scalar(node, self.evaluate(node), dtype)

    def to_scalar(self, node: ast.AST, value: object, dtype: str | None = None) -> PrimExpr:
        """Return a value as a scalar expression."""
        if isinstance(value, PrimExpr):
            return value
        if isinstance(value, prim.DeferredComparison):
            return value.asobject()
        if isinstance(value, (bool, int, float)):
            try:
                return script.typed_constant(value, dtype)
            except TypeError as error:
                self.raise_error(node, str(error))
        self.raise_error(node, f"expected a scalar expression, got {_describe_value(value)}")

    def call_reporting_errors(
        self, node: ast.AST, function: Callable[..., object], *args: object
    ) -> object:
        """Call a Python function; report its error at the node."""
        try:
            return function(*args)
        except _REPORTED_ERRORS as error:
            self.raise_error(node, str(error).strip("'\""))

    # Nodes.

    def _eval_constant(self, node: ast.Constant) -> object:
        return node.value

    def _eval_name(self, node: ast.Name) -> object:
        name = node.id
        if name in self.names:
            return self.names[name]
        if name in self.globals:
            return self.globals[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        self.raise_error(node, f"undefined name '{name}'")

    def _eval_attribute(self, node: ast.Attribute) -> object:
        owner = self.evaluate(node.value)
        try:
            return getattr(owner, node.attr)
        except AttributeError:
            subject = "T" if owner is script.T else _describe_value(owner)
            self.raise_error(node, f"{subject} has no '{node.attr}'")

    def _eval_call(self, node: ast.Call) -> object:
        function = self.evaluate(node.func)
        if isinstance(function, script.ScriptForm):
            self.raise_error(node, f"{function!r} makes no expression")
        args = self.evaluate_all(node.args)
        keywords = {k.arg: self.evaluate(k.value) for k in node.keywords if k.arg is not None}
        if not callable(function):
            self.raise_error(node, f"{_describe_value(function)} cannot be called")
        return self.call_reporting_errors(node, lambda: function(*args, **keywords))

    def evaluate_all(self, nodes: Sequence[ast.expr]) -> list[object]:
        """Return the values of arguments or elements; `*x` is unpacked."""
        values: list[object] = []
        for element in nodes:
            if isinstance(element, ast.Starred):
                values.extend(self.evaluate(element.value))  # type: ignore[arg-type]
            else:
                values.append(self.evaluate(element))
        return values

    def _eval_tuple(self, node: ast.Tuple) -> object:
        return tuple(self.evaluate_all(node.elts))

    def _eval_list(self, node: ast.List) -> object:
        return self.evaluate_all(node.elts)

    def _eval_dict(self, node: ast.Dict) -> object:
        if any(k is None for k in node.keys):
            return self._eval_by_python(node)
        keys = [self.evaluate(k) for k in node.keys if k is not None]
        return dict(zip(keys, map(self.evaluate, node.values), strict=True))

    def _eval_slice(self, node: ast.Slice) -> object:
        bounds = (node.lower, node.upper, node.step)
        return slice(*(None if p is None else self.evaluate(p) for p in bounds))

    def _eval_subscript(self, node: ast.Subscript) -> object:
        owner = self.evaluate(node.value)
        index = self.evaluate(node.slice)
        if isinstance(owner, (Buffer, ByteView)):
            return self.build_load(node, owner, index)
        return self.call_reporting_errors(node, lambda: owner[index])  # type: ignore[index]

    def _eval_binary(self, node: ast.BinOp) -> object:
        # A long sum leans to the left: walk down its spine instead of recursing.
        spine = [node]
        while isinstance(spine[-1].left, ast.BinOp):
            spine.append(spine[-1].left)
        value = self.evaluate(spine[-1].left)
        for operation in reversed(spine):
            value = self._apply_binary_operator(operation, value, self.evaluate(operation.right))
        return value

    def _apply_binary_operator(self, node: ast.BinOp, a: object, b: object) -> object:
        if not isinstance(a, PrimExpr) and not isinstance(b, PrimExpr):
            return self.call_reporting_errors(node, _PYTHON_BINARY_OPERATORS[type(node.op)], a, b)
        kind = _BINARY_NODES.get(type(node.op))
        if kind is not None:
            result = self._build_unfolded(node, kind, a, b)
            if isinstance(result, prim.Div) and not dt.is_float(result.dtype):
                # prim.Div truncates integers as C does, Python's '/' divides exactly: neither is
                # meant silently.
                self.raise_error(node, "'/' of integers: write '//' (rounds down) or T.truncdiv")
            return result
        name = _BITWISE_INTRINSICS.get(type(node.op))
        if name is None:
            self.raise_error(node, f"'{ast.unparse(node)}' has no meaning for scalar expressions")
        like = next(x.dtype for x in (a, b) if isinstance(x, PrimExpr))
        args = (self.to_scalar(node, a, like), self.to_scalar(node, b, like))
        return script.call_intrin(args[0].dtype, name, *args)

    def _build_unfolded(
        self, node: ast.AST, kind: type[BinaryExpr], a: object, b: object
    ) -> PrimExpr:
        for operand in (a, b):
            if not isinstance(operand, (PrimExpr, bool, int, float)):
                self.raise_error(
                    node, f"expected a scalar expression, got {_describe_value(operand)}"
                )
        try:
            return script.unfolded_binary(kind, a, b)  # type: ignore[arg-type]
        except TypeError as error:
            self.raise_error(node, str(error))

    def _eval_unary(self, node: ast.UnaryOp) -> object:
        value = self.evaluate(node.operand)
        if not isinstance(value, PrimExpr):
            return self.call_reporting_errors(node, _PYTHON_UNARY_OPERATORS[type(node.op)], value)
        match node.op:
            case ast.Not():
                return prim.Not(value, value.dtype)
            case ast.USub():
                return script.unfolded_binary(prim.Sub, 0, value)
            case ast.UAdd():
                return value
        return script.call_intrin(
            value.dtype, "bitwise_xor", value, script.typed_constant(-1, value.dtype)
        )

    def _eval_bool_op(self, node: ast.BoolOp) -> object:
        values = [self.evaluate(v) for v in node.values]
        if not any(isinstance(v, PrimExpr) for v in values):
            combine = all if isinstance(node.op, ast.And) else any
            return combine(bool(v) for v in values)
        kind = prim.And if isinstance(node.op, ast.And) else prim.Or
        total = self.to_scalar(node, values[0], "bool")
        for operand in values[1:]:
            total = self._build_unfolded(node, kind, total, operand)
        return total

    def _eval_compare(self, node: ast.Compare) -> object:
        values = [self.evaluate(node.left), *(self.evaluate(c) for c in node.comparators)]
        if not any(isinstance(v, PrimExpr) for v in values):
            return self._eval_by_python(node)
        total: PrimExpr | None = None
        for n, symbol in enumerate(node.ops):
            kind = _COMPARISON_NODES.get(type(symbol))
            if kind is None:
                self.raise_error(
                    node, f"'{ast.unparse(node)}' has no meaning for scalar expressions"
                )
            one = self._build_unfolded(node, kind, values[n], values[n + 1])
            # A chained comparison `a < b < c` is a conjunction, as in Python.
            total = one if total is None else self._build_unfolded(node, prim.And, total, one)
        return total

    def _eval_conditional(self, node: ast.IfExp) -> object:
        test = self.evaluate(node.test)
        if not isinstance(test, PrimExpr):
            return self.evaluate(node.body if test else node.orelse)
        true_value, false_value = self.evaluate(node.body), self.evaluate(node.orelse)
        values = test, true_value, false_value
        return self.call_reporting_errors(node, script.T.if_then_else, *values)  # type: ignore[arg-type]

    def _eval_by_python(self, node: ast.expr) -> object:
        """Evaluate comprehensions, lambdas and f-strings by Python itself, under the same names."""
        code = compile(ast.Expression(node), self.source.name, "eval")
        scope = {**self.globals, **self.names}
        return self.call_reporting_errors(node, lambda: eval(code, scope))

    # Buffers.

    def evaluate_indices(self, node: ast.AST, index: object) -> tuple[PrimExpr, ...]:
        """Return the indices in brackets; `a:b` of a known length is a Ramp."""
        index_list = index if isinstance(index, tuple) else (index,)
        return tuple(
            self._slice_to_ramp(node, i)
            if isinstance(i, slice)
            else self.to_scalar(node, i, "int64")
            for i in index_list
        )

    def _slice_to_ramp(self, node: ast.AST, index: slice) -> PrimExpr:
        low = self.to_scalar(node, _slice_start(index), "int64")
        high = self.to_scalar(node, index.stop, "int64")
        step = 1 if index.step is None else index.step
        lanes = simplify(prim.fold_binary(prim.FloorDiv, high - low, step))
        if not isinstance(lanes, IntImm):
            self.raise_error(node, "a slice used as an index must have a length that is a number")
        stride = prim.convert(step, low.dtype)
        return Ramp(low, stride, lanes.value, dt.with_lanes(low.dtype, lanes.value))

    def build_load(self, node: ast.AST, buffer: Buffer | ByteView, index: object) -> BufferLoad:
        """Return a load of an element or a vector."""
        indices = self.evaluate_indices(node, index)
        if isinstance(buffer, ByteView):
            return self.call_reporting_errors(node, buffer.__getitem__, *indices)  # type: ignore[return-value]
        rank = len(buffer.shape)
        if len(indices) not in (rank, 1):
            self.raise_error(
                node, f"buffer '{buffer.name}' has {rank} axes, got {len(indices)} indices"
            )
        return BufferLoad(
            buffer, indices, dt.gather_dtype(buffer.dtype, (i.dtype for i in indices))
        )

    def evaluate_region(self, node: ast.expr) -> BufferRegion:
        """Return the region `A[i, 0:16]`, or all of `A`."""
        owner = self.evaluate(node.value if isinstance(node, ast.Subscript) else node)
        if not isinstance(owner, Buffer):
            self.raise_error(node, f"expected a region of a buffer, got {_describe_value(owner)}")
        if not isinstance(node, ast.Subscript):
            return BufferRegion(owner, tuple(map(Range, owner.shape)))
        index = self.evaluate(node.slice)
        ranges = index if isinstance(index, tuple) else (index,)
        if len(ranges) != len(owner.shape):
            rank = len(owner.shape)
            self.raise_error(
                node, f"buffer '{owner.name}' has {rank} axes, got {len(ranges)} ranges"
            )
        return BufferRegion(owner, tuple(self._index_range(node, i) for i in ranges))

    def _index_range(self, node: ast.AST, index: object) -> Range:
        if not isinstance(index, slice):
            return Range.from_min_extent(self.to_scalar(node, index, "int64"), 1)
        low = self.to_scalar(node, _slice_start(index), "int64")
        return Range.from_min_extent(low, simplify(self.to_scalar(node, index.stop, "int64") - low))


def _slice_start(index: slice) -> object:
    return 0 if index.start is None else index.start


def _describe_value(value: object) -> str:
    if isinstance(value, Buffer):
        return f"the buffer '{value.name}'"
    if isinstance(value, type) or callable(value):
        return repr(value)
    if isinstance(value, PrimExpr):
        return f"the expression '{value}'"
    return f"{type(value).__name__} {value!r}"


# fmt: off
_PYTHON_BINARY_OPERATORS: dict[type[ast.operator], Callable[..., object]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.MatMult: operator.matmul,
}
_PYTHON_UNARY_OPERATORS: dict[type[ast.unaryop], Callable[..., object]] = {
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
# fmt: on
_EVALUATORS: dict[type[ast.expr], Callable[..., object]] = {
    ast.Constant: Evaluator._eval_constant,
    ast.Name: Evaluator._eval_name,
    ast.Attribute: Evaluator._eval_attribute,
    ast.Call: Evaluator._eval_call,
    ast.Tuple: Evaluator._eval_tuple,
    ast.List: Evaluator._eval_list,
    ast.Dict: Evaluator._eval_dict,
    ast.Slice: Evaluator._eval_slice,
    ast.Subscript: Evaluator._eval_subscript,
    ast.BinOp: Evaluator._eval_binary,
    ast.UnaryOp: Evaluator._eval_unary,
    ast.BoolOp: Evaluator._eval_bool_op,
    ast.Compare: Evaluator._eval_compare,
    ast.IfExp: Evaluator._eval_conditional,
}
