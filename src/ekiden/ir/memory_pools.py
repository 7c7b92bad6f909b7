"""Workspace memory pools of a target machine (TVM's USMP names)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PoolInfoProperties:
    """Properties of a memory pool: `size_hint_bytes`, its capacity in bytes, or -1 for
    unlimited.
    """

    size_hint_bytes: int = -1


@dataclass(frozen=True, slots=True)
class WorkspacePoolInfo:
    """Memory pool for intermediate tensors. `targets` are those that reach it: of all kernels, as
    there is one target.
    """

    pool_name: str
    targets: Sequence[object] = ()
    pool_info_properties: PoolInfoProperties = field(default_factory=PoolInfoProperties)

    @property
    def size(self) -> int | None:
        """Return the capacity in bytes, or None if unlimited.

        Raises CompileError for a negative number but -1.
        """
        size = self.pool_info_properties.size_hint_bytes
        if size < -1:
            raise CompileError(f"pool '{self.pool_name}': bytes or -1 expected, got {size}")
        return None if size == -1 else size


@dataclass(frozen=True, slots=True)
class WorkspaceMemoryPools:
    """Memory pools in order of preference."""

    pools: Sequence[WorkspacePoolInfo]


__all__ = ["PoolInfoProperties", "WorkspaceMemoryPools", "WorkspacePoolInfo"]
