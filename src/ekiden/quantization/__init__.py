"""Post-training quantization of ONNX models: calibrated ranges, a decision per layer, and
QuantizeLinear/DequantizeLinear in the model.

`ekiden.quantize` is the way in. A `Recipe` says what is wanted, `layers` which products there are,
`observe` what calibration data show of them, `judge` what each would cost, and a `QuantPlan` what
was decided, a row for each layer; `rewrite` makes the model of it.
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden.quantization.plan import QUANT_KINDS, LayerPlan, QuantPlan, Recipe
from ekiden.quantization.quantizable_layers import Layer, find_layers
from ekiden.quantization.range_calibration import RANGE_METHODS

__all__ = [
    "QUANT_KINDS",
    "RANGE_METHODS",
    "Layer",
    "LayerPlan",
    "QuantPlan",
    "Recipe",
    "find_layers",
]
