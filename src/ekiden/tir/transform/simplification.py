"""Simplify every expression under the ranges of the enclosing loops; loops of one iteration become
their body. The pass also uses the conditions around a statement, those within an expression, and
preceding `T.assume`s.

    if i < 5: (if i < 7: s)  ->  if i < 5: s         i < n + 5 and i < n + 9  ->  i < n + 5
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce

from ekiden.arith import Analyzer
from ekiden.ir.prim import (
    COMPARISON_OPS,
    EQ,
    LE,
    LT,
    NE,
    And,
    BinaryExpr,
    IntImm,
    Intrinsic,
    Not,
    Or,
    PrimExpr,
    Select,
    Var,
    const,
    fold_binary,
)
from ekiden.ir.prim_visitor import chain_operands, children, post_order, rebuild, substitute
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import BufferStore, Evaluate, For, IfThenElse, LetStmt, PrimFunc, SeqStmt, Stmt
from ekiden.tir.transform.dead_code_elimination import is_self_store
from ekiden.tir.visitor import NO_OP, StmtMutator, flatten_seq, is_no_op


# Ranges of loops are bound on the way in and not taken back: outside of its loop a variable is in
# no expression, and a second loop over it binds it anew.
class Simplifier(StmtMutator):
    """A mutator that simplifies expressions and hash-conses them: afterwards equal expressions are
    the same object.
    """

    def __init__(self) -> None:
        self.analyzer = Analyzer()
        self.var_values: dict[Var, PrimExpr] = {}

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the simplified expression."""
        return self.analyzer.simplify(substitute(expr, self.var_values))

    def replace(self, var: Var, value: PrimExpr) -> None:
        """Substitute a value for a variable from here on."""
        self.var_values[var] = value

    def visit_for(self, stmt: For) -> Stmt:
        """Rewrite for i in range(a, a + 1): s to s[i := a], and for i in range(a, a): s to
        nothing.
        """
        low, extent = self.rewrite_expr(stmt.min), self.rewrite_expr(stmt.extent)
        if isinstance(extent, IntImm) and extent.value <= 0:
            return NO_OP
        if isinstance(extent, IntImm) and extent.value == 1:
            self.replace(stmt.loop_var, low)
            return self.visit(stmt.body)
        self.analyzer.bind(stmt.loop_var, low, extent)
        body = self.visit(stmt.body)
        return body if is_no_op(body) else stmt.with_fields(min=low, extent=extent, body=body)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Remove an empty branch."""
        new = super().visit_if(stmt)
        if isinstance(new, IfThenElse) and is_no_op(new.then_case) and new.else_case is None:
            return NO_OP
        return new


MAX_CHOICE_DEPTH, MAX_JOINED_CONDITIONS = 24, 12
"""MAX_CHOICE_DEPTH: maximum depth of nested selects that are simplified. MAX_JOINED_CONDITIONS:
maximum number of conjuncts simplified under each other.
"""
_LOGICAL_NODES = (And, Or)


class _ConditionalSimplifier(Simplifier):
    """A Simplifier that uses the surrounding conditions."""

    def __init__(self) -> None:
        super().__init__()
        self.conditions: dict[Var, PrimExpr] = {}
        """Bool variables bound to conditions that no statement changes."""

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression simplified in its context."""
        expr = substitute(expr, self.var_values)
        if any(_is_conditional_expr(e) or isinstance(e, COMPARISON_OPS) for e in post_order(expr)):
            expr = self._simplify_choices(expr, 0)
        return self.analyzer.simplify(expr)

    def visit_if(self, stmt: IfThenElse) -> Stmt:
        """Simplify the sides under the condition and its negation."""
        condition = self.rewrite_expr(stmt.condition)
        # Decided with bool variables expanded; the branch itself keeps testing the variable.
        meaning = self.rewrite_expr(substitute(condition, self.conditions))
        if isinstance(meaning, IntImm):
            side = stmt.then_case if meaning.value else stmt.else_case
            return NO_OP if side is None else self.visit(side)
        then_case = self._visit_under(meaning, stmt.then_case)
        else_case = None
        if stmt.else_case is not None:
            else_case = self._visit_under(Not(meaning), stmt.else_case)
            else_case = None if is_no_op(else_case) else else_case
        if is_no_op(then_case) and else_case is None:
            return NO_OP
        return stmt.with_fields(condition=condition, then_case=then_case, else_case=else_case)

    def visit_seq(self, stmt: SeqStmt) -> Stmt:
        """Visit a sequence; the condition of T.assume(c) is known for the statements behind it."""
        statements: list[Stmt] = []
        with ExitStack() as scopes:
            for child in stmt.seq:
                statements.append(self.visit(child))
                condition = assumed_condition(statements[-1])
                if condition is not None:
                    lasting = _conjunction_of(_memory_free_conjuncts(condition))
                    scopes.enter_context(self.analyzer.constraint_scope(lasting))
        same = all(a is b for a, b in zip(statements, stmt.seq, strict=True))
        return stmt if same else flatten_seq(*statements)

    def visit_evaluate(self, stmt: Evaluate) -> Stmt:
        """Remove an assumption that is already known."""
        new = super().visit_evaluate(stmt)
        condition = assumed_condition(new)
        return NO_OP if isinstance(condition, IntImm) and condition.value else new

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Record a bool binding: let c = i < 3: if i < 3: if c: s -> let c = i < 3: if i < 3: s."""
        value = self.rewrite_expr(stmt.value)
        if value.dtype == "bool" and _reads_no_memory(value):
            self.conditions[stmt.var] = value
        return stmt.with_fields(value=value, body=self.visit(stmt.body))

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite A[i] = A[i] to nothing."""
        new = super().visit_store(stmt)
        return NO_OP if isinstance(new, BufferStore) and is_self_store(new) else new

    def _visit_under(self, condition: PrimExpr, stmt: Stmt) -> Stmt:
        """Visit a statement under the part of a condition that no statement inside can change."""
        with self.analyzer.constraint_scope(_conjunction_of(_memory_free_conjuncts(condition))):
            return self.visit(stmt)

    def _simplify_choices(self, e: PrimExpr, depth: int) -> PrimExpr:
        """Return an expression with its choices simplified under each other's conditions."""
        # Each level simplifies its operands again under one more condition; the depth bounds that.
        if depth == MAX_CHOICE_DEPTH:
            return e
        match e:
            case Select() | Intrinsic(op="if_then_else"):
                condition, true_value, false_value = children(e)
                condition = self.analyzer.simplify(self._simplify_choices(condition, depth + 1))
                sides = [
                    self._simplify_under(holding, side, depth)
                    for holding, side in ((condition, true_value), (Not(condition), false_value))
                ]
                return rebuild(e, (condition, *sides))
            case And() | Or():
                return self._simplify_conjunction(e, depth)
        inside = children(e)
        e = rebuild(e, [self._simplify_choices(c, depth + 1) for c in inside]) if inside else e
        return self._strengthen_comparison(e) if isinstance(e, (LE, NE)) else e

    def _simplify_under(self, condition: PrimExpr, e: PrimExpr, depth: int) -> PrimExpr:
        """Return an expression simplified under a condition."""
        with self.analyzer.constraint_scope(condition):
            return self.analyzer.simplify(self._simplify_choices(e, depth + 1))

    # Each part is looked at under all the others, and what it became is what the next is looked at
    # under: of two equal parts only one goes, as the other then has none beside it that says the
    # same.
    def _simplify_conjunction(self, e: BinaryExpr, depth: int) -> PrimExpr:
        """Simplify a conjunction: each part under the others, removed where they imply it; in a
        disjunction under their negations.
        """
        kind = type(e)
        operands = chain_operands(e, kind)
        # Every operand is simplified under all others: quadratic in their number.
        if len(operands) > MAX_JOINED_CONDITIONS:
            return e
        absorbing = kind is Or
        # From the last to the first, so that a deletion moves no operand that is still to come.
        for n in range(len(operands) - 1, -1, -1):
            other_operands = [p for k, p in enumerate(operands) if k != n]
            assumptions = [Not(p) for p in other_operands] if absorbing else other_operands
            simplified = self._simplify_under(_conjunction_of(assumptions), operands[n], depth)
            # One absorbing operand decides the whole: False in a conjunction, True in a
            # disjunction.
            if isinstance(simplified, IntImm) and bool(simplified.value) == absorbing:
                return const(absorbing, "bool")
            if isinstance(simplified, IntImm):
                del operands[n]
            elif simplified.dtype == "bool":
                operands[n] = simplified
        return reduce(
            lambda a, b: fold_binary(kind, a, b), operands or [const(not absorbing, "bool")]
        )

    def _strengthen_comparison(self, e: BinaryExpr) -> PrimExpr:
        """Strengthen comparisons: a <= b with a >= b known -> a == b, with a != b known -> a < b; a
        != b with a <= b known -> a < b.
        """
        prove, a, b = self.analyzer.can_prove, e.a, e.b
        # The rewrites need a total order, which floats with NaN do not have.
        if a.dtype not in ("int32", "int64") or prove(e):
            return e
        if isinstance(e, LE):
            if prove(NE(a, b)) or prove(NE(b, a)):
                return LT(a, b)
            return (EQ(b, a) if isinstance(a, IntImm) else EQ(a, b)) if prove(LE(b, a)) else e
        return LT(a, b) if prove(LE(a, b)) else LT(b, a) if prove(LE(b, a)) else e


def assumed_condition(stmt: Stmt) -> PrimExpr | None:
    """Return the condition of a statement `T.assume(condition)`; None for any other."""
    value = stmt.value if isinstance(stmt, Evaluate) else None
    return value.args[0] if isinstance(value, Intrinsic) and value.op == "assume" else None


def _is_conditional_expr(e: PrimExpr) -> bool:
    return isinstance(e, (Select, *_LOGICAL_NODES)) or (
        isinstance(e, Intrinsic) and e.op == "if_then_else"
    )


# A condition that reads memory may be invalidated by a store inside the branch that it guards.
def _memory_free_conjuncts(condition: PrimExpr) -> list[PrimExpr]:
    """Return the conjuncts that hold whatever statements do: those that read no memory."""
    # De Morgan: not (a or b) is (not a) and (not b).
    if isinstance(condition, Not) and isinstance(condition.a, Or):
        conjuncts: list[PrimExpr] = [Not(p) for p in chain_operands(condition.a, Or)]
    else:
        conjuncts = chain_operands(condition, And)
    return [p for p in conjuncts if _reads_no_memory(p)]


def _reads_no_memory(condition: PrimExpr) -> bool:
    return not any(isinstance(e, _READING_NODES) for e in post_order(condition))


_READING_NODES = (BufferLoad, Intrinsic)


def _conjunction_of(conditions: Sequence[PrimExpr]) -> PrimExpr:
    return reduce(lambda a, b: fold_binary(And, a, b), conditions, const(True))


def simplify(func: PrimFunc) -> PrimFunc:
    """Return the function with simplified expressions."""
    return func.with_fields(body=_ConditionalSimplifier().visit(func.body))
