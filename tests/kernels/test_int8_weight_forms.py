"""Forms of the known weights of byte products: words of two bytes or of int16, exact on every class
of processors and chosen by the cost model, and small groups computed as one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay, te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.prim import SizeVar
from ekiden.kernels import schedule
from ekiden.kernels.cost_model import are_int16_weights_faster
from ekiden.kernels.family import BYTE_PAIRS, MatmulSizes
from ekiden.relay.packing.conv import merged_groups
from ekiden.relay.transform import InferType
from ekiden.runtime import load_image
from ekiden.runtime.errors import TypeInferenceError
from ekiden.target import Target
from ekiden.te.tensor import Tensor
from ekiden.tir.transform import lower
from ekiden.topi.nn import conv, dense_pack
from ekiden.topi.nn.weight_packing import pack_weight
from long_runs import alike, share
from processor import processors

Array = np.ndarray
PAIRS = {"int8": "u8s8_pairs", "int16": "u8s16"}
"""Dtype of words of two -> how weights of them are packed."""
MADD_TARGETS = [text for text in processors() if Target.parse(text).has("madd_s16")]


def compiled(
    inputs: list[Tensor], output: Tensor, family: str, text: str, **decision: object
) -> Callable[..., object]:
    target = Target.parse(text)
    func = schedule(inputs, [output], target, "kernel", {family: decision})
    image = link_image([compile_object([lower(func, target)], target)], ["kernel"])
    kernel: Callable[..., object] = load_image(image)["kernel"]
    return kernel


def operands(data: tuple[int, ...], weight: tuple[int, ...]) -> tuple[Array, Array]:
    """All bytes, and runs of the extreme ones: 255 * -128 and 255 * 127 everywhere in a row."""
    rng = np.random.default_rng([*data, *weight])
    x = rng.integers(0, 256, data).astype("uint8")
    w = rng.integers(-128, 128, weight).astype("int8")
    rows = x.reshape(-1, x.shape[-1])
    rows[: len(rows) // 2] = 255
    w[: len(w) // 3] = -128
    w[len(w) // 3 : len(w) // 2] = 127
    return x, w.astype("int16")


@share(4)
@pytest.mark.parametrize("text", MADD_TARGETS)
@pytest.mark.parametrize("dtype", PAIRS)
@pytest.mark.parametrize("vectors", [1, 2, 3])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 4), (9, 67, 36), (30, 33, 258)])
def test_dense_in_pairs_matches_integers(
    text: str, dtype: str, vectors: int, m: int, n: int, k: int
) -> None:
    panel = vectors * Target.parse(text).lanes("float32")
    x, w = operands((m, k), (n, k))
    packed = pack_weight(w.astype(dtype), f"dense_{PAIRS[dtype]}", panel)
    data = te.placeholder((m, k), "uint8", "data")
    weight = te.placeholder(packed.shape, dtype, "weight")
    output = dense_pack(data, weight, n, panel, "int32")
    result = np.full((m, n), 7, "int32")
    compiled([data, weight], output, "dense_pack", text)(x, packed, result)
    np.testing.assert_array_equal(result, x.astype("int64") @ w.T.astype("int64"))


@alike(2)
@pytest.mark.parametrize("text", MADD_TARGETS)
@pytest.mark.parametrize("dtype", PAIRS)
def test_dense_in_pairs_of_any_number_of_rows_matches_integers(text: str, dtype: str) -> None:
    panel = 2 * Target.parse(text).lanes("float32")
    _, w = operands((1, 20), (40, 20))
    packed = pack_weight(w.astype(dtype), f"dense_{PAIRS[dtype]}", panel)
    data = te.placeholder((SizeVar("m"), 20), "uint8", "data")
    weight = te.placeholder(packed.shape, dtype, "weight")
    output = dense_pack(data, weight, 40, panel, "int32")
    kernel = compiled([data, weight], output, "dense_pack", text)
    for m in (0, 1, 13, 37):
        x = operands((m, 20), (1, 20))[0] if m else np.zeros((0, 20), "uint8")
        result = np.full((m, 40), 7, "int32")
        kernel(x, packed, result)
        np.testing.assert_array_equal(result, x.astype("int64") @ w.T.astype("int64"))


@share(4)
@pytest.mark.parametrize("text", MADD_TARGETS)
@pytest.mark.parametrize("dtype", PAIRS)
@pytest.mark.parametrize("order", ["panel", "row"])
@pytest.mark.parametrize(
    ("image", "channels", "window", "stride", "groups"),
    [((2, 9, 17, 12), 20, 3, 2, 1), ((1, 6, 15, 4), 7, 3, 1, 1), ((1, 7, 14, 16), 32, 2, 1, 2)],
)
def test_convolution_in_pairs_matches_integers(
    text: str, dtype: str, order: str, image: tuple[int, ...], channels: int, window: int,
    stride: int, groups: int,
) -> None:  # fmt: skip
    panel, per_group = 2 * Target.parse(text).lanes("float32"), image[3] // groups
    x, w = operands(image, (channels, per_group, window, window))
    prefix, kind = ("G", "group_conv2d") if groups > 1 else ("", "conv2d")
    packed = pack_weight(w.astype(dtype), f"{kind}_{PAIRS[dtype]}", panel, groups)
    data = te.placeholder(image, "uint8", "data")
    weight = te.placeholder(packed.shape, dtype, "weight")
    layout = f"{prefix}OHWI{panel}o2i"
    output = conv(
        data, weight, stride, 0, 1, groups, "NHWC", layout, out_dtype="int32", channels=channels
    )
    windows = np.lib.stride_tricks.sliding_window_view(
        x.astype("int64"), (window, window), axis=(1, 2)
    )[:, ::stride, ::stride]
    windows = windows.reshape(*windows.shape[:3], groups, per_group, window, window)
    weights = w.astype("int64").reshape(groups, -1, per_group, window, window)
    want = np.einsum("nyxgcij,gocij->nyxgo", windows, weights)
    want = want.reshape(*want.shape[:3], channels)
    result = np.full(want.shape, 7, "int32")
    compiled([data, weight], output, "conv_nhwc_pack", text, order=order)(x, packed, result)
    np.testing.assert_array_equal(result, want)


def test_int16_weights_pay_for_many_rows_where_no_instruction_multiplies_bytes() -> None:
    many, one = MatmulSizes(128, 768, 384, BYTE_PAIRS), MatmulSizes(1, 768, 384, BYTE_PAIRS)
    for cpu in ("x86-64-v3", "x86-64-v4", "skylake-avx512", "haswell"):
        target = Target(f"llvm -mcpu={cpu}")
        assert are_int16_weights_faster(many, target) and not are_int16_weights_faster(
            one, target
        ), cpu
    for text in ("llvm -mcpu=cascadelake", "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1"):
        assert not are_int16_weights_faster(many, Target(text)), text
    unknown = MatmulSizes(None, 768, 384, BYTE_PAIRS)
    assert not are_int16_weights_faster(unknown, Target("llvm -mcpu=x86-64-v3"))


@pytest.mark.parametrize("rows", [3, 40, None])
@pytest.mark.parametrize("spread", [30, 128])
def test_matrix_registers_take_bytes_where_vectors_widen_them(
    rows: int | None, spread: int
) -> None:
    """A processor may be told to leave its dot products of vectors, and keeps those of matrices."""
    text = "llvm -mcpu=sapphirerapids -mattr=-avx512vnni,-avxvnni"
    rng = np.random.default_rng(spread)
    w = rng.integers(-spread, spread, (67, 36)).astype("int8")
    x = relay.var("x", shape=(relay.Any() if rows is None else rows, 36), dtype="uint8")
    body = relay.nn.dense(x, relay.const(w), out_dtype="int32")
    module = ekiden.IRModule.from_expr(relay.Function([x], body))
    executable = ekiden.compile(module, text)
    if not Target.parse(text).serves(Target.host()):
        return  # code for it is all that this machine tells
    for m in (rows,) if rows else (1, 40):
        data = rng.integers(0, 256, (m, 36)).astype("uint8")
        want = data.astype("int64") @ w.T.astype("int64")
        np.testing.assert_array_equal(executable(data).numpy(), want)


@pytest.mark.parametrize("text", MADD_TARGETS)
def test_compiled_model_of_int16_weights_matches_interpreter(text: str) -> None:
    """Both forms of a product are in the program: 64 rows, and one row."""
    x, w = operands((1, 9, 9, 24), (40, 24, 3, 3))
    _, matrix = operands((1, 1), (16, 40))
    data = relay.var("x", shape=x.shape, dtype="uint8")
    body = relay.nn.conv2d(
        data, relay.const(w.astype("int8")), (2, 2), (1, 1), channels=40, kernel_size=(3, 3),
        data_layout="NHWC", kernel_layout="OIHW", out_dtype="int32",
    )  # fmt: skip
    levels = relay.cast(relay.clip(relay.right_shift(body, relay.const(9)), 0, 255), "uint8")
    rows = relay.reshape(levels, (-1, 40))
    body = relay.nn.dense(rows, relay.const(matrix.astype("int8")), out_dtype="int32")
    module = InferType()(ekiden.IRModule.from_expr(relay.Function([data], body)))
    want = relay.create_executor("debug", module).evaluate()(x).numpy()
    np.testing.assert_array_equal(ekiden.compile(module, text)(x).numpy(), want)


def test_words_of_other_dtypes_are_refused_by_name() -> None:
    data = relay.var("x", shape=(3, 8), dtype="int8")
    weight = relay.const(np.zeros((1, 4, 8, 2), "int16"))
    product = relay.op.nn.contrib_dense_pack(data, weight, 8, 8, "int32")
    with pytest.raises(TypeInferenceError, match="uint8 and int16 to int32"):
        InferType()(ekiden.IRModule.from_expr(relay.Function([data], product)))


@share(4)
@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize(("groups", "depth", "per_group"), [(8, 4, 4), (6, 2, 3), (4, 8, 2)])
def test_small_groups_computed_as_one_match_interpreter(
    text: str, groups: int, depth: int, per_group: int
) -> None:
    """Groups whose channels are no whole words become some whose are."""
    x, w = operands((2, 7, 8, groups * depth), (groups * per_group, depth, 3, 3))
    data = relay.var("x", shape=x.shape, dtype="uint8")
    body = relay.nn.conv2d(
        data, relay.const(w.astype("int8")), (1, 2), (1, 1), groups=groups, kernel_size=(3, 3),
        channels=groups * per_group, data_layout="NHWC", kernel_layout="OIHW", out_dtype="int32",
    )  # fmt: skip
    module = InferType()(ekiden.IRModule.from_expr(relay.Function([data], body)))
    want = relay.create_executor("debug", module).evaluate()(x).numpy()
    np.testing.assert_array_equal(ekiden.compile(module, text)(x).numpy(), want)


def test_as_many_groups_are_merged_as_fill_a_vector_with_whole_words() -> None:
    assert merged_groups((128, 4, 3, 3), 32, 16) == 4
    assert merged_groups((128, 4, 3, 3), 32, 8) == 2
    assert merged_groups((128, 64, 3, 3), 2, 16) == 1
    assert merged_groups((18, 2, 3, 3), 6, 16) == 2
    assert merged_groups((3, 1, 3, 3), 3, 16) == 3
