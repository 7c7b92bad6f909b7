"""Operators that multiply bytes give what integers and wide floats give, interpreted and compiled
for each class of processors.

No other engine is asked: ONNX Runtime adds products of uint8 and int8 in 16 bits, which saturate,
where a processor has no VNNI. What may differ from the exact result is float32's rounding, of which
each bound says how many there are.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import Array, Feed, interpret, normal
from test_onnx_contrib import contrib_model, scalar, some_bytes

import ekiden
from ekiden.target import Target
from long_runs import alike, share
from processor import processors

ROUNDING = 2.0**-24
"""How far float32 rounds, relative to the number."""


def results(model: onnx.ModelProto, feed: Feed) -> Iterator[Array]:
    """The first output, by the interpreter and by native code."""
    arrays = list(feed.values())
    yield interpret(model, arrays)[0]
    for target in processors():
        found = ekiden.compile(model, target)(*arrays)
        yield (found[0] if isinstance(found, tuple) else found).numpy()


def check_levels(model: onnx.ModelProto, feed: Feed, exact: Array, dtype: str) -> None:
    """Bytes are what `exact`, in levels, rounds to. Its factor is rounded three times and so is
    what is at most 255 levels, so within 255 * 6 roundings of a half either level is right.
    """
    info = np.iinfo(dtype)
    for found in results(model, feed):
        assert (found.dtype, found.shape) == (np.dtype(dtype), exact.shape)
        error = np.abs(found - exact.clip(info.min, info.max))
        assert error.max() <= 0.5 + 255 * 6 * ROUNDING


def check_numbers(model: onnx.ModelProto, feed: Feed, exact: Array, bound: Array | float) -> None:
    for found in results(model, feed):
        assert (found.dtype, found.shape) == (np.float32, exact.shape)
        assert (np.abs(found - exact) <= bound).all()


def wide(levels: Array, point: Array | float = 0) -> Array:
    return levels.astype(np.int64) - np.asarray(point).astype(np.int64)


def convolution(data: Array, weight: Array, pad: int = 0) -> Array:
    """Of images [N, C, H, W], in integers."""
    padded = np.pad(data, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], (2, 3))
    found: Array = np.einsum("nchwij,ocij->nohw", windows, weight)
    return found


POINT, SCALE = scalar(120, np.uint8), scalar(0.0217)
RESULT = [scalar(3.1), scalar(100, np.uint8)]


def extreme_bytes(dtype: str, *shape: int) -> Array:
    """Bytes of which most are the ends of their type, a row of each end and a row of any."""
    info, rng = np.iinfo(dtype), np.random.default_rng([*shape])
    found = rng.choice([info.min, info.max], shape)
    found[..., 0, :], found[..., 1, :] = info.min, info.max
    found[..., 2, :] = rng.integers(info.min, info.max + 1, shape[-1])
    return found.astype(dtype)


@alike(4)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("weight_dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("columns", "depth"), [(64, 68), (35, 70)])
def test_products_of_extreme_computed_bytes_match_exact_integers(
    dtype: str, weight_dtype: str, columns: int, depth: int
) -> None:
    data = extreme_bytes(dtype, 2, 13, depth)
    weight = extreme_bytes(weight_dtype, 2, depth, columns)
    ranges = [np.iinfo(name) for name in (dtype, weight_dtype)]
    for points in ([r.min for r in ranges], [r.max for r in ranges]):
        arrays = [np.array(p, r.dtype) for p, r in zip(points, ranges, strict=True)]
        model, feed = contrib_model("MatMulInteger", [data, weight, *arrays], (2, 3), domain="")
        exact = wide(data, arrays[0]) @ wide(weight, arrays[1])
        for found in results(model, feed):
            np.testing.assert_array_equal(found, exact)


@alike(4)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinear_conv_matches_exact_integers(last: bool, per_channel: bool) -> None:
    images = some_bytes(1, 5, 5, 3) if last else some_bytes(1, 3, 5, 5)
    weight = some_bytes(4, 3, 3, 3, seed=1, dtype=np.int8)
    scales = normal(4) ** 2 if per_channel else scalar(0.3)
    points = np.zeros(4 if per_channel else (), np.int8)
    inputs = [images, SCALE, POINT, weight, scales, points, *RESULT]
    model, feed = contrib_model(
        "QLinearConv", inputs, range(1, 8), domain="com.microsoft" if last else "",
        pads=[1, 1, 1, 1], **({"channels_last": 1} if last else {}),
    )  # fmt: skip
    first = images.transpose(0, 3, 1, 2) if last else images
    sums = convolution(wide(first, POINT), wide(weight), pad=1)
    factor = SCALE.astype(np.float64) * scales.reshape(-1, 1, 1) / RESULT[0]
    exact = sums * factor + 100
    check_levels(model, feed, exact.transpose(0, 2, 3, 1) if last else exact, "uint8")


def test_convolution_between_quantised_tensors_saturates_nothing() -> None:
    """Bytes of all sizes, of which pairs of products do not fit int16: as many channels as ONNX
    Runtime's kernels take, whose results are up to eleven levels away without VNNI."""
    levels, weight = some_bytes(1, 32, 6, 6), some_bytes(8, 32, 3, 3, seed=1, dtype=np.int8)
    scales = {"x_scale": 1 / 128, "w_scale": 1 / 64, "y_scale": 1.0}
    x, w, y = (numpy_helper.from_array(scalar(each), name) for name, each in scales.items())
    points = [numpy_helper.from_array(np.zeros((), each.dtype), name)
              for each, name in ((levels, "x_point"), (weight, "w_point"))]  # fmt: skip
    points.append(numpy_helper.from_array(scalar(128, np.uint8), "y_point"))
    step = partial(helper.make_node, "DequantizeLinear")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_point"], ["xq"]),
        step(["xq", "x_scale", "x_point"], ["xf"]), step(["w", "w_scale", "w_point"], ["wf"]),
        helper.make_node("Conv", ["xf", "wf"], ["yf"], pads=[1] * 4),
        helper.make_node("QuantizeLinear", ["yf", "y_scale", "y_point"], ["y"]),
    ]  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "quantised", [info("x", TensorProto.FLOAT, levels.shape)],
        [info("y", TensorProto.UINT8, None)],
        [x, w, y, *points, numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    exact = convolution(wide(levels), wide(weight), pad=1) / (128 * 64)
    expected = np.clip(np.rint(exact) + 128, 0, 255).astype(np.uint8)
    for found in results(model, {"x": (levels / 128).astype(np.float32)}):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("columns", [1, 5])
def test_matmul_integer_to_float_matches_exact_integers(columns: int) -> None:
    data, right = some_bytes(2, 3, 8), some_bytes(8, 5, seed=1, dtype=np.int8)
    scale, bias = (normal(columns, seed=2) ** 2 + 0.01) / 100, normal(5)
    inputs = [data, right, scalar(0.02), scale, scalar(100, np.uint8), None, bias]
    model, feed = contrib_model("MatMulIntegerToFloat", inputs, (1, 2, 3, 4, 6))
    exact = wide(data, 100) @ wide(right) * (np.float64(scalar(0.02)) * scale)
    # rounded: the sum as float32, the scales' product, their product; with the bias, twice
    check_numbers(model, feed, exact + bias, 4 * ROUNDING * (np.abs(exact) + np.abs(bias)))


@pytest.mark.parametrize("columns", [1, 5])
def test_dynamic_quantize_matmul_matches_exact_integers(columns: int) -> None:
    data, right = normal(2, 3, 8), some_bytes(8, 5, seed=1, dtype=np.int8)
    scale, bias = (normal(columns, seed=2) ** 2 + 0.01) / 100, normal(5)
    model, feed = contrib_model(
        "DynamicQuantizeMatMul", [data, right, scale, None, bias], (1, 2, 4)
    )
    levels, step, point = dynamic_levels(data)
    exact = wide(levels, point) @ wide(right) * (step * scale)
    check_numbers(model, feed, exact + bias, 8 * ROUNDING * (np.abs(exact) + np.abs(bias)))


class Halfway(Exception):
    """Data that float32 may round to either of two levels."""


def dynamic_levels(data: Array) -> tuple[Array, float, int]:
    """Floats as levels, what a level is, and the level of 0. Raises Halfway for data
    within a thousandth of the middle between two levels, of which float32 may choose either.
    """
    low, high = min(float(data.min()), 0.0), max(float(data.max()), 0.0)
    step = (high - low) / 255
    exact = data.astype(np.float64) / step
    off = np.abs(np.append(exact, -low / step) % 1 - 0.5)
    if off.min() < 1e-3:
        raise Halfway
    point = round(-low / step)
    return (np.rint(exact) + point).clip(0, 255), step, point


@pytest.mark.parametrize("rounded", [False, True])
def test_qgemm_matches_exact_integers(rounded: bool) -> None:
    left, right = some_bytes(3, 8), some_bytes(5, 8, seed=1, dtype=np.int8)
    bias, scales = np.arange(5, dtype=np.int32) * 100, (scalar(0.02), scalar(0.01))
    inputs = [left, scales[0], POINT, right, scales[1], scalar(0, np.int8), bias]
    if rounded:
        inputs += [scalar(0.05), scalar(100, np.uint8)]
    more = {"alpha": 1.0} if rounded else {}
    model, feed = contrib_model("QGemm", inputs, range(1, len(inputs)), transB=1, **more)
    sums = wide(left, POINT) @ wide(right).T + bias
    exact = sums * (np.float64(scales[0]) * scales[1])
    if rounded:
        check_levels(model, feed, exact / scalar(0.05) + 100, "uint8")
    else:
        check_numbers(model, feed, exact, 4 * ROUNDING * np.abs(exact))


def test_qattention_matches_exact_integers() -> None:
    data, weight, bias = some_bytes(2, 3, 8), some_bytes(8, 24, seed=1), normal(24)
    step, scale, points = scalar(0.02), scalar(0.03), (scalar(120, np.uint8), scalar(128, np.uint8))
    inputs = [data, weight, bias, step, scale, None, *points]
    model, feed = contrib_model("QAttention", inputs, (1, 2), num_heads=2)
    projected = wide(data, 120) @ wide(weight, 128) * (np.float64(step) * scale) + bias
    query, key, value = projected.reshape(2, 3, 3, 2, 4).transpose(2, 0, 3, 1, 4)
    scores = query @ key.transpose(0, 1, 3, 2) / 2
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    exact = shares / shares.sum(-1, keepdims=True) @ value
    # 5 roundings of each projected number, and some in sums of 4; twice what scores err by is
    # what shares err by, relative to themselves
    wrong = 16 * ROUNDING * np.abs(query).max() * np.abs(key).max() * 4 / 2
    bound = (2 * wrong + 16 * ROUNDING) * np.abs(value).max()
    check_numbers(model, feed, exact.transpose(0, 2, 1, 3).reshape(2, 3, 8), bound)


def nibbles(packed: Array, points: Array | None, columns: int) -> tuple[Array, Array]:
    """Weights of four bits [rows, blocks, block / 2] as [rows, blocks, block], and their zero
    points [rows, blocks, 1], for the first `columns` of each row.
    """
    rows, blocks, _ = packed.shape
    levels = np.stack([packed & 15, packed >> 4], -1).reshape(rows, blocks, -1)
    if points is None:
        return levels, np.full((rows, blocks, 1), 8)
    both = points.reshape(rows, -1)
    return levels, np.stack([both & 15, both >> 4], -1).reshape(rows, -1)[:, :blocks, None]


@share(4)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("shape", "rows", "block"), [((1, 40), 130, 16), ((2, 5, 64), 5, 32), ((13, 128), 70, 128)]
)
def test_int4_weights_with_int8_data_match_exact_integers(
    shape: tuple[int, ...], rows: int, block: int, zeros: bool
) -> None:
    """A target may round the data of each block to 127 steps of its largest number, or leave them.
    Rounding moves a number by half a step at most, so it moves a result by at most the sum over
    blocks of (the largest number / 254) * (the sum of the weights' sizes). What a target does not
    round is off by float32's rounding alone, and what it does round by that from the product with
    the rounded data.
    """
    depth, blocks = shape[-1], -(-shape[-1] // block)
    packed, scales = some_bytes(rows, blocks, block // 2), normal(rows * blocks) ** 2
    points = some_bytes(rows * (-(-blocks // 2)), seed=3) if zeros else None
    data = normal(*shape)
    model, feed = contrib_model(
        "MatMulNBits", [data, packed, scales, points], (1, 2, 3),
        N=rows, K=depth, bits=4, block_size=block, accuracy_level=4,
    )  # fmt: skip
    levels, zero = nibbles(packed, points, depth)
    step = scales.astype(np.float64).reshape(rows, blocks, 1)
    weight, sizes = (levels - zero.astype(np.int64)) * step, (levels + zero) * step
    spare = [(0, 0)] * (data.ndim - 1) + [(0, blocks * block - depth)]
    parts = np.pad(data, spare).reshape(*shape[:-1], blocks, block)
    most = np.abs(parts).max(-1, keepdims=True)
    bytes_ = np.rint(parts * (np.float32(127) / most)) * (most / 127.0)

    def product(left: Array, right: Array) -> Array:
        found: Array = np.einsum("...bk,nbk->...n", left, right, dtype=np.float64)
        return found

    exact, rounded = product(parts, weight), product(bytes_, weight)
    moved = product(np.broadcast_to(most / 254, parts.shape), np.abs(weight))
    assert (np.abs(rounded - exact) <= moved * (1 + 1e-6)).all()
    # products and sums of float32: no more roundings than twice the depth
    bound = 2 * (depth + 8) * ROUNDING * product(np.abs(parts), sizes)
    for text in processors():
        found = ekiden.compile(model, text)(*feed.values()).numpy()
        rounds = Target.parse(text).has("dot4_u8s8")
        assert (np.abs(found - (rounded if rounds else exact)) <= bound).all()
    assert (np.abs(interpret(model, list(feed.values()))[0] - exact) <= bound).all()


def lstm(
    data: Array, weights: tuple[Array, Array], scales: tuple[Array, Array], bias: Array
) -> tuple[Array, float]:
    """All states [steps, batch, hidden] of one direction, and the most that anything added up to
    was in size. Weights are [inputs, 4 * hidden], the gates i, o, f, c; the data are quantised
    together, the state at each step.
    """
    steps, batch, _ = data.shape
    hidden = weights[1].shape[0]
    levels, step, point = dynamic_levels(data)
    inner = wide(levels, point) @ wide(weights[0]) * (step * scales[0].astype(np.float64)) + bias
    state, cell = np.zeros((batch, hidden)), np.zeros((batch, hidden))
    found, most = [], np.abs(inner).max()
    for n in range(steps):
        gates = inner[n]
        if state.any():
            levels, step, point = dynamic_levels(state)
            factor = step * scales[1].astype(np.float64)
            gates = gates + wide(levels, point) @ wide(weights[1]) * factor
        i, o, f, c = np.split(gates, 4, axis=1)
        i, o, f = (1 / (1 + np.exp(-g)) for g in (i, o, f))
        cell = f * cell + i * np.tanh(c)
        state = o * np.tanh(cell)
        found.append(state)
        most = max(most, np.abs(gates).max(), np.abs(cell).max())
    return np.array(found), float(most)


def random_lstm(
    seed: int, directions: int, per_row: bool, batch: int
) -> tuple[list[Array | None], Array, float]:
    """The inputs of a DynamicQuantizeLSTM, its states, and the size of what it sums."""
    steps, inputs, hidden = 4, 9, 21
    rng = np.random.default_rng(seed)
    rows = 4 * hidden
    shape = (directions, rows) if per_row else (directions,)
    weights = [rng.integers(-127, 128, (directions, n, rows)).astype("b") for n in (inputs, hidden)]
    bias = rng.normal(size=(directions, 2 * rows)).astype("f")
    scales = [rng.uniform(0.001, 0.004, shape).astype("f") for _ in range(2)]
    data, zeros = rng.normal(size=(steps, batch, inputs)).astype("f"), np.zeros(shape, "b")
    exact, most = np.zeros((steps, directions, batch, hidden)), 0.0
    for n in range(directions):
        turned = slice(None, None, -1 if n else 1)
        both = bias[n].astype(np.float64).reshape(2, -1).sum(0)
        pair = (weights[0][n], weights[1][n]), (scales[0][n], scales[1][n])
        found, size = lstm(data[turned], *pair, both)
        exact[:, n], most = found[turned], max(most, size)
    return [data, *weights, bias, *[None] * 4, scales[0], zeros, scales[1], zeros], exact, most


@alike(8)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_dynamic_quantize_lstm_matches_exact_integers(
    directions: int, per_row: bool, batch: int
) -> None:
    for seed in itertools.count():  # until no state is halfway between two levels
        with contextlib.suppress(Halfway):
            given, exact, most = random_lstm(seed, directions, per_row, batch)
            break
    model, feed = contrib_model(
        "DynamicQuantizeLSTM", given, (1, 2, 3, 8, 9, 10, 11), hidden_size=exact.shape[-1],
        direction="bidirectional" if directions == 2 else "forward",
    )  # fmt: skip
    # a step adds some 32 roundings of what it sums, and gates have slopes of at most one
    check_numbers(model, feed, exact, len(exact) * 32 * ROUNDING * most)
