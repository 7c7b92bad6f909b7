"""Memories of a machine as a program is told of them, with TVM's names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PoolInfoProperties:
    """What is known of a memory: `size_hint_bytes`, the most that it may give, or -1."""

    size_hint_bytes: int = -1


@dataclass(frozen=True, slots=True)
class WorkspacePoolInfo:
    """A memory for what is computed. `targets` are those that reach it: of all kernels, as there
    is one target."""

    pool_name: str
    targets: Sequence[object] = ()
    pool_info_properties: PoolInfoProperties = field(default_factory=PoolInfoProperties)

    @property
    def size(self) -> int | None:
        """Return the most bytes that it may give; None for no limit.

        Raises CompileError for a negative number but -1.
        """
        size = self.pool_info_properties.size_hint_bytes
        if size < -1:
            raise CompileError(f"pool '{self.pool_name}': bytes or -1 expected, got {size}")
        return None if size == -1 else size


@dataclass(frozen=True, slots=True)
class WorkspaceMemoryPools:
    """Memories, the first preferred."""

    pools: Sequence[WorkspacePoolInfo]


__all__ = ["PoolInfoProperties", "WorkspaceMemoryPools", "WorkspacePoolInfo"]
