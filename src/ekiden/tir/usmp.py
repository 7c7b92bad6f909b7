"""TVM's unified static memory planning: in Ekiden the memory of a program is planned by
`relay.transform.MemoryPlan`, and pools are given by `ir.memory_pools`.
"""

from __future__ import annotations

from ekiden.ir.pass_context import PassContext


def use_workspace_io_is_enabled() -> bool:
    """Return whether inputs and results are to lie in workspace pools, which a PassContext says."""
    return bool(PassContext.current().config.get("tir.usmp.use_workspace_io", False))


def __getattr__(name: str) -> object:
    """Raises AttributeError, which says what there is instead."""
    raise AttributeError(
        f"tir.usmp has no {name!r}: Ekiden plans memory by relay.transform.MemoryPlan"
    )
