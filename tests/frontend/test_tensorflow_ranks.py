"""Values of TensorFlow and TensorFlow Lite whose rank only the run knows: of branches, loops, and
Squeeze without axes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf: Any = pytest.importorskip("tensorflow", reason="the package 'tensorflow' is missing")
interpreter: Any = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="the package 'ai-edge-litert' is missing"
)

import ekiden  # noqa: E402
from ekiden.runtime.errors import ImportModelError, RunError, UnsupportedError  # noqa: E402

Array = np.ndarray[Any, Any]
Tensors: TypeAlias = Any
Runs: TypeAlias = Sequence[Sequence[Array]]
RNG = np.random.default_rng(11)
X = RNG.standard_normal(4).astype(np.float32)
FLOATS, INT, BOOL = ((4,), tf.float32), ((), tf.int32), ((), tf.bool)
BOTH: Runs = [(X, np.array(True)), (X, np.array(False))]


def concrete(function: Callable[..., Tensors], specs: Sequence[tuple[Any, ...]]) -> Tensors:
    names = [tf.TensorSpec(shape, dtype, name=f"x{i}") for i, (shape, dtype) in enumerate(specs)]
    return tf.function(function).get_concrete_function(*names)


def lite(function: Callable[..., Tensors], specs: Sequence[tuple[Any, ...]]) -> bytes:
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete(function, specs)])
    return bytes(converter.convert())


def litert(data: bytes, inputs: Sequence[Array]) -> list[Array]:
    runner = interpreter.Interpreter(model_content=data)
    for detail, array in zip(runner.get_input_details(), inputs, strict=True):
        runner.resize_tensor_input(detail["index"], array.shape)
    runner.allocate_tensors()
    for detail, array in zip(runner.get_input_details(), inputs, strict=True):
        runner.set_tensor(detail["index"], array)
    runner.invoke()
    return [runner.get_tensor(d["index"]) for d in runner.get_output_details()]


def arrays(results: Tensors) -> list[Array]:
    many = results if isinstance(results, (tuple, list)) else [results]
    return [np.asarray(t.numpy()) for t in many]


def check(
    function: Callable[..., Tensors], specs: Sequence[tuple[Any, ...]], runs: Runs,
    executors: Sequence[str] = ("vm",),
) -> None:  # fmt: skip
    """The function's graph gives what TensorFlow does, and its form for TensorFlow Lite what LiteRT
    does, of their ranks."""
    graph, data = concrete(function, specs), lite(function, specs)
    for executor in executors:
        pair = ekiden.compile(graph, executor=executor), ekiden.compile(data, executor=executor)
        for inputs in runs:
            expected = arrays(function(*map(tf.constant, inputs))), litert(data, inputs)
            for program, reference in zip(pair, expected, strict=True):
                agree(arrays(program(*inputs)), reference)


def agree(results: Sequence[Array], wanted: Sequence[Array]) -> None:
    assert [r.shape for r in results] == [w.shape for w in wanted]
    for result, reference in zip(results, wanted, strict=True):
        assert result.dtype == reference.dtype
        np.testing.assert_allclose(result, reference, rtol=1e-5, atol=1e-6)


def picked(x: Tensors, c: Tensors) -> Tensors:
    """Twice x where c holds, else x with one axis more."""
    return tf.cond(c, lambda: x * 2, lambda: x[None])


def test_code_after_branches_of_different_ranks_is_duplicated() -> None:
    def function(x: Tensors, c: Tensors) -> Tensors:
        q = picked(x, c)
        return tf.nn.relu(q), tf.reduce_sum(q), tf.shape(q), q

    check(function, [FLOATS, BOOL], BOTH, executors=("vm", "aot", "async"))


def test_ranks_merge_after_rank_normalizing_node() -> None:
    def function(x: Tensors, c: Tensors) -> Tensors:
        return tf.nn.relu(tf.reshape(tf.exp(picked(x, c)), [2, 2]))

    check(function, [FLOATS, BOOL], BOTH)
    exe = ekiden.compile(concrete(function, [FLOATS, BOOL]))
    assert exe.outputs[0].shape == (2, 2)


def test_switch_case_of_different_ranks() -> None:
    def function(x: Tensors, i: Tensors) -> Tensors:
        branches = [lambda: x * 3, lambda: x[None], lambda: tf.reduce_sum(x), lambda: x[:, None]]
        return tf.nn.relu(tf.switch_case(i, branches))

    exe = ekiden.compile(concrete(function, [FLOATS, INT]))
    for i in (0, 1, 2, 3, 7):
        inputs = X, np.array(i, np.int32)
        agree(arrays(exe(*inputs)), arrays(function(*map(tf.constant, inputs))))


def test_loop_carries_a_value_whose_rank_grows() -> None:
    def function(x: Tensors, n: Tensors) -> Tensors:
        _, y = tf.while_loop(
            lambda i, y: i < n, lambda i, y: (i + 1, y[None]), [tf.constant(0), x],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape(None)],
        )  # fmt: skip
        return tf.nn.relu(y)

    check(function, [FLOATS, INT], [(X, np.array(n, np.int32)) for n in (0, 1, 3)])
    with pytest.raises(RunError, match="more than 8 combinations of ranks"):
        ekiden.compile(concrete(function, [FLOATS, INT]))(X, np.array(8, np.int32))


def version_1(body: Callable[[Tensors, Tensors], Tensors]) -> tuple[Any, Callable[..., Any]]:
    """A graph of x and c with the control flow of TensorFlow 1, and what computes it there."""
    v1, graph = tf.compat.v1, tf.Graph()
    enabled = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    try:
        with graph.as_default():
            x = v1.placeholder(tf.float32, [4], name="x")
            c = v1.placeholder(tf.bool, [], name="c")
            tf.identity(body(x, c), name="y")
    finally:
        if enabled:
            v1.enable_control_flow_v2()
    session = v1.Session(graph=graph)
    return graph.as_graph_def(), lambda x, c: session.run("y:0", {"x:0": x, "c:0": c})


def test_control_flow_of_version_1_reads_a_value_of_several_ranks() -> None:
    def body(x: Tensors, c: Tensors) -> Tensors:
        v1 = tf.compat.v1
        q = tf.exp(v1.cond(c, lambda: x * 2, lambda: tf.expand_dims(x, 0)))
        total = tf.reduce_sum(x)
        other = v1.cond(total > 0, lambda: q - 1, lambda: tf.reduce_max(q) + x)
        _, last = v1.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y * other), [0, tf.ones([4])],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape(None)],
        )  # fmt: skip
        return last

    graph, reference = version_1(body)
    assert {"Enter", "Exit", "Switch", "Merge"} <= {n.op for n in graph.node}
    exe = ekiden.compile(graph)
    for x in (np.abs(X), -np.abs(X)):
        for c in (True, False):
            agree(arrays(exe(x, np.array(c))), [reference(x, np.array(c))])


def test_unsupported_rank_is_a_runtime_error() -> None:
    def function(x: Tensors, c: Tensors) -> Tensors:
        q = tf.cond(c, lambda: tf.reduce_sum(x), lambda: x[None])
        return tf.raw_ops.MatMul(a=q, b=tf.ones([4, 3]))

    exe = ekiden.compile(concrete(function, [FLOATS, BOOL]))
    agree(arrays(exe(X, np.array(False))), [np.full((1, 3), X.sum(), np.float32)])
    with pytest.raises(RunError, match="the true branch is taken, but .*MatMul"):
        exe(X, np.array(True))


def test_rank_of_no_branch_is_an_import_error() -> None:
    def function(x: Tensors, c: Tensors) -> Tensors:
        q = tf.cond(c, lambda: tf.reduce_sum(x), lambda: x * 2)
        return tf.raw_ops.Conv2D(
            input=q, filter=tf.ones([1, 1, 1, 1]), strides=[1, 1, 1, 1], padding="SAME"
        )

    with pytest.raises((ImportModelError, UnsupportedError), match="Conv2D 'Conv2D'"):
        ekiden.compile(concrete(function, [FLOATS, BOOL]))


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((None, 4), [(1, 4), (3, 4)]),
        ((None, None, 1, 5), [(1, 1, 1, 5), (3, 1, 1, 5), (1, 2, 1, 5), (3, 2, 1, 5)]),
    ],
)
def test_squeeze_without_axes_drops_runtime_unit_axes(
    shape: tuple[int | None, ...], sizes: Sequence[tuple[int, ...]]
) -> None:
    def function(x: Tensors) -> Tensors:
        q = tf.squeeze(x)
        return tf.nn.relu(q), tf.reduce_sum(q)

    runs = [(RNG.standard_normal(s).astype(np.float32),) for s in sizes]
    check(function, [(shape, tf.float32)], runs)


def test_unranked_inputs_compile_per_run_rank() -> None:
    def function(x: Tensors, y: Tensors) -> Tensors:
        total = tf.reduce_sum(x) + tf.reduce_mean(y, axis=-1, keepdims=True)
        return tf.nn.softmax(x * y), total, tf.shape(x)

    # LiteRT 2.3 cannot read results of such graphs that are scalars: both give TensorFlow's
    specs = [(None, tf.float32), ((2, None), tf.float32)]
    graph, data = concrete(function, specs), lite(function, specs)
    y = RNG.standard_normal((2, 3)).astype(np.float32)
    for model in (graph, data):
        exe = ekiden.compile(model)
        shown = [str(item) for item in (*exe.inputs, *exe.outputs)]
        assert shown[:3] == ["x0: float32[...]", "x1: float32[2, ?]", "Identity: float32[...]"]
        one = ekiden.compile(model, shape={"x0": ("n", 3)})
        assert str(one.inputs[0]) == "x0: float32[n, 3]"
        for shape in ((), (3,), (2, 1), (4, 2, 3)):
            x = RNG.standard_normal(shape).astype(np.float32)
            expected = arrays(function(tf.constant(x), tf.constant(y)))
            agree(arrays(exe(x, y)), expected)
