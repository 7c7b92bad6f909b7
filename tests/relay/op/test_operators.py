"""Every operator: its relation against its reference, its reference against NumPy, its computation
against both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import inventory_cases
import pytest
from operator_cases import Case
from operator_checks import (
    CASES,
    SYMBOLIC,
    check,
    lowered,
    result_type,
    run_reference,
    symbols_of,
    tensor_types,
)
from te_evaluator import Evaluator

from ekiden.arith import evaluate
from ekiden.ir.op import OPS
from ekiden.ir.prim import IntImm, SizeVar
from long_runs import share

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[3]

every_case = pytest.mark.parametrize("case", CASES, ids=[c.label for c in CASES])

COSTLY_COMPUTATIONS = ("nn.attention", "nn.contrib_paged_attention", "nn.recurrent")
"""Operators whose computations the evaluator takes tenths of a second for, by prefix."""


def every_computation(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Return the parameter `case`, of which costly ones are not in the quick group."""
    params = [
        pytest.param(
            case,
            id=case.label,
            marks=pytest.mark.slow if case.name.startswith(COSTLY_COMPUTATIONS) else (),
        )
        for case in cases
    ]
    return pytest.mark.parametrize("case", params)


ELSEWHERE = {
    "annotation.stop_fusion": "tests/runtime/test_tvm_vm_api.py",
    **dict.fromkeys(
        ("det", "ml.couple", "ml.tree_leaves", "row_ranks"), "tests/topi/test_algebra_operators.py"
    ),
    "call_lowered": "tests/relay/test_prim_func_calls.py",
    **{name: "tests/topi/test_text_kernels.py" for name in OPS if name.startswith("text.")},
    **{
        f"text.{name}": "tests/relay/op/frontend_cases.py"
        for name in ("whole_number", "number_parts", "written")
    },
}
"""Operators whose kernels have tests of their own; these name them."""


def test_every_operator_with_a_kernel_has_a_case() -> None:
    """Nothing is declared that nothing tests; tests/end_to_end does those whose shape is data."""
    tested = {c.name for c in (*CASES, *inventory_cases.CASES)} | ELSEWHERE.keys()
    for name, path in ELSEWHERE.items():
        shown = name.removeprefix("annotation.").removeprefix("nn.")
        assert re.search(rf"\b{shown}\b", (ROOT / path).read_text()), (name, path)
    assert {n for n, d in OPS.items() if d.lower is not None and d.dims is None} <= tested


@every_case
def test_relation_gives_the_type_of_the_reference(case: Case) -> None:
    """Shapes and dtypes agree with what the reference computes."""
    for result, array in zip(tensor_types(result_type(case, {})), run_reference(case), strict=True):
        assert tuple(d.value for d in result.shape if isinstance(d, IntImm)) == array.shape
        assert result.dtype == str(array.dtype)


@pytest.mark.parametrize("case", SYMBOLIC, ids=[c.label for c in SYMBOLIC])
def test_relation_on_symbols_gives_the_same_shape(case: Case) -> None:
    """A relation computed on symbols and then evaluated is the relation on numbers."""
    symbols = symbols_of(case)
    values = {s: d for d, s in symbols.items()}
    result = tensor_types(result_type(case, symbols))
    for item, array in zip(result, run_reference(case), strict=True):
        assert tuple(evaluate(d, values) for d in item.shape) == array.shape


checked = [c for c in CASES if c.expected is not None]


@pytest.mark.parametrize("case", checked, ids=[c.label for c in checked])
def test_reference_matches_numpy(case: Case) -> None:
    """The reference against an independent expression."""
    assert case.expected is not None
    expected = case.expected(*case.inputs)
    many = expected if isinstance(expected, (tuple, list)) else (expected,)
    for actual, expected_value in zip(run_reference(case), many, strict=True):
        check(actual, expected_value, case.tolerance)


def check_computation(case: Case, symbols: dict[int, SizeVar]) -> None:
    """Evaluate the te graph of a case and compare with the reference."""
    inputs, outputs = lowered(case, symbols)
    evaluator = Evaluator(
        dict(zip(inputs, case.inputs, strict=True)), {s: d for d, s in symbols.items()}
    )
    for tensor, expected in zip(outputs, run_reference(case), strict=True):
        actual = evaluator.tensor(tensor)
        assert actual.dtype == expected.dtype
        check(actual, expected, case.tolerance)


@share(2, by=lambda case: case.name)
@every_computation(CASES)
def test_te_computation_matches_reference(case: Case) -> None:
    """The tensor expressions of topi, evaluated by NumPy, give what the reference gives."""
    check_computation(case, {})


@share(2, by=lambda case: case.name)
@every_computation(SYMBOLIC)
def test_te_computation_with_symbols_matches_reference(case: Case) -> None:
    """The same with symbolic dimensions."""
    check_computation(case, symbols_of(case))
