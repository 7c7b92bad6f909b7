"""The exported names of `ekiden.tir`, loaded on first use."""

from typing import TYPE_CHECKING

from ekiden._lazy import attach
from ekiden.ir.intrinsic import CallEffectKind
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Max,
    Min,
    Mul,
    Not,
    Or,
    PrimExpr,
    Select,
    SizeVar,
    StringImm,
    Sub,
    Var,
)
from ekiden.ir.prim import AnyDim as Any
from ekiden.ir.prim import BinaryExpr as BinaryOpExpr
from ekiden.ir.prim import Intrinsic as Call
from ekiden.runtime.errors import ScheduleError
from ekiden.tir import analysis, ir_builder, op, specialize, stmt_functor
from ekiden.tir.alpha_renaming import distinct
from ekiden.tir.data_layout import BijectiveLayout, Layout, bijective_layout, layout
from ekiden.tir.expr import (
    Broadcast,
    Buffer,
    BufferAddress,
    BufferLoad,
    Ramp,
    VectorReduce,
    broadcast,
    decl_buffer,
    ramp,
)
from ekiden.tir.index_map import IndexMap
from ekiden.tir.let_and_trace import Let, trace
from ekiden.tir.op import *  # noqa: F403
from ekiden.tir.printer import astext
from ekiden.tir.schedule.core import StmtSRef
from ekiden.tir.schedule.schedule import Schedule
from ekiden.tir.schedule.trace import BlockRV, ExprRV, Instruction, LoopRV, Trace
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
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
    While,
    seq,
)
from ekiden.tir.tensor_intrin import TensorIntrin
from ekiden.tir.verifier import verify

if TYPE_CHECKING:
    from ekiden.tir.script import from_source as parse
    from ekiden.tir.script import prim_func
    from ekiden.tir.script.builtins import max_value, min_value
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "ekiden.te": "CommReducer ProducerLoad Reduce comm_reducer sum",
            "ekiden.tir.script": "parse:from_source prim_func",
            "ekiden.tir.script.builtins": "max_value min_value",
            "": "script:ekiden.tir.script",
        },
    )

__all__ = [
    "Add",
    "Allocate",
    "And",
    "Any",
    "AssertStmt",
    "AttrStmt",
    "BinaryOpExpr",
    "Block",
    "BlockRV",
    "BlockRealize",
    "Broadcast",
    "Buffer",
    "BufferAddress",
    "BufferLoad",
    "BufferStore",
    "Call",
    "CallEffectKind",
    "Cast",
    "DeclBuffer",
    "Div",
    "EQ",
    "Evaluate",
    "ExprRV",
    "FloatImm",
    "FloorDiv",
    "FloorMod",
    "For",
    "ForKind",
    "GE",
    "GT",
    "IfThenElse",
    "BijectiveLayout",
    "IndexMap",
    "Layout",
    "bijective_layout",
    "layout",
    "Instruction",
    "IntImm",
    "IterKind",
    "IterVar",
    "LE",
    "LT",
    "Let",
    "LetStmt",
    "LoopRV",
    "Max",
    "Min",
    "Mul",
    "NE",
    "Not",
    "Or",
    "Prefetch",
    "PrimExpr",
    "PrimFunc",
    "Ramp",
    "Schedule",
    "ScheduleError",
    "StmtSRef",
    "Select",
    "SeqStmt",
    "SizeVar",
    "Stmt",
    "StringImm",
    "Sub",
    "TensorIntrin",
    "Trace",
    "Var",
    "VectorReduce",
    "While",
    "analysis",
    "astext",
    "broadcast",
    "distinct",
    "parse",
    "prim_func",
    "ramp",
    "seq",
    "specialize",
    "verify",
    "decl_buffer",
    "ir_builder",
    "max_value",
    "min_value",
    "op",
    "stmt_functor",
    "trace",
    *op.__all__,
]
