"""The functional language of the compiler: expressions, types, operators, passes, text,
interpreter.
"""

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import AnyDim, SizeVar
from ekiden.ir.type import (
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RelayRefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeKind,
    TypeVar,
    tensor_type,
)
from ekiden.relay import analysis, op, transform
from ekiden.relay.analysis import free_type_vars
from ekiden.relay.expr import (
    Call,
    Clause,
    Constant,
    Constructor,
    Expr,
    ExprWithOp,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    TypeData,
    Var,
    const,
    var,
)
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.parser import parse, parse_expr
from ekiden.relay.printer import astext
from ekiden.relay.type_infer import infer_expr_type, infer_type
from ekiden.relay.visitor import (
    ExprMutator,
    all_vars,
    bind,
    bound_vars,
    free_vars,
    post_order,
)

ExprWithOp.infer = staticmethod(infer_expr_type)
Any = AnyDim
"""A dimension nothing is known about (TVM's name)."""

__all__ = [
    "Any",
    "AnyDim",
    "Call",
    "Clause",
    "Constant",
    "Constructor",
    "Expr",
    "ExprMutator",
    "FuncType",
    "Function",
    "GlobalTypeVar",
    "GlobalVar",
    "IRModule",
    "If",
    "IncompleteType",
    "Interpreter",
    "Let",
    "Match",
    "Op",
    "Pattern",
    "PatternConstructor",
    "PatternTuple",
    "PatternVar",
    "PatternWildcard",
    "RefCreate",
    "RefRead",
    "RefWrite",
    "RelayRefType",
    "SizeVar",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleType",
    "Type",
    "TypeCall",
    "TypeData",
    "TypeKind",
    "TypeVar",
    "Var",
    "all_vars",
    "analysis",
    "astext",
    "bind",
    "bound_vars",
    "const",
    "free_type_vars",
    "free_vars",
    "infer_expr_type",
    "infer_type",
    "op",
    "parse",
    "parse_expr",
    "post_order",
    "tensor_type",
    "transform",
    "var",
]
