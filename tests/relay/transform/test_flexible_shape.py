"""FlexibleShapeDispatch: one function per size, padded inputs, rejections."""

import re

import numpy as np
import pytest

from ekiden import IRModule, relay
from ekiden.relay.transform import FlexibleShapeDispatch
from ekiden.runtime.errors import CompileError

X = relay.var("x", shape=(8, 6))
W = relay.var("w", shape=(8, 6))


def table(rows: int, columns: int) -> np.ndarray:
    return np.arange(rows * columns, dtype="float32").reshape(rows, columns)


def test_sizes_have_functions_of_their_own() -> None:
    module = IRModule.from_expr(relay.split(relay.add(X, W), 2, axis=0).astuple())
    transformed = FlexibleShapeDispatch([3, 5], axis=1, input_indices=[0, 1])(module)
    assert {v.name_hint for v in transformed.functions} == {"main", "main_3", "main_5", "main_any"}
    run = relay.create_executor("debug", mod=transformed).evaluate()
    for size in (3, 5, 4, 0):
        x = table(8, size)
        top, bottom = run(x, x)
        np.testing.assert_array_equal(np.concatenate([top.numpy(), bottom.numpy()]), x + x)


def test_inputs_are_filled_up_to_the_next_size() -> None:
    """The mean over a filled axis shows what it is filled with."""
    module = IRModule.from_expr(relay.mean(X, axis=1))
    transformed = FlexibleShapeDispatch(
        [4, 2], 1, auto_pad=True, pad_value=1, affects_output=False
    )(module)
    run = relay.create_executor("vm", mod=transformed).evaluate()
    for size, filled in ((1, 2), (2, 2), (3, 4), (5, 5)):
        x = table(8, size)
        expected = (x.sum(1) + filled - size) / filled
        np.testing.assert_allclose(run(x).numpy(), expected, rtol=1e-6)


def test_results_of_filled_inputs_are_cut() -> None:
    transformed = FlexibleShapeDispatch([4], auto_pad=True)(
        IRModule.from_expr(relay.nn.dense(X, W))
    )
    run = relay.create_executor("debug", mod=transformed).evaluate()
    for size in (0, 3, 4, 6):
        x, w = table(size, 6), table(8, 6)
        np.testing.assert_array_equal(run(x, w).numpy(), x @ w.T)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"buckets": []}, "sizes above 0 expected, got []"),
        ({"buckets": [4], "axis": 2}, "input 0: a tensor with axis 2 expected, got Tensor[(8, 6),"),
        ({"buckets": [4], "input_indices": [1]}, "input 1: @main has 1 inputs"),
        ({"buckets": [4], "affects_output": False}, "float32] has the size on axis 0"),
    ],
)
def test_unsupported_flexible_shapes_are_refused(asked: dict[str, object], message: str) -> None:
    with pytest.raises(CompileError, match=re.escape(message)):
        FlexibleShapeDispatch(**asked)(IRModule.from_expr(relay.nn.relu(X)))
