"""Quantised products and layers: compiled, interpreted, and by NumPy in wide integers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.relay.qnn import int8_lowering as qnn
from ekiden.relay.visitor import post_order
from long_runs import alike
from processor import processors

Array = np.ndarray


def random(dtype: str, *shape: int, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def each_way(
    params: list[relay.Var],
    body: relay.Expr,
    *arrays: Array,
    targets: Sequence[str] = tuple(processors()),
) -> list[list[Array]]:
    """The results of the interpreter, and of native code for each class of processors."""
    module = relay.IRModule.from_expr(relay.Function(tuple(params), body))
    runs = [relay.create_executor("debug", module).evaluate()]
    runs += [ekiden.compile(module, target) for target in targets]
    actual = []
    for run in runs:
        result = run(*arrays)
        many = result if isinstance(result, tuple) else (result,)
        actual.append([r.numpy() for r in many])
    return actual


def scalar(value: int, dtype: str) -> relay.Expr:
    return relay.const(np.array(value, dtype))


@alike(4)
@pytest.mark.parametrize(
    ("data_dtype", "weight_dtype", "m", "n", "k"),
    [
        ("uint8", "int8", 1, 1, 1),
        ("uint8", "int8", 5, 70, 33),
        ("uint8", "uint8", 3, 64, 12),
        ("int8", "int8", 3, 17, 8),
        ("int8", "uint8", 2, 4, 3),
        ("uint8", "int8", 0, 4, 8),
    ],
)
def test_qnn_dense_matches_wide_integers(
    data_dtype: str, weight_dtype: str, m: int, n: int, k: int
) -> None:
    data, weight = random(data_dtype, m, k), random(weight_dtype, n, k, seed=1)
    for point, kernel_point in ((0, 0), (3, -7 if weight_dtype == "int8" else 200)):
        x = relay.var("x", relay.tensor_type((relay.SizeVar("m"), k), data_dtype))
        points = scalar(point, data_dtype), scalar(kernel_point, weight_dtype)
        body = qnn.dense(x, relay.const(weight), *points, data_dtype=data_dtype)
        wide = (data.astype(np.int64) - point) @ (weight.astype(np.int64) - kernel_point).T
        targets = processors() if point else ["llvm"]  # the same kernel but for what is added
        for (result,) in each_way([x], body, data, targets=targets):
            np.testing.assert_array_equal(result, wide)
            assert result.dtype == np.int32


def test_dense_with_a_zero_point_for_each_row() -> None:
    data, weight = random("uint8", 4, 20), random("int8", 6, 20, seed=1)
    points = np.arange(-3, 3, dtype=np.int8)
    x = relay.var("x", relay.tensor_type((4, 20), "uint8"))
    body = qnn.dense(x, relay.const(weight), scalar(9, "uint8"), relay.const(points))
    wide = (data.astype(np.int64) - 9) @ (weight.astype(np.int64) - points[:, None]).T
    for (result,) in each_way([x], body, data):
        np.testing.assert_array_equal(result, wide)


def test_products_of_bytes_do_not_saturate() -> None:
    """Sums of two products leave the range of 16 bits, where older instructions stop."""
    data, weight = np.full((2, 512), 255, np.uint8), np.full((16, 512), -128, np.int8)
    x = relay.var("x", relay.tensor_type((2, 512), "uint8"))
    body = qnn.dense(x, relay.const(weight), scalar(0, "uint8"), scalar(0, "int8"))
    for (result,) in each_way([x], body, data):
        assert (result == 255 * -128 * 512).all()


@alike(4)
@pytest.mark.parametrize(
    ("data_dtype", "weight_dtype", "channels", "out", "window", "options"),
    [
        ("uint8", "int8", 8, 70, 3, {"padding": (1, 1)}),
        ("uint8", "int8", 3, 5, 7, {"padding": (3, 2, 1, 0), "strides": (2, 2)}),
        ("int8", "int8", 6, 16, 1, {}),
        ("int8", "uint8", 4, 33, 3, {"dilation": (2, 1)}),
        ("uint8", "uint8", 12, 3, 1, {"strides": (2, 1)}),
        ("uint8", "int8", 6, 6, 3, {"groups": 6, "padding": (1, 1)}),
        ("int8", "uint8", 4, 8, 2, {"groups": 2}),
        ("uint8", "int8", 80, 4, 3, {"groups": 2}),  # sums that float32 does not hold
        ("uint8", "int8", 16, 12, 3, {"groups": 4, "padding": (1, 1)}),
    ],
)
def test_qnn_conv2d_matches_wide_integers(
    data_dtype: str,
    weight_dtype: str,
    channels: int,
    out: int,
    window: int,
    options: dict[str, tuple[int, ...] | int],
) -> None:
    groups = int(options.get("groups", 1))  # type: ignore[call-overload]
    data = random(data_dtype, 2, channels, 9, 7)
    weight = random(weight_dtype, out, channels // groups, window, window, seed=1)
    middle = 128 if weight_dtype == "uint8" else 0
    columns = random(weight_dtype, out, seed=2)
    for point, kernel_point in ((0, np.array(middle)), (3, np.array(5)), (3, columns)):
        x = relay.var("x", relay.tensor_type((2, channels, relay.SizeVar("h"), 7), data_dtype))
        points = scalar(point, data_dtype), relay.const(kernel_point.astype(weight_dtype))
        body = qnn.conv2d(x, relay.const(weight), *points, data_dtype, **options)
        shifted = data.astype(np.float64) - point
        kernel = weight.astype(np.float64) - kernel_point.reshape(-1, 1, 1, 1)
        a, w = (
            relay.var(n, shape=v.shape, dtype="float64") for n, v in (("a", shifted), ("w", kernel))
        )
        plain = relay.Function([a, w], relay.nn.conv2d(a, w, **options))
        wide = relay.create_executor("debug").evaluate(plain)(shifted, kernel).numpy()
        targets = processors() if kernel_point is columns else ["llvm"]
        for (result,) in each_way([x], body, data, targets=targets):
            np.testing.assert_array_equal(result, wide)
            assert result.dtype == np.int32


@pytest.mark.quick
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_weight_zero_point_takes_one_column_of_window_sums_per_group(groups: int) -> None:
    weight = random("uint8", 24, 16 // groups, 3, 3)
    x = relay.var("x", shape=(1, 16, 9, 7), dtype="uint8")
    points = scalar(3, "uint8"), scalar(131, "uint8")
    body = qnn.conv2d(x, relay.const(weight), *points, "uint8", groups=groups)
    calls = [e for e in post_order(body) if isinstance(e, relay.Call)]
    convolutions = [c for c in calls if getattr(c.op, "name", "") == "nn.conv2d"]
    assert sorted(len(c.args[1].data) for c in convolutions) == [groups, 24]


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [1.0, 2.0], [-3.0, -1.0], [-1.0, 0.5, 2.0], [1e-30, 0.0]]
)
def test_dynamic_quantize_matches_numpy(values: list[float]) -> None:
    x = relay.var("x", relay.tensor_type((len(values),)))
    data = np.array(values, np.float32)
    interpreted, *others = each_way([x], relay.Tuple(qnn.dynamic_quantize(x)), data)
    for compiled in others:
        for one, other in zip(interpreted, compiled, strict=True):
            np.testing.assert_array_equal(one, other)
    levels, scale, point = interpreted
    assert levels.dtype == point.dtype == np.uint8
    restored = scale * (levels.astype(np.float32) - np.float32(point))
    assert np.abs(restored - data).max() <= scale


@alike(6)
@pytest.mark.parametrize(
    ("steps", "batch", "inputs", "hidden"), [(1, 1, 4, 4), (5, 1, 30, 40), (4, 3, 10, 18)]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_layers_with_weights_of_bytes(
    steps: int, batch: int, inputs: int, hidden: int, reverse: bool
) -> None:
    rng = np.random.default_rng(2)
    x = relay.var("x", relay.tensor_type((relay.SizeVar("t"), batch, inputs)))
    weights = [random("int8", 4 * hidden, n, seed=n) for n in (inputs, hidden)]
    scales = [relay.const(rng.uniform(0.0005, 0.002, 4 * hidden).astype("f")) for _ in range(2)]
    result = qnn.dynamic_lstm(
        x,
        *map(relay.const, weights),
        *scales,
        relay.const(rng.normal(size=4 * hidden).astype("f")),
        initial_h=relay.const(rng.normal(size=(batch, hidden)).astype("f")),
        reverse=reverse,
    )
    data = rng.normal(size=(steps, batch, inputs)).astype("f")
    interpreted, *others = each_way([x], relay.Tuple(result), data)
    # where a state is halfway between two levels, either may come out, and a level of a state
    # within [-1, 1] weighs at most (2 / 255) * 128 * 0.002 = 0.002
    for one, other in itertools.chain(*(zip(interpreted, c, strict=True) for c in others)):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=3e-3)


def test_recurrent_weight_that_is_no_constant() -> None:
    """Packed by the kernel itself, as floats are."""
    hidden = 5
    rng = np.random.default_rng(3)
    weight = relay.var("w", relay.tensor_type((4 * hidden, hidden), "int8"))
    x = relay.var("x", relay.tensor_type((3, 2, 4 * hidden)))
    data, bytes_ = rng.normal(size=(3, 2, 4 * hidden)).astype("f"), random("int8", 20, 5)
    extras = {
        "scale": relay.const(np.full(4 * hidden, 0.01, "f")),
        "sums": relay.const(bytes_.sum(axis=1, dtype=np.int32)),
    }
    layer = relay.op.nn.recurrent(x, weight, "lstm", extras)
    interpreted, *others = each_way([x, weight], layer, data, bytes_)
    for one, other in itertools.chain(*(zip(interpreted, c, strict=True) for c in others)):
        # as above, where a level weighs (2 / 255) * 128 * 0.01 at most
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=0.011)


@pytest.mark.parametrize("argument", list(itertools.combinations(("scale", "sums"), 1)))
def test_dynamic_quantize_returns_scale_and_row_sums(argument: tuple[str, ...]) -> None:
    x = relay.var("x", relay.tensor_type((3, 2, 20)))
    extras = {name: relay.const(np.zeros(20, "f" if name == "scale" else "i")) for name in argument}
    layer = relay.op.nn.recurrent(x, relay.const(random("int8", 20, 5)), "lstm", extras)
    with pytest.raises(ekiden.CompileError, match="scale and sums come with a weight of int8"):
        ekiden.compile(relay.IRModule.from_expr(relay.Function((x,), layer)))
