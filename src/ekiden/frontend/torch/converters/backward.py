"""Gradient operators that AOTAutograd leaves in its graphs."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.value import Value
from ekiden.frontend.common.windows import Window, padded, taps
from ekiden.frontend.torch.converters.convolution import convolution, spread
from ekiden.frontend.torch.converters.reduction import axes_of
from ekiden.frontend.torch.node import Converter, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Shape, as_dim, equal, product, tidy

Ints = Sequence[int]
Many = list[Expr | Value | None]


def _convolution(
    node: Node, grad: Value, x: Value, weight: Value, bias_sizes: object, stride: Ints,
    padding: Ints, dilation: Ints, transposed: bool, output_padding: Ints, groups: int,
    mask: Sequence[bool],
) -> Many:  # fmt: skip
    """Convert aten::convolution_backward: (gradient of the input, of the weight, of the bias).

    Only those that `mask` requests are computed; the others are None.
    """
    rank = len(weight.type.shape) - 2
    steps, sides, gaps = spread(stride, rank, 1), spread(padding, rank), spread(dilation, rank, 1)
    outputs: Many = [None, None, None]
    if mask[0]:
        outputs[0] = _of_input(node, grad, x, weight, steps, sides, gaps, transposed, groups)
    if mask[1]:
        large, small = (grad, x) if transposed else (x, grad)
        windows = _windows(node, large, small, weight, steps, sides, gaps)
        outputs[1] = _of_weight(node, windows, small, weight, groups)
    if mask[2]:
        outputs[2] = op.sum(node.of(grad), axis=[0, *range(2, rank + 2)], keepdims=False)
    return outputs


def _of_input(
    node: Node, grad: Value, x: Value, weight: Value, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, groups: int,
) -> Expr:  # fmt: skip
    """Return the input's gradient: the transpose of the convolution.

    The rows and columns that a stride dropped are at the end: as many as possible are added, then
    cut to the input's extents.
    """
    rank = len(stride)
    extra = (0,) * rank if transposed else tuple(s - 1 for s in stride)
    gradient = convolution(
        node, grad, weight, None, stride, padding, dilation, not transposed, extra, groups
    )
    have = node.typed(node.scope.spanned(gradient)).shape[2:]
    extents = x.type.shape[2:]
    if all(map(equal, have, extents)):
        return gradient
    return op.strided_slice(gradient, [0] * rank, list(extents), axes=list(range(2, rank + 2)))


def _windows(
    node: Node, large: Value, small: Value, weight: Value, stride: Ints, padding: Ints,
    dilation: Ints,
) -> list[Expr]:  # fmt: skip
    """Return the elements of the larger side that each kernel tap meets: one (batch, channels,
    *positions) per tap.
    """
    kernel = node.static(weight.type.shape[2:], "the kernel")
    window = Window(kernel, tuple(stride), tuple(dilation), tuple(padding), tuple(padding))
    data = padded(node, node.of(large), window, 0)
    return list(taps(data, window, small.type.shape[2:], 2))


def _of_weight(
    node: Node, windows: Sequence[Expr], small: Value, weight: Value, groups: int
) -> Expr:
    """Return the weight's gradient: per group, a matrix product over batch and positions.

    Its factors are the smaller side's channels and, for each tap, the elements that it meets on the
    larger side.
    """
    outer, inner, *kernel = node.static(weight.type.shape, "the weight")
    if inner == 1 and groups > 1:
        return _of_depthwise_weight(node, windows, small, (outer, inner, *kernel), groups)
    batch, _, *positions = small.type.shape
    count = tidy(batch * product(positions))
    rows = op.reshape(op.transpose(_flat(node, node.of(small), small.type.shape), axes=[1, 0, 2]),
                      (groups, outer // groups, count), allowzero=True)  # fmt: skip
    taps = op.stack(list(windows), axis=0)  # (taps, batch, channels, *places)
    shape = (len(windows), batch, groups, inner, product(positions))
    apart = op.transpose(op.reshape(taps, shape, allowzero=True), axes=[2, 3, 0, 1, 4])
    columns = op.reshape(apart, (groups, inner * len(windows), count), allowzero=True)
    products = op.nn.batch_matmul(rows, columns, transpose_b=True)
    return op.reshape(products, (outer, inner, *kernel))


def _of_depthwise_weight(
    node: Node, windows: Sequence[Expr], small: Value, shape: Sequence[int], groups: int
) -> Expr:
    """Return the gradient of a depthwise weight: per tap, a sum of products with the smaller side.

    The smaller side is read in its own layout, instead of matrix products of one row.
    """
    batch, channels, *positions = small.type.shape
    split = (batch, as_dim(groups), tidy(channels // groups), *positions)
    grouped = op.reshape(node.of(small), split, allowzero=True)
    axes = [0, *range(3, 3 + len(positions))]
    sums = [op.sum(op.multiply(grouped, op.expand_dims(w, 2)), axis=axes) for w in windows]
    return op.reshape(op.stack(sums, axis=-1), tuple(shape))


def _flat(node: Node, data: Expr, shape: Shape) -> Expr:
    """Return data reshaped to (batch, channels, positions)."""
    return op.reshape(data, (*shape[:2], product(shape[2:])), allowzero=True)


def _max_pool(rank: int) -> Converter:
    """Return the converter of max_pool{rank}d_with_indices_backward; the flat indices are its last
    argument.
    """

    def convert(node: Node, grad: Value, x: Value, *settings: object) -> Expr:
        """Scatter-add the gradients into zeros: overlapping windows may share a maximum."""
        indices = settings[-1]
        assert isinstance(indices, Value)
        shape, dtype = x.type.shape, x.type.dtype
        lead = tuple(shape[:-rank])
        count = product(indices.type.shape[-rank:])
        zeros = op.full(const(0, dtype), (*lead, product(shape[-rank:])), dtype=dtype)
        at = op.reshape(node.of(indices), (*lead, count), allowzero=True)
        updates = op.reshape(node.of(grad), (*lead, count), allowzero=True)
        scattered = op.scatter_elements(zeros, at, updates, axis=len(lead), reduction="add")
        return op.reshape(scattered, shape, allowzero=True)

    return convert


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
    gradient, probabilities = node.of(grad), node.of(output)
    # dx = y * dy - y * sum(y * dy), the Jacobian-vector product of softmax.
    both = op.multiply(gradient, probabilities)
    return op.subtract(both, op.multiply(probabilities, op.sum(both, axis=axis, keepdims=True)))


def _log_softmax(node: Node, grad: Value, output: Value, dim: int, dtype: object) -> Expr:
    axis = axes_of(node, output, dim)
    gradient = node.of(grad)
    # dx = dy - exp(y) * sum(dy).
    total = op.sum(gradient, axis=axis, keepdims=True)
    return op.subtract(gradient, op.multiply(op.exp(node.of(output)), total))


# fmt: off
ROWS: tuple[Row, ...] = (
    ("convolution_backward", _convolution),
    *((f"max_pool{n}d_with_indices_backward", _max_pool(n)) for n in (2, 3)),
    ("embedding_dense_backward", _embedding),
    ("_softmax_backward_data", _softmax),
    ("_log_softmax_backward_data", _log_softmax),
)
# fmt: on
