"""FuseRanges: minima and maxima computed in the kernel that stores a product."""

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.transform import PassContext
from ekiden.relay.expr import Expr, Function
from ekiden.target import Target
from long_runs import share

rng = np.random.default_rng(5)


def convolution(
    dtype: str, side: int | None, before: int, channels: int, window: int, groups: int = 1
) -> tuple[Expr, Expr]:
    """Return the data and the result of a convolution with a bias."""
    size = side or relay.Any()
    data = relay.var("data", shape=(1, before, size, size), dtype=dtype)
    shape, pad = (channels, before // groups, window, window), (window // 2, window // 2)
    bias = relay.const(rng.normal(0, 9, (channels, 1, 1)).astype("float32"))
    options = {"padding": pad, "groups": groups}
    if dtype == "uint8":
        weight = relay.const(rng.integers(-127, 128, shape).astype("int8"))
        sums = relay.nn.conv2d(data, weight, out_dtype="int32", **options)
        return data, relay.add(relay.cast(sums, "float32"), bias)
    weight = relay.const(rng.normal(size=shape).astype("float32"))
    return data, relay.add(relay.nn.conv2d(data, weight, **options), bias)


def array(dtype: str, channels: int, side: int) -> np.ndarray:
    """Return data of a convolution."""
    values = rng.integers(0, 256, (1, channels, side, side))
    return values.astype(dtype) if dtype == "uint8" else (values / 99 - 1).astype(dtype)


def kernels(module: IRModule) -> str:
    """Return the bytecode of a program, which names its kernels."""
    return ekiden.compile(module).disassemble()


@share(4)
@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "cascadelake"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(
    ("side", "before", "channels", "window", "groups"),
    [(9, 24, 40, 1, 1), (9, 24, 40, 3, 1), (13, 40, 40, 3, 40), (12, 3, 17, 3, 1), (1, 8, 3, 1, 1)],
)
def test_ranges_are_those_of_the_stored_result(
    cpu: str, dtype: str, side: int, before: int, channels: int, window: int, groups: int
) -> None:
    target = Target.parse(f"llvm -mcpu={cpu}")
    if not target.serves(Target.host()):
        pytest.skip(f"{cpu} has what this processor lacks")
    data, result = convolution(dtype, side, before, channels, window, groups)
    outputs = relay.Tuple((result, relay.max(result), relay.min(result)))
    module = IRModule.from_expr(Function([data], outputs))
    values, high, low = ekiden.compile(module, target)(array(dtype, before, side))
    assert high.numpy() == values.numpy().max()
    assert low.numpy() == values.numpy().min()


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_executors_return_ranges(executor: str) -> None:
    data, result = convolution("uint8", 9, 24, 40, 1)
    high = relay.max(relay.clip(result, 0.0, 6e4))
    module = IRModule.from_expr(Function([data], relay.divide(result, high)))
    feed = array("uint8", 24, 9)
    actual = ekiden.compile(module, executor=executor)(feed).numpy()
    with PassContext(opt_level=3, disabled_pass=["FuseRanges"]):
        expected = ekiden.compile(module)(feed).numpy()
    np.testing.assert_array_equal(actual, expected)


def test_ranges_of_unknown_sizes() -> None:
    data, result = convolution("uint8", None, 8, 24, 3)
    outputs = relay.Tuple((result, relay.max(result)))
    compiled = ekiden.compile(IRModule.from_expr(Function([data], outputs)))
    for side in (1, 5, 30):
        values, high = compiled(array("uint8", 8, side))
        assert high.numpy() == values.numpy().max()


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_maximum_of_clipped_results_is_nan_where_one_is(value: float) -> None:
    data, result = convolution("float32", 12, 24, 40, 1)
    result = relay.nn.relu(result)
    outputs = relay.Tuple((result, relay.max(result)))
    feed = array("float32", 24, 12)
    feed[0, 3, 5, 7] = value
    values, high = ekiden.compile(IRModule.from_expr(Function([data], outputs)))(feed)
    np.testing.assert_array_equal(high.numpy(), values.numpy().max())


def test_maximum_of_negative_zeros() -> None:
    data = relay.var("data", shape=(1, 8, 4, 4), dtype="float32")
    weight = relay.const(np.eye(16, 8, dtype="float32")[..., None, None])
    scaled = relay.multiply(relay.nn.conv2d(data, weight), relay.const(np.float32(-1e-30)))
    result = relay.nn.relu(relay.multiply(scaled, relay.const(np.float32(1e-30))))
    outputs = relay.Tuple((result, relay.max(result)))
    feed = np.ones((1, 8, 4, 4), "float32")
    values, high = ekiden.compile(IRModule.from_expr(Function([data], outputs)))(feed)
    assert high.numpy() == 0 and not values.numpy().any()


def test_one_kernel_stores_a_result_and_its_range() -> None:
    data, result = convolution("uint8", 9, 24, 40, 1)
    module = IRModule.from_expr(Function([data], relay.divide(result, relay.max(result))))
    assert "add_max" in kernels(module)
    assert "fused_max" not in kernels(module)
    with PassContext(opt_level=3, disabled_pass=["FuseRanges"]):
        assert "fused_max" in kernels(module)


def test_ranges_along_axes_are_kernels_of_their_own() -> None:
    data, result = convolution("uint8", 9, 24, 40, 1)
    high = relay.max(result, axis=[2, 3], keepdims=True)
    module = IRModule.from_expr(Function([data], relay.divide(result, high)))
    assert "add_max" not in kernels(module)


def test_range_in_a_branch_is_computed_there() -> None:
    data, result = convolution("uint8", 9, 24, 40, 1)
    condition = relay.var("condition", shape=(), dtype="bool")
    branch = relay.If(condition, relay.divide(result, relay.max(result)), result)
    module = IRModule.from_expr(Function([data, condition], branch))
    assert "add_max" not in kernels(module)
    feed, both = array("uint8", 24, 9), ekiden.compile(module)
    plain = both(feed, np.array(False)).numpy()
    np.testing.assert_array_equal(both(feed, np.array(True)).numpy(), plain / plain.max())


def test_range_does_not_extend_result_lifetime() -> None:
    data, result = convolution("uint8", 9, 24, 40, 1)
    high = relay.max(result)
    later = relay.nn.max_pool2d(result, (3, 3))
    module = IRModule.from_expr(Function([data], relay.divide(later, high)))
    assert "alloc_data" not in kernels(module)
