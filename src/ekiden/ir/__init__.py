"""What every language of Ekiden is made of.

Nodes, types, scalar expressions, operators, modules, passes. The names of TVM's `ir` are loaded
when they are first used.
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see import_late)
from ekiden.runtime.late import import_late

_HOMES = {
    "assert_structural_equal": "compare",
    "get_first_structural_mismatch": "compare",
    "structural_equal": "structural",
    "structural_hash": "structural",
    "save_json": "json",
    "load_json": "json",
    "make_node": "make",
    "Node": "node",
    "Attrs": "attrs",
    "EnvFunc": "env_func",
    "Span": "span",
    "SourceName": "span",
    "Op": "op",
    "register_op_attr": "op",
    "IRModule": "module",
    "RelayExpr": "expr",
    "BaseFunc": "expr",
    "GlobalVar": "expr",
    "PrimExpr": "prim",
    **dict.fromkeys(("AffineType", "TensorAffineType", "TupleAffineType"), "affine_type"),
    "Array": "container",
    "Map": "container",
    "IntImm": "prim",
    "FloatImm": "prim",
    "Range": "range",
    **dict.fromkeys(
        "Type TypeKind TensorType TupleType TypeVar GlobalTypeVar FuncType TypeCall RelayRefType"
        " TypeRelation IncompleteType".split(),
        "type",
    ),
}
"""Name -> the file of this folder that has it."""
_MODULES = frozenset(
    "affine_type attrs base container diagnostics expr instrument json memory_pools module op"
    " transform type".split()
)
"""Modules that TVM's programs name after `import tvm`."""


def __getattr__(name: str) -> object:
    """Load a name of the table when it is first used, or a module of TVM's `ir`."""
    if name in _MODULES:
        return import_late(f"ekiden.ir.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'ekiden.ir' has no attribute {name!r}")
    found: object = getattr(import_late(f"ekiden.ir.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
