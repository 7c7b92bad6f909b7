"""AlterOpLayout: constant weights are packed for the register tiles of the target."""

import math

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, program

from ekiden import te
from ekiden.ir.module import IRModule
from ekiden.kernels import FAMILIES, select_kernel
from ekiden.kernels.family import MatmulSizes
from ekiden.relay.expr import Call, Constant
from ekiden.relay.transform import AlterOpLayout, ConvertLayout, FoldConstant, InferType
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.target import Target
from ekiden.topi.nn import winograd_conv2d

pytestmark = pytest.mark.quick

TARGET = Target.parse("llvm -mcpu=x86-64-v4")
BYTE_DOT_TARGET = Target.parse("llvm -mcpu=cascadelake")
LANES = TARGET.lanes("float32")


def tile_width(channels: int, depth: int | None = None) -> int:
    return FAMILIES["dense_pack"].choose_panel_width(MatmulSizes(None, channels, depth), TARGET, {})


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, np.float32) - 0.5


def packed(module: IRModule, target: Target = TARGET) -> IRModule:
    return InferType()(FoldConstant()(AlterOpLayout(target)(ConvertLayout()(module))))


def weights(module: IRModule) -> list[tuple[int, ...]]:
    result = evaluation_order(module["main"].body)
    return [e.data.shape for e in result if isinstance(e, Constant) and e.data.ndim > 1]


def layouts(module: IRModule) -> list[str]:
    result = evaluation_order(module["main"].body)
    return [e.attrs.kernel_layout for e in result if isinstance(e, Call) and "conv2d" in e.op.name]


@pytest.mark.parametrize(
    ("channels", "expected"), [(1, 16), (16, 16), (17, 32), (64, 64), (65, 48), (768, 64)]
)
def test_tile_is_whole_vectors(channels: int, expected: int) -> None:
    """No more of them than hold all channels, and few left over."""
    assert LANES == 16 and tile_width(channels) == expected


@pytest.mark.parametrize("units", [1, 16, 70])
def test_dense_layer_gets_panels(units: int) -> None:
    before = program(
        f"""def @main(%x: Tensor[(n, 5), float32], %w: Tensor[({units}, 5), float32]) {{
          nn.relu(nn.dense(%x, %w)) }}""",
        w=array(units, 5),
    )
    after = packed(before)
    tile = tile_width(units, 5)
    assert calls(after) == ["nn.contrib_dense_pack", "nn.relu"]
    assert weights(after) == [(-(-units // tile), 5, tile)]
    assert_same_meaning(before, after, [array(3, 5)])


@pytest.mark.parametrize(
    ("channels_in", "channels", "groups", "layout"),
    [(3, 20, 1, "OHWI32o"), (6, 6, 6, "HWOI"), (4, 40, 2, "GOHWI32o")],
)
def test_convolution_gets_the_layout_of_its_kernel(
    channels_in: int, channels: int, groups: int, layout: str
) -> None:
    weight = array(channels, channels_in // groups, 3, 3)
    before = program(
        f"""def @main(%x: Tensor[(2, {channels_in}, 6, 7), float32],
                      %w: Tensor[({", ".join(map(str, weight.shape))}), float32]) {{
          nn.conv2d(%x, %w, padding=[1, 1, 1, 1], strides=[2, 1], groups={groups}) }}""",
        w=weight,
    )
    after = packed(before)
    assert layouts(after) == [layout]
    assert_same_meaning(before, after, [array(2, channels_in, 6, 7)], rtol=1e-4)


@pytest.mark.parametrize(
    ("channels_in", "channels", "groups", "attrs", "layout"),
    [
        (3, 20, 1, "strides=[2, 2], padding=[1, 1, 1, 1]", "OHWI32o"),
        (6, 6, 6, "strides=[2, 1], output_padding=[1, 0]", "HWIO"),
        (4, 40, 2, "strides=[2, 1], dilation=[1, 2]", "GOHWI32o"),
        (3, 1, 1, "strides=[3, 3]", "IOHW"),  # all taps are one panel
        (3, 20, 1, "padding=[1, 0, 1, 2]", "OHWI32o"),
        (4, 20, 2, "dilation=[1, 2], output_padding=[0, 1]", "GOHWI16o"),
    ],
)
def test_transposed_convolution_gets_the_layout_of_its_kernel(
    channels_in: int, channels: int, groups: int, attrs: str, layout: str
) -> None:
    weight = array(channels_in, channels // groups, 3, 3)
    before = program(
        f"""def @main(%x: Tensor[(2, {channels_in}, 6, 7), float32],
                      %w: Tensor[({", ".join(map(str, weight.shape))}), float32]) {{
          nn.conv2d_transpose(%x, %w, groups={groups}, {attrs}) }}""",
        w=weight,
    )
    after = packed(before)
    assert layouts(after) == [layout]
    has_strides = "strides" in attrs
    assert ("nn.conv2d_transpose" in calls(after)) == has_strides
    assert_same_meaning(before, after, [array(2, channels_in, 6, 7)], rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "order", "shape", "groups", "layout"),
    [
        ("conv2d", "HWIO", (3, 3, 4, 10), 1, "OHWI16o"),
        ("conv2d", "HWOI", (3, 3, 4, 1), 4, "HWOI"),
        ("conv2d_transpose", "HWOI", (3, 3, 10, 4), 1, "OHWI16o"),
    ],
)
def test_order_of_a_weight_does_not_matter(
    name: str, order: str, shape: tuple[int, ...], groups: int, layout: str
) -> None:
    before = program(
        f"""def @main(%x: Tensor[(2, 6, 7, 4), float32],
                      %w: Tensor[({", ".join(map(str, shape))}), float32]) {{
          nn.{name}(%x, %w, groups={groups}, strides=[2, 1], data_layout="NHWC",
            kernel_layout="{order}") }}""",
        w=array(*shape),
    )
    after = packed(before)
    assert layouts(after) == [layout]
    assert_same_meaning(before, after, [array(2, 6, 7, 4)], rtol=1e-4)


def test_weight_of_a_transposed_convolution_need_not_be_constant() -> None:
    before = program(
        """def @main(%x: Tensor[(2, 4, 6, 7), float32], %w: Tensor[(4, 10, 3, 3), float32]) {
          nn.conv2d_transpose(%x, %w, groups=2, strides=[2, 2]) }"""
    )
    after = packed(before)
    assert layouts(after) == ["GOHWI16o"] and "nn.contrib_pack_weight" in calls(after)
    assert_same_meaning(before, after, [array(2, 4, 6, 7), array(4, 10, 3, 3)], rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "groups", "layout"),
    [((20, 3, 3, 3), 1, "OHWI32o"), ((6, 1, 3, 3), 6, "HWOI"), ((40, 2, 3, 3), 2, "GOHWI32o")],
)
def test_convolution_packs_a_weight_that_comes_later(
    shape: tuple[int, ...], groups: int, layout: str
) -> None:
    channels = shape[1] * groups
    before = program(
        f"""def @main(%x: Tensor[(2, {channels}, 6, 7), float32],
                      %w: Tensor[({", ".join(map(str, shape))}), float32]) {{
          nn.conv2d(%x, %w, padding=[1, 1, 1, 1], groups={groups}) }}"""
    )
    after = packed(before)
    assert layouts(after) == [layout]
    assert_same_meaning(before, after, [array(2, channels, 6, 7), array(*shape)], rtol=1e-4)


@pytest.mark.parametrize(("channels", "pads"), [(8, 0), (3, 1)])
def test_convolution_of_bytes_gets_words_of_channels(channels: int, pads: int) -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-128, 128, (20, channels, 3, 3)).astype("int8")
    before = program(
        f"""def @main(%x: Tensor[(2, 6, 7, {channels}), uint8],
                      %w: Tensor[(20, {channels}, 3, 3), int8]) {{
          nn.conv2d(%x, %w, data_layout="NHWC", kernel_layout="OIHW", out_dtype="int32") }}""",
        w=weight,
    )
    after = packed(before, BYTE_DOT_TARGET)
    words = -(-channels // 4)
    product = MatmulSizes(2 * 4 * 5, 20, words * 9, "uint8")
    tile = FAMILIES["conv_nhwc_pack"].choose_panel_width(product, BYTE_DOT_TARGET, {})
    assert layouts(after) == [f"OHWI{tile}o4i"]
    assert calls(after).count("nn.pad") == pads
    assert (-(-20 // tile), 3, 3, words, tile, 4) in weights(after)
    assert_same_meaning(
        before, after, [random.integers(0, 256, (2, 6, 7, channels)).astype("uint8")]
    )


def test_int8_weights_widen_to_int16_without_dot_instruction() -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-128, 128, (20, 8, 3, 3)).astype("int8")
    before = program(
        """def @main(%x: Tensor[(2, 6, 7, 8), uint8], %w: Tensor[(20, 8, 3, 3), int8]) {
          nn.conv2d(%x, %w, data_layout="NHWC", kernel_layout="OIHW", out_dtype="int32") }""",
        w=weight,
    )
    after = packed(before)
    assert layouts(after) == ["OHWI32o2i"]
    assert (1, 3, 3, 4, 32, 2) in weights(after)
    assert_same_meaning(before, after, [random.integers(0, 256, (2, 6, 7, 8)).astype("uint8")])


def test_non_constant_weight_is_not_packed() -> None:
    before = program(
        "def @main(%x: Tensor[(2, 5), float32], %w: Tensor[(4, 5), float32]) { nn.dense(%x, %w) }"
    )
    assert calls(packed(before)) == ["nn.dense"]


def test_other_dtypes_stay() -> None:
    before = program(
        "def @main(%x: Tensor[(2, 5), float64], %w: Tensor[(4, 5), float64]) { nn.dense(%x, %w) }",
        w=array(4, 5).astype(np.float64),
    )
    assert calls(packed(before)) == ["nn.dense"]


@pytest.mark.parametrize(("size", "places"), [("14", 36), ("n", 36)])
def test_3x3_convolution_without_strides_is_winograds(size: str, places: int) -> None:
    before = program(
        f"""def @main(%x: Tensor[(1, 16, {size}, {size}), float32],
                      %w: Tensor[(32, 16, 3, 3), float32]) {{
          nn.conv2d(%x, %w, padding=[1, 1, 1, 1]) }}""",
        w=array(32, 16, 3, 3),
    )
    after = packed(before)
    assert weights(after) == [(places, 1, 16, 32)]
    side = 5 if size == "n" else int(size)
    assert_same_meaning(before, after, [array(1, 16, side, side)])


@pytest.mark.parametrize("processor", ["nehalem", "haswell", "skylake-avx512"])
def test_winograd_layouts_use_winograd_kernels(processor: str) -> None:
    """Whole vectors of the processor's are enough: the default rule, which computes the matrices
    of the method element by element, takes thousands of times as long."""
    target = Target.parse(f"llvm -mcpu={processor}")
    depth = 3 * target.lanes("float32")
    before = program(
        f"""def @main(%x: Tensor[(1, {depth}, 28, 28), float32],
                      %w: Tensor[({depth}, {depth}, 3, 3), float32]) {{
          nn.conv2d(%x, %w, padding=[1, 1, 1, 1]) }}""",
        w=array(depth, depth, 3, 3),
    )
    transformed = FoldConstant()(AlterOpLayout(target)(ConvertLayout()(before)))
    (shape,) = weights(InferType()(transformed))
    weight = te.placeholder(shape, name="weight")
    data = te.placeholder((1, 28, 28, depth), name="data")
    side = math.isqrt(shape[0]) - 2
    result = winograd_conv2d(data, weight, side, depth, (1, 1, 1, 1))
    assert select_kernel([result], target).family.name == "winograd_conv2d"
