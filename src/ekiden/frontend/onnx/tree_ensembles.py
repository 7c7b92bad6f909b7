"""Tree ensembles lowered to node tables whose nodes all compare x <= threshold.

Everything is vectorised over nodes: an ensemble may have millions.
"""

from __future__ import annotations

import numpy as np

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.ir.op import Array
from ekiden.runtime.lazy_dataclass import dataclass

BRANCH_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
"""What a node asks, by the number that TreeEnsemble gives it."""
LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(len(BRANCH_MODES))
CANONICAL_MODE = np.array([LEQ, LT, LT, LEQ, EQ, EQ, MEMBER])
"""The mode by which each is answered; "yes" and "no" are then exchanged where it is another."""


@dataclass(slots=True)
class ForestTables:
    """Node tables of an ensemble, leaves first (see ekiden.topi.ml.tree_leaves)."""

    roots: Array
    features: Array
    thresholds: Array
    children: Array
    nan_goes_true: Array
    depth: int


@dataclass(slots=True)
class BranchNodes:
    """Branch nodes in the model's form, one row each: mode, feature, thresholds and targets.

    thresholds: the thresholds; `threshold_counts` says how many each node has (more than one for
    MEMBER alone).
    yes, no: the child when the comparison holds or fails: the number of an inner node, or -1 - n
    for leaf n. nan_goes_true: whether NaN takes the yes branch.
    """

    modes: Array
    features: Array
    thresholds: Array
    threshold_counts: Array
    nan_goes_true: Array
    true_targets: Array
    false_targets: Array

    def check(self, roots: Array, leaves: int) -> None:
        """Raise Unsupported for an unknown mode, an empty set or a target out of range."""
        unknown = (self.modes < 0) | (self.modes >= len(BRANCH_MODES))
        if unknown.any():
            raise Unsupported(f"the mode {int(self.modes[unknown][0])} of a tree is unknown")
        if (self.threshold_counts == 0).any():
            raise Unsupported("a set of values is empty")
        # Leaves are -1 - number, branches their index: other numbers would read beyond the tables.
        for targets in (self.true_targets, self.false_targets, roots):
            wrong = (targets >= len(self.modes)) | (targets < -leaves)
            if wrong.any():
                position = int(targets[wrong][0])
                raise Unsupported(f"a tree leads to a node {position} that is not there")


def build_forest(questions: BranchNodes, roots: Array, leaves: int, dtype: type) -> ForestTables:
    """Build the node tables of an ensemble from its branch nodes and roots. Raises Unsupported for
    one that is broken.

    x <= a takes one node. x == a takes two, x <= a and not x < a; a set takes two for each of its
    values in turn.
    """
    questions.check(roots, leaves)
    # x < a becomes x <= the next lower float; > and >= swap the branches. So the kernel has one
    # comparison.
    mode = CANONICAL_MODE[questions.modes]
    is_negated = mode != questions.modes
    # Equality needs two nodes: x <= a, then x <= the next lower float, whose failure means x == a.
    is_set = (mode == EQ) | (mode == MEMBER)
    sizes = np.where(is_set, 2 * questions.threshold_counts, 1)
    first = np.cumsum(sizes) - sizes
    true_value, false_value = (
        _entry_nodes(questions.true_targets, first),
        _entry_nodes(questions.false_targets, first),
    )
    true_value, false_value = (
        np.where(is_negated, false_value, true_value),
        np.where(is_negated, true_value, false_value),
    )
    missing = np.where(is_negated, 1 - questions.nan_goes_true, questions.nan_goes_true)
    values: Array = questions.thresholds.astype(dtype)
    owner = np.repeat(np.arange(len(mode)), questions.threshold_counts)
    start = np.cumsum(questions.threshold_counts) - questions.threshold_counts
    set_index = np.arange(len(values)) - start[owner]

    total = int(sizes.sum())
    nodes = ForestTables(
        _entry_nodes(roots, first),
        np.repeat(questions.features, sizes),
        np.empty(total, dtype),
        np.empty((total, 2), np.int64),
        np.zeros(total, np.int64),
        0,
    )
    plain, position = ~is_set, first[~is_set]
    thresholds = values[start[plain]]
    nodes.thresholds[position] = np.where(
        mode[plain] == LEQ, thresholds, _next_lower_float(thresholds)
    )
    nodes.children[position, 0], nodes.children[position, 1] = true_value[plain], false_value[plain]
    nodes.nan_goes_true[position] = missing[plain]

    among = is_set[owner]
    q, upper, value = owner[among], (first[owner] + 2 * set_index)[among], values[among]
    after = np.where(
        set_index[among] + 1 < questions.threshold_counts[q], upper + 2, false_value[q]
    )
    nodes.thresholds[upper], nodes.thresholds[upper + 1] = value, _next_lower_float(value)
    nodes.children[upper, 0], nodes.children[upper, 1] = upper + 1, after
    nodes.children[upper + 1, 0], nodes.children[upper + 1, 1] = after, true_value[q]
    nodes.nan_goes_true[upper] = missing[q]
    return _prepend_leaves(nodes, leaves)


def _entry_nodes(targets: Array, first: Array) -> Array:
    """Map branch numbers to their first table node; leaves (negative) are unchanged."""
    if not first.size:
        return targets
    entries: Array = np.where(targets >= 0, first[np.maximum(targets, 0)], targets)
    return entries


def _next_lower_float(limits: Array) -> Array:
    """Return the next lower float of each threshold; NaN for -inf, which nothing is below."""
    lower = np.nextafter(limits, limits.dtype.type(-np.inf))
    thresholds: Array = np.where(limits == -np.inf, limits.dtype.type(np.nan), lower)
    return thresholds


def _prepend_leaves(nodes: ForestTables, leaves: int) -> ForestTables:
    """Prepend a row for each leaf; a leaf is its own child."""
    children = np.empty((leaves + len(nodes.children), 2), np.int32)
    # Self-loops let the kernel take `depth` steps in every row without testing for leaves.
    children[:leaves] = np.arange(leaves)[:, None]
    below = nodes.children
    children[leaves:] = np.where(below < 0, -1 - below, below + leaves)
    none = np.zeros(leaves, np.int32)
    return ForestTables(
        np.where(nodes.roots < 0, -1 - nodes.roots, nodes.roots + leaves).astype(np.int32),
        np.concatenate([none, nodes.features.astype(np.int32)]),
        np.concatenate([none.astype(nodes.thresholds.dtype), nodes.thresholds]),
        children,
        np.concatenate([none, nodes.nan_goes_true.astype(np.int32)]),
        _max_depth(nodes.roots, nodes.children),
    )


def _max_depth(roots: Array, children: Array) -> int:
    """Return the number of breadth-first levels; raise Unsupported for a cycle."""
    reached, depth = roots[roots >= 0], 0
    while reached.size:
        depth += 1
        if depth > len(children):
            raise Unsupported("a tree has a cycle")
        behind = children[reached].ravel()
        reached = _sorted_unique(behind[behind >= 0], len(children))
    return depth


def _sorted_unique(numbers: Array, limit: int) -> Array:
    """Return the distinct numbers below a limit in ascending order, in a tenth of the time that
    NumPy's `unique` takes for millions.
    """
    # Sorting few numbers is faster than a bitmap of all nodes.
    if len(numbers) < limit // 64:
        return np.unique(numbers)
    is_there = np.zeros(limit, np.bool_)
    is_there[numbers] = True
    return np.flatnonzero(is_there)
