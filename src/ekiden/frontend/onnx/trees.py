"""Ensembles of decision trees as tables of nodes that all ask "is it at most this?"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ekiden.frontend.onnx.unsupported import Unsupported
from ekiden.ir.op import Array

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
"""What a node asks, by the number that TreeEnsemble gives it."""


@dataclass(slots=True)
class Tables:
    """The nodes of an ensemble, leaves first: see ekiden.topi.ml.tree_leaves."""

    roots: Array
    features: Array
    limits: Array
    children: Array
    missing: Array
    depth: int


@dataclass
class Forest:
    """An ensemble being built. A reference to a node is its number, to leaf n is -1 - n."""

    dtype: type = np.float32
    features: list[int] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    def ask(self, feature: int, limit: float, yes: int, no: int, missing: int) -> int:
        """A new node; which of its two a missing value takes."""
        self.features.append(feature)
        self.limits.append(limit)
        self.children.append([yes, no])
        self.missing.append(missing)
        return len(self.features) - 1

    def add(
        self, mode: str, feature: int, values: Sequence[float], missing: int
    ) -> tuple[int, Slots]:
        """A node that asks by a mode, with nothing behind it yet: its number, and where what stands
        behind "yes" and "no" has to be put. Raises Unsupported for an unknown mode.
        """
        if mode in ("GT", "GTE", "NEQ"):
            other = {"GT": "LEQ", "GTE": "LT", "NEQ": "EQ"}[mode]
            first, (yes, no) = self.add(other, feature, values, 1 - missing)
            return first, (no, yes)
        if mode in ("LEQ", "LT"):
            limit = self.dtype(values[0])
            at = self.ask(feature, limit if mode == "LEQ" else self._below(limit), 0, 0, missing)
            return at, ([(at, 0)], [(at, 1)])
        if mode in ("EQ", "MEMBER"):
            return self._one_of(feature, values, missing)
        raise Unsupported(f"the mode {mode!r} of a tree is unknown")

    def _one_of(self, feature: int, values: Sequence[float], missing: int) -> tuple[int, Slots]:
        """x == a: x <= a, and not x < a; one value after the other."""
        if not values:
            raise Unsupported("a set of values is empty")
        yes: list[tuple[int, int]] = []
        first = len(self.features)
        for position, each in enumerate(values):
            value = self.dtype(each)
            upper = self.ask(feature, value, 0, 0, missing)
            lower = self.ask(feature, self._below(value), 0, 0, 0)
            self.children[upper][0] = lower
            yes.append((lower, 1))
            after = len(self.features)
            if position + 1 < len(values):
                self.children[upper][1] = self.children[lower][0] = after
        return first, (yes, [(upper, 1), (lower, 0)])

    def _below(self, limit: float) -> float:
        """The largest number below; nothing is at most not-a-number."""
        if limit == -np.inf:
            return np.nan
        return float(np.nextafter(self.dtype(limit), self.dtype(-np.inf)))

    def tables(self, roots: Sequence[int], leaves: int) -> Tables:
        """The tables; raises Unsupported for trees that are none."""
        own = np.arange(leaves)
        children = np.array(self.children, np.int64).reshape(-1, 2)
        moved = np.where(children < 0, -1 - children, children + leaves)
        starts = np.array(roots, np.int64)
        return Tables(
            np.where(starts < 0, -1 - starts, starts + leaves).astype(np.int32),
            np.concatenate([np.zeros(leaves), self.features]).astype(np.int32),
            np.concatenate([np.zeros(leaves), self.limits]).astype(self.dtype),
            np.concatenate([np.stack([own, own], 1), moved]).astype(np.int32),
            np.concatenate([np.zeros(leaves), self.missing]).astype(np.int32),
            self._depth(roots),
        )

    def _depth(self, roots: Sequence[int]) -> int:
        """The longest path; every node is entered when all behind it is done."""
        depth = [0] * len(self.features)  # 0: not seen, -1: being walked
        for root in roots:
            stack = [root] if root >= 0 else []
            while stack:
                at = stack[-1]
                below = [c for c in self.children[at] if c >= 0]
                if depth[at] > 0:
                    stack.pop()
                elif depth[at] == 0:
                    depth[at] = -1
                    stack += below
                    if any(depth[c] < 0 for c in below):
                        raise Unsupported("a tree has a cycle")
                else:
                    depth[at] = 1 + max((depth[c] for c in below), default=0)
                    stack.pop()
        return max((depth[r] for r in roots if r >= 0), default=0)


Slots = tuple[list[tuple[int, int]], list[tuple[int, int]]]
"""The places (node, side) that must lead to what stands behind yes, and behind no."""


@dataclass(slots=True)
class Question:
    """A node as models write it: what stands behind it are numbers of nodes, or below 0 of
    leaves.
    """

    mode: str
    feature: int
    values: Sequence[float]
    missing: int
    yes: int
    no: int


def forest(
    questions: Mapping[int, Question], roots: Sequence[int], leaves: int, dtype: type
) -> Tables:
    """The tables of an ensemble. Raises Unsupported for one that is broken."""
    made = Forest(dtype)
    entries: dict[int, int] = {}
    slots: dict[int, Slots] = {}
    for key, each in questions.items():
        entries[key], slots[key] = made.add(each.mode, each.feature, each.values, each.missing)
    for key, each in questions.items():
        for target, places in zip((each.yes, each.no), slots[key], strict=True):
            if (target >= 0 and target not in entries) or target < -leaves:
                raise Unsupported(f"a tree leads to a node {target} that is not there")
            for node, side in places:
                made.children[node][side] = entries[target] if target >= 0 else target
    return made.tables([entries[r] if r >= 0 else r for r in roots], leaves)
