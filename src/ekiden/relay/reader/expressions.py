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
from ekiden.relay.lexer import Source, tokenize
from ekiden.relay.reader.place import Place
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.type_parser import TypeParser
from ekiden.runtime.errors import EkidenError, ParseError, TypeInferenceError

if TYPE_CHECKING:
    from ekiden.relay.reader import Script

BINARY: dict[type[ast.operator], Callable[[object, object], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARE: dict[type[ast.cmpop], Callable[..., object]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
SCALARS: dict[object, str] = {int: "int32", float: "float32", bool: "bool"}
"""Python's types as annotations."""


class Missing:
    """Marker of a name that only some control-flow paths have set."""


class Scope:
    """Names in scope and the lets emitted; inner scopes see outer ones."""

    def __init__(self, names: dict[str, object]) -> None:
        self.names = names
        self.lets: list[tuple[Var, Expr, ast.AST]] = []

    def inner(self) -> Scope:
        """Return a child scope with its own lets."""
        return Scope(dict(self.names))


class Expressions:
    """Translator of Python expressions within a scope."""

    def __init__(
        self, location: Place, around: dict[str, object], base: IRModule, script: Script
    ) -> None:
        self.place = location
        self.around = around
        self.base = base
        self.script = script
        self.used: list[Script] = []
        """Other scripts that this one calls."""
        self._types = TypeParser(Source(""), [])

    def fail(self, node: ast.AST, message: str) -> NoReturn:
        """Raise ParseError at an AST node."""
        self.place.fail(node, message)

    # Values

    def value(self, node: ast.expr, scope: Scope) -> object:
        """Translate an expression to a Relay or Python value.

        Raises:
            ParseError: The kind of expression has no meaning here.
        """
        rule = _RULES.get(type(node))
        if rule is None:
            kind = type(node).__name__
            self.fail(node, f"a Python expression of kind {kind} has no meaning in Relay")
        return self._at(node, rule(self, node, scope))

    def expr(self, node: ast.expr, scope: Scope) -> Expr:
        """Translate an expression to a Relay expression."""
        return self.lift(self.value(node, scope), node)

    def lift(self, value: object, node: ast.AST) -> Expr:
        """Lift a Python value to Relay: numbers and arrays to constants, tuples to tuples."""
        match value:
            case RelayExpr():
                return value
            case bool() | int() | float() | np.ndarray() | np.generic():
                return const(value)
            case tuple() | list():
                return Tuple(tuple(self.lift(element, node) for element in value))
        if value is self.script:
            return self.script.global_var
        if hasattr(value, "astuple"):
            return self.lift(value.astuple(), node)
        self.fail(node, f"expected a Relay value, got {value!r}")

    def _at(self, node: ast.expr, value: object) -> object:
        """Set the span of a call created from an AST node."""
        if isinstance(value, Call) and value.span is None:
            return value.with_fields(span=self.place.span(node))
        return value

    def type_of(self, expr: Expr) -> Type | None:
        """Return an expression's type, or None if it depends on unknown types."""
        try:
            return infer_expr_type(expr, self.base)
        except TypeInferenceError:
            return None

    def annotation(self, node: ast.expr | None) -> Type | None:
        """Parse a type annotation."""
        if node is None:
            return None
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        meaning: object
        if isinstance(node, ast.Constant):
            meaning = node.value
        elif names.issubset(self.around):
            meaning = self.value(node, Scope({}))
        else:  # Relay text without quotes, under `from __future__ import annotations`
            meaning = ast.unparse(node)
        if isinstance(meaning, Type):
            return meaning
        if meaning in SCALARS:
            return TensorType((), SCALARS[meaning])
        if not isinstance(meaning, str):
            self.fail(node, f"expected a type, got {meaning!r}")
        return self._parsed_type(meaning, node)

    def _parsed_type(self, text: str, node: ast.AST) -> Type:
        source = Source(text, "annotation")
        reader = TypeParser(source, tokenize(source)[0])
        reader.symbols = self._types.symbols  # one name is one dimension in the whole function
        reader.global_types = {t.name_hint: t for t in self.base.type_definitions}
        try:
            kind = reader.type()
        except ParseError as error:
            self.fail(node, str(error).split("\n")[0].split(": ", 1)[1])
        if reader.token.kind != "end":
            self.fail(node, f"expected one type, got {text!r}")
        return kind

    # One rule per kind of expression

    def _constant(self, node: ast.Constant, scope: Scope) -> object:
        return node.value

    def _name(self, node: ast.Name, scope: Scope) -> object:
        if node.id in scope.names:
            meaning = scope.names[node.id]
            if isinstance(meaning, Missing):
                self.fail(node, f"{node.id!r} is not set on every way to this place")
            return meaning
        if node.id == self.script.name:
            return self.script.global_var
        if node.id not in self.around:
            self.fail(node, f"{node.id!r} is not defined")
        return self.around[node.id]

    def _attribute(self, node: ast.Attribute, scope: Scope) -> object:
        owner = self.value(node.value, scope)
        try:
            attribute: object = getattr(owner, node.attr)
        except AttributeError as error:
            self.fail(node, str(error))
        return attribute

    def _display(self, node: ast.Tuple | ast.List, scope: Scope) -> object:
        return tuple(self.value(element, scope) for element in node.elts)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> object:
        owner, index = self.value(node.value, scope), self.value(node.slice, scope)
        try:
            return owner[index]  # type: ignore[index]
        except (TypeError, IndexError, KeyError) as error:
            self.fail(node, str(error))

    def _binary(self, node: ast.BinOp, scope: Scope) -> object:
        a, b = self.value(node.left, scope), self.value(node.right, scope)
        if isinstance(node.op, ast.MatMult):
            return op.nn.matmul(self.lift(a, node.left), self.lift(b, node.right))
        apply = BINARY.get(type(node.op))
        if apply is None:
            self.fail(node, f"the operator {type(node.op).__name__} has no meaning in Relay")
        return self._applied(node, apply, a, b)

    def _applied(
        self, node: ast.expr, apply: Callable[[object, object], object], a: object, b: object
    ) -> object:
        """Apply a Python operator to two values.

        A number beside a value of a type that is not known yet is of int32 or float32.
        """
        try:
            return apply(self._number(a, b), self._number(b, a))
        except (TypeError, ArithmeticError) as error:
            self.fail(node, str(error))

    def _number(self, value: object, beside: object) -> object:
        if isinstance(value, (int, float)) and isinstance(beside, RelayExpr):
            return const(value) if self.type_of(beside) is None else value
        return value

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> object:
        inside = self.value(node.operand, scope)
        match node.op:
            case ast.Not():
                return op.logical_not(inside) if isinstance(inside, RelayExpr) else not inside
            case ast.USub():
                return self._applied(node, lambda a, _: operator.neg(a), inside, None)  # type: ignore[arg-type]
            case ast.UAdd():
                return inside
        self.fail(node, f"the operator {type(node.op).__name__} has no meaning in Relay")

    def _compare(self, node: ast.Compare, scope: Scope) -> object:
        """Translate the chained comparison `a < b < c` to `a < b and b < c`."""
        values = [self.value(operand, scope) for operand in (node.left, *node.comparators)]
        result: object = True
        for kind, a, b in zip(node.ops, values, values[1:], strict=False):
            comparison = self._compared(node, kind, a, b)
            result = comparison if result is True else self._both(result, comparison, node)
        return result

    def _compared(self, node: ast.Compare, kind: ast.cmpop, a: object, b: object) -> object:
        apply = COMPARE.get(type(kind))
        if apply is None:
            self.fail(node, f"the comparison {type(kind).__name__} has no meaning in Relay")
        is_relay = isinstance(a, RelayExpr) or isinstance(b, RelayExpr)
        if not is_relay or not isinstance(kind, (ast.Eq, ast.NotEq)):
            return self._applied(node, apply, a, b)
        # the operators of a pair find the dtype of a number: a + b has what a == b needs
        pair = self._applied(node, operator.add, a, b)
        assert isinstance(pair, Call)
        return (op.equal if isinstance(kind, ast.Eq) else op.not_equal)(*pair.args)

    def _both(self, a: object, b: object, node: ast.AST) -> object:
        if not isinstance(a, RelayExpr):
            return b if a else a
        return If(a, self.lift(b, node), const(False))

    def _either(self, a: object, b: object, node: ast.AST) -> object:
        if not isinstance(a, RelayExpr):
            return a if a else b
        return If(a, const(True), self.lift(b, node))

    def _boolean(self, node: ast.BoolOp, scope: Scope) -> object:
        """Translate `and` and `or` with short-circuit evaluation."""
        join = self._both if isinstance(node.op, ast.And) else self._either
        result = self.value(node.values[-1], scope)
        # From the right: the first operand is the outermost choice.
        for operand in reversed(node.values[:-1]):
            result = join(self.value(operand, scope), result, node)
        return result

    def _choice(self, node: ast.IfExp, scope: Scope) -> object:
        cond = self.value(node.test, scope)
        if not isinstance(cond, RelayExpr):
            return self.value(node.body if cond else node.orelse, scope)
        span = self.place.span(node)
        return If(cond, self.expr(node.body, scope), self.expr(node.orelse, scope), span)

    def _call(self, node: ast.Call, scope: Scope) -> object:
        callee = self.value(node.func, scope)
        args: list[object] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                self.fail(argument, "a star before an argument has no meaning in Relay")
            args.append(self.value(argument, scope))
        named = {k.arg: self.value(k.value, scope) for k in node.keywords if k.arg is not None}
        if isinstance(callee, type(self.script)):
            self.used.append(callee)
            callee = callee.global_var
        if isinstance(callee, RelayExpr):
            if named:
                self.fail(node, "a call of a Relay function takes arguments by position")
            return Call(callee, tuple(self.lift(a, node) for a in args))
        return self._python_call(node, callee, args, named)

    def _python_call(
        self, node: ast.Call, callee: object, args: list[object], named: dict[str, object]
    ) -> object:
        if not callable(callee):
            self.fail(node, f"expected a function, got {callee!r}")
        try:
            return callee(*args, **named)
        except EkidenError:
            raise
        except Exception as error:  # whatever a user's function raises is told with its line
            self.fail(node, f"{type(error).__name__}: {error}")

    def _lambda(self, node: ast.Lambda, scope: Scope) -> object:
        inner = scope.inner()
        params = tuple(Var(a.arg) for a in node.args.args)
        inner.names.update((p.name_hint, p) for p in params)
        body = self.close(inner, self.expr(node.body, inner))
        return Function(params, body, span=self.place.span(node))

    def close(self, scope: Scope, result: Expr) -> Expr:
        """Wrap a result in the lets of its scope."""
        for name, value, node in reversed(scope.lets):
            result = Let(name, value, result, span=self.place.span(node))
        return result


_RULES: dict[type[ast.expr], Callable[..., object]] = {
    ast.Constant: Expressions._constant,
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Tuple: Expressions._display,
    ast.List: Expressions._display,
    ast.Subscript: Expressions._subscript,
    ast.BinOp: Expressions._binary,
    ast.UnaryOp: Expressions._unary,
    ast.Compare: Expressions._compare,
    ast.BoolOp: Expressions._boolean,
    ast.IfExp: Expressions._choice,
    ast.Call: Expressions._call,
    ast.Lambda: Expressions._lambda,
}
