"""ExprFunctor, ExprVisitor and ExprMutator: top-down traversals with one method per node class
(TVM's names).

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

from ekiden.ir.deep_recursion import MAX_RECURSION_LEVELS, call_on_fresh_stack
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
from ekiden.relay.visitor import CHILD_GETTERS, rebuild

_ResultT = TypeVar("_ResultT")

VISIT_METHODS: dict[type, str] = {
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
"""Name of the visit method by expression class."""


class ExprFunctor(Generic[_ResultT]):
    """Memoising dispatcher to one visit method per expression class."""

    def __init__(self) -> None:
        self.memo_map: dict[Expr, _ResultT] = {}
        self._depth = 0

    def visit(self, expr: Expr) -> _ResultT:
        """Dispatch to the visit method of an expression.

        Raises:
            NotImplementedError: There is no such method.
        """
        self._depth += 1
        try:
            # Every MAX_RECURSION_LEVELS levels the recursion continues on a new stack.
            if self._depth % MAX_RECURSION_LEVELS:
                return self._visit(expr)
            return call_on_fresh_stack(self._visit, expr)
        finally:
            self._depth -= 1

    def _visit(self, expr: Expr) -> _ResultT:
        if expr in self.memo_map:
            return self.memo_map[expr]
        name = VISIT_METHODS.get(type(expr))
        if name is None:
            raise TypeError(f"visit: a {type(expr).__name__} is not a Relay expression")
        method: Callable[[Expr], _ResultT] | None = getattr(self, name, None)
        if method is None:
            raise NotImplementedError(f"{type(self).__name__} has no method {name}")
        # Each shared expression once: programs are graphs, and trees of them may be exponentially
        # large.
        result = self.memo_map[expr] = method(expr)
        return result

    def visit_type(self, typ: Type) -> Type:
        """Return a type unchanged."""
        return typ


class ExprVisitor(ExprFunctor[object]):
    """Visitor of every subexpression; override the methods of interest."""

    def visit_children(self, expr: Expr) -> object:
        """Visit the direct children of an expression, and return the results."""
        return [self.visit(child) for child in CHILD_GETTERS[type(expr)](expr)]

    def visit_function(self, fn: Function) -> object:
        """Visit its children."""
        return self.visit_children(fn)

    def visit_call(self, call: Call) -> object:
        """Visit its children."""
        return self.visit_children(call)

    def visit_let(self, let: Let) -> object:
        """Visit its children."""
        return self.visit_children(let)

    def visit_var(self, var: Var) -> object:
        """Do nothing: a variable has no children."""
        return None

    def visit_global_var(self, gvar: GlobalVar) -> object:
        """Do nothing: a global variable has no children."""
        return None

    def visit_if(self, ite: If) -> object:
        """Visit its children."""
        return self.visit_children(ite)

    def visit_tuple(self, tup: Tuple) -> object:
        """Visit its children."""
        return self.visit_children(tup)

    def visit_tuple_getitem(self, get: TupleGetItem) -> object:
        """Visit its children."""
        return self.visit_children(get)

    def visit_constant(self, const: Constant) -> object:
        """Do nothing: a constant has no children."""
        return None

    def visit_op(self, op: Op) -> object:
        """Do nothing: an operator has no children."""
        return None

    def visit_ref_create(self, ref: RefCreate) -> object:
        """Visit its children."""
        return self.visit_children(ref)

    def visit_ref_read(self, ref: RefRead) -> object:
        """Visit its children."""
        return self.visit_children(ref)

    def visit_ref_write(self, ref: RefWrite) -> object:
        """Visit its children."""
        return self.visit_children(ref)

    def visit_constructor(self, con: Constructor) -> object:
        """Do nothing: a constructor has no children."""
        return None

    def visit_match(self, match: Match) -> object:
        """Visit its children."""
        return self.visit_children(match)


class ExprMutator(ExprFunctor[Expr]):
    """Mutator that rebuilds expressions from rewritten children, sharing unchanged nodes."""

    def visit_children(self, expr: Expr) -> Expr:
        """Return the expression with its direct children visited."""
        return rebuild(expr, [self.visit(child) for child in CHILD_GETTERS[type(expr)](expr)])

    def visit_function(self, fn: Function) -> Expr:
        """Return the function rebuilt from its visited children."""
        return self.visit_children(fn)

    def visit_call(self, call: Call) -> Expr:
        """Return the call rebuilt from its visited children."""
        return self.visit_children(call)

    def visit_let(self, let: Let) -> Expr:
        """Return the Let rebuilt from its visited children."""
        return self.visit_children(let)

    def visit_var(self, var: Var) -> Expr:
        """Return the variable itself."""
        return var

    def visit_global_var(self, gvar: GlobalVar) -> Expr:
        """Return the global variable itself."""
        return gvar

    def visit_if(self, ite: If) -> Expr:
        """Return the If rebuilt from its visited children."""
        return self.visit_children(ite)

    def visit_tuple(self, tup: Tuple) -> Expr:
        """Return the tuple rebuilt from its visited children."""
        return self.visit_children(tup)

    def visit_tuple_getitem(self, get: TupleGetItem) -> Expr:
        """Return the projection rebuilt from its visited children."""
        return self.visit_children(get)

    def visit_constant(self, const: Constant) -> Expr:
        """Return the constant itself."""
        return const

    def visit_op(self, op: Op) -> Expr:
        """Return the operator itself."""
        return op

    def visit_ref_create(self, ref: RefCreate) -> Expr:
        """Return the RefCreate rebuilt from its visited children."""
        return self.visit_children(ref)

    def visit_ref_read(self, ref: RefRead) -> Expr:
        """Return the RefRead rebuilt from its visited children."""
        return self.visit_children(ref)

    def visit_ref_write(self, ref: RefWrite) -> Expr:
        """Return the RefWrite rebuilt from its visited children."""
        return self.visit_children(ref)

    def visit_constructor(self, con: Constructor) -> Expr:
        """Return the constructor itself."""
        return con

    def visit_match(self, match: Match) -> Expr:
        """Return the Match rebuilt from its visited children."""
        return self.visit_children(match)


__all__ = ["ExprFunctor", "ExprMutator", "ExprVisitor"]
