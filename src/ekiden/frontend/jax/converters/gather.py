"""Gather: windows of a tensor at data-dependent positions."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir.dialects import stablehlo

from ekiden.frontend.common.converters.stablehlo import gather
from ekiden.frontend.jax.node import StablehloNode, StablehloRow, per_part_rule
from ekiden.relay.expr import Expr


def _gather(node: StablehloNode) -> Expr:
    sizes = (
        node.int_array_attribute("slice_sizes")
        if node.has_attribute("slice_sizes")
        else node.sizes(2)
    )
    numbers: Any = stablehlo.GatherDimensionNumbers(node.attribute("dimension_numbers"))
    return gather(
        node, numbers.index_vector_dim, sizes, numbers.collapsed_slice_dims,
        numbers.start_index_map, numbers.offset_dims, numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
    )  # fmt: skip


ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.gather", _gather, make_complex_rule=per_part_rule),
    StablehloRow("stablehlo.dynamic_gather", _gather, make_complex_rule=per_part_rule),
)
