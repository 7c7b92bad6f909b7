"""Converter tables shared by several frontends: names, and shape computations."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import pytest

from ekiden.frontend.common.converters import data_movement, elementwise, reduction
from ekiden.frontend.common.converters.elementwise import PromotionKind
from ekiden.relay.expr import const
from ekiden.relay.interpreter import Interpreter

pytestmark = pytest.mark.quick

PACKAGES = {
    "onnx": "onnx", "tflite": "tflite", "torch": "torch", "tensorflow": "tensorflow", "jax": "jax",
}  # fmt: skip
Array = np.ndarray[Any, Any]


def keys(frontend: str) -> set[str]:
    """The operators that a frontend converts, as the shared tables call them."""
    if find_spec(PACKAGES[frontend]) is None:
        pytest.skip(f"the package {PACKAGES[frontend]} is not installed")
    table = import_module(f"ekiden.frontend.{frontend}.registry").CONVERTER_TABLE
    if frontend == "onnx":
        return {op_type for domain, op_type in table if domain == ""}
    return {str(key).removeprefix("aten::").removeprefix("stablehlo.") for key in table}


@pytest.mark.parametrize(
    "frontend",
    ["onnx", "tflite"]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("torch", "tensorflow", "jax")],
)
def test_format_converts_every_shared_operator(frontend: str) -> None:
    column: Any = {"jax": "stablehlo"}.get(frontend, frontend)
    named = [name for name, _, _ in elementwise.elementwise_rows(column)]
    if frontend in ("onnx", "tflite", "tensorflow"):
        column = frontend
        named += [name for name, _ in reduction.reduction_rows(column)]
    if frontend in ("tflite", "tensorflow"):
        named += [name for name, _ in data_movement.movement_rows(column)]
    assert len(set(named)) == len(named) > 30
    assert set(named) <= keys(frontend)


def test_converter_opsets_match_onnx_changes() -> None:
    schemas = onnx.defs.get_all_schemas_with_history()
    versions = {(s.name, s.since_version) for s in schemas if s.domain == ""}
    rows = elementwise.elementwise_rows("onnx")
    assert {(name, since) for name, since, _ in rows if since > 1} <= versions


RULES = [row for row in elementwise.ELEMENTWISE_ROWS if row.rule is not None]
OPERANDS = {
    "bool": [np.array([False, False, True, True]), np.array([False, True, False, True])],
    "int64": [np.array([-7, 7, 0, 9]), np.array([2, -2, 5, 3])],
    "float32": [np.array([-1.5, 2.5, 0.0, 4.0], np.float32), np.array([2, 2, 1, -4], np.float32)],
}


def computed(row: elementwise.ElementwiseRow, dtype: str, operands: list[Array]) -> Array:
    result = Interpreter().evaluate(row.emit(dtype, *(const(operand) for operand in operands)))
    assert isinstance(result, np.ndarray)
    return result


@pytest.mark.parametrize("row", RULES, ids=lambda row: row.function.__name__)
def test_shape_rules_match_operator_results(row: elementwise.ElementwiseRow) -> None:
    assert row.rule is not None
    dtype = "bool" if row.kind is PromotionKind.LOGICAL else "float32"
    dtype = "int64" if row.kind is PromotionKind.SAME else dtype
    unary = row.kind in (PromotionKind.FLOAT,
        PromotionKind.INTEGER_IDENTITY) or row.function.__name__ in (
        "logical_not", "negative",
    )  # fmt: skip
    operands = [
        np.abs(item) if row.kind is PromotionKind.FLOAT else item for item in OPERANDS[dtype]
    ]
    operands = operands[:1] if unary else operands
    np.testing.assert_array_equal(row.rule(operands), computed(row, dtype, operands))


def test_rounding_leaves_integers_unchanged() -> None:
    for row in elementwise.ELEMENTWISE_ROWS:
        if row.kind is PromotionKind.INTEGER_IDENTITY:
            x = const(OPERANDS["int64"][0])
            assert row.emit("int64", x) is x


@pytest.mark.parametrize(
    "row",
    [row for row in elementwise.ELEMENTWISE_ROWS if row.bool_function],
    ids=lambda row: row.function.__name__,
)
def test_bool_operands_stay_bool(row: elementwise.ElementwiseRow) -> None:
    operands = OPERANDS["bool"][: 1 if row.function.__name__ == "bitwise_not" else 2]
    expected = {
        "add": np.logical_or, "multiply": np.logical_and, "maximum": np.maximum,
        "minimum": np.minimum, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor, "bitwise_not": np.bitwise_not,
    }[row.function.__name__](*operands)  # fmt: skip
    np.testing.assert_array_equal(computed(row, "bool", operands), expected)
