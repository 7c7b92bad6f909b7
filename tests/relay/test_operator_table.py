"""Operator properties are columns of the operator table; no pass lists operators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ekiden
import ekiden.relay  # declares the operators
from ekiden.ir.op import OPS, LinearForm, PaddingAbsorption, TransposeRule
from ekiden.relay.op.create import CONSTANT_FILL_OPS

ROOT = Path(ekiden.__file__).parent
READERS = ("relay/transform", "relay/packing", "relay/analysis", "relay/dataflow_pattern",
           "relay/backend", "backend", "frontend", "compiler", "contrib")  # fmt: skip
"""Where passes stand, and what else reads the table; beside it the folders that declare rows."""


def strings(node: ast.AST) -> list[str]:
    """The strings that a literal is a collection of; empty where it is anything else."""
    match node:
        case ast.Set(elts=items) | ast.Tuple(elts=items) | ast.List(elts=items):
            pass
        case ast.Dict(keys=keys) if all(key is not None for key in keys):
            items = [key for key in keys if key is not None]
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="split")):
            return text.split()
        case _:
            return []
    result = [e.value for e in items if isinstance(e, ast.Constant) and isinstance(e.value, str)]
    return result if len(result) == len(items) else []


def lists_of_operators(text: str) -> Iterator[tuple[int, list[str]]]:
    """(line, names) of each literal collection of two names of operators or more, and of those in
    which most words are such."""
    for node in ast.walk(ast.parse(text)):
        names = strings(node)
        known = [name for name in names if name in OPS]
        if len(known) >= 2 and 3 * len(known) > 2 * len(names):
            yield node.lineno, names  # type: ignore[attr-defined]


TABLES = frozenset((
    "relay/transform/infer_layout_utils.py", "relay/transform/quantization/match_quantized.py",
    "relay/transform/quantization/integer_products.py",
))  # fmt: skip
"""Files that hold a table of rules by operator, where that is the idea and no property of one: what
an operator does to the bytes behind its operand is a function on Levels (levels.py), and each float
product has its own counterpart of the quantised dialect (integer_products.py); what
TVM registers as FInferCorrectLayout is a function on layouts, which stand a floor above the rows;
users add to it and replace it (`register_infer_correct_layout`), as they do converters of ONNX and
the rules of FakeQuantizationToInteger (relay/qnn/affine_rules.py), which are registered one by one.
"""

SOURCES = frozenset((
    "backend/kernels/general_encoding.py", "contrib/target/onnx_emitters.py",
    "frontend/common/recurrent_layer.py", "frontend/common/reducers.py",
    "frontend/jax/converters/reduction_bodies.py", "frontend/jax/converters/elementwise.py",
    "frontend/jax/converters/reduce_window.py",
    "frontend/tensorflow/converters/data_movement.py",
))  # fmt: skip
"""Files whose words are those of what they read or write: operations of ONNX and StableHLO,
TensorFlow's modes of ScatterNd, activations of recurrent layers and intrinsics of loop programs;
some are Relay's too.
"""


@pytest.mark.parametrize("folder", READERS)
def test_no_pass_holds_a_list_of_operators(folder: str) -> None:
    files = {str(f.relative_to(ROOT)): f for f in (ROOT / folder).rglob("*.py")}
    assert files
    result = {name: list(lists_of_operators(file.read_text())) for name, file in files.items()}
    assert {name for name, lists in result.items() if lists} == (TABLES | SOURCES) & files.keys()


def test_scan_detects_operator_lists() -> None:
    text = """
A = {"add", "multiply"}
B = {"exp": 1, "nn.softmax": 2}
C = "sqrt tanh exp nn.none".split()
if name in ("reshape", "squeeze"): pass
D = ("add",), ["x", "y", "add", "exp"]
"""
    assert [line for line, _ in lists_of_operators(text)] == [2, 3, 4, 5]


def test_operator_columns_are_consistent() -> None:
    for name, row in OPS.items():
        assert not row.fast or OPS[row.fast].attrs is row.attrs, name
        assert not row.commutes or len(row.arguments) == 2, name
        assert row.linear is LinearForm.NO or len(row.arguments) == 2, name
        assert row.transpose_rule is not TransposeRule.SHAPE or row.reshape_only, name
        assert row.padding_absorption is PaddingAbsorption.NO or hasattr(row.attrs, "padding"), name
        assert row.channels is None or row.macs is not None, name
        assert row.gradient_of is None or row.lower is None, name
        assert row.gradient_of is None or row.gradient_of[0] in OPS, name
        assert not row.quantizes or row.quantizes in OPS, name
        assert not row.weight_layouts or hasattr(row.attrs, "kernel_layout"), name
        assert not row.sizes or name.removeprefix("dyn.") in OPS.keys() - {name}, name
        assert row.fills in (None, 0, 1), name
        assert (row.fills is not None and row.lower is not None) == (name in CONSTANT_FILL_OPS), (
            name
        )
