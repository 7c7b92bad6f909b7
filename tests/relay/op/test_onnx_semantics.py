"""Convolution and pooling references against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from ekiden.ir.op import OPS, Array
from ekiden.relay.expr import Call, var
from ekiden.relay.op import nn
from onnx_runtime import run_onnx_runtime

RNG = np.random.default_rng(11)


def run_onnx(op_type: str, arrays: list[Array], **attributes: object) -> Array:
    """One node of ONNX Runtime."""
    names = [f"x{n}" for n in range(len(arrays))]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return np.asarray(run_onnx_runtime(model, dict(zip(names, arrays, strict=True)))[0])


def run(call: Call, *arrays: Array) -> Array:
    """The reference of a call's operator."""
    definition = OPS[call.op.name]  # type: ignore[attr-defined]
    assert definition.reference is not None
    return np.asarray(definition.reference(call.attrs, *arrays))


X, Y = var("x"), var("y")


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("size", "stride", "pads"), [
    ((2, 2), (2, 2), (0, 0, 0, 0)), ((3, 3), (2, 2), (1, 1, 1, 1)), ((3, 2), (2, 3), (1, 0, 1, 1)),
    ((5, 5), (3, 3), (2, 2, 2, 2)),
])  # fmt: skip
def test_max_pool_matches_onnxruntime(
    size: tuple[int, int], stride: tuple[int, int], pads: tuple[int, ...], ceil_mode: bool
) -> None:
    """Windows that reach into the padding and, rounded up, beyond it."""
    x = RNG.normal(size=(2, 3, 10, 11)).astype(np.float32)
    expected = run_onnx(
        "MaxPool", [x], kernel_shape=size, strides=stride, pads=pads, ceil_mode=int(ceil_mode)
    )
    actual = run(nn.max_pool2d(X, size, stride, padding=pads, ceil_mode=ceil_mode), x)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("include_pad", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("size", "stride", "pads"), [
    ((2, 2), (2, 2), (0, 0, 0, 0)), ((3, 3), (2, 2), (1, 1, 1, 1)), ((3, 2), (2, 2), (1, 0, 1, 1)),
])  # fmt: skip
def test_average_pool_matches_onnxruntime(
    size: tuple[int, int],
    stride: tuple[int, int],
    pads: tuple[int, ...],
    ceil_mode: bool,
    include_pad: bool,
) -> None:
    """What counts in the mean at the borders."""
    x = RNG.normal(size=(2, 3, 9, 10)).astype(np.float32)
    expected = run_onnx(
        "AveragePool", [x], kernel_shape=size, strides=stride, pads=pads, ceil_mode=int(ceil_mode),
        count_include_pad=int(include_pad),
    )  # fmt: skip
    call = nn.avg_pool2d(
        X, size, stride, padding=pads, ceil_mode=ceil_mode, count_include_pad=include_pad
    )
    np.testing.assert_allclose(run(call, x), expected, atol=1e-6)


@pytest.mark.parametrize(("stride", "pads", "extra", "dilation", "group"), [
    ((1, 1), (0, 0, 0, 0), (0, 0), (1, 1), 1), ((2, 2), (1, 1, 1, 1), (1, 1), (1, 1), 1),
    ((3, 2), (0, 1, 1, 0), (2, 0), (1, 1), 2),
    ((2, 2), (1, 1, 1, 1), (0, 0), (2, 1), 1),
])  # fmt: skip
def test_conv_transpose_matches_onnxruntime(
    stride: tuple[int, int],
    pads: tuple[int, ...],
    extra: tuple[int, int],
    dilation: tuple[int, int],
    group: int,
) -> None:
    """Strides, output padding, dilation and groups."""
    x, w = (
        RNG.normal(size=(2, 4, 5, 6)).astype(np.float32),
        RNG.normal(size=(4, 3, 3, 3)).astype(np.float32),
    )
    expected = run_onnx(
        "ConvTranspose",
        [x, w],
        strides=stride,
        pads=pads,
        output_padding=extra,
        dilations=dilation,
        group=group,
    )
    call = nn.conv2d_transpose(X, Y, stride, pads, dilation, group, output_padding=extra)
    np.testing.assert_allclose(run(call, x, w), expected, atol=1e-4)


def test_lrn_matches_onnxruntime() -> None:
    """Windows over channels (ONNX Runtime takes odd ones alone)."""
    x = RNG.normal(size=(2, 7, 3, 3)).astype(np.float32)
    for size in (1, 3, 5):
        expected = run_onnx("LRN", [x], size=size, alpha=0.3, beta=0.6, bias=1.2)
        np.testing.assert_allclose(run(nn.lrn(X, size, 1, 1.2, 0.3, 0.6), x), expected, atol=1e-5)
