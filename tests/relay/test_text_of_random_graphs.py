"""Text of random graphs: what is shared by branches, closures, lets and their bodies, and lets that
nothing reads, read back as they are.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from ekiden.ir.compare import assert_structural_equal
from ekiden.ir.module import IRModule
from ekiden.relay import (
    Call,
    Clause,
    Expr,
    Function,
    If,
    Let,
    Match,
    PatternVar,
    PatternWildcard,
    RefCreate,
    RefRead,
    Tuple,
    TupleGetItem,
    Var,
    const,
    op,
    parse,
    var,
)
from long_runs import sizes

pytestmark = pytest.mark.quick

NAMES = ("x", "y", "x_1", "x.1", "0", "fn", "let", "if", "meta", "a b")
"""Of variables; a text tells those apart that have one name."""


class Graph:
    """A random program over tensors of three floats. Each expression may be used again wherever its
    variables are bound."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.condition = var("c", shape=(), dtype="bool")

    def module(self) -> IRModule:
        """Return a program of one function."""
        params = [self.variable(), self.variable()]
        body = self.expr(self.chance.randrange(2, 9), [*params, const(np.ones(3, np.float32))])
        return IRModule.from_expr(Function((*params, self.condition), body))

    def variable(self) -> Var:
        """Return a new variable."""
        return var(self.chance.choice(NAMES), shape=(3,))

    def expr(self, depth: int, scope: list[Expr]) -> Expr:
        """Return an expression over those of a scope, which may use it from then on."""
        if depth <= 0 or self.chance.random() < 0.1:
            return self.chance.choice(scope)
        kinds = (
            self.sum, self.sum, self.let, self.unread_let, self.branch, self.projection,
            self.application, self.cell, self.choice, self.closure, self.match,
        )  # fmt: skip
        transformed = self.chance.choice(kinds)(depth - 1, scope)
        scope.append(transformed)
        return transformed

    def sum(self, depth: int, scope: list[Expr]) -> Expr:
        """Return `a + exp(b)`."""
        return op.add(self.expr(depth, scope), op.exp(self.expr(depth, scope)))

    def let(self, depth: int, scope: list[Expr]) -> Expr:
        """Return a let, whose value its body may use as well."""
        variable, value = self.variable(), self.expr(depth, scope)
        inside = [*scope, value, *[variable] * self.chance.randrange(3)]
        return Let(variable, value, self.expr(depth, inside))

    def unread_let(self, depth: int, scope: list[Expr]) -> Expr:
        """Return a let of a variable that nothing reads; its body is in the scope around it."""
        body = self.expr(depth, scope)
        scope.append(body)
        return Let(self.variable(), self.expr(depth, scope), body)

    def branch(self, depth: int, scope: list[Expr]) -> Expr:
        """Return an if."""
        branches = self.expr(depth, list(scope)), self.expr(depth, list(scope))
        return If(self.condition, *branches)

    def projection(self, depth: int, scope: list[Expr]) -> Expr:
        """Return a field of a tuple."""
        fields = Tuple((self.expr(depth, scope), self.expr(depth, scope)))
        return TupleGetItem(fields, self.chance.randrange(2))

    def choice(self, depth: int, scope: list[Expr]) -> Expr:
        """Return an if over fields of a tuple that is used outside too."""
        fields = Tuple((self.expr(depth, scope), self.expr(depth, scope)))
        first, second = TupleGetItem(fields, 0), TupleGetItem(fields, 1)
        return op.add(first, If(self.condition, second, first))

    def cell(self, depth: int, scope: list[Expr]) -> Expr:
        """Return what a new cell holds."""
        return RefRead(RefCreate(self.expr(depth, scope)))

    def application(self, depth: int, scope: list[Expr]) -> Expr:
        """Return a call of a function where it is written."""
        param = self.variable()
        function = Function((param,), self.expr(depth, [*scope, param]))
        return Call(function, (self.expr(depth, scope),))

    def closure(self, depth: int, scope: list[Expr]) -> Expr:
        """Return two calls of a function that a let binds."""
        name, param = var("f"), self.variable()
        function = Function((param,), self.expr(depth, [*scope, param]))
        calls = [Call(name, (self.expr(depth, scope),)) for _ in range(2)]
        return Let(name, function, op.add(*calls))

    def match(self, depth: int, scope: list[Expr]) -> Expr:
        """Return a match of one clause."""
        value, result = self.expr(depth, scope), self.expr(depth, scope)
        pattern = PatternWildcard() if self.chance.random() < 0.5 else PatternVar(var("v"))
        return Match(value, (Clause(pattern, result),))


@pytest.mark.slow
@sizes("count", 40, 20000)
def test_random_graphs_read_back(count: int) -> None:
    for seed in range(count):
        module = Graph(seed).module()
        assert_structural_equal(parse(module.astext()), module)
