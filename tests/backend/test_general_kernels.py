"""General (interpreted) kernels give the results of the Relay interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay, te
from ekiden.backend.kernels import general
from ekiden.backend.kernels.canonical_form import canonicalize
from ekiden.backend.kernels.general import GeneralFormBuilder, general_form, general_function
from ekiden.backend.kernels.general_shapes import general_shape_form
from ekiden.backend.kernels.lower import RunCheck, shape_function
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir import IRModule
from ekiden.ir.prim import SizeVar, cast, const
from ekiden.kernels.quantized.int8_dot import split_large_pairs
from ekiden.relay.expr import Expr, Function
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.transform import InferType
from ekiden.runtime import empty, load_image, num_threads
from ekiden.runtime.artifact.container_format import is_constant_memory
from ekiden.runtime.errors import IndexRangeError, InputError
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.transform import lower
from ekiden.topi.nn.weight_packing import pack_weight
from ekiden.topi.nn.winograd import transform_weight

pytestmark = pytest.mark.quick
TARGET = Target("llvm")
RNG = np.random.default_rng(0)


def data(*shape: int, dtype: str = "float32") -> np.ndarray:
    if dtype.startswith("float"):
        return RNG.standard_normal(shape).astype(dtype)
    return RNG.integers(0 if dtype.startswith("u") else -100, 100, shape).astype(dtype)


def fused(body: Expr) -> Function:
    """A primitive function of an expression."""
    function = Function(relay.analysis.free_vars(body), body)
    result = InferType()(IRModule.from_expr(function))["main"]
    assert isinstance(result, Function)
    return result.with_attr("Primitive", 1)


def v(name: str, *shape: int, dtype: str = "float32") -> relay.Var:
    return relay.var(name, shape=shape, dtype=dtype)


def check(body: Expr, *arrays: np.ndarray, tolerance: float = 1e-5) -> None:
    """A general kernel gives what the interpreter does."""
    function = fused(body)
    form = general_form(canonicalize(function), TARGET)
    assert isinstance(form, bytes), form
    plain = Function(function.params, function.body)
    meant = Interpreter(IRModule.from_expr(plain)).evaluate("main", *arrays)
    expected_value = [
        np.asarray(item) for item in (meant if isinstance(meant, tuple) else (meant,))
    ]
    results = [np.full(item.shape, 7, item.dtype) for item in expected_value]
    general_function(form)(*map(np.ascontiguousarray, arrays), *results)
    for actual, expected in zip(results, expected_value, strict=True):
        compare(actual, expected, tolerance)


def compare(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Numbers agree, of floats within a tolerance."""
    if expected.dtype.kind == "f":
        scale = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)
    else:
        np.testing.assert_array_equal(actual, expected)


A, B = data(5, 3, 33), data(5, 3, 33)
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 1e38, -3.5, 2.5, 88.5], "float32")


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum",
                                  "less", "equal", "greater_equal"])  # fmt: skip
def test_binary_operators_match_interpreter(name: str) -> None:
    check(getattr(relay, name)(v("a", 5, 3, 33), v("b", 33)), A, B[0, 0])
    check(getattr(relay, name)(v("a", 10), v("b", 10)), SPECIAL, SPECIAL[::-1])


@pytest.mark.parametrize(
    "name", ["exp", "tanh", "sigmoid", "sqrt", "rsqrt", "erf", "floor", "ceil", "round", "trunc",
             "abs", "log", "sin", "cos", "isnan", "isinf", "negative"]
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unary_functions_match_interpreter(name: str, dtype: str) -> None:
    operator = getattr(relay, name)
    check(operator(v("a", 5, 99, dtype=dtype)), A.reshape(5, 99).astype(dtype))
    if name not in ("sin", "cos"):
        check(operator(v("a", 10, dtype=dtype)), SPECIAL.astype(dtype))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32"])
@pytest.mark.parametrize("name", ["add", "multiply", "subtract", "floor_divide", "maximum"])
def test_integers_wrap_around(name: str, dtype: str) -> None:
    a, b = data(4, 300, dtype=dtype), data(4, 300, dtype=dtype)
    b[b == 0] = 3
    check(getattr(relay, name)(v("a", 4, 300, dtype=dtype), v("b", 4, 300, dtype=dtype)), a, b)


def test_quotients_of_large_numbers_are_exact() -> None:
    ends = np.array([2**52 - 1, -(2**52) + 1, 2**53 + 1, 2**62 + 3, -(2**62) - 3, 7, -7], "int64")
    a, b = np.repeat(ends, 4), np.tile(np.array([3, -3, 7, 2**31 + 1]), 7)
    for name in ("floor_divide", "floor_mod"):
        operator = getattr(relay, name)
        check(operator(v("a", 28, dtype="int64"), v("b", 28, dtype="int64")), a, b)
        check(operator(v("a", 4, dtype="int64"), v("b", 4, dtype="int64")), a[:4], b[:4])


@pytest.mark.parametrize("source", ["float32", "float64", "int32", "uint8", "bool"])
@pytest.mark.parametrize("target", ["float32", "float64", "int8", "int32", "int64", "bool"])
def test_casts_match_interpreter(source: str, target: str) -> None:
    inputs = (data(7, 50) * 20).astype(source)
    check(relay.cast(v("a", 7, 50, dtype=source), target), inputs)


@pytest.mark.parametrize("name", ["sum", "max", "min", "prod", "mean"])
@pytest.mark.parametrize("axis", [(0,), (2,), (0, 2), (1, 2), None])
def test_reductions_match_interpreter(name: str, axis: tuple[int, ...] | None) -> None:
    inputs = data(3, 4, 700)[:, :, : 700 if name != "prod" else 9]
    # what is summed may cancel out, but not the roundings of its sums
    summed = float(np.abs(inputs).sum(axis).max()) if name == "sum" else 0.0
    tolerance = max(1e-5, summed * float(np.finfo("float32").eps))
    check(getattr(relay, name)(v("a", *inputs.shape), axis=axis), inputs, tolerance=tolerance)
    if axis == (2,) and name in ("sum", "max"):
        check(getattr(relay, name)(v("a", 3, 4, 0), axis=(1,)), data(3, 4, 0))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64"])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize(("shape", "axis"), [((0,), None), ((0, 16), None), ((3, 0), 1),
                                             ((0, 300), 0), ((2, 0, 5), (0, 1))])  # fmt: skip
def test_reductions_of_nothing_are_the_identity(
    name: str, dtype: str, shape: tuple[int, ...], axis: tuple[int, ...] | None
) -> None:
    reduced = getattr(relay, name)(v("x", *shape, dtype=dtype), axis)
    form = general_form(canonicalize(fused(reduced)), TARGET)
    assert isinstance(form, bytes), form
    axes = range(len(shape)) if axis is None else np.atleast_1d(axis)
    result = np.full([d for k, d in enumerate(shape) if k not in axes], 7, dtype)
    general_function(form)(np.empty(shape, dtype), result)
    identity = te.identity(name, dtype).value  # type: ignore[attr-defined]  # a constant
    np.testing.assert_array_equal(result, np.full_like(result, identity))


def test_data_movement_matches_interpreter() -> None:
    a = v("a", 5, 3, 33)
    check(relay.transpose(a, (2, 0, 1)), A)
    check(relay.reshape(a, (11, 45)), A)
    check(relay.reverse(a, axis=2), A)
    check(relay.strided_slice(a, (1, 0, 2), (5, 3, 33), (2, 1, 5)), A)
    check(relay.argmax(a, axis=1), A)
    check(relay.nn.pad(a, ((1, 2), (0, 0), (3, 1)), pad_value=4), A)
    check(relay.concatenate([a, v("b", 5, 3, 33), a], axis=1), A, B)
    check(relay.where(relay.less(a, v("b", 5, 3, 33)), a, relay.const(1.0)), A, B)
    check(relay.take(a, v("i", 4, dtype="int64"), axis=1, mode="clip"), A, np.array([2, 0, 9, -1]))


@pytest.mark.parametrize("rows", [1, 4, 13, 100])
def test_matmuls_match_interpreter(rows: int) -> None:
    a, b = data(rows, 37), data(37, 45)
    check(relay.nn.matmul(v("a", rows, 37), v("b", 37, 45)), a, b)
    check(relay.nn.dense(v("a", rows, 37), v("b", 45, 37)), a, b.T)
    left, right = data(3, rows, 20), data(3, 20, 50)
    batched = relay.nn.batch_matmul(
        v("a", 3, rows, 20), v("b", 3, 20, 50), transpose_a=False, transpose_b=False
    )
    check(batched, left, right)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float16_operators_match_interpreter(dtype: str) -> None:
    ends = np.array([0, -0.0, 1e-7, -3e-6, 6e-5, 65504, 65519.9, 65520, -np.inf, np.nan, 1 / 3],
                    "float32")  # fmt: skip
    x = np.concatenate([ends, data(300), data(300) * 1e-5, data(300) * 1e4])
    n = len(x)
    check(relay.cast(relay.cast(v("a", n), dtype), "float32"), x)
    half = fused(relay.cast(v("a", 300), dtype))
    a = np.asarray(Interpreter(IRModule.from_expr(Function(half.params, half.body))).evaluate(
        "main", x[11:311]))  # fmt: skip
    argument = v("a", 300, dtype=dtype)
    for body in (
        relay.exp(argument),
        argument + relay.const(0.1, dtype) * argument,
        relay.maximum(argument, -argument),
    ):
        check(relay.cast(body, "float32"), a, tolerance=0.01 if dtype == "bfloat16" else 0.002)


@pytest.mark.parametrize("rows", [1, 5, 50])
@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("uint8", "int8"), ("int32", "int32")])
def test_integer_matmuls_match_interpreter(rows: int, dtypes: tuple[str, str]) -> None:
    a, b = data(rows, 600, dtype=dtypes[0]), data(70, 600, dtype=dtypes[1])
    left, right = v("a", *a.shape, dtype=dtypes[0]), v("b", *b.shape, dtype=dtypes[1])
    check(relay.nn.dense(left, right, out_dtype="int32"), a, b)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("tile", [4, 8, 16])
def test_byte_packed_weights_match_interpreter(rows: int, tile: int) -> None:
    """With and without words that panels list, which large weights need."""
    for most in (20, 127):
        w = RNG.integers(-most, most + 1, (40, 44)).astype("int8")
        packed, places = split_large_pairs(pack_weight(w, "dense_u8s8", tile))
        assert places.shape[1] == 0 or most == 127
        x = data(2, rows, 44, dtype="uint8")
        inputs = v("x", *x.shape, dtype="uint8"), v("w", *packed.shape, dtype="int8")
        listed = v("p", *places.shape, dtype="int32")
        body = relay.op.nn.contrib_dense_pack(*inputs, 40, tile, "int32", listed)
        check(body, x, packed, places)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("tile", [4, 8, 16])
@pytest.mark.parametrize(
    ("dtypes", "kind"),
    [
        (("uint8", "int16"), "dense_u8s16"),
        (("uint8", "int8"), "dense_u8s8_pairs"),
        (("int16", "int16"), "dense_u8s16"),
    ],
)
def test_weights_packed_in_pairs_are_read_in_place(
    rows: int, tile: int, dtypes: tuple[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match, words = general._PackedPanels.match, list[int]()

    def record_words(*factors: object) -> general._PackedPanels | None:
        """Note the elements per word of a weight that is read as it is packed."""
        panels = match(*factors)  # type: ignore[arg-type]
        words.extend([] if panels is None else [panels.elements_per_word])
        return panels

    monkeypatch.setattr(general._PackedPanels, "match", staticmethod(record_words))
    w, x = data(40, 44, dtype="int8"), data(2, rows, 44, dtype="uint8").astype(dtypes[0])
    packed = pack_weight(w.astype(dtypes[1]), kind, tile)
    inputs = v("x", *x.shape, dtype=dtypes[0]), v("w", *packed.shape, dtype=dtypes[1])
    body = relay.op.nn.contrib_dense_pack(*inputs, 40, tile, "int32")
    check(body, x, packed)
    assert 2 in words


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        *(("OHWI8o4i", "int8"), ("OHWI8o2i", "int8"), ("OHWI8o2i", "int16")),
        *(("OHWI8o", "float32"), ("GOHWI8o", "float32"), ("HWIO", "float32")),
    ],
)
def test_packed_convolutions_match_interpreter(layout: str, dtype: str) -> None:
    """Of bytes, of one result, in groups: as their weights lie."""
    is_bytes, groups = layout.endswith("i"), 4 if layout in ("GOHWI8o", "HWIO") else 1
    channels = {"OHWI8o4i": 20, "OHWI8o2i": 20, "OHWI8o": 1}.get(layout, 40)
    x = data(1, 9, 7, 16, dtype="uint8" if is_bytes else "float32")
    w = data(channels, 16 // groups, 3, 3, dtype="int8" if is_bytes else "float32")
    w = w.astype(dtype)
    kinds = {
        "OHWI8o4i": "conv2d_u8s8",
        "OHWI8o2i": {"int8": "conv2d_u8s8_pairs"}.get(dtype, "conv2d_u8s16"),
        "OHWI8o": "conv2d",
        "GOHWI8o": "group_conv2d",
    }
    packed = (
        pack_weight(w, kinds[layout], 8, groups)
        if layout in kinds
        else np.ascontiguousarray(w.transpose(2, 3, 1, 0))
    )
    conv = relay.nn.conv2d(
        v("x", *x.shape, dtype=str(x.dtype)), v("w", *packed.shape, dtype=str(w.dtype)),
        padding=(1, 1), channels=channels, kernel_size=(3, 3), data_layout="NHWC", groups=groups,
        kernel_layout=layout, out_dtype="int32" if is_bytes else "",
    )  # fmt: skip
    check(conv, x, packed)


def test_concatenations_and_pads_match_interpreter() -> None:
    """Of what is padded and computed before and after, in axes of any order."""
    a, b = v("a", 2, 5, 4), v("b", 2, 3, 4)
    joined = relay.concatenate([relay.nn.pad(a, ((0, 0), (1, 2), (0, 3)), 2.5), relay.nn.pad(
        relay.exp(b), ((0, 0), (0, 0), (2, 1)))], axis=1)  # fmt: skip
    check(relay.maximum(joined, -joined) + joined, data(2, 5, 4), data(2, 3, 4))
    stacked = relay.concatenate([joined, joined * relay.const(2.0)], axis=2)
    check(relay.transpose(stacked, (2, 0, 1)), data(2, 5, 4), data(2, 3, 4))


def test_concatenation_of_many_inputs_matches_interpreter() -> None:
    arrays = [data(2, n % 3 + 1) for n in range(150)]
    inputs = [v(f"x{n}", *a.shape) for n, a in enumerate(arrays)]
    check(relay.concatenate(inputs, axis=1), *arrays)


def test_concatenation_with_two_symbols_per_input_matches_interpreter() -> None:
    parts, inputs = [], []
    for n in range(35):
        x = relay.var(f"x{n}", shape=(SizeVar("n"), 2))
        parts.append(relay.take(x, relay.var(f"i{n}", shape=(SizeVar("m"),), dtype="int64"), 0))
        inputs += [data(n % 3 + 1, 2), np.arange(n % 3 + 1)[::-1].copy()]
    form = general_form(canonicalize(fused(relay.concatenate(parts, 0))), TARGET)
    assert isinstance(form, bytes), form
    expected = np.concatenate([x[::-1] for x in inputs[::2]])
    actual = np.zeros(expected.shape, "float32")
    general_function(form)(*inputs, actual)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_convolutions_match_interpreter(groups: int, strides: tuple[int, int]) -> None:
    x, w = data(2, 8, 9, 7), data(32, 8 // groups, 3, 3)
    conv = relay.nn.conv2d(
        v("x", *x.shape), v("w", *w.shape), strides=strides, padding=(1, 0, 2, 1), groups=groups,
        channels=32, kernel_size=(3, 3), dilation=(1, 2),
    )  # fmt: skip
    check(relay.nn.relu(conv), x, w)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 2, 0, 1)])
def test_pooling_matches_interpreter(layout: str, padding: tuple[int, ...]) -> None:
    x = data(2, 40, 9, 11)
    x = np.ascontiguousarray(x if layout == "NCHW" else x.transpose(0, 2, 3, 1))
    x.flat[::97] = np.nan
    inputs = {"pool_size": (3, 4), "strides": (2, 1), "padding": padding, "layout": layout,
             "ceil_mode": True}  # fmt: skip
    check(relay.nn.max_pool2d(v("x", *x.shape), **inputs), x)
    check(relay.nn.avg_pool2d(v("x", *x.shape), **inputs), x)
    check(relay.nn.max_pool2d(v("x", *x.shape), dilation=(2, 1), **inputs), x)


@pytest.mark.parametrize("kernel", [(2, 2), (3, 1), (4, 5)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 1)])
def test_transposed_convolutions_match_interpreter(
    kernel: tuple[int, int], strides: tuple[int, int]
) -> None:
    """Whatever of the window reaches a result, of whole taps or not."""
    x, w = data(2, 6, 5, 4), data(6, 20, *kernel)
    extra = (strides[0] - 1, 0)
    for padding, dilation in (((0, 0), (1, 1)), ((1, 0, 0, 0), (1, 1)), ((0, 1), (2, 1))):
        conv = relay.nn.conv2d_transpose(
            v("x", *x.shape), v("w", *w.shape), strides=strides, padding=padding, channels=20,
            kernel_size=kernel, output_padding=extra, dilation=dilation,
        )  # fmt: skip
        check(relay.nn.relu(conv), x, w)
    tile = 16
    packed = np.zeros((2, *kernel, 6, tile), "float32")
    packed[0], packed[1, ..., :4] = (
        np.transpose(w[:, part], (2, 3, 0, 1)) for part in (slice(tile), slice(tile, None))
    )
    conv = relay.nn.conv2d_transpose(
        v("x", 2, 5, 4, 6), v("w", *packed.shape), strides=strides, channels=20,
        kernel_size=kernel, data_layout="NHWC", kernel_layout=f"OHWI{tile}o",
    )  # fmt: skip
    check(conv, np.ascontiguousarray(x.transpose(0, 2, 3, 1)), packed)


def test_integer_quotients_of_any_sign_match_interpreter() -> None:
    """By one number, a power of two or not, and by many."""
    x = np.concatenate([np.arange(-40, 40), [-(2**40), 2**40, -(2**62), 2**62]]).astype("int64")
    for by in (1, 8, 7, -4, 2**33):
        divisor = relay.const(by, "int64")
        check(relay.floor_divide(v("x", len(x), dtype="int64"), divisor), x)
        check(relay.floor_mod(v("x", len(x), dtype="int64"), divisor), x)
    by_many = np.where(x % 5 == 0, 3, 16).astype("int64")
    inputs = v("x", len(x), dtype="int64"), v("y", len(x), dtype="int64")
    check(relay.floor_divide(*inputs), x, by_many)


@pytest.mark.parametrize("size", [(12, 12), (9, 14)])
@pytest.mark.parametrize("tile", [8, 16, 24, 32])
def test_packed_and_winograd_weights_match_interpreter(size: tuple[int, int], tile: int) -> None:
    x, w = data(1, *size, 16), data(40, 16, 3, 3)
    count = -(-40 // tile)
    whole = np.zeros((count * tile, 16, 3, 3), "float32")
    whole[:40] = w
    packed = whole.reshape(count, tile, 16, 3, 3).transpose(0, 3, 4, 2, 1)
    conv = relay.nn.conv2d(
        v("x", *x.shape), v("w", *packed.shape), padding=(1, 1), channels=40, kernel_size=(3, 3),
        data_layout="NHWC", kernel_layout=f"OHWI{tile}o",
    )  # fmt: skip
    check(conv, x, packed)
    for m in (2, 4):
        points = transform_weight(w, m, tile)
        conv = relay.nn.contrib_conv2d_winograd_without_weight_transform(
            v("x", *x.shape), v("w", *points.shape), m, 40, (1, 1, 1, 1)
        )
        check(relay.nn.relu(conv), x, points, tolerance=1e-4)
        levels = data(1, *size, 16, dtype="uint8")
        kernel = data(40, 16, 3, 3, dtype="int8")
        pairs = transform_weight(kernel, m, tile)
        conv = relay.nn.contrib_conv2d_winograd_without_weight_transform(
            v("x", *levels.shape, dtype="uint8"), v("w", *pairs.shape, dtype="int16"), m, 40,
            (1, 1, 1, 1),
        )  # fmt: skip
        check(relay.nn.relu(conv), levels, pairs)


LAYERS = [
    ("rnn", 1, {}),
    ("lstm", 4, {}),
    ("lstm", 4, {"reverse": True, "clip": 0.7, "input_forget": True}),
    ("gru", 3, {}),
    ("gru", 3, {"reset_first": True, "reverse": True}),
]


@pytest.mark.parametrize(("kind", "gates", "options"), LAYERS)
@pytest.mark.parametrize("hidden", [5, 16, 40])
@pytest.mark.parametrize("has_extras", [False, True])
def test_recurrent_layers_match_interpreter(
    kind: str, gates: int, options: dict[str, object], hidden: int, has_extras: bool
) -> None:
    rows = gates * hidden
    arrays = {"x": data(6, 2, rows), "w": data(rows, hidden) / hidden}
    extras = {"bias": data(rows), "initial_h": data(2, hidden)}
    if kind == "lstm":
        extras |= {"initial_c": data(2, hidden), "peephole": data(3 * hidden)}
    if "reverse" not in options:
        extras["lengths"] = np.array([6, 3], "int32")
    if has_extras:
        arrays |= extras
    inputs = {name: v(name, *a.shape, dtype=str(a.dtype)) for name, a in arrays.items()}
    more = {name: inputs[name] for name in extras if name in inputs}
    body = relay.op.nn.recurrent(inputs["x"], inputs["w"], kind, more, **options)
    check(body, *arrays.values())


@pytest.mark.parametrize("gates", [3, 4])
def test_recurrent_weights_in_panels(gates: int) -> None:
    x, w = data(4, 2, gates * 40), data(gates * 40, 40) / 40
    kind = "lstm" if gates == 4 else "gru"
    packed = relay.op.nn.contrib_pack_recurrent(v("w", *w.shape), gates, 16)
    plain = fused(packed)
    panels = np.asarray(
        Interpreter(IRModule.from_expr(Function(plain.params, plain.body))).evaluate("main", w)
    )
    check(relay.op.nn.recurrent(v("x", *x.shape), v("p", *panels.shape), kind), x, panels)


@pytest.mark.parametrize(("kind", "gates", "hidden"), [("lstm", 4, 20), ("gru", 3, 32)])
@pytest.mark.parametrize("packing", ["", "packed", "listed"])
def test_recurrent_weights_of_bytes(kind: str, gates: int, hidden: int, packing: str) -> None:
    rows = gates * hidden
    w = data(rows, hidden, dtype="int8")
    arrays = {"x": data(5, 2, rows), "w": w, "scale": abs(data(rows)) / 500,
              "sums": w.sum(1, dtype="int32")}  # fmt: skip
    extras = ["scale", "sums"]
    if packing:
        packed = fused(relay.op.nn.contrib_pack_recurrent(v("w", *w.shape, dtype="int8"), gates, 8))
        plain = IRModule.from_expr(Function(packed.params, packed.body))
        arrays["w"] = np.asarray(Interpreter(plain).evaluate("main", w))
    if packing == "listed":
        arrays["w"], arrays["places"] = split_large_pairs(arrays["w"])
        extras.append("places")
    inputs = {name: v(name, *a.shape, dtype=str(a.dtype)) for name, a in arrays.items()}
    more = {name: inputs[name] for name in extras}
    body = relay.op.nn.recurrent(inputs["x"], inputs["w"], kind, more)
    check(body, *arrays.values(), tolerance=1e-2)  # a level more or less of a state


@pytest.mark.parametrize("causal", ["", "start", "end"])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_attention_matches_interpreter(causal: str, softcap: float) -> None:
    q, k, value, bias = data(2, 4, 9, 8), data(2, 2, 21, 8), data(2, 2, 21, 12), data(2, 1, 1, 21)
    inputs = [v(name, *a.shape) for name, a in zip("qkvb", (q, k, value, bias), strict=True)]
    check(relay.op.nn.attention(*inputs[:3], causal=causal, softcap=softcap), q, k, value)
    check(relay.op.nn.attention(*inputs, causal=causal, softcap=softcap), q, k, value, bias)


@pytest.mark.parametrize("queries", [256, 257, 700])
def test_attention_of_blocks_of_queries(queries: int) -> None:
    q, k = data(1, 2, queries, 4), data(1, 2, 300, 4)
    inputs = [v("q", *q.shape), v("k", *k.shape), v("v", *k.shape)]
    check(relay.op.nn.attention(*inputs, causal="start"), q, k, k)


def test_attention_in_other_layouts() -> None:
    q, k, value = data(2, 9, 4, 8), data(2, 8, 4, 21), data(2, 4, 21, 16)
    layouts = ("bshd", "bdhs", "bhsd", "bshd")
    inputs = [v(name, *a.shape) for name, a in zip("qkv", (q, k, value), strict=True)]
    check(relay.op.nn.attention(*inputs, layouts=layouts), q, k, value)


def test_fully_masked_query_gives_zero() -> None:
    q, k = data(1, 2, 7, 8), data(1, 2, 4, 8)
    inputs = [v("q", *q.shape), v("k", *k.shape), v("v", *k.shape)]
    body = relay.op.nn.attention(*inputs, causal="end", nan_as_zero=True)
    check(body, q, k, k)


def test_results_are_equal_for_any_thread_count(request: pytest.FixtureRequest) -> None:
    before = num_threads()
    request.addfinalizer(lambda: num_threads(before))
    for number in (1, 5):
        num_threads(number)
        check(relay.nn.dense(v("a", 70, 300), v("b", 200, 300)), data(70, 300), data(200, 300))
        check(relay.sum(v("a", 50, 1000), axis=1), data(50, 1000))


def test_general_kernels_accept_any_sizes() -> None:
    x, w = relay.var("x", shape=(SizeVar("n"), 24)), v("w", 40, 24)
    form = general_form(canonicalize(fused(relay.nn.relu(relay.nn.dense(x, w)))), TARGET)
    assert isinstance(form, bytes)
    run, weight = general_function(form), data(40, 24)
    for rows in (0, 1, 6, 50):
        inputs, out = data(rows, 24), np.zeros((rows, 40), "float32")
        run(inputs, weight, out)
        np.testing.assert_allclose(out, np.maximum(inputs @ weight.T, 0), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="general kernel: argument 2 has another shape"):
        run(data(3, 24), weight, np.zeros((4, 40), "float32"))
    with pytest.raises(TypeError, match="general kernel: argument 0 has another dtype"):
        run(data(3, 24, dtype="float64"), weight, np.zeros((3, 40), "float32"))


def test_indices_are_checked() -> None:
    a, at = data(9, 5), np.array([[3, -9], [8, 0]])
    body = relay.take(v("a", 9, 5), v("i", 2, 2, dtype="int64"), axis=0, mode="raise")
    check(body, a, at)
    form = general_form(canonicalize(fused(body)), TARGET)
    assert isinstance(form, bytes), form
    result, kernel = np.zeros((2, 2, 5), "float32"), general_function(form)
    message = r"take: index 9 at position \(1, 0\) is out of range for axis 0 of size 9"
    with pytest.raises(IndexRangeError, match=message):
        kernel(a, np.array([[3, -9], [9, 0]]), result)
    assert not result.any()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (relay.cast(v("a", 3), "float8_e4m3fn"), "elements of float8_e4m3fn"),
        (relay.cumsum(v("a", 3, 4), axis=1), "is made of statements"),
    ],
)
def test_kernels_without_general_form_give_a_reason(body: Expr, why: str) -> None:
    result = general_form(canonicalize(fused(body)), TARGET)
    assert isinstance(result, str) and why in result


def test_shape_kernels_match_interpreter() -> None:
    """What a program computes of shapes and elements: the same numbers and the same errors."""
    n, m = SizeVar("n"), SizeVar("m")
    tensor = Buffer("p0", (n, const(4), m, n), "float32")
    expected, length = Buffer("p1", (m,), "int32"), Buffer("p2", (), "int64")
    result = Buffer("dims", (const(12),), "int64")
    element = cast(expected[1], "int64")
    exprs = [
        element, n * m, result[0] + n, (n + 7) // element, (n - 7) % element, length[()],
        *(n * const(k) for k in range(6)),
    ]  # fmt: skip
    check = RunCheck(result[0] + n < 10, "100 % {of} sizes", {"n": n, "it": result[0]})
    func = shape_function([tensor, expected, length], exprs, [check], "sizes", result, first=1)
    form = general_shape_form(func, TARGET)
    assert isinstance(form, bytes), form
    compiled = load_image(
        link_image([compile_object([lower(func, TARGET)], TARGET)], ["sizes"], TARGET)
    )
    for element_is in (3, -2, 0, 9):
        arrays = (
            np.zeros((2, 4, 3, 2), np.float32),
            np.array([1, element_is, 1], np.int32),
            np.array(1 << 40),
        )
        actual, errors = [], []
        for kernel in (general_function(form), compiled["sizes"]):
            sizes = np.full(12, -1)
            try:
                kernel(*arrays, sizes)
                errors.append("")
            except InputError as error:
                errors.append(str(error))
            actual.append(sizes)
        assert (errors[0] != "") == (element_is == 9)
        assert errors[0] == errors[1]
        np.testing.assert_array_equal(actual[0], actual[1])


def test_kernels_of_sizes_that_have_no_general_form() -> None:
    func = shape_function([Buffer("p0", (const(2),), "float16")], [const(2)], [], "sizes")
    assert isinstance(general_shape_form(func, TARGET), bytes)
    assert general_shape_form(func, TARGET.with_bounds("check")) == "bounds are checked"
    small = shape_function([Buffer("p0", (const(2),), "int4")], [const(2)], [], "sizes")
    assert general_shape_form(small, TARGET) == "elements of int4"


def test_stages_share_dead_memory() -> None:
    """Of a chain of four one has memory of its own beside the last that is read; the largest of
    those that share it says how much there is."""
    x = te.placeholder((4, 8), "float32", name="x")
    a = te.compute((4, 8), lambda i, j: x[i, j] + 1.0, name="a")
    b = te.compute((40, 8), lambda i, j: a[i // 10, j] * 2.0, name="b")
    c = te.compute((400, 8), lambda i, j: b[i // 10, j] + a[i // 100, j], name="c")
    d = te.compute((4000, 8), lambda i, j: c[i // 10, j] * 3.0, name="d")
    e = te.compute((4000, 8), lambda i, j: d[i, j] - 1.0, name="e")
    form = GeneralFormBuilder([x], [e])
    assert form.memory_owners == {d: a} or form.memory_owners == {d: b}
    inputs = data(4, 8)
    result = np.zeros((4000, 8), "float32")
    general_function(form.encode())(inputs, result)
    first = inputs + np.float32(1)
    expected = (np.repeat(first * 2, 100, 0) + np.repeat(first, 100, 0)) * 3 - 1
    np.testing.assert_allclose(result, np.repeat(expected, 10, 0), rtol=1e-6)


def test_array_that_its_owner_may_write_again_is_copied() -> None:
    """What Ekiden itself has made and closed is taken as it is."""
    result = empty((1 << 18,), "float32").numpy()
    result.setflags(write=False)
    whole = np.zeros((1 << 18) + 16, "float32")
    first = -whole.ctypes.data % 64 // 4
    argument = whole[first : first + (1 << 18)]
    whole.setflags(write=False)
    argument.setflags(write=False)
    assert is_constant_memory(result) and not is_constant_memory(argument)
