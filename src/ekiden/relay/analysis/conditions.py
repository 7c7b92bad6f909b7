"""What a program takes for granted of the named dimensions of its arguments."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import Analyzer
from ekiden.ir.op import Op
from ekiden.ir.prim import PrimExpr, SizeVar
from ekiden.ir.prim_visitor import Interned, free_vars
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr, Function, If, Match
from ekiden.relay.visitor import children, post_order
from ekiden.topi.dimensions import assumptions

Condition = tuple[PrimExpr, str]
"""A condition on dimensions, and the call that needs it."""


def shape_conditions(function: Function) -> list[Condition]:
    """Return the conditions on named dimensions of parameters under which a typed function is
    valid.

    Those of operators that are evaluated in every run count, if they cannot be proved; each once.
    nn.dense(%x: Tensor[(1, n), float32], %w: Tensor[(5, 10), float32]) needs n == 10.
    """
    named = {v for p in function.params for v in _symbols(p.checked_type)}
    if not named:
        return []
    conditions = _conditions(_always_evaluated(function.body))
    return [condition for condition in conditions if named.issuperset(free_vars(condition[0]))]


def kernel_conditions(function: Function) -> tuple[Condition, ...]:
    """Return the conditions on dimensions of the arguments and results of a primitive function.

    Dimensions of results may be data: the k of topk.
    """
    if not any(_symbols(k.checked_type) for k in (*function.params, function.body)):
        return ()
    return tuple(_conditions(post_order(function.body)))


def has_conditions(call: Call) -> bool:
    """Return whether the call of an operator has conditions on dimensions that are not proved.

    A run may end at such a call.
    """
    return bool(_conditions((call,)))


def _always_evaluated(body: Expr) -> list[Expr]:
    """Return the expressions of a body that are in no branch, clause or function."""
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


def _conditions(order: Sequence[Expr]) -> list[Condition]:
    """Return the conditions of the operators among some expressions that are not proved,
    each once.
    """
    unproved: dict[int, Condition] = {}
    analyzer, one = Analyzer(), Interned()
    for expr in order:
        if not isinstance(expr, Call) or not isinstance(expr.op, Op):
            continue
        kinds = [a.checked_type for a in expr.args]
        if not any(map(_symbols, (*kinds, expr.checked_type))):
            continue
        # Running the type relation again collects the conditions that it assumes.
        with assumptions() as assumed:
            expr.op.definition.relation(kinds, expr.attrs)
        for condition in assumed:
            key = id(one(condition))
            if key not in unproved and not analyzer.can_prove(condition):
                where = expr.op.name + (f" ({expr.span})" if expr.span else "")
                unproved[key] = (condition, where)
    return list(unproved.values())


def _symbols(kind: Type) -> set[SizeVar]:
    if isinstance(kind, TupleType):
        return {v for field in kind.fields for v in _symbols(field)}
    dims = kind.shape if isinstance(kind, TensorType) else ()
    return {v for d in dims for v in free_vars(d) if isinstance(v, SizeVar)}
