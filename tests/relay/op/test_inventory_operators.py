"""The operators that are one computation of topi: relation, reference, kernel and text agree."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from inventory_cases import CASES
from operator_cases import Case
from operator_checks import check, lowered, result_type, run_reference, symbols_of, tensor_types

from ekiden.arith import evaluate
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.json import load_json, save_json
from ekiden.ir.op import OPS
from ekiden.ir.prim import AnyDim, IntImm
from ekiden.ir.structural import structural_equal
from ekiden.ir.type import TensorType, TupleType
from ekiden.kernels import schedule
from ekiden.relay import Function, parse_expr
from ekiden.runtime import load_image
from ekiden.runtime.errors import TypeInferenceError
from ekiden.target import Target
from ekiden.tir.transform import lower
from long_runs import sizes

TARGET = Target.host()
every_case = pytest.mark.parametrize("case", CASES, ids=[c.label for c in CASES])
SYMBOLIC = [c for c in CASES if c.symbolic and any(d > 1 for a in c.inputs for d in a.shape)]


@every_case
def test_relation_matches_reference(case: Case) -> None:
    """Shapes and dtypes agree with what the reference gives, that with NumPy where it is said."""
    result = run_reference(case)
    for kind, array in zip(tensor_types(result_type(case, {})), result, strict=True):
        assert tuple(d.value for d in kind.shape if isinstance(d, IntImm)) == array.shape
        assert kind.dtype == str(array.dtype)
    if case.expected is not None:
        check(result[0], case.expected(*case.inputs), case.tolerance)


@pytest.mark.parametrize("case", SYMBOLIC, ids=[c.label for c in SYMBOLIC])
def test_relation_matches_reference_on_symbols(case: Case) -> None:
    symbols = symbols_of(case)
    values = {s: d for d, s in symbols.items()}
    for kind, array in zip(
        tensor_types(result_type(case, symbols)), run_reference(case), strict=True
    ):
        assert tuple(evaluate(d, values) for d in kind.shape) == array.shape


@every_case
def test_call_reads_back_from_text_and_json(case: Case) -> None:
    function = Function(case.params, case.call, None)
    assert structural_equal(parse_expr(function.astext()), function)
    assert structural_equal(load_json(save_json(function)), function)


@sizes("one_of", 3, 1)
def test_inventory_kernels_match_reference(one_of: int) -> None:
    """In one build; of an operator one case with symbols for dimensions, or where it has none with
    numbers, as has one operator in four. Usually of one operator in three.
    """
    fixed = {c.name: c for c in reversed(CASES)}
    free = {c.name: c for c in SYMBOLIC}
    numbers = [c for n, c in enumerate(fixed.values()) if c.name not in free or n % 4 == 0]
    runs = [*((c, {}) for c in numbers), *((c, symbols_of(c)) for c in free.values())]
    runs = [run for run in runs if zlib.crc32(run[0].name.encode()) % one_of == 0]
    funcs = []
    for n, (item, symbols) in enumerate(runs):
        inputs, outputs = lowered(item, symbols)
        funcs.append(lower(schedule(inputs, outputs, TARGET, f"k{n}"), TARGET))
    kernels = load_image(link_image([compile_object(funcs, TARGET)], [f.name for f in funcs]))
    for n, (item, _) in enumerate(runs):
        expected = run_reference(item)
        results = [np.empty(a.shape, a.dtype) for a in expected]
        kernels[f"k{n}"](*(np.array(a, order="C") for a in item.inputs), *results)
        for actual, expected_value in zip(results, expected, strict=True):
            tolerance = max(item.tolerance, 1e-5) if expected_value.dtype.kind == "f" else 0
            check(actual, expected_value, tolerance)


def test_unknown_dimensions_stay_unknown() -> None:
    """What an unknown dimension goes into is unknown, the rest is not."""
    case = next(c for c in CASES if c.name == "nn.dilate")
    data = TensorType((AnyDim(), IntImm(3), AnyDim()), "float32")
    result = OPS["nn.dilate"].relation((data,), case.call.attrs)
    assert isinstance(result, TensorType)
    assert [isinstance(d, AnyDim) for d in result.shape] == [True, False, True]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("topk", "topk: argument 0 must be a tensor"),
        ("nn.space_to_batch_nd", "nn.space_to_batch_nd: expected 1 arguments, got 2"),
    ],
)
def test_inventory_operators_refuse_wrong_arguments(name: str, message: str) -> None:
    case = next(c for c in CASES if c.name == name)
    data = TensorType((IntImm(3),), "float32")
    argument = (TupleType(()),) if name == "topk" else (data, data)
    with pytest.raises(TypeInferenceError, match=message):
        OPS[name].relation(argument, case.call.attrs)
