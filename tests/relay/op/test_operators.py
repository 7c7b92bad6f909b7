"""Every operator: its relation against its reference, its reference against NumPy, its computation
against both."""

from __future__ import annotations

import nn_operator_cases
import numpy as np
import operator_cases
import pytest
from operator_cases import Case
from te_evaluator import Evaluator

from ekiden import te
from ekiden.arith import evaluate
from ekiden.ir.op import OPS, Array
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Constant

pytestmark = pytest.mark.quick

CASES = operator_cases.CASES + nn_operator_cases.CASES
every_case = pytest.mark.parametrize("case", CASES, ids=[c.label for c in CASES])


def run_reference(case: Case) -> tuple[Array, ...]:
    """The reference on the case's arrays."""
    definition = OPS[case.name]
    assert definition.reference is not None
    found = definition.reference(case.call.attrs, *case.inputs, *constants(case))
    return found if isinstance(found, tuple) else (found,)


def constants(case: Case) -> list[Array]:
    """Arguments of the call that are constants (nn.pad's value)."""
    return [a.data for a in case.call.args if isinstance(a, Constant)]


def result_type(case: Case, symbols: dict[int, SizeVar]) -> Type:
    """The relation on the case's types, with dimensions replaced by symbols."""
    arrays = [*case.inputs, *constants(case)]
    types = tuple(
        TensorType(tuple(symbols.get(d, IntImm(d)) for d in a.shape), str(a.dtype)) for a in arrays
    )
    arguments: tuple[Type, ...] = (TupleType(types),) if operator_cases.is_variadic(case) else types
    return OPS[case.name].relation(arguments, case.call.attrs)


def tensor_types(found: Type) -> list[TensorType]:
    """The tensors of a result type."""
    many = found.fields if isinstance(found, TupleType) else (found,)
    return [t for t in many if isinstance(t, TensorType)]


def check(found: Array, expected: object, tolerance: float) -> None:
    """Compare values, with a tolerance relative to the largest."""
    wanted = np.asarray(expected)
    assert found.shape == wanted.shape
    scale = (
        max(1.0, float(np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted))))
        if wanted.dtype.kind == "f"
        else 1
    )
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)


def test_every_operator_with_a_kernel_has_a_case() -> None:
    """Nothing is declared that nothing tests."""
    assert {n for n, d in OPS.items() if d.lower is not None} <= {c.name for c in CASES}


@every_case
def test_relation_gives_the_type_of_the_reference(case: Case) -> None:
    """Shapes and dtypes agree with what the reference computes."""
    for found, array in zip(tensor_types(result_type(case, {})), run_reference(case), strict=True):
        assert tuple(d.value for d in found.shape if isinstance(d, IntImm)) == array.shape
        assert found.dtype == str(array.dtype)


def _symbols(case: Case) -> dict[int, SizeVar]:
    """One symbol for each extent above 1 (equal extents must stay equal)."""
    extents = {d for a in case.inputs for d in a.shape if d > 1}
    return {d: SizeVar(f"n{d}") for d in sorted(extents)}


symbolic_cases = [c for c in CASES if c.symbolic and any(d > 1 for a in c.inputs for d in a.shape)]


@pytest.mark.parametrize("case", symbolic_cases, ids=[c.label for c in symbolic_cases])
def test_relation_on_symbols_gives_the_same_shape(case: Case) -> None:
    """A relation computed on symbols and then evaluated is the relation on numbers."""
    symbols = _symbols(case)
    values = {s: d for d, s in symbols.items()}
    found = tensor_types(result_type(case, symbols))
    for each, array in zip(found, run_reference(case), strict=True):
        assert tuple(evaluate(d, values) for d in each.shape) == array.shape


checked = [c for c in CASES if c.expected is not None]


@pytest.mark.parametrize("case", checked, ids=[c.label for c in checked])
def test_reference_means_what_numpy_says(case: Case) -> None:
    """The reference against an independent expression."""
    assert case.expected is not None
    expected = case.expected(*case.inputs)
    many = expected if isinstance(expected, (tuple, list)) else (expected,)
    for found, wanted in zip(run_reference(case), many, strict=True):
        check(found, wanted, case.tolerance)


def lowered(case: Case, symbols: dict[int, SizeVar]) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """The te graph of a case: (inputs, outputs)."""
    definition = OPS[case.name]
    assert definition.lower is not None
    arrays = [*case.inputs, *constants(case)]
    shapes: list[tuple[PrimExpr, ...]] = [
        tuple(symbols.get(d, IntImm(d)) for d in a.shape) for a in arrays
    ]
    inputs = [
        te.placeholder(s, str(a.dtype), f"x{n}")
        for n, (s, a) in enumerate(zip(shapes, arrays, strict=True))
    ]
    outputs = definition.lower(case.call.attrs, inputs, result_type(case, symbols))
    assert all(isinstance(t, te.Tensor) for t in outputs)
    return inputs, list(outputs)  # type: ignore[arg-type]


def check_computation(case: Case, symbols: dict[int, SizeVar]) -> None:
    """Evaluate the te graph of a case and compare with the reference."""
    inputs, outputs = lowered(case, symbols)
    arrays = [*case.inputs, *constants(case)]
    evaluator = Evaluator(
        dict(zip(inputs, arrays, strict=True)), {s: d for d, s in symbols.items()}
    )
    for tensor, expected in zip(outputs, run_reference(case), strict=True):
        found = evaluator.tensor(tensor)
        assert found.dtype == expected.dtype
        check(found, expected, case.tolerance)


@every_case
def test_computation_is_the_reference(case: Case) -> None:
    """The tensor expressions of topi, evaluated by NumPy, give what the reference gives."""
    check_computation(case, {})


@pytest.mark.parametrize("case", symbolic_cases, ids=[c.label for c in symbolic_cases])
def test_computation_on_symbols_is_the_reference(case: Case) -> None:
    """The same with symbolic dimensions."""
    check_computation(case, _symbols(case))
