"""AutoTVM's measurement API: inputs, results, builders and runners."""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.autotvm.measure.measure import (
        Builder,
        MeasureErrorNo,
        MeasureInput,
        MeasureResult,
        Runner,
    )
    from ekiden.autotvm.measure.measure_methods import (
        LocalBuilder,
        LocalRunner,
        RPCRunner,
        request_remote,
    )
    from ekiden.autotvm.measure.option import MeasureOption, create_measure_batch, measure_option

__all__ = [
    "Builder",
    "LocalBuilder",
    "LocalRunner",
    "MeasureErrorNo",
    "MeasureInput",
    "MeasureOption",
    "MeasureResult",
    "RPCRunner",
    "Runner",
    "create_measure_batch",
    "measure_option",
    "request_remote",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "measure": "Builder MeasureErrorNo MeasureInput MeasureResult Runner",
            "measure_methods": "LocalBuilder LocalRunner RPCRunner request_remote",
            "option": "MeasureOption create_measure_batch measure_option",
        },
    )
