"""Multiply-accumulate (MAC) counts of products and convolutions, the `macs` column of
declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ekiden.ir.op import Shapes
from ekiden.ir.prim import PrimExpr
from ekiden.topi.dimensions import as_dim
from ekiden.topi.nn.weight_packing import conv_transpose_weight_shape, conv_weight_shape

Dims = Sequence[PrimExpr]


def multiply_dims(dims: Dims) -> PrimExpr:
    """Return the unsimplified product of dimensions."""
    return math.prod(dims, start=as_dim(1))


def count_matmul_macs(attrs: Any, shapes: Shapes, result: Dims) -> PrimExpr:  # noqa: ANN401
    """Return the MACs of a matrix product: the reduced extent per result element."""
    return multiply_dims(result) * shapes[0][-2 if getattr(attrs, "transpose_a", False) else -1]


def make_conv_macs(weight: int = 1) -> Callable[[Any, Shapes, Dims], PrimExpr]:
    """Return a function that counts the MACs of a convolution.

    Each element of the result takes a window of the channels of one group.

    Args:
        weight: The position of the weight among the arguments.
    """

    def macs(attrs: Any, shapes: Shapes, result: Dims) -> PrimExpr:  # noqa: ANN401
        """Return the MACs of a call as an expression over its dimensions."""
        # The channels of one group and the window's extents: the reduction axes of one result.
        _, *window = conv_weight_shape(
            shapes[weight], attrs.kernel_layout, attrs.channels, attrs.groups
        )
        return multiply_dims(result) * multiply_dims(window)

    return macs


def count_conv_transpose_macs(attrs: Any, shapes: Shapes, result: Dims) -> PrimExpr:  # noqa: ANN401
    """Return the MACs of a transposed convolution.

    Each element of the data goes to a window of the channels of its group.
    """
    data, weight = shapes
    _, *window = conv_transpose_weight_shape(
        weight, attrs.kernel_layout, attrs.channels, attrs.groups
    )
    # A transposed convolution scatters: each element of the data meets the whole window.
    return multiply_dims(data) * multiply_dims(window)
