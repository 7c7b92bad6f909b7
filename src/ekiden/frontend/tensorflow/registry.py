"""Converter table of TensorFlow operators, assembled from the rows of each family."""

from __future__ import annotations

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.tensorflow.converters import (
    control,
    detection,
    elementwise,
    linalg,
    lists,
    movement,
    network,
    reduction,
    segments,
    shape,
)
from ekiden.frontend.tensorflow.node import Row

FAMILIES = (
    elementwise, reduction, movement, segments, shape, network, detection, linalg, control, lists,
)  # fmt: skip
TABLE: dict[str, Row] = {row.op: row for family in FAMILIES for row in family.ROWS}
""""Conv2D" -> its row."""
assert len(TABLE) == sum(len(family.ROWS) for family in FAMILIES), "an operator has two rows"


def find(name: str) -> Row:
    """Look up the row of an operator; raise Unsupported without one."""
    if name not in TABLE:
        raise Unsupported("the operator is not supported")
    return TABLE[name]
