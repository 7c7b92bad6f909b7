"""The converter table: operator -> its row, made of the rows of each family."""

from __future__ import annotations

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.tflite.converters import (
    control,
    detection,
    elementwise,
    linear,
    movement,
    quantize,
    reduction,
    signal,
)
from ekiden.frontend.tflite.node import Row

FAMILIES = (elementwise, reduction, movement, linear, quantize, control, signal, detection)
TABLE: dict[str, Row] = {row.code: row for family in FAMILIES for row in family.ROWS}
""""CONV_2D" -> its row."""
assert len(TABLE) == sum(len(family.ROWS) for family in FAMILIES), "an operator has two rows"


def find(code: str) -> Row:
    """The row of an operator. Raises Unsupported where there is none."""
    if code not in TABLE:
        raise Unsupported("the operator is not supported")
    return TABLE[code]
