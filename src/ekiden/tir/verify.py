"""What is legal in a lowered PrimFunc, as rows of (what, check): see `verify`."""

from __future__ import annotations

from ekiden.ir import dtype as dt
from ekiden.ir.prim import BinaryExpr, Cast, Intrinsic, PrimExpr, Select, Var
from ekiden.ir.prim_visitor import children, free_vars, post_order
from ekiden.runtime.errors import InternalError
from ekiden.tir.expr import Broadcast, Buffer, BufferLoad, Ramp
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    LetStmt,
    PrimFunc,
    Stmt,
)
from ekiden.tir.visitor import expressions, sub_statements


class _Verifier:
    """Walks with the names that are defined."""

    def __init__(self, func: PrimFunc, lowered: bool) -> None:
        self.name = func.name
        self.lowered = lowered
        self.variables: set[Var] = {v for b in func.params for v in free_vars(*b.shape)}
        self.buffers: set[Buffer] = set(func.params)
        self.checked: set[int] = set()

    def fail(self, what: str, thing: object) -> InternalError:
        return InternalError(f"verify {self.name!r}: {what}: {thing!r}")

    def statement(self, s: Stmt) -> None:
        """Check a statement and what is inside, with its definitions in scope."""
        for each in expressions(s):
            self.expression(each)
        if self.lowered:
            self.is_lowered(s)
        match s:
            case For(loop_var=var) | LetStmt(var=var):
                self.within({var}, set(), s)
            case Allocate():
                self.within(set(), {s.buffer}, s)
            case Block():
                self.within({i.var for i in s.iter_vars}, set(), s)
            case BufferStore():
                self.store(s)
            case _:
                for inner in sub_statements(s):
                    self.statement(inner)

    def within(self, variables: set[Var], buffers: set[Buffer], s: Stmt) -> None:
        """Check the inside of a statement that defines something."""
        if variables & self.variables:
            raise self.fail("a variable is defined twice", s)
        self.variables |= variables
        self.buffers |= buffers
        for inner in sub_statements(s):
            self.statement(inner)
        self.variables -= variables
        self.buffers -= buffers
        self.checked.clear()

    def is_lowered(self, s: Stmt) -> None:
        """No blocks, no vectorized or unrolled loops."""
        if isinstance(s, (Block, BlockRealize)):
            raise self.fail("a block is left", s)
        if isinstance(s, For) and s.kind in (ForKind.VECTORIZED, ForKind.UNROLLED):
            raise self.fail(f"a loop is still {s.kind.value}", s.loop_var)

    def store(self, s: BufferStore) -> None:
        """The value has the buffer's element type, in as many lanes as the index has."""
        self.access(s.buffer, s.indices, s.value.dtype, s)
        if s.predicate is not None and dt.element(s.predicate.dtype) != "bool":
            raise self.fail("the predicate of a store must be bool", s.predicate.dtype)

    def access(
        self, buffer: Buffer, indices: tuple[PrimExpr, ...], dtype: str, where: object
    ) -> None:
        """Buffers are allocated before they are used, with one flat index once lowered."""
        if buffer not in self.buffers:
            raise self.fail("a buffer is not allocated", buffer.name)
        rank = max(len(buffer.shape), 1)
        if len(indices) != 1 and (self.lowered or len(indices) != rank):
            raise self.fail(
                f"buffer {buffer.name!r} has {rank} axes, the access {len(indices)} indices", where
            )
        lanes = max((dt.lanes(i.dtype) for i in indices), default=1)
        expected = dt.with_lanes(dt.element(buffer.dtype), lanes * dt.lanes(buffer.dtype))
        if dtype != expected:
            raise self.fail(
                f"buffer {buffer.name!r}: expected an element of {expected}, got {dtype}", where
            )

    def expression(self, root: PrimExpr) -> None:
        """Check each node once per scope."""
        for e in post_order(root):
            if id(e) not in self.checked:
                self.checked.add(id(e))
                self.node(e)

    def node(self, e: PrimExpr) -> None:
        """Definitions and dtypes of one node."""
        match e:
            case Var() if e not in self.variables:
                raise self.fail("a variable is used before it is defined", e.name)
            case BufferLoad():
                self.access(e.buffer, e.indices, e.dtype, e)
            case BinaryExpr() if e.a.dtype != e.b.dtype:
                raise self.fail(f"operands of {e.symbol!r} differ: {e.a.dtype} and {e.b.dtype}", e)
            case Select() if e.true_value.dtype != e.dtype or e.false_value.dtype != e.dtype:
                raise self.fail(f"sides of a select must be {e.dtype}", e)
            case Intrinsic(op="if_then_else") if (
                e.args[1].dtype != e.dtype or e.args[2].dtype != e.dtype
            ):
                raise self.fail(f"sides of if_then_else must be {e.dtype}", e)
            case Cast() if dt.lanes(e.value.dtype) != dt.lanes(e.dtype):
                raise self.fail("a cast must keep the lanes", e)
            case Ramp() | Broadcast() if dt.lanes(e.dtype) != e.lanes or any(
                dt.lanes(c.dtype) != 1 for c in children(e)
            ):
                raise self.fail("lanes disagree", e)


def verify(func: PrimFunc, lowered: bool = True) -> PrimFunc:
    """The function itself, if it is well formed: what is used is defined, dtypes and lanes agree,
    ranks match.

    With `lowered`, also that it has the form code generators take. Raises InternalError naming the
    first fault.
    """
    _Verifier(func, lowered).statement(func.body)
    return func
