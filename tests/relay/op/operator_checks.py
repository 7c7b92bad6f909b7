"""What the tests over operator cases share: references, types, computations, comparison."""

from __future__ import annotations

import nn_operator_cases
import numpy as np
import operator_cases
from operator_cases import Case

from ekiden import te
from ekiden.ir.op import OPS, Array
from ekiden.ir.prim import IntImm, SizeVar, const
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Constant

CASES = operator_cases.CASES + nn_operator_cases.CASES
SYMBOLIC = [c for c in CASES if c.symbolic and any(d > 1 for a in c.inputs for d in a.shape)]


def run_reference(case: Case) -> tuple[Array, ...]:
    """The reference on the case's arrays."""
    definition = OPS[case.name]
    assert definition.reference is not None
    result = definition.reference(case.call.attrs, *case.inputs, *constants(case))
    return result if isinstance(result, tuple) else (result,)


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


def tensor_types(result: Type) -> list[TensorType]:
    """The tensors of a result type."""
    many = result.fields if isinstance(result, TupleType) else (result,)
    return [t for t in many if isinstance(t, TensorType)]


def check(actual: Array, expected: object, tolerance: float) -> None:
    """Compare values, with a tolerance relative to the largest."""
    expected_value = np.asarray(expected)
    assert actual.shape == expected_value.shape
    scale = (
        max(
            1.0, float(np.max(np.abs(expected_value), initial=0, where=np.isfinite(expected_value)))
        )
        if expected_value.dtype.kind == "f"
        else 1
    )
    np.testing.assert_allclose(actual, expected_value, rtol=tolerance, atol=tolerance * scale)


def symbols_of(case: Case) -> dict[int, SizeVar]:
    """One symbol for each extent above 1, or each chosen one (equal extents must stay equal)."""
    chosen = case.symbolic if isinstance(case.symbolic, tuple) else None
    extents = {d for a in case.inputs for d in a.shape if d > 1 and (chosen is None or d in chosen)}
    return {d: SizeVar(f"n{d}") for d in sorted(extents)}


def _number(constant: Array) -> te.Tensor:
    return te.compute((), lambda: const(constant.item(), str(constant.dtype)), name="constant")


def lowered(case: Case, symbols: dict[int, SizeVar]) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """The te graph of a case: (inputs, outputs), its constants as numbers."""
    definition = OPS[case.name]
    assert definition.lower is not None
    inputs = [
        te.placeholder([symbols.get(d, IntImm(d)) for d in a.shape], str(a.dtype), f"x{n}")
        for n, a in enumerate(case.inputs)
    ]
    numbers = [_number(c) for c in constants(case)]
    outputs = definition.lower(case.call.attrs, [*inputs, *numbers], result_type(case, symbols))
    assert all(isinstance(t, te.Tensor) for t in outputs)
    return inputs, list(outputs)  # type: ignore[arg-type]
