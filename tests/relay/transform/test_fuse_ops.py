"""FuseOps: which operators share a kernel, class by class."""

import pytest
from pass_checks import calls, check, groups, program

from ekiden.relay.transform import FuseOps

pytestmark = pytest.mark.quick

X = "%x: Tensor[(4, 8), float32]"


def fused(text: str) -> list[list[str]]:
    return groups(FuseOps()(program(text)))


def test_group_is_a_primitive_function_that_is_called() -> None:
    check(
        FuseOps(),
        f"def @main({X}) {{ exp(tanh(%x)) }}",
        f"""def @main({X}) {{
          fn (%p: Tensor[(4, 8), float32], Primitive=1) -> Tensor[(4, 8), float32] {{
            exp(tanh(%p)) }}(%x) }}""",
    )


def test_elementwise_chain_is_one_group() -> None:
    assert fused(f"def @main({X}) {{ exp(tanh(nn.relu(%x))) }}") == [["nn.relu", "tanh", "exp"]]


def test_kernel_argument_limit_is_respected() -> None:
    names = [f"%x{n}" for n in range(10)]
    argument = ", ".join(f"{n}: Tensor[(4, 8), float32]" for n in names)
    text = names[0]
    for name in names[1:]:
        text = f"add({text}, {name})"
    module = program(f"def @main({argument}) {{ {text} }}")
    result = [len(g) for g in groups(FuseOps(most_inputs=4)(module))]
    assert result == [3, 3, 3]  # of 4 inputs each: a result, and three more
    assert groups(FuseOps()(module)) == [["add"] * 9]


def test_convolution_fuses_elementwise_epilogue() -> None:
    text = """def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 1, 1), float32],
                        %b: Tensor[(4, 1, 1), float32], %r: Tensor[(1, 4, 8, 8), float32]) {
      nn.relu(add(add(nn.conv2d(%x, %w), %b), %r)) }"""
    assert fused(text) == [["nn.conv2d", "add", "add", "nn.relu"]]


def test_convolution_does_not_fuse_its_inputs() -> None:
    text = """def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 1, 1), float32]) {
      nn.conv2d(tanh(%x), %w) }"""
    assert fused(text) == [["tanh"], ["nn.conv2d"]]


def test_two_convolutions_stay_apart() -> None:
    text = """def @main(%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(4, 4, 1, 1), float32]) {
      add(nn.conv2d(%x, %w), nn.conv2d(tanh(%x), %w)) }"""
    result = fused(text)
    assert sorted(map(sorted, result)) == [["add", "nn.conv2d"], ["nn.conv2d"], ["tanh"]]


def test_broadcast_epilogue_is_not_fused() -> None:
    text = """def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(1, 3, 1, 1), float32],
                        %b: Tensor[(1, 4, 1, 1), float32]) { add(nn.conv2d(%x, %w), %b) }"""
    assert fused(text) == [["nn.conv2d"], ["add"]]


def test_elementwise_goes_into_a_reduction() -> None:
    assert fused(f"def @main({X}) {{ sum(tanh(%x), axis=[1]) }}") == [["tanh", "sum"]]


def test_reduction_is_not_fused_into_consumers() -> None:
    text = f"def @main({X}) {{ tanh(sum(%x, axis=[1])) }}"
    assert fused(text) == [["sum"], ["tanh"]]


def test_injective_operators_are_one_group() -> None:
    text = f"def @main({X}) {{ tanh(transpose(exp(%x), axes=[1, 0])) }}"
    assert fused(text) == [["exp", "transpose", "tanh"]]


def test_reshape_stays_alone_and_is_marked() -> None:
    module = FuseOps()(program(f"def @main({X}) {{ tanh(reshape(exp(%x), newshape=[32])) }}"))
    assert groups(module) == [["exp"], ["reshape"], ["tanh"]]
    assert str(module).count("relay.reshape_only=1") == 1


def test_diamond_is_fused_into_one_group() -> None:
    text = f"def @main({X}) {{ %0 = tanh(%x); add(exp(%0), negative(%0)) }}"
    assert fused(text) == [["tanh", "exp", "negative", "add"]]


def test_diamond_with_an_anchor_inside_stays_open() -> None:
    text = """def @main(%x: Tensor[(4, 4), float32], %w: Tensor[(4, 4), float32]) {
      %0 = tanh(%x); add(nn.dense(%0, %w), exp(%0)) }"""
    result = sorted(map(sorted, fused(text)))
    assert result == [["add", "exp", "nn.dense"], ["tanh"]] or result == [
        ["add", "nn.dense"],
        ["exp"],
        ["tanh"],
    ]


def test_concatenate_takes_the_injective_operators_before_it() -> None:
    text = f"def @main({X}) {{ concatenate((tanh(%x), exp(%x)), axis=1) }}"
    assert fused(text) == [["tanh", "exp", "concatenate"]]


def test_concatenate_does_not_take_anchors() -> None:
    text = """def @main(%x: Tensor[(4, 4), float32], %w: Tensor[(4, 4), float32]) {
      concatenate((nn.dense(%x, %w), tanh(%x)), axis=1) }"""
    result = fused(text)
    assert ["nn.dense"] in result and len(result) >= 2


def test_split_is_a_kernel_with_several_results() -> None:
    text = f"""def @main({X}) {{
      %0 = split(tanh(%x), indices_or_sections=[4], axis=1); add(%0.0, %0.1) }}"""
    assert [name for group in fused(text) for name in group] == ["tanh", "split", "add"]


def test_returned_value_ends_its_group() -> None:
    text = f"def @main({X}) {{ %0 = tanh(%x); (%0, exp(%0)) }}"
    assert fused(text) == [["tanh"], ["exp"]]


def test_value_used_in_a_branch_ends_its_group() -> None:
    text = f"""def @main(%c: bool, {X}) {{
      %0 = tanh(%x); if (%c) {{ exp(%0) }} else {{ negative(%0) }} }}"""
    assert sorted(fused(text)) == [["exp"], ["negative"], ["tanh"]]


def test_scalar_constant_is_inside_and_an_array_is_an_argument() -> None:
    module = FuseOps()(
        program(f"def @main({X}, %w: Tensor[(8,), float32]) {{ add(multiply(%x, 2f), %w) }}")
    )
    text = str(module)
    assert "multiply(%p0, 2f)" in text and "add(%0, %p1)" in text


def test_symbolic_dimensions_that_are_equal_fuse() -> None:
    text = """def @main(%x: Tensor[(n, 8), float32], %w: Tensor[(8, 8), float32],
                        %y: Tensor[(n, 8), float32]) { add(nn.dense(%x, %w), %y) }"""
    assert fused(text) == [["nn.dense", "add"]]


def test_fusion_groups_are_bounded() -> None:
    body = "%x"
    for _ in range(600):
        body = f"tanh({body})"
    module = FuseOps()(program(f"def @main({X}) {{ {body} }}"))
    sizes = [len(g) for g in groups(module)]
    assert sum(sizes) == 600 and max(sizes) <= 256
    assert calls(module).count("tanh") == 600


def test_operators_without_a_kernel_are_left() -> None:
    module = FuseOps()(program(f"def @main({X}) {{ vm.shape_of(tanh(%x)) }}"))
    assert groups(module) == [["tanh"]] and calls(module) == ["tanh", "vm.shape_of"]


def winograd_and_pool(pool: str, size: int = 8, between: str = "nn.relu(%0)") -> str:
    return f"""def @main(%x: Tensor[(1, {size}, 8, 16), float32],
                      %w: Tensor[(36, 1, 16, 16), float32]) {{
      %0 = nn.contrib_conv2d_winograd_without_weight_transform(%x, %w, tile_size=4, channels=16,
        padding=[1, 1, 1, 1]);
      %1 = {between};
      tanh(nn.max_pool2d(%1, {pool}, layout="NHWC")) }}"""


WINDOWS = "pool_size=[2, 2], strides=[2, 2]"
CONV = "nn.contrib_conv2d_winograd_without_weight_transform"


def test_windows_of_two_end_the_group_of_a_winograd_convolution() -> None:
    assert fused(winograd_and_pool(WINDOWS)) == [[CONV, "nn.relu", "nn.max_pool2d"], ["tanh"]]
    residual = winograd_and_pool(WINDOWS, between="add(%x, %0)")
    assert fused(residual) == [[CONV, "add", "nn.max_pool2d"], ["tanh"]]


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        ("pool_size=[3, 3], strides=[2, 2]", 8),
        ("pool_size=[2, 2], strides=[1, 1]", 8),
        ("pool_size=[2, 2], strides=[2, 2], padding=[1, 1, 1, 1]", 8),
        (WINDOWS, 9),
    ],
)
def test_other_windows_have_a_kernel_of_their_own(pool: str, size: int) -> None:
    result = fused(winograd_and_pool(pool, size))
    assert result == [[CONV, "nn.relu"], ["nn.max_pool2d", "tanh"]]


def test_shared_input_pooling_is_not_fused() -> None:
    text = f"""def @main(%x: Tensor[(1, 8, 8, 16), float32],
                       %w: Tensor[(36, 1, 16, 16), float32]) {{
      %0 = {CONV}(%x, %w, tile_size=4, channels=16, padding=[1, 1, 1, 1]);
      %1 = nn.relu(%0);
      (%1, nn.max_pool2d(%1, {WINDOWS}, layout="NHWC")) }}"""
    assert fused(text) == [[CONV, "nn.relu"], ["nn.max_pool2d"]]


def test_stop_fusion_separates_kernels() -> None:
    assert fused(f"def @main({X}) {{ exp(annotation.stop_fusion(tanh(%x))) }}") == [
        ["tanh"],
        ["exp"],
    ]
    text = f"""def @main({X}) {{
      let %a = annotation.stop_fusion(%x);
      (annotation.stop_fusion(annotation.stop_fusion(%a)), exp(%a)) }}"""
    check(
        FuseOps(),
        text,
        f"""def @main({X}) {{
          let %a = %x;
          (%a, fn (%p: Tensor[(4, 8), float32], Primitive=1) -> Tensor[(4, 8), float32] {{
            exp(%p) }}(%a)) }}""",
    )
