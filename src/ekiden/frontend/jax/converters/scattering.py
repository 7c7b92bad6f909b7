"""scatter: windows of a tensor replaced, or combined with others, at positions that are data."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir.dialects import stablehlo

from ekiden.frontend.common.places import places
from ekiden.frontend.common.scattered import MODES, scattered
from ekiden.frontend.jax.converters.bodies import kind_of
from ekiden.frontend.jax.node import Node, Row
from ekiden.relay.expr import Expr
from ekiden.topi.shape import Dim


def _scatter(node: Node) -> Expr:
    if len(node.inputs) != 3:
        node.unsupported("several tensors at once")
    kind = kind_of(node, node.region())
    if kind not in MODES:
        known_kinds = ", ".join(sorted(set(MODES.values())))
        node.unsupported(f"a body of its own; known are {known_kinds}")
    numbers: Any = stablehlo.ScatterDimensionNumbers(node.attribute("scatter_dimension_numbers"))
    dropped = (*numbers.inserted_window_dims, *numbers.input_batching_dims)
    window = iter(numbers.update_window_dims)
    sizes: list[Dim] = [
        1 if axis in dropped else node.shape(2)[next(window)] for axis in range(node.rank(0))
    ]
    at = places(
        node, 0, 1, numbers.index_vector_dim, sizes,
        numbers.inserted_window_dims, numbers.input_batching_dims,
        numbers.scatter_indices_batching_dims, numbers.scattered_dims_to_operand_dims,
    )  # fmt: skip
    return scattered(node, at, kind, list(numbers.update_window_dims))


ROWS: tuple[Row, ...] = (Row("stablehlo.scatter", _scatter),)
