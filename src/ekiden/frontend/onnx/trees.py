"""Ensembles of decision trees as tables of nodes that all ask "is it at most this?".

Everything here is done for all nodes at once: an ensemble may have millions.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
"""What a node asks, by the number that TreeEnsemble gives it."""
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(len(MODES))
OPPOSITE = np.array([LEQ, LT, LT, LEQ, EQ, EQ, MEMBER])
"""The mode by which each is answered; "yes" and "no" are then exchanged where it is another."""


@dataclass(slots=True)
class Tables:
    """The nodes of an ensemble, leaves first: see ekiden.topi.ml.tree_leaves."""

    roots: Array
    features: Array
    limits: Array
    children: Array
    missing: Array
    depth: int


@dataclass(slots=True)
class Questions:
    """The inner nodes as models write them, a row each.

    values: the numbers they compare with; `counts` says how many each has (more than one for
    MEMBER alone). yes, no: the number of a question, or below 0 of a leaf: -1 - n. missing: whether
    a value that is not a number is a yes.
    """

    modes: Array
    features: Array
    values: Array
    counts: Array
    missing: Array
    yes: Array
    no: Array

    def check(self, roots: Array, leaves: int) -> None:
        """Raise Unsupported where a mode is unknown, a set empty or a target not there."""
        unknown = (self.modes < 0) | (self.modes >= len(MODES))
        if unknown.any():
            raise Unsupported(f"the mode {int(self.modes[unknown][0])} of a tree is unknown")
        if (self.counts == 0).any():
            raise Unsupported("a set of values is empty")
        for targets in (self.yes, self.no, roots):
            wrong = (targets >= len(self.modes)) | (targets < -leaves)
            if wrong.any():
                at = int(targets[wrong][0])
                raise Unsupported(f"a tree leads to a node {at} that is not there")


def forest(asked: Questions, roots: Array, leaves: int, dtype: type) -> Tables:
    """The tables of an ensemble. Raises Unsupported for one that is broken.

    x <= a takes one node. x == a takes two, x <= a and not x < a; a set takes those of its values
    in turn.
    """
    asked.check(roots, leaves)
    mode = OPPOSITE[asked.modes]
    turned = mode != asked.modes
    is_set = (mode == EQ) | (mode == MEMBER)
    sizes = np.where(is_set, 2 * asked.counts, 1)
    first = np.cumsum(sizes) - sizes
    yes, no = _entries(asked.yes, first), _entries(asked.no, first)
    yes, no = np.where(turned, no, yes), np.where(turned, yes, no)
    missing = np.where(turned, 1 - asked.missing, asked.missing)
    values: Array = asked.values.astype(dtype)
    owner = np.repeat(np.arange(len(mode)), asked.counts)
    start = np.cumsum(asked.counts) - asked.counts
    place = np.arange(len(values)) - start[owner]

    total = int(sizes.sum())
    nodes = Tables(
        _entries(roots, first),
        np.repeat(asked.features, sizes),
        np.empty(total, dtype),
        np.empty((total, 2), np.int64),
        np.zeros(total, np.int64),
        0,
    )
    plain, at = ~is_set, first[~is_set]
    given = values[start[plain]]
    nodes.limits[at] = np.where(mode[plain] == LEQ, given, _below(given))
    nodes.children[at, 0], nodes.children[at, 1] = yes[plain], no[plain]
    nodes.missing[at] = missing[plain]

    among = is_set[owner]
    q, upper, value = owner[among], (first[owner] + 2 * place)[among], values[among]
    after = np.where(place[among] + 1 < asked.counts[q], upper + 2, no[q])
    nodes.limits[upper], nodes.limits[upper + 1] = value, _below(value)
    nodes.children[upper, 0], nodes.children[upper, 1] = upper + 1, after
    nodes.children[upper + 1, 0], nodes.children[upper + 1, 1] = after, yes[q]
    nodes.missing[upper] = missing[q]
    return _with_leaves(nodes, leaves)


def _entries(targets: Array, first: Array) -> Array:
    """The node at which each question begins; leaves stay."""
    if not first.size:
        return targets
    entries: Array = np.where(targets >= 0, first[np.maximum(targets, 0)], targets)
    return entries


def _below(limits: Array) -> Array:
    """The largest numbers below; nothing is at most not-a-number."""
    lower = np.nextafter(limits, limits.dtype.type(-np.inf))
    found: Array = np.where(limits == -np.inf, limits.dtype.type(np.nan), lower)
    return found


def _with_leaves(nodes: Tables, leaves: int) -> Tables:
    """The tables with a row for each leaf before the others; a leaf is its own child."""
    children = np.empty((leaves + len(nodes.children), 2), np.int32)
    children[:leaves] = np.arange(leaves)[:, None]
    below = nodes.children
    children[leaves:] = np.where(below < 0, -1 - below, below + leaves)
    none = np.zeros(leaves, np.int32)
    return Tables(
        np.where(nodes.roots < 0, -1 - nodes.roots, nodes.roots + leaves).astype(np.int32),
        np.concatenate([none, nodes.features.astype(np.int32)]),
        np.concatenate([none.astype(nodes.limits.dtype), nodes.limits]),
        children,
        np.concatenate([none, nodes.missing.astype(np.int32)]),
        _depth(nodes.roots, nodes.children),
    )


def _depth(roots: Array, children: Array) -> int:
    """The longest path, in nodes: how often there is something behind what has been reached."""
    reached, depth = roots[roots >= 0], 0
    while reached.size:
        depth += 1
        if depth > len(children):
            raise Unsupported("a tree has a cycle")
        behind = children[reached].ravel()
        reached = _distinct(behind[behind >= 0], len(children))
    return depth


def _distinct(numbers: Array, limit: int) -> Array:
    """Each number below a limit once. NumPy's own `unique` takes ten times as long for millions."""
    if len(numbers) < limit // 64:
        return np.unique(numbers)
    is_there = np.zeros(limit, np.bool_)
    is_there[numbers] = True
    return np.flatnonzero(is_there)
