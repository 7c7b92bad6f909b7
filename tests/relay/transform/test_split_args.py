"""SplitArgs, and folding of single expressions."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.arith import Analyzer
from ekiden.backend.vm.pipeline import MAX_CONCAT_INPUTS, optimize_module
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import PrimExpr, SizeVar, Var, const
from ekiden.kernels.cpu.loops import LoopAxis, split_points
from ekiden.relay.expr import Call, Tuple
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.testing import count_ops
from ekiden.relay.visitor import post_order
from ekiden.target import Target


@pytest.mark.parametrize(("most", "joins"), [(0, 1), (2, 8), (3, 4), (8, 1)])
def test_concatenations_respect_argument_limit(most: int, joins: int) -> None:
    parts = [relay.var(f"x{i}", shape=(2, i + 1)) for i in range(8)]
    body = relay.nn.relu(relay.concatenate(parts, axis=-1))
    module = relay.transform.SplitArgs(most)(IRModule.from_expr(relay.Function(parts, body)))
    counts = count_ops(module["main"])
    assert counts["concatenate"] <= joins
    assert counts["annotation.stop_fusion"] == counts["concatenate"] - 1
    data = [np.full((2, i + 1), i - 3, "float32") for i in range(8)]
    result = np.asarray(Interpreter(module).evaluate("main", *data))
    np.testing.assert_array_equal(result, np.maximum(np.concatenate(data, -1), 0))


def test_machine_joins_any_number_by_kernels_of_few() -> None:
    parts = [relay.var(f"x{i}", shape=(2, 4)) for i in range(2000)]
    module = IRModule.from_expr(relay.Function(parts, relay.concatenate(parts, axis=1)))
    result = optimize_module(module, Target.host())
    calls = [e for e in post_order(result["main"]) if isinstance(e, Call)]
    kernels = [c for c in calls if isinstance(c.op, Op) and c.op.name == "vm.invoke_tvm_op"]
    sizes = {len(c.args[1].fields) for c in kernels if isinstance(c.args[1], Tuple)}
    assert len(kernels) == 32  # each writes its part of the result in place
    assert max(sizes) <= MAX_CONCAT_INPUTS


def test_what_the_machine_joins_is_computed_by_kernels_of_few_inputs() -> None:
    sizes = [SizeVar("n", "int64") for _ in range(40)]
    data = [relay.var("x", shape=(n, 4)) for n in sizes]
    rows = [relay.var("i", shape=(n,), dtype="int64") for n in sizes]
    parts = [relay.take(x, i, axis=0) for x, i in zip(data, rows, strict=True)]
    body = relay.concatenate(parts, axis=0)
    result = optimize_module(
        IRModule.from_expr(relay.Function([*data, *rows], body)), Target.host()
    )
    calls = [e for e in post_order(result["main"]) if isinstance(e, Call)]
    kernels = [c for c in calls if isinstance(c.op, Op) and c.op.name == "vm.invoke_tvm_op"]
    read = [len(c.args[1].fields) for c in kernels if isinstance(c.args[1], Tuple)]
    assert max(read) == MAX_CONCAT_INPUTS  # as much with it as there may be


@pytest.mark.parametrize(("most", "splits"), [(0, 1), (2, 7), (3, 4), (7, 3), (8, 1)])
@pytest.mark.parametrize("cuts", [8, (1, 3, 4, 9, 9, 14, 15)])
def test_splits_respect_argument_limit(most: int, splits: int, cuts: int | tuple[int, ...]) -> None:
    x = relay.var("x", shape=(2, 16))
    parts = relay.split(x, cuts, axis=1)
    body = relay.Tuple([relay.TupleGetItem(parts, n) for n in range(8)])
    module = IRModule.from_expr(relay.Function([x], body))
    module = relay.transform.SplitArgs(most)(relay.transform.InferType()(module))
    assert count_ops(module["main"])["split"] <= splits
    data = np.arange(32, dtype="float32").reshape(2, 16)
    actual = Interpreter(module).evaluate("main", data)
    expected = np.split(data, cuts, axis=1)
    assert isinstance(actual, tuple)
    for result, reference in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(result), reference)


def test_machine_parts_into_any_number_by_kernels_of_few() -> None:
    n = SizeVar("n", "int64")
    x = relay.var("x", shape=(n, 2000))
    parts = relay.split(x, 1000, axis=1)
    body = relay.Tuple([relay.TupleGetItem(parts, k) for k in range(1000)])
    result = optimize_module(IRModule.from_expr(relay.Function([x], body)), Target.host())
    calls = [e for e in post_order(result["main"]) if isinstance(e, Call)]
    kernels = [c for c in calls if isinstance(c.op, Op) and c.op.name == "vm.invoke_tvm_op"]
    sizes = {len(c.args[2].fields) for c in kernels if isinstance(c.args[2], Tuple)}
    assert len(kernels) <= 17 and max(sizes) <= MAX_CONCAT_INPUTS


def test_numbers_to_cut_at_are_ordered_without_proofs() -> None:
    class Counted(Analyzer):
        """Counts what it is asked to prove of pairs of points."""

        asked = 0

        def can_prove(self, condition: PrimExpr) -> bool:
            Counted.asked += 1
            return super().can_prove(condition)

    i = Var("i")
    axis = LoopAxis(i, const(1000))
    whole = const(0.0, "float32")
    for n in range(1, 70):
        whole = if_then_else(i < n * 7, whole, const(float(n), "float32"))
    analyzer = Counted()
    analyzer.bind(i, 0, 1000)
    points = split_points([whole], axis, set(), analyzer)
    assert [p.value for p in points] == [0, *range(7, 490, 7), 1000]
    assert Counted.asked <= 4 * 70


def test_unreachable_argument_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 or at least 2 arguments, got 1"):
        relay.transform.SplitArgs(1)


def test_one_expression_is_folded() -> None:
    x = relay.var("x", shape=(2,))
    folded = relay.transform.FoldConstantExpr(x + (relay.const(1.0) + relay.const(2.0)))
    assert count_ops(folded) == {"add": 1}
    module = IRModule()
    module["main"] = relay.Function([], relay.const(1.0))
    call = module.get_global_var("main")()
    assert count_ops(relay.transform.FoldConstantExpr(relay.exp(call), module)) == {"exp": 1}


def test_split_args_without_limit_changes_nothing() -> None:
    module = IRModule.from_expr(relay.concatenate([relay.var("x", shape=(1,))] * 9, 0))
    for limit in (0, -1):
        assert count_ops(relay.transform.SplitArgs(limit)(module)["main"].body)["concatenate"] == 1
