"""Loop programs: statements over buffers (PrimFunc), schedule primitives, lowering passes."""

from ekiden.ir.prim import AnyDim as Any
from ekiden.ir.prim import FloatImm, IntImm, PrimExpr, SizeVar, Var
from ekiden.tir import ir_builder
from ekiden.tir.distinct import distinct
from ekiden.tir.expr import (
    Broadcast,
    Buffer,
    BufferAddress,
    BufferLoad,
    Ramp,
    VectorReduce,
    broadcast,
    ramp,
)
from ekiden.tir.index_map import IndexMap
from ekiden.tir.printer import astext
from ekiden.tir.schedule import (
    BlockRV,
    ExprRV,
    Instruction,
    LoopRV,
    Schedule,
    ScheduleError,
    Trace,
)
from ekiden.tir.script import from_source as parse
from ekiden.tir.script import prim_func
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
from ekiden.tir.tensor_intrin import TensorIntrin
from ekiden.tir.verify import verify

__all__ = [
    "Allocate",
    "Any",
    "AssertStmt",
    "Block",
    "BlockRV",
    "BlockRealize",
    "Broadcast",
    "Buffer",
    "BufferAddress",
    "BufferLoad",
    "BufferStore",
    "Evaluate",
    "ExprRV",
    "FloatImm",
    "For",
    "ForKind",
    "IfThenElse",
    "IndexMap",
    "Instruction",
    "IntImm",
    "IterKind",
    "IterVar",
    "LetStmt",
    "LoopRV",
    "Prefetch",
    "PrimExpr",
    "PrimFunc",
    "Ramp",
    "Schedule",
    "ScheduleError",
    "SeqStmt",
    "SizeVar",
    "Stmt",
    "TensorIntrin",
    "Trace",
    "Var",
    "VectorReduce",
    "astext",
    "broadcast",
    "distinct",
    "ir_builder",
    "parse",
    "prim_func",
    "ramp",
    "seq",
    "verify",
]
