"""Integer quantization of Relay programs, under TVM's names (`relay.quantize`): `annotate` says
where values are rounded, calibration to which steps, `realize` makes integers of it.
"""

from ekiden.quantization.relay.annotate import annotate
from ekiden.quantization.relay.calibrate import WEIGHT_RANGES, collect, with_steps
from ekiden.quantization.relay.config import QAnnotateKind, QConfig, current_qconfig, qconfig
from ekiden.quantization.relay.conversions import partition_conversions
from ekiden.quantization.relay.realize import realize

__all__ = [
    "WEIGHT_RANGES",
    "QAnnotateKind",
    "QConfig",
    "annotate",
    "collect",
    "current_qconfig",
    "partition_conversions",
    "qconfig",
    "realize",
    "with_steps",
]
