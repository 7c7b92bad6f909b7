"""Reflective traversal and rewriting of scalar expressions, including TIR's and TE's nodes.

Expressions are graphs (a shared node is one object), so each node is visited once. Nothing here
recurses.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable
from itertools import chain
from typing import TypeAlias, cast

from ekiden.ir.dtype import is_float
from ekiden.ir.node import node_fields
from ekiden.ir.prim import (
    AnyDim,
    BinaryExpr,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    PrimExpr,
    Var,
    fold_binary,
)

_LITERAL, _EXPR, _MANY, _OPTIONAL = range(4)
_KIND_BY_ANNOTATION = {
    "PrimExpr": _EXPR,
    "tuple[PrimExpr, ...]": _MANY,
    "PrimExpr | None": _OPTIONAL,
}
_FIELD_KINDS: dict[type, tuple[tuple[str, int], ...]] = {}
_Getter: TypeAlias = Callable[[PrimExpr], tuple[PrimExpr, ...]]
_CHILD_GETTERS: dict[type, _Getter] = {}


def field_kinds(kind: type[PrimExpr], sample: PrimExpr) -> tuple[tuple[str, int], ...]:
    """Return (field, kind of children it holds) for a node class in constructor order; variables
    have no children.
    """
    rows_of_kind = _FIELD_KINDS.get(kind)
    if rows_of_kind is None:
        leaf = issubclass(kind, Var)
        rows = [
            (f.name, _LITERAL if leaf else _KIND_BY_ANNOTATION.get(str(f.type), _LITERAL))
            for f in node_fields(sample)
            if not f.kw_only and "ignored" not in f.metadata
        ]
        rows_of_kind = _FIELD_KINDS[kind] = tuple(rows)
    return rows_of_kind


def literal_fields(expr: PrimExpr) -> tuple[object, ...]:
    """Return the values of the non-expression fields: operator name, lanes, dtype, buffer.

    Nodes may be told apart by them alone: what compares equal means the same. A float is its
    hexadecimal text: 0.0 == -0.0 are two constants, and nan != nan one.
    """
    if isinstance(expr, FloatImm):
        # As text: 0.0 and -0.0 are equal floats, and a NaN is unequal to itself.
        return float(expr.value).hex(), expr.dtype
    return tuple(
        getattr(expr, name) for name, kind in field_kinds(type(expr), expr) if kind == _LITERAL
    )


def _make_child_getter(sample: PrimExpr) -> _Getter:
    """Build the function that returns the children of a node class."""
    rows = [(name, kind) for name, kind in field_kinds(type(sample), sample) if kind != _LITERAL]
    names = [name for name, _ in rows]
    if not rows:
        return _no_children
    # `attrgetter` of several names gives a tuple, of one name the value itself.
    if all(kind == _EXPR for _, kind in rows):
        return (
            _single_child_getter(names[0])
            if len(names) == 1
            else cast(_Getter, operator.attrgetter(*names))
        )
    is_one_tuple = rows == [(names[0], _MANY)]
    return cast(_Getter, operator.attrgetter(names[0])) if is_one_tuple else _mixed_children


def _single_child_getter(name: str) -> _Getter:
    get = cast(Callable[[PrimExpr], PrimExpr], operator.attrgetter(name))
    return lambda e: (get(e),)


def _no_children(_: PrimExpr) -> tuple[PrimExpr, ...]:
    return ()


def _mixed_children(expr: PrimExpr) -> tuple[PrimExpr, ...]:
    expressions: list[PrimExpr] = []
    for name, kind in field_kinds(type(expr), expr):
        if kind == _MANY:
            expressions.extend(getattr(expr, name))
        elif kind != _LITERAL and getattr(expr, name) is not None:
            expressions.append(getattr(expr, name))
    return tuple(expressions)


def children(expr: PrimExpr) -> tuple[PrimExpr, ...]:
    """Return the direct subexpressions in field order."""
    get = _CHILD_GETTERS.get(type(expr))
    if get is None:
        get = _CHILD_GETTERS[type(expr)] = _make_child_getter(expr)
    return get(expr)


def rebuild(expr: PrimExpr, new: Iterable[PrimExpr]) -> PrimExpr:
    """Rebuild a node with new children, folding constants.

    The node itself if they are the same.
    """
    operands = tuple(new)
    if all(map(operator.is_, operands, children(expr))):
        return expr
    if isinstance(expr, BinaryExpr):
        # Folding here keeps passes from having to simplify what they substitute.
        return fold_binary(type(expr), operands[0], operands[1])
    values = iter(operands)
    arguments: list[object] = []
    for name, kind in field_kinds(type(expr), expr):
        old = getattr(expr, name)
        if kind == _MANY:
            arguments.append(tuple(next(values) for _ in old))
        else:
            arguments.append(old if kind == _LITERAL or old is None else next(values))
    return type(expr)(*arguments)


def chain_operands(expr: PrimExpr, kind: type[BinaryExpr]) -> list[PrimExpr]:
    """Return the operands of a chain of one binary operator, in order: a, b, c of (a + b) + c."""
    operands: list[PrimExpr] = []
    pending = [expr]
    while pending:
        node = pending.pop()
        if isinstance(node, kind):
            pending += (node.b, node.a)
        else:
            operands.append(node)
    return operands


def post_order(*roots: PrimExpr) -> list[PrimExpr]:
    """Return every distinct node once, children first."""
    return unvisited_post_order(roots, ())


def unvisited_post_order(roots: Iterable[PrimExpr], done: Container[int]) -> list[PrimExpr]:
    """Return the post order without nodes whose id is in `done` and their subexpressions."""
    visited: set[int] = set()
    order: list[PrimExpr] = []
    stack: list[PrimExpr | None] = [*roots]
    stack.reverse()
    opened: list[PrimExpr] = []
    getters = _CHILD_GETTERS
    while stack:
        expr = stack.pop()
        # The mark behind a node's children: they are in the order, and now the node itself.
        if expr is None:
            order.append(opened.pop())
            continue
        number = id(expr)
        if number in visited or number in done:
            continue
        visited.add(number)
        get = getters.get(type(expr))
        inside = children(expr) if get is None else get(expr)
        if inside:
            opened.append(expr)
            stack.append(None)
            stack.extend(inside[::-1])
        else:
            order.append(expr)
    return order


def rewrite(
    expr: PrimExpr, change: Callable[[PrimExpr], PrimExpr], memo: dict[int, PrimExpr] | None = None
) -> PrimExpr:
    """Rewrite an expression bottom-up; `change` maps each node with rewritten children to its
    replacement.

    `memo` (by id of the old node) may be shared between calls while the old nodes live.
    """
    done = {} if memo is None else memo
    if id(expr) in done:
        return done[id(expr)]
    # Nodes that the memo holds are skipped with all below them: a caller may share it between
    # expressions.
    for node in unvisited_post_order((expr,), done):
        inside = children(node)
        for child in inside:
            if done[id(child)] is not child:
                done[id(node)] = change(rebuild(node, [done[id(c)] for c in inside]))
                break
        else:
            done[id(node)] = change(node)
    return done[id(expr)]


def substitute(
    expr: PrimExpr, values: dict[Var, PrimExpr], memo: dict[int, PrimExpr] | None = None
) -> PrimExpr:
    """Substitute variables, with constant folding only."""
    # Most expressions of a program have none of the variables; their leaves are cached.
    if not values or values.keys().isdisjoint(expr_leaves(expr)):
        return expr
    if isinstance(expr, Var):
        return values[expr]
    return rewrite(expr, lambda e: values.get(e, e) if isinstance(e, Var) else e, memo)


def is_same_expr(a: PrimExpr, b: PrimExpr) -> bool:
    """Return whether two expressions are structurally identical over the same variables and
    buffers.
    """
    stack = [(a, b)]
    compared: set[tuple[int, int]] = set()
    while stack:
        x, y = stack.pop()
        if x is y or (id(x), id(y)) in compared:
            continue
        # Shared parts are compared once: without it the walk is exponential in nested sharing.
        compared.add((id(x), id(y)))
        inside, inside_y = children(x), children(y)
        alike = type(x) is type(y) and not isinstance(x, Var) and len(inside) == len(inside_y)
        if not alike or literal_fields(x) != literal_fields(y):
            return False
        stack.extend(zip(inside, inside_y, strict=True))
    return True


class ExprInterner:
    """Hash-consing table: one object per structurally identical expression and subexpression. As
    `structural_key` tells them apart, but what was met before is not looked into again.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[object, ...], PrimExpr] = {}
        self._interned_exprs: dict[int, tuple[PrimExpr, PrimExpr]] = {}
        """Interned expression by the identity of each seen one, which is kept alive."""

    def __call__(self, expr: PrimExpr) -> PrimExpr:
        """Return the canonical object of an expression."""
        interned, rows = self._interned_exprs, self._rows
        if id(expr) not in interned:
            for node in unvisited_post_order((expr,), interned):
                inside = [interned[id(c)][0] for c in children(node)]
                node_key = (id(node),) if isinstance(node, Var) else literal_fields(node)
                # Children count by identity: they are interned before, so that one level is enough.
                row = (type(node), *node_key, *map(id, inside))
                if row not in rows:
                    rows[row] = rebuild(node, inside) if inside else node
                interned[id(node)] = rows[row], node
        return interned[id(expr)][0]


def has_more_nodes(expr: PrimExpr, nodes: int) -> bool:
    """Return whether the expression tree has more than `nodes` nodes.

    Shared nodes count each time. At most that many are looked at.
    """
    stack = [expr]
    while stack and nodes >= 0:
        # Shared nodes count each time they are reached, as they do in the printed text.
        nodes -= 1
        stack.extend(children(stack.pop()))
    return nodes < 0


def has_nonconstant_divisor(e: PrimExpr) -> bool:
    """Return whether the node is an integer division by a non-constant, which may be 0."""
    if isinstance(e, (FloorDiv, FloorMod)):
        return not isinstance(e.b, IntImm)
    return isinstance(e, Div) and not is_float(e.dtype) and not isinstance(e.b, IntImm)


def expr_leaves(expr: PrimExpr) -> tuple[PrimExpr, ...]:
    """Return the distinct variables and unknown dimensions in order of appearance."""
    # Kept with the expression, which never changes: sizes of deep networks are made from each
    # other, and every layer asks of its own, so that looking into them would take a walk each time.
    cached: tuple[PrimExpr, ...] | None = getattr(expr, "_leaves", None)
    if cached is None:
        cached = tuple(_collect_leaves(expr))
        # Nodes are frozen; this slot is a cache, and no field.
        object.__setattr__(expr, "_leaves", cached)
    return cached


def _collect_leaves(root: PrimExpr) -> dict[PrimExpr, None]:
    leaves: dict[PrimExpr, None] = {}
    visited: set[int] = set()
    stack = [root]
    while stack:
        expr = stack.pop()
        if id(expr) in visited:
            continue
        visited.add(id(expr))
        cached = getattr(expr, "_leaves", None)
        if cached is not None:
            leaves.update(dict.fromkeys(cached))
        elif isinstance(expr, (Var, AnyDim)):
            leaves[expr] = None
        else:
            stack.extend(children(expr)[::-1])
    return leaves


def has_unknown_dim(expr: PrimExpr) -> bool:
    """Return whether the expression contains an unknown dimension."""
    # An AnyDim is a leaf, so the cached leaves answer this without another walk.
    return any(isinstance(e, AnyDim) for e in expr_leaves(expr))


def free_vars(*exprs: PrimExpr) -> list[Var]:
    """Return the distinct variables in order of appearance."""
    if len(exprs) == 1 and type(exprs[0]) is IntImm:  # as most sizes are
        return []
    return [e for e in dict.fromkeys(chain(*map(expr_leaves, exprs))) if isinstance(e, Var)]
