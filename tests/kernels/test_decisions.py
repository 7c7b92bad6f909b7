"""Kernel families: decisions as text and their validation; no decision changes a result."""

from __future__ import annotations

import random as chances
from collections.abc import Callable

import numpy as np
import pytest

from ekiden import te
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.prim import PrimExpr, SizeVar, maximum
from ekiden.kernels import FAMILIES, schedule, select_kernel
from ekiden.kernels.attention.attention_config import AttentionConfig
from ekiden.kernels.cost_model import choose_panel_width
from ekiden.kernels.decision import Decision, Overrides, with_current_names
from ekiden.kernels.family import MatmulSizes
from ekiden.kernels.quantized import int4_dense
from ekiden.runtime import load_image
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.topi import scatter_nd
from ekiden.topi.nn import (
    attention,
    batch_matmul,
    conv,
    conv_transpose,
    dense_pack,
    winograd_conv2d,
)
from ekiden.topi.nn.weight_packing import pack_weight
from ekiden.topi.nn.winograd import transform_weight
from long_runs import alike, share

TARGET = Target(Target.host(), cores=2)
NARROW = Target("llvm -mcpu=x86-64-v3 -cores=1")
LINE = 16


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def compiled(
    inputs: list[te.Tensor], output: te.Tensor, family: str, fixed: Overrides, target: Target
) -> Callable[..., object]:
    func = schedule(inputs, [output], target, "kernel", {family: fixed})
    image = link_image([compile_object([lower(func, target)], target)], ["kernel"])
    kernel: Callable[..., object] = load_image(image)["kernel"]
    return kernel


def some_points(anchor: te.Tensor, family: str, target: Target, count: int) -> list[Overrides]:
    """Random points of a space, always the same ones."""
    space = FAMILIES[family].search_space(anchor, target)
    picker = chances.Random(len(space))
    free = [c for c in space if not c.is_early]
    return [{c.name: picker.choice(c.domain) for c in free} for _ in range(count)]


@pytest.mark.quick
def test_decision_is_read_back_from_its_text() -> None:
    result = Decision.from_mapping({"rows": 9, "order": "panel", "k_block": 0})
    assert str(result) == "rows=9 order=panel k_block=0"
    assert Decision.parse(str(result)) == result
    assert dict(result) == {"rows": 9, "order": "panel", "k_block": 0}


@pytest.mark.quick
@pytest.mark.parametrize("word", ["\u00b2", "9" * 5000, "-1"])
def test_non_numeric_knob_values_parse_as_words(word: str) -> None:
    assert dict(Decision.parse(f"rows={word}")) == {"rows": word}


@pytest.mark.quick
@pytest.mark.parametrize("text", ["rows", "rows=", "=9", "rows=9 rows=8"])
def test_malformed_decision_text_is_refused(text: str) -> None:
    with pytest.raises(CompileError) as caught:
        Decision.parse(text)
    assert str(caught.value) == f"decisions: expected 'name=value ...' once each, got {text!r}"


@pytest.mark.quick
@pytest.mark.parametrize(
    ("family", "old", "current"),
    [
        ("dense_pack", "own=8 spread=4 rows=2", "l1_prefetch=8 l2_prefetch=4 rows=2"),
        ("batch_matmul", "how=panels ahead=second", "rhs_access=panels pack_prefetch=l2"),
    ],
)
def test_knob_names_of_old_records_are_understood(family: str, old: str, current: str) -> None:
    if family == "dense_pack":
        _, anchor = dense(64, 96, 64, 32)
    else:
        anchor = batch_matmul(te.placeholder((1, 64, 64)), te.placeholder((1, 64, 96)))
    space = FAMILIES[family].search_space(anchor, TARGET)
    assert dict(with_current_names(space, Decision.parse(old))) == dict(Decision.parse(current))
    chosen = FAMILIES[family].choose_decision(anchor, TARGET, Decision.parse(old))
    assert Decision.parse(current).items() <= chosen.items()


@pytest.mark.quick
def test_every_family_has_a_row_of_its_own() -> None:
    assert [row.name for row in FAMILIES.values()] == list(FAMILIES)
    last = {row.is_gpu_family: row.name for row in FAMILIES.values()}
    assert last == {False: "default", True: "threads"}


def dense(m: int | SizeVar, n: int, k: int, panel: int) -> tuple[list[te.Tensor], te.Tensor]:
    data = te.placeholder((m, k), name="data")
    weight = te.placeholder((-(-n // panel), k, panel), name="weight")
    return [data, weight], dense_pack(data, weight, n, panel)


@pytest.mark.quick
def test_default_choices_are_in_the_search_space() -> None:
    for target in (TARGET, NARROW, Target("llvm -mcpu=x86-64-v2"), Target("llvm -mcpu=znver4")):
        for m, n, k in [(1, 10, 7), (37, 768, 768), (128, 768, 3072), (SizeVar("m"), 100, 64)]:
            panel = FAMILIES["dense_pack"].choose_panel_width(
                MatmulSizes.from_dims(m, n, k), target, {}
            )
            _, anchor = dense(m, n, k, panel)
            result = select_kernel([anchor], target).decision
            space = FAMILIES["dense_pack"].search_space(anchor, target)
            assert list(result) == [choice.name for choice in space]
            assert all(result[choice.name] in choice.domain for choice in space)


@pytest.mark.quick
def test_unknown_choice_is_refused_with_those_there_are() -> None:
    _, anchor = dense(8, 48, 20, 48)
    with pytest.raises(CompileError) as caught:
        select_kernel([anchor], TARGET, {"dense_pack": {"row": 3}})
    there = "panel, rows, order, k_block, l1_prefetch, l2_prefetch, unroll, copy, split"
    assert str(caught.value) == (f"decisions: 'dense_pack' has no choice 'row'; there are: {there}")


@pytest.mark.quick
def test_unknown_value_is_refused_with_the_domain() -> None:
    _, anchor = dense(8, 48, 20, 48)
    with pytest.raises(CompileError) as caught:
        select_kernel([anchor], TARGET, {"dense_pack": {"order": "column"}})
    assert str(caught.value) == (
        "decisions: 'dense_pack': 'order' is one of panel, row, got 'column'"
    )


def with_residual(anchor: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    residual = te.placeholder(anchor.shape, name="residual")

    def body(i: PrimExpr, j: PrimExpr) -> PrimExpr:
        return maximum(anchor[i, j] + residual[i, j], 0.0)

    return residual, te.compute(anchor.shape, body, tag="broadcast")


DENSE = [
    (TARGET, 37, 130, 1000, 48),
    (TARGET, 5, 300, 768, 32),
    (TARGET, 29, 40, 400, 64),
    (NARROW, 23, 50, 960, 24),
    (NARROW, 1, 33, 384, 16),
]


@alike(4)
@pytest.mark.parametrize(("target", "m", "n", "k", "panel"), DENSE)
def test_no_decision_changes_a_dense_layer(
    target: Target, m: int, n: int, k: int, panel: int
) -> None:
    inputs, anchor = dense(m, n, k, panel)
    residual, output = with_residual(anchor)
    x, w, r = random(m, k), random(n, k), random(m, n)
    want = np.maximum(x.astype("float64") @ w.T + r, 0)
    packed = pack_weight(w, "dense", panel)
    for fixed in some_points(anchor, "dense_pack", target, 4):
        kernel = compiled([*inputs, residual], output, "dense_pack", fixed, target)
        result = np.full((m, n), np.nan, "float32")
        kernel(x, packed, r, result)
        np.testing.assert_allclose(result, want, rtol=1e-3, atol=1e-3, err_msg=str(fixed))


def test_no_decision_changes_a_dense_layer_of_any_number_of_rows() -> None:
    inputs, anchor = dense(SizeVar("m"), 70, 400, 48)
    w = random(70, 400)
    packed = pack_weight(w, "dense", 48)
    for fixed in some_points(anchor, "dense_pack", TARGET, 2):
        kernel = compiled(inputs, anchor, "dense_pack", fixed, TARGET)
        for m in (0, 1, 7, 40):
            x, result = random(m, 400), np.full((m, 70), np.nan, "float32")
            kernel(x, packed, result)
            np.testing.assert_allclose(result, x @ w.T, rtol=1e-3, atol=1e-3, err_msg=str(fixed))


def test_sums_kept_in_the_result_leave_an_argument_alone() -> None:
    """A residual may lie in the bytes of the result only where an element is written once."""
    inputs, anchor = dense(20, 48, 768, 48)
    residual, output = with_residual(anchor)
    whole = schedule(
        [*inputs, residual], [output], TARGET, "kernel", {"dense_pack": {"k_block": 0}}
    )
    parts = {"dense_pack": {"k_block": 384}}
    blocked = schedule([*inputs, residual], [output], TARGET, "kernel", parts)
    assert (whole.attrs or {}).get("tir.in_place") == (2,)
    assert "tir.in_place" not in (blocked.attrs or {})


@share(4)
@pytest.mark.parametrize("target", [TARGET, NARROW], ids=["host", "avx2"])
@pytest.mark.parametrize(
    ("a", "b", "tb"),
    [
        ((3, 37, 40), (3, 40, 130), False),
        ((1, 70, 33), (1, 150, 33), True),
        ((2, 21, 300), (2, 300, 32), False),
        ((1, 4, 60), (1, 60, 90), False),
    ],
)
def test_no_decision_changes_a_product(
    target: Target, a: tuple[int, ...], b: tuple[int, ...], tb: bool
) -> None:
    left, right = te.placeholder(a, name="a"), te.placeholder(b, name="b")
    anchor = batch_matmul(left, right, transpose_b=tb)
    x, y = random(*a), random(*b)
    want = x.astype("float64") @ (y.swapaxes(-1, -2) if tb else y)
    for fixed in some_points(anchor, "batch_matmul", target, 3):
        kernel = compiled([left, right], anchor, "batch_matmul", fixed, target)
        result = np.full(want.shape, np.nan, "float32")
        kernel(x, y, result)
        np.testing.assert_allclose(result, want, rtol=1e-3, atol=1e-3, err_msg=str(fixed))


def convolved(x: np.ndarray, w: np.ndarray, stride: int, pad: int) -> np.ndarray:
    """NHWC data, OIHW weight."""
    n, height, width, _ = x.shape
    out, _, kh, kw = w.shape
    padded = np.pad(x.astype("float64"), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    rows, columns = ((e + 2 * pad - k) // stride + 1 for e, k in ((height, kh), (width, kw)))
    result = np.zeros((n, rows, columns, out))
    for i in range(kh):
        for j in range(kw):
            part = padded[:, i : i + rows * stride : stride, j : j + columns * stride : stride]
            result += np.einsum("nyxc,oc->nyxo", part[:, :rows, :columns], w[:, :, i, j])
    return result


@share(4)
@pytest.mark.parametrize("target", [TARGET, NARROW], ids=["host", "avx2"])
@pytest.mark.parametrize(
    ("image", "channels", "kernel", "stride", "pad"),
    [
        ((1, 7, 7, 384), 100, 1, 1, 0),
        ((1, 7, 6, 64), 50, 3, 1, 1),
        ((2, 9, 14, 16), 70, 3, 2, 1),
        ((1, 5, 15, 200), 33, 3, 1, 0),
    ],
)
def test_no_decision_changes_a_convolution(
    target: Target, image: tuple[int, ...], channels: int, kernel: int, stride: int, pad: int
) -> None:
    panel = 3 * target.lanes("float32")
    x, w = random(*image), random(channels, image[3], kernel, kernel)
    packed = pack_weight(w, "conv2d", panel)
    data, weight = te.placeholder(image, name="data"), te.placeholder(packed.shape, name="weight")
    layout = f"OHWI{panel}o"
    anchor = conv(data, weight, stride, pad, 1, 1, "NHWC", layout, channels=channels)
    residual, output = (te.placeholder(anchor.shape, name="residual"), anchor)
    output = te.compute(anchor.shape, lambda *i: anchor[i] + residual[i], tag="broadcast")
    r = random(*(int(str(d)) for d in anchor.shape))
    want = convolved(x, w, stride, pad) + r
    for fixed in some_points(anchor, "conv_nhwc_pack", target, 3):
        inputs = [data, weight, residual]
        run = compiled(inputs, output, "conv_nhwc_pack", fixed, target)
        result = np.full(want.shape, np.nan, "float32")
        run(x, packed, r, result)
        np.testing.assert_allclose(result, want, rtol=1e-3, atol=1e-3, err_msg=str(fixed))


@pytest.mark.parametrize("m", [2, 4])
def test_no_decision_changes_a_convolution_by_winograd(m: int) -> None:
    lanes = TARGET.lanes("float32")
    image, channels = (1, 11, 14, 2 * lanes), 3 * lanes + 5
    x, w = random(*image), random(channels, image[3], 3, 3)
    changed = transform_weight(w, m, 2 * lanes)
    data, weight = te.placeholder(image, name="data"), te.placeholder(changed.shape, name="weight")
    anchor = winograd_conv2d(data, weight, m, channels, (1, 1, 1, 1))
    want = convolved(x, w, 1, 1)
    for fixed in some_points(anchor, "winograd_conv2d", TARGET, 3):
        run = compiled([data, weight], anchor, "winograd_conv2d", fixed, TARGET)
        result = np.full(want.shape, np.nan, "float32")
        run(x, changed, result)
        np.testing.assert_allclose(result, want, rtol=1e-2, atol=1e-2, err_msg=str(fixed))


@pytest.mark.quick
def test_every_family_chooses_within_its_space() -> None:
    """Of the convolutions of a network, on processors of all classes."""
    for cpu in ("x86-64-v2", "x86-64-v3", "skylake-avx512", "znver4", "sapphirerapids"):
        target = Target(f"llvm -mcpu={cpu} -cores=2")
        panel = 2 * target.lanes("float32")
        for size, depth, channels, kernel in [(56, 64, 64, 1), (14, 256, 512, 3), (7, 512, 40, 3)]:
            data = te.placeholder((1, size, size, depth))
            weight = te.placeholder((-(-channels // panel), kernel, kernel, depth, panel))
            layout, pad = f"OHWI{panel}o", kernel // 2
            anchor = conv(data, weight, 1, pad, 1, 1, "NHWC", layout, channels=channels)
            chosen = select_kernel([anchor], target)
            space = chosen.family.search_space(anchor, target)
            assert chosen.family.name == "conv_nhwc_pack"
            assert list(chosen.decision) == [choice.name for choice in space]
            assert all(chosen.decision[c.name] in c.domain for c in space)


@pytest.mark.quick
@pytest.mark.parametrize("cpu", ["haswell", "znver3", "skylake-avx512", "znver4"])
def test_prefetching_loops_unroll_in_pairs(cpu: str) -> None:
    """Also the next panel alone, where one stays near; not where nothing is."""
    target = Target(f"llvm -mcpu={cpu} -cores=1")
    panel = 2 * target.lanes("float32")
    for size, depth, channels, steps in [(14, 256, 256, 2), (28, 96, panel, 1)]:
        data = te.placeholder((1, size, size, depth))
        weight = te.placeholder((channels // panel, 1, 1, depth, panel))
        anchor = conv(data, weight, 1, 0, 1, 1, "NHWC", f"OHWI{panel}o", channels=channels)
        result = select_kernel([anchor], target).decision
        assert result["unroll"] == steps and bool(
            result["l1_prefetch"] or result["l2_prefetch"]
        ) == (steps == 2)


@pytest.mark.quick
@pytest.mark.parametrize("cpu", ["haswell", "znver3", "znver4"])
@pytest.mark.parametrize(
    ("stride", "depth", "dilation", "steps"),
    [(1, 1, 1, 1), (2, 1, 1, 2), (1, 2, 1, 2), (1, 1, 2, 2)],
)
def test_shared_prefetch_steps_are_not_paired(
    stride: int, depth: int, dilation: int, steps: int, cpu: str
) -> None:
    """Of a window over one channel the next step of a pixel is this one of the next pixel."""
    target = Target(f"llvm -mcpu={cpu} -cores=1")
    panel = 3 * target.lanes("float32")
    data = te.placeholder((1, 1, 900, depth))
    weight = te.placeholder((4, 1, 256, depth, panel))
    layout = f"OHWI{panel}o"
    strides, dilated = (1, stride), (1, dilation)
    anchor = conv(data, weight, strides, 0, dilated, 1, "NHWC", layout, channels=4 * panel)
    result = select_kernel([anchor], target).decision
    assert result["order"] == "panel" and result["unroll"] == steps


@pytest.mark.quick
@pytest.mark.parametrize(
    ("cpu", "text"), [("sapphirerapids", "rows=6 wide_rows=3"), ("alderlake", "rows=4 wide_rows=1")]
)
def test_tiles_of_four_bits_hold_as_many_sums_as_registers(cpu: str, text: str) -> None:
    assert (
        str(int4_dense.default_decision(te.placeholder((1,)), Target(f"llvm -mcpu={cpu}"), {}))
        == text
    )


@pytest.mark.parametrize("cores", [1, 2])
def test_panels_are_no_narrower_for_threads_that_share_out_rows(cores: int) -> None:
    """Seven panels of 16 are not even for two threads, but 33 tiles of rows nearly are."""
    target = Target(f"llvm -mcpu=znver3 -cores={cores}")
    assert choose_panel_width(MatmulSizes(196, 112, 384), target) == 16


def test_depthwise_tile_follows_cache_capacity() -> None:
    result = []
    for size, channels in ((112, 96), (14, 672)):
        data, weight = (
            te.placeholder((1, size, size, channels)),
            te.placeholder((3, 3, channels, 1)),
        )
        anchor = conv(data, weight, 1, 1, 1, channels, "NHWC", "HWOI")
        target = Target("llvm -mcpu=znver3")
        result.append(select_kernel([anchor], target).decision.int_value("vectors"))
    assert result == [2, 1]


def test_conflicting_depthwise_channels_are_copied() -> None:
    def bands(channels: int, stride: int, cores: int) -> int:
        data = te.placeholder((1, 14, 14, channels))
        weight = te.placeholder((3, 3, channels, 1))
        anchor = conv(data, weight, stride, 1, 1, channels, "NHWC", "HWOI")
        target = Target(f"llvm -mcpu=znver3 -cores={cores}")
        return select_kernel([anchor], target).decision.int_value("copied_lines")

    assert bands(512, 1, 1) == 14
    assert bands(512, 1, 2) == 7  # each core has lines
    assert bands(480, 1, 1) == 0  # other pixels begin in other lines of the cache
    assert bands(512, 2, 1) == 0  # nearly all rows would be copied for each line of results


@pytest.mark.parametrize(
    ("stride", "padding", "dilation"),
    [(1, (2, 0, 1, 3), 1), (2, (0, 1, 1, 0), 1), (1, (5, 2, 5, 2), 2), (3, (9, 0, 9, 9), 1)],
)
def test_copied_channels_give_what_data_in_place_give(
    stride: int, padding: tuple[int, int, int, int], dilation: int
) -> None:
    """Borders may be longer than a kernel: lines of results and whole bands then read nothing."""
    vectors = max(1, 16 // TARGET.lanes("float32"))  # of a line of the cache
    many = vectors * TARGET.lanes("float32") + 5
    data, weight = te.placeholder((2, 9, 11, many)), te.placeholder((3, 3, many, 1))
    anchor = conv(data, weight, stride, padding, dilation, many, "NHWC", "HWOI")
    arrays, output = [random(2, 9, 11, many), random(3, 3, many, 1)], []
    for near in (0, 1, 2):
        result = np.full([int(str(d)) for d in anchor.shape], np.nan, "float32")
        fixed = {"copied_lines": near, "vectors": vectors}
        compiled([data, weight], anchor, "depthwise_conv_nhwc", fixed, TARGET)(*arrays, result)
        output.append(result)
    assert np.array_equal(output[0], output[1])
    assert np.array_equal(output[0], output[2])


def other_families() -> list[tuple[str, list[te.Tensor], te.Tensor]]:
    """A computation of each other family with choices."""
    panel = 2 * TARGET.lanes("float32")
    image = te.placeholder((1, 9, 13, 20), name="data")
    deep = te.placeholder((3, 3, 20, 1), name="weight")
    packed = te.placeholder((2, 3, 3, 20, panel), name="weight")
    few, taps = te.placeholder((1, 5, 9, 24), name="data"), te.placeholder((24, 3, 2, 2))
    apart = ((2, 2), (1, 1, 1, 1), (1, 1), (1, 1))
    at_once = ((2, 2), (0, 0, 0, 0), (0, 0), (1, 1))
    depthwise = conv(image, deep, 1, 1, 1, 20, "NHWC", "HWOI")
    phases = conv_transpose(
        image, packed, *apart, 1, "NHWC", f"OHWI{panel}o", channels=2 * panel - 3
    )
    of_each = conv_transpose(image, deep, *apart, 20, "NHWC", "HWIO")
    one_panel = conv_transpose(few, taps, *at_once, 1, "NHWC", "IOHW")
    query, key = te.placeholder((1, 2, 37, 24)), te.placeholder((1, 2, 83, 24))
    value, bias = te.placeholder((1, 83, 2, 32)), te.placeholder((1, 1, 37, 83))
    heads = AttentionConfig(("bhsd", "bhsd", "bshd", "bshd"))
    rows, updates = te.placeholder((5, 3, 40)), te.placeholder((2, 70, 40))
    places = te.placeholder((2, 2, 70), "int64")
    return [
        ("attention", [query, key, value, bias], attention(heads, [query, key, value, bias])),
        ("scatter", [rows, places, updates], scatter_nd(rows, places, updates, "add")),
        ("depthwise_conv_nhwc", [image, deep], depthwise),
        ("conv_transpose_pack", [image, packed], phases),
        ("depthwise_conv_transpose", [image, deep], of_each),
        ("conv2d_transpose", [few, taps], one_panel),
    ]


def some_array(tensor: te.Tensor) -> np.ndarray:
    """Numbers, or indices from either end of an axis of three."""
    shape = [int(str(d)) for d in tensor.shape]
    if tensor.dtype == "int64":
        return np.random.default_rng(0).integers(-3, 3, shape)
    return random(*shape)


@alike(4)
@pytest.mark.parametrize("number", range(6))
def test_no_decision_changes_what_another_family_computes(number: int) -> None:
    """Compared with what is chosen, which other tests compare with NumPy."""
    family, inputs, anchor = other_families()[number]
    assert select_kernel([anchor], TARGET).family.name == family
    arrays = list(map(some_array, inputs))
    output = []
    chosen, space = (
        select_kernel([anchor], TARGET).decision,
        FAMILIES[family].search_space(anchor, TARGET),
    )
    assert list(chosen) == [choice.name for choice in space]
    assert all(chosen[choice.name] in choice.domain for choice in space)
    for fixed in ({}, *some_points(anchor, family, TARGET, 3)):
        result = np.full([int(str(d)) for d in anchor.shape], np.nan, "float32")
        compiled(inputs, anchor, family, fixed, TARGET)(*arrays, result)
        output.append(result)
        np.testing.assert_allclose(result, output[0], rtol=1e-3, atol=1e-3, err_msg=str(fixed))
