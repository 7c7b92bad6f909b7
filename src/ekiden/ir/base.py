"""TVM's module `ir.base`: node base classes, structural equality, hashing and JSON
serialization.
"""

from ekiden.ir.compare import assert_structural_equal, get_first_structural_mismatch
from ekiden.ir.json import load_json, save_json
from ekiden.ir.node import Node
from ekiden.ir.span import SourceName, Span
from ekiden.ir.structural import structural_equal, structural_hash

__all__ = [
    "Node",
    "SourceName",
    "Span",
    "assert_structural_equal",
    "get_first_structural_mismatch",
    "load_json",
    "save_json",
    "structural_equal",
    "structural_hash",
]
