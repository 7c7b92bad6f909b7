"""TVM's unified static memory planner (USMP): Ekiden plans memory by `relay.transform.MemoryPlan`,
and pools are set by `ir.memory_pools`.
"""

from __future__ import annotations

from ekiden.ir.pass_context import PassContext


def use_workspace_io_is_enabled() -> bool:
    """Return whether inputs and outputs are placed in workspace pools, as the PassContext says."""
    return bool(PassContext.current().config.get("tir.usmp.use_workspace_io", False))


def __getattr__(name: str) -> object:
    """Raise AttributeError that names the replacement."""
    raise AttributeError(
        f"tir.usmp has no {name!r}: Ekiden plans memory by relay.transform.MemoryPlan"
    )
