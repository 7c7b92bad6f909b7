"""Core IR that all dialects share: nodes, types, operators, modules, passes and structural
equality.

Nodes, types, scalar expressions, operators, modules, passes. The names of TVM's `ir` are loaded
when they are first used.
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

__getattr__, __dir__ = attach(
    __name__,
    {
        "compare": "assert_structural_equal get_first_structural_mismatch",
        "structural": "structural_equal structural_hash",
        "json": "load_json save_json",
        "make": "make_node",
        "node": "Node",
        "attrs": "Attrs",
        "env_func": "EnvFunc",
        "span": "SourceName Span",
        "op": "Op register_op_attr",
        "intrinsic_rules": "register_intrin_lowering",
        "module": "IRModule",
        "expr": "BaseFunc GlobalVar RelayExpr",
        "prim": "FloatImm IntImm PrimExpr",
        "affine_type": "AffineType TensorAffineType TupleAffineType",
        "container": "Array Map",
        "range": "Range",
        "type": "FuncType GlobalTypeVar IncompleteType RelayRefType TensorType"
        " TupleType Type TypeCall TypeKind TypeRelation TypeVar",
    },
)
