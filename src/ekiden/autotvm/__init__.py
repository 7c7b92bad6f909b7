"""AutoTVM's API on top of `ekiden.tune`: templates, tuners, logs and dispatch contexts.

    @autotvm.template("product")
    def product(n): ...

    task = autotvm.task.create("product", args=(512,), target="llvm")
    tuner = autotvm.tuner.XGBTuner(task)
    tuner.tune(64, autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner()),
               callbacks=[autotvm.callback.log_to_file("product.log")])
    with autotvm.apply_history_best("product.log"), Target("llvm"):
        schedule, tensors = product(512)

Spaces, search and measurement are those of `ekiden.tune`. A log has AutoTVM's lines, each with
Ekiden's own record of the trial beside TVM's fields, so that `relay.build` takes it too.
"""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.autotvm.measure.measure import MeasureErrorNo, MeasureInput, MeasureResult
    from ekiden.autotvm.measure.measure_methods import LocalBuilder, LocalRunner, RPCRunner
    from ekiden.autotvm.measure.option import measure_option
    from ekiden.autotvm.task.dispatch_context import DispatchContext, FallbackContext
    from ekiden.autotvm.task.dispatcher import ApplyConfig
    from ekiden.autotvm.task.dispatcher import ApplyHistoryBest as apply_graph_best  # noqa: N813
    from ekiden.autotvm.task.dispatcher import ApplyHistoryBest as apply_history_best  # noqa: N813
    from ekiden.autotvm.task.space import ConfigEntity, ConfigSpace
    from ekiden.autotvm.task.task import (
        create,
        get_config,
        register_topi_compute,
        register_topi_schedule,
        template,
    )
    from ekiden.autotvm.tuner import callback

__all__ = [
    "ApplyConfig",
    "ConfigEntity",
    "ConfigSpace",
    "DispatchContext",
    "FallbackContext",
    "LocalBuilder",
    "LocalRunner",
    "MeasureErrorNo",
    "MeasureInput",
    "MeasureResult",
    "RPCRunner",
    "apply_graph_best",
    "apply_history_best",
    "callback",
    "create",
    "get_config",
    "measure_option",
    "register_topi_compute",
    "register_topi_schedule",
    "template",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "measure": "LocalBuilder LocalRunner MeasureErrorNo MeasureInput MeasureResult "
            "RPCRunner measure_option",
            "task.space": "ConfigEntity ConfigSpace",
            "task.dispatch_context": "DispatchContext FallbackContext",
            "task.dispatcher": "ApplyConfig "
            "apply_history_best:ApplyHistoryBest apply_graph_best:ApplyHistoryBest",
            "task.task": "create get_config register_topi_compute register_topi_schedule template",
            "": "callback:ekiden.autotvm.tuner.callback",
        },
    )
