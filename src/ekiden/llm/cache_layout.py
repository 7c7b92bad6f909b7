"""Layout of a cache of keys and values, or of states."""

from __future__ import annotations

from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["CacheLayout"]


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Layout of the paged KV cache: tokens per page, dtype, and pages per block."""

    page: int = 64
    dtype: str = "float32"
    row: int = 16

    def num_blocks(self, pages: int) -> int:
        """Return the number of blocks that hold `pages` pages."""
        return -(-pages // self.row)
