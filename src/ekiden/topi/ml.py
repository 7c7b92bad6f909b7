"""Classical machine learning models: decision-tree ensembles, and probabilities by pairwise
coupling.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import NE, Or, PrimExpr, Select, cast, const, fold_binary, logical_and
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import as_dim, ceil_div, known_int, require_min_extent, require_shape

TREES_PER_WALK = 8
"""Trees walked concurrently, which hides the latency of some four dependent loads per step."""
UNKNOWN_TREE_DEPTH = 2**31 - 1
"""Assumed depth of trees with an unknown number of nodes."""
TREE_ROWS_PER_BLOCK = 16
"""Rows per block that walk the same trees."""
MIN_STEPS_PER_THREAD = 512
"""Minimum tree steps per thread: a step takes some 20 ns, as does transferring a cache line between
cores.
"""


def tree_leaves(data: Tensor, roots: Tensor, nodes: Sequence[Tensor], depth: int) -> Tensor:
    """Return the leaf that each row of `data` [n, f] reaches in each tree: int32 [n, trees].

    Args:
        data: the samples.
        roots: int32 [trees], the root of each tree.
        nodes: features, limits, children and missing, each with a row per node. From node i the
            walk goes to children[i, 0] where data[row, features[i]] <= limits[i], or is NaN and
            missing[i] is set; else to children[i, 1]. A leaf is its own child.
        depth: bound of the path length.

    Returns:
        The leaves.

    Raises:
        ValueError: for shapes that do not match.
    """
    if data.ndim != 2:
        raise ValueError(f"tree_leaves: expected data [n, f], got {data.shape}")
    count = nodes[0].shape[0]
    for what, node_array in zip(("limits", "children", "missing"), nodes[1:], strict=True):
        expected_shape = (count, as_dim(2)) if what == "children" else (count,)
        require_shape("tree_leaves", what, node_array.shape, expected_shape)
    require_min_extent("tree_leaves", "data", data.shape, (None, 1))
    require_min_extent("tree_leaves", "features", nodes[0].shape, (1,))
    if not 0 <= depth <= (known_int(count) or UNKNOWN_TREE_DEPTH):
        raise ValueError(f"tree_leaves: expected a depth of at most as many nodes, got {depth}")
    rows, trees = data.shape[0], roots.shape[0]

    def emit_tree_walks(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit tree traversals row by row below TREE_ROWS_PER_BLOCK rows, else by blocks of rows:
        a thread's minimum work is then known.
        """
        ib = IRBuilder()
        walk = _TreeWalk(ib, depth, *map(ib.buffer_ptr, ins))
        leaves = ib.buffer_ptr(outs[0])
        with ib.if_scope(rows < TREE_ROWS_PER_BLOCK):
            walk.emit_forest(leaves, 1)
        with ib.else_scope():
            walk.emit_forest(leaves, TREE_ROWS_PER_BLOCK)
        return ib.get()

    inputs = [data, roots, *nodes]
    return te.extern_op([(rows, trees)], inputs, emit_tree_walks, ["int32"], name="tree_leaves")[0]


@dataclass(frozen=True, slots=True)
class _TreeWalk:
    """Builder of the walk through decision trees in the format of `tree_leaves`."""

    ib: IRBuilder
    depth: int
    data: BufferVar
    roots: BufferVar
    features: BufferVar
    thresholds: BufferVar
    children: BufferVar
    missing: BufferVar

    def emit_forest(self, leaves_out: BufferVar, size: int) -> None:
        """Emit the walk of all rows through all trees, in parallel over blocks of `size` rows and
        groups of trees; blocks of the same trees are adjacent.
        """
        ib, trees, rows = self.ib, self.roots.asobject().shape[0], self.data.asobject().shape[0]
        blocks, groups = ceil_div(rows, size), ceil_div(trees, TREES_PER_WALK)
        notes = {"grain": max(1, MIN_STEPS_PER_THREAD // max(1, self.depth * size))}
        with ib.for_range(0, groups * blocks, "at", kind="parallel", annotations=notes) as position:
            # At least 1, so that the division is defined without rows too.
            some = te.max(blocks, 1)
            group, first = (
                ib.let("group", position // some),
                ib.let("first", position % some * size),
            )
            with ib.for_range(first, te.min(rows, first + size), "i") as i:
                # behind the last tree it is walked again
                names = [
                    ib.let("t", te.min(group * TREES_PER_WALK + n, trees - 1))
                    for n in range(TREES_PER_WALK)
                ]
                for t, leaf in zip(names, self.emit_leaves(i, names), strict=True):
                    leaves_out[i, t] = cast(leaf, "int32")

    def emit_leaves(self, row: PrimExpr, trees: Sequence[PrimExpr]) -> list[PrimExpr]:
        """Emit the walk of one row through some trees, all of which advance together until none
        moves; return the leaves.
        """
        ib = self.ib
        states = ib.allocate("int64", len(trees), "states", "register")
        steps_left = ib.allocate("int64", 1, "left", "register")
        for n, t in enumerate(trees):
            states[n] = cast(self.roots[t], "int64")
        steps_left[0] = const(self.depth)
        with ib.while_loop(steps_left[0] > 0):
            # Every tree advances before any state changes: the loads are independent and overlap.
            after = [self._next_node(row, states[n]) for n in range(len(trees))]
            moves = [fold_binary(NE, to, states[n]) for n, to in enumerate(after)]
            # Leaves are their own children: no move means all are reached. The count ends cyclic
            # models.
            steps_left[0] = Select(
                reduce(partial(fold_binary, Or), moves), steps_left[0] - 1, const(0), "int64"
            )
            for n, to in enumerate(after):
                states[n] = to
        return [states[n] for n in range(len(trees))]

    def _next_node(self, row: PrimExpr, at: PrimExpr) -> PrimExpr:
        """Return the child of a node that a row's feature selects. Node and column numbers are
        clamped, whatever the model contains: negative ones are large as unsigned numbers.
        """
        ib = self.ib
        node = ib.let("node", _clamp_index(at, self.features.asobject().shape[0]))
        column = _clamp_index(self.features[node], self.data.asobject().shape[1])
        value = ib.let("value", self.data[row, column])
        lacks = fold_binary(NE, self.missing[node], const(0, "int32"))
        absent = logical_and(call_intrin("isnan", value), lacks)
        side = Select(
            fold_binary(Or, value <= self.thresholds[node], absent), const(0), const(1), "int64"
        )
        return ib.let("next", cast(self.children[node, side], "int64"))


def _clamp_index(index: PrimExpr, extent: PrimExpr) -> PrimExpr:
    """Clamp an index to the extent."""
    return cast(te.min(cast(index, "uint64"), cast(extent - 1, "uint64")), "int64")


def couple(pairs: Tensor, steps: int = 100, tolerance: float = 0.005) -> Tensor:
    """Return class probabilities [n, k] from pairwise probabilities [n, k, k] of the first against
    the second class: method 2 of Wu, Lin and Weng (2004), iterated as in libsvm. Raises
    ValueError for another shape.
    """
    if pairs.ndim != 3:
        raise ValueError(f"couple: expected pairs [n, k, k], got {pairs.shape}")
    rows, classes = pairs.shape[0], pairs.shape[2]
    require_shape("couple", "pairs", pairs.shape, (None, classes, None))

    def emit_coupling(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit algorithm 2 of Wu, Lin and Weng (2004): each probability in turn is set to what
        minimises p'Qp and all are scaled to sum 1, until p'Qp - (Qp)_t is small for each class.
        """
        ib = IRBuilder()
        r, p = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        dtype = pairs.dtype
        count = cast(classes, dtype)
        with ib.for_range(0, rows, "i", kind="parallel") as i:
            q = ib.allocate(dtype, (classes, classes), "q")
            qp = ib.allocate(dtype, (classes,), "qp")
            state = ib.allocate(dtype, 3, "state", "local")  # pQp, the greatest error, done
            with ib.for_range(0, classes, "t") as t:
                p[i, t] = const(1.0, dtype) / count
                q[t, t] = 0
                with ib.for_range(0, classes, "j") as j, ib.if_scope(fold_binary(NE, t, j)):
                    q[t, t] = q[t, t] + r[i, j, t] * r[i, j, t]
                    q[t, j] = const(0.0, dtype) - r[i, j, t] * r[i, t, j]
            state[2] = 0
            with (
                ib.for_range(0, te.max(steps, classes), "step"),
                ib.if_scope(state[2].equal(const(0.0, dtype))),
            ):
                state[0], state[1] = 0, 0
                with ib.for_range(0, classes, "t") as t:
                    qp[t] = 0
                    with ib.for_range(0, classes, "j") as j:
                        qp[t] = qp[t] + q[t, j] * p[i, j]
                    state[0] = state[0] + p[i, t] * qp[t]
                with ib.for_range(0, classes, "t") as t:
                    state[1] = te.max(state[1], te.abs(qp[t] - state[0]))
                with ib.if_scope(state[1] * count < const(tolerance, dtype)):
                    state[2] = 1
                with ib.else_scope(), ib.for_range(0, classes, "t") as t:
                    move = ib.let("move", (state[0] - qp[t]) / q[t, t])
                    scale = ib.let("scale", move + const(1.0, dtype))
                    p[i, t] = p[i, t] + move
                    # (p + m e_t)' Q (p + m e_t) = p'Qp + 2 m (Qp)_t + m^2 Q_tt, as Q is symmetric.
                    more = move * (move * q[t, t] + const(2.0, dtype) * qp[t])
                    state[0] = (state[0] + more) / (scale * scale)
                    with ib.for_range(0, classes, "j") as j:
                        p[i, j] = p[i, j] / scale
                        qp[j] = (qp[j] + move * q[t, j]) / scale
        return ib.get()

    return te.extern_op([(rows, classes)], [pairs], emit_coupling, [pairs.dtype], name="couple")[0]


__all__ = ["couple", "tree_leaves"]
