"""Allocator of KV-cache pages with reference counts, so that sequences share common prefixes.

A page that is full never changes again: what stands in it depends on its tokens and on those before
them, which are its key. A text whose prompt begins with the same tokens takes the page as it is.
Pages that nobody has any more keep what they hold until they are needed, the oldest first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256

__all__ = ["Key", "PageAllocator"]

Key = bytes
"""A digest of all tokens up to the end of a page: made of that of the page before, as a list of
tokens for each page would grow with the square of a text."""


class PageAllocator:
    """Page allocator of one cache, with prefix sharing by reference counts."""

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        # Reversed, so that pop() hands out page 0 first.
        self._free = list(range(count - 1, -1, -1))
        self._users: dict[int, int] = {}
        self._by_key: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Those that nobody has and that hold something."""

    @property
    def num_available(self) -> int:
        """Return the number of allocatable pages."""
        return len(self._free) + len(self._idle)

    def num_needed(self, tokens: int) -> int:
        """Return the number of pages that hold `tokens` tokens."""
        return -(-tokens // self.size)

    def prefix_keys(self, prompt: Sequence[int], variant: bytes = b"") -> list[Key]:
        """Return the prefix keys (chained digests) of the pages that a prompt fills, in order.
        Prompts share pages if their `variant` is equal: what besides their tokens decides about
        keys and values.
        """
        keys, before = [], variant
        for end in range(self.size, len(prompt) + 1, self.size):
            tokens = array("q", prompt[end - self.size : end]).tobytes()
            # Chained like a hash of the whole prefix: equal keys mean equal tokens from the
            # beginning.
            before = sha256(before + tokens).digest()
            keys.append(before)
        return keys

    def allocate(
        self, keys: Sequence[Key], length: int, tokens: int
    ) -> tuple[list[int], int] | None:
        """Allocate pages for a sequence; return them with the number of its tokens already in the
        cache (always less than all), or None if there are not enough.

        Args:
            keys: The prefix keys of the prompt.
            length: The length of the prompt.
            tokens: The maximum number of tokens.
        """
        shared = self._longest_cached_prefix(self._shareable(keys, length))
        new_count = self.num_needed(tokens) - len(shared)
        # Idle pages this text shares are about to be used, so they are not available as new ones.
        spare = self.num_available - sum(page in self._idle for page in shared)
        if new_count > spare:
            return None
        for page in shared:
            self._idle.pop(page, None)
            self._users[page] = self._users.get(page, 0) + 1
        fresh = [self._take_free_page() for _ in range(new_count)]
        return [*shared, *fresh], len(shared) * self.size

    def _shareable(self, keys: Sequence[Key], length: int) -> Sequence[Key]:
        """Return the keys of pages that a prompt may share: at least its last token is read again,
        since its logits choose the first token of the response.
        """
        return keys[: max(length - 1, 0) // self.size]

    def next_key(self, keys: Sequence[Key], length: int) -> Key | None:
        """Return the key of the first shareable page that is not filled yet; None if there is none.

        Args:
            keys: The prefix keys of the prompt.
            length: The length of the prompt.
        """
        return next(iter(self.missing_keys(keys, length)), None)

    def missing_keys(self, keys: Sequence[Key], length: int) -> Sequence[Key]:
        """Return the keys of shareable pages from the first one on that is not filled yet."""
        shareable = self._shareable(keys, length)
        for number, key in enumerate(shareable):
            if key not in self._by_key:
                return shareable[number:]
        return ()

    def _longest_cached_prefix(self, keys: Sequence[Key]) -> list[int]:
        """Return the cached pages of the longest cached prefix."""
        pages = []
        for key in keys:
            page = self._by_key.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def _take_free_page(self) -> int:
        if self._free:
            page = self._free.pop()
        else:
            # Evict the least recently released page that still had reusable contents.
            page, _ = self._idle.popitem(last=False)
            del self._by_key[self._keys.pop(page)]
        self._users[page] = 1
        return page

    def mark_filled(self, page: int, key: Key) -> None:
        """Register a full page under its prefix key."""
        if page not in self._keys and key not in self._by_key:
            self._by_key[key], self._keys[page] = page, key

    def release(self, pages: Sequence[int]) -> None:
        """Release the pages of a finished sequence, keeping those with a key for reuse."""
        for page in pages:
            self._users[page] -= 1
            if self._users[page]:
                continue
            del self._users[page]
            # Full prompt pages stay for later prompts with the same prefix until they are evicted.
            if page in self._keys:
                self._idle[page] = None
            else:
                self._free.append(page)
