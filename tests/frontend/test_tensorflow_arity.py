"""TensorFlow nodes that declare more inputs or outputs than they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tensorflow.core.protobuf.saved_model_pb2 import SavedModel  # noqa: E402

import ekiden  # noqa: E402
from ekiden.runtime.errors import ImportModelError  # noqa: E402

MANY = 2**31 - 1


def _graph(function: Any) -> Any:  # noqa: ANN401
    with tf.Graph().as_default() as graph:
        tf.identity(function(tf.compat.v1.placeholder(tf.float32, (2, 3), "x")), "y")
    return graph.as_graph_def()


def _declare_many(nodes: Any, op: str, name: str) -> None:  # noqa: ANN401
    """Let the node of an operator declare MANY tensors."""
    (node,) = [node for node in nodes if node.op == op]
    node.attr[name].i = MANY


@pytest.mark.parametrize(
    ("function", "op", "name", "message"),
    [
        (lambda x: tf.stack([x, x]), "Pack", "N", "inputs declared, 2 expected at most"),
        (lambda x: tf.unstack(x)[0], "Unpack", "num", "results declared, 65536 expected"),
        (lambda x: tf.split(x, 3, 1)[0], "Split", "num_split", "results declared, 65536 expected"),
    ],
)
def test_frozen_graph_that_declares_more_tensors_is_refused(
    function: Any,  # noqa: ANN401
    op: str,
    name: str,
    message: str,
) -> None:
    graph = _graph(function)
    _declare_many(graph.node, op, name)
    with pytest.raises(ImportModelError, match=f"{MANY} {message}"):
        ekiden.compile(graph)


def test_saved_model_that_declares_more_inputs_is_refused(tmp_path: Path) -> None:
    module = tf.Module()
    module.call = tf.function(
        lambda x: tf.stack([x, x]), input_signature=[tf.TensorSpec((2, 3), tf.float32)]
    )
    tf.saved_model.save(module, str(tmp_path))
    path = tmp_path / "saved_model.pb"
    saved = SavedModel.FromString(path.read_bytes())
    functions = saved.meta_graphs[0].graph_def.library.function
    _declare_many([n for f in functions for n in f.node_def if n.op == "Pack"][:1], "Pack", "N")
    path.write_bytes(saved.SerializeToString())
    with pytest.raises(ImportModelError, match=f"{MANY} inputs declared"):
        ekiden.compile(tmp_path)


def test_saved_model_with_sound_counts_runs(tmp_path: Path) -> None:
    module = tf.Module()
    module.call = tf.function(
        lambda x: tf.add_n(tf.split(x, 3, 1)), input_signature=[tf.TensorSpec((2, 3), tf.float32)]
    )
    tf.saved_model.save(module, str(tmp_path))
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(ekiden.compile(tmp_path)(x)), x.sum(1, keepdims=True))


def test_saved_model_whose_signatures_are_another_object_is_refused(tmp_path: Path) -> None:
    """The name may be bound to any object in the file, or to none."""
    module = tf.Module()
    module.call = tf.function(lambda x: x + 1, input_signature=[tf.TensorSpec((2,), tf.float32)])
    tf.saved_model.save(module, str(tmp_path))
    path = tmp_path / "saved_model.pb"
    saved = SavedModel.FromString(path.read_bytes())
    for node in saved.meta_graphs[0].object_graph_def.nodes:
        for child in node.children:
            if child.local_name == "signatures":
                child.local_name = "others"
    path.write_bytes(saved.SerializeToString())
    with pytest.raises(ImportModelError, match="a SavedModel with signatures expected, got none"):
        ekiden.compile(tmp_path)
