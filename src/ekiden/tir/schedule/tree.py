"""Finding and replacing loops and blocks of a function.

Loops are named by their variable, blocks by their name.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.prim import PrimExpr, Var
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterKind,
    IterVar,
    PrimFunc,
    Stmt,
)
from ekiden.tir.visitor import (
    NOTHING,
    ExprRewriter,
    StmtMutator,
    is_nothing,
    sequence,
    sub_statements,
    substitute,
    walk,
)


def require(condition: bool, message: str) -> None:
    """Raise ScheduleError unless the condition holds."""
    if not condition:
        raise ScheduleError(message)


def find_block(func: PrimFunc, name: str) -> BlockRealize:
    """The block of a name. Raises ScheduleError listing the names there are."""
    blocks = [s for s in walk(func.body) if isinstance(s, BlockRealize)]
    for each in blocks:
        if each.block.name == name:
            return each
    raise ScheduleError(
        f"block {name!r}: there is none; blocks are {[b.block.name for b in blocks]}"
    )


def path_to(root: Stmt, target: Stmt) -> list[Stmt]:
    """The statements from the root down to one inside it."""
    trail: list[Stmt] = []

    def descend(s: Stmt) -> bool:
        trail.append(s)
        if s is target or any(descend(inner) for inner in sub_statements(s)):
            return True
        trail.pop()
        return False

    descend(root)
    return trail


def loops_above(func: PrimFunc, target: Stmt) -> list[For]:
    """The loops around a statement, outermost first."""
    return [s for s in path_to(func.body, target) if isinstance(s, For) and s is not target]


def find_loop(func: PrimFunc, var: Var) -> For:
    """The loop of a variable."""
    for s in walk(func.body):
        if isinstance(s, For) and s.loop_var is var:
            return s
    raise ScheduleError(f"loop {var.name!r}: the function has no such loop any more")


class _Replace(StmtMutator):
    def __init__(self, old: Stmt, new: Stmt) -> None:
        self._old, self._new = old, new

    def visit(self, stmt: Stmt) -> Stmt:
        return self._new if stmt is self._old else super().visit(stmt)

    def visit_allocate(self, stmt: Allocate) -> Stmt:
        body = self.visit(stmt.body)
        return NOTHING if is_nothing(body) else stmt.with_fields(body=body)


def replace(func: PrimFunc, old: Stmt, new: Stmt) -> PrimFunc:
    """The function with one statement replaced; loops left with nothing inside vanish."""
    return func.with_fields(body=_Replace(old, new).visit(func.body))


def replace_buffer(root: Stmt, old: Buffer, new: Buffer) -> Stmt:
    """The statement with one buffer in the place of another."""

    class _Rename(ExprRewriter):
        def buffer(self, buffer: Buffer) -> Buffer:
            return new if buffer is old else buffer

    def change(e: PrimExpr) -> PrimExpr:
        return e.with_fields(buffer=new) if isinstance(e, BufferLoad) and e.buffer is old else e

    return _Rename(change).visit(root)


def remove_allocation(func: PrimFunc, buffer: Buffer) -> PrimFunc:
    """The function without the Allocate of a buffer."""
    for s in walk(func.body):
        if isinstance(s, Allocate) and s.buffer is buffer:
            return replace(func, s, s.body)
    return func


def nest_of(func: PrimFunc, realize: BlockRealize) -> Stmt:
    """The outermost loop around a block with nothing else in it, or the block itself."""
    trail = path_to(func.body, realize)
    nest: Stmt = realize
    for s in reversed(trail[:-1]):
        if not isinstance(s, For):
            break
        nest = s
    return nest


def written_buffer(realize: BlockRealize) -> Buffer:
    """The one buffer a block writes. Raises ScheduleError if there are several."""
    buffers = {s.buffer for s in walk(realize.block.body) if isinstance(s, BufferStore)}
    if len(buffers) != 1:
        raise ScheduleError(
            f"block {realize.block.name!r}: expected one written buffer, got {len(buffers)}"
        )
    return buffers.pop()


def single_store(realize: BlockRealize) -> BufferStore:
    """The one store a block consists of."""
    body = realize.block.body
    if not isinstance(body, BufferStore):
        raise ScheduleError(
            f"block {realize.block.name!r}: expected a single store, got {type(body).__name__}"
        )
    return body


def fresh(root: Stmt, suffix: str) -> Stmt:
    """A copy with loop and iterator variables of its own and blocks renamed by a suffix."""

    class _Fresh(StmtMutator):
        def visit_for(self, stmt: For) -> Stmt:
            new = Var(stmt.loop_var.name, stmt.loop_var.dtype)
            body = substitute(self.visit(stmt.body), {stmt.loop_var: new})
            return stmt.with_fields(loop_var=new, body=body)

        def visit_block(self, stmt: Block) -> Stmt:
            values: dict[Var, PrimExpr] = {i.var: Var(i.var.name) for i in stmt.iter_vars}
            iters = tuple(IterVar(_as_var(values[i.var]), i.extent, i.kind) for i in stmt.iter_vars)
            init = None if stmt.init is None else substitute(stmt.init, values)
            body = substitute(stmt.body, values)
            return Block(stmt.name + suffix, iters, body, init, stmt.annotations)

    return _Fresh().visit(root)


def _as_var(e: PrimExpr) -> Var:
    assert isinstance(e, Var)
    return e


def insert_before(func: PrimFunc, place: Stmt, new: Stmt) -> PrimFunc:
    """The function with a statement before another."""
    return replace(func, place, sequence(new, place))


def reduce_variables(realize: BlockRealize) -> list[PrimExpr]:
    """The values that the reduction iterators of a block are bound to."""
    pairs = zip(realize.block.iter_vars, realize.iter_values, strict=True)
    return [v for i, v in pairs if i.kind is IterKind.REDUCE]


def rewrite_each(root: Stmt, change: Callable[[PrimExpr], PrimExpr]) -> Stmt:
    """Every expression rewritten node by node."""
    return ExprRewriter(change).visit(root)
