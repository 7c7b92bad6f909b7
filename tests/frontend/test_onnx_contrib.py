"""Operators of com.microsoft give what ONNX Runtime gives."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import Array, compare, graph_model, interpret, ints, normal

import ekiden
from ekiden.frontend.onnx import from_onnx
from ekiden.runtime.errors import InputError, RunError, UnsupportedError
from onnx_runtime import run_onnx_runtime

DOMAIN = "com.microsoft"


def contrib_model(
    op_type: str,
    inputs: Sequence[Array | None],
    constants: Sequence[int] = (),
    outputs: Sequence[int] = (0,),
    domain: str = DOMAIN,
    **attributes: object,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node, and what to feed it; `outputs` are the ones asked
    for.
    """
    names = [f"i{at}" if a is not None else "" for at, a in enumerate(inputs)]
    present = {n: a for n, a in zip(names, inputs, strict=True) if a is not None}
    fixed = {names[at] for at in constants}
    result = [f"o{at}" if at in outputs else "" for at in range(max(outputs) + 1)]
    node = helper.make_node(op_type, names, result, domain=domain, **attributes)
    feed = {n: a for n, a in present.items() if n not in fixed}
    weights = {n: a for n, a in present.items() if n in fixed}
    asked = [m for m in result if m]
    return graph_model([node], feed, asked, weights, domains=[DOMAIN]), feed


def check(
    op_type: str,
    inputs: Sequence[Array | None],
    constants: Sequence[int] = (),
    outputs: Sequence[int] = (0,),
    rtol: float = 2e-5,
    domain: str = DOMAIN,
    **attributes: object,
) -> None:
    model, feed = contrib_model(op_type, inputs, constants, outputs, domain, **attributes)
    compare(model, feed, rtol=rtol)


def some_bytes(*shape: int, seed: int = 0, dtype: type = np.uint8) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


def words(*shape: int, seed: int = 0, below: int = 5) -> Array:
    return np.random.default_rng(seed).integers(0, below, shape).astype(np.int32)


def scalar(value: float, dtype: type = np.float32) -> Array:
    return np.array(value, dtype)


def found(op_type: str, inputs: Sequence[Array | None], **attributes: object) -> Array:
    """The first output of a node that ONNX Runtime has no kernel for on a CPU."""
    model, feed = contrib_model(op_type, inputs, **attributes)  # type: ignore[arg-type]
    return interpret(model, list(feed.values()))[0]


X, WIDE = normal(2, 3, 8), normal(2, 3, 8, seed=1)
GAMMA, BETA, BIAS = normal(8, seed=2), normal(8, seed=3), normal(8, seed=4)


@pytest.mark.parametrize(
    ("op_type", "inputs"),
    [
        ("Gelu", [X]), ("FastGelu", [X]), ("FastGelu", [X, BIAS]), ("BiasGelu", [X, BIAS]),
        ("QuickGelu", [X]),
    ],
)  # fmt: skip
def test_contrib_activations_match_onnxruntime(op_type: str, inputs: list[Array]) -> None:
    check(op_type, inputs)


@pytest.mark.parametrize("skip", [WIDE, WIDE[:1], WIDE[0]])
def test_skip_layer_norm(skip: Array) -> None:
    check("SkipLayerNormalization", [X, skip, GAMMA, BETA, BIAS], outputs=(0, 3), epsilon=1e-5)
    check("SkipLayerNormalization", [X, skip, GAMMA])
    check("SkipSimplifiedLayerNormalization", [X, skip, GAMMA, BIAS], outputs=(0, 3), epsilon=1e-5)


def test_rms_norm_in_both_domains_matches_onnxruntime() -> None:
    check("SimplifiedLayerNormalization", [X, GAMMA], domain="", axis=-1, epsilon=1e-6)


@pytest.mark.parametrize("mask", [None, words(2, 4, below=2)])
@pytest.mark.parametrize("positions", [None, words(2, 4, seed=9)])
def test_embed_layer_norm_matches_onnxruntime(mask: Array | None, positions: Array | None) -> None:
    tables = [normal(5, 8, seed=s) for s in range(3)]
    inputs = [words(2, 4), words(2, 4, seed=1), *tables, GAMMA, BETA, mask, positions]
    check("EmbedLayerNormalization", inputs, (2, 3, 4, 5, 6), outputs=(0, 1, 2), mask_index_type=1)
    inputs = [words(2, 4), None, *tables[:2], None, GAMMA, BETA]
    check("EmbedLayerNormalization", inputs, (2, 3, 5, 6), outputs=(0, 1))


@pytest.mark.parametrize("trans", range(4))
@pytest.mark.parametrize("constants", [(), (1,)])
def test_fused_mat_mul(trans: int, constants: tuple[int, ...]) -> None:
    left, right = trans & 1, trans >> 1
    a = normal(2, 4, 3) if left else normal(2, 3, 4)
    b = normal(5, 4, seed=1) if right else normal(4, 5, seed=1)
    check("FusedMatMul", [a, b], constants, transA=left, transB=right, alpha=0.5)


def test_fused_mat_mul_of_batches_in_the_middle() -> None:
    a, b = normal(3, 2, 4), normal(5, 2, 4, seed=1)
    check("FusedMatMul", [a, b], transBatchA=1, transBatchB=1, transB=1)


@pytest.mark.parametrize(
    ("activation", "params"),
    [("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.3]), ("Clip", [-0.5, 0.5]),
     ("HardSigmoid", [0.3, 0.4])],
)  # fmt: skip
def test_fused_conv(activation: str, params: list[float]) -> None:
    more = {"activation_params": params} if params else {}
    inputs = [normal(1, 2, 5, 6), normal(3, 2, 3, 3, seed=1), normal(3)]
    check("FusedConv", inputs, (1, 2), activation=activation, pads=[1, 1, 1, 1], **more)


def test_fused_conv_with_a_sum() -> None:
    inputs = [normal(1, 2, 5, 6), normal(3, 2, 1, 1), None, normal(1, 3, 5, 6, seed=3)]
    check("FusedConv", inputs, (1,), activation="Relu")


def test_fused_gemm() -> None:
    inputs = [normal(3, 4), normal(5, 4, seed=1), normal(5)]
    check("FusedGemm", inputs, (1,), transB=1, alpha=0.5, beta=2.0, activation="Relu")
    more = {"activation_alpha": 0.2}
    check("FusedGemm", inputs, (1,), transB=1, activation="LeakyRelu", **more)


def test_other_contrib_operators_match_onnxruntime() -> None:
    check("ExpandDims", [X, np.array(-1, np.int32)], (1,))
    check("CDist", [normal(3, 4), normal(5, 4, seed=1)], metric="euclidean", rtol=1e-4)


def test_cuda_only_operators_match_reference() -> None:
    def gelu(x: Array) -> Array:
        return x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2

    bias = normal(1, 3, 8, seed=5)
    shares = np.exp(X + bias)
    shares /= shares.sum(-1, keepdims=True)
    softmax = found("BiasSoftmax", [X, bias], axis=2, is_inner_broadcast=0)
    np.testing.assert_allclose(softmax, shares, rtol=1e-5)
    left, right = np.split(X + BIAS, 2, axis=2)
    split = found("BiasSplitGelu", [X, BIAS])
    np.testing.assert_allclose(split, left * gelu(right), rtol=1e-4, atol=1e-6)
    images, weight = normal(1, 5, 6, 4), normal(3, 4, 1, 1)
    conv = found("NhwcConv", [images, weight])
    np.testing.assert_allclose(conv, images @ weight[:, :, 0, 0].T, rtol=1e-4, atol=1e-5)


def test_group_norm_matches_reference() -> None:
    images, skip = normal(2, 5, 6, 8), normal(2, 8, seed=1)
    more = {"groups": 2, "activation": 1, "epsilon": 1e-5}
    total = images + skip[:, None, None]
    parts = total.reshape(2, 30, 2, 4)
    centred = parts - parts.mean((1, 3), keepdims=True)
    normed = centred / np.sqrt((centred**2).mean((1, 3), keepdims=True) + 1e-5)
    expected = normed.reshape(images.shape) * GAMMA + BETA
    expected /= 1 + np.exp(-expected)
    result = found("SkipGroupNorm", [images, GAMMA, BETA, skip], **more)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    first = found("GroupNorm", [total.transpose(0, 3, 1, 2), GAMMA, BETA], channels_last=0, **more)
    np.testing.assert_allclose(first.transpose(0, 2, 3, 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op_type", "inputs", "constants", "attributes"),
    [
        ("Trilu", [normal(2, 3, 4), np.array(1, np.int64)], (), {"upper": 0}),
        ("GatherND", [normal(3, 4), np.array([[0, 1], [2, 3]])], (), {}),
        ("Range", [scalar(1), scalar(5), scalar(1.5)], (), {}),
        ("Pad", [normal(2, 3), ints(1, 0, 0, 2), scalar(2)], (1,), {"mode": "constant"}),
        ("GridSample", [normal(1, 2, 4, 5), normal(1, 3, 3, 2)], (), {"align_corners": 1}),
    ],
)
def test_operators_moved_to_onnx_match(
    op_type: str, inputs: list[Array], constants: tuple[int, ...], attributes: dict[str, object]
) -> None:
    check(op_type, inputs, constants, **attributes)  # type: ignore[arg-type]


# Attention.

MASKS = {
    "none": None,
    "keys": np.array([[1, 1, 0], [1, 1, 1]], np.int32),
    "pairs": np.tril(np.ones((2, 3, 3), np.int32)),
    "ends": np.array([2, 3], np.int32),
    "ends and begins": np.array([3, 3, 1, 0], np.int32),
}


@pytest.mark.parametrize("mask", list(MASKS))
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_contrib_attention_matches_onnxruntime(mask: str, unidirectional: int) -> None:
    inputs = [X, normal(8, 24, seed=5), normal(24, seed=6), MASKS[mask]]
    more = {"mask_filter_value": -10000.0}
    check(
        "Attention", inputs, (1, 2), num_heads=2, unidirectional=unidirectional, rtol=1e-4, **more
    )


def test_attention_with_a_past_and_a_bias() -> None:
    past = normal(2, 2, 2, 4, 4, seed=7)
    inputs = [X, normal(8, 24, seed=5), normal(24), None, past]
    check("Attention", inputs, (1, 2), (0, 1), num_heads=2, unidirectional=1)
    inputs = [X, normal(8, 24, seed=5), normal(24), None, None, normal(1, 2, 3, 3)]
    check("Attention", inputs, (1, 2), num_heads=2, scale=0.3)


def test_attention_with_values_of_another_width() -> None:
    inputs = [X, normal(8, 28, seed=5), normal(28)]
    check("Attention", inputs, (1, 2), num_heads=2, qkv_hidden_sizes=[8, 8, 12])


@pytest.mark.parametrize("length", [0, 3, 7])
@pytest.mark.parametrize("executor", ["vm", pytest.param("aot", marks=pytest.mark.long)])
def test_attention_with_shared_past_present_buffer(length: int, executor: str) -> None:
    """As with a past of so many keys alone; ONNX Runtime's kernel of CPUs has no shared buffers."""
    x, weights, bias = normal(2, 1, 8), normal(8, 24, seed=5), normal(24, seed=6)
    buffer, mask = normal(2, 2, 2, 8, 4, seed=7), np.ones((2, length + 1), np.int32)
    mask[0, :length] = 0
    options = {"num_heads": 2, "unidirectional": 1, "past_present_share_buffer": 1}
    inputs = [x, weights, bias, mask, buffer, None, np.array(length, np.int32)]
    model, feed = contrib_model("Attention", inputs, (1, 2), (0, 1), **options)
    output, present = ekiden.compile(model, executor=executor)(**feed)  # type: ignore[misc]
    plain = [x, weights, bias, mask, buffer[:, :, :, :length].copy()]
    options["past_present_share_buffer"] = 0
    other, fed = contrib_model("Attention", plain, (1, 2), (0, 1), **options)
    expected_value, keys = run_onnx_runtime(other, fed)
    np.testing.assert_allclose(output.numpy(), expected_value, rtol=1e-4, atol=1e-5)
    expected = buffer.copy()
    expected[:, :, :, : length + 1] = keys
    np.testing.assert_allclose(present.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_full_past_present_buffer_is_an_error() -> None:
    inputs = [normal(2, 1, 8), normal(8, 24), normal(24), None, normal(2, 2, 2, 4, 4), None]
    for length, is_refused in ((np.array(4, np.int32), False), (None, True)):
        model, feed = contrib_model(
            "Attention", [*inputs, length], (1, 2), num_heads=2, past_present_share_buffer=1
        )
        if is_refused:
            with pytest.raises(UnsupportedError, match="needs 'past' and 'past_sequence_length'"):
                from_onnx(model)
        else:
            with pytest.raises((InputError, RunError), match="the past has no room"):
                ekiden.compile(model)(**feed)


def test_multi_head_attention() -> None:
    inputs = [normal(2, 3, 8), normal(2, 4, 8, seed=1), normal(2, 4, 8, seed=2)]
    check("MultiHeadAttention", inputs, num_heads=2)


def test_packed_kv_equals_separate_kv() -> None:
    q, k, v = (normal(2, 3, 2, 4, seed=s) for s in range(3))
    flat = [t.reshape(2, 3, 8) for t in (q, k, v)]
    expected = found("MultiHeadAttention", flat, num_heads=2)
    both = [flat[0], np.stack([k, v], axis=3)]
    np.testing.assert_array_equal(found("MultiHeadAttention", both, num_heads=2), expected)
    all_of_them = [np.stack([q, k, v], axis=3)]
    np.testing.assert_array_equal(found("MultiHeadAttention", all_of_them, num_heads=2), expected)


def test_multi_head_attention_with_masks_and_caches() -> None:
    q, k, v = normal(2, 3, 8), normal(2, 3, 8, seed=1), normal(2, 3, 8, seed=2)
    bias, past = normal(24), [normal(2, 2, 5, 4, seed=s) for s in (3, 4)]
    added = normal(2, 2, 3, 8, seed=5)
    check("MultiHeadAttention", [q, k, v, bias], (3,), num_heads=2, unidirectional=1)
    check("MultiHeadAttention", [q, k, v, None, MASKS["keys"]], num_heads=2)
    check("MultiHeadAttention", [q, k, v, bias, None, added, *past], (3,), (0, 1, 2), num_heads=2)
    # keys and values that are cached already, as those of the encoder are
    check("MultiHeadAttention", [q, *past], num_heads=2)


@pytest.mark.parametrize("queries", [1, 3, 6])
@pytest.mark.parametrize("past", [0, 2])
def test_causal_attention_with_unequal_key_and_query_counts(queries: int, past: int) -> None:
    inputs = [normal(2, n, 8, seed=n) for n in (queries, 4, 4)]
    if past:
        inputs += [None, None, None, *(normal(2, 2, past, 4, seed=s) for s in (3, 4))]
    outputs = (0, 1, 2) if past else (0,)
    check("MultiHeadAttention", inputs, (), outputs, num_heads=2, unidirectional=1)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [ints(2), np.array([[0, 3, 1], [5, 6, 7]])])
def test_rotary_embedding(interleaved: int, positions: Array) -> None:
    tables = [normal(10, 2, seed=s) for s in range(2)]
    check("RotaryEmbedding", [X, positions, *tables], (2, 3), interleaved=interleaved)
    check(
        "RotaryEmbedding", [normal(2, 2, 3, 4), positions, *tables], (2, 3),
        interleaved=interleaved,
    )  # fmt: skip
    wide = [normal(2, 3, 16), positions, *tables]
    check("RotaryEmbedding", wide, (2, 3), num_heads=2, rotary_embedding_dim=4)


def group_inputs(rows: int, past: int, room: int, lengths: Sequence[int]) -> list[Array | None]:
    """As many sequences as lengths, with 4 heads of depth 16 that share 2 keys; `room` is how long
    the cache is.
    """
    count = len(lengths)
    return [
        normal(count, rows, 64), normal(count, rows, 32, seed=1), normal(count, rows, 32, seed=2),
        normal(count, 2, room, 16, seed=3), normal(count, 2, room, 16, seed=4),
        np.array([n - 1 for n in lengths], np.int32), np.array(past + rows, np.int32),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "past", "room"), [(3, 0, 0), (1, 4, 4), (3, 2, 2), (3, 0, 6), (1, 4, 8)]
)
@pytest.mark.parametrize("rotary", [0, 1])
def test_group_query_attention(rows: int, past: int, room: int, rotary: int) -> None:
    inputs = group_inputs(rows, past, room, [past + rows] * (1 if past and rows > 1 else 2))
    tables = [normal(16, 8, seed=s) for s in (7, 8)] if rotary else []
    constants = (6, 7, 8) if rotary else (6,)
    model, feed = contrib_model(
        "GroupQueryAttention", [*inputs, *tables], constants, (0, 1, 2),
        num_heads=4, kv_num_heads=2, do_rotary=rotary,
    )  # fmt: skip
    compare(model, feed, rtol=1e-4)


def test_group_query_attention_of_rows_of_different_lengths() -> None:
    inputs = group_inputs(1, 4, 5, [5, 3])
    more = {"num_heads": 4, "kv_num_heads": 2}
    check("GroupQueryAttention", inputs, (6,), (0, 1, 2), rtol=1e-4, **more)
    check("GroupQueryAttention", inputs, (6,), (0, 1, 2), rtol=1e-4, local_window_size=2, **more)
    check("GroupQueryAttention", inputs, (6,), (0, 1, 2), rtol=1e-4, softcap=2.0, **more)


@pytest.mark.parametrize("options", [{}, {"causal": 0}, {"local_window_size": 2}])
@pytest.mark.parametrize("room", [0, 6])
def test_group_query_attention_with_right_padding(room: int, options: dict[str, int]) -> None:
    inputs = group_inputs(3, 0, room, [3, 2])
    more = {"num_heads": 4, "kv_num_heads": 2, **options}
    check("GroupQueryAttention", inputs, (6,), (0, 1, 2), rtol=1e-4, **more)


def test_group_query_attention_of_packed_inputs() -> None:
    inputs = group_inputs(3, 0, 0, [3, 3])
    packed = np.concatenate(inputs[:3], axis=2)  # type: ignore[arg-type]
    check(
        "GroupQueryAttention", [packed, None, None, *inputs[3:]], (6,), (0, 1, 2), rtol=1e-4,
        num_heads=4, kv_num_heads=2,
    )  # fmt: skip


def test_group_query_attention_whose_total_is_data() -> None:
    inputs = group_inputs(1, 5, 8, [6, 6])
    check("GroupQueryAttention", inputs, (), (0, 1, 2), 1e-4, num_heads=4, kv_num_heads=2)


@pytest.mark.parametrize("sink", [None, normal(4, seed=9)])
def test_group_query_attention_with_a_sink(sink: Array | None) -> None:
    inputs = [*group_inputs(3, 2, 2, [5]), None, None, None, None, sink]
    more = {"num_heads": 4, "kv_num_heads": 2, "smooth_softmax": 1}
    check("GroupQueryAttention", inputs, (6,), (0, 1, 2), 1e-4, local_window_size=2, **more)


# Bytes. Their products: test_onnx_byte_products.py.

SCALES = [scalar(0.0217), scalar(120, np.uint8)]


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_add_and_mul_match_onnxruntime(op_type: str, dtype: type) -> None:
    zero = scalar(3, dtype)
    pairs = [some_bytes(2, 5, dtype=dtype), scalar(0.0217), zero]
    other = [some_bytes(2, 1, seed=1, dtype=dtype), scalar(0.0331), zero]
    check(op_type, [*pairs, *other, scalar(0.0413), zero])


def test_qlinear_activations_match_onnxruntime() -> None:
    inputs = [some_bytes(2, 9), *SCALES, scalar(0.01), scalar(5, np.uint8)]
    check("QLinearSigmoid", inputs, (1, 2, 3, 4))
    check("QLinearLeakyRelu", inputs, (1, 2, 3, 4), alpha=0.1)
    check("QLinearSoftmax", inputs, (1, 2, 3, 4), axis=-1, opset=13)


def test_qlinear_pool_and_concat_match_onnxruntime() -> None:
    images = some_bytes(1, 3, 6, 6)
    result = [scalar(0.0313), scalar(100, np.uint8)]
    check("QLinearGlobalAveragePool", [images, *SCALES, *result], (1, 2, 3, 4))
    last = [some_bytes(1, 6, 6, 3), *SCALES, *result]
    check("QLinearGlobalAveragePool", last, (1, 2, 3, 4), channels_last=1)
    check("QLinearAveragePool", [images, *SCALES, *result], (1, 2, 3, 4), kernel_shape=[2, 2])
    for kernel, stride, pads in ((3, 2, (0, 0)), (4, 3, (1, 1)), (2, 3, (0, 1)), (3, 2, (1, 2))):
        check(
            "QLinearAveragePool", [images, *SCALES, *result], (1, 2, 3, 4), ceil_mode=1,
            kernel_shape=[kernel, 2], strides=[stride, 1], pads=[pads[0], 0, pads[1], 0],
            count_include_pad=1,
        )  # fmt: skip
    check("NhwcMaxPool", [some_bytes(1, 6, 6, 3)], kernel_shape=[2, 2], strides=[2, 2])
    both = [*result, images, *SCALES, some_bytes(1, 2, 6, 6, seed=2), *SCALES]
    check("QLinearConcat", both, (0, 1, 3, 4, 6, 7), axis=1)
    condition = np.arange(36).reshape(1, 1, 6, 6) % 3 == 0
    triples = [images, *SCALES, some_bytes(1, 3, 6, 6, seed=4), *SCALES, *result]
    check("QLinearWhere", [condition, *triples], (2, 3, 5, 6, 7, 8))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_nbits_matches_onnxruntime(bits: int, zeros: bool) -> None:
    rows, columns, block = 6, 40, 16
    blocks = 3
    packed = some_bytes(rows, blocks, block * bits // 8)
    scales = normal(rows * blocks) ** 2
    points = some_bytes(rows * (-(-blocks * bits // 8)), seed=3) if zeros else None
    check(
        "MatMulNBits", [normal(2, columns), packed, scales, points], (1, 2, 3), rtol=1e-4,
        N=rows, K=columns, bits=bits, block_size=block,
    )  # fmt: skip


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("points_kind", ["none", "packed", "floats"])
@pytest.mark.parametrize("known", [False, True])
def test_matmul_nbits_with_g_idx_matches_onnxruntime(
    bits: int, points_kind: str, known: bool
) -> None:
    """Against NumPy: ONNX Runtime 1.32 takes 8 for every packed zero point beside `g_idx`."""
    rows, columns, block = 6, 48, 16
    blocks, per_byte = columns // block, 8 // bits
    rng = np.random.default_rng(7)
    packed = some_bytes(rows, blocks, block // per_byte)
    scales = (normal(rows, blocks) ** 2).astype(np.float32)
    groups = rng.permutation(np.arange(columns) // block).astype(np.int32)
    shifts = np.arange(per_byte) * bits
    points: Array | None = None
    zero = np.full((rows, blocks), 1 << (bits - 1), np.float32)
    if points_kind == "packed":
        points = some_bytes(rows, -(-blocks // per_byte), seed=3)
        parts = (points[..., None] >> shifts) & ((1 << bits) - 1)
        zero = parts.reshape(rows, -1)[:, :blocks].astype(np.float32)
    elif points_kind == "floats":
        points = zero = normal(rows, blocks)
    levels = ((packed[..., None] >> shifts) & ((1 << bits) - 1)).reshape(rows, columns)
    weight = (levels - zero[:, groups]) * scales[:, groups]
    data = normal(3, columns)
    model, feed = contrib_model(
        "MatMulNBits", [data, packed, scales, points, groups], (1, 2, 3, 4) if known else (),
        N=rows, K=columns, bits=bits, block_size=block,
    )  # fmt: skip
    (result,) = interpret(model, list(feed.values()))
    # Sums of `columns` products in float32, whose terms have these sizes.
    sizes = np.abs(data) @ ((levels + np.abs(zero)[:, groups]) * scales[:, groups]).T
    bound = 2 * columns * np.finfo(np.float32).eps * sizes
    assert (np.abs(result - data @ weight.T) <= bound).all()


def test_gather_block_quantized_matches_onnxruntime() -> None:
    table, scales = some_bytes(7, 16), normal(7, 2) ** 2
    check(
        "GatherBlockQuantized", [table, ints(1, 5), scales], (0, 2),
        bits=4, block_size=16, gather_axis=0, quantize_axis=1,
    )  # fmt: skip


def test_unsupported_contrib_options_are_named() -> None:
    model, _ = contrib_model("Attention", [X, normal(8, 24)], (1,), num_heads=2, do_rotary=1)
    with pytest.raises(UnsupportedError, match="'do_rotary' must be one of 0, got 1"):
        from_onnx(model)
