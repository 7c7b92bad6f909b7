"""Matrix products."""

from __future__ import annotations

from jaxlib.mlir.dialects import stablehlo

from ekiden.frontend.common.converters.stablehlo import dot_general
from ekiden.frontend.jax.converters.complex import bilinear_rule
from ekiden.frontend.jax.node import StablehloNode, StablehloRow
from ekiden.relay.expr import Expr


def _dot_general(node: StablehloNode) -> Expr:
    numbers = stablehlo.DotDimensionNumbers(node.attribute("dot_dimension_numbers"))
    lhs_axes, rhs_axes = (_dot_axes(numbers, side) for side in ("lhs", "rhs"))
    dtype = node.out_dtype()
    return dot_general(node, node.value(0), node.value(1), lhs_axes, rhs_axes, dtype)


def _dot_axes(numbers: object, side: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the batching and contracting axes of one side ("lhs" or "rhs")."""
    batch = getattr(numbers, f"{side}_batching_dimensions")
    return tuple(batch), tuple(getattr(numbers, f"{side}_contracting_dimensions"))


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.dot_general", _dot_general, make_complex_rule=bilinear_rule),
)
