"""Converter table of TensorFlow operators, assembled from the converter families."""

from __future__ import annotations

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.tensorflow.converters import (
    control_flow,
    data_movement,
    detection,
    elementwise,
    linalg,
    network,
    reduction,
    segment_reduction,
    shape,
    tensor_lists,
)
from ekiden.frontend.tensorflow.node import TensorflowRow

CONVERTER_FAMILIES = (
    elementwise, reduction, data_movement, segment_reduction, shape, network, detection, linalg,
    control_flow, tensor_lists,
)  # fmt: skip
CONVERTER_TABLE: dict[str, TensorflowRow] = {
    row.op_type: row for family in CONVERTER_FAMILIES for row in family.ROWS
}
""""Conv2D" -> its row."""
assert len(CONVERTER_TABLE) == sum(len(family.ROWS) for family in CONVERTER_FAMILIES), (
    "an operator has two rows"
)


def lookup_converter(name: str) -> TensorflowRow:
    """Look up the converter entry of an operator. Raises Unsupported if there is none."""
    if name not in CONVERTER_TABLE:
        raise Unsupported("the operator is not supported")
    return CONVERTER_TABLE[name]
