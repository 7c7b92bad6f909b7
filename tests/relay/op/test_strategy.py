"""User implementations of operators: conditions, priorities, targets, schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ekiden import relay, te, tir, topi
from ekiden.ir.module import IRModule
from ekiden.ir.op import OP_ATTRS, Array
from ekiden.ir.type import Type
from ekiden.relay.expr import Expr
from ekiden.relay.op import OpStrategy, SpecializedCondition
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.te.inline import input_tensors

DATA = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")


def run(body: Expr, *data: Array) -> Array:
    module = IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))
    result: Array = relay.create_executor("vm", module).evaluate()(*data).numpy()
    return result


def times(factor: float) -> Any:  # noqa: ANN401
    """A computation of `exp` that tests can see."""

    def compute(attrs: Any, inputs: Sequence[te.Tensor], out_type: Type) -> list[te.Tensor]:  # noqa: ANN401
        (x,) = inputs
        return [topi.multiply(x, te.const(factor, x.dtype))]

    return compute


def x(shape: tuple[int, ...] = (5, 4)) -> Expr:
    return relay.var("x", shape=shape)


def test_one_computation_for_all_targets() -> None:
    plain = run(relay.exp(x()), DATA)
    relay.op.register_compute("exp", times(3))
    np.testing.assert_allclose(run(relay.nn.relu(relay.exp(x())), DATA), np.maximum(3 * DATA, 0))
    relay.op.register_compute("exp", times(4))  # not taken from what was compiled before
    np.testing.assert_allclose(run(relay.exp(x()), DATA), 4 * DATA)
    del OP_ATTRS["FTVMCompute"]["exp"]
    np.testing.assert_array_equal(run(relay.exp(x()), DATA), plain)


def test_implementations_are_chosen_by_level_and_condition() -> None:
    seen: list[str] = []

    @relay.op.register_strategy("exp")
    def strategy(attrs: Any, inputs: Any, out_type: Type, target: Target) -> OpStrategy:  # noqa: ANN401
        seen.append(str(target.kind.name))
        result = OpStrategy()
        result.add_implementation(times(2), plevel=5)
        result.add_implementation(times(3), name="better", plevel=15)
        with SpecializedCondition(inputs[0].shape[0] > 8):
            result.add_implementation(times(10), name="many rows", plevel=20)
        return result

    np.testing.assert_allclose(run(relay.exp(x()), DATA), 3 * DATA)
    many = np.repeat(DATA, 2, 0)
    np.testing.assert_allclose(run(relay.exp(x((10, 4))), many), 10 * many)
    assert set(seen) == {"llvm"}


def test_strategy_applies_to_unpacked_weights() -> None:
    def compute(attrs: Any, inputs: Sequence[te.Tensor], out_type: Type) -> list[te.Tensor]:  # noqa: ANN401
        data, weight = inputs
        k = te.reduce_axis((0, data.shape[1]), "k")
        rows, columns = data.shape[0], weight.shape[0]
        return [te.compute((rows, columns), lambda i, j: te.sum(data[i, k] * weight[j, k] * 2, k))]

    relay.op.register_compute("nn.dense", compute)
    weight = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")
    result = run(relay.nn.relu(relay.nn.dense(x(), relay.const(weight))), DATA)
    np.testing.assert_allclose(result, np.maximum(2 * DATA @ weight.T, 0), rtol=1e-5, atol=1e-5)


def test_user_schedule_is_used() -> None:
    seen: list[tir.Schedule] = []

    def schedule(attrs: Any, outs: Sequence[te.Tensor], target: Target) -> tir.Schedule:  # noqa: ANN401
        (out,) = outs
        (data,) = input_tensors(out)
        result = tir.Schedule(te.create_prim_func([data, out]))
        _, j = result.get_loops(result.get_block(out.op.name))
        result.vectorize(j)
        seen.append(result)
        return result

    relay.op.register_schedule("exp", schedule)
    np.testing.assert_allclose(run(relay.exp(x()), DATA), np.exp(DATA), rtol=1e-6)
    assert seen


def test_invalid_strategies_are_refused() -> None:
    relay.op.register_strategy("exp", lambda attrs, inputs, kind, target: None)
    with pytest.raises(CompileError, match="exp: its strategy gave None, expected an OpStrategy"):
        run(relay.exp(x()), DATA)
    del OP_ATTRS["FTVMStrategy"]["exp"]
    relay.op.register_schedule("exp", lambda attrs, outs, target: 3)
    with pytest.raises(CompileError, match="exp: its schedule gave 3, expected a tir.Schedule"):
        run(relay.exp(x()), DATA)


def test_unmatched_strategy_falls_back_to_default() -> None:
    relay.op.register_strategy("exp", lambda attrs, inputs, kind, target: OpStrategy())
    np.testing.assert_allclose(run(relay.exp(x()), DATA), np.exp(DATA), rtol=1e-6)
