"""Residency of models in memory, with least-recently-used eviction: which are in memory, and which
are evicted to make room for others.

Models that load on demand share a budget of bytes. A load first reserves its bytes and evicts idle
models for them, the least recently used first (LRU). Invariant: the bytes of resident models and of
the loads under way never exceed the budget. A model is idle if no request and no sequence uses it;
pinned models are never evicted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from ekiden.runtime.errors import LoadError

__all__ = ["ResidentModel", "ResidentModels"]


class ResidentModel(Protocol):
    """Interface of a loaded model for eviction decisions."""

    @property
    def name(self) -> str:
        """Return the name, which is unique in the repository."""

    @property
    def num_bytes(self) -> int:
        """Return the size of its files in bytes, an estimate of its memory."""

    @property
    def is_pinned(self) -> bool:
        """Return whether it must not be evicted."""

    @property
    def is_idle(self) -> bool:
        """Return whether nothing uses it."""


class ResidentModels:
    """LRU set of loaded models within a memory budget in bytes. Used on the event loop's thread."""

    def __init__(self, budget: int, evict: Callable[[str], None]) -> None:
        """Create an empty set.

        Args:
            budget: The maximum bytes of all models; 0 for no limit.
            evict: Unloads an idle model by name, and so removes it from this set.
        """
        self._budget, self._evict = budget, evict
        self._models: OrderedDict[str, ResidentModel] = OrderedDict()
        self._reserved: dict[str, int] = {}
        """Name -> bytes of a load under way."""
        self._changed = asyncio.Event()
        self.num_evictions = 0

    def __len__(self) -> int:
        return len(self._models)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all resident models."""
        return sum(model.num_bytes for model in self._models.values())

    def touch(self, name: str) -> None:
        """Mark a model as most recently used; models without files are ignored."""
        if name in self._models:
            self._models.move_to_end(name)

    def add(self, model: ResidentModel) -> None:
        """Add a loaded model as most recently used."""
        self._models[model.name] = model
        self._models.move_to_end(model.name)

    def discard(self, name: str) -> None:
        """Remove an unloaded model."""
        self._models.pop(name, None)
        self._changed.set()

    def notify_idle(self) -> None:
        """Wake the loads that wait for a model to become idle."""
        self._changed.set()

    @asynccontextmanager
    async def reserve(self, name: str, num_bytes: int) -> AsyncIterator[None]:
        """Reserve the bytes of a load inside the context, evicting idle models or waiting for one.
        Raises LoadError if the budget is too small beside the pinned models and the loaded versions
        of this one.
        """
        # The model's own bytes are counted below, as its loaded versions.
        pinned = sum(m.num_bytes for m in self._models.values() if m.is_pinned and m.name != name)
        # A model keeps serving its loaded versions while its new ones load.
        loaded = self._models[name].num_bytes if name in self._models else 0
        if self._budget and num_bytes + pinned + loaded > self._budget:
            also = f", its loaded versions {loaded}" if loaded else ""
            also += f", pinned models {pinned}" if pinned else ""
            hint = ": unload it first" if loaded and num_bytes + pinned <= self._budget else ""
            raise LoadError(
                f"the files of '{name}' have {num_bytes} bytes{also}; models may have"
                f" {self._budget} together (model_bytes){hint}"
            )
        # Another load may take the room before this one resumes, so the test is repeated.
        while not self._make_room(name, num_bytes):
            # No await separates the test from `clear`, so no wake-up is lost.
            self._changed.clear()
            await self._changed.wait()
        self._reserved[name] = num_bytes
        try:
            yield
        finally:
            del self._reserved[name]
            self._changed.set()

    def _make_room(self, name: str, num_bytes: int) -> bool:
        """Evict least recently used idle models until the bytes fit; return whether they do."""
        used = self.num_bytes + sum(self._reserved.values())
        if not self._budget or used + num_bytes <= self._budget:
            return True
        # The list is a copy, as evictions remove models from the dictionary.
        candidates = [m for m in self._models.values() if not m.is_pinned and m.name != name]
        for model in candidates:
            if model.is_idle:
                used -= model.num_bytes
                self._evict(model.name)
                self.num_evictions += 1
                if used + num_bytes <= self._budget:
                    return True
        return False
