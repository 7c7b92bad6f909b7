"""Translation of Python expressions to Relay.

The value of an expression is a Relay expression as soon as a Relay value takes part in it, and
Python's own value until then.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.type import TensorType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, Function, If, Let, Tuple, Var, const
from ekiden.relay.lexer import SourceText, tokenize
from ekiden.relay.reader.source_location import SourceLocation
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.type_parser import TypeParser
from ekiden.runtime.errors import EkidenError, ParseError, TypeInferenceError

if TYPE_CHECKING:
    from ekiden.relay.reader import RelayScript

BINARY_OPERATORS: dict[type[ast.operator], Callable[[object, object], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARISON_OPERATORS: dict[type[ast.cmpop], Callable[..., object]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
SCALAR_DTYPES: dict[object, str] = {int: "int32", float: "float32", bool: "bool"}
"""Dtypes of Python's scalar type annotations."""


class ConditionallyUnset:
    """Marker of a name that only some control-flow paths have set."""


class ScriptScope:
    """Names in scope and the lets emitted; inner scopes see outer ones."""

    def __init__(self, names: dict[str, object]) -> None:
        self.names = names
        self.lets: list[tuple[Var, Expr, ast.AST]] = []

    def child_scope(self) -> ScriptScope:
        """Return a child scope with its own lets."""
        return ScriptScope(dict(self.names))


class ExpressionTranslator:
    """Translator of Python expressions within a scope."""

    def __init__(
        self,
        location: SourceLocation,
        around: dict[str, object],
        base: IRModule,
        script: RelayScript,
    ) -> None:
        self.location = location
        self.captured_names = around
        self.base_module = base
        self.script = script
        self.called_scripts: list[RelayScript] = []
        """Other scripts that this script calls."""
        self._types = TypeParser(SourceText(""), [])

    def raise_error(self, node: ast.AST, message: str) -> NoReturn:
        """Raise ParseError at an AST node."""
        self.location.raise_error(node, message)

    # Values

    def translate(self, node: ast.expr, scope: ScriptScope) -> object:
        """Translate an expression to a Relay or Python value.

        Raises:
            ParseError: The kind of expression has no meaning here.
        """
        rule = _TRANSLATION_RULES.get(type(node))
        if rule is None:
            kind = type(node).__name__
            self.raise_error(node, f"a Python expression of kind {kind} has no meaning in Relay")
        return self._with_span(node, rule(self, node, scope))

    def translate_expr(self, node: ast.expr, scope: ScriptScope) -> Expr:
        """Translate an expression to a Relay expression."""
        return self.lift_value(self.translate(node, scope), node)

    def lift_value(self, value: object, node: ast.AST) -> Expr:
        """Lift a Python value to Relay: numbers and arrays to constants, tuples to tuples."""
        match value:
            case RelayExpr():
                return value
            case bool() | int() | float() | np.ndarray() | np.generic():
                return const(value)
            case tuple() | list():
                return Tuple(tuple(self.lift_value(element, node) for element in value))
        if value is self.script:
            return self.script.global_var
        if hasattr(value, "astuple"):
            return self.lift_value(value.astuple(), node)
        self.raise_error(node, f"expected a Relay value, got {value!r}")

    def _with_span(self, node: ast.expr, value: object) -> object:
        """Set the span of a call created from an AST node."""
        if isinstance(value, Call) and value.span is None:
            return value.with_fields(span=self.location.span(node))
        return value

    def known_type(self, expr: Expr) -> Type | None:
        """Return an expression's type, or None if it depends on unknown types."""
        try:
            return infer_expr_type(expr, self.base_module)
        except TypeInferenceError:
            return None

    def parse_annotation(self, node: ast.expr | None) -> Type | None:
        """Parse a type annotation."""
        if node is None:
            return None
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        meaning: object
        if isinstance(node, ast.Constant):
            meaning = node.value
        elif names.issubset(self.captured_names):
            meaning = self.translate(node, ScriptScope({}))
        else:  # Relay text without quotes, under `from __future__ import annotations`
            meaning = ast.unparse(node)
        if isinstance(meaning, Type):
            return meaning
        if meaning in SCALAR_DTYPES:
            return TensorType((), SCALAR_DTYPES[meaning])
        if not isinstance(meaning, str):
            self.raise_error(node, f"expected a type, got {meaning!r}")
        return self._parse_type(meaning, node)

    def _parse_type(self, text: str, node: ast.AST) -> Type:
        source = SourceText(text, "annotation")
        reader = TypeParser(source, tokenize(source)[0])
        reader.symbols = self._types.symbols  # one name is one dimension in the whole function
        reader.global_types = {t.name_hint: t for t in self.base_module.type_definitions}
        try:
            kind = reader.parse_type()
        except ParseError as error:
            self.raise_error(node, str(error).split("\n")[0].split(": ", 1)[1])
        if reader.next_token.kind != "end":
            self.raise_error(node, f"expected one type, got {text!r}")
        return kind

    # One rule per kind of expression

    def _translate_constant(self, node: ast.Constant, scope: ScriptScope) -> object:
        return node.value

    def _translate_name(self, node: ast.Name, scope: ScriptScope) -> object:
        if node.id in scope.names:
            meaning = scope.names[node.id]
            if isinstance(meaning, ConditionallyUnset):
                self.raise_error(node, f"{node.id!r} is not set on every way to this place")
            return meaning
        if node.id == self.script.name:
            return self.script.global_var
        if node.id not in self.captured_names:
            self.raise_error(node, f"{node.id!r} is not defined")
        return self.captured_names[node.id]

    def _translate_attribute(self, node: ast.Attribute, scope: ScriptScope) -> object:
        owner = self.translate(node.value, scope)
        try:
            attribute: object = getattr(owner, node.attr)
        except AttributeError as error:
            self.raise_error(node, str(error))
        return attribute

    def _translate_display(self, node: ast.Tuple | ast.List, scope: ScriptScope) -> object:
        return tuple(self.translate(element, scope) for element in node.elts)

    def _translate_subscript(self, node: ast.Subscript, scope: ScriptScope) -> object:
        owner, index = self.translate(node.value, scope), self.translate(node.slice, scope)
        try:
            return owner[index]  # type: ignore[index]
        except (TypeError, IndexError, KeyError) as error:
            self.raise_error(node, str(error))

    def _translate_binary(self, node: ast.BinOp, scope: ScriptScope) -> object:
        a, b = self.translate(node.left, scope), self.translate(node.right, scope)
        if isinstance(node.op, ast.MatMult):
            return op.nn.matmul(self.lift_value(a, node.left), self.lift_value(b, node.right))
        apply = BINARY_OPERATORS.get(type(node.op))
        if apply is None:
            self.raise_error(node, f"the operator {type(node.op).__name__} has no meaning in Relay")
        return self._apply_operator(node, apply, a, b)

    def _apply_operator(
        self, node: ast.expr, apply: Callable[[object, object], object], a: object, b: object
    ) -> object:
        """Apply a Python operator to two values.

        A number beside a value of a type that is not known yet is of int32 or float32.
        """
        try:
            return apply(self._coerce_number(a, b), self._coerce_number(b, a))
        except (TypeError, ArithmeticError) as error:
            self.raise_error(node, str(error))

    def _coerce_number(self, value: object, beside: object) -> object:
        if isinstance(value, (int, float)) and isinstance(beside, RelayExpr):
            return const(value) if self.known_type(beside) is None else value
        return value

    def _translate_unary(self, node: ast.UnaryOp, scope: ScriptScope) -> object:
        inside = self.translate(node.operand, scope)
        match node.op:
            case ast.Not():
                return op.logical_not(inside) if isinstance(inside, RelayExpr) else not inside
            case ast.USub():
                return self._apply_operator(node, lambda a, _: operator.neg(a), inside, None)  # type: ignore[arg-type]
            case ast.UAdd():
                return inside
        self.raise_error(node, f"the operator {type(node.op).__name__} has no meaning in Relay")

    def _translate_compare(self, node: ast.Compare, scope: ScriptScope) -> object:
        """Translate the chained comparison `a < b < c` to `a < b and b < c`."""
        values = [self.translate(operand, scope) for operand in (node.left, *node.comparators)]
        result: object = True
        for kind, a, b in zip(node.ops, values, values[1:], strict=False):
            comparison = self._compare_values(node, kind, a, b)
            result = comparison if result is True else self._logical_and(result, comparison, node)
        return result

    def _compare_values(self, node: ast.Compare, kind: ast.cmpop, a: object, b: object) -> object:
        apply = COMPARISON_OPERATORS.get(type(kind))
        if apply is None:
            self.raise_error(node, f"the comparison {type(kind).__name__} has no meaning in Relay")
        is_relay = isinstance(a, RelayExpr) or isinstance(b, RelayExpr)
        if not is_relay or not isinstance(kind, (ast.Eq, ast.NotEq)):
            return self._apply_operator(node, apply, a, b)
        # the operators of a pair find the dtype of a number: a + b has what a == b needs
        pair = self._apply_operator(node, operator.add, a, b)
        assert isinstance(pair, Call)
        return (op.equal if isinstance(kind, ast.Eq) else op.not_equal)(*pair.args)

    def _logical_and(self, a: object, b: object, node: ast.AST) -> object:
        if not isinstance(a, RelayExpr):
            return b if a else a
        return If(a, self.lift_value(b, node), const(False))

    def _logical_or(self, a: object, b: object, node: ast.AST) -> object:
        if not isinstance(a, RelayExpr):
            return a if a else b
        return If(a, const(True), self.lift_value(b, node))

    def _translate_boolean(self, node: ast.BoolOp, scope: ScriptScope) -> object:
        """Translate `and` and `or` with short-circuit evaluation."""
        join = self._logical_and if isinstance(node.op, ast.And) else self._logical_or
        result = self.translate(node.values[-1], scope)
        # From the right: the first operand is the outermost choice.
        for operand in reversed(node.values[:-1]):
            result = join(self.translate(operand, scope), result, node)
        return result

    def _translate_conditional(self, node: ast.IfExp, scope: ScriptScope) -> object:
        cond = self.translate(node.test, scope)
        if not isinstance(cond, RelayExpr):
            return self.translate(node.body if cond else node.orelse, scope)
        span = self.location.span(node)
        return If(
            cond,
            self.translate_expr(node.body, scope),
            self.translate_expr(node.orelse, scope),
            span,
        )

    def _translate_call(self, node: ast.Call, scope: ScriptScope) -> object:
        callee = self.translate(node.func, scope)
        args: list[object] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self.raise_error(argument, "a star before an argument has no meaning in Relay")
            args.append(self.translate(argument, scope))
        named = {k.arg: self.translate(k.value, scope) for k in node.keywords if k.arg is not None}
        if isinstance(callee, type(self.script)):
            self.called_scripts.append(callee)
            callee = callee.global_var
        if isinstance(callee, RelayExpr):
            if named:
                self.raise_error(node, "a call of a Relay function takes arguments by position")
            return Call(callee, tuple(self.lift_value(a, node) for a in args))
        return self._call_python(node, callee, args, named)

    def _call_python(
        self, node: ast.Call, callee: object, args: list[object], named: dict[str, object]
    ) -> object:
        if not callable(callee):
            self.raise_error(node, f"expected a function, got {callee!r}")
        try:
            return callee(*args, **named)
        except EkidenError:
            raise
        except Exception as error:  # whatever a user's function raises is told with its line
            self.raise_error(node, f"{type(error).__name__}: {error}")

    def _translate_lambda(self, node: ast.Lambda, scope: ScriptScope) -> object:
        inner = scope.child_scope()
        params = tuple(Var(a.arg) for a in node.args.args)
        inner.names.update((p.name_hint, p) for p in params)
        body = self.wrap_lets(inner, self.translate_expr(node.body, inner))
        return Function(params, body, span=self.location.span(node))

    def wrap_lets(self, scope: ScriptScope, result: Expr) -> Expr:
        """Wrap a result in the lets of its scope."""
        for name, value, node in reversed(scope.lets):
            result = Let(name, value, result, span=self.location.span(node))
        return result


_TRANSLATION_RULES: dict[type[ast.expr], Callable[..., object]] = {
    ast.Constant: ExpressionTranslator._translate_constant,
    ast.Name: ExpressionTranslator._translate_name,
    ast.Attribute: ExpressionTranslator._translate_attribute,
    ast.Tuple: ExpressionTranslator._translate_display,
    ast.List: ExpressionTranslator._translate_display,
    ast.Subscript: ExpressionTranslator._translate_subscript,
    ast.BinOp: ExpressionTranslator._translate_binary,
    ast.UnaryOp: ExpressionTranslator._translate_unary,
    ast.Compare: ExpressionTranslator._translate_compare,
    ast.BoolOp: ExpressionTranslator._translate_boolean,
    ast.IfExp: ExpressionTranslator._translate_conditional,
    ast.Call: ExpressionTranslator._translate_call,
    ast.Lambda: ExpressionTranslator._translate_lambda,
}
