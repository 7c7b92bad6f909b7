"""The dialect of quantised tensors: what an operator means (NumPy, by the interpreter) and what it
becomes (the virtual machine) are written apart, and must agree to the last bit; then values worked
out by hand, types and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.op import OP_ATTRS, OPS
from ekiden.relay.qnn import op as qnn
from ekiden.relay.qnn import scale_conversion
from ekiden.runtime.errors import CompileError, TypeInferenceError
from long_runs import alike, share

Array = np.ndarray
RNG = np.random.default_rng(11)


def integers(dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, int(info.max) + 1, shape).astype(dtype)


def scale(*values: float) -> relay.Expr:
    result = np.asarray(values, np.float32)
    return relay.const(result if len(values) > 1 else result.reshape(()))


def point(*values: int) -> relay.Expr:
    result = np.asarray(values, np.int32)
    return relay.const(result if len(values) > 1 else result.reshape(()))


def module_of(build: Callable[..., relay.Expr], *arrays: Array) -> relay.IRModule:
    params = [relay.var(f"x{i}", shape=a.shape, dtype=str(a.dtype)) for i, a in enumerate(arrays)]
    return relay.IRModule.from_expr(relay.Function(params, build(*params)))


def run(build: Callable[..., relay.Expr], *arrays: Array) -> Array:
    """The one result of the interpreter and of the virtual machine."""
    module = module_of(build, *arrays)
    module = relay.parse(module.astext())  # the text says all
    meant, result = (
        relay.create_executor(kind, module).evaluate()(*arrays).numpy() for kind in ("debug", "vm")
    )
    np.testing.assert_array_equal(result, meant)
    assert result.dtype == meant.dtype
    return result


HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, -0.49999997], np.float32)


def test_quantize_rounds_halves_away_from_zero() -> None:
    result = run(lambda x: qnn.quantize(x, scale(1.0), point(0)), HALVES)
    assert result.tolist() == [-3, -2, -1, 1, 2, 3, 0, 0]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32"])
def test_quantize_saturates(dtype: str) -> None:
    info = np.iinfo(dtype)
    data = np.array([-1e30, -1e10, 0, 1e10, 1e30, np.inf, -np.inf], np.float32)
    result = run(lambda x: qnn.quantize(x, scale(0.1), point(1), out_dtype=dtype), data)
    low, high = info.min, info.max
    assert result.tolist() == [low, low, 1, high, high, high, low]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_quantize_and_back_along_an_axis(axis: int) -> None:
    data = RNG.normal(size=(3, 3, 3)).astype(np.float32)
    scales, points = scale(0.01, 0.02, 0.05), point(-3, 0, 7)
    levels = run(lambda x: qnn.quantize(x, scales, points, axis), data)
    back = run(lambda x: qnn.dequantize(x, scales, points, axis), levels)
    inside = (levels > -128) & (levels < 127)
    steps = np.array([0.01, 0.02, 0.05]).reshape([-1 if i == axis % 3 else 1 for i in range(3)])
    assert np.all(
        np.abs(back - data)[inside] <= (0.501 * np.broadcast_to(steps, (3, 3, 3)))[inside]
    )


def test_dequantize_to_float16_saturates() -> None:
    data = np.array([-(2**30), -1, 0, 2**30], np.int32)
    result = run(lambda x: qnn.dequantize(x, scale(1.0), point(0), out_dtype="float16"), data)
    assert result.tolist() == [-65504.0, -1.0, 0.0, 65504.0]


@share(4)
@pytest.mark.parametrize("compute", ["int64", "float32", "float64"])
@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST"])
def test_requantize_of_halves(rounding: str, compute: str) -> None:
    data = np.arange(-5, 6, dtype=np.int32)

    def build(x: relay.Expr) -> relay.Expr:
        options = {"rounding": rounding, "compute_dtype": compute}
        return qnn.requantize(x, scale(0.5), point(0), scale(1.0), point(0), **options)

    up, away = [-2, -2, -1, -1, 0, 0, 1, 1, 2, 2, 3], [-3, -2, -2, -1, -1, 0, 1, 1, 2, 2, 3]
    assert run(build, data).tolist() == (up if rounding == "UPWARD" else away)


def test_requantize_just_above_a_half() -> None:
    data = np.array([112], np.uint8)  # (112 - 7) * 0.05 / 0.7 - 9 is -1.4999995 in float32

    def build(x: relay.Expr) -> relay.Expr:
        options = {"rounding": "TONEAREST", "compute_dtype": "float32"}
        return qnn.requantize(x, scale(0.05), point(7), scale(0.7), point(-9), **options)

    assert run(build, data).tolist() == [-1]


@share(6)
@pytest.mark.parametrize("compute", ["int64", "float32", "float64"])
@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST"])
@pytest.mark.parametrize("dtypes", [("int32", "int8"), ("uint8", "int8"), ("int8", "int32")])
def test_requantize_matches_interpreter(
    rounding: str, compute: str, dtypes: tuple[str, str]
) -> None:
    data = integers(dtypes[0], 5, 3, 2)
    if dtypes[0] == "int32":
        data //= 1 << 8
    for scales in (scale(0.37), scale(3.9, 0.0001, 1.0)):
        points = point(4) if scales.data.ndim == 0 else point(4, -2, 0)
        with qnn.requantize_config(rounding=rounding, compute_dtype=compute):
            run(
                lambda x, s=scales, p=points: qnn.requantize(
                    x, s, p, scale(0.71), point(-9), axis=1, out_dtype=dtypes[1]
                ),
                data,
            )


def test_requantize_matches_hand_computed_values() -> None:
    """(10 - 2) * 0.5 / 0.25 + 1 = 17; (3 - 2) * 2 + 1 = 3; 127 * ... saturates."""
    data = np.array([10, 3, 127, -128], np.int8)
    result = run(lambda x: qnn.requantize(x, scale(0.5), point(2), scale(0.25), point(1)), data)
    assert result.tolist() == [17, 3, 127, -128]


def test_scales_of_floating_requantization_may_be_data() -> None:
    def build(x: relay.Expr, s: relay.Expr) -> relay.Expr:
        return qnn.requantize(x, s, point(0), scale(0.5), point(0), compute_dtype="float32")

    data, its = integers("int8", 7), np.array(0.25, np.float32)
    assert run(build, data, its).shape == (7,)

    fixed = module_of(lambda x, s: qnn.requantize(x, s, point(0), scale(0.5), point(0)), data, its)
    with pytest.raises(CompileError, match="scales must be constants where 'compute_dtype' is int"):
        ekiden.compile(fixed)


@share(4)
@pytest.mark.parametrize("name", ["add", "subtract", "mul"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_binary_qnn_operators_match_interpreter(name: str, dtype: str) -> None:
    lhs, rhs = integers(dtype, 4, 1, 3), integers(dtype, 5, 3)
    build = getattr(qnn, name)
    own = scale(0.1), point(3), scale(0.03), point(-2)
    run(lambda a, b: build(a, b, *own, scale(0.2), point(5)), lhs, rhs)
    run(lambda a, b: build(a, b, *own[:2], *own[:2], *own[:2]), lhs, rhs)
    vectors = scale(0.1, 0.2, 0.3), point(1, 2, 3)
    run(lambda a, b: build(a, b, *vectors, *vectors, scale(0.2), point(5)), lhs, rhs)


def test_qnn_add_matches_hand_computed_values() -> None:
    """0.1 (20 - 0) + 0.2 (5 - 0) = 3 = 0.1 (30 - 0)."""
    lhs, rhs = np.array([20, 100], np.int8), np.array([5, 100], np.int8)
    scales = scale(0.1), point(0), scale(0.2), point(0), scale(0.1), point(0)
    assert run(lambda a, b: qnn.add(a, b, *scales), lhs, rhs).tolist() == [30, 127]


UNARY = ("tanh", "exp", "sqrt", "rsqrt", "erf", "sigmoid", "log", "abs", "hardswish")
BITS = {"exp", "rsqrt", "log", "erf", "tanh", "sigmoid", "hardswish"}
"""Those whose float functions may differ in the last bit, so that a result may be 1 step off."""


@share(4)
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_unary_qnn_operators_match_interpreter(name: str, dtype: str) -> None:
    info = np.iinfo(dtype)
    data = np.arange(info.min, info.max + 1).astype(dtype)
    if name in ("sqrt", "rsqrt", "log"):
        data = data[data > 5]
    build = getattr(qnn, name)
    module = module_of(lambda x: build(x, scale(0.03), point(5), scale(0.05), point(1)), data)
    meant, result = (
        relay.create_executor(kind, module).evaluate()(data).numpy().astype(np.int32)
        for kind in ("debug", "vm")
    )
    assert np.abs(meant - result).max() <= (1 if name in BITS else 0)
    assert (meant != result).mean() < 0.02


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 1.0])
def test_qnn_leaky_relu_matches_interpreter(alpha: float) -> None:
    data = np.arange(-128, 128).astype(np.int8)
    for scales in ((0.1, 5, 0.1, 5), (0.1, 5, 0.07, -3)):
        its = scale(scales[0]), point(scales[1]), scale(scales[2]), point(scales[3])
        run(lambda x, its=its: qnn.leaky_relu(x, alpha, *its), data)


def test_qnn_softmax_matches_interpreter() -> None:
    data = integers("int8", 3, 10)
    its = scale(0.2), point(4), scale(1 / 256), point(-128)
    result = run(lambda x: qnn.softmax(x, *its), data)
    floats = np.exp((data.astype(np.float64) - 4) * 0.2)
    shares = floats / floats.sum(-1, keepdims=True)
    # In units of 1 / scale = 5: shifts of the exponent are off by a unit, a factor of 2**(1 / 5);
    # the shift of 2**r by half a unit of 5 at least; 1 + r / 2 for 2**r by 6.2 %. What exponentials
    # are off by relative to one another moves a share p by p (1 - p) of it. Then levels of 1 / 128,
    # and results of 1 / 256.
    relative = (2 ** (1 / 5) - 1) + 0.5 / 5 + 0.062
    bound = relative / 4 + 1 / 128 + 1 / 256
    assert np.abs((result.astype(np.float64) + 128) / 256 - shares).max() < bound
    run(lambda x: qnn.softmax(x, *its, axis=0), data)


@share(4)
@pytest.mark.parametrize("data", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("weight", ["int8", "uint8"])
def test_qnn_dense_matches_interpreter(data: str, weight: str) -> None:
    kernel = relay.const(integers(weight, 9, 33))
    for its, at in ((point(0), point(0)), (point(3), point(-7)), (point(3), point(*range(9)))):
        run(
            lambda x, a=its, b=at: qnn.dense(x, kernel, a, b, scale(0.1), scale(0.2), 9),
            integers(data, 5, 33),
        )
    variable = integers(weight, 9, 33)
    result = run(
        lambda x, w: qnn.dense(
            x, w, point(3), point(2), scale(0.1), scale(0.2), 9, out_dtype="int64"
        ),
        wide := integers(data, 2, 33),
        variable,
    )
    np.testing.assert_array_equal(
        result, (wide.astype(np.int64) - 3) @ (variable.astype(np.int64) - 2).T
    )


@share(4)
@pytest.mark.parametrize("layouts", [("NCHW", "OIHW"), ("NHWC", "HWIO"), ("NHWC", "OIHW")])
@pytest.mark.parametrize("dtypes", [("uint8", "int8"), ("int8", "int8"), ("int16", "int8")])
def test_qnn_conv2d_matches_interpreter(layouts: tuple[str, str], dtypes: tuple[str, str]) -> None:
    shape = {"N": 2, "C": 4, "H": 7, "W": 6}
    data = integers(dtypes[0], *(shape[axis] for axis in layouts[0]))
    for groups, points in ((1, (3, -2)), (1, (0, 0)), (4, (3, 0))):
        size = {"O": 8, "I": 4 // groups, "H": 3, "W": 2}
        kernel = relay.const(integers(dtypes[1], *(size[axis] for axis in layouts[1])))
        result = run(
            lambda x, g=groups, p=points, k=kernel: qnn.conv2d(
                x, k, point(p[0]), point(p[1]), scale(0.1), scale(0.2), (3, 2), 8, (2, 1),
                (1, 0, 1, 1), (1, 1), g, *layouts,
            ),
            data,
        )  # fmt: skip
        assert result.dtype == np.int32


def test_transposed_int8_weights_use_int8_products() -> None:
    kernel = relay.transpose(relay.const(integers("int8", 8, 3, 3, 4)), (1, 2, 3, 0))
    x = relay.var("x", shape=(1, 6, 6, 4), dtype="int8")
    tensor = qnn.conv2d(
        x, kernel, point(3), point(0), scale(0.1), scale(0.2), (3, 3), 8,
        data_layout="NHWC", kernel_layout="HWIO",
    )  # fmt: skip
    module = relay.IRModule.from_expr(relay.Function([x], tensor))
    # In words of bytes, or of their int16 form where products of bytes have no instruction.
    for processor, words in (("cascadelake", "OHWI16o4i"), ("haswell", "OHWI8o2i")):
        text = relay.optimize(module, f"llvm -mcpu={processor}")[0].astext()
        assert f'kernel_layout="{words}"' in text


@pytest.mark.parametrize("border", [0, 1])
def test_unpadded_depthwise_reads_int8_directly(
    border: int,
) -> None:
    data, kernel = integers("int8", 1, 9, 8, 32), relay.const(integers("int8", 3, 3, 32, 1))

    def build(x: relay.Expr) -> relay.Expr:
        return qnn.conv2d(
            x, kernel, point(-5), point(2), scale(0.1), scale(0.2), (3, 3), 32, (1, 1),
            (border, border), (1, 1), 32, "NHWC", "HWOI",
        )  # fmt: skip

    x = relay.var("x", shape=data.shape, dtype="int8")
    module = relay.IRModule.from_expr(relay.Function([x], build(x)))
    text = relay.optimize(module, "llvm -mcpu=haswell")[0].astext()
    assert ("(1, 9, 8, 32), float32]" in text) == bool(border)
    run(build, data)


def test_qnn_conv2d_transpose_matches_interpreter() -> None:
    data, kernel = integers("uint8", 1, 3, 4, 5), relay.const(integers("int8", 3, 2, 3, 3))
    run(
        lambda x: qnn.conv2d_transpose(
            x, kernel, point(7), point(1), scale(0.1), scale(0.2), (2, 2), (1, 1)
        ),
        data,
    )


def test_inexact_transposed_sums_are_split() -> None:
    data = np.full((1, 2, 2, 600), 255, np.uint8)
    kernel = np.full((3, 600, 2, 2), 127, np.int8)
    kernel[1, ::7] = -127
    x = relay.var("x", shape=data.shape, dtype="uint8")
    result = qnn.conv2d_transpose(
        x, relay.const(kernel), point(0), point(-1), scale(0.1), scale(0.2), (1, 1),
        data_layout="NHWC", kernel_layout="OIHW",
    )  # fmt: skip
    module = relay.IRModule.from_expr(relay.Function([x], result))
    text = relay.qnn.transform.CanonicalizeOps()(module).astext()
    assert text.count(" nn.conv2d_transpose(") == 5  # 600 * 4 * 255 * 128 / 2**24
    run(lambda x: qnn.conv2d_transpose(
        x, relay.const(kernel), point(0), point(-1), scale(0.1), scale(0.2), (1, 1),
        data_layout="NHWC", kernel_layout="OIHW",
    ), data)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_away_from_zero(dtype: str) -> None:
    kind = np.dtype(dtype).type
    near = kind([0.5, 1.5, 2.5, 3, 1e6 + 0.5, 2**22 + 0.5, 2**23 - 0.5, 2**23 + 1, 1e30, 0])
    data = np.concatenate([near, np.nextafter(near, kind(0)), np.nextafter(near, kind(np.inf))])
    data = np.concatenate([data, -data])
    x = relay.var("x", shape=data.shape, dtype=dtype)
    module = relay.IRModule.from_expr(
        relay.Function([x], scale_conversion.round_half_away(x, dtype))
    )
    result = ekiden.compile(module)(data).numpy()
    np.testing.assert_array_equal(result, scale_conversion.round_half_away_array(data))


def test_qnn_batch_matmul_matches_interpreter() -> None:
    x, y = integers("uint8", 3, 4, 9), integers("int8", 3, 5, 9)
    result = run(
        lambda a, b: qnn.batch_matmul(a, b, point(3), point(-4), scale(0.1), scale(0.2)), x, y
    )
    wide = x.astype(np.int64) - 3, np.swapaxes(y.astype(np.int64) + 4, 1, 2)
    np.testing.assert_array_equal(result, wide[0] @ wide[1])


def test_qnn_concatenate_matches_interpreter() -> None:
    parts = integers("uint8", 2, 3), integers("uint8", 2, 4)

    def build(a: relay.Expr, b: relay.Expr) -> relay.Expr:
        scales = [scale(0.1), scale(0.3)], [point(3), point(0)]
        return qnn.concatenate([a, b], *scales, scale(0.1), point(3), 1)

    result = run(build, *parts)
    np.testing.assert_array_equal(result[:, :3], parts[0])


@pytest.mark.parametrize("count_include_pad", [False, True])
def test_qnn_avg_pool2d_matches_interpreter(count_include_pad: bool) -> None:
    data = integers("int8", 1, 5, 6, 3)
    for its in ((0.1, 3, 0.1, 3), (0.1, 3, 0.25, -1)):
        scales = scale(its[0]), point(its[1]), scale(its[2]), point(its[3])
        run(
            lambda x, s=scales: qnn.avg_pool2d(
                x, *s, (3, 2), (2, 1), (1, 1), (1, 1), count_include_pad=count_include_pad
            ),
            data,
        )


@pytest.mark.parametrize("dtype", ["disable", "int8", "uint8", "int32"])
def test_simulated_quantize_matches_interpreter(dtype: str) -> None:
    data = (RNG.normal(size=(2, 3)) * 30).astype(np.float32)
    scales = scale(0.1, 0.2, 0.3), point(1, 2, 3)
    levels = run(lambda x: qnn.simulated_quantize(x, *scales, out_dtype=dtype), data)
    module = module_of(lambda x: qnn.simulated_dequantize(x, *scales, in_dtype=dtype), levels)
    meant, result = (
        relay.create_executor(kind, module).evaluate()(levels).numpy() for kind in ("debug", "vm")
    )
    np.testing.assert_allclose(result, meant, rtol=1e-6)  # floats: passes may regroup them
    if dtype != "disable":
        true = run(lambda x: qnn.quantize(x, *scales, out_dtype=dtype), data)
        np.testing.assert_array_equal(levels, true.astype(np.float32))


@alike(4)
@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_quantized_network_agrees_at_every_opt_level(opt_level: int) -> None:
    kernel = relay.const(integers("int8", 8, 3, 3, 3))
    x = relay.var("x", shape=(1, 3, 8, 8), dtype="float32")
    levels = qnn.quantize(x, scale(0.02), point(128), out_dtype="uint8")
    tensor = qnn.conv2d(levels, kernel, point(128), point(0), scale(0.02), scale(0.01), padding=1)
    bias = relay.nn.bias_add(tensor, relay.const(np.arange(8, dtype=np.int32)))
    tensor = qnn.requantize(bias, scale(0.0002), point(0), scale(0.05), point(0), axis=1)
    body = qnn.dequantize(relay.nn.relu(tensor), scale(0.05), point(0))
    module = relay.IRModule.from_expr(relay.Function([x], body))
    data = RNG.normal(size=(1, 3, 8, 8)).astype(np.float32)
    with ekiden.transform.PassContext(opt_level=opt_level):
        result = relay.create_executor("vm", module).evaluate()(data).numpy()
    np.testing.assert_array_equal(
        result, relay.create_executor("debug", module).evaluate()(data).numpy()
    )


def test_every_operator_of_the_dialect_is_replaced() -> None:
    names = [name for name in OPS if name.startswith("qnn.")]
    table = OP_ATTRS["FTVMQnnCanonicalize"]
    assert sorted(names) == sorted(table)
    assert len(names) == 25


REFUSED = {
    "qnn.quantize: 'data' must be one of float32, got int8": lambda x: qnn.quantize(
        x, scale(1.0), point(0)
    ),
    "qnn.dequantize: 'input_scale' must be float32, got int32": lambda x: qnn.dequantize(
        x, point(1), point(0)
    ),
    "qnn.dequantize: axis 2 is out of range for 2 dimensions": lambda x: qnn.dequantize(
        x, scale(1.0, 2.0), point(0), axis=2
    ),
    "qnn.requantize: elements of 'input_scale' and of its axis must agree, got 2 and 3": (
        lambda x: qnn.requantize(x, scale(1.0, 2.0), point(0), scale(1.0), point(0))
    ),
    "qnn.tanh: 'zero_point' must have 0 dimensions, got 1: (2,)": lambda x: qnn.tanh(
        x, scale(1.0), point(0, 1), scale(1.0), point(0)
    ),
    "qnn.dense: 'out_dtype' must be one of int32, int64, got int8": lambda x: qnn.dense(
        x, x, point(0), point(0), scale(1.0), scale(1.0), out_dtype="int8"
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_invalid_qnn_arguments_are_refused(message: str) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        relay.transform.InferType()(module_of(REFUSED[message], integers("int8", 2, 3)))
    assert message in str(caught.value)


def test_unknown_roundings_are_refused() -> None:
    with pytest.raises(CompileError, match="'rounding' must be one of 'UPWARD', 'TONEAREST', got"):
        qnn.requantize_config(rounding="UP").__enter__()


def test_vectors_of_one_are_scalars() -> None:
    data = np.arange(12, dtype="uint8").reshape(3, 4)
    x = relay.var("x", shape=data.shape, dtype="uint8")
    one, zero = relay.const(np.array([0.5])), relay.const(np.array([3]))
    output = relay.qnn.op.dequantize(x, one, zero)
    result = relay.create_executor("debug", ekiden.IRModule.from_expr(output)).evaluate()(data)
    np.testing.assert_array_equal(result.numpy(), (data.astype("float32") - 3) / 2)


@pytest.mark.parametrize("rounding", ["TWICE", "UPWARD", "TONEAREST"])
@pytest.mark.parametrize("scales", [(0.1, 0.3, 1e-9, 1e-12), (0.6, 0.02, 1.5, 2.0**-40)])
def test_fixed_point_multiply_at_int32_limits(rounding: str, scales: Sequence[float]) -> None:
    ends = [-(2**31), -(2**31) + 1, 2**31 - 1, -(2**30), 2**30 - 1, -3, -2, -1, 0, 1, 2, 3]
    data = np.repeat(np.array(ends, np.int32)[:, None], 4, axis=1)
    if max(scales) > 1:
        data[:5] >>= 2  # what is above int32 has no meaning
    x = relay.var("x", shape=data.shape, dtype="int32")
    output = scale_conversion.multiply_fixed_point(x, np.array(scales), rounding)
    module = relay.IRModule.from_expr(relay.Function([x], output))
    result = ekiden.compile(module)(data).numpy()
    np.testing.assert_array_equal(
        result, scale_conversion.multiply_fixed_point_array(data, np.array(scales), rounding)
    )
