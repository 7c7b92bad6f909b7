"""The names of `ekiden.relay`, loaded when the first is used."""

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import AnyDim, SizeVar
from ekiden.ir.span import SourceName, Span
from ekiden.ir.transform import PassContext, Sequential
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
    TypeRelation,
    TypeVar,
    tensor_type,
)
from ekiden.relay import (
    adt,
    analysis,
    base,
    build_module,
    expr_functor,
    function,
    op,
    qnn,
    transform,
    ty,
)
from ekiden.relay.analysis.variables import free_type_vars
from ekiden.relay.build_module import build_config
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
    TupleWrapper,
    TypeData,
    Var,
    const,
    var,
)
from ekiden.relay.expr_functor import ExprFunctor, ExprMutator, ExprVisitor
from ekiden.relay.html import to_html
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.loops import while_loop
from ekiden.relay.param_dict import load_param_dict, save_param_dict
from ekiden.relay.parser import fromtext, parse, parse_expr
from ekiden.relay.picture import draw
from ekiden.relay.prelude import Prelude
from ekiden.relay.printer import astext
from ekiden.relay.qnn import names as _dialect  # noqa: F401  declares operators
from ekiden.relay.scope_builder import ScopeBuilder
from ekiden.relay.transform.language.span_check import SpanCheck
from ekiden.relay.ty import RefType, ShapeVar, scalar_type
from ekiden.relay.type_functor import TypeFunctor, TypeMutator, TypeVisitor
from ekiden.relay.type_infer import infer_expr_type, infer_type
from ekiden.relay.visitor import (
    all_vars,
    bind,
    bound_vars,
    free_vars,
    post_order,
)
from ekiden.runtime.late import import_late

Any = AnyDim
"""A dimension nothing is known about (TVM's name)."""

pretty_print = astext

_HIGHER = {
    "build": "ekiden.compiler.faces.relay:build",
    "optimize": "ekiden.compiler.faces.relay:optimize",
    "create_executor": "ekiden.compiler.faces.executors:create_executor",
    "vm": "ekiden.compiler.faces.relay_vm",
    "quantize": "ekiden.compiler.faces.relay_quantize",
    "frontend": "ekiden.relay.frontend",
    "backend": "ekiden.relay.backend",
    "data_dep_optimization": "ekiden.relay.data_dep_optimization",
    "testing": "ekiden.relay.testing",
    "dataflow_pattern": "ekiden.relay.dataflow_pattern",
    "script": "ekiden.relay.reader:script",
}
"""Name -> the module it is, or the module and the name in it."""


def __getattr__(name: str) -> object:
    """An operator, or what is loaded when it is first used."""
    if name in _HIGHER:
        home, _, inner = _HIGHER[name].partition(":")
        found: object = import_late(home)
        return getattr(found, inner) if inner else found
    if not name.startswith("_") and hasattr(op, name):
        return getattr(op, name)
    raise AttributeError(f"module 'ekiden.relay' has no attribute {name!r}")


__all__ = [
    "Any",
    "AnyDim",
    "Call",
    "Clause",
    "Constant",
    "Constructor",
    "Expr",
    "ExprFunctor",
    "ExprMutator",
    "ExprVisitor",
    "ExprWithOp",
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
    "PassContext",
    "Pattern",
    "PatternConstructor",
    "PatternTuple",
    "PatternVar",
    "PatternWildcard",
    "Prelude",
    "RefCreate",
    "RefRead",
    "RefType",
    "RefWrite",
    "RelayRefType",
    "ScopeBuilder",
    "Sequential",
    "ShapeVar",
    "SizeVar",
    "SourceName",
    "Span",
    "SpanCheck",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleType",
    "TupleWrapper",
    "Type",
    "TypeCall",
    "TypeData",
    "TypeFunctor",
    "TypeKind",
    "TypeMutator",
    "TypeRelation",
    "TypeVar",
    "TypeVisitor",
    "Var",
    "adt",
    "all_vars",
    "analysis",
    "astext",
    "base",
    "bind",
    "bound_vars",
    "build_config",
    "build_module",
    "const",
    "draw",
    "expr_functor",
    "free_type_vars",
    "free_vars",
    "fromtext",
    "function",
    "infer_expr_type",
    "infer_type",
    "load_param_dict",
    "op",
    "parse",
    "parse_expr",
    "post_order",
    "pretty_print",
    "qnn",
    "save_param_dict",
    "scalar_type",
    "tensor_type",
    "to_html",
    "transform",
    "ty",
    "var",
    "while_loop",
]
