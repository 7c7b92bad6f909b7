"""Products of bytes, judged against integers: every way to multiply words, on every class of
processors, with the sums that overflow 16 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from ekiden import relay, te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.intrinsic import INTRINSICS
from ekiden.ir.prim import SizeVar
from ekiden.kernels import schedule
from ekiden.kernels.cost_model import are_int16_sums_faster
from ekiden.kernels.quantized.int8_dot import (
    DOT4_FEATURE,
    MADD_FEATURE,
    NARROW_DOT_FEATURE,
    split_large_pairs,
    supported_dots,
)
from ekiden.relay.packing.conv import pack_int8_conv
from ekiden.relay.transform import InferType
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.te.tensor import Tensor
from ekiden.tir.transform import lower
from ekiden.topi.nn import conv, dense_pack
from ekiden.topi.nn.weight_packing import pack_weight, unpack_dense_weight
from long_runs import alike, share
from processor import processors

Array = np.ndarray
WAYS = [
    *((text, dot) for text in processors() for dot in supported_dots(Target.parse(text))),
    *((text, "amx_int8") for text in processors() if Target.parse(text).has("amx_int8")),
]
NARROW_WAYS = [
    (text, dot)
    for text in processors()
    for dot in supported_dots(Target.parse(text), is_narrow=True)
]


def compiled(
    inputs: list[Tensor], output: Tensor, family: str, text: str, dot: str
) -> Callable[..., object]:
    target = Target.parse(text)
    func = schedule(inputs, [output], target, "kernel", {family: {"dot": dot}})
    image = link_image([compile_object([lower(func, target)], target)], ["kernel"])
    kernel: Callable[..., object] = load_image(image)["kernel"]
    return kernel


def operands(data: tuple[int, ...], weight: tuple[int, ...], seed: int = 0) -> tuple[Array, Array]:
    """All bytes, and runs of the extreme ones: 255 * -128 and 255 * 127 everywhere in a row."""
    rng = np.random.default_rng([seed, *data, *weight])
    x = rng.integers(0, 256, data).astype("uint8")
    w = rng.integers(-128, 128, weight).astype("int8")
    x.reshape(-1, x.shape[-1])[: len(x.reshape(-1, x.shape[-1])) // 2] = 255
    w[: len(w) // 3] = -128
    w[len(w) // 3 : len(w) // 2] = 127
    return x, w


def test_int8_instruction_follows_from_target() -> None:
    expected = {
        "sapphirerapids": (DOT4_FEATURE, MADD_FEATURE),
        "skylake-avx512": (MADD_FEATURE, DOT4_FEATURE),
        "x86-64-v3": (MADD_FEATURE, DOT4_FEATURE),
        "x86-64": (MADD_FEATURE, DOT4_FEATURE),
    }
    assert {cpu: supported_dots(Target(f"llvm -mcpu={cpu}")) for cpu in expected} == expected
    assert supported_dots(Target("llvm -mcpu=skylake-avx512"), is_narrow=True) == (
        NARROW_DOT_FEATURE,
        MADD_FEATURE,
        DOT4_FEATURE,
    )
    assert supported_dots(Target("llvm -mcpu=x86-64"), is_narrow=True) == (
        MADD_FEATURE,
        DOT4_FEATURE,
    )
    assert supported_dots(Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")) == (
        DOT4_FEATURE,
    )


@share(6)
@pytest.mark.parametrize(("text", "dot"), WAYS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 4), (9, 67, 36), (30, 33, 260), (2, 16, 4096)])
def test_int8_dense_matches_integers(text: str, dot: str, m: int, n: int, k: int) -> None:
    panel = 2 * Target.parse(text).lanes("float32")
    x, w = operands((m, k), (n, k))
    packed = pack_weight(w, "dense_u8s8", panel)
    data = te.placeholder((m, k), "uint8", "data")
    weight = te.placeholder(packed.shape, "int8", "weight")
    output = dense_pack(data, weight, n, panel, "int32")
    result = np.full((m, n), 7, "int32")
    compiled([data, weight], output, "dense_pack", text, dot)(x, packed, result)
    np.testing.assert_array_equal(result, x.astype("int64") @ w.T.astype("int64"))


@alike(4)
@pytest.mark.parametrize(("text", "dot"), WAYS)
def test_dense_of_any_number_of_rows(text: str, dot: str) -> None:
    data = te.placeholder((SizeVar("m"), 20), "uint8", "data")
    _, w = operands((1, 20), (40, 20))
    packed = pack_weight(w, "dense_u8s8", 16)
    weight = te.placeholder(packed.shape, "int8", "weight")
    output = dense_pack(data, weight, 40, 16, "int32")
    kernel = compiled([data, weight], output, "dense_pack", text, dot)
    for m in (0, 1, 13, 37):
        x, _ = operands((m, 20), (1, 20), m) if m else (np.zeros((0, 20), "uint8"), None)
        result = np.full((m, 40), 7, "int32")
        kernel(x, packed, result)
        np.testing.assert_array_equal(result, x.astype("int64") @ w.T.astype("int64"))


def some_weight(n: int, k: int, spread: float) -> Array:
    """Bytes of a normal distribution, with the extreme ones among them."""
    rng = np.random.default_rng([n, k])
    result = np.clip(np.rint(rng.standard_normal((n, k)) * spread), -128, 127).astype("int8")
    if spread > 40:
        result[0, :4], result[-1, -4:] = -128, 127
    return result


@pytest.mark.quick
@pytest.mark.parametrize(
    ("n", "k", "spread"), [(1, 4, 99), (70, 36, 12), (70, 36, 50), (33, 260, 33)]
)
def test_weights_that_fit_int16_pair_sums(n: int, k: int, spread: float) -> None:
    weight = some_weight(n, k, spread)
    words, places = split_large_pairs(pack_weight(weight, "dense_u8s8", 32))
    np.testing.assert_array_equal(unpack_dense_weight(words, n, places), weight)
    pairs = words.reshape(*words.shape[:-1], 2, 2).astype(int)
    for side in (np.maximum(pairs, 0), np.minimum(pairs, 0)):
        sums = 255 * side.sum(-1)
        assert sums.min() >= -(1 << 15)
        assert sums.max() < 1 << 15
    assert (places.shape[1] > 0) == (spread > 12)


@share(6)
@pytest.mark.parametrize(("text", "dot"), NARROW_WAYS)
@pytest.mark.parametrize(
    ("m", "n", "k", "spread"), [(1, 70, 36, 12), (9, 70, 36, 50), (None, 33, 260, 33)]
)
def test_int8_dense_with_int16_sums_matches_integers(
    text: str, dot: str, m: int | None, n: int, k: int, spread: float
) -> None:
    panel, w = 2 * Target.parse(text).lanes("float32"), some_weight(n, k, spread)
    words, places = split_large_pairs(pack_weight(w, "dense_u8s8", panel))
    data = te.placeholder((SizeVar("m") if m is None else m, k), "uint8", "data")
    weight = te.placeholder(words.shape, "int8", "weight")
    listed = te.placeholder(places.shape, "int32", "places")
    output = dense_pack(data, weight, n, panel, "int32", listed)
    kernel = compiled([data, weight, listed], output, "dense_pack", text, dot)
    for rows in (0, 1, 13) if m is None else (m,):
        x = np.full((rows, k), 255, "uint8")
        x[1:] = np.random.default_rng(rows).integers(0, 256, x[1:].shape)
        result = np.full((rows, n), 7, "int32")
        kernel(x, words, places, result)
        np.testing.assert_array_equal(result, x.astype("int64") @ w.T.astype("int64"))


@share(4)
@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize(("spread", "rows"), [(12, 3), (26, 1), (90, 3)])
def test_constant_weight_dense_matches_integers(text: str, spread: float, rows: int) -> None:
    """Of 7 bits, of 8 bits with few large ones, of all bytes; K is no number of words."""
    w = some_weight(70, 258, spread)
    x = relay.var("x", relay.tensor_type((rows, 258), "uint8"))
    layer = relay.op.nn.dense(x, relay.const(w), out_dtype="int32")
    module = relay.IRModule.from_expr(relay.Function((x,), layer))
    data = np.random.default_rng(0).integers(0, 256, (rows, 258)).astype("uint8")
    data[0] = 255
    made = ekiden.compile(module, text)(data).numpy()
    np.testing.assert_array_equal(made, data.astype("int64") @ w.T.astype("int64"))


@pytest.mark.quick
def test_int16_accumulation_follows_from_weight_and_target() -> None:
    for cpu in ("skylake-avx512", "x86-64-v3"):
        target = Target(f"llvm -mcpu={cpu}")
        assert [are_int16_sums_faster(n, 192, target) for n in (0, 20, 100)] == [True, True, False]
    for cpu in ("cascadelake", "x86-64"):
        assert not are_int16_sums_faster(0, 192, Target(f"llvm -mcpu={cpu}"))


@share(6)
@pytest.mark.parametrize(("text", "dot"), WAYS)
@pytest.mark.parametrize(
    ("image", "channels", "kernel", "stride"),
    [((1, 5, 6, 8), 35, 1, 1), ((2, 9, 17, 12), 20, 3, 2), ((1, 6, 15, 4), 7, 3, 1)],
)
def test_int8_convolution_matches_integers(
    text: str, dot: str, image: tuple[int, ...], channels: int, kernel: int, stride: int
) -> None:
    panel = 2 * Target.parse(text).lanes("float32")
    x, w = operands(image, (channels, image[3], kernel, kernel))
    packed = pack_weight(w, "conv2d_u8s8", panel)
    data = te.placeholder(image, "uint8", "data")
    weight = te.placeholder(packed.shape, "int8", "weight")
    layout = f"OHWI{panel}o4i"
    output = conv(
        data, weight, stride, 0, 1, 1, "NHWC", layout, out_dtype="int32", channels=channels
    )
    want = convolved(x, w, stride)
    result = np.full(want.shape, 7, "int32")
    compiled([data, weight], output, "conv_nhwc_pack", text, dot)(x, packed, result)
    np.testing.assert_array_equal(result, want)


def test_few_channel_convolution_uses_im2col() -> None:
    image = relay.Any(), relay.Any(), 11, 2
    x, w = operands((2, 9, 11, 2), (5, 2, 3, 4))
    data = relay.var("x", shape=image, dtype="uint8")
    tensor = relay.nn.conv2d(data, relay.const(w), 2, channels=5, kernel_size=(3, 4),
                           data_layout="NHWC", kernel_layout="OIHW", out_dtype="int32")  # fmt: skip
    module = InferType()(ekiden.IRModule.from_expr(relay.Function([data], tensor)))
    call = module["main"].body
    windows = pack_int8_conv(call, Target.parse("c -mcpu=cortex-m7"))
    module["main"] = relay.Function([data], windows)
    assert "sliding_window" in module.astext()
    result = relay.create_executor("debug", module).evaluate()(x)
    np.testing.assert_array_equal(result.numpy(), convolved(x, w, 2))
    assert "sliding_window" not in str(pack_int8_conv(call, Target.parse("llvm -mcpu=x86-64-v3")))


def convolved(x: Array, w: Array, stride: int) -> Array:
    """Without a border, in wide integers."""
    size = w.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("int64"), size, axis=(1, 2))
    return np.einsum("nyxcij,ocij->nyxo", windows[:, ::stride, ::stride], w.astype("int64"))


@pytest.mark.slow
@pytest.mark.quick
@pytest.mark.parametrize("cpu", ["x86-64", "nehalem", "sandybridge", "haswell", "alderlake"])
def test_int8_products_compile_for_every_processor_class(cpu: str) -> None:
    """Vectors of floats may be wider than those of integers: LLVM ends the process on what is not
    there."""
    target = Target(f"llvm -mcpu={cpu}")
    panel = 2 * target.lanes("float32")
    data = te.placeholder((9, 36), "uint8", "data")
    weight = te.placeholder((3, 9, panel, 4), "int8", "weight")
    output = dense_pack(data, weight, 3 * panel, panel, "int32")
    for dot in supported_dots(target):
        func = schedule([data, weight], [output], target, "kernel", {"dense_pack": {"dot": dot}})
        assert compile_object([lower(func, target)], target)


@pytest.mark.quick
def test_sum_of_two_int8_products_matches_integers() -> None:
    both = INTRINSICS["madd_u8s8"], INTRINSICS["dot4_u8s8"]
    words = np.array([255, 255, 1, 2], np.uint8), np.array([127, 1, -128, 3], np.int8)
    words = tuple(w.view(np.int32) for w in words)
    assert [row.reference(10, *words) for row in both] == [10 + 255 * 128 - 122] * 2
    row = INTRINSICS["madd_s16"]
    a, b = (np.array(v, np.int16).view(np.int32) for v in ([255, 255], [-128, 127]))
    assert row.reference(10, a[0], b[0]) == 10 + 255 * -128 + 255 * 127


@pytest.mark.parametrize(("spread", "num_listed"), [(90, 0), (26, 0), (26, 1)])
def test_int8_recurrent_layer_matches_integers(spread: float, num_listed: int) -> None:
    """The states are quantised in the kernel: to the same bytes, and from the same sums, whether
    words are made to fit 16 bits (spread 26), some with a word listed behind the others, or not:
    those of the definition."""
    rng, hidden = np.random.default_rng(0), 19
    bytes_ = some_weight(4 * hidden, hidden, spread)
    bytes_[:, 8 : 8 + 2 * num_listed] = 127
    extras = {
        "scale": relay.const(np.full(4 * hidden, 0.02, "f")),
        "sums": relay.const(bytes_.sum(axis=1, dtype=np.int32)),
    }
    x = relay.var("x", relay.tensor_type((5, 3, 4 * hidden)))
    layer = relay.op.nn.recurrent(x, relay.const(bytes_), "lstm", extras)
    module = relay.IRModule.from_expr(relay.Function((x,), layer))
    data = rng.standard_normal((5, 3, 4 * hidden)).astype("f")
    expected = relay.create_executor("debug", mod=module).evaluate()(data)
    for text in processors()[:3]:
        actual, target = [], Target.parse(text)
        is_narrow = spread == 26 and not target.has(DOT4_FEATURE)
        for dot in supported_dots(target, is_narrow=is_narrow):
            run = ekiden.compile(module, text, decisions={"recurrent": {"dot": dot}})
            actual.append([r.numpy() for r in run(data)])
        for one, other, right in zip(actual[0], actual[-1], expected, strict=True):
            np.testing.assert_array_equal(one, other)
            # A state at the border of two bytes may become either, and moves its products so far.
            np.testing.assert_allclose(one, right.numpy(), rtol=0, atol=2 / 255 * 128 * 0.02)


@alike(4)
@pytest.mark.parametrize(("text", "dot"), WAYS)
@pytest.mark.parametrize("order", ["panel", "row"])
@pytest.mark.parametrize(("batch", "m", "n", "k"), [(3, 9, 67, 36), (2, 33, 16, 260), (1, 1, 5, 4)])
def test_int8_batch_matmul_matches_integers(
    text: str, dot: str, order: str, batch: int, m: int, n: int, k: int
) -> None:
    target = Target.parse(text)
    panel = 2 * target.lanes("float32")
    x, w = operands((batch, m, k), (batch * n, k))
    packed = np.stack([pack_weight(part, "dense_u8s8", panel) for part in np.split(w, batch)])
    data = te.placeholder(x.shape, "uint8", "data")
    weight = te.placeholder(packed.shape, "int8", "weight")
    output = dense_pack(data, weight, n, panel, "int32")
    decision = {"dot": dot, "order": order, "l1_prefetch": 4, "l2_prefetch": 1}
    if dot == "amx_int8":
        decision = {"dot": dot, "order": order}
    func = schedule([data, weight], [output], target, "kernel", {"dense_pack": decision})
    image = link_image([compile_object([lower(func, target)], target)], ["kernel"])
    kernel: Callable[..., object] = load_image(image)["kernel"]
    result = np.full((batch, m, n), 7, "int32")
    kernel(x, packed, result)
    wide = x.astype("int64") @ w.reshape(batch, n, k).swapaxes(1, 2).astype("int64")
    np.testing.assert_array_equal(result, wide)


@alike(4)
@pytest.mark.parametrize(("text", "dot"), WAYS)
@pytest.mark.parametrize(("groups", "per_group"), [(2, 8), (8, 4), (3, 36)])
def test_grouped_int8_convolution_matches_integers(
    text: str, dot: str, groups: int, per_group: int
) -> None:
    target = Target.parse(text)
    panel, out = target.lanes("float32"), 2 * groups * per_group
    x, w = operands((1, 7, 14, groups * per_group), (out, per_group, 3, 2))
    packed = pack_weight(w, "group_conv2d_u8s8", panel, groups)
    data = te.placeholder(x.shape, "uint8", "data")
    weight = te.placeholder(packed.shape, "int8", "weight")
    output = conv(
        data, weight, (2, 1), 0, 1, groups, "NHWC", f"GOHWI{panel}o4i", "int32", channels=out
    )
    kernel = compiled([data, weight], output, "conv_nhwc_pack", text, dot)
    result = np.full((1, 3, 13, out), 7, "int32")
    kernel(x, packed, result)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype("int64"), (3, 2), (1, 2))[:, ::2]
    windows = windows.reshape(1, 3, 13, groups, per_group, 3, 2)
    weights = w.astype("int64").reshape(groups, -1, per_group, 3, 2)
    wide = np.einsum("nyxgcij,gocij->nyxgo", windows, weights).reshape(result.shape)
    np.testing.assert_array_equal(result, wide)
