"""Scope tree of a function: in which scope (function body, branch, clause) each expression is
evaluated.

A scope is where bindings can be made: a function body, a branch of an `If`, the body of a `Let`,
the right side of a match clause. A shared expression belongs to the innermost scope that contains
all its uses.

    %0 = exp(%x); if (%c) { %0 } else { add(%0, %0) }        %0 belongs to the scope around the If

Relay's graphs do not say where an expression is evaluated: that follows from who uses it. Walks
that recurse would end at Python's limit in programs of a thousand operators, so all here use an
explicit stack; the common scope of two is found in a logarithm of their depth, by jump pointers
(Myers 1983), as a chain of 100,000 lets is as deep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from operator import is_

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.type import TupleType, tensor_type
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
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
from ekiden.relay.visitor import REBUILDERS, children, vars_bound_by
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(slots=True, eq=False)
class RelayScope:
    """Scope with its result, its parent, and its expressions in order of evaluation."""

    result: RelayExpr
    parent: RelayScope | None = None
    depth: int = 0
    jump_ancestor: RelayScope | None = None
    """Skip pointer to a farther ancestor, for ancestor queries in logarithmic time."""
    nodes: list[RelayExpr] = field(default_factory=list)
    outputs: set[RelayExpr] = field(default_factory=set)
    """Expressions used outside this scope's own operands."""
    child_scopes: dict[RelayExpr, list[RelayScope]] = field(default_factory=dict)
    """Child scopes that each expression opens, one per body."""

    def open_child(self, result: RelayExpr) -> RelayScope:
        """Open a child scope."""
        near = self.jump_ancestor
        far = near.jump_ancestor if near is not None else None
        # Skew-binary jumps: two jumps of equal length are merged into one (Myers 1983).
        if near is None or far is None or self.depth - near.depth != near.depth - far.depth:
            far = self
        return RelayScope(result, self, self.depth + 1, far)


def is_atom(expr: RelayExpr) -> bool:
    """Return whether an expression needs no evaluation: variables, operators, constructors,
    primitive functions.
    """
    if isinstance(expr, Function):
        return expr.attr("Primitive") is not None
    return type(expr) in _ATOM_CLASSES


_ATOM_CLASSES = frozenset((Var, GlobalVar, Op, Constructor))


def is_scoped(expr: RelayExpr) -> bool:
    """Return whether an expression is evaluated in a scope: neither an atom nor a constant."""
    return not isinstance(expr, Constant) and not is_atom(expr)


def _call_operands(call: Call) -> tuple[RelayExpr, ...]:
    op = call.op
    # A callee held in a variable is a closure value, and so an operand.
    if type(op) is Op or (is_atom(op) and type(op) is not Var):
        return call.args
    return (op, *call.args)


# fmt: off
_OPERAND_GETTERS: dict[type, Callable[..., tuple[RelayExpr, ...]]] = {
    Call:         _call_operands,
    Tuple:        lambda e: e.fields,
    TupleGetItem: lambda e: (e.tuple_value,),
    RefCreate:    lambda e: (e.value,),
    Let:          lambda e: (e.value,),
    If:           lambda e: (e.cond,),
    Match:        lambda e: (e.data,),
    RefRead:      lambda e: (e.ref,),
    RefWrite:     lambda e: (e.ref, e.value),
}
_BODY_GETTERS: dict[type, Callable[..., tuple[RelayExpr, ...]]] = {
    If:           lambda e: (e.true_branch, e.false_branch),
    Let:          lambda e: (e.body,),
    Match:        lambda e: tuple(c.rhs for c in e.clauses),
    Function:     lambda e: () if is_atom(e) else (e.body,),
}
# fmt: on


_ChildGetter = Callable[..., tuple[RelayExpr, ...]]


def _operands_and_bodies(kind: type) -> _ChildGetter:
    rows: list[_ChildGetter] = [
        table[kind] for table in (_OPERAND_GETTERS, _BODY_GETTERS) if kind in table
    ]
    if len(rows) == 1:
        return rows[0]
    first, second = rows
    return lambda e: first(e) + second(e)


_OPERANDS_AND_BODIES: dict[type, _ChildGetter] = {
    kind: _operands_and_bodies(kind) for kind in _OPERAND_GETTERS | _BODY_GETTERS
}
"""Child getters by node class: operands first, then bodies."""


def operands(expr: RelayExpr) -> tuple[RelayExpr, ...]:
    """Return the children that an expression evaluates in its own scope."""
    read = _OPERAND_GETTERS.get(type(expr))
    return () if read is None else read(expr)


def bodies(expr: RelayExpr) -> tuple[RelayExpr, ...]:
    """Return the body expressions of the scopes that an expression opens."""
    read = _BODY_GETTERS.get(type(expr))
    return () if read is None else read(expr)


def evaluation_order(root: RelayExpr, into_bodies: bool = True) -> list[RelayExpr]:
    """Return all expressions below root in post-order, shared ones once; those of the scope of root
    alone unless `into_bodies`. Iterative.
    """
    order: list[RelayExpr] = []
    visited: set[int] = set()
    opened: list[RelayExpr] = []
    stack: list[RelayExpr | None] = [root]
    rows = _OPERANDS_AND_BODIES if into_bodies else _OPERAND_GETTERS
    while stack:
        expr = stack.pop()
        if expr is None:
            order.append(opened.pop())
            continue
        number = id(expr)
        if number in visited:
            continue
        visited.add(number)
        read = rows.get(type(expr))
        inside = () if read is None else read(expr)
        if inside:
            # A None on the stack marks the end of the children of the last opened expression.
            opened.append(expr)
            stack.append(None)
            stack.extend(inside[::-1])
        else:
            order.append(expr)
    return order


def count_uses(root: RelayExpr) -> Counter[RelayExpr]:
    """Return how often each expression below root is an operand or the result of a scope. What
    several scopes share counts in each of them.
    """
    inner = [body for expr in evaluation_order(root) for body in bodies(expr)]
    uses = Counter([root, *inner])
    for scope in list(uses):
        for expr in evaluation_order(scope, into_bodies=False):
            uses.update(operands(expr))
    return uses


def captured_vars(root: RelayExpr) -> set[Var]:
    """Return the free variables of all function values in an expression."""
    captured: set[Var] = set()
    # A variable is free in some function value exactly if the innermost one around a use of it does
    # not bind it: no function is walked again for those around it.
    for function in evaluation_order(root):
        if isinstance(function, Function) and not is_atom(function):
            used, bound = _direct_variables(function)
            captured |= used - bound
    return captured


def _direct_variables(function: Function) -> tuple[set[Var], set[Var]]:
    """Return the variables that the body of a function uses and those that the function binds,
    without those of function values in it.
    """
    used: set[Var] = set()
    bound = set(vars_bound_by(function))
    visited: set[RelayExpr] = set()
    stack = [function.body]
    while stack:
        expr = stack.pop()
        if expr in visited:
            continue
        visited.add(expr)
        if isinstance(expr, Var):
            used.add(expr)
        elif not isinstance(expr, Function):
            bound.update(vars_bound_by(expr))
            stack += (*operands(expr), *bodies(expr))
    return used, bound


def enclosing_scope(scope: RelayScope, depth: int) -> RelayScope:
    """Return the ancestor of a scope at a given depth, or the scope itself."""
    while scope.depth > depth:
        assert scope.parent is not None
        scope = (
            scope.jump_ancestor
            if scope.jump_ancestor is not None and scope.jump_ancestor.depth >= depth
            else scope.parent
        )
    return scope


def _lowest_common_ancestor(a: RelayScope | None, b: RelayScope) -> RelayScope:
    """Return the lowest common ancestor of two scopes."""
    if a is None:
        return b
    scope_a, scope_b = enclosing_scope(a, b.depth), enclosing_scope(b, a.depth)
    while scope_a is not scope_b:
        # Jump while the jumps differ: the common ancestor lies above both.
        is_far = scope_a.jump_ancestor is not scope_b.jump_ancestor
        up, across = (
            (scope_a.jump_ancestor, scope_b.jump_ancestor)
            if is_far
            else (scope_a.parent, scope_b.parent)
        )
        assert up is not None and across is not None
        scope_a, scope_b = up, across
    return scope_a


def find_scopes(root: RelayExpr) -> list[RelayScope]:
    """Build the scope tree of an expression; outer scopes precede inner ones.

    Atoms and constants belong to none.
    """
    order = evaluation_order(root)
    scopes = [RelayScope(root)]
    where: dict[RelayExpr, RelayScope] = {root: scopes[0]}
    uses: list[tuple[RelayExpr, RelayScope]] = []
    # Users come first, so a node's scope is final when its operands are visited.
    for expr in reversed(order):
        if not is_scoped(expr):
            continue
        scope = where[expr]
        for operand in operands(expr):
            if is_scoped(operand):
                # A shared expression is evaluated in the lowest common ancestor of all its users'
                # scopes.
                where[operand] = _lowest_common_ancestor(where.get(operand), scope)
                uses.append((operand, scope))
        for body in bodies(expr):
            inner = scope.open_child(body)
            scope.child_scopes.setdefault(expr, []).append(inner)
            scopes.append(inner)
            where[body] = _lowest_common_ancestor(where.get(body), inner)
    for expr in order:
        if is_scoped(expr):
            where[expr].nodes.append(expr)
    for expr, scope in uses:
        if scope is not where[expr]:
            where[expr].outputs.add(expr)
    for scope in scopes:
        where[scope.result].outputs.add(scope.result)
    return scopes


def replace_children(expr: RelayExpr, new: Mapping[RelayExpr, RelayExpr]) -> RelayExpr:
    """Return `expr` with children replaced by the map `new`, or itself if nothing changes.

    A rebuilt expression keeps its span and, since passes keep types, its checked type. Primitive
    functions are never changed.
    """
    if isinstance(expr, Function) and is_atom(expr):
        return expr
    return _replace_children(expr, children(expr), new)


def _replace_children(
    expr: RelayExpr, inside: tuple[RelayExpr, ...], new: Mapping[RelayExpr, RelayExpr]
) -> RelayExpr:
    """Replace the children of an expression that is no primitive function."""
    new_children = [new.get(child, child) for child in inside]
    if all(map(is_, inside, new_children)):
        return expr
    rebuilt = REBUILDERS[type(expr)](expr, new_children)
    if (old_type := expr.checked_type_or_none()) is not None:
        rebuilt.set_checked_type(old_type)
    return rebuilt


def infer_local_type(expr: RelayExpr) -> RelayExpr:
    """Infer the type of a constant, operator call, tuple or projection from its operands' types,
    unless it is typed. Raises ValueError for another expression.
    """
    if expr.checked_type_or_none() is not None:
        return expr
    match expr:
        case Constant(data=data):
            expr.set_checked_type(tensor_type(data.shape, str(data.dtype)))
        case Call(op=Op() as op, args=args):
            for arg in args:
                # A tuple that a rewrite created may be without a type.
                if isinstance(arg, Tuple):
                    infer_local_type(arg)
            expr.set_checked_type(
                op.definition.relation([a.checked_type for a in args], expr.attrs)
            )
        case Tuple(fields=fields):
            expr.set_checked_type(TupleType(tuple(f.checked_type for f in fields)))
        case TupleGetItem(tuple_value=value, index=index):
            kind = value.checked_type
            assert isinstance(kind, TupleType)
            expr.set_checked_type(kind.fields[index])
        case _:
            raise ValueError(
                f"cannot infer the type of a {type(expr).__name__} from its operands alone"
            )
    return expr


def rewrite_graph(
    root: RelayExpr, rewrite: Callable[[RelayExpr, RelayExpr], RelayExpr]
) -> RelayExpr:
    """Rewrite a graph bottom-up: `rewrite(old, rebuilt)` returns the replacement of `old`. Shared
    stays shared. Iterative. What all users of an expression have taken is let go: of a chain of
    folded weights one is held, not each.
    """
    new: dict[RelayExpr, RelayExpr] = {}
    order = [(expr_, () if is_atom(expr_) else children(expr_)) for expr_ in evaluation_order(root)]
    waiting = Counter(child for _, inside in order for child in inside)
    for expr, inside in order:
        new[expr] = rewrite(expr, _replace_children(expr, inside, new) if inside else expr)
        for child in inside:
            waiting[child] -= 1
            # Results whose users are all rewritten are released, so folded weights are freed early.
            if not waiting[child]:
                new.pop(child, None)
    return new[root]


def map_functions(module: IRModule, rewrite: Callable[[Function], BaseFunc]) -> IRModule:
    """Map a rewrite over a module's Relay functions, except those of external compilers."""
    return module.with_functions(
        {
            name: rewrite(f) if isinstance(f, Function) and f.attr("Compiler") is None else f
            for name, f in module.functions.items()
        }
    )


def lift_body_rewrite(rewrite: Callable[[RelayExpr], RelayExpr]) -> Callable[[Function], Function]:
    """Turn a rewrite of bodies into a rewrite of functions.

    The body of a lifted closure is that of the function that it returns.
    """

    def rewrite_body(function: Function) -> Function:
        """Rewrite a function's body; for a Closure, that of the function it returns."""
        inner = function.body
        if function.attr("Closure") is not None and isinstance(inner, Function):
            inner = inner.with_fields(body=rewrite(inner.body))
            return function.with_fields(body=inner)
        return function.with_fields(body=rewrite(inner))

    return rewrite_body
