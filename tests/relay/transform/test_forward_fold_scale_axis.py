"""ForwardFoldScaleAxis: scales before products go into weights."""

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, program

from ekiden.relay.transform import ForwardFoldScaleAxis

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(0)
CONV = """def @main(%x: Tensor[(2, 4, 6, 6), float32], %w: Tensor[WEIGHT, float32],
                    %s: Tensor[(4, 1, 1), float32], %b: Tensor[(4, 1, 1), float32]) { BODY }"""


def array(*shape: int) -> np.ndarray:
    return RNG.random(shape, np.float32) + 0.5


def folded(body: str, sign: float = 1, groups: int = 1) -> list[str]:
    """The operators of a program of one convolution behind the pass, which means what it did."""
    weight = (6, 4 // groups, 3, 3)
    text = CONV.replace("WEIGHT", str(weight)).replace("BODY", body)
    scale = array(4, 1, 1) * np.float32(sign)
    before = program(text, w=array(*weight), s=scale, b=array(4, 1, 1) - 1)
    after = ForwardFoldScaleAxis()(before)
    assert_same_meaning(before, after, [array(2, 4, 6, 6) - 1])
    return calls(after)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("sign", [1, -1, 0])
def test_a_scale_goes_into_the_weight(sign: float, groups: int) -> None:
    body = f"nn.conv2d(multiply(%s, %x), %w, padding=[1, 1, 1, 1], groups={groups})"
    assert folded(body, sign, groups) == ["nn.conv2d"]


@pytest.mark.parametrize("name", ["nn.relu", "nn.leaky_relu"])
def test_a_positive_scale_passes_what_is_homogeneous(name: str) -> None:
    body = f"nn.conv2d({name}(multiply(%x, %s)), %w)"
    assert folded(body) == [name, "nn.conv2d"]
    assert folded(body, -1) == ["multiply", name, "nn.conv2d"]


@pytest.mark.parametrize("name", ["add", "subtract"])
def test_what_is_added_is_divided(name: str) -> None:
    body = f"nn.conv2d(nn.relu({name}(multiply(%x, %s), %b)), %w)"
    assert folded(body) == [name, "nn.relu", "nn.conv2d"]
    assert folded(body, 0) == ["multiply", name, "nn.relu", "nn.conv2d"]


def test_what_others_read_stays() -> None:
    body = "let %y = multiply(%x, %s); (nn.conv2d(%y, %w), %y)"
    assert "multiply" in folded(body)


def test_other_layouts_and_axes_stay() -> None:
    body = """nn.conv2d(multiply(%x, %s), %w, data_layout="NHWC", kernel_layout="OHWI")"""
    text = CONV.replace("WEIGHT", "(6, 3, 3, 6)").replace("(4, 1, 1)", "(6,)", 1)
    before = program(text.replace("BODY", body), w=array(6, 3, 3, 6), s=array(6))
    assert calls(ForwardFoldScaleAxis()(before)) == ["multiply", "nn.conv2d"]


def test_a_dense_layer_is_scaled_along_what_it_sums() -> None:
    before = program(
        """def @main(%x: Tensor[(n, 3), float32], %w: Tensor[(5, 3), float32],
                     %s: Tensor[(3,), float32]) { nn.dense(multiply(%x, %s), %w) }""",
        w=array(5, 3),
        s=array(3),
    )
    after = ForwardFoldScaleAxis()(before)
    assert calls(after) == ["nn.dense"]
    assert_same_meaning(before, after, [array(2, 3)])
