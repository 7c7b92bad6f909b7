"""Gradients that AOTAutograd leaves as operators."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.converters.reduction import axes_of
from ekiden.frontend.torch.node import Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import known, product

Ints = Sequence[int]
Many = list[Expr | Value | None]


def _convolution(
    node: Node, grad: Value, x: Value, weight: Value, bias_sizes: object, stride: Ints,
    padding: Ints, dilation: Ints, transposed: bool, output_padding: Ints, groups: int,
    mask: Sequence[bool],
) -> Many:  # fmt: skip
    """(of the input, of the weight, of the bias), of a plain convolution over two axes."""
    if transposed or len(weight.type.shape) != 4:
        node.unsupported("the gradient of a convolution that is transposed or not over two axes")
    outputs: Many = [None, None, None]
    if mask[0]:
        outputs[0] = _of_input(node, grad, x, weight, stride, padding, dilation, groups)
    if mask[1]:
        outputs[1] = _of_weight(node, grad, x, weight, stride, padding, dilation, groups)
    if mask[2]:
        outputs[2] = op.sum(node.of(grad), axis=[0, 2, 3], keepdims=False)
    return outputs


def _of_input(
    node: Node, grad: Value, x: Value, weight: Value, stride: Ints, padding: Ints, dilation: Ints,
    groups: int,
) -> Expr:  # fmt: skip
    """The transposed convolution, as much larger as the input is beyond what windows reach."""
    kernel = node.static(weight.type.shape[2:], "the kernel")
    have = node.static(x.type.shape[2:], "the input")
    small = node.static(grad.type.shape[2:], "the gradient")
    extra = [
        h - ((g - 1) * s - 2 * p + d * (k - 1) + 1)
        for h, g, s, p, d, k in zip(have, small, stride, padding, dilation, kernel, strict=True)
    ]
    channels = known(x.type.shape[1])
    return op.nn.conv2d_transpose(
        node.of(grad), node.of(weight), strides=list(stride), padding=[*padding, *padding],
        dilation=list(dilation), groups=groups, channels=channels, kernel_size=kernel,
        output_padding=extra,
    )  # fmt: skip


def _of_weight(
    node: Node, grad: Value, x: Value, weight: Value, stride: Ints, padding: Ints, dilation: Ints,
    groups: int,
) -> Expr:  # fmt: skip
    """The input convolved with the gradient, channels in place of the batch; strides are gaps."""
    kernel = node.static(weight.type.shape[2:], "the kernel")
    if groups != 1:
        node.unsupported("the gradient of the weight of a convolution in groups")
    data = op.transpose(node.of(x), axes=[1, 0, 2, 3])
    filters = op.transpose(node.of(grad), axes=[1, 0, 2, 3])
    found = op.nn.conv2d(
        data, filters, strides=list(dilation), padding=[*padding, *padding], dilation=list(stride),
        channels=known(grad.type.shape[1]), kernel_size=node.static(grad.type.shape[2:], "it"),
    )  # fmt: skip
    cut = op.strided_slice(found, [0, 0], list(kernel), axes=[2, 3])
    return op.transpose(cut, axes=[1, 0, 2, 3])


def _max_pool(
    node: Node, grad: Value, x: Value, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints,
    ceil_mode: bool, places: Value,
) -> Expr:  # fmt: skip
    """Each gradient added at the flat place of its maximum."""
    shape, dtype = x.type.shape, x.type.dtype
    area = product(shape[-2:])
    lead = tuple(shape[:-2])
    count = product(places.type.shape[-2:])
    zeros = op.full(const(0, dtype), (*lead, area), dtype=dtype)
    at = op.reshape(node.of(places), (*lead, count), allowzero=True)
    updates = op.reshape(node.of(grad), (*lead, count), allowzero=True)
    found = op.scatter_elements(zeros, at, updates, axis=len(lead), reduction="add")
    return op.reshape(found, shape, allowzero=True)


def _embedding(
    node: Node, grad: Value, indices: Value, rows: int, padding: int, scaled: bool
) -> Expr:
    """Rows added where their index says; none for the row of padding."""
    if scaled:
        node.unsupported("gradients that are scaled by frequency")
    dtype = grad.type.dtype
    width = grad.type.shape[-1]
    flat = op.reshape(node.of(indices, "int64"), (-1,))
    updates = op.reshape(node.of(grad), (product(indices.type.shape), width), allowzero=True)
    if padding >= 0:
        keep = op.expand_dims(op.not_equal(flat, const(padding, "int64")), axis=1)
        updates = op.where(keep, updates, const(0, dtype))
    zeros = op.full(const(0, dtype), (rows, width), dtype=dtype)
    return op.scatter_nd(zeros, op.expand_dims(flat, axis=0), updates, mode="add")


def _softmax(node: Node, grad: Value, output: Value, dim: int, dtype: object) -> Expr:
    axis = axes_of(node, output, dim)
    given, found = node.of(grad), node.of(output)
    both = op.multiply(given, found)
    return op.subtract(both, op.multiply(found, op.sum(both, axis=axis, keepdims=True)))


def _log_softmax(node: Node, grad: Value, output: Value, dim: int, dtype: object) -> Expr:
    axis = axes_of(node, output, dim)
    given = node.of(grad)
    total = op.sum(given, axis=axis, keepdims=True)
    return op.subtract(given, op.multiply(op.exp(node.of(output)), total))


# fmt: off
ROWS: tuple[Row, ...] = (
    ("convolution_backward", _convolution),
    ("max_pool2d_with_indices_backward", _max_pool),
    ("embedding_dense_backward", _embedding),
    ("_softmax_backward_data", _softmax),
    ("_log_softmax_backward_data", _log_softmax),
)
# fmt: on
