"""What the fuzzer of operators found, one test each: compiled code gives what the interpreter
gives, or both refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.op import Array
from ekiden.ir.prim import IntImm, SizeVar
from ekiden.relay import op
from ekiden.relay.op.dynamic import DynamicAttrs
from ekiden.relay.qnn import op as qnn
from ekiden.runtime.errors import (
    CompileError,
    IndexRangeError,
    InputError,
    RunError,
    TypeInferenceError,
)
from ekiden.runtime.string_tensors import encode_strings, sort_strings
from long_runs import alike, share

pytestmark = pytest.mark.quick
Build = Callable[..., relay.Expr]


def module_of(build: Build, *arrays: Array) -> relay.IRModule:
    params = [relay.var(f"x{i}", shape=a.shape, dtype=str(a.dtype)) for i, a in enumerate(arrays)]
    return relay.IRModule.from_expr(relay.Function(params, build(*params)))


def both(build: Build, *arrays: Array) -> Array:
    """What the interpreter and the virtual machine give, which must agree."""
    module = module_of(build, *arrays)
    meant, result = (
        relay.create_executor(kind, module).evaluate()(*arrays).numpy() for kind in ("debug", "vm")
    )
    np.testing.assert_allclose(result, meant, rtol=1e-2 if result.dtype == "float16" else 1e-5)
    return np.asarray(result)


def both_refuse(build: Build, *arrays: Array) -> None:
    """Each raises an InputError when it runs."""
    module = module_of(build, *arrays)
    for kind in ("debug", "vm"):
        run = relay.create_executor(kind, module).evaluate()
        with pytest.raises(InputError, match="negative"):
            run(*arrays)


@pytest.mark.slow
def test_float16_determinant_matches_interpreter() -> None:
    assert both(op.det, np.diag([2, 3]).astype("float16")).tolist() == 6


@pytest.mark.slow
def test_negative_sizes_are_refused() -> None:
    image, line = np.zeros((1, 2, 4, 5), "float32"), np.zeros((0, 16), "float32")
    both_refuse(op.image.resize2d, image, np.array([-8, 26]))
    both_refuse(op.tile, line, np.array([-4, 0]))


NUMBERS = np.array([1.5, -1.5, 0.0, -0.0, 1e-40, 7.0, -7.0], "float32")
DIVISORS = np.array([[np.inf], [-np.inf], [2.0], [-2.0], [1e4]], "float32")


@pytest.mark.slow
@share(3)
@pytest.mark.parametrize("name", ["floor_mod", "floor_divide", "mod", "trunc_mod", "trunc_divide"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_remainder_by_infinity_matches_interpreter(name: str, dtype: str) -> None:
    numbers, divisors = NUMBERS.astype(dtype), DIVISORS.astype(dtype)
    result = both(getattr(op, name), numbers, divisors)
    if name == "floor_mod":
        assert result[0].tolist()[:3] == [1.5, np.inf, 0]
    if name in ("mod", "trunc_mod"):
        np.testing.assert_array_equal(result[0], numbers)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["nearest_neighbor", "linear", "cubic"])
def test_resizing_spreads_no_further_than_it_looks(method: str) -> None:
    x = np.arange(32, dtype="float32").reshape(1, 1, 4, 8)
    x[0, 0, 0, 0] = np.nan
    result = both(lambda x: op.image.resize2d(x, (8, 16), method=method), x)
    assert np.isfinite(result[..., 4:, 8:]).all() and np.isnan(result[0, 0, 0, 0])


@pytest.mark.slow
def test_products_of_bfloat16() -> None:
    x, w = (np.arange(n, dtype="float32").reshape(s) for n, s in ((12, (1, 2, 6)), (12, (2, 2, 3))))
    brief = [a.astype(ml_dtypes.bfloat16) for a in (x, w)]
    for build in (op.nn.conv1d, op.nn.conv1d_transpose):
        module = module_of(build, *brief)
        meant, result = (
            relay.create_executor(kind, module).evaluate()(*brief).numpy().astype("float32")
            for kind in ("debug", "vm")
        )
        np.testing.assert_allclose(result, meant, rtol=2**-6)


def test_int_min_division_matches_interpreter() -> None:
    result = both(lambda x: op.divide(x, relay.const(-3)), np.array([-(2**31), 7], "int32"))
    assert result.tolist() == [715827882, -2]


@pytest.mark.slow
def test_inconsistent_tree_nodes_are_refused() -> None:
    whole = [np.zeros(2, "int32"), np.zeros(5, "int32"), np.zeros(5, "float32"),
             np.zeros((5, 2), "int32"), np.zeros(5, "int32")]  # fmt: skip
    data = np.zeros((3, 4), "float32")
    assert both(lambda *x: op.ml.tree_leaves(*x, 2), data, *whole).tolist() == [[0, 0]] * 3
    for at in (2, 3, 4):
        short = [a[:3] if n == at else a for n, a in enumerate(whole)]
        with pytest.raises(TypeInferenceError, match="must have shape"):
            module = module_of(lambda *x: op.ml.tree_leaves(*x, 2), data, *short)
            relay.transform.InferType()(module)


@pytest.mark.slow
def test_coordinate_count_matches_declaration() -> None:
    def build(data: relay.Expr, at: relay.Expr) -> relay.Expr:
        return op.gather_nd(data, at, index_rank=3)

    arrays = np.zeros((4, 16, 1), "float32"), np.zeros((2, 7), "int64")
    with pytest.raises(TypeInferenceError, match="'indices' must have shape"):
        relay.transform.InferType()(module_of(build, *arrays))
    n = SizeVar("n")
    params = [relay.var("x", shape=(4, 16, 1)), relay.var("at", shape=(n, 7), dtype="int64")]
    exe = ekiden.compile(relay.IRModule.from_expr(relay.Function(params, build(*params))))
    assert exe(arrays[0], np.zeros((3, 7), "int64")).shape == (7,)
    with pytest.raises(InputError, match="needs n == 3; n is 2"):
        exe(*arrays)


def test_sequence_positions_are_host_integers() -> None:
    x = np.zeros((2, 2), "float32")

    def build(x: relay.Expr, at: relay.Expr) -> relay.Expr:
        return op.sequence.at(op.sequence.append(op.sequence.empty(), x), at)

    for at in (np.int8(0), np.array([0, 0])):
        module = module_of(build, x, np.asarray(at))
        lists = {op.sequence.LIST.header: op.sequence.LIST}
        with pytest.raises(TypeInferenceError, match="must be a number of int32 or int64"):
            relay.transform.InferType()(relay.IRModule(module.functions, lists))


def test_squeeze_of_symbolic_dimensions_requires_axes() -> None:
    x = relay.var("x", shape=(1, SizeVar("n"), 2))
    with pytest.raises(TypeInferenceError, match="'axis' is needed"):
        relay.transform.InferType()(relay.IRModule.from_expr(relay.Function([x], op.squeeze(x))))


@pytest.mark.slow
def test_ravel_index_overflow_is_refused() -> None:
    none, shape = np.zeros(0, "int32"), np.full(33, 4, "int32")
    assert both(op.unravel_index, none, shape).shape == (33, 0)


@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_take_from_empty_axis_is_refused(mode: str) -> None:
    n = SizeVar("n")
    params = [relay.var("x", shape=(n, 3)), relay.var("at", shape=(), dtype="int64")]
    body = op.take(params[0], params[1], 0, mode=mode)
    module = relay.IRModule.from_expr(relay.Function(params, body))
    for kind in ("debug", "vm"):
        run = relay.create_executor(kind, module).evaluate()
        assert run(np.ones((2, 3), "float32"), np.asarray(7)).numpy().tolist() == [1, 1, 1]
        with pytest.raises(IndexRangeError, match="take: extent of 'data' along axis 0 0 is out"):
            run(np.zeros((0, 3), "float32"), np.asarray(7))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_trigonometry_of_large_angles_matches_interpreter(dtype: str) -> None:
    angles = np.array([1e30, -1e30, 2.0**31, 1e22, 1e300, 1.7e308, 2.0**27 + 0.5, 3e9], "float64")
    with np.errstate(over="ignore"):
        angles = angles.astype(dtype)
    angles = angles[np.isfinite(angles)]
    for build, function in ((op.sin, np.sin), (op.cos, np.cos)):
        actual = both(build, angles)
        expected = function(angles.astype("float64"))
        np.testing.assert_allclose(actual, expected, atol=2 * np.finfo(dtype).eps)


@pytest.mark.slow
def test_broadcast_to_cannot_shrink_axes() -> None:
    n, like = SizeVar("n"), np.zeros((3, 7, 1), "float32")
    with pytest.raises(TypeInferenceError, match="does not broadcast"):
        module = module_of(op.broadcast_to_like, np.zeros((7, 8), "float32"), like)
        relay.transform.InferType()(module)
    for build in (op.broadcast_to_like, lambda x, like: op.broadcast_to(x, (3, 7, 1))):
        params = [relay.var("x", shape=(7, n)), relay.var("like", shape=(3, 7, 1))]
        module = relay.IRModule.from_expr(relay.Function(params, build(*params)))
        run = relay.create_executor("vm", module).evaluate()
        assert run(np.zeros((7, 1), "float32"), like).numpy().shape == (3, 7, 1)
        with pytest.raises(InputError, match="needs n == 1; n is 8"):
            run(np.zeros((7, 8), "float32"), like)


@pytest.mark.slow
def test_empty_reductions_match_interpreter() -> None:
    n, none = SizeVar("n"), np.zeros((2, 0), "float32")
    x = relay.var("x", shape=(2, n))
    for body, expected in (
        (op.min(x, 1), np.inf),
        (op.max(x, 1), -np.inf),
        (op.variance(x, 1, unbiased=True), np.nan),
    ):
        module = relay.IRModule.from_expr(relay.Function([x], body))
        for kind in ("debug", "vm"):
            actual = relay.create_executor(kind, module).evaluate()(none).numpy()
            np.testing.assert_array_equal(actual, [expected] * 2)


def test_ambiguous_reshape_extent_is_refused() -> None:
    both_refuse_to_reshape = np.zeros((3, 0), "float32"), np.array([-1, 0])
    module = module_of(lambda x, s: op.reshape(x, s, allowzero=True), *both_refuse_to_reshape)
    with pytest.raises(InputError, match="what is left is not clear"):
        ekiden.compile(module)(*both_refuse_to_reshape)


@pytest.mark.slow
def test_squeeze_refuses_repeated_axes() -> None:
    x, axes = np.zeros((1, 3, 0), "float32"), np.array([0, 0])
    with pytest.raises(InputError, match="axis 0 is dropped twice"):
        ekiden.compile(module_of(op.squeeze, x, axes))(x, axes)


@pytest.mark.parametrize("ends", [(-3.0, 200.0), (0.0, 0.5), (0.5, 1.0), (-1.0, 1.0)])
def test_clip_of_bools_uses_integer_bounds(ends: tuple[float, float]) -> None:
    """As of integers, whose ends lose their fractions, of what is above 0 upwards."""
    result = both(lambda x: op.clip(x, *ends), np.array([True, False]))
    assert result.tolist() == [ends[1] >= 1, ends[0] > 0]


def test_empty_strings_are_found_among_keys() -> None:
    keys = relay.const(encode_strings(sort_strings(["", "a"])))
    result = both(lambda t: op.text.find(t, keys), np.zeros((3, 0), "uint8"))
    assert result.tolist() == [1, 1, 1]


@pytest.mark.slow
def test_arange_has_dtype_of_start() -> None:
    ends = [relay.var(n, shape=(), dtype="int64") for n in "abc"]
    call = relay.Call(relay.op.get("dyn.arange"), tuple(ends), DynamicAttrs())
    module = relay.IRModule.from_expr(relay.Function(ends, call))
    for kind in ("debug", "vm"):
        run = relay.create_executor(kind, module).evaluate()
        assert run(*map(np.asarray, (3, 9, 2))).numpy().tolist() == [3, 5, 7]


def test_negative_counts_are_refused() -> None:
    x, row = np.zeros((2, 6, 4), "float32"), np.zeros(6, "float32")
    refused = (
        (lambda x, w: op.nn.group_norm(x, w, w, -2), (x, row)),
        (lambda x, i: op.gather_nd(x, i, -2), (x, np.zeros((2, 7), "int64"))),
    )
    for build, arrays in refused:
        with pytest.raises(TypeInferenceError, match="-2"):
            relay.transform.InferType()(module_of(build, *arrays))


@pytest.mark.slow
def test_scales_determine_symbolic_extent() -> None:
    x = relay.var("x", shape=(2, SizeVar("n")))
    scales = relay.const(np.ones(3, "float32")), relay.const(np.zeros(3, "int32"))
    module = relay.IRModule.from_expr(
        relay.Function([x], qnn.simulated_quantize(x, *scales, out_dtype="int8"))
    )
    assert ekiden.compile(module)(np.ones((2, 3), "float32")).numpy().tolist() == [[1] * 3] * 2
    with pytest.raises(InputError):
        ekiden.compile(module)(np.ones((2, 2), "float32"))


def test_reverse_refuses_repeated_axes() -> None:
    with pytest.raises(TypeInferenceError, match="an axis is there twice"):
        x = np.zeros((1, 4), "float32")
        relay.transform.InferType()(module_of(lambda x: op.reverse(x, (0, -2)), x))


def test_sequence_lengths_match_batch_size() -> None:
    x, lengths = np.zeros((3, 4, 5), "float32"), np.zeros(5, "int32")
    with pytest.raises(TypeInferenceError, match="'seq_lengths' must have shape"):
        module = module_of(lambda x, n: op.reverse_sequence(x, n, 0, -2), x, lengths)
        relay.transform.InferType()(module)


@pytest.mark.slow
def test_transposed_convolution_of_empty_rows() -> None:
    x, w = np.zeros((2, 3, 5, 0), "float32"), np.ones((3, 2, 3, 3), "float32")
    result = both(lambda x, w: op.nn.conv2d_transpose(x, w, (2, 3), output_padding=(0, 2)), x, w)
    assert result.shape == (2, 2, 11, 2) and not result.any()


@pytest.mark.slow
def test_unravel_index_of_oversized_shape() -> None:
    at, shape = np.array([54, 7], "int32"), np.full(33, 5, "int32")
    assert both(op.unravel_index, at, shape)[-3:].tolist() == [[2, 0], [0, 1], [4, 2]]


def test_views_lie_within_their_buffer() -> None:
    x = np.zeros((4, 5), "float32")
    for build, shape in ((op.vm.prefix, (3, 7)), (op.vm.part, (4, 3)), (op.vm.part, (4,))):
        dims = tuple(map(IntImm, shape))
        with pytest.raises(TypeInferenceError, match="a part of"):
            relay.transform.InferType()(module_of(lambda x, b=build, d=dims: b(x, d), x))


@pytest.mark.slow
def test_simulated_quantize_scale_count_matches_axis() -> None:
    scales = relay.const(np.ones(3, "float32")), relay.const(np.zeros(3, "int32"))
    for build in (qnn.simulated_quantize, qnn.simulated_dequantize):
        with pytest.raises(CompileError, match="elements of 'scale' and of its axis must agree"):
            ekiden.compile(module_of(lambda x, b=build: b(x, *scales), np.zeros((2, 2), "float32")))


WINDOWS = {
    "nn.conv1d": (op.nn.conv1d, ((1, 2, 8), (3, 2, 3))),
    "nn.conv2d": (op.nn.conv2d, ((1, 2, 8, 8), (3, 2, 3, 3))),
    "nn.conv3d": (op.nn.conv3d, ((1, 2, 5, 5, 5), (3, 2, 3, 3, 3))),
    "nn.conv1d_transpose": (op.nn.conv1d_transpose, ((1, 2, 8), (2, 3, 3))),
    "nn.conv2d_transpose": (op.nn.conv2d_transpose, ((1, 2, 8, 8), (2, 3, 3, 3))),
    "nn.conv3d_transpose": (op.nn.conv3d_transpose, ((1, 2, 5, 5, 5), (2, 3, 3, 3, 3))),
    "nn.max_pool1d": (op.nn.max_pool1d, ((1, 2, 8),)),
    "nn.max_pool2d": (op.nn.max_pool2d, ((1, 2, 8, 8),)),
    "nn.avg_pool3d": (op.nn.avg_pool3d, ((1, 2, 8, 8, 8),)),
    "nn.correlation": (
        lambda x, y: op.nn.correlation(x, y, 1, 1, 1, 1, 0, True),
        ((1, 2, 8, 8), (1, 2, 8, 8)),
    ),
    "image.dilation2d": (op.image.dilation2d, ((1, 2, 8, 8), (2, 3, 3))),
}
"""Operator -> the function that calls it, and shapes of its arguments."""


@pytest.mark.parametrize("name", WINDOWS)
def test_window_attributes_match_rank(name: str) -> None:
    build, shapes = WINDOWS[name]
    params = [relay.var(f"x{n}", shape=s) for n, s in enumerate(shapes)]
    call = build(*params)
    tried = 0
    for attr in call.attrs:
        value = call.attrs[attr]
        if not isinstance(value, tuple) or not value:
            continue
        for wrong in (value[:-1], (*value, value[-1])):
            other = relay.Call(call.op, call.args, call.attrs.with_fields(**{attr: wrong}))
            module = relay.IRModule.from_expr(relay.Function(params, other))
            with pytest.raises(TypeInferenceError, match=f"{attr} must be {len(value)} numbers"):
                relay.transform.InferType()(module)
            tried += 1
    assert tried >= 2


@pytest.mark.parametrize("name", WINDOWS)
def test_negative_padding_is_refused(name: str) -> None:
    build, shapes = WINDOWS[name]
    params = [relay.var(f"x{n}", shape=s) for n, s in enumerate(shapes)]
    call = build(*params)
    many = call.attrs["padding"]
    for at in range(len(many)):
        wrong = tuple(-1 if n == at else p for n, p in enumerate(many))
        other = relay.Call(call.op, call.args, call.attrs.with_fields(padding=wrong))
        module = relay.IRModule.from_expr(relay.Function(params, other))
        with pytest.raises(TypeInferenceError, match="padding must not be negative"):
            relay.transform.InferType()(module)


@pytest.mark.slow
@alike(4)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("out", ["int32", "int8", "float64"])
def test_float16_products_with_other_out_dtype(dtype: str, out: str) -> None:
    """As those of float32: each operand is taken as `out_dtype`."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    rng = np.random.default_rng(0)
    layers: tuple[tuple[Build, tuple[int, ...], tuple[int, ...]], ...] = (
        (op.nn.dense, (3, 4), (5, 4)),
        (op.nn.batch_matmul, (2, 3, 4), (2, 5, 4)),
        (op.nn.conv2d, (1, 2, 5, 5), (3, 2, 3, 3)),
        (op.nn.conv1d_transpose, (1, 2, 5), (2, 3, 3)),
    )
    for layer, *shapes in layers:
        arrays = [(rng.normal(size=s) * 3).astype(kind) for s in shapes]
        call = functools.partial(layer, out_dtype=out)
        wide = [a.astype("float64") for a in arrays]
        result = both(call, *arrays)
        np.testing.assert_allclose(result, both(call, *wide), rtol=1e-12)


def test_zero_window_size_and_depth_are_refused() -> None:
    x = relay.var("x", shape=(1, 2, 3, 0))
    with pytest.raises(TypeInferenceError, match="nn.lrn: size must be at least 1, got 0"):
        relay.testing.run_infer_type(op.nn.lrn(x, size=0))
    with pytest.raises(
        TypeInferenceError, match="a scale must be given where the depth of 'query'"
    ):
        relay.testing.run_infer_type(op.nn.attention(x, x, x))


def test_reshape_split_of_empty_tensor() -> None:
    text = "def @main(%x: Tensor[(n, m), float32]) { reshape(%x, newshape=[-4, 1, 2, -2]) }"
    module = relay.parse(text)
    for kind in ("debug", "vm"):
        run = relay.create_executor(kind, module).evaluate()
        assert run(np.zeros((2, 0), "float32")).numpy().shape == (1, 2, 0)
        with pytest.raises((InputError, RunError), match="8"):
            run(np.zeros((8, 0), "float32"))


@pytest.mark.parametrize("axis", [0, 1, None])
def test_far_out_of_range_indices_wrap(axis: int | None) -> None:
    data = np.arange(12, dtype="float32").reshape(3, 4)
    far = np.array([-(2**63), -(2**62) - 1, 2**63 - 1, -5, 7])
    result = both(lambda x, i: op.take(x, i, axis, mode="wrap"), data, far)
    extent = data.size if axis is None else data.shape[axis]
    np.testing.assert_array_equal(result, np.take(data, [int(i) % extent for i in far], axis))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["linear", "cubic"])
def test_sampling_far_outside_the_image(method: str) -> None:
    data = np.arange(1, 5, dtype="float32").reshape(1, 1, 1, 4)
    result = both(
        lambda x, s: op.image.resize2d(x, (1, 8), method=method, scales=s),
        data,
        np.array([1.0, 3e-7], "float32"),
    )
    assert result[0, 0, 0, -1] == 4.0


def test_zero_strides_and_groups_are_refused() -> None:
    data, weight = relay.var("x", shape=(1, 2, 8, 8)), relay.var("w", shape=(2, 3, 3, 3))
    for build, wrong in (
        (op.nn.conv2d_transpose, {"groups": 0}),
        (op.nn.conv2d_transpose, {"strides": (0, 1)}),
        (op.nn.conv2d, {"dilation": (1, -1)}),
    ):
        call = build(data, weight)
        other = relay.Call(call.op, call.args, call.attrs.with_fields(**wrong))
        module = relay.IRModule.from_expr(relay.Function([data, weight], other))
        with pytest.raises(TypeInferenceError, match=f"{next(iter(wrong))} must be at least 1"):
            relay.transform.InferType()(module)


def test_resize_requires_two_scales() -> None:
    x = np.zeros((1, 1, 4, 4), "float32")
    with pytest.raises(TypeInferenceError, match="scales must be of height and width"):
        module = module_of(lambda x: op.image.resize2d(x, (8, 8), scales=(2.0,)), x)
        relay.transform.InferType()(module)


@pytest.mark.parametrize(("scale", "rows"), [(np.nan, [0, 0]), (1e-40, [0, 3]), (-1e-40, [0, 0])])
def test_resize_with_nan_and_tiny_scales_reads_valid_rows(scale: float, rows: list[int]) -> None:
    """The first pixel is shown, or what is nearest to a place far outside."""
    x = np.arange(16, dtype="float32").reshape(1, 1, 4, 4)
    scales = np.array([scale, 1.0], "float32")
    attrs = op.image.Resize2DAttrs((2, 4), method="nearest_neighbor",
                                   coordinate_transformation_mode="asymmetric")  # fmt: skip
    resize = relay.op.get("image.resize2d_scaled")
    module = module_of(lambda *args: relay.Call(resize, args, attrs), x, scales)
    for kind in ("debug", "vm"):
        result = relay.create_executor(kind, module).evaluate()(x, scales).numpy()
        assert result[0, 0].tolist() == x[0, 0, rows].tolist()


@pytest.mark.slow
def test_slice_by_sizes_refuses_strides() -> None:
    inputs = [np.arange(8, dtype="float32").reshape(4, 2), *(np.array([n]) for n in (1, 2, 0))]
    module = module_of(lambda x, *cut: op.strided_slice(x, *cut, slice_mode="size"), *inputs)
    for kind in ("debug", "vm"):
        result = relay.create_executor(kind, module).evaluate()(*inputs).numpy()
        assert result.tolist() == [[2, 3], [4, 5]]


@pytest.mark.slow
def test_resize_of_empty_images_is_refused() -> None:
    n, size = SizeVar("n"), np.array([4, 3])
    params = [relay.var("x", shape=(1, 2, n, 5)), relay.var("size", shape=(2,), dtype="int64")]
    module = relay.IRModule.from_expr(relay.Function(params, op.image.resize2d(*params)))
    run = relay.create_executor("vm", module).evaluate()
    assert run(np.zeros((1, 2, 1, 5), "float32"), size).numpy().shape == (1, 2, 4, 3)
    with pytest.raises(InputError, match="n >= 1; n is 0"):
        run(np.zeros((1, 2, 0, 5), "float32"), size)
    with pytest.raises(TypeInferenceError, match="at least 1 elements along axis 2"):
        none = module_of(op.image.resize2d, np.zeros((1, 2, 0, 5), "float32"), size)
        relay.transform.InferType()(none)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_edge_padding_of_empty_axes_is_refused(mode: str) -> None:
    n, m = SizeVar("n"), SizeVar("m")
    for width, least in ((((2, 0), (0, 0)), 1), (((-1, 2), (0, 0)), 2)):
        x = relay.var("x", shape=(n, m))
        module = relay.IRModule.from_expr(
            relay.Function([x], op.nn.pad(x, width, 0.0, pad_mode=mode))
        )
        run = relay.create_executor("vm", module).evaluate()
        extent = least + sum(width[0])
        assert run(np.ones((least, 2), "float32")).numpy().tolist() == [[1, 1]] * extent
        for columns in (0, 2):
            with pytest.raises(InputError, match=f"n >= {least}; n is {least - 1}"):
                run(np.zeros((least - 1, columns), "float32"))
        with pytest.raises(TypeInferenceError, match="'data' must have at least"):
            none = np.zeros((least - 1, 2), "float32")
            relay.transform.InferType()(
                module_of(lambda x, w=width: op.nn.pad(x, w, 0.0, pad_mode=mode), none)
            )


def test_variance_refuses_repeated_axes() -> None:
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    result = both(lambda x: op.variance(x, (1, -2), keepdims=True), x)
    np.testing.assert_allclose(result, x.var(1, keepdims=True))


@share(3)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.5, 2.0, 3.0])
def test_powers_of_infinity_match_interpreter(dtype: str, exponent: float) -> None:
    x = np.array([-np.inf, np.inf, -0.0, 0.0, -2.0, 4.0, np.nan], dtype)
    actual = both(lambda x: op.power(x, relay.const(exponent, dtype)), x)
    with np.errstate(all="ignore"):
        expected = np.power(x, np.full_like(x, exponent))
    np.testing.assert_array_equal(actual, expected)


def test_mask_length_matches_batch() -> None:
    x = np.zeros((3, 4, 5), "float32")
    with pytest.raises(TypeInferenceError, match="'valid_length' must have shape"):
        module = module_of(op.sequence_mask, x, np.zeros(0, "int32"))
        relay.transform.InferType()(module)
    n = SizeVar("n")
    params = [relay.var("x", shape=(3, 4, 5)), relay.var("length", shape=(n,), dtype="int32")]
    exe = ekiden.compile(
        relay.IRModule.from_expr(relay.Function(params, op.sequence_mask(*params)))
    )
    assert exe(x, np.zeros(4, "int32")).shape == (3, 4, 5)
    with pytest.raises(InputError, match="n is 2"):
        exe(x, np.zeros(2, "int32"))


@pytest.mark.slow
def test_scales_determine_dequantized_extent() -> None:
    n = SizeVar("n")
    x = relay.var("x", shape=(2, n), dtype="int8")
    steps = relay.const(np.full(3, 0.5, "float32")), relay.const(np.zeros(3, "int32"))
    whole = qnn.quantize(qnn.dequantize(x, *steps), *steps)
    exe = ekiden.compile(relay.IRModule.from_expr(relay.Function([x], whole)))
    assert exe(np.ones((2, 3), "int8")).numpy().tolist() == [[1, 1, 1]] * 2
    for extent in (1, 2):
        with pytest.raises(InputError, match=f"n is {extent}"):
            exe(np.ones((2, extent), "int8"))


@pytest.mark.slow
def test_reshape_of_empty_tensors_infers_extent() -> None:
    """A -1 is what remains of the factors, which a 0 among them does not hide."""
    for shape, expected in (((0, 4), (0, 1)), ((0, 4, 3), (0, 3))):
        assert both(lambda x: op.reshape(x, (-3, -1)), np.zeros(shape, "float32")).shape == expected


@pytest.mark.slow
def test_float16_normalization_computes_in_float32() -> None:
    x = np.linspace(-3, 3, 2 * 8 * 3).reshape(2, 8, 3).astype(ml_dtypes.bfloat16)
    module = module_of(lambda x: op.nn.lrn(x, 5, 1, 2.0, -1.0, 0.75), x)
    with np.errstate(invalid="ignore"):  # roots of what is below 0
        meant, result = (
            relay.create_executor(kind, module).evaluate()(x).numpy().astype("float64")
            for kind in ("debug", "vm")
        )
    np.testing.assert_allclose(result, meant, rtol=2**-8)  # half a unit of the last place, twice


def test_mean_of_bools_matches_interpreter() -> None:
    x = np.array([[True, True, True], [True, False, True]])
    assert both(lambda x: op.mean(x, 1), x).tolist() == [True, False]


@pytest.mark.slow
def test_window_larger_than_data_is_refused() -> None:
    n, attrs = SizeVar("n"), (1, (2, 3), (1, 2))
    with pytest.raises(TypeInferenceError, match="at least 3 elements along axis 2"):
        module = module_of(lambda x: op.sliding_window(x, *attrs), np.zeros((3, 17, 1), "float32"))
        relay.transform.InferType()(module)
    with pytest.raises(TypeInferenceError, match="strides must be at least 1"):
        module = module_of(lambda x: op.sliding_window(x, 0, (2,), (0,)), np.zeros(4, "float32"))
        relay.transform.InferType()(module)
    x = relay.var("x", shape=(3, 17, n))
    module = relay.IRModule.from_expr(relay.Function([x], op.sliding_window(x, *attrs)))
    run = relay.create_executor("vm", module).evaluate()
    assert run(np.zeros((3, 17, 5), "float32")).numpy().shape == (3, 16, 2, 2, 3)
    with pytest.raises(InputError, match="n >= 3; n is 2"):
        run(np.zeros((3, 17, 2), "float32"))


@pytest.mark.slow
def test_split_of_empty_axis_checks_divisibility() -> None:
    n, m = SizeVar("n"), SizeVar("m")
    x = relay.var("x", shape=(n, m))
    for shape in ((0, -4, 2, -1), (0, 2, -1)):
        module = relay.IRModule.from_expr(relay.Function([x], op.reshape(x, shape)))
        run = relay.create_executor("vm", module).evaluate()
        assert run(np.zeros((0, 8), "float32")).numpy().shape == (0, 2, 4)
        for rows in (0, 3):
            with pytest.raises(InputError, match="m is 7"):
                run(np.zeros((rows, 7), "float32"))


def test_correlation_images_have_equal_shapes() -> None:
    a, b = np.zeros((1, 4, 4, 33), "float32"), np.zeros((1, 4, 4, 5), "float32")
    with pytest.raises(TypeInferenceError, match="'data2' must have shape"):
        module = module_of(lambda x, y: op.nn.correlation(x, y, 1, 1, 1, 1, 1, True), a, b)
        relay.transform.InferType()(module)


@pytest.mark.slow
def test_topk_of_empty_rows_checks_k() -> None:
    module = module_of(op.topk, np.zeros((0, 4), "float32"), np.array(15))
    for kind in ("debug", "vm"):
        with pytest.raises(InputError, match="k is larger than the extent"):
            relay.create_executor(kind, module).evaluate()(
                np.zeros((0, 4), "float32"), np.array(15)
            )


def test_mismatched_extents_are_refused() -> None:
    """Kernels take what they read for granted."""
    image = np.zeros((1, 3, 5, 6), "float32")
    packed = {"channels": 6, "data_layout": "NHWC", "kernel_layout": "OHWI4o"}
    grouped = {"groups": 2, **packed, "kernel_layout": "GOHWI4o"}
    refused = (
        (lambda x, w: op.image.dilation2d(x, w), (image, np.zeros((2, 3, 3), "float32"))),
        (op.searchsorted, (np.zeros((2, 9), "float32"), np.zeros((3, 5), "float32"))),
        (
            op.nn.conv3d_transpose,
            (np.zeros((1, 3, 3, 2, 3), "float32"), np.zeros((2, 2, 2, 3, 2), "float32")),
        ),
        (
            op.nn.conv1d_transpose,
            (np.zeros((2, 3, 5), "float32"), np.zeros((4, 3, 4), "float32")),
        ),
        (op.text.concat, (np.zeros((5, 4), "uint8"), np.zeros((4, 7), "uint8"))),
        (op.ml.couple, (np.zeros((5, 2, 3), "float32"),)),
        (lambda x, w: op.nn.conv1d(x, w, groups=3), (image[0], np.zeros((3, 5, 0), "float32"))),
        *(
            (lambda x, w: op.nn.conv2d(x, w, **packed), (np.zeros((2, 9, 8, 3), "float32"), w))
            for w in (
                np.zeros((1, 3, 3, 3, 4), "float32"),
                np.zeros((2, 3, 3, 3, 3), "float32"),
                np.zeros((0, 3, 3, 3, 4), "float32"),
            )
        ),
        (
            lambda x, w: op.nn.conv2d(x, w, **grouped),
            (np.zeros((2, 9, 8, 4), "float32"), np.zeros((1, 1, 3, 3, 2, 4), "float32")),
        ),
    )
    for build, arrays in refused:
        with pytest.raises(TypeInferenceError):
            relay.transform.InferType()(module_of(build, *arrays))
    good = np.zeros((2, 3, 3, 3, 4), "float32")
    relay.transform.InferType()(
        module_of(
            lambda x, w: op.nn.conv2d(x, w, **packed), np.zeros((2, 9, 8, 3), "float32"), good
        )
    )


@pytest.mark.slow
def test_conv3d_of_empty_depth() -> None:
    x, w = np.zeros((1, 4, 0, 4, 6), "float32"), np.ones((6, 2, 2, 3, 3), "float32")
    result = both(lambda x, w: op.nn.conv3d(x, w, padding=(1, 0, 1, 1, 0, 1), groups=2), x, w)
    assert result.shape[2] == 1 and not result.any()


@pytest.mark.slow
def test_qnn_softmax_of_empty_rows_matches_interpreter() -> None:
    steps = relay.const(np.float32(0.1)), relay.const(np.int32(0))
    result = both(lambda x: qnn.softmax(x, *steps, *steps), np.zeros((3, 0), "int8"))
    assert result.shape == (3, 0)


def test_normalization_over_zero_channels() -> None:
    assert both(op.nn.lrn, np.zeros((2, 0, 4, 5), "float32")).shape == (2, 0, 4, 5)


def test_gather_nd_without_coordinates_returns_everything() -> None:
    x = np.arange(120, dtype="float32").reshape(4, 5, 6)
    result = both(op.gather_nd, x, np.zeros((0, 7), "int64"))
    np.testing.assert_array_equal(result, np.broadcast_to(x, (7, 4, 5, 6)))


def test_gather_of_no_indices_reads_no_extent() -> None:
    result = both(op.unravel_index, np.zeros(0, "int32"), np.array([6, 0, -2], "int32"))
    assert result.shape == (3, 0)


def test_batched_coordinates_require_axes() -> None:
    x, at = np.zeros((4, 5, 6), "float32"), np.zeros((1, 4), "int64")
    with pytest.raises(TypeInferenceError, match="more axes than batch_dims, got 2 and 2"):
        relay.transform.InferType()(module_of(lambda x, i: op.gather_nd(x, i, 2), x, at))


def test_transposed_convolution_groups_divide_channels() -> None:
    x, w = np.zeros((1, 3, 4, 1), "float32"), np.zeros((3, 2, 3, 3), "float32")
    with pytest.raises(TypeInferenceError, match="a multiple of groups, got 3 and 7"):
        module = module_of(lambda x, w: op.nn.conv2d_transpose(x, w, groups=7), x, w)
        relay.transform.InferType()(module)


@pytest.mark.slow
def test_symbolic_axis_splits_into_equal_parts() -> None:
    """Seven rows in two parts lost the last one in silence."""
    n = SizeVar("n")
    x = relay.var("x", shape=(n, 3))
    exe = ekiden.compile(relay.IRModule.from_expr(relay.Function([x], op.split(x, 2))))
    rows = np.arange(18, dtype="float32").reshape(6, 3)
    first, second = exe(rows)
    np.testing.assert_array_equal(np.concatenate([first.numpy(), second.numpy()]), rows)
    with pytest.raises(InputError, match="split"):
        exe(np.zeros((7, 3), "float32"))


@pytest.mark.slow
def test_split_indices_lie_within_the_axis() -> None:
    with pytest.raises(TypeInferenceError, match="4 is behind 2"):
        module = module_of(lambda x: op.split(x, (1, 1, 4), -1), np.zeros((3, 2), "float32"))
        relay.transform.InferType()(module)
    x = relay.var("x", shape=(3, SizeVar("n")))
    function = relay.Function([x], op.split(x, (1, 1, 4), axis=-1))
    exe = ekiden.compile(relay.IRModule.from_expr(function))
    assert [t.shape for t in exe(np.zeros((3, 5), "float32"))] == [(3, 1), (3, 0), (3, 3), (3, 1)]
    with pytest.raises(InputError, match="split"):
        exe(np.zeros((3, 2), "float32"))


def test_per_axis_multiplier_count_matches_extent() -> None:
    """Those that were missing were read behind the end."""
    x, y = relay.var("x", shape=(2, 7), dtype="int32"), relay.var("y", shape=(2,), dtype="int32")
    with pytest.raises(CompileError, match=r"'y' must have shape \(7\), got \(2"):
        relay.transform.InferType()(
            ekiden.IRModule.from_expr(
                op.fixed_point_multiply_per_axis(x, y, y, y, True, True, (-1,))
            )
        )


@pytest.mark.slow
@alike(6)
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_symbolic_channels_are_multiples_of_groups(rank: int, is_transposed: bool) -> None:
    """A run with others gave numbers."""
    build = getattr(op.nn, f"conv{rank}d" + "_transpose" * is_transposed)
    kinds = [[SizeVar(f"{name}{n}") for n in range(rank + 2)] for name in "xw"]
    x, w = (relay.var(name, shape=kind) for name, kind in zip("xw", kinds, strict=True))
    exe = ekiden.compile(ekiden.IRModule.from_expr(relay.Function([x, w], build(x, w, groups=2))))
    argument, weight = ((2, 3), (3, 2)) if is_transposed else ((2, 16), (1, 8))
    with pytest.raises(InputError, match=r"needs floormod\(\w+, 2\) == 0"):
        exe(
            np.ones((*argument, *(2,) * rank), "float32"),
            np.ones((*weight, *(1,) * rank), "float32"),
        )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_output_padding_is_less_than_stride(rank: int) -> None:
    """Of one dimension it passed, and its layout did not."""
    build = getattr(op.nn, f"conv{rank}d_transpose")
    x, w = (relay.var(n, shape=(4, 4, *(5,) * rank)) for n in "xw")
    call = build(x, w, strides=(2,) * rank, output_padding=(7,) * rank)
    with pytest.raises(TypeInferenceError, match=r"output_padding \(7.*must be below strides"):
        relay.transform.InferType()(ekiden.IRModule.from_expr(relay.Function([x, w], call)))


def test_negative_number_of_new_axes_is_refused() -> None:
    x, axis = relay.var("x", shape=(5, 17)), relay.var("a", shape=(), dtype="int64")
    call = op.expand_dims(x, axis, -1)
    with pytest.raises(TypeInferenceError, match="num_newaxis must not be negative, got -1"):
        relay.transform.InferType()(ekiden.IRModule.from_expr(relay.Function([x, axis], call)))


@pytest.mark.slow
def test_vector_loads_stay_within_rows() -> None:
    """A window for each pixel, few channels: lines are read in whole vectors."""
    inputs = [np.ones((1, 1, 3, 3), "float32"), np.zeros((1, 1, 6, 6), "float32")]
    module = module_of(lambda g, x: op.nn.avg_pool2d_grad(g, x, (2, 2), (2, 2)), *inputs)
    result = ekiden.compile(module, bounds="check")(*inputs).numpy()
    assert (result == 0.25).all()


@pytest.mark.slow
def test_reshape_zero_requires_the_dimension() -> None:
    inputs = [np.zeros((5, 0), "float32"), np.array([1, 1, 0])]
    module = module_of(op.reshape, *inputs)
    for kind in ("debug", "vm"):
        run = relay.create_executor(kind, module).evaluate()
        with pytest.raises(
            (InputError, RunError), match="a 0 stands for a dimension that the data has not"
        ):
            run(*inputs)


def test_sparse_to_dense_rank_mismatch_is_a_type_error() -> None:
    places, shape = np.zeros((2, 33), "int32"), np.array([4, 4], "int32")
    values, default = np.ones(2, "float32"), np.zeros((), "float32")
    inputs = [relay.var(f"x{n}", shape=a.shape, dtype=str(a.dtype))
             for n, a in enumerate((places, values, default, shape))]  # fmt: skip
    dense = relay.Call(relay.op.get("dyn.sparse_to_dense"), inputs)
    with pytest.raises(TypeInferenceError, match="positions of 33 numbers, the result has 2"):
        relay.transform.InferType()(relay.IRModule.from_expr(relay.Function(inputs, dense)))


def test_constant_scatter_updates_match_interpreter() -> None:
    """The kernel of scatters wants all that it is given in memory; found by a program of JAX."""
    data, place = np.arange(4, dtype="int32"), np.array([2], "int32")
    result = both(lambda x, i: op.scatter_nd(x, i, relay.const(-7, "int32")), data, place)
    assert result.tolist() == [0, 1, -7, 3]


@pytest.mark.slow
def test_attention_without_keys_matches_interpreter() -> None:
    query, none = np.ones((1, 1, 3, 4), "float32"), np.ones((1, 1, 0, 4), "float32")
    zeros = both(lambda *x: op.nn.attention(*x, nan_as_zero=True), query, none, none)
    assert not zeros.any()
    assert np.isnan(both(op.nn.attention, query, none, none)).all()


@pytest.mark.slow
def test_transposed_convolution_errors_name_sizes() -> None:
    x, w = (
        relay.var("x", shape=(1, 2, SizeVar("n"), 4)),
        relay.const(np.ones((2, 1, 2, 2), "float32")),
    )
    call = op.nn.conv2d_transpose(x, w, (3, 1), kernel_size=(2, 2), channels=1)
    run = ekiden.compile(relay.IRModule.from_expr(relay.Function([x], call)))
    assert run(np.ones((1, 2, 1, 4), "float32")).shape == (1, 1, 2, 5)
    with pytest.raises(InputError, match="nn.conv2d_transpose needs .*; n is 0"):
        run(np.ones((1, 2, 0, 4), "float32"))


WRAPPING: dict[str, Build] = {
    "x + 1 > x": lambda x: op.greater(op.add(x, relay.const(1)), x),
    "x * 4 // 4": lambda x: op.floor_divide(op.multiply(x, relay.const(4)), relay.const(4)),
    "x * 6 % 3": lambda x: op.floor_mod(op.multiply(x, relay.const(6)), relay.const(3)),
    "max(x + 1, x)": lambda x: op.maximum(op.add(x, relay.const(1)), x),
    "x + x == 0": lambda x: op.equal(op.add(x, x), relay.const(0)),
    "x << 28 >> 28": lambda x: op.right_shift(op.left_shift(x, relay.const(28)), relay.const(28)),
    "-x > 3 ? x < -3 : false": lambda x: op.where(
        op.greater(op.negative(x), relay.const(3)), op.less(x, relay.const(-3)), op.less(x, x)
    ),
    "x + 1 < 0 ? x < 0 : x > 5": lambda x: op.where(
        op.less(op.add(x, relay.const(1)), relay.const(0)),
        op.less(x, relay.const(0)),
        op.greater(x, relay.const(5)),
    ),
}


@pytest.mark.parametrize("name", WRAPPING)
def test_int32_arithmetic_wraps_around(name: str) -> None:
    ends = np.iinfo("int32")
    x = np.array([ends.min, ends.min + 1, ends.max, 2**30, 2**30 + 1, -3, 0, 7, 13], "int32")
    both(WRAPPING[name], x)


@pytest.mark.parametrize("pool", [op.nn.avg_pool2d, op.nn.max_pool2d])
def test_pooling_skips_taps_always_in_padding(pool: Build) -> None:
    """A window of 2**31 rows over six of them would take minutes if each tap was visited."""
    size, before = 2**31, 2**30 - 1
    data = np.arange(72, dtype="float32").reshape(1, 6, 6, 2)
    x = relay.var("x", shape=data.shape)
    windows = pool(x, (size, 3), (1, 1), (1, 1), (before, 1, before + 1, 1), layout="NHWC")
    columns = pool(x, (11, 3), (1, 1), (1, 1), (5, 1, 5, 1), layout="NHWC")
    both_windows = relay.Function([x], relay.Tuple([windows, columns]))
    result = ekiden.compile(both_windows)(data)
    np.testing.assert_allclose(result[0], result[1], rtol=1e-6)
