"""Lazy exports of `ekiden.relay`, imported on first use."""

from ekiden._lazy import attach, exported_names
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
from ekiden.relay.analysis.type_variables import free_type_vars
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
from ekiden.relay.prelude import Prelude
from ekiden.relay.printer import astext
from ekiden.relay.qnn import names as _dialect  # noqa: F401  declares operators
from ekiden.relay.scope_builder import ScopeBuilder
from ekiden.relay.svg_graph import draw
from ekiden.relay.transform.language.span_check import SpanCheck
from ekiden.relay.ty import RefType, ShapeVar, scalar_type
from ekiden.relay.type_functor import TypeFunctor, TypeMutator, TypeVisitor
from ekiden.relay.type_infer import infer_expr_type, infer_type
from ekiden.relay.visitor import all_vars, bind, bound_vars, free_vars, post_order

Any = AnyDim
"""Unknown dimension (TVM's name)."""

pretty_print = astext

_HIGHER_LAYER_EXPORTS = {
    "ekiden.relay.backend.build": "build optimize",
    "ekiden.relay.backend.executors": "create_executor",
    "ekiden.relay.reader": "script",
    "": "vm:ekiden.relay.backend.vm quantize:ekiden.relay.quantize"
    " frontend:ekiden.relay.frontend backend:ekiden.relay.backend"
    " data_dep_optimization:ekiden.relay.data_dep_optimization testing:ekiden.relay.testing"
    " dataflow_pattern:ekiden.relay.dataflow_pattern",
}
"""Exports of higher layers, and rarely used ones."""
_HIGHER_LAYER_NAMES = frozenset(exported_names(_HIGHER_LAYER_EXPORTS))
_load_higher_layer, __dir__ = attach(__name__, _HIGHER_LAYER_EXPORTS)


def __getattr__(name: str) -> object:
    """Load an export of a higher layer, or return an operator. Raises AttributeError."""
    if name in _HIGHER_LAYER_NAMES:
        return _load_higher_layer(name)
    # TVM has the operators in `relay` too, hundreds of names: they are looked up, not copied.
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
