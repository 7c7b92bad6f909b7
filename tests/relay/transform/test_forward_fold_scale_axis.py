"""ForwardFoldScaleAxis and BackwardFoldScaleAxis: scales fold into weights."""

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, program

from ekiden.relay.transform import BackwardFoldScaleAxis, ForwardFoldScaleAxis, InferType

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
def test_scale_goes_into_the_weight(sign: float, groups: int) -> None:
    body = f"nn.conv2d(multiply(%s, %x), %w, padding=[1, 1, 1, 1], groups={groups})"
    assert folded(body, sign, groups) == ["nn.conv2d"]


@pytest.mark.parametrize("name", ["nn.relu", "nn.leaky_relu"])
def test_positive_scale_passes_homogeneous_operators(name: str) -> None:
    body = f"nn.conv2d({name}(multiply(%x, %s)), %w)"
    assert folded(body) == [name, "nn.conv2d"]
    assert folded(body, -1) == ["multiply", name, "nn.conv2d"]


@pytest.mark.parametrize("name", ["add", "subtract"])
def test_added_constants_are_divided_by_the_scale(name: str) -> None:
    body = f"nn.conv2d(nn.relu({name}(multiply(%x, %s), %b)), %w)"
    assert folded(body) == [name, "nn.relu", "nn.conv2d"]
    assert folded(body, 0) == ["multiply", name, "nn.relu", "nn.conv2d"]


def test_shared_values_keep_their_scale() -> None:
    body = "let %y = multiply(%x, %s); (nn.conv2d(%y, %w), %y)"
    assert "multiply" in folded(body)


LAYOUTS = [
    ("NHWC", "OHWI", (2, 6, 6, 4), (6, 3, 3, 4), (4,), (6,)),
    ("NHWC", "HWIO", (2, 6, 6, 4), (3, 3, 4, 6), (4,), (6,)),
    ("NCHW2c", "OIHW2i3o", (2, 2, 6, 6, 2), (2, 2, 3, 3, 2, 3), (2, 1, 1, 2), (1, 2, 1, 1, 3)),
]


@pytest.mark.parametrize("constants", ["", "ws", "wsb", "wstbc"])
@pytest.mark.parametrize("data, kernel, x, w, s, t", LAYOUTS)
def test_scale_folds_in_other_layouts(
    data: str, kernel: str, x: tuple[int, ...], w: tuple[int, ...], s: tuple[int, ...],
    t: tuple[int, ...], constants: str,
) -> None:  # fmt: skip
    """Before and behind a convolution, of weights and biases that are constants or parameters."""
    out = "NCHW3c" if "c" in data else data
    shapes = {"w": w, "s": s, "b": s, "t": t, "c": t}
    params = ", ".join(f"%{n}: Tensor[{shape}, float32]" for n, shape in shapes.items())
    before = program(
        f"""def @main(%x: Tensor[{x}, float32], {params}) {{
          %0 = add(nn.relu(multiply(%s, %x)), %b);
          %1 = nn.conv2d(%0, %w, data_layout="{data}", kernel_layout="{kernel}",
                         out_layout="{out}");
          multiply(nn.relu(add(%c, %1)), %t) }}""",
        **{n: array(*shapes[n]) for n in constants},
    )
    first = InferType()(ForwardFoldScaleAxis()(before))
    after = InferType()(BackwardFoldScaleAxis()(first))
    inputs = [array(*x) - 1, *(array(*shape) for n, shape in shapes.items() if n not in constants)]
    assert_same_meaning(before, after, inputs)
    assert calls(first).count("divide") == (constants == "ws")
    assert calls(after).count("multiply") == {"": 2, "ws": 1, "wsb": 1, "wstbc": 0}[constants]


def test_other_axes_stay() -> None:
    """One factor for each row, not for each channel."""
    text = CONV.replace("WEIGHT", "(6, 4, 3, 3)").replace("(4, 1, 1)", "(6, 1)", 1)
    body = "nn.conv2d(multiply(%x, %s), %w)"
    before = program(text.replace("BODY", body), w=array(6, 4, 3, 3), s=array(6, 1))
    assert calls(ForwardFoldScaleAxis()(before)) == ["multiply", "nn.conv2d"]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_backward_fold_moves_scales_into_weights(groups: int) -> None:
    weight = (8, 4 // groups, 3, 3)
    text = f"""def @main(%x: Tensor[(2, 4, 6, 6), float32], %w: Tensor[{weight}, float32],
                         %t: Tensor[(8, 1, 1), float32]) {{
      multiply(%t, nn.leaky_relu(nn.conv2d(%x, %w, groups={groups}))) }}"""
    for sign in (1, -1):
        before = program(text, t=array(8, 1, 1) * np.float32(sign))
        after = InferType()(BackwardFoldScaleAxis()(before))
        assert (calls(after)[-1] == "multiply") == (sign < 0)
        assert_same_meaning(before, after, [array(2, 4, 6, 6) - 1, array(*weight)])


def test_factor_after_a_sum_moves_to_both_operands() -> None:
    text = """def @main(%x: Tensor[(2, 4, 6, 6), float32], %w: Tensor[(4, 4, 1, 1), float32],
                        %t: Tensor[(4, 1, 1), float32]) {
      multiply(add(nn.conv2d(%x, %w), MORE), %t) }"""
    both = program(text.replace("MORE", "nn.relu(nn.conv2d(%x, %w))"), t=array(4, 1, 1))
    after = InferType()(BackwardFoldScaleAxis()(both))
    assert calls(after)[-1] == "add"
    assert_same_meaning(both, after, [array(2, 4, 6, 6) - 1, array(4, 4, 1, 1)])
    one = program(text.replace("MORE", "%x"), t=array(4, 1, 1))
    assert calls(BackwardFoldScaleAxis()(one))[-1] == "multiply"


def test_shared_value_takes_no_later_factor() -> None:
    text = """def @main(%x: Tensor[(2, 4, 6, 6), float32], %w: Tensor[(4, 4, 1, 1), float32],
                        %t: Tensor[(4, 1, 1), float32]) {
      %0 = nn.conv2d(%x, %w); (multiply(%0, %t), %0) }"""
    before = program(text, t=array(4, 1, 1))
    assert calls(BackwardFoldScaleAxis()(before))[-1] == "multiply"
    alone = program(text.replace("(multiply(%0, %t), %0)", "multiply(%0, %t)"), t=array(4, 1, 1))
    assert calls(BackwardFoldScaleAxis()(alone))[-1] == "nn.conv2d"


def test_dense_layer_is_scaled_along_what_it_sums() -> None:
    before = program(
        """def @main(%x: Tensor[(n, 3), float32], %w: Tensor[(5, 3), float32],
                     %s: Tensor[(3,), float32]) { nn.dense(multiply(%x, %s), %w) }""",
        w=array(5, 3),
        s=array(3),
    )
    after = ForwardFoldScaleAxis()(before)
    assert calls(after) == ["nn.dense"]
    assert_same_meaning(before, after, [array(2, 3)])
