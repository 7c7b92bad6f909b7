"""The interpreter stops loop programs beyond their step budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.tir import PrimFunc, interpreter
from ekiden.tir.interpreter_limits import StepBudget, StepLimitError
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.transform import lower

pytestmark = pytest.mark.quick

LIMITS = np.array([100, 100], np.int64)
ENOUGH = 1 << 20


def _program(count: Callable[[IRBuilder, BufferVar, BufferVar], None]) -> PrimFunc:
    """Return a program that counts in `out[0]`; `limits` says how far."""
    limits = te.placeholder((2,), "int64", "limits")

    def build(ins: Sequence[tir.Buffer], outs: Sequence[tir.Buffer]) -> tir.Stmt:
        ib = tir.ir_builder.create()
        source, out = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        out[0] = 0
        count(ib, source, out)
        return ib.get()

    out = te.extern((1,), [limits], build, "count", "int64")
    assert isinstance(out, te.Tensor)
    return lower(te.create_prim_func([limits, out]))


def _known_loops(ib: IRBuilder, limits: BufferVar, out: BufferVar) -> None:
    with ib.for_range(0, 100, "i"), ib.for_range(0, 100, "j"):
        out[0] = out[0] + 1


def _loops_of_data(ib: IRBuilder, limits: BufferVar, out: BufferVar) -> None:
    with ib.for_range(0, limits[0], "i"), ib.for_range(0, limits[1], "j"):
        out[0] = out[0] + 1


def _condition(ib: IRBuilder, limits: BufferVar, out: BufferVar) -> None:
    with ib.while_loop(out[0] < limits[0] * limits[1]):
        out[0] = out[0] + 1


@pytest.mark.parametrize("count", [_known_loops, _loops_of_data, _condition])
def test_budget_refuses_a_long_run_and_changes_no_other(
    count: Callable[[IRBuilder, BufferVar, BufferVar], None],
) -> None:
    func, out = _program(count), np.zeros(1, np.int64)
    with pytest.raises(StepLimitError):
        interpreter.run_prim_func(func, LIMITS, out, budget=StepBudget(10_000))
    assert out[0] < 10_000
    interpreter.run_prim_func(func, LIMITS, out, budget=StepBudget(ENOUGH))
    assert out[0] == 10_000


def test_known_loops_are_refused_before_the_first_store() -> None:
    out = np.full(1, -1)
    with pytest.raises(StepLimitError):
        interpreter.run_prim_func(_program(_known_loops), LIMITS, out, budget=StepBudget(10_000))
    assert out[0] == -1
