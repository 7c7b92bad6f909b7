"""Every operator gradient against central differences in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ekiden.ir.op import OPS
from ekiden.ir.type import TensorType
from ekiden.relay import (
    Expr,
    Function,
    Interpreter,
    IRModule,
    Tuple,
    TupleGetItem,
    const,
    infer_type,
    op,
    parse,
    var,
)
from ekiden.relay.gradient import GRADIENTS_BY_OPERATOR
from ekiden.relay.gradient.elementwise import BINARY_GRADIENTS, UNARY_GRADIENTS, ZERO_GRADIENT_OPS
from ekiden.relay.transform import gradient
from ekiden.runtime.errors import DifferentiationError, TypeInferenceError

pytestmark = pytest.mark.quick

Build = Callable[..., Expr]
Shape = tuple[int, ...]
STEP = 1e-5
X = (2, 3)
IMAGE = (2, 4, 5, 6)

POSITIVE = {"log", "sqrt", "rsqrt", "log2", "log10", "power"}
WITHIN = {"asin", "acos", "atanh"}
ABOVE = {"acosh"}

# name: (builder, shapes of its arguments)
CASES: dict[str, tuple[Build, list[Shape]]] = {
    "leaky_relu": (lambda x: op.nn.leaky_relu(x, 0.1), [X]),
    "prelu": (lambda x, a: op.nn.prelu(x, a), [IMAGE, (4,)]),
    "clip": (lambda x: op.clip(x, -0.5, 0.7), [X]),
    "cast": (lambda x: op.cast(x, "float64"), [X]),
    "where": (lambda x, y: op.where(op.greater(x, const(0.0, "float64")), x, y), [X, (3,)]),
    "dropout": (lambda x: op.nn.dropout(x), [X]),
    "sum": (lambda x: op.sum(x, axis=(0, 2)), [(2, 3, 4)]),
    "sum keeps": (lambda x: op.sum(x, axis=1, keepdims=True), [(2, 3, 4)]),
    "sum excludes": (lambda x: op.sum(x, axis=-1, exclude=True), [(2, 3, 4)]),
    "mean": (lambda x: op.mean(x, axis=(1,)), [(2, 3, 4)]),
    "max": (lambda x: op.max(x, axis=(1,)), [(2, 3, 4)]),
    "min": (lambda x: op.min(x), [(2, 3)]),
    "prod": (lambda x: op.prod(x, axis=(1,)), [X]),
    "cumsum": (lambda x: op.cumsum(x, axis=1), [X]),
    "reshape": (lambda x: op.reshape(x, (3, -1)), [X]),
    "squeeze": (lambda x: op.squeeze(x), [(2, 1, 3)]),
    "expand_dims": (lambda x: op.expand_dims(x, 1, 2), [X]),
    "batch_flatten": (lambda x: op.nn.batch_flatten(x), [(2, 3, 4)]),
    "transpose": (lambda x: op.transpose(x, (2, 0, 1)), [(2, 3, 4)]),
    "transpose all": (lambda x: op.transpose(x), [(2, 3, 4)]),
    "broadcast_to": (lambda x: op.broadcast_to(x, (4, 2, 3)), [(2, 1)]),
    "concatenate": (lambda x, y: op.concatenate([x, y, x], 1), [(2, 3), (2, 2)]),
    "stack": (lambda x, y: op.stack([x, y], 1), [X, X]),
    "split": (lambda x: TupleGetItem(op.split(x, (1, 3), 1), 1), [(2, 4)]),
    "split all": (lambda x: Tuple([op.exp(TupleGetItem(op.split(x, 2, 0), i)) for i in (0, 1)]),
                  [(4, 3)]),
    "reverse": (lambda x: op.reverse(x, 1), [X]),
    "pad": (lambda x: op.nn.pad(x, ((1, 2), (0, 1)), const(0.0, "float64")), [X]),
    "pad value": (lambda x, v: op.nn.pad(x, ((1, 2), (0, -1)), v), [X, ()]),
    "full": (lambda v: op.full(v, (2, 3)), [()]),
    "one_hot": (lambda on, off: op.one_hot(
        const(np.array([[1, 0, 9], [2, 2, 2]])), on, off, 3, 1, "float64"), [(), ()]),
    "strided_slice": (lambda x: op.strided_slice(x, [1, 0], [6, 3], [2, 1]), [(7, 4)]),
    "strided_slice back": (lambda x: op.strided_slice(x, [5], [0], [-2]), [(7, 2)]),
    "variance": (lambda x: op.variance(x, axis=(0, 2)), [(2, 3, 4)]),
    "variance excludes": (lambda x: op.variance(x, 1, True, True, True), [(2, 3, 4)]),
    "std": (lambda x: op.std(x, 1, unbiased=True), [(2, 3)]),
    "cast_like": (lambda x: op.cast_like(x, const(1.0, "float64")), [X]),
    "reshape_like": (lambda x: op.reshape_like(x, const(np.zeros((3, 2)))), [X]),
    "reverse_reshape": (lambda x: op.reverse_reshape(x, (-1, 0)), [(2, 3, 4)]),
    "gather_nd": (lambda x: op.gather_nd(x, const(np.array([[0, 1, 1, 0], [0, 1, 1, 0]]))), [X]),
    "gather_nd rows": (lambda x: op.gather_nd(x, const(np.array([[1, 0, 1]]))), [X]),
    "take inner": (lambda x: op.take(x, const(np.array([[2, 0], [2, 1]])), 1), [(2, 3, 4)]),
    "take last": (lambda x: op.take(x, const(np.array([3, 0])), -1, mode="fast"), [(2, 3, 4)]),
    "take flat": (lambda x: op.take(x, const(np.array([5, 0, 5]))), [X]),
    "take clips": (lambda x: op.take(x, const(np.array([9, -4, 1])), 0), [(3, 2)]),
    "take wraps": (lambda x: op.take(x, const(np.array([4, -1])), 0, mode="wrap"), [(3, 2)]),
    "take from the end": (lambda x: op.take(x, const(np.array([-1, 0])), 0, mode="raise"),
                          [(3, 2)]),
    "cross_entropy": (lambda x, y: op.nn.cross_entropy(op.exp(x), y), [X, X]),
    "cross_entropy_with_logits": (lambda x, y: op.nn.cross_entropy_with_logits(x, y), [X, X]),
    "take": (lambda x: op.take(x, const(np.array([2, 0, 2])), 0), [(3, 2)]),
    "tile": (lambda x: op.tile(x, (2, 1, 3)), [X]),
    "repeat": (lambda x: op.repeat(x, 2, 1), [X]),
    "dense": (lambda x, w: op.nn.dense(x, w), [(2, 3), (4, 3)]),
    "dense of three": (lambda x, w: op.nn.dense(x, w), [(2, 3, 5), (4, 5)]),
    "batch_matmul one": (lambda a, b: op.nn.batch_matmul(a, b), [(3, 2, 4), (1, 5, 4)]),
    "bias_add": (lambda x, b: op.nn.bias_add(x, b), [IMAGE, (4,)]),
    "softmax": (lambda x: op.nn.softmax(x, 1), [(2, 3, 4)]),
    "log_softmax": (lambda x: op.nn.log_softmax(x), [X]),
    "layer_norm": (lambda x, g, b: op.nn.layer_norm(x, g, b), [(2, 3, 4), (4,), (4,)]),
    "layer_norm plain": (lambda x, g, b: op.nn.layer_norm(x, g, b, center=False, scale=False),
                         [(2, 4), (4,), (4,)]),
    "instance_norm": (lambda x, g, b: op.nn.instance_norm(x, g, b), [IMAGE, (4,), (4,)]),
    "group_norm": (lambda x, g, b: op.nn.group_norm(x, g, b, 2), [IMAGE, (4,), (4,)]),
    "batch_norm": (lambda x, g, b, m, v: op.nn.batch_norm(x, g, b, m, op.exp(v))[0],
                   [IMAGE, (4,), (4,), (4,), (4,)]),
    "batch_norm all": (lambda x, g, b, m, v: Tuple([op.nn.batch_norm(
        x, g, b, m, op.exp(v), axis=3, center=False)[i] for i in range(3)]),
        [IMAGE, (6,), (6,), (6,), (6,)]),
    "conv2d": (lambda x, w: op.nn.conv2d(x, w), [IMAGE, (3, 4, 2, 3)]),
    "conv2d padded": (lambda x, w: op.nn.conv2d(x, w, padding=(1, 0, 2, 1)), [IMAGE, (3, 4, 3, 3)]),
    "conv2d strided": (lambda x, w: op.nn.conv2d(x, w, strides=(2, 3), padding=1),
                       [(2, 4, 8, 8), (3, 4, 3, 3)]),
    "conv2d dilated": (lambda x, w: op.nn.conv2d(x, w, dilation=2, padding=2),
                       [IMAGE, (3, 4, 3, 3)]),
    "conv2d grouped": (lambda x, w: op.nn.conv2d(x, w, groups=2, padding=1), [IMAGE, (6, 2, 3, 3)]),
    "conv2d depthwise": (lambda x, w: op.nn.conv2d(x, w, groups=4, strides=2),
                         [IMAGE, (4, 1, 3, 3)]),
    "max_pool2d": (lambda x: op.nn.max_pool2d(x, (2, 2), (2, 2)), [IMAGE]),
    "max_pool2d overlapping": (lambda x: op.nn.max_pool2d(x, (3, 2), (1, 2), padding=(1, 1)),
                               [IMAGE]),
    "avg_pool2d": (lambda x: op.nn.avg_pool2d(x, (2, 2), (2, 2)), [IMAGE]),
    "avg_pool2d padded": (lambda x: op.nn.avg_pool2d(x, (3, 3), (1, 1), padding=(1, 1)), [IMAGE]),
    "avg_pool2d of windows in the padding": (
        lambda x: op.nn.avg_pool2d(x, (1, 2), (1, 1), padding=(1, 2)), [IMAGE]),
    "avg_pool2d counts": (lambda x: op.nn.avg_pool2d(
        x, (3, 3), (2, 2), padding=(1, 1), count_include_pad=True), [IMAGE]),
    "global_avg_pool2d": (lambda x: op.nn.global_avg_pool2d(x), [IMAGE]),
    "global_max_pool2d": (lambda x: op.nn.global_max_pool2d(x), [IMAGE]),
}  # fmt: skip

for _ta in (False, True):
    for _tb in (False, True):
        _a, _b = ((3, 2) if _ta else (2, 3)), ((4, 3) if _tb else (3, 4))
        CASES[f"matmul {_ta:d}{_tb:d}"] = (
            lambda a, b, ta=_ta, tb=_tb: op.nn.matmul(a, b, transpose_a=ta, transpose_b=tb),
            [_a, _b],
        )
        CASES[f"batch_matmul {_ta:d}{_tb:d}"] = (
            lambda a, b, ta=_ta, tb=_tb: op.nn.batch_matmul(a, b, transpose_a=ta, transpose_b=tb),
            [(5, *_a), (5, *_b)],
        )


def _values(name: str, shapes: Sequence[Shape]) -> list[np.ndarray]:
    """Numbers at a distance from kinks and ties, in the domain of the operator."""
    rng = np.random.default_rng(len(name))
    low, high = (0.5, 2) if name in POSITIVE else (1.5, 3) if name in ABOVE else (-0.9, 0.9)
    result = []
    for shape in shapes:
        size = int(np.prod(shape))
        values = np.linspace(low, high, size) + 0.013 + 0.0071 * len(result)
        result.append(rng.permutation(values).reshape(shape))
    return result


def _check(name: str, build: Build, shapes: Sequence[Shape]) -> None:
    params = [var(f"p{i}", shape=s, dtype="float64") for i, s in enumerate(shapes)]
    weighted = _weighted(build(*params), name)
    function = Function(params, weighted)
    both = IRModule({"main": gradient(function)})
    forward = Interpreter(IRModule({"main": function}))
    values = _values(name, shapes)
    result, grads = Interpreter(both).evaluate("main", *values)
    np.testing.assert_allclose(result, forward.evaluate("main", *values), rtol=1e-9, atol=1e-12)
    for at, (value, grad) in enumerate(zip(values, grads, strict=True)):
        assert grad.shape == value.shape and grad.dtype == value.dtype
        rng = np.random.default_rng(0)
        for place in rng.choice(value.size, min(value.size, 6), replace=False):
            moved = []
            for step in (STEP, -STEP):
                other = value.copy()
                other.reshape(-1)[place] += step
                moved.append(forward.evaluate("main", *values[:at], other, *values[at + 1 :]))
            expected = (moved[0] - moved[1]) / (2 * STEP)
            assert abs(grad.reshape(-1)[place] - expected) <= 1e-5 * (1 + abs(expected)), (
                f"argument {at}, element {place}"
            )


def _weighted(result: Expr, name: str) -> Expr:
    """A number that depends on every element of the result differently."""
    parts = result.fields if isinstance(result, Tuple) else [result]
    total: Expr = const(0.0, "float64")
    for part in parts:
        flat = op.reshape(part, (-1,))
        wave = op.sin(op.multiply(op.add(flat, const(1.0, "float64")), flat))
        total = op.add(total, op.sum(wave))
    return total


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_the_limit_of_differences(name: str) -> None:
    _check(name, *CASES[name])


# What a formula does not say: (parameters, body, arguments, gradients).
EDGES = [
    ("%a: Tensor[(3,), float32], %b: Tensor[(3,), float32]", "power(%a, %b)",
     [[0, 0, 2], [2, 0, 0]], [[0, 0, 0], [0, 0, np.log(np.float32(2))]]),
    ("%a: Tensor[(2,), float32]", "power(%a, 0f)", [[0, 2]], [[0, 0]]),
    ("%a: Tensor[(6,), float32]", "strided_slice(%a, begin=[3], end=[3], strides=[2])",
     [[1] * 6], [[0] * 6]),
    ("%a: Tensor[(2, 2), float32]", "cumsum(%a)", [[[1, 2], [3, 4]]], [[[4, 3], [2, 1]]]),
    ("%a: Tensor[(1, 2), float16], %b: Tensor[(1, 2), float16]",
     'nn.dense(%a, %b, out_dtype="float32")', [[[1, 2]], [[3, 4]]], [[[3, 4]], [[1, 2]]]),
    ("%a: Tensor[(1, 1, 1, 2), float16], %b: Tensor[(1, 1, 1, 1), float16]",
     'nn.conv2d(%a, %b, out_dtype="float32")', [[[[[1, 2]]]], [[[[3]]]]],
     [[[[[3, 3]]]], [[[[3]]]]]),
    ("%a: Tensor[(4, 3), float32]", "prod(%a, axis=[1])",
     [[[0, 2, 3], [0, 0, 3], [4, -1, 0], [2, 3, 4]]],
     [[[6, 0, 0], [0, 0, 0], [0, 0, -4], [12, 8, 6]]]),
    ("%a: Tensor[(3,), float32]", "prod(%a)", [[5, 0, 2]], [[0, 10, 0]]),
    ("%a: Tensor[(2,), float32], %b: Tensor[(2,), float32]",
     'multiply(take(%a, zeros(shape=[2], dtype="int32"), axis=0), %b)',
     [[1, 2], [np.inf, 1]], [[np.inf, 0], [1, 1]]),
    ("%a: Tensor[(131072,), float16]", "mean(%a)", [[1] * 131072], [[2**-17] * 131072]),
    ("%a: Tensor[(131072,), float16]", "max(%a)", [[1] * 131072], [[2**-17] * 131072]),
    ("%a: Tensor[(131072,), float16]", "min(%a)", [[1] * 131072], [[2**-17] * 131072]),
    ("%a: Tensor[(1, 1, 512, 256), float16]", "nn.global_max_pool2d(%a)",
     [np.ones((1, 1, 512, 256))], [np.full((1, 1, 512, 256), 2**-17)]),
    pytest.param(
        "%a: Tensor[(1, 1, 512, 256), float16]", "nn.avg_pool2d(%a, pool_size=[512, 256])",
        [np.ones((1, 1, 512, 256))], [np.full((1, 1, 512, 256), 2**-17)], marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize("params, body, args, wanted", EDGES)
def test_gradient_at_singular_points(
    params: str, body: str, args: list[list[float]], wanted: list[list[float]]
) -> None:
    module = parse(f"def @main({params}) {{ {body} }}")
    result = gradient(module.get_global_var("main"), module)
    inputs = [np.array(a, p.checked_type.dtype) for a, p in zip(args, result.params, strict=True)]
    _, actual = Interpreter(IRModule({"main": result})).evaluate("main", *inputs)
    for one, other, arg in zip(actual, wanted, inputs, strict=True):
        assert one.dtype == arg.dtype
        np.testing.assert_array_equal(one, np.array(other, arg.dtype))


def test_convolution_with_a_layout_of_its_result_has_no_gradient() -> None:
    module = parse("""def @main(%x: Tensor[(1, 1, 2, 3), float32]) {
      nn.conv2d(%x, ones(shape=[2, 1, 1, 1], dtype="float32"), out_layout="NHWC") }""")
    with pytest.raises(DifferentiationError, match="layouts NCHW, OIHW, NHWC: only those of NCHW"):
        gradient(module.get_global_var("main"), module)


def test_cast_gradient_has_input_dtype() -> None:
    x = var("x", shape=(2,), dtype="float32")
    result = gradient(Function([x], op.sum(op.cast(x, "float64"))))
    _, (grad,) = Interpreter(IRModule({"main": result})).evaluate("main", np.ones(2, np.float32))
    assert grad.dtype == np.float32 and grad.tolist() == [1, 1]


def test_fill_gradient_has_value_dtype() -> None:
    value = var("value", shape=(), dtype="float32")
    result = gradient(Function([value], op.sum(op.full(value, (2, 3), "float64"))))
    _, (grad,) = Interpreter(IRModule({"main": result})).evaluate("main", np.float32(2))
    assert grad.dtype == np.float32 and grad == 6


@pytest.mark.parametrize("name", sorted(set(UNARY_GRADIENTS) & set(OPS)))
def test_unary_gradient_matches_differences(name: str) -> None:
    function = op.nn.relu if name == "nn.relu" else getattr(op, name)
    _check(name, function, [X])


FLAT_CASES: dict[str, tuple[Build, list[Shape]]] = {
    name: (getattr(op, name), [X])
    for name in ("ceil", "floor", "round", "sign", "trunc", "zeros_like", "ones_like")
} | {"floor_divide": (op.floor_divide, [X, (3,)])}


@pytest.mark.parametrize("name", FLAT_CASES)
def test_gradient_of_constant_functions_is_zero(name: str) -> None:
    _check(name, *FLAT_CASES[name])


def test_remaining_step_operators_have_no_gradient() -> None:
    """Their results are not floating, or they have no argument that is."""
    x = var("x", shape=X, dtype="float64")
    for name in set(ZERO_GRADIENT_OPS) & set(OPS) - set(FLAT_CASES) - {"zeros", "ones", "arange"}:
        if name.startswith("dyn."):
            continue
        arguments = (x,) if len(OPS[name].arguments) == 1 else (x, x)
        try:
            result = infer_type(IRModule.from_expr(getattr(op, name)(*arguments)))
        except TypeInferenceError as error:  # takes no floating numbers
            assert "float64" in str(error)
            continue
        main = result["main"]
        assert isinstance(main, Function) and isinstance(main.ret_type, TensorType)
        assert "float" not in main.ret_type.dtype, name


@pytest.mark.parametrize("shapes", [[X, X], [X, (3,)], [(2, 1), (4, 1, 3)], [(), X]])
@pytest.mark.parametrize("name", sorted(BINARY_GRADIENTS))
def test_gradient_of_two_arguments_that_broadcast(name: str, shapes: list[Shape]) -> None:
    def build(a: Expr, b: Expr) -> Expr:
        if name in ("mod", "floor_mod", "divide"):
            b = op.add(op.multiply(b, b), const(0.7, "float64"))
        return getattr(op, name)(a, b)

    _check(name, build, shapes)


# Results whose shape is data: (builder, argument, what a gradient of ones becomes).
SHAPE = const(np.array([3, 2], "int64"))
DYNAMIC: dict[str, tuple[Build, np.ndarray, np.ndarray]] = {
    "dyn.reshape": (lambda x: op.reshape(x, op.abs(SHAPE)), np.zeros(X), np.ones(X)),
    "dyn.squeeze": (lambda x: op.squeeze(x, op.abs(const(np.array([1])))),
                    np.zeros((2, 1, 3)), np.ones((2, 1, 3))),
    "dyn.expand_dims": (lambda x: op.expand_dims(x, op.abs(const(1))), np.zeros(X), np.ones(X)),
    "dyn.full": (lambda v: op.full(v, op.abs(SHAPE)), np.array(7.0), np.array(6.0)),
}  # fmt: skip


def test_gradient_of_step_functions_is_zero() -> None:
    start, stop, step = (var(n, shape=(), dtype="float64") for n in ("start", "stop", "step"))
    output = gradient(Function([start, stop, step], op.arange(start, stop, step, "float64")))
    values = [np.array(v) for v in (2.5, 9.5, 1.8)]
    result, grads = Interpreter(IRModule({"main": output})).evaluate("main", *values)
    assert len(result) == 4 and [float(g) for g in grads] == [4, 0, 6]


@pytest.mark.parametrize("name", DYNAMIC)
def test_gradient_through_a_shape_that_is_data(name: str) -> None:
    build, value, expected = DYNAMIC[name]
    x = var("x", shape=value.shape, dtype="float64")
    result = gradient(Function([x], build(x)))
    _, (grad,) = Interpreter(IRModule({"main": result})).evaluate("main", value)
    np.testing.assert_array_equal(grad, expected)


def test_every_gradient_row_has_a_case() -> None:
    tested = {name.split()[0] for name in (*CASES, *DYNAMIC)} | {
        "contrib_reverse_reshape",
        "dyn.arange",
        "annotation.checkpoint",  # tests/relay/test_tvm_modules.py
    }
    tested |= set(UNARY_GRADIENTS) | set(BINARY_GRADIENTS) | set(ZERO_GRADIENT_OPS)
    rows = {name.removeprefix("nn.") for name in GRADIENTS_BY_OPERATOR}
    assert rows - {name.removeprefix("nn.") for name in tested} == set()
