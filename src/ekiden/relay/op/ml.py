"""Operators of classical machine learning: tree ensembles, pairwise coupling."""

from __future__ import annotations

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op
from ekiden.relay.op._declare_topi import declare_topi_op


@node("relay.attrs.TreeLeavesAttrs")
class TreeLeavesAttrs(Attrs):
    """Attributes of tree_leaves: the maximum depth of a tree."""

    depth: int = 1


def _tree_leaves_reference(
    attrs: TreeLeavesAttrs, data: Array, roots: Array, *nodes: Array
) -> Array:
    features, limits, children, missing = nodes
    position = np.broadcast_to(roots, (len(data), len(roots)))
    # A leaf is its own child: rows that have arrived stay there.
    for _ in range(attrs.depth):
        value = np.take_along_axis(data, features[position], 1)
        # A missing value goes where its node says.
        yes = (value <= limits[position]) | (np.isnan(value) & (missing[position] != 0))
        position = np.where(yes, children[position, 0], children[position, 1])
    return position.astype(np.int32)


declare_topi_op(
    "ml.tree_leaves",
    ("data", "roots", "features", "limits", "children", "missing"),
    lambda attrs, data, roots, *nodes: topi.ml.tree_leaves(data, roots, nodes, attrs.depth),
    "int32 [n, trees]: the node at which each tree ends for each row",
    TreeLeavesAttrs,
    reference=_tree_leaves_reference,
)
declare_topi_op(
    "ml.couple",
    ("pairs",),
    lambda attrs, pairs: topi.ml.couple(pairs),
    "[n, k]: probabilities of classes, of those of their pairs [n, k, k]",
)


def tree_leaves(
    data: Expr,
    roots: Expr,
    features: Expr,
    limits: Expr,
    children: Expr,
    missing: Expr,
    depth: int,
) -> Call:
    """Return the leaf that each tree reaches for each row; see ekiden.topi.ml.tree_leaves."""
    attrs = TreeLeavesAttrs(depth)
    return call_op("ml.tree_leaves", data, roots, features, limits, children, missing, attrs=attrs)


def couple(pairs: Expr) -> Call:
    """Return class probabilities from pairwise ones by pairwise coupling; see
    ekiden.topi.ml.couple.
    """
    return call_op("ml.couple", pairs)


__all__ = ["couple", "tree_leaves"]
