"""Convolution, pooling, matrix products and normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden.frontend.common.converters import window as shared
from ekiden.frontend.common.converters.normalization import batch_norm, local_response_norm
from ekiden.frontend.common.linalg import transpose_matrix
from ekiden.frontend.common.matmul import broadcast_matmul
from ekiden.frontend.common.recurrent_cells import lstm_gate, lstm_step
from ekiden.frontend.common.sliding_window import Window, pad_window, same_padding_window
from ekiden.frontend.tensorflow.node import Converter, TensorflowNode, TensorflowRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

_SPATIAL_AXES = {"NHWC": (1, 2), "NCHW": (2, 3), "NDHWC": (1, 2, 3), "NCDHW": (2, 3, 4)}
_WEIGHT_LAYOUTS = {2: "HWIO", 3: "DHWIO"}
"""Number of spatial axes -> layout of a convolution's weight."""


def _data_format(node: TensorflowNode) -> str:
    layout = node.string_attribute("data_format", "NDHWC" if "3D" in node.op else "NHWC")
    if layout not in _SPATIAL_AXES:
        node.reject(f"the data format {layout!r} is not supported")
    return layout


def _spatial_attribute(node: TensorflowNode, name: str, layout: str) -> tuple[int, ...]:
    """Return an attribute's values for the spatial axes, 1 where it is absent; other axes must be
    1.

    Raises:
        Unsupported: The values for the batch or the channels differ from 1.
    """
    numbers = node.int_list_attribute(name)
    other_values = [n for axis, n in enumerate(numbers) if axis not in _SPATIAL_AXES[layout]]
    if any(value != 1 for value in other_values):
        node.reject(f"'{name}' {list(numbers)} must be 1 for the batch and the channels")
    return tuple(numbers[a] for a in _SPATIAL_AXES[layout]) if numbers else (1,) * (len(layout) - 2)


def _read_window(
    node: TensorflowNode, layout: str, kernel: Sequence[int], gaps: str = "dilations"
) -> Window:
    """Return the window over the first input; `gaps` names the attribute of its dilations."""
    strides, dilations = (
        _spatial_attribute(node, "strides", layout),
        _spatial_attribute(node, gaps, layout),
    )
    kind, none = node.string_attribute("padding"), (0,) * len(kernel)
    # SAME padding depends on the data extents: ceil(extent / stride) outputs, the odd element at
    # the end.
    if kind == "SAME":
        extents = tuple(node.shape(0)[a] for a in _SPATIAL_AXES[layout])
        return same_padding_window(extents, kernel, strides, dilations)
    before = after = none
    if kind == "EXPLICIT":
        pairs = node.int_list_attribute("explicit_paddings")
        before, after = (tuple(pairs[2 * a + i] for a in _SPATIAL_AXES[layout]) for i in (0, 1))
    return Window(tuple(kernel), strides, dilations, before, after)


def _conv(node: TensorflowNode) -> Expr:
    """Convert Conv2D and Conv3D; fewer weight input channels than data channels make groups."""
    layout = _data_format(node)
    *kernel, depth, out = shared.static_weight_shape(node, 1, len(layout))
    return shared.emit_convolution(
        node, node.expr(0), node.expr(1), _read_window(node, layout, kernel),
        groups=shared.channel_groups(node, layout.index("C"), depth), channels=out,
        layouts=(layout, _WEIGHT_LAYOUTS[len(kernel)]),
    )  # fmt: skip


def _depthwise(node: TensorflowNode) -> Expr:
    """Convert DepthwiseConv2dNative, whose weights are [height, width, in, multiplier]."""
    layout = _data_format(node)
    *kernel, depth, times = shared.static_weight_shape(node, 1, 4)
    # A grouped convolution with one input channel per group: (height, width, 1, in * multiplier).
    weight = op.reshape(node.expr(1), (*kernel, 1, depth * times))
    return shared.emit_convolution(
        node, node.expr(0), weight, _read_window(node, layout, kernel), groups=depth,
        channels=depth * times, layouts=(layout, "HWIO"),
    )  # fmt: skip


def _conv_transpose(node: TensorflowNode) -> Expr:
    """Convert Conv2DBackpropInput: (result shape, weights [..., out, in], data)."""
    layout = _data_format(node)
    shape = shared.static_weight_shape(node, 1, len(layout))
    # Input 0 holds the result's shape; the window needs that of the gradient, input 2.
    is_same, data = node.string_attribute("padding") == "SAME", node.with_inputs([node.value(2)])
    sizes = node.dims(0, "input_sizes")
    weight = op.transpose(node.expr(1), (len(shape) - 1, len(shape) - 2, *range(len(shape) - 2)))
    return shared.emit_transposed_convolution(
        node, node.expr(2), weight, _read_window(data, layout, shape[:-2]),
        [sizes[a] for a in _SPATIAL_AXES[layout]], layout, is_same,
    )  # fmt: skip


def _pool_converter(pool: Callable[..., Expr]) -> Converter:
    def convert(node: TensorflowNode) -> Expr:
        """Convert 2D or 3D pooling in the operator's data format."""
        layout = _data_format(node)
        window = _read_window(node, layout, _spatial_attribute(node, "ksize", layout))
        return pool(node, node.expr(0), window, layout)

    return convert


def _mat_mul(node: TensorflowNode) -> Expr:
    return _emit_matmul(
        node, node.bool_attribute("transpose_a"), node.bool_attribute("transpose_b")
    )


def _batch_mat_mul(node: TensorflowNode) -> Expr:
    return _emit_matmul(node, node.bool_attribute("adj_x"), node.bool_attribute("adj_y"))


def _emit_matmul(node: TensorflowNode, turns_a: bool, turns_b: bool) -> Expr:
    a, weight = node.expr(0), node.value(1).array
    a = transpose_matrix(a, node.rank(0)) if turns_a else a
    # A constant weight makes it nn.dense, whose kernels pack the weight when compiling.
    if weight is not None and weight.ndim == 2:  # dense has it as (out, in): a view
        return op.nn.dense(a, const(weight if turns_b else weight.T))
    b = transpose_matrix(node.expr(1), node.rank(1)) if turns_b else node.expr(1)
    return broadcast_matmul(node, a, b)


def _einsum(node: TensorflowNode) -> Expr:
    equation = node.string_attribute("equation").replace(" ", "")
    return op.einsum(node.exprs(), equation)


def _batch_norm(node: TensorflowNode) -> list[Expr]:
    """Convert FusedBatchNorm in inference; statistics of the batch are for training and
    unsupported.
    """
    if node.has_attribute("is_training") and node.bool_attribute("is_training"):
        node.reject("it computes the statistics of a batch, as training does")
    axis = 1 if node.string_attribute("data_format", "NHWC").startswith("NC") else node.rank(0) - 1
    scale, shift, mean, variance = (node.expr(i) for i in range(1, 5))
    epsilon = node.float_attribute("epsilon", 1e-4)
    normalised = batch_norm(node.expr(0), scale, shift, mean, variance, epsilon, axis)
    return [normalised, mean, variance]


def _global_norm(node: TensorflowNode) -> Expr:
    """Convert BatchNormWithGlobalNormalization (data, mean, variance, shift, scale)."""
    data, mean, variance, shift, scale = node.exprs()
    width = op.rsqrt(
        op.add(variance, const(node.float_attribute("variance_epsilon"), node.dtype(0)))
    )
    width = op.multiply(width, scale) if node.bool_attribute("scale_after_normalization") else width
    return op.add(op.multiply(op.subtract(data, mean), width), shift)


def _dilation2d(node: TensorflowNode) -> Expr:
    """Convert Dilation2D: maxima over windows of NHWC data plus weights [height, width, in]."""
    height, width, _ = shared.static_weight_shape(node, 1, 3)
    window = _read_window(node, "NHWC", (height, width), "rates")
    data = node.expr(0)
    if window.padding is None:
        # -inf is the neutral element of the maximum.
        data, window = pad_window(node, data, window, -np.inf, 1), window.without_padding()
    assert window.padding is not None, "data have symbolic padding beforehand"
    return op.image.dilation2d(
        data, node.expr(1), window.strides, window.padding, window.dilations, "NHWC", "HWI"
    )


def _lstm_block_cell(node: TensorflowNode) -> list[Expr]:
    """Convert LSTMBlockCell to (i, cell, f, o, g, cell output, output).

    Inputs: (data, cell, output, weights of both, peepholes of i, f, o, bias); gates in the order i,
    g, f, o.
    """
    x, cell_before, output, weight, *holes, bias = node.exprs()
    sides = op.concatenate([x, output], axis=1)
    gate_inputs = op.split(op.add(op.nn.matmul(sides, weight), bias), 4, axis=1)
    take, new, keep, show = (gate_inputs[i] for i in range(4))
    # TensorFlow adds the forget bias at run time instead of storing it in the bias vector.
    keep = op.add(keep, const(node.float_attribute("forget_bias", 1.0), node.dtype(0)))
    eyes = holes if node.bool_attribute("use_peephole") else (None, None, None)
    gates = [
        lstm_gate(take, eyes[0]),
        lstm_gate(keep, eyes[1]),
        lstm_gate(new),
        lstm_gate(show, eyes[2]),
    ]
    state = lstm_step(gates, cell_before, bound=node.float_attribute("cell_clip", 3.0))
    return [
        state.input_gate,
        state.cell_state,
        state.forget_gate,
        state.output_gate,
        state.cell_candidate,
        state.activated_cell,
        state.hidden,
    ]


def _lrn(node: TensorflowNode) -> Expr:
    bias, alpha, beta = (
        node.float_attribute("bias", 1.0),
        node.float_attribute("alpha", 1.0),
        node.float_attribute("beta", 0.5),
    )
    return local_response_norm(node, node.int_attribute("depth_radius", 5), bias, alpha, beta)


def _crop_and_resize(node: TensorflowNode) -> Expr:
    return op.image.crop_and_resize(
        node.expr(0), node.expr(1), node.expr(2), node.constant_ints(3, "crop_size"), "NHWC",
        node.string_attribute("method", "bilinear"), node.float_attribute("extrapolation_value"),
    )  # fmt: skip


# fmt: off
ROWS = (
    *(TensorflowRow(n, _conv) for n in ("Conv2D", "Conv3D")),
    TensorflowRow("DepthwiseConv2dNative", _depthwise),
    *(TensorflowRow(n, _conv_transpose) for n in ("Conv2DBackpropInput", "Conv3DBackpropInputV2")),
    TensorflowRow("BatchNormWithGlobalNormalization", _global_norm),
    TensorflowRow("Dilation2D",            _dilation2d),
    TensorflowRow("LSTMBlockCell",         _lstm_block_cell),
    *(TensorflowRow(n, _pool_converter(shared.emit_average_pool)) for n in ("AvgPool",
        "AvgPool3D")),
    *(TensorflowRow(n, _pool_converter(shared.emit_max_pool)) for n in ("MaxPool", "MaxPool3D")),
    TensorflowRow("MatMul",                _mat_mul),
    *(TensorflowRow(n, _batch_mat_mul) for n in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")),
    TensorflowRow("Einsum",                _einsum),
    *(TensorflowRow(n, _batch_norm)
      for n in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")),
    TensorflowRow("LRN",                   _lrn),
    TensorflowRow("CropAndResize",         _crop_and_resize),
)
# fmt: on
