"""Visitors of statements and expressions, by TVM's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.ir.prim import PrimExpr, Var, convert
from ekiden.ir.prim_visitor import post_order
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.tir.alpha_renaming import renew_defs
from ekiden.tir.stmt import PrimFunc, Stmt
from ekiden.tir.visitor import ExprRewriter, stmt_exprs, sub_statements
from ekiden.tir.visitor import substitute as substitute_stmt

StmtOrExpr = Stmt | PrimExpr


def post_order_visit(stmt: StmtOrExpr | PrimFunc, fvisit: Callable[[StmtOrExpr], object]) -> None:
    """Call a function for every node in post-order; a shared node is visited once."""
    if isinstance(stmt, PrimExpr):
        for e in post_order(stmt):
            fvisit(e)
        return
    visited: set[int] = set()
    stack: list[tuple[Stmt, bool]] = [(_stmt_body(stmt), False)]
    while stack:
        s, is_open = stack.pop()
        if is_open:
            fvisit(s)
        else:
            for e in post_order(*stmt_exprs(s)):
                if id(e) not in visited:
                    visited.add(id(e))
                    fvisit(e)
            stack.append((s, True))
            stack.extend((child, False) for child in reversed(sub_statements(s)))


def pre_order_visit(stmt: Stmt | PrimFunc, fvisit: Callable[[StmtOrExpr], bool]) -> None:
    """Call a function for every statement and its expressions in pre-order; where it returns False,
    the inside of a statement is skipped.
    """
    stack = [_stmt_body(stmt)]
    while stack:
        s = stack.pop()
        if fvisit(s) is False:
            continue
        for e in post_order(*stmt_exprs(s)):
            fvisit(e)
        stack.extend(reversed(sub_statements(s)))


def _stmt_body(stmt: Stmt | PrimFunc) -> Stmt:
    return stmt.body if isinstance(stmt, PrimFunc) else stmt


def substitute(node: StmtOrExpr, vmap: Mapping[Var, object]) -> StmtOrExpr:
    """Return a statement or an expression with variables substituted."""
    values = {v: convert(e, v.dtype) for v, e in vmap.items()}  # type: ignore[arg-type]
    if isinstance(node, PrimExpr):
        return substitute_expr(node, values)
    return substitute_stmt(node, values)


def ir_transform(
    stmt: Stmt,
    preorder: Callable[[StmtOrExpr], StmtOrExpr | None] | None,
    postorder: Callable[[StmtOrExpr], StmtOrExpr | None] | None,
    only_enable: Sequence[str] | None = None,
) -> Stmt:
    """Rewrite a statement: the result of `preorder` replaces a node entirely; else the result of
    `postorder` replaces the node rebuilt from its rewritten children. None leaves a node.

    `only_enable`: type keys of the nodes to call for, such as "tir.Call"; all without it.
    """
    enabled = None if only_enable is None else set(only_enable)

    def is_enabled(node: StmtOrExpr) -> bool:
        """Return whether the functions are called on a node of this class."""
        return enabled is None or type(node).type_key in enabled

    def apply_postorder(node: StmtOrExpr) -> StmtOrExpr:
        """Return what `postorder` makes of a node, or the node."""
        replacement = postorder(node) if postorder is not None and is_enabled(node) else None
        return node if replacement is None else replacement

    def rewrite_node(e: PrimExpr) -> PrimExpr:
        """Rewrite an expression node whose children are rewritten: `rewrite` works bottom-up."""
        replacement = preorder(e) if preorder is not None and is_enabled(e) else None
        result = apply_postorder(e) if replacement is None else replacement
        assert isinstance(result, PrimExpr)
        return result

    class _Rewriter(ExprRewriter):
        def visit(self, stmt: Stmt) -> Stmt:
            """Rewrite a statement; what `preorder` returns is not entered."""
            replacement = preorder(stmt) if preorder is not None and is_enabled(stmt) else None
            if isinstance(replacement, Stmt):
                return replacement
            result = apply_postorder(super().visit(stmt))
            assert isinstance(result, Stmt)
            return result

    return _Rewriter(rewrite_node).visit(stmt)


__all__ = ["ir_transform", "post_order_visit", "pre_order_visit", "renew_defs", "substitute"]
