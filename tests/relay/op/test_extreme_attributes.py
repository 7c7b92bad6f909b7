"""Regressions: extreme attributes that once took unbounded time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.prim import SizeVar
from ekiden.relay import op
from ekiden.relay.expr import Expr
from ekiden.relay.transform import InferType
from ekiden.runtime.errors import TypeInferenceError

pytestmark = pytest.mark.quick
STRIDE = 1 << 25


@pytest.mark.parametrize("shape", [(2, 0), (2, SizeVar("n"))])
def test_split_into_too_many_parts_is_refused(shape: tuple[int, ...]) -> None:
    x = relay.var("x", shape=shape)
    module = ekiden.IRModule.from_expr(relay.Function([x], op.split(x, 3 << 60, 1).astuple()))
    with pytest.raises(TypeInferenceError, match="cut into 1 to 65536 parts, got 34587645"):
        InferType()(module)


TRANSPOSED: list[tuple[str, Callable[..., Expr], int, int]] = [
    ("1d", op.nn.conv1d_transpose, 1, 1),
    ("2d", op.nn.conv2d_transpose, 2, 1),
    ("depthwise", op.nn.conv2d_transpose, 2, 2),
    ("3d", op.nn.conv3d_transpose, 3, 1),
]


@pytest.mark.parametrize("tier", ["quick", "full"])
@pytest.mark.parametrize(
    ("build", "rank", "groups"), [row[1:] for row in TRANSPOSED], ids=[row[0] for row in TRANSPOSED]
)
def test_transposed_convolution_skips_empty_phases(
    build: Callable[..., Expr], rank: int, groups: int, tier: str
) -> None:
    """Its padding cuts off all but 13 results of an axis; the data of one tap reach one of them."""
    size, window = 6, 3
    before = 2 * STRIDE - 5
    after = (size - 1) * STRIDE + window - before - 13
    data = np.arange(2 * size**rank, dtype="float32").reshape(1, 2, *[size] * rank)
    weight = np.ones((2, 2 // groups, *[window] * rank), "float32")
    x = relay.var("x", shape=data.shape)
    y = build(
        x, relay.const(weight), strides=(STRIDE,) * rank, channels=2, groups=groups,
        padding=(before,) * rank + (after,) * rank, kernel_size=(window,) * rank,
    )  # fmt: skip
    module = ekiden.IRModule.from_expr(relay.Function([x], y))
    result = ekiden.compile(module, tier=tier, bounds="check")(data).numpy()
    third = data[(0, slice(None), *[2] * rank)]
    expected = np.zeros((1, 2, *[13] * rank), "float32")
    values = third if groups == 2 else np.full(2, third.sum())
    expected[(0, slice(None), *[slice(5, 8)] * rank)] = values.reshape(2, *[1] * rank)
    np.testing.assert_array_equal(result, expected)


EXTENT = 2**31 + 8
"""Of an axis that int32 does not index."""


@pytest.mark.parametrize(
    ("begin", "end", "stride", "count"),
    [
        ((0,), (2**30,), 1, 2**30),
        ((2**30,), (2**31,), 1, 2**30),
        ((2**31,), (), 1, 8),
        ((2**31 + 4,), (2**31,), -1, 4),
        ((), (), -1, EXTENT),
    ],
)
def test_slice_of_a_long_axis_ends_at_its_bound(
    begin: tuple[int, ...], end: tuple[int, ...], stride: int, count: int
) -> None:
    x = relay.var("x", shape=(EXTENT,), dtype="int8")
    call = op.strided_slice(x, begin, end, (stride,))
    module = InferType()(ekiden.IRModule.from_expr(relay.Function([x], call)))
    assert module["main"].ret_type.concrete_shape == (count,)
