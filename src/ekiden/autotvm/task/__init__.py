"""AutoTVM's tasks: templates, configuration spaces and dispatch contexts."""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.autotvm.task.dispatch_context import DispatchContext, FallbackContext
    from ekiden.autotvm.task.dispatcher import ApplyConfig, ApplyHistoryBest
    from ekiden.autotvm.task.relay_integration import (
        extract_from_multiple_program,
        extract_from_program,
    )
    from ekiden.autotvm.task.space import ConfigEntity, ConfigSpace, FallbackConfigEntity
    from ekiden.autotvm.task.task import (
        Task,
        args_to_workload,
        create,
        deserialize_args,
        get_config,
        register_topi_compute,
        register_topi_schedule,
        serialize_args,
        template,
    )

__all__ = [
    "ApplyConfig",
    "ApplyHistoryBest",
    "ConfigEntity",
    "ConfigSpace",
    "DispatchContext",
    "FallbackConfigEntity",
    "FallbackContext",
    "Task",
    "args_to_workload",
    "create",
    "deserialize_args",
    "extract_from_multiple_program",
    "extract_from_program",
    "get_config",
    "register_topi_compute",
    "register_topi_schedule",
    "serialize_args",
    "template",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "space": "ConfigEntity ConfigSpace FallbackConfigEntity",
            "dispatch_context": "DispatchContext FallbackContext",
            "dispatcher": "ApplyConfig ApplyHistoryBest",
            "task": "Task args_to_workload create deserialize_args get_config "
            "register_topi_compute register_topi_schedule serialize_args template",
            "relay_integration": "extract_from_multiple_program extract_from_program",
        },
    )
