"""Models of TensorFlow and Keras against TensorFlow, and what is refused."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
tf: Any = pytest.importorskip("tensorflow", reason="the package 'tensorflow' is missing")
keras: Any = pytest.importorskip("keras", reason="the package 'keras' is missing")

import ekiden  # noqa: E402
from ekiden import relay  # noqa: E402
from ekiden.runtime.devices.memory import memory_bound, memory_stats  # noqa: E402
from ekiden.runtime.errors import (  # noqa: E402
    CompileError,
    ImportModelError,
    LinAlgError,
    MemoryLimitError,
    UnsupportedError,
)

Array = np.ndarray[Any, Any]
Model: TypeAlias = Any
RNG = np.random.default_rng(7)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def arrays(result: Model) -> list[Array]:
    """Results as a list; those of a dictionary by its keys."""
    if isinstance(result, dict):
        result = [result[k] for k in sorted(result)]
    many = result if isinstance(result, (tuple, list)) else [result]
    return [np.asarray(a.numpy() if hasattr(a, "numpy") else a) for a in many]


def agree(exe: Model, reference: Callable[..., Model], *runs: Sequence[Array]) -> None:
    for args in runs:
        actual, expected = arrays(exe(*map(np.asarray, args))), arrays(reference(*args))
        assert len(actual) == len(expected)
        for have, want in zip(actual, expected, strict=True):
            assert have.dtype == want.dtype and have.shape == want.shape
            np.testing.assert_allclose(have, want, rtol=2e-4, atol=1e-5)


def check(function: Callable[..., Model], specs: Sequence[tuple[Any, ...]], *runs: Sequence[Array]
) -> None:  # fmt: skip
    """A function of tensors of these (shape, dtype), for several inputs; compiled once."""
    names = [tf.TensorSpec(s, d, name=f"x{i}") for i, (s, d) in enumerate(specs)]
    concrete = tf.function(function).get_concrete_function(*names)
    agree(ekiden.compile(concrete), function, *runs)


UNARY = ("abs", "sign", "exp", "sin", "cos", "tan", "tanh", "sigmoid", "erf", "floor", "round",
         "square", "atan", "sinh", "cosh", "asinh", "expm1")  # fmt: skip
UNIT = ("asin", "acos", "atanh", "log1p")


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_match_tensorflow(name: str) -> None:
    x = np.concatenate([np.array([-2.5, -0.5, 0, 0.5, 1.5], np.float32), floats(7)])
    check(getattr(tf.math, name), [((None,), tf.float32)], [x])


@pytest.mark.parametrize("name", UNIT)
def test_unary_operators_on_small_numbers_match_tensorflow(name: str) -> None:
    x = RNG.uniform(-0.9, 0.9, 40).astype(np.float32)
    check(getattr(tf.math, name), [((None,), tf.float32)], [np.append(x, np.float32(1e-7))])


@pytest.mark.parametrize("name", ["relu", "relu6", "elu", "selu", "leaky_relu", "softplus",
                                  "softsign", "softmax", "log_softmax", "gelu"])  # fmt: skip
def test_activations_match_tensorflow(name: str) -> None:
    check(getattr(tf.nn, name), [((None, 5), tf.float32)], [floats(3, 5) * 4])


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum",
                                  "floordiv", "floormod", "pow", "squared_difference", "atan2",
                                  "divide_no_nan"])  # fmt: skip
def test_binary_operators_match_tensorflow(name: str) -> None:
    a, b = np.abs(floats(4, 3)) + 0.5, floats(3)
    if name == "divide_no_nan":
        b[1] = 0
    check(getattr(tf.math, name), [((None, 3), tf.float32), ((3,), tf.float32)], [a, b])


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod", "euclidean_norm"])
@pytest.mark.parametrize("keep", [False, True])
def test_reductions_match_tensorflow(name: str, keep: bool) -> None:
    function = getattr(tf.math, f"reduce_{name}")
    spec = [((None, 4, 5), tf.float32)]
    check(lambda x: function(x, axis=[0, -1], keepdims=keep), spec, [floats(3, 4, 5)])


def test_data_movement_with_symbolic_batch_matches_tensorflow() -> None:
    def function(x: Model) -> Model:
        batch = tf.shape(x)[0]
        flat = tf.reshape(x, [batch, -1])
        parts = tf.split(tf.transpose(x, [0, 2, 1]), 2, axis=1)
        padded = tf.pad(x, [[0, 0], [1, 2], [0, 0]], constant_values=3.0)
        tiled = tf.tile(x[:, ::2, -1:], [1, 1, 3])
        filled = tf.fill([batch, 2], 1.5)
        return flat, *parts, padded, tiled, filled, x[..., tf.newaxis, 1], tf.reverse(x, [1])

    check(function, [((None, 3, 4), tf.float32)], [floats(2, 3, 4)], [floats(5, 3, 4)])


def test_gather_and_scatter_match_tensorflow() -> None:
    def function(x: Model, i: Model) -> Model:
        one_hot = tf.one_hot(i, 4, on_value=2.0, off_value=-1.0)
        pairs = tf.stack([i, i], axis=1)
        added = tf.tensor_scatter_nd_add(x, tf.expand_dims(i, 1), tf.gather(x, i))
        return (
            tf.gather(x, i, axis=1),
            one_hot,
            tf.gather_nd(x, pairs),
            added,
            tf.argmax(x, 1),
        )

    i = np.array([2, 0, 1], np.int32)
    check(function, [((4, 4), tf.float32), ((None,), tf.int32)], [floats(4, 4), i])


def test_data_dependent_sizes_match_tensorflow() -> None:
    check(tf.where, [((None,), tf.bool)], [np.array([True, False, True])], [np.zeros(4, bool)])


def test_matmuls_match_tensorflow() -> None:
    def function(a: Model, b: Model) -> Model:
        return (tf.matmul(a, b), tf.matmul(a, b[0]), tf.einsum("bij,bjk->bik", a, b),
                tf.matmul(a, a, transpose_b=True))  # fmt: skip

    specs = [((None, 3, 4), tf.float32), ((None, 4, 5), tf.float32)]
    check(function, specs, [floats(2, 3, 4), floats(2, 4, 5)])


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_and_pooling_match_tensorflow(padding: str, stride: int) -> None:
    plain, deep, back = floats(3, 2, 4, 6), floats(3, 3, 4, 2), floats(3, 3, 5, 4)

    def function(x: Model) -> Model:
        extent = 9 * stride if padding == "SAME" else 8 * stride + 3
        return (
            tf.nn.conv2d(x, plain, stride, padding),
            tf.nn.depthwise_conv2d(x, deep, [1, stride, stride, 1], padding),
            tf.nn.conv2d_transpose(x, back, [2, extent, extent, 5], stride, padding),
            tf.nn.max_pool2d(x, 3, stride, padding),
            tf.nn.avg_pool2d(x, 3, stride, padding),
        )

    check(function, [((2, 9, 9, 4), tf.float32)], [floats(2, 9, 9, 4)])


def test_long_ranges_of_fractions() -> None:
    spec = [((), tf.float32)]
    check(lambda x: tf.range(0.25, 600.0, 0.5) * x, spec, [np.float32(1.0)], [np.float32(-2.0)])


def test_slices_whose_bounds_are_data() -> None:
    spec = [((4, 5), tf.float32), ((2,), tf.int32), ((2,), tf.int32)]
    bounds = [([1, 2], [2, 3]), ([0, 4], [4, -1]), ([3, 0], [0, 5])]
    data = floats(4, 5)
    check(tf.slice, spec, *([data, np.int32(b), np.int32(s)] for b, s in bounds))


def test_same_padding_of_strides_over_images_of_any_size() -> None:
    plain, deep = floats(3, 2, 4, 6), floats(3, 3, 4, 2)

    def function(x: Model) -> Model:
        return (
            tf.nn.conv2d(x, plain, 2, "SAME"),
            tf.nn.depthwise_conv2d(x, deep, [1, 2, 2, 1], "SAME"),
            tf.nn.max_pool2d(x, 3, 2, "SAME"),
            tf.nn.avg_pool2d(x, 3, 2, "SAME"),
        )

    runs = [floats(2, 9, 8, 4)], [floats(1, 6, 7, 4)]
    check(function, [((None, None, None, 4), tf.float32)], *runs)


@pytest.mark.parametrize("method", ["bilinear", "nearest"])
def test_resize_matches_tensorflow(method: str) -> None:
    spec = [((None, 5, 6, 3), tf.float32)]
    check(lambda x: tf.image.resize(x, [11, 9], method=method), spec, [floats(2, 5, 6, 3)])


# Control flow.


def test_if_matches_tensorflow() -> None:
    def function(x: Model) -> Model:
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x - 1)

    check(function, [((None, 3), tf.float32)], [np.ones((2, 3), np.float32)],
          [-np.ones((4, 3), np.float32)])  # fmt: skip


def test_switch_case() -> None:
    def function(i: Model, x: Model) -> Model:
        return tf.switch_case(i, [lambda: x + 1, lambda: x * 2, lambda: -x])

    specs = [((), tf.int32), ((3,), tf.float32)]
    check(function, specs, *([tf.constant(i), tf.constant(floats(3))] for i in (0, 1, 2, 7)))


def test_while_with_a_growing_list() -> None:
    def function(x: Model, n: Model) -> Model:
        rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        _, rows = tf.while_loop(
            lambda i, r: i < n, lambda i, r: (i + 1, r.write(i, x * tf.cast(i, tf.float32))),
            (0, rows),
        )  # fmt: skip
        return rows.stack()

    specs = [((None, 3), tf.float32), ((), tf.int32)]
    check(function, specs, [floats(4, 3), np.int32(5)], [floats(2, 3), np.int32(1)])


def test_list_that_is_overwritten() -> None:
    def function(x: Model) -> Model:
        rows = tf.TensorArray(tf.float32, size=4, element_shape=[3], clear_after_read=False)
        rows = rows.write(3, x)
        _, rows = tf.while_loop(
            lambda i, r: i > 0, lambda i, r: (i - 1, r.write(i - 1, r.read(i) * 2.0)), (3, rows)
        )
        return rows.stack()

    check(function, [((3,), tf.float32)], [floats(3)])


def version_1() -> tuple[Model, Callable[..., list[Array]]]:
    """A recurrent loop over a TensorArray and a choice inside a choice, of TensorFlow 1."""
    v1, graph = tf.compat.v1, tf.Graph()
    enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with graph.as_default():
            x = v1.placeholder(tf.float32, [None, 6, 5], name="x")
            n = v1.placeholder(tf.int32, [None], name="n")
            weight, bias = tf.constant(floats(9, 4)), tf.constant(floats(4))
            rows = v1.TensorArray(tf.float32, 6).unstack(tf.transpose(x, [1, 0, 2]))
            output = v1.TensorArray(tf.float32, 6, element_shape=[None, 4])

            def body(t: Model, state: Model, output: Model) -> Model:
                both = tf.concat([rows.read(t), state], 1)
                new = tf.tanh(tf.matmul(both, weight) + bias)
                new = tf.where(tf.expand_dims(t < n, 1), new, state)
                return t + 1, new, output.write(t, new)

            start = tf.constant(0), tf.zeros([tf.shape(x)[0], 4]), output
            _, last, output = v1.while_loop(lambda t, *rest: t < 6, body, start)
            tf.transpose(output.stack(), [1, 0, 2], name="every")
            inner = v1.cond(tf.reduce_max(x) > -5, lambda: tf.constant(1.0),
                            lambda: tf.reduce_min(x))  # fmt: skip
            chosen = v1.cond(tf.reduce_sum(x) > 0, lambda: last * 2, lambda: last - inner)
            tf.identity(chosen, name="chosen")
    finally:
        if enabled:
            v1.enable_control_flow_v2()
    session = v1.Session(graph=graph)

    def run(x: Array, n: Array) -> list[Array]:
        result: list[Array] = session.run(["every:0", "chosen:0"], {"x:0": x, "n:0": n})
        return result

    return graph.as_graph_def(), run


def test_control_flow_of_version_1(tmp_path: Path) -> None:
    graph, reference = version_1()
    assert {"Enter", "Exit", "Switch", "Merge", "TensorArrayV3"} <= {n.op for n in graph.node}
    lengths = np.array([6, 2], np.int32)
    runs = [(floats(2, 6, 5) + shift, lengths) for shift in (3.0, -3.0, -9.0)]
    agree(ekiden.compile(graph), reference, *runs)
    path = tmp_path / "frozen.pb"
    path.write_bytes(graph.SerializeToString())
    agree(ekiden.compile(str(path)), reference, runs[0])
    forms = {"use_dense": False, "use_nt_batch_matmul": True}
    module, params = relay.frontend.tensorflow.from_tensorflow(
        graph, outputs=["chosen"], convert_config=forms
    )
    assert not params
    result = ekiden.compile(module)(*runs[1])
    np.testing.assert_allclose(result.numpy(), reference(*runs[1])[1], rtol=1e-5, atol=1e-6)


def test_loop_at_the_end_gives_all_its_variables() -> None:
    v1, graph = tf.compat.v1, tf.Graph()
    enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with graph.as_default():
            first = [tf.constant(n) for n in (1, 2, 4)]
            v1.while_loop(lambda i, j, k: i < 5, lambda i, j, k: (i + 1, j * k, k + i), first)
            tf.no_op(name="end")  # gives nothing
    finally:
        if enabled:
            v1.enable_control_flow_v2()
    module, _ = relay.frontend.from_tensorflow(graph.as_graph_def())
    result = relay.create_executor("vm", module).evaluate()()
    assert [int(item.numpy()) for item in result] == [5, 2 * 4 * 5 * 7 * 10, 14]


# Keras and SavedModels.


def small() -> Model:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((12, 10, 3), name="image")
    x = keras.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(inputs)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.DepthwiseConv2D(3, padding="same", activation="relu6")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(5, activation="softmax", name="out")(x))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
def test_keras_as_object_file_and_saved_model(tmp_path: Path) -> None:
    model = small()
    runs = [(floats(n, 12, 10, 3),) for n in (1, 3)]
    reference = lambda x: model(x, training=False)  # noqa: E731
    agree(ekiden.compile(model), reference, *runs)
    model.save(tmp_path / "model.keras")
    agree(ekiden.compile(tmp_path / "model.keras"), reference, runs[0])
    model.export(str(tmp_path / "saved"), verbose=False)
    exe = ekiden.compile(str(tmp_path / "saved"), shape={"image": ("n", 12, 10, 3)})
    agree(exe, reference, *runs)
    module, _ = relay.frontend.from_keras(model, layout="NHWC")
    agree(ekiden.compile(module), reference, runs[1])


def test_keras_channels_come_first_by_default() -> None:
    """As in TVM; inputs without a name of their own are input_1, input_2, ..."""
    x, y = keras.Input((6, 5, 3)), keras.Input((4,), name="flag")
    z = keras.layers.Conv2D(2, 3)(x)
    model = keras.Model([x, y], [z, keras.layers.Dense(3)(y)])
    module, params = relay.frontend.from_keras(model, {"input_1": (2, 3, 6, 5), "flag": (2, 4)})
    assert not params and [p.name_hint for p in module["main"].params] == ["input_1", "flag"]
    assert module["main"].params[0].checked_type.concrete_shape == (2, 3, 6, 5)
    data, flag = floats(2, 3, 6, 5), floats(2, 4)
    image, dense = relay.create_executor("vm", module).evaluate()(data, flag)
    expected = model([data.transpose(0, 2, 3, 1), flag], training=False)
    np.testing.assert_allclose(image.numpy(), np.transpose(expected[0], (0, 3, 1, 2)), 1e-4, 1e-5)
    np.testing.assert_allclose(dense.numpy(), expected[1], 1e-4, 1e-5)
    with pytest.raises(CompileError, match="layout one of NHWC"):
        relay.frontend.from_keras(model, layout="CHWN")


def test_recurrent_layers_of_any_length() -> None:
    layers = keras.layers
    model = keras.Sequential([
        layers.Input((None, 5)), layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
        layers.GRU(6),
    ])  # fmt: skip
    reference = lambda x: model(x, training=False)  # noqa: E731
    agree(ekiden.compile(model), reference, (floats(2, 7, 5),), (floats(3, 2, 5),))


def test_dilated_convolutions_of_any_length() -> None:
    """Which TensorFlow pads to whole blocks, by the sizes of the data."""
    x = keras.Input((None, 3))
    y = keras.layers.Conv1D(3, 3, dilation_rate=4, padding="same")(x)
    z = keras.layers.Conv1D(5, 2, dilation_rate=3)(keras.layers.add([x, y]))
    model = keras.Model(x, z)
    made = ekiden.compile(model)
    for size in (5, 12):
        agree(made, model, (floats(2, size, 3),))


def test_attention_matches_tensorflow() -> None:
    inputs = keras.Input((None, 8))
    x = keras.layers.MultiHeadAttention(2, 4)(inputs, inputs)
    x = keras.layers.LayerNormalization()(x + inputs)
    model = keras.Model(inputs, x)
    reference = lambda x: model(x, training=False)  # noqa: E731
    agree(ekiden.compile(model), reference, (floats(2, 6, 8),), (floats(1, 3, 8),))


def test_bucketize_matches_tensorflow() -> None:
    layers = [
        keras.layers.Normalization(mean=0.5, variance=2.0),
        keras.layers.Discretization([-0.5, 0.5, 0.5]),
        keras.layers.CategoryEncoding(4, output_mode="multi_hot"),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    x = np.array([[0.5 - 2**-0.5, 0.5, 9, -9], [0.5 + 2**-0.5, 1, 0, -1]], np.float32)
    agree(ekiden.compile(model), model, (x,), (x[:1],))


@pytest.mark.parametrize("weights", [(), (0.5, 1, 2, 4)])
def test_bincount_matches_tensorflow(weights: tuple[float, ...]) -> None:
    def function(x: Model) -> Model:
        argument = tf.constant(weights, tf.float32)
        return tf.raw_ops.DenseBincount(input=x, size=3, weights=argument, binary_output=False)

    concrete = tf.function(function).get_concrete_function(tf.TensorSpec([4], tf.int32))
    agree(ekiden.compile(concrete), function, (np.array([2, 0, 2, 7], np.int32),))


def test_several_inputs_and_a_dictionary_of_results(tmp_path: Path) -> None:
    a, b = keras.Input((3,), name="first"), keras.Input((3,), name="second")
    model = keras.Model({"first": a, "second": b}, {"sum": a + b, "product": a * b})
    args = floats(2, 3), floats(2, 3)
    exe = ekiden.compile(model)
    agree(exe, lambda x, y: model({"first": x, "second": y}), args)


def test_saved_model_signatures_are_selectable(tmp_path: Path) -> None:
    class Two(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
        def up(self, x: Model) -> Model:
            return {"y": x + 1}

        @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
        def down(self, x: Model) -> Model:
            return {"y": x - 1}

    two, path = Two(), str(tmp_path / "two")
    tf.saved_model.save(two, path, {"up": two.up, "down": two.down})
    agree(ekiden.compile(path, signature="down"), two.down, (floats(2),))
    with pytest.raises(CompileError, match="it has the signatures 'down', 'up': choose one"):
        ekiden.compile(path)
    with pytest.raises(CompileError, match="no signature 'left'; it has 'down', 'up'"):
        ekiden.compile(path, signature="left")


# What is refused.


def test_unsupported_operators_are_listed_together() -> None:
    def function(x: Model) -> Model:
        return tf.math.igamma(x, x) + tf.math.zeta(x, x)

    concrete = tf.function(function).get_concrete_function(tf.TensorSpec([3], tf.float32))
    with pytest.raises(UnsupportedError) as caught:
        ekiden.compile(concrete)
    text = str(caught.value)
    assert "Igamma 'Igamma': the operator is not supported" in text
    assert "Zeta 'Zeta': the operator is not supported" in text


def test_broken_and_missing_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(ImportModelError, match="'broken.pb': it is no frozen graph, or cut short"):
        ekiden.compile(tmp_path / "broken.pb")
    with pytest.raises(ImportModelError, match="cannot read"):
        ekiden.compile(tmp_path / "nowhere.pb")


def test_unknown_inputs_and_outputs_are_refused() -> None:
    graph, _ = version_1()
    with pytest.raises(CompileError, match="shape: no input 'y'; it has 'x', 'n'"):
        ekiden.compile(graph, shape={"y": (1, 2)})
    with pytest.raises(CompileError, match="it has no node 'nothing'"):
        relay.frontend.from_tensorflow(graph, outputs=["nothing"])
    with pytest.raises(CompileError, match="layout 'NCHW'"):
        relay.frontend.from_tensorflow(graph, layout="NCHW")
    with pytest.raises(CompileError, match="expected use_dense or .*; got 'use_dens'"):
        relay.frontend.from_tensorflow(graph, convert_config={"use_dens": True})


def test_function_outputs_are_importable() -> None:
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (2, 6), name="x")
        tf.split(x, 3, axis=1, name="parts")
        tf.math.top_k(x, 2, name="top")
    frozen, data = graph.as_graph_def(), floats(2, 6)
    names = ["parts:output:2", "top:indices:0", "top:0"]
    module, _ = relay.frontend.from_tensorflow(frozen, outputs=names)
    part, places, values = (r.numpy() for r in ekiden.compile(module)(data))
    np.testing.assert_array_equal(part, data[:, 4:])
    np.testing.assert_array_equal(np.take_along_axis(data, places, axis=1), values)
    with pytest.raises(CompileError, match="Split 'parts' gives 'output'; got 'parts:value:0'"):
        relay.frontend.from_tensorflow(frozen, outputs=["parts:value:0"])


def test_identity_without_an_input_is_refused() -> None:
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="y", op="Identity").attr["T"].type = tf.float32.as_datatype_enum
    with pytest.raises((CompileError, ImportModelError), match="'y'"):
        relay.frontend.from_tensorflow(graph)


def test_constant_beyond_the_memory_limit_is_refused_before_it_is_expanded() -> None:
    """One element and a shape stand for any number of elements: a graph of 100 bytes took 8 GB."""
    graph = tf.compat.v1.GraphDef()
    node = graph.node.add(name="y", op="Const")
    node.attr["dtype"].type = tf.int32.as_datatype_enum
    tensor = node.attr["value"].tensor
    tensor.dtype = tf.int32.as_datatype_enum
    tensor.tensor_shape.dim.add(size=1 << 28)
    tensor.int_val.append(7)
    tracemalloc.start()
    try:
        with (
            memory_bound(memory_stats().held + (512 << 20)),
            pytest.raises(MemoryLimitError, match="the constant 'y' takes 1073741824 bytes"),
        ):
            relay.frontend.from_tensorflow(graph)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_constant_of_another_dtype_is_refused() -> None:
    graph = tf.compat.v1.GraphDef()
    node = graph.node.add(name="y", op="Const")
    node.attr["dtype"].type = tf.int32.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.float32(1)))
    with pytest.raises(
        CompileError, match="Const 'y': its value is float32, and its 'dtype' int32"
    ):
        relay.frontend.from_tensorflow(graph)


def test_unfrozen_graph_is_refused() -> None:
    v1, graph = tf.compat.v1, tf.Graph()
    with graph.as_default():
        x = v1.placeholder(tf.float32, [2], name="x")
        held = v1.get_variable("w", [2], use_resource=True)
        tf.identity(x * held, name="y")
    with pytest.raises(UnsupportedError, match="VarHandleOp 'w': the graph holds a variable"):
        ekiden.compile(graph.as_graph_def())


def test_matrix_decompositions_match_tensorflow() -> None:
    """One compile for two batches; of what has signs of its own, what has none."""

    def function(x: Model, b: Model) -> list[Model]:
        regular, symmetric = x + 4 * tf.eye(4), tf.matmul(x, x, transpose_b=True) + tf.eye(4)
        values, left, right = tf.linalg.svd(b)
        squares, vectors = tf.linalg.eigh(symmetric)
        lower = tf.linalg.cholesky(symmetric)
        return [
            tf.linalg.inv(regular), tf.linalg.inv(regular, adjoint=True),
            tf.linalg.solve(regular, b), tf.linalg.solve(regular, b, adjoint=True), lower,
            tf.linalg.triangular_solve(lower, b), tf.linalg.triangular_solve(
                lower, b, adjoint=True),
            *tf.linalg.qr(b), tf.linalg.qr(b, full_matrices=True)[0], values,
            tf.matmul(left * values[:, None], right, transpose_b=True), squares, tf.abs(vectors),
            tf.linalg.det(regular), *tf.linalg.slogdet(regular),
        ]  # fmt: skip

    sizes = [((None, 4, 4), tf.float32), ((None, 4, 3), tf.float32)]
    check(function, sizes, *([floats(n, 4, 4), floats(n, 4, 3)] for n in (1, 3)))


def test_matrix_diagonals_match_tensorflow() -> None:
    def function(x: Model, d: Model) -> list[Model]:
        return [
            tf.linalg.diag(d), tf.linalg.diag(d, k=1, padding_value=2.0), tf.linalg.trace(x),
            tf.linalg.diag(d, k=-2, num_rows=5, num_cols=4), tf.linalg.diag_part(x),
            tf.linalg.set_diag(x, d), tf.eye(3, 4, batch_shape=[2]),
        ]  # fmt: skip

    sizes = [((None, 3, 5), tf.float32), ((None, 3), tf.float32)]
    check(function, sizes, *([floats(n, 3, 5), floats(n, 3)] for n in (1, 4)))


def test_singular_matrix_is_named() -> None:
    concrete = tf.function(tf.linalg.inv).get_concrete_function(tf.TensorSpec((2, 2), name="x"))
    with pytest.raises(LinAlgError, match="pivot 2 is 0: the matrix is singular"):
        ekiden.compile(concrete)(np.ones((2, 2), np.float32))


EDGES = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 0.1, -2.5, 4, 9, -20, 30], np.float32)


def test_functions_match_tensorflow_at_special_values() -> None:
    """What is no number, ends, results that cancel out, numbers beside those that are whole."""

    def of_one(x: Model) -> Model:
        return (
            tf.math.erfc(x),
            tf.nn.softplus(x),
            tf.math.log1p(x),
            tf.math.expm1(x),
            tf.nn.relu6(x),
        )

    def of_two(x: Model, y: Model) -> Model:
        return tf.math.floordiv(x, y), tf.math.floormod(x, y), tf.math.atan2(x, y)

    x, y = np.repeat(EDGES, EDGES.size), np.tile(EDGES, EDGES.size)
    exe = ekiden.compile(tf.function(of_one).get_concrete_function(tf.TensorSpec([None])))
    for have, want in zip(arrays(exe(EDGES)), arrays(of_one(EDGES)), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-6)
    check(of_two, [((None,), tf.float32)] * 2, [x, y])


def test_reductions_match_tensorflow_at_special_values() -> None:
    def function(x: Model, i: Model) -> Model:
        places = tf.argmax(x, 1), tf.argmin(x, 1)
        return (*places, tf.reduce_mean(i), tf.reduce_mean(i, 0, keepdims=True))

    x = np.array([[1, np.nan, 3], [np.nan, -1, -np.inf], [np.nan] * 3], np.float32)
    i = np.array([[-3, 4], [-4, 1], [-4, 3]], np.int32)
    check(function, [((None, 3), tf.float32), ((None, 2), tf.int32)], [x, i])


def test_shifts_match_tensorflow_at_special_values() -> None:
    def function(x: Model, by: Model) -> Model:
        return tf.bitwise.left_shift(x, by), tf.bitwise.right_shift(x, by)

    x, by = np.array([1, 1, -8, 8, 5], np.int32), np.array([32, -1, 40, 31, 1], np.int32)
    check(function, [((None,), tf.int32)] * 2, [x, by])


@pytest.mark.parametrize("size", [(9, 13), (3, 4)])
def test_cubic_resize_matches_tensorflow_at_borders(size: tuple[int, int]) -> None:
    """Weights outside of the image are none; TensorFlow has 1,024 of them for a pixel."""
    x = RNG.random((1, 5, 7, 2)).astype(np.float32)
    names = [tf.TensorSpec(x.shape)]

    def function(x: Model) -> Model:
        return tf.image.resize(x, size, method="bicubic")

    exe = ekiden.compile(tf.function(function).get_concrete_function(*names))
    np.testing.assert_allclose(arrays(exe(x))[0], arrays(function(x))[0], atol=2e-3)


def test_linspace_matches_tensorflow() -> None:
    check(lambda x: tf.linspace(x[0], x[1], 7), [((2,), tf.float32)], [np.array([1e8, 1], "f4")])
    concrete = tf.function(lambda x: tf.linspace(x[0], x[1], 7)).get_concrete_function(
        tf.TensorSpec([2], tf.float64)
    )
    x = np.array([0.1, 0.7])
    np.testing.assert_allclose(arrays(ekiden.compile(concrete)(x))[0], np.linspace(*x, 7), 1e-14)


def test_batched_gather_matches_tensorflow() -> None:
    x, i = floats(2, 5, 6, 3), np.array([[1, 0], [2, 1]], np.int32)

    def function(x: Model, i: Model) -> Model:
        return [tf.gather(x, i, axis=axis, batch_dims=1) for axis in (1, 2, -1)]

    check(function, [((None, 5, 6, 3), tf.float32), ((None, 2), tf.int32)], [x, i])


@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_convolutions_with_paddings_of_their_own(stride: int) -> None:
    weight, extent = floats(3, 3, 5, 4), 7 * stride + 3

    def function(x: Model) -> Model:
        shape = [2, extent - 3, extent - 1, 5]
        pads = [[0, 0], [1, 2], [0, 1], [0, 0]]
        return tf.nn.conv2d_transpose(x, weight, shape, stride, pads)

    check(function, [((2, 8, 8, 4), tf.float32)], [floats(2, 8, 8, 4)])


def test_maxima_over_channels_are_refused() -> None:
    function = tf.function(lambda x: tf.nn.max_pool(x, [1, 1, 1, 2], [1, 1, 1, 2], "VALID"))
    concrete = function.get_concrete_function(tf.TensorSpec([1, 4, 4, 4]))
    with pytest.raises(UnsupportedError, match="must be 1 for the batch and the channels"):
        ekiden.compile(concrete)
