"""Alpha-renaming: give every loop, let, allocation and block iterator its own variable or buffer.

Rules and passes copy statements, so one variable may be bound by several sibling loops. That does
not change the meaning; the printed text and structural equality need distinct bindings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ekiden.ir.expr import BaseFunc
from ekiden.ir.prim import PrimExpr, Var
from ekiden.ir.prim_visitor import free_vars, rewrite, substitute
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import Allocate, Block, DeclBuffer, For, LetStmt, PrimFunc, Stmt
from ekiden.tir.visitor import StmtMutator, pre_order_stmts, rename, with_body


def stmt_definitions(stmt: Stmt) -> tuple[Var | Buffer, ...]:
    """Return the variables or buffers that a statement itself binds."""
    match stmt:
        case For():
            return (stmt.loop_var,)
        case LetStmt():
            return (stmt.var,)
        case Allocate() | DeclBuffer():
            return (stmt.buffer,)
        case Block():
            return tuple(i.var for i in stmt.iter_vars)
        case _:
            return ()


def all_definitions(root: Stmt) -> Iterator[Var | Buffer]:
    """Yield the variables and buffers defined inside a statement, in program order."""
    for s in pre_order_stmts(root):
        yield from stmt_definitions(s)


class _AlphaRenamer(StmtMutator):
    """A mutator that renames what was bound before; outer bindings keep their names.

    It needs one walk: names are looked up where they are used; substituting per binding would
    rebuild a chain of lets once per let.
    """

    def __init__(self) -> None:
        self._defined_symbols: set[Var | Buffer] = set()
        self._values: dict[Var, PrimExpr] = {}
        self._buffers: dict[Buffer, Buffer] = {}
        self._memo: dict[int, PrimExpr] = {}

    def add_outer_definitions(self, bound_before: Iterable[Var | Buffer]) -> None:
        """Register the definitions of an enclosing scope, so that redefining them renames."""
        self._defined_symbols.update(bound_before)

    @contextmanager
    def _fresh_scope(self, stmt: Stmt) -> Iterator[None]:
        """Bind fresh names, within the context, to what a statement redefines."""
        rebound = [
            candidate for candidate in stmt_definitions(stmt) if candidate in self._defined_symbols
        ]
        self._defined_symbols.update(stmt_definitions(stmt))
        outer = [(name, self._substitution_map(name).get(name)) for name in rebound]
        # Only a second definition of the same object gets a fresh one; unique definitions keep
        # their identity, which caches keyed by object rely on.
        for binding in rebound:
            self._set_binding(binding, replace(binding))
        yield
        # Behind the scope the outer binding holds again.
        for binding, before in outer:
            self._set_binding(binding, before)

    def _substitution_map(self, binding: Var | Buffer) -> dict[Any, Any]:
        return self._values if isinstance(binding, Var) else self._buffers

    def _set_binding(self, binding: Var | Buffer, name: Var | Buffer | None) -> None:
        table = self._substitution_map(binding)
        if name is None:
            del table[binding]
        else:
            table[binding] = name
        self._memo = {}  # of other names

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression with the names in scope."""
        if not self._values and not self._buffers:
            return expr
        return rewrite(expr, self._rename_node, self._memo)

    def _rename_node(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, Var):
            return self._values.get(e, e)
        if isinstance(e, (BufferLoad, BufferAddress)) and e.buffer in self._buffers:
            return e.with_fields(buffer=self._buffers[e.buffer])
        return e

    def rewrite_buffer(self, buffer: Buffer) -> Buffer:
        """Return the buffer's name in scope."""
        return self._buffers.get(buffer, buffer)

    def _rename_var(self, var: Var) -> PrimExpr:
        return self._values.get(var, var)

    def visit_for(self, stmt: For) -> Stmt:
        """Rename in a loop; its bounds are outside its scope."""
        low, extent = self.rewrite_expr(stmt.min), self.rewrite_expr(stmt.extent)
        with self._fresh_scope(stmt):
            body = self.visit(stmt.body)
            name = self._rename_var(stmt.loop_var)
            return stmt.with_fields(loop_var=name, min=low, extent=extent, body=body)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """Rename in a let; its value is outside its scope."""
        value = self.rewrite_expr(stmt.value)
        with self._fresh_scope(stmt):
            body = self.visit(stmt.body)
            return stmt.with_fields(var=self._rename_var(stmt.var), value=value, body=body)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """Rename in an allocation."""
        with self._fresh_scope(stmt):
            return super().visit_allocate(stmt)

    def visit_decl(self, stmt: DeclBuffer) -> Stmt:
        """Rename in a view; its source buffer is outside its scope."""
        source = self.rewrite_buffer(stmt.source)
        mins, extents = self.exprs(stmt.mins), self.exprs(stmt.extents)
        with self._fresh_scope(stmt):
            body = self.visit(stmt.body)
            view = self.rewrite_buffer(stmt.buffer)
            return stmt.with_fields(
                buffer=view, source=source, mins=mins, extents=extents, body=body
            )

    def visit_block(self, stmt: Block) -> Stmt:
        """Rename in a block and its iterators; their extents are outside its scope."""
        extents = [self.rewrite_expr(iter_var.extent) for iter_var in stmt.iter_vars]
        with self._fresh_scope(stmt):
            domains = tuple(
                iter_var.with_fields(var=self._rename_var(iter_var.var), extent=extent)
                for iter_var, extent in zip(stmt.iter_vars, extents, strict=True)
            )
            same = all(a is b for a, b in zip(domains, stmt.iter_vars, strict=True))
            init = None if stmt.init is None else self.visit(stmt.init)
            body = self.visit(stmt.body)
            domains = stmt.iter_vars if same else domains
            return stmt.with_fields(iter_vars=domains, body=body, init=init)


def distinct(func: PrimFunc) -> PrimFunc:
    """Return the function with every variable and buffer defined once (SSA form); the same object
    if it already is.
    """
    bound_so_far: set[Var | Buffer] = set()
    for binding in all_definitions(func.body):
        if binding in bound_so_far:
            return with_body(func, _AlphaRenamer().visit(func.body))
        bound_so_far.add(binding)
    return func


def renew_defs(func: PrimFunc) -> PrimFunc:
    """Return a copy with fresh variables and buffers everywhere: parameters, sizes, loops,
    allocations.

    Two copies of one function share nothing that is bound. TVM: stmt_functor.renew_defs.
    """
    sizes = (v for b in func.buffers for v in free_vars(*b.sizes()))
    values: dict[Var, PrimExpr] = {v: replace(v) for v in dict.fromkeys((*func.scalars, *sizes))}
    buffers = {
        b: replace(
            b,
            shape=tuple(substitute(d, values) for d in b.shape),
            strides=tuple(substitute(d, values) for d in b.strides),
            elem_offset=None if b.elem_offset is None else substitute(b.elem_offset, values),
        )
        for b in func.buffers
    }
    renaming = _AlphaRenamer()
    # All definitions of the body count as seen, so each of them is renamed: that makes the copy
    # share nothing with the original.
    renaming.add_outer_definitions(all_definitions(func.body))
    body = renaming.visit(rename(func.body, values, buffers))
    params = tuple(buffers[p] if isinstance(p, Buffer) else values[p] for p in func.params)
    return func.with_fields(params=params, body=body)


def _alpha_canonical_form(func: BaseFunc) -> BaseFunc:
    assert isinstance(func, PrimFunc)
    return distinct(func)


PrimFunc.canonical_form = staticmethod(_alpha_canonical_form)
