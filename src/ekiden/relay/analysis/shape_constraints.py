"""Constraints that a program imposes on its symbolic dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import Analyzer
from ekiden.ir.op import Op
from ekiden.ir.prim import PrimExpr, SizeVar
from ekiden.ir.prim_visitor import ExprInterner, free_vars
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr, Function, If, Match
from ekiden.relay.visitor import children, post_order
from ekiden.topi.dimensions import collect_assumptions

Condition = tuple[PrimExpr, str]
"""Condition on dimensions, and the call that assumes it."""


def shape_conditions(function: Function) -> list[Condition]:
    """Return the conditions on parameter dimensions under which a typed function is valid.

    Those of operators that are evaluated in every run count, if they cannot be proved; each once.
    nn.dense(%x: Tensor[(1, n), float32], %w: Tensor[(5, 10), float32]) needs n == 10.
    """
    named = {v for p in function.params for v in _dim_symbols(p.checked_type)}
    if not named:
        return []
    conditions = _unproven_conditions(_unconditional_exprs(function.body))
    # Dimensions that data decide cannot be checked before the program runs.
    return [condition for condition in conditions if named.issuperset(free_vars(condition[0]))]


def kernel_conditions(function: Function) -> tuple[Condition, ...]:
    """Return the conditions on the argument and result dimensions of a primitive function.

    Dimensions of results may be data: the k of topk.
    """
    if not any(_dim_symbols(k.checked_type) for k in (*function.params, function.body)):
        return ()
    return tuple(_unproven_conditions(post_order(function.body)))


def has_conditions(call: Call) -> bool:
    """Return whether an operator call has unproven conditions on dimensions.

    A run may end at such a call.
    """
    return bool(_unproven_conditions((call,)))


def _unconditional_exprs(body: Expr) -> list[Expr]:
    """Return the expressions of a body outside branches, clauses and nested functions."""
    evaluated: dict[Expr, None] = {}
    stack = [body]
    while stack:
        expr = stack.pop()
        if expr in evaluated:
            continue
        evaluated[expr] = None
        # Only the test is evaluated in every run.
        if isinstance(expr, If):
            stack.append(expr.cond)
        elif isinstance(expr, Match):
            stack.append(expr.data)
        elif not isinstance(expr, Function):
            stack.extend(reversed(children(expr)))
    return list(evaluated)


def _unproven_conditions(order: Sequence[Expr]) -> list[Condition]:
    """Return the distinct unproven conditions of the operators among expressions."""
    unproved: dict[int, Condition] = {}
    analyzer, one = Analyzer(), ExprInterner()
    for expr in order:
        if not isinstance(expr, Call) or not isinstance(expr.op, Op):
            continue
        kinds = [a.checked_type for a in expr.args]
        if not any(map(_dim_symbols, (*kinds, expr.checked_type))):
            continue
        # Running the type relation again collects the conditions that it assumes.
        with collect_assumptions() as assumed:
            expr.op.definition.relation(kinds, expr.attrs)
        for condition in assumed:
            # Interned: layers of one network need the same conditions again and again.
            key = id(one(condition))
            if key not in unproved and not analyzer.can_prove(condition):
                where = expr.op.name + (f" ({expr.span})" if expr.span else "")
                unproved[key] = (condition, where)
    return list(unproved.values())


def _dim_symbols(kind: Type) -> set[SizeVar]:
    if isinstance(kind, TupleType):
        return {v for field in kind.fields for v in _dim_symbols(field)}
    dims = kind.shape if isinstance(kind, TensorType) else ()
    return {v for d in dims for v in free_vars(d) if isinstance(v, SizeVar)}
