"""Classical models: walks through decision trees, probabilities from pairs of classes."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import NE, Or, Select, binary, cast, const, logical_and
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.shape import as_dim, expect_least, expect_shape


def tree_leaves(data: Tensor, roots: Tensor, nodes: Sequence[Tensor], depth: int) -> Tensor:
    """The node at which each tree ends for each row of `data` [n, f]: int32 [n, trees].

    `roots` are int32 [trees]; `nodes` are features, limits, children and missing, each with a row
    for each node. From node i one goes to children[i, 0] where data[row, features[i]] <= limits[i],
    or is not a number and missing[i] is set; else to children[i, 1]. A leaf is its own child; no
    path is longer than `depth`.

    Raises ValueError for data that are no matrix or have no columns, and nodes of other shapes.
    """
    if data.ndim != 2:
        raise ValueError(f"tree_leaves: expected data [n, f], got {data.shape}")
    count = nodes[0].shape[0]
    for what, each in zip(("limits", "children", "missing"), nodes[1:], strict=True):
        wanted = (count, as_dim(2)) if what == "children" else (count,)
        expect_shape("tree_leaves", what, each.shape, wanted)
    expect_least("tree_leaves", "data", data.shape, (None, 1))
    expect_least("tree_leaves", "features", nodes[0].shape, (1,))
    (rows, width), trees = data.shape, roots.shape[0]
    last = nodes[0].shape[0] - 1

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Rows in parallel, each down every tree by `depth` steps: at a leaf, its own child, they
        change nothing. Numbers of nodes and columns are held inside, whatever the model says.
        """
        ib = IRBuilder()
        x, root, feature, limit, child, lacks = map(ib.buffer_ptr, ins)
        found = ib.buffer_ptr(outs[0])
        with ib.for_range(0, rows, "i", kind="parallel") as i, ib.for_range(0, trees, "t") as t:
            state = ib.allocate("int64", 1, "state", "local")
            state[0] = root[t]
            with ib.for_range(0, depth, "step"):
                node = ib.let("node", te.max(te.min(state[0], last), 0))
                column = te.max(te.min(cast(feature[node], "int64"), width - 1), 0)
                value = ib.let("value", x[i, column])
                absent = logical_and(
                    call_intrin("isnan", value), binary(NE, lacks[node], const(0, "int32"))
                )
                side = Select(binary(Or, value <= limit[node], absent), const(0), const(1), "int64")
                state[0] = child[node, side]
            found[i, t] = state[0]
        return ib.get()

    inputs = [data, roots, *nodes]
    return te.extern_op([(rows, trees)], inputs, build, ["int32"], name="tree_leaves")[0]


def couple(pairs: Tensor, steps: int = 100, tolerance: float = 0.005) -> Tensor:
    """The probabilities [n, k] of classes whose pairs have the probabilities `pairs` [n, k, k] of
    the first against the second: the second method of Wu, Lin and Weng (2004), as libsvm iterates
    it. Raises ValueError for pairs of another shape."""
    if pairs.ndim != 3:
        raise ValueError(f"couple: expected pairs [n, k, k], got {pairs.shape}")
    rows, classes = pairs.shape[0], pairs.shape[2]
    expect_shape("couple", "pairs", pairs.shape, (None, classes, None))

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Wu, Lin and Weng (2004), algorithm 2: each probability in turn is set to what minimizes
        p'Qp and all are scaled to sum 1, until p'Qp - (Qp)_t is small for each class.
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
                with ib.for_range(0, classes, "j") as j, ib.if_scope(binary(NE, t, j)):
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
                    more = move * (move * q[t, t] + const(2.0, dtype) * qp[t])
                    state[0] = (state[0] + more) / (scale * scale)
                    with ib.for_range(0, classes, "j") as j:
                        p[i, j] = p[i, j] / scale
                        qp[j] = (qp[j] + move * q[t, j]) / scale
        return ib.get()

    return te.extern_op([(rows, classes)], [pairs], build, [pairs.dtype], name="couple")[0]


__all__ = ["couple", "tree_leaves"]
