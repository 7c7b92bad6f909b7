"""FlattenAtrousConv: space-to-batch, convolution, batch-to-space become one dilated convolution."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Var
from ekiden.relay.expr import Call, Expr
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.testing import count_ops
from ekiden.topi.dimensions import Dim, as_dim

SIZE = (1, 9, 10, 2)


def blocks(
    block: tuple[int, int],
    pads: list[list[int]],
    crops: list[list[int]],
    padding: int = 0,
    **options: object,
) -> relay.Function:
    x, w = relay.var("x", shape=SIZE), relay.var("w", shape=(3, 3, 2, 4))
    there = relay.nn.space_to_batch_nd(x, block, pads)
    conv = relay.nn.conv2d(
        there, w, padding=padding, data_layout="NHWC", kernel_layout="HWIO", **options
    )
    return relay.Function([x, w], relay.nn.batch_to_space_nd(conv, block, crops))


def flat(function: Expr) -> relay.Function:
    result = relay.transform.FlattenAtrousConv()(IRModule.from_expr(function))["main"]
    assert isinstance(result, relay.Function)
    return result


@pytest.mark.parametrize(
    ("block", "pads", "crops", "padding"),
    [
        ((2, 2), [[2, 3], [2, 2]], [[0, 1], [0, 0]], 0),
        ((3, 2), [[1, 2], [0, 0]], [[1, 1], [0, 0]], 0),
        ((2, 2), [[0, 1], [0, 0]], [[1, 0], [0, 2]], 1),
    ],
)
def test_one_dilated_convolution(
    block: tuple[int, int], pads: list[list[int]], crops: list[list[int]], padding: int
) -> None:
    before = blocks(block, pads, crops, padding)
    after = flat(before)
    assert count_ops(after) == {"nn.conv2d": 1}
    assert isinstance(after.body, Call) and after.body.attrs["dilation"] == block  # type: ignore[index]
    rng = np.random.default_rng(0)
    data = rng.normal(size=SIZE).astype("float32"), rng.normal(size=(3, 3, 2, 4)).astype("float32")
    expected, actual = (np.asarray(Interpreter().evaluate(f, *data)) for f in (before, after))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def one_axis(size: Dim, crop: int = 0) -> relay.Function:
    """As Keras has a convolution along one axis, of which the size comes with the data."""
    size = as_dim(size)
    x, w = relay.var("x", shape=(1, size, 2)), relay.var("w", shape=(1, 3, 2, 4))
    rest = (4 - (size + 8) % 4) % 4
    there = relay.nn.space_to_batch_nd(x, [4], [[4, rest + 4]])
    conv = relay.nn.conv2d(relay.expand_dims(there, 1), w, data_layout="NHWC", kernel_layout="HWIO")
    flat = relay.squeeze(conv, axis=[1])
    return relay.Function([x, w], relay.nn.batch_to_space_nd(flat, [4], [[crop, rest]]))


def test_convolution_along_one_axis_of_any_size() -> None:
    before = one_axis(Var("n", "int64"))
    after = flat(before)
    assert count_ops(after) == {"expand_dims": 1, "nn.conv2d": 1, "squeeze": 1}
    typed = relay.transform.InferType()(IRModule.from_expr(before))["main"]
    assert isinstance(typed, relay.Function)
    assert typed.ret_type.shape[1] is typed.params[0].type_annotation.shape[1]  # type: ignore[union-attr]
    rng = np.random.default_rng(0)
    for size in (1, 4, 11):
        data = [rng.normal(size=s).astype("float32") for s in ((1, size, 2), (1, 3, 2, 4))]
        one = one_axis(size)
        expected, actual = (np.asarray(Interpreter().evaluate(f, *data)) for f in (one, after))
        assert actual.shape == (1, size, 4)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    cut = flat(one_axis(Var("n", "int64"), 5))  # more than is padded
    assert "nn.batch_to_space_nd" in count_ops(cut)


def test_what_is_no_dilated_convolution_is_left() -> None:
    kept = blocks((2, 2), [[0, 1], [0, 0]], [[1, 0], [0, 0]])  # more is cropped than padded
    assert "nn.batch_to_space_nd" in count_ops(flat(kept))
    strided = blocks((2, 2), [[2, 3], [2, 2]], [[0, 0], [0, 0]], strides=(2, 2))
    assert "nn.batch_to_space_nd" in count_ops(flat(strided))
    x, w = relay.var("x", shape=SIZE), relay.var("w", shape=(3, 3, 2, 4))
    ones = relay.nn.space_to_batch_nd(x, (2, 2), [[2, 3], [2, 2]], 1.0)
    conv = relay.nn.conv2d(ones, w, data_layout="NHWC", kernel_layout="HWIO")
    expr = relay.nn.batch_to_space_nd(conv, (2, 2), [[0, 1], [0, 0]])
    assert "nn.batch_to_space_nd" in count_ops(flat(expr))
