"""A variable or buffer of its own for every loop, let, allocation and block iterator.

Rules and passes copy statements, so one variable may be bound by several loops beside each other.
That changes nothing of the meaning; the text and structural equality see each binding apart.
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
from ekiden.tir.visitor import StmtMutator, rename, walk, with_body


def bound(stmt: Stmt) -> tuple[Var | Buffer, ...]:
    """What a statement itself binds."""
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


def bindings(root: Stmt) -> Iterator[Var | Buffer]:
    """Everything bound inside a statement, in program order."""
    for s in walk(root):
        yield from bound(s)


class _Distinct(StmtMutator):
    """Renames what was bound before; outer bindings keep their names. One walk: what a binding is
    called is looked up where it is used, or chains of lets would be rebuilt once for each.
    """

    def __init__(self) -> None:
        self._seen: set[Var | Buffer] = set()
        self._values: dict[Var, PrimExpr] = {}
        self._buffers: dict[Buffer, Buffer] = {}
        self._memo: dict[int, PrimExpr] = {}

    def note(self, bound_before: Iterable[Var | Buffer]) -> None:
        """Let bindings of these be renamed."""
        self._seen.update(bound_before)

    @contextmanager
    def _renamed(self, stmt: Stmt) -> Iterator[None]:
        """Inside, what a statement binds again has a new name."""
        again = [each for each in bound(stmt) if each in self._seen]
        self._seen.update(bound(stmt))
        outer = [(each, self._table(each).get(each)) for each in again]
        for each in again:
            self._enter(each, replace(each))
        yield
        for each, before in outer:
            self._enter(each, before)

    def _table(self, each: Var | Buffer) -> dict[Any, Any]:
        return self._values if isinstance(each, Var) else self._buffers

    def _enter(self, each: Var | Buffer, name: Var | Buffer | None) -> None:
        table = self._table(each)
        if name is None:
            del table[each]
        else:
            table[each] = name
        self._memo = {}  # of other names

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """With the names that hold here."""
        if not self._values and not self._buffers:
            return expr
        return rewrite(expr, self._change, self._memo)

    def _change(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, Var):
            return self._values.get(e, e)
        if isinstance(e, (BufferLoad, BufferAddress)) and e.buffer in self._buffers:
            return e.with_fields(buffer=self._buffers[e.buffer])
        return e

    def buffer(self, buffer: Buffer) -> Buffer:
        """Its name here."""
        return self._buffers.get(buffer, buffer)

    def _var(self, var: Var) -> PrimExpr:
        return self._values.get(var, var)

    def visit_for(self, stmt: For) -> Stmt:
        """A loop; its bounds are outside of it."""
        low, extent = self.expr(stmt.min), self.expr(stmt.extent)
        with self._renamed(stmt):
            body = self.visit(stmt.body)
            name = self._var(stmt.loop_var)
            return stmt.with_fields(loop_var=name, min=low, extent=extent, body=body)

    def visit_let(self, stmt: LetStmt) -> Stmt:
        """A let; its value is outside of it."""
        value = self.expr(stmt.value)
        with self._renamed(stmt):
            body = self.visit(stmt.body)
            return stmt.with_fields(var=self._var(stmt.var), value=value, body=body)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        """An allocation."""
        with self._renamed(stmt):
            return super().visit_allocate(stmt)

    def visit_decl(self, stmt: DeclBuffer) -> Stmt:
        """A view; what it is a view of is outside."""
        source = self.buffer(stmt.source)
        mins, extents = self.exprs(stmt.mins), self.exprs(stmt.extents)
        with self._renamed(stmt):
            body = self.visit(stmt.body)
            made = self.buffer(stmt.buffer)
            return stmt.with_fields(
                buffer=made, source=source, mins=mins, extents=extents, body=body
            )

    def visit_block(self, stmt: Block) -> Stmt:
        """A block and its iterators, whose extents are outside."""
        extents = [self.expr(each.extent) for each in stmt.iter_vars]
        with self._renamed(stmt):
            domains = tuple(
                each.with_fields(var=self._var(each.var), extent=extent)
                for each, extent in zip(stmt.iter_vars, extents, strict=True)
            )
            same = all(a is b for a, b in zip(domains, stmt.iter_vars, strict=True))
            init = None if stmt.init is None else self.visit(stmt.init)
            body = self.visit(stmt.body)
            domains = stmt.iter_vars if same else domains
            return stmt.with_fields(iter_vars=domains, body=body, init=init)


def distinct(func: PrimFunc) -> PrimFunc:
    """The function with every binding of a variable or buffer its own; itself if they are."""
    seen: set[Var | Buffer] = set()
    for each in bindings(func.body):
        if each in seen:
            return with_body(func, _Distinct().visit(func.body))
        seen.add(each)
    return func


def renew_defs(func: PrimFunc) -> PrimFunc:
    """A copy with new variables and buffers everywhere: parameters, sizes, loops, allocations. Two
    functions that are made of one share nothing that is bound. TVM: stmt_functor.renew_defs."""
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
    renaming = _Distinct()
    renaming.note(bindings(func.body))
    body = renaming.visit(rename(func.body, values, buffers))
    params = tuple(buffers[p] if isinstance(p, Buffer) else values[p] for p in func.params)
    return func.with_fields(params=params, body=body)


def _canonical(func: BaseFunc) -> BaseFunc:
    assert isinstance(func, PrimFunc)
    return distinct(func)


PrimFunc.canonical_form = staticmethod(_canonical)
