"""Integer quantization of Relay programs under TVM's names (`relay.quantize`): annotate, calibrate,
realize.
"""

from ekiden.quantization.relay.annotate import annotate
from ekiden.quantization.relay.calibrate import (
    WEIGHT_RANGES,
    collect_float_values,
    set_quantization_steps,
)
from ekiden.quantization.relay.config import QAnnotateKind, QConfig, current_qconfig, qconfig
from ekiden.quantization.relay.conversions import partition_conversions
from ekiden.quantization.relay.realize import realize

__all__ = [
    "WEIGHT_RANGES",
    "QAnnotateKind",
    "QConfig",
    "annotate",
    "collect_float_values",
    "current_qconfig",
    "partition_conversions",
    "qconfig",
    "realize",
    "set_quantization_steps",
]
