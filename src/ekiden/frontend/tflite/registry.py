"""Converter table of TensorFlow Lite operators, assembled from the rows of each family."""

from __future__ import annotations

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.tflite.converters import (
    control,
    detection,
    elementwise,
    linear,
    movement,
    quantize,
    random,
    recurrent,
    reduction,
    selection,
    signal,
    stablehlo,
)
from ekiden.frontend.tflite.node import Row

FAMILIES = (
    elementwise, reduction, movement, selection, linear, recurrent, quantize, control, signal,
    random, detection, stablehlo,
)  # fmt: skip
TABLE: dict[str, Row] = {row.code: row for family in FAMILIES for row in family.ROWS}
""""CONV_2D" -> its row."""
assert len(TABLE) == sum(len(family.ROWS) for family in FAMILIES), "an operator has two rows"


# fmt: off
REFUSED = {
    "CALL":                        "TensorFlow Lite has no meaning for it",
    "CONCAT_EMBEDDINGS":           "TensorFlow Lite has no meaning for it",
    "DELEGATE":                    "it runs code of a delegate: take the model without it",
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "it is no operator: the file's operator codes are broken",
    "SKIP_GRAM":                   "it takes strings",
    "HASHTABLE":                   "tables of strings are not supported",
    "HASHTABLE_FIND":              "tables of strings are not supported",
    "HASHTABLE_IMPORT":            "tables of strings are not supported",
    "HASHTABLE_SIZE":              "tables of strings are not supported",
    "LSH_PROJECTION":              "it hashes by a function that TensorFlow Lite does not state",
    "STABLEHLO_CONVOLUTION":       "convert the model to operators of TensorFlow Lite: CONV_2D",
    "STABLEHLO_RNG_BIT_GENERATOR": "its bits are not drawn here: take RANDOM_UNIFORM",
    "STABLEHLO_CUSTOM_CALL":       "what it calls is not in the model",
}
# fmt: on
"""Operators of the schema that are refused -> why."""


def find(code: str) -> Row:
    """Look up the row of an operator; raise Unsupported without one."""
    if code not in TABLE:
        raise Unsupported(REFUSED.get(code, "the operator is not supported"))
    return TABLE[code]
