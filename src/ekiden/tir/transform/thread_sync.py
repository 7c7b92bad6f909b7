"""Put a barrier wherever threads of a block read what others have written, or write what others may
still read.

    for k in n:                                    for k in n:
        s[t] = a[k, t]            (shared)    ->       s[t] = a[k, t]; barrier
        b[t] = b[t] + s[31 - t]                        b[t] = b[t] + s[31 - t]; barrier

Buffers are taken as wholes: a statement that only writes one, or only reads it, is a unit. Barriers
that stand there already count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import Intrinsic, PrimExpr, StringImm, Var
from ekiden.ir.prim_visitor import free_vars
from ekiden.runtime.errors import CompileError
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import (
    Allocate,
    AttrStmt,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
    seq,
)
from ekiden.tir.visitor import buffers_read, buffers_written, walk

SHARED = ("shared", "shared.dyn")


@dataclass(slots=True)
class _State:
    """What has been done to memory of the block since the last barrier."""

    written: set[Buffer] = field(default_factory=set)
    read: set[Buffer] = field(default_factory=set)

    def clashes(self, s: Stmt) -> bool:
        """Whether a statement may not follow without a barrier."""
        reads, writes = _accesses(s)
        return bool(reads & self.written or writes & (self.read | self.written))

    def add(self, s: Stmt) -> None:
        """A statement has run."""
        reads, writes = _accesses(s)
        self.read |= reads
        self.written |= writes

    def clear(self) -> None:
        """A barrier."""
        self.read.clear()
        self.written.clear()


def barrier(scope: str) -> Stmt:
    """What waits for all threads of a block."""
    return Evaluate(call_intrin("tvm_storage_sync", StringImm(scope), dtype="int32"))


def is_barrier(s: Stmt) -> bool:
    """Whether a statement is one."""
    value = s.value if isinstance(s, Evaluate) else None
    return isinstance(value, Intrinsic) and value.op == "tvm_storage_sync"


def _accesses(s: Stmt) -> tuple[set[Buffer], set[Buffer]]:
    reads = {b for b in buffers_read(s) if b.scope in SHARED}
    return reads, {b for b in buffers_written(s) if b.scope in SHARED}


class _Sync:
    def __init__(self, func: PrimFunc, scope: str) -> None:
        self.name, self.barrier = func.name, barrier(scope)
        self.state = _State()
        self.differing: set[Var] = set()
        """Variables of which threads of a block have different values."""

    def step(self, s: Stmt) -> Stmt:
        """A statement after those before it."""
        if is_barrier(s):
            self.state.clear()
            return s
        if isinstance(s, SeqStmt):
            return seq(*map(self.step, s.seq))
        reads, writes = _accesses(s)
        is_unit = not reads & writes and not any(map(is_barrier, walk(s)))
        return self.unit(s) if is_unit else self.inside(s)

    def unit(self, s: Stmt) -> Stmt:
        """A statement in which no barrier need stand."""
        before: list[Stmt] = []
        if self.state.clashes(s):
            before.append(self.barrier)
            self.state.clear()
        self.state.add(s)
        return seq(*before, s)

    def inside(self, s: Stmt) -> Stmt:
        """A statement that barriers may have to stand in."""
        match s:
            case LetStmt():
                if self._differs(s.value):
                    self.differing.add(s.var)
                return s.with_fields(body=self.step(s.body))
            case Allocate() | AttrStmt():
                return s.with_fields(body=self.step(s.body))
            case For() if s.kind is ForKind.THREAD_BINDING:
                if str((s.annotations or {}).get("thread")).startswith("threadIdx"):
                    self.differing.add(s.loop_var)
                return s.with_fields(body=self.step(s.body))
            case For() if not self._differs(s.min, s.extent):
                return self._loop(s)
            case IfThenElse() if not self._differs(s.condition):
                return self._branches(s)
        self._check(s)
        return self.unit(s)

    def _differs(self, *exprs: PrimExpr) -> bool:
        return any(v in self.differing for v in free_vars(*exprs))

    def _loop(self, s: For) -> Stmt:
        """Its steps follow each other."""
        body = self.step(s.body)
        if self._head_clashes(body):
            body = seq(body, self.barrier)
            self.state.clear()
        return s.with_fields(body=body)

    def _head_clashes(self, body: Stmt) -> bool:
        """Whether what a step begins with may not follow what the one before ended with."""
        for s in _units(body):
            if is_barrier(s):
                return False
            if self.state.clashes(s):
                return True
        return False

    def _branches(self, s: IfThenElse) -> Stmt:
        """Either side follows what was before, and both come before what follows."""
        start = _State(set(self.state.written), set(self.state.read))
        then_case = self.step(s.then_case)
        ended, self.state = self.state, start
        else_case = None if s.else_case is None else self.step(s.else_case)
        self.state.written |= ended.written
        self.state.read |= ended.read
        return s.with_fields(then_case=then_case, else_case=else_case)

    def _check(self, s: Stmt) -> None:
        """Nothing to wait for may stand where not all threads come by."""
        for each in walk(s):
            if isinstance(each, SeqStmt):
                state = _State()
                for part in each.seq:
                    if state.clashes(part):
                        names = sorted(b.name for b in set.union(*_accesses(s)))
                        raise CompileError(
                            f"kernel {self.name!r}: threads must wait for each other between uses "
                            f"of {', '.join(map(repr, names))} where not all of them come by"
                        )
                    state.add(part)


def _units(body: Stmt) -> Sequence[Stmt]:
    """What runs first in a body: its statements, into those that hold barriers."""
    if isinstance(body, SeqStmt):
        found: list[Stmt] = []
        for each in body.seq:
            found += _units(each)
        return found
    if isinstance(body, (LetStmt, Allocate, AttrStmt, For)) and any(map(is_barrier, walk(body))):
        return _units(body.body)
    return [body]


def thread_sync(func: PrimFunc, scope: str = "shared") -> PrimFunc:
    """The function with barriers in its loops over threads."""
    if not any(isinstance(s, Allocate) and s.buffer.scope in SHARED for s in walk(func.body)):
        return func
    return func.with_fields(body=_Sync(func, scope).step(func.body))
