"""Every operator compiled to native code and run, with numbers and with symbols for dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from operator_cases import Case
from operator_checks import CASES, SYMBOLIC, check, lowered, run_reference, symbols_of

from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.op import Array
from ekiden.ir.prim import SizeVar
from ekiden.kernels import schedule
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir.transform import lower
from long_runs import share

pytestmark = pytest.mark.early

TARGET = Target.host()


def run_kernel(case: Case, symbols: dict[int, SizeVar]) -> list[Array]:
    """Compile a case's computation as the compiler would, and run it."""
    inputs, outputs = lowered(case, symbols)
    func = lower(schedule(inputs, outputs, TARGET, "kernel"), TARGET)
    kernel = load_image(link_image([compile_object([func], TARGET)], [func.name]))[func.name]
    arrays = [np.array(a, order="C") for a in case.inputs]
    results = [np.empty(a.shape, a.dtype) for a in run_reference(case)]
    kernel(*arrays, *results)
    return results


def check_kernel(case: Case, symbols: dict[int, SizeVar]) -> None:
    """Compare what the kernel writes with the reference."""
    for actual, expected in zip(run_kernel(case, symbols), run_reference(case), strict=True):
        check(actual, expected, max(case.tolerance, 1e-5) if expected.dtype.kind == "f" else 0)


FREE = {c.name for c in SYMBOLIC}


@share(12, by=lambda case: None if case.name in FREE else case.name)
@pytest.mark.parametrize("case", CASES, ids=[c.label for c in CASES])
def test_kernel_matches_reference(case: Case) -> None:
    """Every dimension a number; usually of the operators that no case with symbols is of, and a
    share of the others."""
    check_kernel(case, {})


@share(8, by=lambda case: case.name)
@pytest.mark.parametrize("case", SYMBOLIC, ids=[c.label for c in SYMBOLIC])
def test_kernel_with_symbolic_dimensions_matches_reference(case: Case) -> None:
    """Every dimension above 1 a symbol, which the kernel reads from its arguments."""
    check_kernel(case, symbols_of(case))
