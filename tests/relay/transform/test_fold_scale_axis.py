"""FoldScaleAxis: constant scales fold into weights and into each other."""

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, check, program

from ekiden.relay.transform import FoldConstant, FoldScaleAxis, SimplifyInference

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.random(shape, np.float32) + 0.5


CONV = """def @main(%x: Tensor[(2, 3, 6, 6), float32], %w: Tensor[(4, 3, 3, 3), float32],
                    %s: Tensor[SHAPE, float32]) { BODY }"""


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (1, 1, 1), ()])
def test_scale_per_channel_goes_into_the_weight(shape: tuple[int, ...]) -> None:
    text = CONV.replace("SHAPE", str(shape)).replace("BODY", "multiply(nn.conv2d(%x, %w), %s)")
    before = program(text, w=array(4, 3, 3, 3), s=array(*shape))
    after = FoldScaleAxis()(before)
    assert calls(after) == ["nn.conv2d"]
    assert_same_meaning(before, after, [array(2, 3, 6, 6)])


def test_scale_per_row_of_another_layout_stays() -> None:
    body = """multiply(nn.conv2d(%x, %w, out_layout="NHWC"), %s)"""
    text = CONV.replace("SHAPE", "(4, 1, 1)").replace("BODY", body)
    before = program(text, w=array(4, 3, 3, 3), s=array(4, 1, 1))
    assert calls(FoldScaleAxis()(before)) == ["nn.conv2d", "multiply"]


def test_scale_per_column_stays() -> None:
    text = CONV.replace("SHAPE", "(1, 4)").replace("BODY", "multiply(nn.conv2d(%x, %w), %s)")
    before = program(text, w=array(4, 3, 3, 3), s=array(1, 4))
    assert calls(FoldScaleAxis()(before)) == ["nn.conv2d", "multiply"]


def test_grouped_convolution_is_scaled_too() -> None:
    before = program(
        """def @main(%x: Tensor[(1, 4, 5, 5), float32], %w: Tensor[(4, 1, 3, 3), float32],
                     %s: Tensor[(4, 1, 1), float32]) {
          multiply(%s, nn.conv2d(%x, %w, groups=4, padding=[1, 1, 1, 1])) }""",
        w=array(4, 1, 3, 3),
        s=array(4, 1, 1),
    )
    after = FoldScaleAxis()(before)
    assert calls(after) == ["nn.conv2d"]
    assert_same_meaning(before, after, [array(1, 4, 5, 5)])


def test_dense_layer_is_scaled_along_its_units() -> None:
    before = program(
        """def @main(%x: Tensor[(n, 3), float32], %w: Tensor[(5, 3), float32],
                     %s: Tensor[(5,), float32]) { multiply(nn.dense(%x, %w), %s) }""",
        w=array(5, 3),
        s=array(5),
    )
    after = FoldScaleAxis()(before)
    assert calls(after) == ["nn.dense"]
    assert_same_meaning(before, after, [array(2, 3)])


def test_scale_passes_an_addition() -> None:
    text = CONV.replace("SHAPE", "(4, 1, 1)").replace(
        "BODY", "multiply(add(nn.conv2d(%x, %w), %s), %s)"
    )
    before = program(text, w=array(4, 3, 3, 3), s=array(4, 1, 1))
    after = FoldScaleAxis()(before)
    assert calls(after) == ["nn.conv2d", "add"]
    assert_same_meaning(before, after, [array(2, 3, 6, 6)])


def test_batch_norm_disappears_into_a_convolution() -> None:
    before = program(
        """def @main(%x: Tensor[(1, 3, 6, 6), float32], %w: Tensor[(4, 3, 1, 1), float32],
                     %g: Tensor[(4,), float32], %b: Tensor[(4,), float32],
                     %m: Tensor[(4,), float32], %v: Tensor[(4,), float32]) {
          nn.relu(nn.batch_norm(nn.conv2d(%x, %w), %g, %b, %m, %v).0) }""",
        w=array(4, 3, 1, 1), g=array(4), b=array(4), m=array(4), v=array(4),
    )  # fmt: skip
    after = FoldScaleAxis()(FoldConstant()(SimplifyInference()(before)))
    assert calls(after) == ["nn.conv2d", "add", "nn.relu"]
    assert_same_meaning(before, after, [array(1, 3, 6, 6)], rtol=1e-4)


@pytest.mark.parametrize("dtype, scale", [("int8", 0.5), ("float16", 1e6)])
def test_weight_that_cannot_hold_the_product_stays(dtype: str, scale: float) -> None:
    """Sums in float32 of smaller numbers: the weight is of the smaller type."""
    text = f"""def @main(%x: Tensor[(2, 3), {dtype}], %w: Tensor[(4, 3), {dtype}]) {{
      multiply(nn.dense(%x, %w, out_dtype="float32"), {scale}f) }}"""
    weight = np.arange(12).reshape(4, 3).astype(dtype)
    before = program(text, w=weight)
    after = FoldScaleAxis()(before)
    assert calls(after) == ["nn.dense", "multiply"]
    assert_same_meaning(before, after, [np.ones((2, 3), dtype)])


def test_constant_additions_are_merged() -> None:
    check(
        FoldScaleAxis(),
        "def @main(%x: float32) { add(subtract(add(%x, 3f), -1f), 4f) }",
        "def @main(%x: float32) { add(%x, 8f) }",
    )


def test_value_with_another_use_is_not_changed() -> None:
    text = CONV.replace("SHAPE", "(4, 1, 1)").replace(
        "BODY", "%0 = nn.conv2d(%x, %w); (multiply(%0, %s), %0)"
    )
    before = program(text, w=array(4, 3, 3, 3), s=array(4, 1, 1))
    after = FoldScaleAxis()(before)
    assert calls(after) == ["nn.conv2d", "multiply"]
    assert_same_meaning(before, after, [array(2, 3, 6, 6)])


def test_integers_are_left_alone() -> None:
    text = "def @main(%x: int32) { add(add(%x, 3), 4) }"
    check(FoldScaleAxis(), text, text)


def test_constant_that_widens_the_result_is_left() -> None:
    before = program(
        """def @main(%x: Tensor[(1, 3), float32], %a: Tensor[(4, 3), float32]) {
          multiply(add(%x, 1f), %a) }""",
        a=array(4, 3),
    )
    after = FoldScaleAxis()(before)
    assert calls(after) == ["add", "multiply"]
    assert_same_meaning(before, after, [array(1, 3)])


def test_bias_add_becomes_an_addition_along_its_axis() -> None:
    before = program(
        """def @main(%x: Tensor[(2, 3, 4), float32], %b: Tensor[(3,), float32]) {
          nn.bias_add(%x, %b, axis=1) }""",
        b=array(3),
    )
    after = FoldScaleAxis()(before)
    assert calls(after) == ["add"]
    assert_same_meaning(before, after, [array(2, 3, 4)])


def test_constant_minus_a_value_stays() -> None:
    text = "def @main(%x: float32) { subtract(1f, %x) }"
    check(FoldScaleAxis(), text, text)
