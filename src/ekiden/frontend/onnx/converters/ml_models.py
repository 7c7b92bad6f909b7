"""ai.onnx.ml classifiers and regressors: linear models, support vector machines, tree ensembles.
Where the standard leaves labels and scores open, they follow ONNX's reference implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ekiden.frontend.common.node import Result
from ekiden.frontend.onnx.converters.ml_features import (
    ML_DOMAIN,
    gather_or_default,
    read_float_matrix,
    read_matrix,
)
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.frontend.onnx.tree_ensembles import (
    BRANCH_MODES,
    MEMBER,
    BranchNodes,
    ForestTables,
    build_forest,
)
from ekiden.ir.op import Array
from ekiden.ir.prim import GT, IntImm, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, Tuple, const
from ekiden.runtime.errors import ImportModelError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import as_dim

POST_TRANSFORM_VALUES = {
    "post_transform": ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
}


def _const_like(node: OnnxNode, like: Expr, value: float) -> Expr:
    """Return a scalar constant of an expression's dtype."""
    return const(value, node.tensor_type_of(like).dtype)


def _concat_columns(first: Expr, second: Expr) -> Expr:
    """Emit the concatenation of two columns."""
    return op.concatenate(Tuple((first, second)), axis=1)


# What becomes of scores.


def _softmax_zero(node: OnnxNode, scores: Expr) -> Expr:
    """Emit SOFTMAX_ZERO, the softmax in which scores of 0 stay 0 (ai.onnx.ml)."""

    def const_like_scores(value: float) -> Expr:
        """Return a scalar constant of the scores' dtype."""
        return _const_like(node, scores, value)

    # The maximum is subtracted so that exp cannot overflow.
    greatest = op.max(scores, axis=1, keepdims=True)
    is_zero = op.less_equal(op.abs(scores), const_like_scores(1e-7))
    small = op.multiply(scores, op.exp(op.negative(greatest)))
    raised = op.where(is_zero, small, op.exp(op.subtract(scores, greatest)))
    total = op.sum(raised, axis=1, keepdims=True)
    nothing = op.equal(total, const_like_scores(0.0))
    return op.where(
        nothing,
        const_like_scores(0.5),
        op.divide(raised, op.where(nothing, const_like_scores(1.0), total)),
    )


def _probit(node: OnnxNode, scores: Expr) -> Expr:
    """Emit the inverse normal CDF by Winitzki's approximation of the inverse error function."""

    def const_like_scores(value: float) -> Expr:
        """Return a scalar constant of the scores' dtype."""
        return _const_like(node, scores, value)

    x = op.subtract(op.multiply(scores, const_like_scores(2.0)), const_like_scores(1.0))
    log = op.log(
        op.multiply(op.subtract(const_like_scores(1.0), x), op.add(const_like_scores(1.0), x))
    )
    # 0.147 is Winitzki's constant a.
    v = op.add(const_like_scores(2.0 / (np.pi * 0.147)), op.multiply(const_like_scores(0.5), log))
    inner = op.subtract(op.multiply(v, v), op.multiply(const_like_scores(1 / 0.147), log))
    size = op.sqrt(op.subtract(op.sqrt(inner), v))
    signed = op.where(op.less(x, const_like_scores(0.0)), op.negative(size), size)
    return op.multiply(const_like_scores(1.41421356), signed)


def apply_post_transform(node: OnnxNode, scores: Expr) -> Expr:
    """Emit the `apply_post_transform` of scores [n, k]."""
    match node.get_string("post_transform", "NONE"):
        case "SOFTMAX":
            return op.nn.softmax(scores, axis=1)
        case "LOGISTIC":
            return op.sigmoid(scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(node, scores)
        case "PROBIT":
            return _probit(node, scores)
    return scores


def class_labels(node: OnnxNode) -> Array | None:
    """Return the class labels, int64 or strings; None if the node declares none."""
    if node.has("classlabels_strings") and node.get_strings("classlabels_strings"):
        return np.array(node.get_strings("classlabels_strings"), object)
    for name in ("classlabels_ints", "classlabels_int64s"):
        if node.has(name) and node.get_ints(name):
            return np.array(node.get_ints(name), np.int64)
    return None


def _class_labels_by_index(node: OnnxNode, class_indices: Expr) -> Result:
    """Emit class labels by index."""
    labels = class_labels(node)
    if labels is None:
        return class_indices
    return gather_or_default(node, class_indices, labels, labels[0])


def _argmax_class(scores: Expr) -> Expr:
    """Emit the index of the highest score, int64."""
    return op.cast(op.argmax(scores, axis=1), "int64")


def _threshold_labels(node: OnnxNode, scores: Expr, limit: float) -> Result:
    """Emit the labels of one score column: the class above the limit, otherwise none."""
    above = op.greater_equal(op.squeeze(scores, axis=[1]), _const_like(node, scores, limit))
    labels = class_labels(node)
    first = np.array([1], np.int64) if labels is None else labels[:1]
    class_indices = op.where(above, const(np.int64(0)), const(np.int64(-1)))
    return gather_or_default(node, class_indices, first, "" if first.dtype == np.object_ else 0)


def _coefficient_matrix(values: Sequence[float], rows: int, width: int = -1) -> Array:
    """Return coefficients as a matrix of `rows` rows, or of rows of `width`; raise ImportModelError
    if they do not fit.
    """
    if (rows < 1 and width < 1) or len(values) % (rows if width < 1 else width):
        expected = f"rows of {width}" if width > 0 else f"{rows} rows"
        raise ImportModelError(f"{len(values)} coefficients cannot be {expected}")
    return np.array(values, np.float32).reshape(rows, width)


def _row_products(node: OnnxNode, data: Expr, weights: Array) -> Expr:
    """Emit the products of rows [n, k] with the rows of `weights` [m, k]: [n, m]."""
    node.scope.require_equal_dims(node.tensor_type_of(data).shape[1:], (as_dim(weights.shape[1]),))
    return op.nn.dense(data, const(weights), units=len(weights))


def _linear_scores(node: OnnxNode, columns: int) -> Expr:
    data = read_float_matrix(node)
    dtype = node.tensor_type_of(data).dtype
    weights = _coefficient_matrix(node.get_floats("coefficients"), columns).astype(dtype)
    scores = _row_products(node, data, weights)
    if not node.has("intercepts"):
        return scores
    return op.add(scores, const(np.array(node.get_floats("intercepts"), dtype)))


def _linear_classifier(node: OnnxNode) -> Result:
    labels = class_labels(node)
    count = 1 if labels is None else len(labels)
    columns = len(node.get_floats("intercepts")) if node.has("intercepts") else count
    scores = _linear_scores(node, columns)
    # A binary classifier stores the coefficients of the second class alone.
    if columns == 1 and count == 2:
        scores = _concat_columns(op.negative(scores), scores)
    scores = op.cast(apply_post_transform(node, scores), "float32")
    if columns == 1 and count == 1:
        limit = 0.0 if node.get_string("post_transform", "NONE") == "NONE" else 0.5
        return [_assert_expr(_threshold_labels(node, scores, limit)), scores]
    return [_assert_expr(_class_labels_by_index(node, _argmax_class(scores))), scores]


def _assert_expr(result: Result) -> Expr:
    """Return a label result as an expression, for the type checker."""
    return result  # type: ignore[return-value]


def _linear_regressor(node: OnnxNode) -> Expr:
    scores = _linear_scores(node, node.get_int("targets", 1))
    return op.cast(apply_post_transform(node, scores), "float32")


# Support vector machines.


def _svm_kernel(node: OnnxNode, data: Expr, vectors: Array) -> Expr:
    """Emit the SVM kernel of each row with each support vector, [n, vectors]."""
    params = node.get_floats("kernel_params") if node.has("kernel_params") else ()
    gamma, coef0, degree = (*params, 0.0, 0.0, 0.0)[:3]
    kind = node.get_string("kernel_type", "LINEAR")
    if kind == "RBF":
        difference = op.subtract(op.expand_dims(data, axis=1), const(vectors))
        return op.exp(
            op.multiply(
                const(np.float32(-gamma)), op.sum(op.multiply(difference, difference), axis=2)
            )
        )
    products = _row_products(node, data, vectors)
    if kind == "LINEAR":
        return products
    scaled = op.add(op.multiply(products, const(np.float32(gamma))), const(np.float32(coef0)))
    if kind == "SIGMOID":
        return op.tanh(scaled)
    return op.power(scaled, const(np.float32(int(degree))))


def _svm_offsets(node: OnnxNode, count: int) -> Expr:
    """Return the SVM's offsets as a constant."""
    return const(np.array(node.get_floats("rho"), np.float32)[:count])


def _svm_regressor(node: OnnxNode) -> Expr:
    count = node.get_int("n_supports", 0)
    data: Expr = op.cast(read_matrix(node), "float32")
    if count:
        data = _svm_kernel(
            node, data, _coefficient_matrix(node.get_floats("support_vectors"), count)
        )
    weights = _coefficient_matrix(node.get_floats("coefficients"), 1)
    scores = op.add(_row_products(node, data, weights), _svm_offsets(node, 1))
    if node.get_int("one_class", 0):
        above = op.greater(scores, const(np.float32(0)))
        return op.where(above, const(np.float32(1)), const(np.float32(-1)))
    return apply_post_transform(node, scores)


def _svm_classifier(node: OnnxNode) -> Result:
    data, labels = op.cast(read_matrix(node), "float32"), class_labels(node)
    classes = 1 if labels is None else len(labels)
    per_class = node.get_ints("vectors_per_class", ())
    positive = min(node.get_floats("coefficients")) >= 0
    if not sum(per_class):
        weights = _coefficient_matrix(node.get_floats("coefficients"), classes)
        scores = op.add(_row_products(node, data, weights), _svm_offsets(node, 1))
        return _svm_result(node, scores, scores, False, positive)
    pairs = _one_vs_one_scores(node, data, per_class)
    votes = _one_vs_one_votes(node, pairs, classes)
    if not node.has("prob_a") or not node.get_floats("prob_a"):
        return _svm_result(node, votes, pairs, False, positive)
    return _svm_result(node, votes, _platt_probabilities(node, pairs, classes), True, positive)


def _one_vs_one_scores(node: OnnxNode, data: Expr, per_class: Sequence[int]) -> Expr:
    """Emit the decision value of each pair of classes, above 0 for the first: [n, pairs]."""
    total = sum(per_class)
    vectors = _coefficient_matrix(node.get_floats("support_vectors"), total)
    weights = _coefficient_matrix(node.get_floats("coefficients"), -1, total)
    starts = np.concatenate([[0], np.cumsum(per_class)])
    pairs = list(combinations(range(len(per_class)), 2))
    table = np.zeros((len(pairs), total), np.float32)
    for column, (i, j) in enumerate(pairs):
        # libsvm's layout: row j - 1 of class i's coefficients belongs to the pair (i, j), row i of
        # class j's too.
        for class_index, weight_row in ((i, j - 1), (j, i)):
            vectors_of_class = slice(starts[class_index], starts[class_index + 1])
            table[column, vectors_of_class] = weights[weight_row, vectors_of_class]
    return op.add(
        _row_products(node, _svm_kernel(node, data, vectors), table), _svm_offsets(node, len(pairs))
    )


def _one_vs_one_votes(node: OnnxNode, pairs: Expr, classes: int) -> Expr:
    """Emit the number of pairs that each class wins (one-against-one voting)."""
    wins = np.zeros((2, classes, classes * (classes - 1) // 2), np.float32)
    for row, (i, j) in enumerate(combinations(range(classes), 2)):
        wins[0, i, row] = wins[1, j, row] = 1
    first = op.greater(pairs, const(np.float32(0)))
    outcomes = (op.cast(first, "float32"), op.cast(op.logical_not(first), "float32"))
    return op.add(*(_row_products(node, g, w) for g, w in zip(outcomes, wins, strict=True)))


def _platt_probabilities(node: OnnxNode, pairs: Expr, classes: int) -> Expr:
    """Emit class probabilities [n, classes] by pairwise coupling of Platt-scaled decisions (Wu, Lin
    and Weng 2004).
    """
    a, b = (const(np.array(node.get_floats(n), np.float32)) for n in ("prob_a", "prob_b"))
    chance = op.sigmoid(op.negative(op.add(op.multiply(pairs, a), b)))
    # libsvm's min_prob keeps the pairwise probabilities away from 0 and 1.
    chance = op.clip(chance, 1e-7, 1 - 1e-7)
    columns = list(combinations(range(classes), 2))
    pair_index = np.zeros((classes, classes), np.int64)
    is_complement = np.zeros((classes, classes), np.bool_)
    for column, (i, j) in enumerate(columns):
        pair_index[i, j] = pair_index[j, i] = column
        is_complement[j, i] = True
    square = op.take(chance, const(pair_index), axis=1)
    pair_probabilities = op.where(
        const(is_complement), op.subtract(const(np.float32(1)), square), square
    )
    return op.ml.couple(pair_probabilities)


def _svm_result(node: OnnxNode, votes: Expr, scores: Expr, proba: bool, positive: bool) -> Result:
    """Emit labels and scores; with two classes and one score, the first class gets its negative."""
    labels = class_labels(node)
    count = node.tensor_type_of(scores).shape[1]
    width = int(getattr(count, "value", 0))
    single = len(node.get_floats("rho")) == 1
    if single and (labels is None or len(labels) != 2):
        best = op.max(votes, axis=1)
        class_indices = op.cast(op.greater(best, const(np.float32(0))), "int64")
        label: Result = class_indices
    elif single and positive and not proba:
        sure = op.greater_equal(op.max(votes, axis=1), const(np.float32(0.5)))
        label = _class_labels_by_index(
            node, op.where(sure, const(np.int64(1)), _argmax_class(votes))
        )
    else:
        label = _class_labels_by_index(node, _argmax_class(votes))
    if width == 1 and single and labels is not None and len(labels) == 2:
        scores = apply_post_transform(node, _concat_columns(op.negative(scores), scores))
    elif width > 1:
        scores = apply_post_transform(node, scores)
    return [_assert_expr(label), scores]


# Trees.


def _float_list(node: OnnxNode, name: str, dtype: type) -> Array | None:
    """Return a list of floats, or its tensor form `*_complex_argument`; None where both are absent
    or empty.
    """
    values = node.get_tensor(f"{name}_as_tensor")
    if values is None and node.has(name):
        values = node.get_float_array(name)
    return None if values is None or not values.size else values.ravel().astype(dtype)


def _find_leaves(node: OnnxNode, data: Expr, tables: ForestTables) -> Expr:
    """Emit the leaf of each row in each tree, int64 [n, trees]."""
    max_column, columns = int(tables.features.max(initial=0)), node.tensor_type_of(data).shape[-1]
    if isinstance(columns, IntImm) and columns.value <= max_column:
        node.reject(f"a tree asks for the column {max_column} of {columns.value}")
    # The kernel does not check feature indices: a smaller input would be read out of bounds.
    node.scope.require_condition(fold_binary(GT, columns, max_column))
    node_tables = (
        tables.roots,
        tables.features,
        tables.thresholds,
        tables.children,
        tables.nan_goes_true,
    )
    roots, features, limits, children, missing = map(const, node_tables)
    return op.ml.tree_leaves(data, roots, features, limits, children, missing, tables.depth)


class _TreeNodeIndex:
    """An index of tree nodes by (tree, node number), vectorised."""

    def __init__(self, trees: Array, ids: Array) -> None:
        self._trees = np.unique(trees)
        self._low = int(ids.min(initial=0))
        self._span = int(ids.max(initial=0)) - self._low + 1
        keys = self._keys(trees, ids)
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def _keys(self, trees: Array, ids: Array) -> Array:
        """Return one integer key per (tree, node number); -1 for keys that no node can have."""
        tree = np.searchsorted(self._trees, trees)
        tree = np.minimum(tree, max(len(self._trees) - 1, 0))
        number = ids - self._low
        is_there = (number >= 0) & (number < self._span)
        is_there &= self._trees[tree] == trees
        return np.where(is_there, tree * self._span + number, -1)

    def find_positions(self, trees: Array, ids: Array) -> Array:
        """Return the positions of nodes by key, of duplicates the last; -1 for none."""
        keys = self._keys(trees, ids)
        position = np.searchsorted(self._sorted, keys, side="right") - 1
        is_there = (position >= 0) & (self._sorted[position] == keys) & (keys >= 0)
        return np.where(is_there, self._order[position], -1)


@dataclass(frozen=True, slots=True)
class _ParsedForest:
    """The parsed trees of TreeEnsembleClassifier or TreeEnsembleRegressor."""

    tables: ForestTables
    node_index: _TreeNodeIndex
    leaf_numbers: Array
    """The number of the leaf that a node is; -1 for one that is none."""

    @property
    def num_leaves(self) -> int:
        """Return the number of leaves."""
        return int((self.leaf_numbers >= 0).sum())


_BRANCH_MODE_OF_NAME = {"LEAF": -1, **{f"BRANCH_{m}": n for n, m in enumerate(BRANCH_MODES)}}


def _forest_before_v5(node: OnnxNode, dtype: type) -> _ParsedForest:
    """Parse the trees of an ensemble before ai.onnx.ml 5."""
    trees, ids = node.get_int_array("nodes_treeids"), node.get_int_array("nodes_nodeids")
    modes = node.get_string_indices("nodes_modes", _BRANCH_MODE_OF_NAME)
    features, values = (
        node.get_int_array("nodes_featureids"),
        _float_list(node, "nodes_values", dtype),
    )
    missing = node.get_int_array("nodes_missing_value_tracks_true")
    missing = missing if missing.size else np.zeros(len(ids), np.int64)
    sides = [node.get_int_array(f"nodes_{s}nodeids") for s in ("true", "false")]
    lists = (trees, ids, modes, features, values, missing, *sides)
    if (
        values is None
        or len({len(values_list) for values_list in lists if values_list is not None}) != 1
    ):
        node.reject("the lists 'nodes_...' must be of one length")
    is_leaf, names = modes < 0, _TreeNodeIndex(trees, ids)
    leaf = np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)
    number = np.where(is_leaf, -1 - leaf, np.cumsum(~is_leaf) - 1)

    def branch_targets(side: Array) -> Array:
        """Return the row of each branch's target on one side. Raises UnsupportedError for a target
        that no node has.
        """
        target_ids = side[~is_leaf]
        position = names.find_positions(trees[~is_leaf], target_ids)
        if (position < 0).any():
            lost = int(np.flatnonzero(position < 0)[0])
            node.reject(f"tree {trees[~is_leaf][lost]} has no node {target_ids[lost]}")
        return number[position]

    true_value, false_value = map(branch_targets, sides)
    inner = ~is_leaf
    count = np.ones(int(inner.sum()), np.int64)
    branches = BranchNodes(
        modes[inner], features[inner], values[inner], count, missing[inner], true_value, false_value
    )
    _, firsts = np.unique(trees, return_index=True)
    roots = number[names.find_positions(trees[firsts], ids[firsts])]
    return _ParsedForest(build_forest(branches, roots, int(is_leaf.sum()), dtype), names, leaf)


def _leaf_weights(
    node: OnnxNode, prefix: str, trees: _ParsedForest, columns: int, empty: float, dtype: type
) -> Array:
    """Return the weight that each leaf adds to each target, [leaves, columns]; `empty` where it has
    none.
    """
    owners, ids = node.get_int_array(f"{prefix}_treeids"), node.get_int_array(f"{prefix}_nodeids")
    weights = _float_list(node, f"{prefix}_weights", dtype)
    targets = node.get_int_array(f"{prefix}_ids")
    if weights is None or not len(owners) == len(ids) == len(targets) == len(weights):
        node.reject(f"the lists '{prefix}_...' must be of one length")
    wrong = (targets < 0) | (targets >= columns)
    if wrong.any():
        node.reject(f"'{prefix}_ids' must be below {columns}, got {targets[wrong][0]}")
    position = trees.node_index.find_positions(owners, ids)
    leaf = np.where(position >= 0, trees.leaf_numbers[position], -1)
    reached = leaf >= 0  # weights of other nodes never are
    cells = (leaf[reached], targets[reached])
    rows = max(trees.num_leaves, 1)
    node.check_declared_count(
        f"{rows} leaves times the number of columns of '{prefix}_ids'", rows * columns
    )
    table: Array = np.zeros((rows, columns), dtype)
    # A leaf may have several weights for one target: they add up, which plain indexing would lose.
    np.add.at(table, cells, weights[reached])
    if empty:
        has_weight = np.zeros(table.shape, np.bool_)
        has_weight[cells] = True
        table = np.where(has_weight, table, np.array(empty, dtype))
    return table


_NEUTRAL_OF_AGGREGATE = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}


def _aggregate_leaves(node: OnnxNode, leaves: Expr, table: Array, how: str, trees: int) -> Expr:
    """Emit the aggregate of the leaves of all trees, [n, columns]."""
    leaf_values = op.take(const(table), leaves, axis=0)
    if how in ("MIN", "MAX"):
        extremes = (op.min if how == "MIN" else op.max)(leaf_values, axis=1)
        # A target that no leaf has a value for stays infinite; it becomes the extreme finite
        # number.
        limits = np.finfo(table.dtype)
        end = limits.max if how == "MIN" else limits.min
        return op.where(op.isinf(extremes), const(np.array(end, table.dtype)), extremes)
    total = op.sum(leaf_values, axis=1)
    return op.divide(total, const(np.array(trees, table.dtype))) if how == "AVERAGE" else total


def _tree_dtype(node: OnnxNode) -> type:
    return np.float64 if node.dtype(0) == "float64" else np.float32


def _tree_data(node: OnnxNode) -> Expr:
    return op.cast(read_matrix(node), str(np.dtype(_tree_dtype(node))))


def _tree_regressor(node: OnnxNode) -> Expr:
    dtype, how = _tree_dtype(node), node.get_string("aggregate_function", "SUM")
    trees, columns = _forest_before_v5(node, dtype), node.get_int("n_targets", 1)
    table = _leaf_weights(node, "target", trees, columns, _NEUTRAL_OF_AGGREGATE[how], dtype)
    leaves = _find_leaves(node, _tree_data(node), trees.tables)
    scores = _aggregate_leaves(node, leaves, table, how, len(trees.tables.roots))
    base = _float_list(node, "base_values", dtype)
    if base is not None:
        scores = op.add(scores, const(base))
    return op.cast(apply_post_transform(node, scores), "float32")


def _tree_classifier(node: OnnxNode) -> Result:
    dtype, labels = _tree_dtype(node), class_labels(node)
    if labels is None:
        node.reject("attribute 'classlabels_...' is missing")
    trees, used = _forest_before_v5(node, dtype), np.unique(node.get_int_array("class_ids"))
    columns = max(len(labels), int(used.max(initial=0)) + 1)
    table = _leaf_weights(node, "class", trees, columns, 0.0, dtype)
    leaves = _find_leaves(node, _tree_data(node), trees.tables)
    scores = _aggregate_leaves(node, leaves, table, "SUM", len(trees.tables.roots))
    base = _float_list(node, "base_values", dtype)
    if base is not None:
        scores = op.add(scores, const(base))
    # Binary ensembles store the weights of one class alone.
    if len(used) == 1 and columns <= 2:
        scores = _expand_binary_scores(node, scores)
    scores = op.cast(apply_post_transform(node, scores), "float32")
    class_indices = _argmax_class(scores)
    if len(labels) == 1:
        return [_assert_expr(class_indices), scores]
    return [_assert_expr(_class_labels_by_index(node, class_indices)), scores]


def _expand_binary_scores(node: OnnxNode, scores: Expr) -> Expr:
    """Emit the scores of both classes from that of one."""
    score = op.strided_slice(scores, [0], [1], axes=[1])
    plain = node.get_string("post_transform", "NONE") in ("NONE", "PROBIT")
    complement = op.subtract(_const_like(node, score, 1.0), score) if plain else op.negative(score)
    return _concat_columns(complement, score)


def _tree_ensemble(node: OnnxNode) -> Expr:
    """Convert TreeEnsemble (ai.onnx.ml 5), which numbers branches and leaves separately."""
    splits = node.get_tensor("nodes_splits")
    weights = node.get_tensor("leaf_weights")
    modes = node.get_tensor("nodes_modes")
    if splits is None or weights is None or modes is None:
        node.reject("attributes 'nodes_splits', 'nodes_modes' and 'leaf_weights' expected")
    dtype = splits.dtype.type if splits.dtype == np.float64 else np.float32
    weights = weights.ravel()
    leaves, columns = len(weights), node.get_int("n_targets", 1)
    how = _enum_attribute(node, "aggregate_function", 1, AGGREGATE_FUNCTIONS)
    post = _enum_attribute(node, "post_transform", 0, POST_TRANSFORM_VALUES["post_transform"])
    targets = node.get_int_array("leaf_targetids")
    if len(targets) != leaves or (targets < 0).any() or (targets >= columns).any():
        node.reject(f"'leaf_targetids' must be {leaves} numbers below {columns}")
    node.check_declared_count(f"{leaves} leaves times 'n_targets'", leaves * columns)
    table: Array = np.full((leaves, columns), _NEUTRAL_OF_AGGREGATE[how], dtype)
    table[np.arange(leaves), targets] = weights
    branches = _branch_nodes(node, splits, modes)
    tables = build_forest(branches, node.get_int_array("tree_roots"), leaves, dtype)
    data = op.cast(read_matrix(node), str(np.dtype(dtype)))
    scores = _aggregate_leaves(
        node, _find_leaves(node, data, tables), table, how, len(tables.roots)
    )
    if post != "NONE":
        node.reject(f"attribute 'post_transform' {post} of TreeEnsemble")
    return op.cast(scores, node.dtype(0))


def _enum_attribute(node: OnnxNode, name: str, default: int, choices: Sequence[object]) -> str:
    """Return the enumerator that an integer attribute selects."""
    number = node.get_int(name, default)
    if not 0 <= number < len(choices):
        node.reject(f"attribute {name!r} must be in [0, {len(choices)}), got {number}")
    return str(choices[number])


AGGREGATE_FUNCTIONS = ("AVERAGE", "SUM", "MIN", "MAX")
"""How the numbers of leaves become one, by the number that TreeEnsemble gives it."""


def _branch_nodes(node: OnnxNode, splits: Array, modes: Array) -> BranchNodes:
    """Return the branch nodes of TreeEnsemble."""
    kinds, features = modes.ravel().astype(np.int64), node.get_int_array("nodes_featureids")
    missing = node.get_int_array("nodes_missing_value_tracks_true")
    missing = missing if missing.size else np.zeros(len(features), np.int64)
    sides = []
    for side in ("true", "false"):
        targets = node.get_int_array(f"nodes_{side}nodeids")
        is_leaf = node.get_int_array(f"nodes_{side}leafs") != 0
        if not len(targets) == len(is_leaf) == len(kinds) == len(features):
            node.reject("the lists 'nodes_...' must be of one length")
        sides.append(np.where(is_leaf, -1 - targets, targets))
    values, counts = _branch_thresholds(kinds, splits.ravel(), node.get_tensor("membership_values"))
    return BranchNodes(kinds, features, values, counts, missing, sides[0], sides[1])


def _branch_thresholds(modes: Array, splits: Array, members: Array | None) -> tuple[Array, Array]:
    """Return the thresholds of all branches and the number of each: its split, or a NaN-terminated
    run of `members`.
    """
    is_member, counts = modes == MEMBER, np.ones(len(modes), np.int64)
    if not is_member.any():
        return splits, counts
    flat_members = np.zeros(0, splits.dtype) if members is None else members.ravel()
    ends = np.flatnonzero(np.isnan(flat_members))
    lengths = np.diff(ends, prepend=-1) - 1
    runs = np.zeros(int(is_member.sum()), np.int64)  # none where there are too few
    runs[: len(lengths)] = lengths[: len(runs)]
    counts[is_member] = runs
    thresholds: Array = np.empty(int(counts.sum()), splits.dtype)
    of_member = np.repeat(is_member, counts)
    thresholds[~of_member] = splits[~is_member]
    thresholds[of_member] = flat_members[~np.isnan(flat_members)][: int(runs.sum())]
    return thresholds, counts


_TREE_ATTRIBUTES = (
    "base_values base_values_as_tensor nodes_falsenodeids nodes_featureids nodes_hitrates "
    "nodes_hitrates_as_tensor nodes_missing_value_tracks_true nodes_modes nodes_nodeids "
    "nodes_treeids nodes_truenodeids nodes_values nodes_values_as_tensor post_transform"
)
# fmt: off
ROWS = (
    OnnxRow("LinearClassifier", _linear_classifier, domain=ML_DOMAIN,
        supported_values=POST_TRANSFORM_VALUES,
        attributes="classlabels_ints classlabels_strings coefficients intercepts multi_class "
        "post_transform"),
    OnnxRow("LinearRegressor",        _linear_regressor, domain=ML_DOMAIN,
        supported_values=POST_TRANSFORM_VALUES,
        attributes="coefficients intercepts post_transform targets"),
    OnnxRow("SVMClassifier", _svm_classifier, domain=ML_DOMAIN,
        supported_values=POST_TRANSFORM_VALUES,
        attributes="classlabels_ints classlabels_strings coefficients kernel_params kernel_type "
        "post_transform prob_a prob_b rho support_vectors vectors_per_class"),
    OnnxRow("SVMRegressor", _svm_regressor, domain=ML_DOMAIN,
        supported_values=POST_TRANSFORM_VALUES,
        attributes="coefficients kernel_params kernel_type n_supports one_class post_transform rho "
        "support_vectors"),
    OnnxRow("TreeEnsembleClassifier", _tree_classifier, domain=ML_DOMAIN,
        supported_values=POST_TRANSFORM_VALUES,
        attributes=f"{_TREE_ATTRIBUTES} class_ids class_nodeids class_treeids class_weights "
        "class_weights_as_tensor classlabels_int64s classlabels_strings"),
    OnnxRow("TreeEnsembleRegressor",  _tree_regressor, domain=ML_DOMAIN,
        supported_values=POST_TRANSFORM_VALUES,
        attributes=f"{_TREE_ATTRIBUTES} aggregate_function n_targets target_ids target_nodeids "
        "target_treeids target_weights target_weights_as_tensor"),
    OnnxRow("TreeEnsemble",           _tree_ensemble, domain=ML_DOMAIN, since_version=5,
        attributes="aggregate_function leaf_targetids leaf_weights membership_values n_targets "
        "nodes_falseleafs nodes_falsenodeids nodes_featureids nodes_hitrates "
        "nodes_missing_value_tracks_true nodes_modes nodes_splits nodes_trueleafs "
        "nodes_truenodeids post_transform tree_roots"),
)
# fmt: on
