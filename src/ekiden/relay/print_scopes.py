"""Binding scopes of the printer: the innermost block that contains all uses of an expression."""

from __future__ import annotations

from dataclasses import field

from ekiden.relay.expr import (
    Call,
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
)
from ekiden.relay.visitor import ATOM_CLASSES
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(slots=True, eq=False)
class PrintBlock:
    """Block of printed bindings: function body, branch, clause or non-tail let."""

    result: Expr
    parent: PrintBlock | None = None
    depth: int = 0
    lines: list[str] = field(default_factory=list)


Event = tuple[Expr, bool]
"""Expression in post-order, or (with True) the point at which a let binds its variable."""


def block_children(expr: Expr) -> tuple[Expr, ...]:
    """Return the children that form blocks of their own."""
    match expr:
        case Function(body=body):
            return (body,)
        case If(true_branch=yes, false_branch=no):
            return (yes, no)
        case Match(clauses=clauses):
            return tuple(c.rhs for c in clauses)
        case _:
            return ()


def inline_children(expr: Expr) -> tuple[Expr, ...]:
    """Return the children evaluated in the same block; of a let, only the value."""
    match expr:
        case Call(op=op, args=args):
            return (*args, op)  # so that a function is printed beside its call
        case Tuple(fields=inner):
            return inner
        case TupleGetItem(tuple_value=value) | RefCreate(value=value) | Let(value=value):
            return (value,)
        case If(cond=cond):
            return (cond,)
        case Match(data=data):
            return (data,)
        case RefRead(ref=ref):
            return (ref,)
        case RefWrite(ref=ref, value=value):
            return (ref, value)
        case _:
            return ()


def print_order(root: Expr) -> list[Event]:
    """Return the non-atomic expressions below root in textual order."""
    order: list[Event] = []
    done: set[Expr] = set()
    stack: list[tuple[Expr, str]] = [(root, "open")]
    while stack:
        expr, what = stack.pop()
        if what != "open":
            order.append((expr, what == "bind"))
        elif expr not in done and not isinstance(expr, ATOM_CLASSES):
            done.add(expr)
            # Closed when all its parts are in the order: the text of an expression follows theirs.
            stack.append((expr, "close"))
            if isinstance(expr, Let):
                stack += ((expr.body, "open"), (expr, "bind"), (expr.value, "open"))
            else:
                stack.extend(
                    (e, "open") for e in reversed((*inline_children(expr), *block_children(expr)))
                )
    return order


def lowest_common_block(a: PrintBlock | None, b: PrintBlock) -> PrintBlock:
    """Return the innermost block around both, or `b` if `a` is None."""
    if a is None:
        return b
    while a is not b:
        if a.depth < b.depth:
            a, b = b, a
        assert a.parent is not None
        a = a.parent
    return a


class PrintScopes:
    """Block and use count of every expression below a root."""

    def __init__(self, root: Expr) -> None:
        self.events = print_order(root)
        self.root_block = PrintBlock(root)
        # An expression is bound in the innermost block that contains all of its uses.
        self.block_by_expr: dict[Expr, PrintBlock] = {root: self.root_block}
        self.nested_blocks: dict[tuple[Expr, int], PrintBlock] = {}
        self.use_counts: dict[Expr, int] = {root: 1}
        self.tail_lets: set[Expr] = set()
        self.results: set[Expr] = {root}
        # Users before operands: the block of an operand is the common one of all its uses.
        for expr, is_binding in reversed(self.events):
            if not is_binding:
                self._assign_children(expr)

    def _assign_block(self, expr: Expr, block: PrintBlock) -> None:
        self.block_by_expr[expr] = lowest_common_block(self.block_by_expr.get(expr), block)
        self.use_counts[expr] = self.use_counts.get(expr, 0) + 1

    def _assign_children(self, expr: Expr) -> None:
        block = self.block_by_expr[expr]
        if isinstance(expr, Let):
            block = self._let_body_block(expr, block)
        for operand in inline_children(expr):
            self._assign_block(operand, block)
        for index, body in enumerate(block_children(expr)):
            inner = self.nested_blocks[expr, index] = PrintBlock(body, block, block.depth + 1)
            self.results.add(body)
            self._assign_block(body, inner)

    def _let_body_block(self, let: Let, block: PrintBlock) -> PrintBlock:
        """Return the block of a let's body.

        A let that is the one result of its block continues it; any other let opens a block.
        """
        # A let in tail position continues its block; others need brackets.
        if let is block.result and self.use_counts[let] == 1:
            self.tail_lets.add(let)
            block.result = let.body
        else:
            block = self.nested_blocks[let, 0] = PrintBlock(let.body, block, block.depth + 1)
        self.results.add(let.body)
        self._assign_block(let.body, block)
        return block


__all__ = ["PrintBlock", "PrintScopes"]
