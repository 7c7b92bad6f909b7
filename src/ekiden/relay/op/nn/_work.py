"""How much work products and convolutions are: the column `macs` of their declarations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ekiden.ir.op import Shapes
from ekiden.ir.prim import PrimExpr
from ekiden.topi.dimensions import as_dim
from ekiden.topi.nn.weights import conv_transpose_weight_shape, conv_weight_shape

Dims = Sequence[PrimExpr]


def product(dims: Dims) -> PrimExpr:
    """Return the product of dimensions, not simplified."""
    return math.prod(dims, start=as_dim(1))


def of_product(attrs: Any, shapes: Shapes, result: Dims) -> PrimExpr:  # noqa: ANN401
    """Return the multiply-adds of a matrix product: a row of the first argument per result
    element.
    """
    return product(result) * shapes[0][-2 if getattr(attrs, "transpose_a", False) else -1]


def of_convolution(weight: int = 1) -> Callable[[Any, Shapes, Dims], PrimExpr]:
    """Return the function that counts the multiply-adds of a convolution.

    Each element of the result takes a window of the channels of one group.

    Args:
        weight: The position of the weight among the arguments.
    """

    def macs(attrs: Any, shapes: Shapes, result: Dims) -> PrimExpr:  # noqa: ANN401
        """Multiply-adds of a call, as an expression over its dimensions."""
        _, *window = conv_weight_shape(
            shapes[weight], attrs.kernel_layout, attrs.channels, attrs.groups
        )
        return product(result) * product(window)

    return macs


def of_transposed(attrs: Any, shapes: Shapes, result: Dims) -> PrimExpr:  # noqa: ANN401
    """Return the multiply-adds of a transposed convolution.

    Each element of the data goes to a window of the channels of its group.
    """
    data, weight = shapes
    _, *window = conv_transpose_weight_shape(
        weight, attrs.kernel_layout, attrs.channels, attrs.groups
    )
    return product(data) * product(window)
