"""Loop programs: statements over buffers (PrimFunc), schedule primitives, lowering passes."""

from ekiden.tir.expr import Broadcast, Buffer, BufferLoad, Ramp, VectorReduce, broadcast, ramp
from ekiden.tir.printer import astext
from ekiden.tir.schedule import Schedule, ScheduleError
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    Block,
    BlockRealize,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    Prefetch,
    PrimFunc,
    SeqStmt,
    Stmt,
    seq,
)
from ekiden.tir.verify import verify

__all__ = [
    "Allocate",
    "AssertStmt",
    "Block",
    "BlockRealize",
    "Broadcast",
    "Buffer",
    "BufferLoad",
    "BufferStore",
    "Evaluate",
    "For",
    "ForKind",
    "IfThenElse",
    "IterKind",
    "IterVar",
    "LetStmt",
    "Prefetch",
    "PrimFunc",
    "Ramp",
    "Schedule",
    "ScheduleError",
    "SeqStmt",
    "Stmt",
    "VectorReduce",
    "astext",
    "broadcast",
    "ramp",
    "seq",
    "verify",
]
