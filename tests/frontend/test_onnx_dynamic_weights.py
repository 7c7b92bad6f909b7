"""Parameters of layers that are inputs of the graph, or made by it, of extents that the model does
not say: as in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Array, Feed, agree, ints, normal
from onnx_models import named_node as node

import ekiden
from ekiden import relay
from ekiden.relay import op
from long_runs import alike, share

pytestmark = pytest.mark.early
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


@share(4)
@pytest.mark.parametrize("known", ["", "s", "b", "sb"])
@pytest.mark.parametrize("name", NORMS)
def test_normalisation_parameters_may_be_inputs(name: str, known: str) -> None:
    """Some of them constants, others of a length that has a name, as the data's channels have."""
    inputs, vectors, attributes, opset = NORMS[name]
    feed = {"x": X, **{k: v for k, v in vectors.items() if k not in known}}
    weights = {k: v for k, v in vectors.items() if k in known}
    agree([node(name, inputs, **attributes)], feed, weights, opset, True)


def test_single_channel_scale_of_symbolic_extent() -> None:
    feed = {"x": X[:, :1], "s": positive(1)}
    weights = {k: positive(1, seed=at) for at, k in enumerate("bmv")}
    agree([node("BatchNormalization", "x s b m v")], feed, weights, 15, True)


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalisation_of_any_number_of_channels(opset: int) -> None:
    """Before opset 21 each group has a scale."""
    count = 2 if opset == 18 else CHANNELS
    feed = {"x": X, "s": positive(count, seed=1), "b": positive(count, seed=2)}
    agree([node("GroupNormalization", "x s b", num_groups=2)], feed, None, opset, True)


def test_layer_normalisation_by_one_scale() -> None:
    for symbolic in (False, True):
        feed = {"x": X, "s": positive(1)}
        agree([node("LayerNormalization", "x s")], feed, None, 17, symbolic)


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm", "bias_add", "prelu"])
def test_parameter_vector_determines_channel_count(name: str) -> None:
    """In Relay too: the result has the extent that is known of either."""
    some = ekiden.tir.SizeVar("n")
    x = relay.var("x", shape=(2, some, 5))
    vectors = [relay.const(v) for v in VECTORS.values()]
    result = {
        "batch_norm": lambda: op.nn.batch_norm(x, *vectors)[0],
        "instance_norm": lambda: op.nn.instance_norm(x, *vectors[:2]),
        "bias_add": lambda: op.nn.bias_add(x, vectors[0]),
        "prelu": lambda: op.nn.prelu(x, vectors[0]),
    }[name]()
    exe = ekiden.compile(relay.Function([x], result))
    assert exe(X).shape == (2, CHANNELS, 5)
    with pytest.raises(ekiden.EkidenError):
        exe(X[:, :3])


# Convolutions.

IMAGE = normal(1, 4, 7, 6)
CONVOLUTIONS: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {
    "plain": ({}, (3, 4, 3, 2)),
    "strides and padding": ({"strides": [2, 1], "pads": [1, 0, 1, 1]}, (3, 4, 3, 2)),
    "dilations": ({"dilations": [2, 1]}, (3, 4, 3, 2)),
    "same": ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (3, 4, 3, 2)),
    "groups": ({"group": 2}, (6, 2, 3, 2)),
    "stated": ({"kernel_shape": [3, 2]}, (3, 4, 3, 2)),
}
TRANSPOSED: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {
    "plain": ({}, (4, 3, 3, 2)),
    "more": (
        {"strides": [2, 2], "pads": [1, 0, 0, 1], "output_padding": [1, 1]}, (4, 3, 3, 2)
    ),
    "groups": ({"group": 2, "strides": [2, 1]}, (4, 3, 3, 2)),
    "upper": ({"strides": [2, 2], "auto_pad": "SAME_UPPER"}, (4, 3, 3, 2)),
    "lower": ({"strides": [2, 2], "auto_pad": "SAME_LOWER"}, (4, 3, 2, 3)),
    "a shape": ({"strides": [2, 2], "output_shape": [14, 13]}, (4, 3, 3, 2)),
    "a larger shape": ({"strides": [2, 2], "output_shape": [16, 11]}, (4, 3, 3, 2)),
}  # fmt: skip


@alike(3)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_weights_of_dynamic_extents(name: str) -> None:
    attributes, shape = CONVOLUTIONS[name]
    feed = {"x": IMAGE, "w": normal(*shape, seed=1), "b": normal(shape[0], seed=2)}
    agree([node("Conv", "x w b", **attributes)], feed, symbolic=True)


@alike(3)
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolution_weights_of_dynamic_extents(name: str) -> None:
    attributes, shape = TRANSPOSED[name]
    groups = 2 if name == "groups" else 1
    feed = {"x": IMAGE, "w": normal(*shape, seed=1), "b": normal(shape[1] * groups, seed=2)}
    convolution = [node("ConvTranspose", "x w b", **attributes)]
    agree(convolution, feed, symbolic=True)
    agree(convolution, {"x": IMAGE}, {k: feed[k] for k in "wb"}, symbolic=True)


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("shape", [(1, 2, 7), (1, 2, 4, 5, 6)])
def test_dynamic_weights_over_one_and_three_axes(shape: tuple[int, ...], op_type: str) -> None:
    kernel = (2, 3, 1)[: len(shape) - 2]
    feed = {"x": normal(*shape), "w": normal(2, 2, *kernel, seed=1)}
    agree([node(op_type, "x w")], feed, symbolic=True)


@alike(2)
@pytest.mark.parametrize("target", ["c", "llvm -mcpu=nehalem"])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_computed_weights_match_onnxruntime(op_type: str, target: str) -> None:
    """Of which the run says how many channels and how large a kernel there are."""
    nodes = [
        node("NonZero", "m", "n"),
        node("Squeeze", "n zero", "f"),
        node("Gather", "w f", "g", axis=2),
        node(op_type, "x g", "c", strides=[2, 1], pads=[1, 0, 0, 0]),
        node("Relu", "c"),
    ]
    feed = {"x": IMAGE, "w": normal(4, 4, 3, 2)}
    for mask in ((1, 0, 1), (0, 1, 0)):
        agree(nodes, {**feed, "m": ints(*mask)}, {"zero": ints(0)}, targets=(target,))


# Recurrent layers.


@alike(2)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("op_type", ["RNN", "GRU", "LSTM"])
def test_recurrent_weights_may_be_inputs(op_type: str, direction: str) -> None:
    """The node says how many hidden values there are, weights and states do not."""
    gates, count = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type], 1 + (direction == "bidirectional")
    hidden = 4
    feed: Feed = {
        "x": normal(5, 2, 3),
        "w": normal(count, gates * hidden, 3, seed=1),
        "r": normal(count, gates * hidden, hidden, seed=2),
        "b": normal(count, 2 * gates * hidden, seed=3),
        "h": normal(count, 2, hidden, seed=4),
    }
    layer = node(op_type, "x w r b - h", "y l", hidden_size=hidden, direction=direction)
    agree([layer], feed, symbolic=True)
    result = [
        node("NonZero", "m", "n"),
        node("Squeeze", "n zero", "f"),
        node("Gather", "all f", "w", axis=1),
        layer,
    ]
    rows = np.arange(gates * hidden + 2) < gates * hidden
    every = normal(count, len(rows), 3, seed=1)
    rest = {k: v for k, v in feed.items() if k != "w"}
    agree(result, {**rest, "m": rows.astype(np.int64), "all": every}, {"zero": ints(0)})
