"""Walks over statements and expressions, by TVM's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.ir.prim import PrimExpr, Var, convert
from ekiden.ir.prim_visitor import post_order
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.tir.distinct import renew_defs
from ekiden.tir.stmt import PrimFunc, Stmt
from ekiden.tir.visitor import ExprRewriter, expressions, sub_statements
from ekiden.tir.visitor import substitute as substitute_stmt

Part = Stmt | PrimExpr


def post_order_visit(stmt: Part | PrimFunc, fvisit: Callable[[Part], object]) -> None:
    """Call a function for every node, those inside first; a node that occurs twice once."""
    if isinstance(stmt, PrimExpr):
        for e in post_order(stmt):
            fvisit(e)
        return
    seen: set[int] = set()
    stack: list[tuple[Stmt, bool]] = [(_body(stmt), False)]
    while stack:
        s, is_open = stack.pop()
        if is_open:
            fvisit(s)
        else:
            for e in post_order(*expressions(s)):
                if id(e) not in seen:
                    seen.add(id(e))
                    fvisit(e)
            stack.append((s, True))
            stack.extend((each, False) for each in reversed(sub_statements(s)))


def pre_order_visit(stmt: Stmt | PrimFunc, fvisit: Callable[[Part], bool]) -> None:
    """Call a function for every statement and the expressions in it, outer ones first; where it
    gives False, what is inside a statement is left out.
    """
    stack = [_body(stmt)]
    while stack:
        s = stack.pop()
        if fvisit(s) is False:
            continue
        for e in post_order(*expressions(s)):
            fvisit(e)
        stack.extend(reversed(sub_statements(s)))


def _body(stmt: Stmt | PrimFunc) -> Stmt:
    return stmt.body if isinstance(stmt, PrimFunc) else stmt


def substitute(node: Part, vmap: Mapping[Var, object]) -> Part:
    """A statement or an expression with expressions in the place of variables."""
    values = {v: convert(e, v.dtype) for v, e in vmap.items()}  # type: ignore[arg-type]
    if isinstance(node, PrimExpr):
        return substitute_expr(node, values)
    return substitute_stmt(node, values)


def ir_transform(
    stmt: Stmt,
    preorder: Callable[[Part], Part | None] | None,
    postorder: Callable[[Part], Part | None] | None,
    only_enable: Sequence[str] | None = None,
) -> Stmt:
    """A statement rewritten: what `preorder` gives for a node takes its place whole; else what
    `postorder` gives for the node made of its rewritten parts. None leaves a node.

    `only_enable`: type keys of the nodes to ask about, such as "tir.Call"; all without it.
    """
    enabled = None if only_enable is None else set(only_enable)

    def asked(node: Part) -> bool:
        return enabled is None or type(node).type_key in enabled

    def after(node: Part) -> Part:
        found = postorder(node) if postorder is not None and asked(node) else None
        return node if found is None else found

    def change(e: PrimExpr) -> PrimExpr:
        """An expression's node whose children were rewritten: `rewrite` works from the leaves
        up."""
        found = preorder(e) if preorder is not None and asked(e) else None
        made = after(e) if found is None else found
        assert isinstance(made, PrimExpr)
        return made

    class _Rewriter(ExprRewriter):
        def visit(self, stmt: Stmt) -> Stmt:
            """A statement; where `preorder` gave one, that is not walked into."""
            found = preorder(stmt) if preorder is not None and asked(stmt) else None
            if isinstance(found, Stmt):
                return found
            made = after(super().visit(stmt))
            assert isinstance(made, Stmt)
            return made

    return _Rewriter(change).visit(stmt)


__all__ = ["ir_transform", "post_order_visit", "pre_order_visit", "renew_defs", "substitute"]
