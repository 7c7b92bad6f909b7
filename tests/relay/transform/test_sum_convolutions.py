"""SumConvolutions: convolutions of one tensor whose results are added become one."""

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, program

from ekiden.relay.analysis import verify
from ekiden.relay.transform import SumConvolutions

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.random(shape, np.float32) - 0.5


def summed(body: str, **weights: np.ndarray) -> list[str]:
    """The calls that are left of a body over `%x`, which means what it did."""
    argument = "".join(f", %{n}: Tensor[{w.shape}, float32]" for n, w in weights.items())
    text = f"def @main(%x: Tensor[(2, 4, 7, 6), float32]{argument}) {{ {body} }}"
    before = program(text, **weights)
    after = SumConvolutions()(before)
    verify(after)
    assert_same_meaning(before, after, [array(2, 4, 7, 6)])
    return calls(after)


def test_branches_and_their_biases_are_one_convolution() -> None:
    left = summed(
        """%0 = add(nn.conv2d(%x, %v, padding=[1, 1, 1, 1]), %a);
           %1 = add(%b, nn.conv2d(%x, %w));
           %2 = multiply(%x, %s);
           nn.relu(add(add(%0, add(%2, %b)), %1))""",
        v=array(4, 4, 3, 3), w=array(4, 4, 1, 1), a=array(1, 4, 1, 1), b=array(1, 4, 1, 1),
        s=array(4, 1, 1),
    )  # fmt: skip
    assert left == ["nn.conv2d", "add", "nn.relu"]


@pytest.mark.parametrize("groups", [2, 4])
def test_windows_of_groups_are_put_where_their_taps_read_the_same(groups: int) -> None:
    left = summed(
        f"""%0 = nn.conv2d(%x, %w, padding=[0, 1, 0, 1], groups={groups});
            %1 = nn.conv2d(%x, %v, padding=[2, 2, 2, 2], groups={groups});
            add(add(%0, multiply(%s, %x)), %1)""",
        v=array(4, 4 // groups, 5, 5), w=array(4, 4 // groups, 1, 3), s=array(1, 4, 1, 1),
    )  # fmt: skip
    assert left == ["nn.conv2d"]


def test_strides_and_dilation_must_match() -> None:
    strided = """add(nn.conv2d(%x, %v, strides=[2, 2], padding=[1, 1, 1, 1]),
                     nn.conv2d(%x, %w, strides=[2, 2]))"""
    assert summed(strided, v=array(3, 4, 3, 3), w=array(3, 4, 1, 1)) == ["nn.conv2d"]
    dilated = """add(nn.conv2d(%x, %v, dilation=[2, 2], padding=[2, 2, 2, 2]),
                     nn.conv2d(%x, %w, padding=[1, 1, 1, 1]))"""
    weights = {"v": array(4, 4, 3, 3), "w": array(4, 4, 3, 3)}
    assert summed(dilated, **weights) == ["nn.conv2d", "nn.conv2d", "add"]


@pytest.mark.parametrize(
    ("body", "kernel"),
    [
        # taps outside of the larger window
        ("nn.conv2d(%x, %v, padding=[1, 1, 1, 1]), nn.conv2d(%x, %w, padding=[0, 2, 0, 2])",
         (1, 5)),
        # results of half of the places are no scale of the data
        ("nn.conv2d(%x, %v, padding=[1, 1, 1, 1]), nn.conv2d(nn.relu(%x), %w)", (1, 1)),
    ],
)  # fmt: skip
def test_convolutions_of_other_inputs_are_unchanged(body: str, kernel: tuple[int, int]) -> None:
    left = summed(f"add({body})", v=array(4, 4, 3, 3), w=array(4, 4, *kernel))
    assert left.count("nn.conv2d") == 2


def test_shared_convolutions_are_unchanged() -> None:
    left = summed(
        """%0 = nn.conv2d(%x, %v, padding=[1, 1, 1, 1]);
           multiply(add(%0, nn.conv2d(%x, %w)), %0)""",
        v=array(4, 4, 3, 3), w=array(4, 4, 1, 1),
    )  # fmt: skip
    assert left == ["nn.conv2d", "nn.conv2d", "add", "multiply"]


def test_scale_that_is_not_of_channels_stays() -> None:
    left = summed(
        "add(nn.conv2d(%x, %v, padding=[1, 1, 1, 1]), multiply(%x, %s))",
        v=array(4, 4, 3, 3), s=array(1, 1, 7, 1),
    )  # fmt: skip
    assert left == ["nn.conv2d", "multiply", "add"]


def test_overflowing_weight_sums_are_unchanged() -> None:
    huge = np.full((4, 4, 1, 1), 3e38, np.float32)
    text = """def @main(%x: Tensor[(1, 4, 2, 2), float32], %v: Tensor[(4, 4, 1, 1), float32]) {
                add(nn.conv2d(%x, %v), nn.conv2d(%x, %v)) }"""
    assert calls(SumConvolutions()(program(text, v=huge))).count("nn.conv2d") == 2
