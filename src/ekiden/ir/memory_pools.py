"""Workspace memory pools of a target machine (TVM's USMP names)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PoolInfoProperties:
    """Properties of a memory pool. The planner reads its capacity, `size_hint_bytes`, -1 for
    unlimited; the others describe it to programs of the user: clock in Hz, bandwidths in bytes
    a cycle (-1 for unknown), latencies in cycles, and the burst length in bytes by target.
    """

    size_hint_bytes: int = -1
    clock_frequency_hz: int = -1
    read_bandwidth_bytes_per_cycle: int = -1
    write_bandwidth_bytes_per_cycle: int = -1
    read_latency_cycles: int = 0
    write_latency_cycles: int = 0
    target_burst_bytes: Mapping[object, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkspacePoolInfo:
    """Memory pool for intermediate tensors. `targets` are those that reach it: of all kernels, as
    there is one target.
    """

    pool_name: str
    targets: Sequence[object] = ()
    pool_info_properties: PoolInfoProperties = field(default_factory=PoolInfoProperties)

    def __getattr__(self, name: str) -> object:
        """Return a property of the pool by its name."""
        if name in PoolInfoProperties.__slots__:
            return getattr(self.pool_info_properties, name)
        raise AttributeError(f"a pool has no property {name!r}")

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
