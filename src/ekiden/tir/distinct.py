"""A variable or buffer of its own for every loop, let, allocation and block iterator.

Rules and passes copy statements, so one variable may be bound by several loops beside each other.
That changes nothing of the meaning; the text and structural equality see each binding apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ekiden.ir.expr import BaseFunc
from ekiden.ir.prim import PrimExpr, Var
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Allocate, Block, DeclBuffer, For, IterVar, LetStmt, PrimFunc, Stmt
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
    """Renames what was bound before, outer bindings first."""

    def __init__(self) -> None:
        self._seen: set[Var | Buffer] = set()

    def note(self, bound_before: Iterable[Var | Buffer]) -> None:
        """Let bindings of these be renamed."""
        self._seen.update(bound_before)

    def visit(self, stmt: Stmt) -> Stmt:
        """Outer bindings keep their names: what they bind is noted before going inside."""
        again = [b for b in bound(stmt) if b in self._seen]
        if again:
            stmt = _rebound(stmt, again)
        self._seen.update(bound(stmt))
        return super().visit(stmt)


def _rebound(stmt: Stmt, again: list[Var | Buffer]) -> Stmt:
    """The statement with new things in the place of those it binds again."""
    values: dict[Var, PrimExpr] = {}
    buffers: dict[Buffer, Buffer] = {}
    for old in again:
        if isinstance(old, Var):
            values[old] = replace(old)
        else:
            buffers[old] = replace(old)
    inside = rename(stmt, values, buffers)
    match inside:
        case For() | LetStmt():
            field = "loop_var" if isinstance(inside, For) else "var"
            return inside.with_fields(**{field: _other(getattr(inside, field), values)})
        case Block():
            renamed = tuple(_iter_var(i, values) for i in inside.iter_vars)
            return inside.with_fields(iter_vars=renamed)
        case _:
            return inside


def _other(var: Var, values: Mapping[Var, PrimExpr]) -> PrimExpr:
    return values.get(var, var)


def _iter_var(each: IterVar, values: Mapping[Var, PrimExpr]) -> IterVar:
    return each.with_fields(var=_other(each.var, values))


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
