"""Trie of a vocabulary over the bytes of its tokens: tokens with a common beginning move an
automaton by it once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["TokenTrie", "TrieLevel"]

MAX_TOKEN_BYTES = 256
"""Of a token: longer ones, runs of spaces, are left out."""
Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class TrieLevel:
    """Trie nodes of one depth, as arrays: begins int32 [nodes above + 1], where the children of
    each node of the level above begin; letters uint8 [nodes], the byte that leads to each; tokens:
    int32 [k], those that end here, at the nodes `ends` int32 [k].
    """

    begins: Ints
    letters: NDArray[np.uint8]
    tokens: Ints
    ends: Ints

    def children(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Return the children [k] of nodes of the level above, and for each the index of its parent
        in `nodes`.
        """
        begins = self.begins[nodes]
        counts = self.begins[nodes + 1] - begins
        parents = np.repeat(np.arange(len(nodes), dtype=np.int32), counts)
        shifts = begins - (np.cumsum(counts) - counts)
        return (np.arange(len(parents)) + shifts[parents]).astype(np.int32), parents


class TokenTrie:
    """Trie of a vocabulary over bytes."""

    def __init__(self, tokens: Sequence[bytes | None]) -> None:
        """Create the trie; None and the empty text stand for tokens that are never generated."""
        self.tokens = tokens
        ids = [n for n, token in enumerate(tokens) if token and len(token) <= MAX_TOKEN_BYTES]
        # Sorted, tokens with a common beginning stand together.
        ids.sort(key=lambda n: tokens[n] or b"")
        numbers = np.array(ids, np.int32)
        texts = [tokens[n] or b"" for n in ids]
        lengths = np.array([len(text) for text in texts], np.int32)
        width = int(lengths.max(initial=0))
        letters = np.zeros((len(texts), width), np.uint8)
        for row, text in zip(letters, texts, strict=True):
            row[: len(text)] = np.frombuffer(text, np.uint8)
        self.levels = _levels(letters, lengths, numbers)
        singles = {text[0] for text in texts if len(text) == 1}
        self.single_bytes = [byte in singles for byte in range(256)]
        """For each byte, whether there is a token of it alone."""
        occurring = set(b"".join(texts))
        self.bytes = [byte in occurring for byte in range(256)]
        """For each byte, whether a token has it."""


def _levels(letters: NDArray[np.uint8], lengths: Ints, numbers: Ints) -> list[TrieLevel]:
    """Build the trie's levels, by depth, from the bytes [n, width] of the sorted tokens."""
    count, width = letters.shape
    common = np.zeros(count, np.int32)  # bytes that a token shares with the one before it
    if count > 1:
        differs = letters[1:] != letters[:-1]
        # Padding equals padding, so the lengths bound the common prefix.
        shared = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
        common[1:] = np.minimum(shared, np.minimum(lengths[1:], lengths[:-1]))
    levels = []
    above, above_count = np.zeros(count, np.int32), 1
    for depth in range(width):
        is_new = (lengths > depth) & (common <= depth)
        nodes = (np.cumsum(is_new) - 1).astype(np.int32)
        ends = lengths == depth + 1
        # Nodes are ordered by parent, so a binary search finds where each parent's children begin.
        begins = np.searchsorted(above[is_new], np.arange(above_count + 1)).astype(np.int32)
        levels.append(TrieLevel(begins, letters[is_new, depth], numbers[ends], nodes[ends]))
        above, above_count = nodes, int(is_new.sum())
    return levels
