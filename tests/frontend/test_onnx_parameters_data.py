"""Parameters of layers that are inputs of the graph, or made by it, of extents that the model does
not say: as in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Array, agree, normal
from onnx_models import named_node as node

import ekiden
from ekiden import relay
from ekiden.relay import op

pytestmark = pytest.mark.quick
CHANNELS = 4
X = normal(2, CHANNELS, 5)


def positive(*shape: int, seed: int = 0) -> Array:
    return np.abs(normal(*shape, seed=seed)) + np.float32(0.5)


# Normalisations.

VECTORS = {name: positive(CHANNELS, seed=at) for at, name in enumerate("sbmv", 1)}
NORMS = {
    "BatchNormalization": ("x s b m v", VECTORS, {}, 15),
    "InstanceNormalization": ("x s b", {k: VECTORS[k] for k in "sb"}, {}, 15),
    "GroupNormalization": ("x s b", {k: VECTORS[k] for k in "sb"}, {"num_groups": 2}, 21),
    "LayerNormalization": ("x s b", {k: positive(5, seed=9) for k in "sb"}, {}, 17),
}


@pytest.mark.parametrize("known", ["", "s", "b", "sb"])
@pytest.mark.parametrize("name", NORMS)
def test_vectors_of_normalisations(name: str, known: str) -> None:
    """Some of them constants, others of a length that has a name, as the data's channels have."""
    inputs, vectors, attributes, opset = NORMS[name]
    feed = {"x": X, **{k: v for k, v in vectors.items() if k not in known}}
    weights = {k: v for k, v in vectors.items() if k in known}
    agree([node(name, inputs, **attributes)], feed, weights, opset, True)


def test_one_channel_of_a_scale_whose_extent_has_a_name() -> None:
    feed = {"x": X[:, :1], "s": positive(1)}
    weights = {k: positive(1, seed=at) for at, k in enumerate("bmv")}
    agree([node("BatchNormalization", "x s b m v")], feed, weights, 15, True)


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalisation_of_any_number_of_channels(opset: int) -> None:
    """Before opset 21 each group has a scale."""
    count = 2 if opset == 18 else CHANNELS
    feed = {"x": X, "s": positive(count, seed=1), "b": positive(count, seed=2)}
    agree([node("GroupNormalization", "x s b", num_groups=2)], feed, None, opset, True)


def test_a_layer_normalisation_by_one_scale() -> None:
    for symbolic in (False, True):
        feed = {"x": X, "s": positive(1)}
        agree([node("LayerNormalization", "x s")], feed, None, 17, symbolic)


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm", "bias_add", "prelu"])
def test_a_vector_says_how_many_channels_there_are(name: str) -> None:
    """In Relay too: the result has the extent that is known of either."""
    some = ekiden.tir.SizeVar("n")
    x = relay.var("x", shape=(2, some, 5))
    vectors = [relay.const(v) for v in VECTORS.values()]
    made = {
        "batch_norm": lambda: op.nn.batch_norm(x, *vectors)[0],
        "instance_norm": lambda: op.nn.instance_norm(x, *vectors[:2]),
        "bias_add": lambda: op.nn.bias_add(x, vectors[0]),
        "prelu": lambda: op.nn.prelu(x, vectors[0]),
    }[name]()
    exe = ekiden.compile(relay.Function([x], made))
    assert exe(X).shape == (2, CHANNELS, 5)
    with pytest.raises(ekiden.EkidenError):
        exe(X[:, :3])
