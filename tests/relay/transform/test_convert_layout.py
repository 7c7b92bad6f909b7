"""ConvertLayout: image operators run in NHWC, and the transposes between them cancel."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_checks import assert_same_meaning, calls, check, program

from ekiden.ir.module import IRModule
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, Function, Tuple, TupleGetItem, const, var
from ekiden.relay.transform import ConvertLayout, InferType

pytestmark = pytest.mark.quick

X = "%x: Tensor[(1, 3, 8, 8), float32]"
CONVS = f"""def @main({X}, %v: Tensor[(4, 3, 3, 3), float32], %w: Tensor[(4, 4, 3, 3), float32],
                      %b: Tensor[(4, 1, 1), float32]) {{
  %0 = nn.relu(add(nn.conv2d(%x, %v), %b));
  %1 = nn.max_pool2d(%0, pool_size=[2, 2], strides=[2, 2]);
  MIDDLE
  nn.relu(nn.conv2d(%2, %w, padding=[1, 1, 1, 1])) }}"""


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, np.float32)


def converted(middle: str) -> list[str]:
    """The operators after conversion; their meaning is compared too."""
    text = CONVS.replace("MIDDLE", middle)
    before = program(text, v=array(4, 3, 3, 3), w=array(4, 4, 3, 3), b=array(4, 1, 1))
    after = InferType()(ConvertLayout()(before))
    assert_same_meaning(before, after, [array(1, 3, 8, 8)])
    return calls(after)


@pytest.mark.parametrize(
    "middle",
    [
        "%2 = nn.pad(%1, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [2, 0]]);",
        "%2 = multiply(sigmoid(%1), %1);",
        "%2 = multiply(%1, nn.global_avg_pool2d(%1));",
        "%2 = nn.lrn(%1, size=3, axis=1);",
        "%2 = nn.softmax(%1, axis=1);",
        "%2 = concatenate((%1, tanh(%1)), axis=2);",
        "%2 = subtract(%1, mean(%1, axis=[2, 3], keepdims=True));",
        "%2 = divide(%1, sum(%1, axis=[1], keepdims=True));",
        "%2 = clip(%1, a_min=0f64, a_max=1f64);",
        "%2 = where(greater(%1, 0f), %1, negative(%1));",
        "%2 = nn.bias_add(%1, reshape(%b, newshape=[4]), axis=1);",
        "%2 = nn.prelu(%1, reshape(%b, newshape=[4]), axis=1);",
        '%2 = image.resize2d(%1, size=[7, 9], layout="NCHW");',
        "%3 = split(%1, indices_or_sections=2, axis=1); %2 = concatenate((%3.1, %3.0), axis=1);",
        "%3 = split(%1, indices_or_sections=[1, 2], axis=-2);"
        "%2 = concatenate((%3.2, %3.0), axis=2);",
        "%2 = strided_slice(%1, begin=[0, 0, 1], end=[1, 4, 3]);",
        "%2 = strided_slice(%1, begin=[-1, 0], end=[-9, 9], strides=[-1, 2], axes=[-3, 3]);",
    ],
)
def test_network_is_transposed_at_its_ends_alone(middle: str) -> None:
    assert converted(middle).count("transpose") == 2


def test_parts_are_results_of_the_program() -> None:
    before = program(
        f"def @main({X}, %w: Tensor[(4, 3, 3, 3), float32]) {{"
        " split(nn.conv2d(%x, %w), indices_or_sections=[1], axis=1) }",
        w=array(4, 3, 3, 3),
    )
    after = InferType()(ConvertLayout()(before))
    assert calls(after).count("transpose") == 2  # of one part it is a reshape
    assert_same_meaning(before, after, [array(1, 3, 8, 8)])


def test_transpose_of_unit_axes_becomes_reshape() -> None:
    before = program(
        f"def @main({X}, %w: Tensor[(4, 3, 3, 3), float32]) {{"
        " nn.global_avg_pool2d(nn.conv2d(%x, %w)) }",
        w=array(4, 3, 3, 3),
    )
    after = InferType()(ConvertLayout()(before))
    result = calls(after)
    assert result.count("transpose") == 1 and result.count("reshape") == 1
    assert_same_meaning(before, after, [array(1, 3, 8, 8)])


def test_squeeze_and_excite_has_no_transpose_inside() -> None:
    before = program(
        """def @main(%x: Tensor[(n, 4, h, w), float32], %w: Tensor[(4, 4, 1, 1), float32]) {
          %0 = nn.conv2d(%x, %w);
          %1 = sigmoid(nn.conv2d(nn.relu(nn.conv2d(nn.global_avg_pool2d(%0), %w)), %w));
          nn.conv2d(multiply(%0, %1), %w) }""",
        w=array(4, 4, 1, 1),
    )
    after = InferType()(ConvertLayout()(before))
    assert calls(after).count("transpose") == 2 and "reshape" not in calls(after)
    assert_same_meaning(before, after, [array(2, 4, 3, 5)])


def test_channel_shuffle_costs_one_transpose() -> None:
    result = converted(
        """%3 = reshape(%1, newshape=[1, 2, 2, 3, 3]);
           %4 = transpose(%3, axes=[0, 2, 1, 3, 4]);
           %2 = reshape(%4, newshape=[1, 4, 3, 3]);"""
    )
    assert result.count("transpose") == 3


def test_flatten_restores_the_original_layout() -> None:
    before = program(
        f"def @main({X}, %w: Tensor[(4, 3, 3, 3), float32]) {{"
        " nn.batch_flatten(nn.conv2d(%x, %w)) }",
        w=array(4, 3, 3, 3),
    )
    after = InferType()(ConvertLayout()(before))
    assert calls(after).count("transpose") == 2
    assert_same_meaning(before, after, [array(1, 3, 8, 8)])


def test_transposes_that_meet_cancel() -> None:
    check(
        ConvertLayout(),
        """def @main(%x: Tensor[(2, 3, 4), float32]) {
          transpose(nn.relu(transpose(%x, axes=[2, 0, 1])), axes=[1, 2, 0]) }""",
        "def @main(%x: Tensor[(2, 3, 4), float32]) { nn.relu(%x) }",
    )


def test_operators_that_gain_nothing_stay() -> None:
    text = """def @main(%x: Tensor[(1, 3, 8, 8), float32]) {
      nn.relu(nn.max_pool2d(%x, pool_size=[2, 2])) }"""
    check(ConvertLayout(), text, text)


def test_operators_follow_a_transpose_without_convolution() -> None:
    before = program(
        """def @main(%x: Tensor[(1, 8, 8, 3), float32]) {
          transpose(nn.avg_pool2d(transpose(%x, axes=[0, 3, 1, 2]), pool_size=[2, 2]),
                    axes=[0, 2, 3, 1]) }"""
    )
    after = InferType()(ConvertLayout()(before))
    assert calls(after) == ["nn.avg_pool2d"]
    assert_same_meaning(before, after, [array(1, 8, 8, 3)])


def test_programs_without_images_stay() -> None:
    text = (
        "def @main(%x: Tensor[(2, 3), float32], %w: Tensor[(4, 3), float32]) { nn.dense(%x, %w) }"
    )
    check(ConvertLayout(), text, text)


@pytest.mark.parametrize(
    "parted",
    [
        "split(%0, indices_or_sections=3, axis=0)",
        "strided_slice(%0, begin=[1], end=[2], strides=[1], axes=[0])",
    ],
)
def test_leading_axis_parts_stay_contiguous(parted: str) -> None:
    text = (
        "def @main(%x: Tensor[(1, 9, 3, 2, 4), float32]) {"
        f" %0 = transpose(%x, axes=[2, 0, 3, 1, 4]); {parted} }}"
    )
    check(ConvertLayout(), text, text)


# Random graphs: whatever the operators and layouts, the meaning stays.

SIDE = 4
ANY_RANK = [
    "relu",
    "add",
    "scale",
    "transpose",
    "concat",
    "reduce",
    "pad",
    "slice",
    "parts",
    "join",
]


def _conv(draw: st.DrawFn, x: Expr, shape: tuple[int, ...]) -> tuple[Expr, tuple[int, ...]]:
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    grouped = draw(st.booleans())
    out = shape[1] if grouped else draw(st.sampled_from([2, 4]))
    weight = rng.standard_normal((out, 1 if grouped else shape[1], 3, 3)).astype(np.float32)
    groups = shape[1] if grouped else 1
    tensor = op.nn.conv2d(x, const(weight), padding=1, groups=groups, kernel_size=3, channels=out)
    return tensor, (shape[0], out, *shape[2:])


def _step(
    draw: st.DrawFn, known: list[tuple[Expr, tuple[int, ...]]]
) -> tuple[Expr, tuple[int, ...]]:
    x, shape = draw(st.sampled_from(known))
    same = [e for e, s in known if s == shape]
    rank = len(shape)
    images = [*ANY_RANK, "conv", "conv", "pool", "softmax", "split"]
    kind = draw(st.sampled_from(images if rank == 4 else ANY_RANK))
    match kind:
        case "conv":
            return _conv(draw, x, shape)
        case "pool":
            kernel = draw(st.sampled_from([op.nn.max_pool2d, op.nn.avg_pool2d]))
            return kernel(x, pool_size=(3, 3), padding=(1, 1)), shape
        case "relu":
            return op.nn.relu(x), shape
        case "add":
            return op.add(x, draw(st.sampled_from(same))), shape
        case "scale":
            vector = np.linspace(0.5, 1.5, shape[-1], dtype=np.float32)
            return op.multiply(x, const(vector)), shape
        case "transpose":
            perm = tuple(draw(st.permutations(range(rank))))
            return op.transpose(x, perm), tuple(shape[p] for p in perm)
        case "softmax":
            return op.nn.softmax(x, axis=draw(st.integers(-rank, rank - 1))), shape
        case "concat":
            axis = draw(st.integers(0, rank - 1))
            other = draw(st.sampled_from(same))
            longer = tuple(2 * d if i == axis else d for i, d in enumerate(shape))
            return op.concatenate(Tuple((x, other)), axis), longer
        case "reduce":
            axis = draw(st.integers(0, rank - 1))
            keepdims = draw(st.booleans()) or rank == 1
            ones = tuple(1 if i == axis else d for i, d in enumerate(shape))
            kept = ones if keepdims else tuple(d for i, d in enumerate(shape) if i != axis)
            return op.mean(x, axis=(axis,), keepdims=keepdims), kept
        case "pad":
            axis = draw(st.integers(0, rank - 1))
            width = tuple((1, 2) if i == axis else (0, 0) for i in range(rank))
            longer = tuple(d + 3 if i == axis else d for i, d in enumerate(shape))
            return op.nn.pad(x, width, const(0.0)), longer
        case "slice":
            axis = draw(st.integers(0, rank - 1))
            begin, end, step = draw(st.sampled_from([(0, 1, 1), (-1, -2, -1)]))
            result = op.strided_slice(x, [begin], [end], [step], [axis - rank])
            return result, tuple(1 if i == axis else d for i, d in enumerate(shape))
        case "parts":
            axis = draw(st.integers(0, rank - 1))
            first, second = (1, shape[axis] - 1) if shape[axis] > 1 else (1, 0)
            result = TupleGetItem(op.split(x, [1], axis), 0 if second == 0 else 1)
            return result, tuple(second or first if i == axis else d for i, d in enumerate(shape))
        case "split":
            new = (shape[0], shape[1], 1, *shape[2:])
            return op.reshape(x, new), new
        case _:
            axis = draw(st.integers(0, rank - 1))
            if axis == rank - 1:
                return op.nn.relu(x), shape
            new = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
            return op.reshape(x, new), new


@st.composite
def image_programs(draw: st.DrawFn) -> tuple[IRModule, Sequence[int]]:
    """(module, shape of its one argument)"""
    shape = (draw(st.sampled_from([1, 2])), draw(st.sampled_from([2, 4])), SIDE, SIDE)
    x = var("x", shape=shape)
    known: list[tuple[Expr, tuple[int, ...]]] = [(x, shape)]
    for _ in range(draw(st.integers(2, 9))):
        result, new = _step(draw, known)
        if np.prod(new) <= 2048:
            known.append((result, new))
    last = known[-1][0]
    results = Tuple((last, op.nn.relu(draw(st.sampled_from(known))[0])))
    body = (
        results if draw(st.booleans()) else (last if isinstance(last, Call) else op.nn.relu(last))
    )
    return InferType()(IRModule({"main": Function((x,), body, None)})), shape


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(image_programs())
def test_random_networks_keep_their_meaning(made: tuple[IRModule, Sequence[int]]) -> None:
    module, shape = made
    after = InferType()(ConvertLayout()(module))
    assert_same_meaning(module, after, [array(*shape)], rtol=1e-4)


def test_transposition_of_nothing_becomes_a_view() -> None:
    """In a reshape, 0 is an extent here and not the sign that means "copy"."""
    module = program(
        """def @main(%x: Tensor[(0, 1, 1), float32]) {
          transpose(nn.relu(%x), axes=[2, 0, 1])
        }"""
    )
    transformed = ConvertLayout()(module)
    assert calls(transformed) == ["nn.relu", "reshape"]
    assert_same_meaning(module, transformed, (np.zeros((0, 1, 1), np.float32),))


@pytest.mark.slow
def test_volumes_have_their_channels_last() -> None:
    before = program(
        """def @main(%x: Tensor[(1, 3, 8, 8, 8), float32], %w: Tensor[(4, 3, 3, 3, 3), float32],
                    %v: Tensor[(4, 2, 2, 2, 2), float32], %b: Tensor[(4, 1, 1, 1), float32]) {
          %0 = nn.relu(add(nn.conv3d(%x, %w), %b));
          %1 = nn.max_pool3d(%0, pool_size=[2, 2, 2], strides=[2, 2, 2]);
          nn.conv3d_transpose(%1, %v, strides=[2, 2, 2]) }""",
        w=array(4, 3, 3, 3, 3), v=array(4, 2, 2, 2, 2), b=array(4, 1, 1, 1),
    )  # fmt: skip
    after = InferType()(ConvertLayout()(before))
    assert calls(after).count("transpose") == 2
    assert_same_meaning(before, after, [array(1, 3, 8, 8, 8)], rtol=1e-4)


@pytest.mark.parametrize(
    ("layout", "kernel", "shape", "weight"),
    [("NCW", "OIW", (2, 3, 9), (4, 3, 3)), ("NWC", "WIO", (2, 9, 3), (3, 3, 4))],
)
@pytest.mark.parametrize("length", ["9", "n", "?"])
def test_convolution_over_one_axis_gets_a_height(
    layout: str, kernel: str, shape: tuple[int, ...], weight: tuple[int, ...], length: str
) -> None:
    size = [length if letter == "W" else str(n) for letter, n in zip(layout, shape, strict=True)]
    before = program(
        f"""def @main(%x: Tensor[({", ".join(size)}), float32],
                      %w: Tensor[({", ".join(map(str, weight))}), float32]) {{
          nn.relu(nn.conv1d(%x, %w, strides=[2], padding=[1, 0], dilation=[2],
            data_layout="{layout}", kernel_layout="{kernel}")) }}""",
        w=array(*weight),
    )
    after = InferType()(ConvertLayout()(before))
    assert "nn.conv2d" in calls(after) and "nn.conv1d" not in calls(after)
    assert_same_meaning(before, after, [array(*shape)], rtol=1e-4)


def test_transposed_convolution_over_one_axis_gets_a_height() -> None:
    before = program(
        """def @main(%x: Tensor[(2, 6, 9), float32], %w: Tensor[(6, 2, 5), float32]) {
          nn.conv1d_transpose(%x, %w, strides=[3], padding=[1, 2], groups=3,
            output_padding=[2]) }""",
        w=array(6, 2, 5),
    )
    after = InferType()(ConvertLayout()(before))
    assert "nn.conv2d_transpose" in calls(after)
    assert_same_meaning(before, after, [array(2, 6, 9)], rtol=1e-4)


@pytest.mark.parametrize("length", ["9", "n"])
def test_convolutions_over_one_axis_are_transposed_at_their_ends_alone(length: str) -> None:
    before = program(
        f"""def @main(%x: Tensor[(2, 3, {length}), float32], %v: Tensor[(4, 3, 3), float32],
                      %w: Tensor[(5, 4, 3), float32], %b: Tensor[(4, 1), float32]) {{
          %0 = add(nn.conv1d(%x, %v, padding=[1, 1]), %b);
          %1 = add(%0, sin(multiply(%0, %b)));
          expand_dims(nn.relu(nn.conv1d(%1, %w)), axis=0) }}""",
        v=array(4, 3, 3), w=array(5, 4, 3), b=array(4, 1),
    )  # fmt: skip
    after = InferType()(ConvertLayout()(before))
    assert calls(after).count("transpose") == 2
    assert_same_meaning(before, after, [array(2, 3, 9)], rtol=1e-4)


@pytest.mark.parametrize(
    "middle",
    [
        "%2 = squeeze(expand_dims(%1, axis=4), axis=[4]);",
        """%0 = expand_dims(tanh(expand_dims(%1, axis=0, num_newaxis=2)), axis=3);
           %2 = squeeze(%0, axis=[0, 1, 3]);""",
        "%2 = reshape(nn.relu(squeeze(%1, axis=[0])), newshape=[1, 4, 3, 3]);",
    ],
)
def test_unit_dimensions_do_not_block_conversion(middle: str) -> None:
    assert converted(middle).count("transpose") == 2
