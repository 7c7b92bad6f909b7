"""Visitors and mutators with one method per expression, called from the top down (TVM's faces).

    class Count(ExprVisitor):
        def visit_call(self, call):
            self.calls += 1
            super().visit_call(call)

Passes of Ekiden use `ekiden.relay.visitor`, which does not recurse. These do, since a user's
methods decide what is visited; deep expressions go on with a fresh stack, on a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from ekiden.ir.deep import LEVELS, on_fresh_stack
from ekiden.ir.expr import GlobalVar
from ekiden.ir.op import Op
from ekiden.ir.type import Type
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Expr,
    Function,
    If,
    Let,
    Match,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.visitor import CHILDREN, rebuild

_R = TypeVar("_R")

METHODS: dict[type, str] = {
    Function: "visit_function",
    Call: "visit_call",
    Let: "visit_let",
    Var: "visit_var",
    GlobalVar: "visit_global_var",
    If: "visit_if",
    Tuple: "visit_tuple",
    TupleGetItem: "visit_tuple_getitem",
    Constant: "visit_constant",
    Op: "visit_op",
    RefCreate: "visit_ref_create",
    RefRead: "visit_ref_read",
    RefWrite: "visit_ref_write",
    Constructor: "visit_constructor",
    Match: "visit_match",
}
"""Expression -> the method that is called with it."""


class ExprFunctor(Generic[_R]):
    """Calls the method of each expression, once: what it gave is remembered in `memo_map`."""

    def __init__(self) -> None:
        self.memo_map: dict[Expr, _R] = {}
        self._depth = 0

    def visit(self, expr: Expr) -> _R:
        """What the method of the expression gives. Raises NotImplementedError if there is none."""
        self._depth += 1
        try:
            if self._depth % LEVELS:
                return self._visit(expr)
            return on_fresh_stack(self._visit, expr)
        finally:
            self._depth -= 1

    def _visit(self, expr: Expr) -> _R:
        if expr in self.memo_map:
            return self.memo_map[expr]
        name = METHODS.get(type(expr))
        if name is None:
            raise TypeError(f"visit: a {type(expr).__name__} is not a Relay expression")
        method: Callable[[Expr], _R] | None = getattr(self, name, None)
        if method is None:
            raise NotImplementedError(f"{type(self).__name__} has no method {name}")
        found = self.memo_map[expr] = method(expr)
        return found

    def visit_type(self, typ: Type) -> Type:
        """A type as it is."""
        return typ


class ExprVisitor(ExprFunctor[object]):
    """Visits every expression below one; override the methods of those that matter."""

    def visit_children(self, expr: Expr) -> object:
        """What visiting the direct parts of an expression gives."""
        return [self.visit(each) for each in CHILDREN[type(expr)](expr)]

    def visit_function(self, fn: Function) -> object:
        """Visit its parts."""
        return self.visit_children(fn)

    def visit_call(self, call: Call) -> object:
        """Visit its parts."""
        return self.visit_children(call)

    def visit_let(self, let: Let) -> object:
        """Visit its parts."""
        return self.visit_children(let)

    def visit_var(self, var: Var) -> object:
        """Nothing below it."""
        return None

    def visit_global_var(self, gvar: GlobalVar) -> object:
        """Nothing below it."""
        return None

    def visit_if(self, ite: If) -> object:
        """Visit its parts."""
        return self.visit_children(ite)

    def visit_tuple(self, tup: Tuple) -> object:
        """Visit its parts."""
        return self.visit_children(tup)

    def visit_tuple_getitem(self, get: TupleGetItem) -> object:
        """Visit its parts."""
        return self.visit_children(get)

    def visit_constant(self, const: Constant) -> object:
        """Nothing below it."""
        return None

    def visit_op(self, op: Op) -> object:
        """Nothing below it."""
        return None

    def visit_ref_create(self, ref: RefCreate) -> object:
        """Visit its parts."""
        return self.visit_children(ref)

    def visit_ref_read(self, ref: RefRead) -> object:
        """Visit its parts."""
        return self.visit_children(ref)

    def visit_ref_write(self, ref: RefWrite) -> object:
        """Visit its parts."""
        return self.visit_children(ref)

    def visit_constructor(self, con: Constructor) -> object:
        """Nothing below it."""
        return None

    def visit_match(self, match: Match) -> object:
        """Visit its parts."""
        return self.visit_children(match)


class ExprMutator(ExprFunctor[Expr]):
    """Rebuilds every expression from its rebuilt parts; what does not change stays one object."""

    def visit_children(self, expr: Expr) -> Expr:
        """The expression with its direct parts visited."""
        return rebuild(expr, [self.visit(each) for each in CHILDREN[type(expr)](expr)])

    def visit_function(self, fn: Function) -> Expr:
        """It, from its parts."""
        return self.visit_children(fn)

    def visit_call(self, call: Call) -> Expr:
        """It, from its parts."""
        return self.visit_children(call)

    def visit_let(self, let: Let) -> Expr:
        """It, from its parts."""
        return self.visit_children(let)

    def visit_var(self, var: Var) -> Expr:
        """Itself."""
        return var

    def visit_global_var(self, gvar: GlobalVar) -> Expr:
        """Itself."""
        return gvar

    def visit_if(self, ite: If) -> Expr:
        """It, from its parts."""
        return self.visit_children(ite)

    def visit_tuple(self, tup: Tuple) -> Expr:
        """It, from its parts."""
        return self.visit_children(tup)

    def visit_tuple_getitem(self, get: TupleGetItem) -> Expr:
        """It, from its parts."""
        return self.visit_children(get)

    def visit_constant(self, const: Constant) -> Expr:
        """Itself."""
        return const

    def visit_op(self, op: Op) -> Expr:
        """Itself."""
        return op

    def visit_ref_create(self, ref: RefCreate) -> Expr:
        """It, from its parts."""
        return self.visit_children(ref)

    def visit_ref_read(self, ref: RefRead) -> Expr:
        """It, from its parts."""
        return self.visit_children(ref)

    def visit_ref_write(self, ref: RefWrite) -> Expr:
        """It, from its parts."""
        return self.visit_children(ref)

    def visit_constructor(self, con: Constructor) -> Expr:
        """Itself."""
        return con

    def visit_match(self, match: Match) -> Expr:
        """It, from its parts."""
        return self.visit_children(match)


__all__ = ["ExprFunctor", "ExprMutator", "ExprVisitor"]
