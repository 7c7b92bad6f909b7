"""Converter table of TensorFlow Lite operators, assembled from the converter families."""

from __future__ import annotations

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.tflite.converters import (
    control_flow,
    data_movement,
    detection,
    elementwise,
    float_linear,
    quantize,
    random,
    recurrent,
    reduction,
    selection,
    signal,
    stablehlo,
)
from ekiden.frontend.tflite.node import TfliteRow

CONVERTER_FAMILIES = (
    elementwise, reduction, data_movement, selection, float_linear, recurrent, quantize,
    control_flow, signal, random, detection, stablehlo,
)  # fmt: skip
CONVERTER_TABLE: dict[str, TfliteRow] = {
    row.code: row for family in CONVERTER_FAMILIES for row in family.ROWS
}
""""CONV_2D" -> its row."""
assert len(CONVERTER_TABLE) == sum(len(family.ROWS) for family in CONVERTER_FAMILIES), (
    "an operator has two rows"
)


# fmt: off
REFUSAL_REASONS = {
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


def lookup_converter(code: str) -> TfliteRow:
    """Look up the converter entry of an operator. Raises Unsupported if there is none."""
    if code not in CONVERTER_TABLE:
        raise Unsupported(REFUSAL_REASONS.get(code, "the operator is not supported"))
    return CONVERTER_TABLE[code]
