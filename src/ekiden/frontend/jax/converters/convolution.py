"""Convolutions with arbitrary dimension numbers, transposed to a layout of nn.conv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir.dialects import stablehlo

from ekiden.frontend.common.converters.window import emit_convolution
from ekiden.frontend.common.dynamic_slices import xla_pad
from ekiden.frontend.common.sliding_window import Window
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.jax.converters.complex import bilinear_rule
from ekiden.frontend.jax.node import StablehloNode, StablehloRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, simplify_dim, to_attr_dims


@dataclass(frozen=True, slots=True)
class _ConvAxes:
    """Dimension numbers of a convolution's data, kernel and output: batch (or output features),
    features, then spatial axes.
    """

    data: list[int]
    kernel: list[int]
    out: list[int]

    @staticmethod
    def of(node: StablehloNode) -> _ConvAxes:
        """Decode the attribute `dimension_numbers`."""
        dims: Any = stablehlo.ConvDimensionNumbers(node.attribute("dimension_numbers"))
        return _ConvAxes(
            [dims.input_batch_dimension, dims.input_feature_dimension,
             *dims.input_spatial_dimensions],
            [dims.kernel_output_feature_dimension, dims.kernel_input_feature_dimension,
             *dims.kernel_spatial_dimensions],
            [dims.output_batch_dimension, dims.output_feature_dimension,
             *dims.output_spatial_dimensions],
        )  # fmt: skip


def _transpose_to(node: StablehloNode, value: Value, order: Sequence[int]) -> Value:
    """Transpose a value to an order of axes; a constant is transposed at import."""
    if list(order) == list(range(len(order))):
        return value
    if value.array is not None:
        return constant_value(value.array.transpose(order))
    return node.bind_shared(op.transpose(node.scope.expr(value), order))


def _convolution(node: StablehloNode) -> Expr:
    rank = node.rank(0) - 2
    padding = node.int_array_attribute("padding", (0,) * (2 * rank))
    return _emit_convolution(node, [(padding[2 * i], padding[2 * i + 1]) for i in range(rank)])


def _dynamic_convolution(node: StablehloNode) -> Expr:
    """Convert dynamic_conv, whose padding is an input: numbers or shape expressions."""
    flat = node.signed_dims(2)
    return _emit_convolution(node, [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)])


def _emit_convolution(node: StablehloNode, padding: Sequence[tuple[Dim, Dim]]) -> Expr:
    rank, axes = len(padding), _ConvAxes.of(node)
    if rank not in (1, 2, 3):
        node.reject(f"expected 1 to 3 spatial axes, got {rank}")
    data = _transpose_to(node, node.value(0), axes.data)
    kernel = _transpose_to(node, node.value(1), axes.kernel)
    strides = node.int_array_attribute("window_strides", (1,) * rank)
    dilation = node.int_array_attribute("rhs_dilation", (1,) * rank)
    inner = [d - 1 for d in node.int_array_attribute("lhs_dilation", (1,) * rank)]
    groups = node.int_attribute("feature_group_count", 1)
    split = node.int_attribute("batch_group_count", 1)
    if split > 1:
        data, groups = _fold_batch_groups(node, data, split), split
    flips = [2 + i for i, f in enumerate(_bool_attribute(node, "window_reversal")) if f]
    if flips:
        # window_reversal turns the cross-correlation into a true convolution along an axis.
        kernel = node.bind_shared(op.reverse(node.scope.expr(kernel), flips))
    # nn.conv takes neither base dilation nor negative or symbolic padding: an explicit pad applies
    # them.
    if any(inner) or any(not isinstance(p, int) or p < 0 for pair in padding for p in pair):
        low, high = ([0, 0, *(p[i] for p in padding)] for i in (0, 1))
        zero = const(0, data.type.dtype)
        data = node.bind_shared(xla_pad(node, data, zero, low, high, [0, 0, *inner]))
        padding = [(0, 0)] * rank
    columns, *taps = node.static_dims((kernel.type.shape[0], *kernel.type.shape[2:]), "the kernel")
    before, after = (tuple(pair[side] for pair in padding) for side in (0, 1))
    convolved = emit_convolution(
        node, _cast_to_output(node, data), _cast_to_output(node, kernel),
        Window(tuple(taps), strides, dilation, before, after), groups=groups, channels=columns,
    )  # fmt: skip
    order = [axes.out.index(i) for i in range(rank + 2)]
    return convolved if order == list(range(rank + 2)) else op.transpose(convolved, order)


def _cast_to_output(node: StablehloNode, value: Value) -> Expr:
    """Cast an input to the dtype of the output."""
    expr, dtype = node.scope.expr(value), node.out_dtype()
    return expr if value.type.dtype == dtype else op.cast(expr, dtype)


def _bool_attribute(node: StablehloNode, name: str) -> list[bool]:
    return [bool(v) for v in node.attribute(name)] if node.has_attribute(name) else []


def _fold_batch_groups(node: StablehloNode, data: Value, count: int) -> Value:
    """Regroup [count * n, c, ...] to [n, count * c, ...] (batch_group_count): each batch group has
    features of its own.
    """
    n, c, *space = data.type.shape
    spatial_axes = list(range(3, 3 + len(space)))
    apart = op.reshape(
        node.scope.expr(data),
        to_attr_dims((count, simplify_dim(n // count), c, *space)),
        allowzero=True,
    )
    joined = op.transpose(apart, [1, 0, 2, *spatial_axes])
    shape = to_attr_dims((simplify_dim(n // count), simplify_dim(c * count), *space))
    return node.bind_shared(op.reshape(joined, shape, allowzero=True))


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.convolution", _convolution, make_complex_rule=bilinear_rule),
    StablehloRow("stablehlo.dynamic_conv", _dynamic_convolution, make_complex_rule=bilinear_rule),
)
