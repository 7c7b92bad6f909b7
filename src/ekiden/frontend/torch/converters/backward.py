"""Gradients that AOTAutograd leaves as operators."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.value import Value
from ekiden.frontend.common.windows import Window, padded, taps
from ekiden.frontend.torch.converters.convolution import convolution, spread
from ekiden.frontend.torch.converters.reduction import axes_of
from ekiden.frontend.torch.node import Converter, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Shape, as_dim, equal, product, tidy

Ints = Sequence[int]
Many = list[Expr | Value | None]


def _convolution(
    node: Node, grad: Value, x: Value, weight: Value, bias_sizes: object, stride: Ints,
    padding: Ints, dilation: Ints, transposed: bool, output_padding: Ints, groups: int,
    mask: Sequence[bool],
) -> Many:  # fmt: skip
    """(of the input, of the weight, of the bias)."""
    rank = len(weight.type.shape) - 2
    steps, sides, gaps = spread(stride, rank, 1), spread(padding, rank), spread(dilation, rank, 1)
    outputs: Many = [None, None, None]
    if mask[0]:
        outputs[0] = _of_input(node, grad, x, weight, steps, sides, gaps, transposed, groups)
    if mask[1]:
        large, small = (grad, x) if transposed else (x, grad)
        taken = _windows(node, large, small, weight, steps, sides, gaps)
        outputs[1] = _of_weight(node, taken, small, weight, groups)
    if mask[2]:
        outputs[2] = op.sum(node.of(grad), axis=[0, *range(2, rank + 2)], keepdims=False)
    return outputs


def _of_input(
    node: Node, grad: Value, x: Value, weight: Value, stride: Ints, padding: Ints, dilation: Ints,
    transposed: bool, groups: int,
) -> Expr:  # fmt: skip
    """The convolution turned round. What a stride left over is behind the last element: as much as
    may be is added there, and cut to the input's extents."""
    rank = len(stride)
    extra = (0,) * rank if transposed else tuple(s - 1 for s in stride)
    made = convolution(
        node, grad, weight, None, stride, padding, dilation, not transposed, extra, groups
    )
    have = node.typed(node.scope.spanned(made)).shape[2:]
    wanted = x.type.shape[2:]
    if all(map(equal, have, wanted)):
        return made
    return op.strided_slice(made, [0] * rank, list(wanted), axes=list(range(2, rank + 2)))


def _windows(
    node: Node, large: Value, small: Value, weight: Value, stride: Ints, padding: Ints,
    dilation: Ints,
) -> list[Expr]:  # fmt: skip
    """The elements of the larger side that each tap of the kernel meets, by the places of the
    smaller side: (batch, channels, *places) for each tap."""
    kernel = node.static(weight.type.shape[2:], "the kernel")
    window = Window(kernel, tuple(stride), tuple(dilation), tuple(padding), tuple(padding))
    data = padded(node, node.of(large), window, 0)
    return list(taps(data, window, small.type.shape[2:], 2))


def _of_weight(
    node: Node, windows: Sequence[Expr], small: Value, weight: Value, groups: int
) -> Expr:
    """A product over batch and places for each group: of the smaller side's channels, and of what
    each tap meets of the larger side's."""
    outer, inner, *kernel = node.static(weight.type.shape, "the weight")
    if inner == 1 and groups > 1:
        return _of_depthwise_weight(node, windows, small, (outer, inner, *kernel), groups)
    batch, _, *places = small.type.shape
    count = tidy(batch * product(places))
    rows = op.reshape(op.transpose(_flat(node, node.of(small), small.type.shape), axes=[1, 0, 2]),
                      (groups, outer // groups, count), allowzero=True)  # fmt: skip
    taps = op.stack(list(windows), axis=0)  # (taps, batch, channels, *places)
    shape = (len(windows), batch, groups, inner, product(places))
    apart = op.transpose(op.reshape(taps, shape, allowzero=True), axes=[2, 3, 0, 1, 4])
    columns = op.reshape(apart, (groups, inner * len(windows), count), allowzero=True)
    found = op.nn.batch_matmul(rows, columns, transpose_b=True)
    return op.reshape(found, (outer, inner, *kernel))


def _of_depthwise_weight(
    node: Node, windows: Sequence[Expr], small: Value, shape: Sequence[int], groups: int
) -> Expr:
    """Where a group has one channel of the larger side: each tap a sum of what it meets times the
    smaller side, which is read as it lies, instead of products of one row."""
    batch, channels, *places = small.type.shape
    split = (batch, as_dim(groups), tidy(channels // groups), *places)
    given = op.reshape(node.of(small), split, allowzero=True)
    axes = [0, *range(3, 3 + len(places))]
    sums = [op.sum(op.multiply(given, op.expand_dims(w, 2)), axis=axes) for w in windows]
    return op.reshape(op.stack(sums, axis=-1), tuple(shape))


def _flat(node: Node, data: Expr, shape: Shape) -> Expr:
    """(batch, channels, places)."""
    return op.reshape(data, (*shape[:2], product(shape[2:])), allowzero=True)


def _max_pool(rank: int) -> Converter:
    """Each gradient added at the flat place of its maximum, which is the last argument."""

    def convert(node: Node, grad: Value, x: Value, *given: object) -> Expr:
        """A scatter into zeros that adds, as windows may share their maximum."""
        places = given[-1]
        assert isinstance(places, Value)
        shape, dtype = x.type.shape, x.type.dtype
        lead = tuple(shape[:-rank])
        count = product(places.type.shape[-rank:])
        zeros = op.full(const(0, dtype), (*lead, product(shape[-rank:])), dtype=dtype)
        at = op.reshape(node.of(places), (*lead, count), allowzero=True)
        updates = op.reshape(node.of(grad), (*lead, count), allowzero=True)
        found = op.scatter_elements(zeros, at, updates, axis=len(lead), reduction="add")
        return op.reshape(found, shape, allowzero=True)

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
    *((f"max_pool{n}d_with_indices_backward", _max_pool(n)) for n in (2, 3)),
    ("embedding_dense_backward", _embedding),
    ("_softmax_backward_data", _softmax),
    ("_log_softmax_backward_data", _log_softmax),
)
# fmt: on
