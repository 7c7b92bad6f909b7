"""SplitArgs, and folding of single expressions."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.testing import count_ops


@pytest.mark.parametrize(("most", "joins"), [(0, 1), (2, 8), (3, 4), (8, 1)])
def test_no_join_has_more_inputs(most: int, joins: int) -> None:
    parts = [relay.var(f"x{i}", shape=(2, i + 1)) for i in range(8)]
    body = relay.nn.relu(relay.concatenate(parts, axis=-1))
    module = relay.transform.SplitArgs(most)(IRModule.from_expr(relay.Function(parts, body)))
    counts = count_ops(module["main"])
    assert counts["concatenate"] <= joins
    assert counts["annotation.stop_fusion"] == counts["concatenate"] - 1
    data = [np.full((2, i + 1), i - 3, "float32") for i in range(8)]
    found = np.asarray(Interpreter(module).evaluate("main", *data))
    np.testing.assert_array_equal(found, np.maximum(np.concatenate(data, -1), 0))


def test_a_limit_that_nothing_fits_under() -> None:
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


def test_no_limit_is_none() -> None:
    module = IRModule.from_expr(relay.concatenate([relay.var("x", shape=(1,))] * 9, 0))
    for limit in (0, -1):
        assert count_ops(relay.transform.SplitArgs(limit)(module)["main"].body)["concatenate"] == 1
