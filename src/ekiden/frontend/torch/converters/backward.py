"""Gradient operators that AOTAutograd leaves in its graphs."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.sliding_window import Window, iter_window_taps, pad_window
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.converters.convolution import convert_convolution, expand_per_axis
from ekiden.frontend.torch.converters.reduction import normalize_axes
from ekiden.frontend.torch.node import Converter, ConverterRow, FxNode
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.dimensions import Shape, are_equal_dims, as_dim, product_of_dims, simplify_dim

Ints = Sequence[int]
ConverterResults = list[Expr | Value | None]


def _convolution_backward(
    node: FxNode, grad: Value, x: Value, weight: Value, bias_sizes: object, stride: Ints,
    padding: Ints, dilation: Ints, transposed: bool, output_padding: Ints, groups: int,
    mask: Sequence[bool],
) -> ConverterResults:  # fmt: skip
    """Convert aten::convolution_backward: the gradients of input, weight and bias.

    Only those that `mask` requests are computed; the others are None.
    """
    rank = len(weight.type.shape) - 2
    steps, sides, gaps = (
        expand_per_axis(stride, rank, 1),
        expand_per_axis(padding, rank),
        expand_per_axis(dilation, rank, 1),
    )
    outputs: ConverterResults = [None, None, None]
    if mask[0]:
        outputs[0] = _input_gradient(node, grad, x, weight, steps, sides, gaps, transposed, groups)
    if mask[1]:
        large, small = (grad, x) if transposed else (x, grad)
        windows = _windows_by_tap(node, large, small, weight, steps, sides, gaps)
        outputs[1] = _weight_gradient(node, windows, small, weight, groups)
    if mask[2]:
        outputs[2] = op.sum(node.to_expr(grad), axis=[0, *range(2, rank + 2)], keepdims=False)
    return outputs


def _input_gradient(
    node: FxNode, grad: Value, x: Value, weight: Value, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, groups: int,
) -> Expr:  # fmt: skip
    """Emit the input's gradient: the transposed convolution of the output's gradient.

    The rows and columns that a stride dropped are at the end: as many as possible are added, then
    cut to the input's extents.
    """
    rank = len(stride)
    # Of the input extents that give one output extent the largest is made, and the surplus is cut
    # off.
    extra = (0,) * rank if transposed else tuple(s - 1 for s in stride)
    gradient = convert_convolution(
        node, grad, weight, None, stride, padding, dilation, not transposed, extra, groups
    )
    have = node.tensor_type_of(node.scope.attach_span(gradient)).shape[2:]
    extents = x.type.shape[2:]
    if all(map(are_equal_dims, have, extents)):
        return gradient
    # With output padding of stride - 1 the transpose covers any input extent; the surplus is
    # cropped.
    return op.strided_slice(gradient, [0] * rank, list(extents), axes=list(range(2, rank + 2)))


def _windows_by_tap(
    node: FxNode, large: Value, small: Value, weight: Value, stride: Ints, padding: Ints,
    dilation: Ints,
) -> list[Expr]:  # fmt: skip
    """Return, per kernel tap, the elements of the larger side that it meets: [batch, channels,
    *positions].
    """
    kernel = node.static_shape(weight.type.shape[2:], "the kernel")
    window = Window(kernel, tuple(stride), tuple(dilation), tuple(padding), tuple(padding))
    data = pad_window(node, node.to_expr(large), window, 0)
    return list(iter_window_taps(data, window, small.type.shape[2:], 2))


def _weight_gradient(
    node: FxNode, windows: Sequence[Expr], small: Value, weight: Value, groups: int
) -> Expr:
    """Emit the weight's gradient: per group, a matrix product over batch and positions.

    Its factors are the smaller side's channels and, for each tap, the elements that it meets on the
    larger side.
    """
    outer, inner, *kernel = node.static_shape(weight.type.shape, "the weight")
    # One channel per group: a batched product would have matrices of one column.
    if inner == 1 and groups > 1:
        return _depthwise_weight_gradient(node, windows, small, (outer, inner, *kernel), groups)
    batch, _, *positions = small.type.shape
    count = simplify_dim(batch * product_of_dims(positions))
    rows = op.reshape(
        op.transpose(
            _flatten_positions(node, node.to_expr(small), small.type.shape), axes=[1, 0, 2]
        ),
        (groups, outer // groups, count),
        allowzero=True,
    )
    taps = op.stack(list(windows), axis=0)  # (taps, batch, channels, *places)
    shape = (len(windows), batch, groups, inner, product_of_dims(positions))
    apart = op.transpose(op.reshape(taps, shape, allowzero=True), axes=[2, 3, 0, 1, 4])
    columns = op.reshape(apart, (groups, inner * len(windows), count), allowzero=True)
    products = op.nn.batch_matmul(rows, columns, transpose_b=True)
    return op.reshape(products, (outer, inner, *kernel))


def _depthwise_weight_gradient(
    node: FxNode, windows: Sequence[Expr], small: Value, shape: Sequence[int], groups: int
) -> Expr:
    """Emit the gradient of a depthwise weight: per tap, a sum of products with the smaller side.

    The smaller side is read in its own layout, instead of matrix products of one row.
    """
    batch, channels, *positions = small.type.shape
    split = (batch, as_dim(groups), simplify_dim(channels // groups), *positions)
    grouped = op.reshape(node.to_expr(small), split, allowzero=True)
    axes = [0, *range(3, 3 + len(positions))]
    sums = [op.sum(op.multiply(grouped, op.expand_dims(w, 2)), axis=axes) for w in windows]
    return op.reshape(op.stack(sums, axis=-1), tuple(shape))


def _flatten_positions(node: FxNode, data: Expr, shape: Shape) -> Expr:
    """Reshape data to [batch, channels, positions]."""
    return op.reshape(data, (*shape[:2], product_of_dims(shape[2:])), allowzero=True)


def _max_pool_backward(rank: int) -> Converter:
    """Return the converter of max_pool{rank}d_with_indices_backward; the flat indices are its last
    argument.
    """

    def convert(node: FxNode, grad: Value, x: Value, *settings: object) -> Expr:
        """Scatter-add the gradients into zeros; overlapping windows may share a maximum."""
        indices = settings[-1]
        assert isinstance(indices, Value)
        shape, dtype = x.type.shape, x.type.dtype
        lead = tuple(shape[:-rank])
        count = product_of_dims(indices.type.shape[-rank:])
        # The saved indices are flat within a plane; overlapping windows may share a maximum, hence
        # the sum.
        zeros = op.full(const(0, dtype), (*lead, product_of_dims(shape[-rank:])), dtype=dtype)
        position = op.reshape(node.to_expr(indices), (*lead, count), allowzero=True)
        updates = op.reshape(node.to_expr(grad), (*lead, count), allowzero=True)
        scattered = op.scatter_elements(zeros, position, updates, axis=len(lead), reduction="add")
        return op.reshape(scattered, shape, allowzero=True)

    return convert


def _embedding_backward(
    node: FxNode, grad: Value, indices: Value, rows: int, padding: int, scaled: bool
) -> Expr:
    """Convert embedding_dense_backward: gradients added to the rows of their indices, without the
    padding row.
    """
    if scaled:
        node.reject("gradients that are scaled by frequency")
    dtype = grad.type.dtype
    width = grad.type.shape[-1]
    flat = op.reshape(node.to_expr(indices, "int64"), (-1,))
    updates = op.reshape(
        node.to_expr(grad), (product_of_dims(indices.type.shape), width), allowzero=True
    )
    if padding >= 0:
        # The row of padding_idx gets no gradient.
        keep = op.expand_dims(op.not_equal(flat, const(padding, "int64")), axis=1)
        updates = op.where(keep, updates, const(0, dtype))
    zeros = op.full(const(0, dtype), (rows, width), dtype=dtype)
    return op.scatter_nd(zeros, op.expand_dims(flat, axis=0), updates, mode="add")


def _softmax_backward(node: FxNode, grad: Value, output: Value, dim: int, dtype: object) -> Expr:
    axis = normalize_axes(node, output, dim)
    gradient, probabilities = node.to_expr(grad), node.to_expr(output)
    # dx = y * dy - y * sum(y * dy), the Jacobian-vector product of softmax.
    both = op.multiply(gradient, probabilities)
    return op.subtract(both, op.multiply(probabilities, op.sum(both, axis=axis, keepdims=True)))


def _log_softmax_backward(
    node: FxNode, grad: Value, output: Value, dim: int, dtype: object
) -> Expr:
    axis = normalize_axes(node, output, dim)
    gradient = node.to_expr(grad)
    # dx = dy - exp(y) * sum(dy).
    total = op.sum(gradient, axis=axis, keepdims=True)
    return op.subtract(gradient, op.multiply(op.exp(node.to_expr(output)), total))


# fmt: off
ROWS: tuple[ConverterRow, ...] = (
    ("convolution_backward", _convolution_backward),
    *((f"max_pool{n}d_with_indices_backward", _max_pool_backward(n)) for n in (2, 3)),
    ("embedding_dense_backward", _embedding_backward),
    ("_softmax_backward_data", _softmax_backward),
    ("_log_softmax_backward_data", _log_softmax_backward),
)
# fmt: on
