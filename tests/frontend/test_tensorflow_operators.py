"""Segments, sparse tensors, boxes, losses and cells of TensorFlow, against TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_tensorflow_import import Array, agree, floats, tf

import ekiden
from ekiden.frontend.tensorflow.importer import import_tensorflow
from ekiden.runtime.errors import EkidenError

raw: Any = tf.raw_ops


def ints(*values: Any, dtype: str = "int32") -> Array:  # noqa: ANN401
    return np.array(values, dtype)


def check(function: Callable[..., Any], *args: Array, free: tuple[int, ...] = ()) -> None:
    """A function of these arrays, whose first extents are open for those of `free`."""
    specs = [
        tf.TensorSpec((None, *a.shape[1:]) if i in free else a.shape, a.dtype, name=f"x{i}")
        for i, a in enumerate(args)
    ]
    concrete = tf.function(function).get_concrete_function(*specs)
    agree(ekiden.compile(concrete), function, args)


SORTED, MIXED = ints(0, 0, 2, 2, 2), ints(3, 0, 2, 0, -1)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min"])
def test_segment_reductions_match_tensorflow(name: str) -> None:
    check(getattr(tf.math, f"segment_{name}"), floats(5, 3), SORTED, free=(0, 1))


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "max", "min", "sqrt_n"])
def test_unsorted_segment_reductions_match_tensorflow(name: str) -> None:
    function = getattr(tf.math, f"unsorted_segment_{name}")
    check(lambda x, ids: function(x, ids, 5), floats(5, 3), MIXED, free=(0, 1))


def test_segments_by_several_axes_and_of_integers() -> None:
    ids = ints([0, 1, 1], [3, 0, -1])
    check(lambda x: tf.math.unsorted_segment_sum(x, ids, 4), floats(2, 3, 2))
    check(lambda x: tf.math.unsorted_segment_max(x, ids, 4), ints([1, -5, 2], [4, 0, 9]))


@pytest.mark.parametrize("name", ["sum", "mean", "sqrt_n"])
@pytest.mark.parametrize("count", [None, 4])
def test_sparse_segment_reductions_match_tensorflow(name: str, count: int | None) -> None:
    function = getattr(tf.sparse, f"segment_{name}")
    rows = ints(3, 1, 0, 3, 2)
    check(lambda x, i, s: function(x, i, s, num_segments=count), floats(4, 3), rows, SORTED)


def test_out_of_range_segment_ids_are_refused() -> None:
    def function(x: Any, ids: Any) -> Any:  # noqa: ANN401
        return tf.math.unsorted_segment_sum(x, ids, 2)

    specs = tf.TensorSpec((3,), tf.float32), tf.TensorSpec((3,), tf.int32)
    made = ekiden.compile(tf.function(function).get_concrete_function(*specs))
    with pytest.raises(EkidenError, match="out of range"):
        made(floats(3), ints(0, 1, 2))


PLACES = ints([0, 1], [1, 3], [2, 0], dtype="int64")


def test_sparse_tensor_operators_match_tensorflow() -> None:
    shape = ints(3, 4, dtype="int64")

    def function(values: Any, dense: Any, matrix: Any, other: Any) -> Any:  # noqa: ANN401
        sparse = tf.sparse.SparseTensor(PLACES, values, shape)
        return (
            tf.sparse.to_dense(sparse, default_value=-1.0),
            tf.sparse.sparse_dense_matmul(sparse, matrix),
            tf.sparse.sparse_dense_matmul(sparse, other, adjoint_a=True, adjoint_b=True),
            raw.SparseTensorDenseAdd(a_indices=PLACES, a_values=values, a_shape=shape, b=dense),
        )

    check(function, floats(3), floats(3, 4), floats(4, 2), floats(5, 3))


def test_sparse_shapes_and_empty_rows() -> None:
    shape = ints(4, 4, dtype="int64")

    def reshaped(values: Any) -> Any:  # noqa: ANN401
        result = tf.sparse.reshape(tf.sparse.SparseTensor(PLACES, values, shape), [2, -1])
        return result.indices, result.values, result.dense_shape

    def filled(values: Any) -> Any:  # noqa: ANN401
        sparse = tf.sparse.SparseTensor(PLACES, values, shape)
        result, empty = tf.sparse.fill_empty_rows(sparse, 9.0)
        return result.indices, result.values, empty

    check(reshaped, floats(3))
    check(filled, floats(3))


def test_bincount_and_unravel_index_match_tensorflow() -> None:
    x = ints(1, 1, 3, 2, 9)
    none = np.zeros(0, np.float32)
    check(lambda x: raw.Bincount(arr=x, size=5, weights=none), x)
    check(lambda x, w: raw.Bincount(arr=x, size=5, weights=w), x, floats(5))
    check(lambda x: tf.unravel_index(x, [4, 5]), ints(3, 19, 7))
    check(tf.unique_with_counts, ints(4, 1, 4, 4, 2))


def test_losses_and_gradients_match_tensorflow() -> None:
    scores, chances = floats(4, 5), np.abs(floats(4, 5))
    check(lambda x, y: raw.SoftmaxCrossEntropyWithLogits(features=x, labels=y), scores, chances,
          free=(0, 1))  # fmt: skip
    check(lambda x, y: raw.SparseSoftmaxCrossEntropyWithLogits(features=x, labels=y), scores,
          ints(0, 4, 2, 2), free=(0, 1))  # fmt: skip


BOXES = np.array(
    [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 3, 1, 4], [0, 3.1, 1, 4.1]], np.float32
)
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5], np.float32)


def test_non_max_suppression_matches_tensorflow() -> None:
    check(lambda b, s: tf.image.non_max_suppression(b, s, 3, 0.5, 0.55), BOXES, SCORES)
    check(lambda b, s: raw.NonMaxSuppressionV2(boxes=b, scores=s, max_output_size=3,
                                               iou_threshold=0.5), BOXES, SCORES)  # fmt: skip
    for pads in (False, True):
        common = {"max_output_size": 4, "iou_threshold": 0.5, "score_threshold": 0.1,
                  "pad_to_max_output_size": pads}  # fmt: skip
        check(lambda b, s, c=common: raw.NonMaxSuppressionV4(boxes=b, scores=s, **c), BOXES, SCORES)
        check(lambda b, s, c=common: raw.NonMaxSuppressionV5(
            boxes=b, scores=s, soft_nms_sigma=0.0, **c), BOXES, SCORES)  # fmt: skip


@pytest.mark.parametrize("total", [3, 12])
def test_combined_non_max_suppression_matches_tensorflow(total: int) -> None:
    boxes = np.stack([BOXES, BOXES[::-1] * 0.5])[:, :, None]
    scores = np.random.default_rng(2).random((2, 5, 2), np.float32)

    def function(boxes: Any, scores: Any) -> Any:  # noqa: ANN401
        return tuple(tf.image.combined_non_max_suppression(boxes, scores, 3, total, 0.5, 0.2))

    check(function, boxes, scores)


@pytest.mark.parametrize("sees", [False, True])
def test_lstm_block_cell_matches_tensorflow(sees: bool) -> None:
    def function(x: Any, c: Any, h: Any, w: Any, p: Any, b: Any) -> Any:  # noqa: ANN401
        return tuple(raw.LSTMBlockCell(
            x=x, cs_prev=c, h_prev=h, w=w, wci=p[0], wcf=p[1], wco=p[2], b=b, cell_clip=0.3,
            use_peephole=sees,
        ))  # fmt: skip

    shapes = ((2, 3), (2, 4), (2, 4), (7, 16), (3, 4), (16,))
    check(function, *(floats(*s) for s in shapes))


def test_other_layers_match_tensorflow() -> None:
    check(lambda x, w: tf.nn.dilation2d(x, w, (1, 2, 1, 1), "SAME", "NHWC", (1, 1, 2, 1)),
          floats(1, 6, 7, 2), floats(3, 2, 2))  # fmt: skip
    check(lambda x, w: tf.nn.conv3d_transpose(x, w, (1, 5, 6, 7, 2), (1, 2, 2, 1, 1), "SAME"),
          floats(1, 3, 3, 7, 3), floats(2, 3, 3, 2, 3))  # fmt: skip
    check(lambda x, m, v, s, g: tf.compat.v1.nn.batch_norm_with_global_normalization(
        x, m, v, s, g, 1e-3, True), floats(2, 3, 3, 4), *(np.abs(floats(4)) for _ in range(4))
    )  # fmt: skip


def test_broken_graphs_raise_import_errors() -> None:
    """Bytes of a graph with a loop changed: a model all the same, or one error."""

    def function(x: Any) -> Any:  # noqa: ANN401
        grown = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2.0), [0, x])[1]
        return tf.math.unsorted_segment_sum(grown, [0, 1], 3), tf.pad(x, [[1, 1], [0, 2]])[::2]

    spec = tf.TensorSpec((2, 4), tf.float32)
    graph = tf.function(function).get_concrete_function(spec).graph.as_graph_def()
    data, rng = graph.SerializeToString(), np.random.default_rng(4)
    for _ in range(600):
        changed, result = bytearray(data), tf.compat.v1.GraphDef()
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            changed[at] = rng.choice([0, 1, 2, 3, 5, 127, 128, 255, rng.integers(256)])
        try:
            result.ParseFromString(bytes(changed))
        except Exception:
            continue
        with contextlib.suppress(EkidenError):
            import_tensorflow(result)
