"""FuseAttention: exporters' attention patterns become one operator."""

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, program

from ekiden.ir.module import IRModule
from ekiden.relay.expr import Call
from ekiden.relay.op.nn.dot_product_attention import AttentionAttrs
from ekiden.relay.transform import FuseAttention, InferType
from ekiden.relay.visitor import post_order

pytestmark = pytest.mark.quick

RNG = np.random.default_rng(0)
BATCH, HEADS, ROWS, DEPTH = 2, 3, 5, 4
FLAT, FOUR = f"{BATCH * HEADS}, {ROWS}", f"{BATCH}, {HEADS}, {ROWS}"
INPUTS = ", ".join(f"%{n}: Tensor[({BATCH}, {ROWS}, {HEADS}, {DEPTH}), float32]" for n in "xyz")
HEAD = f"reshape(transpose(%{{}}, axes=[{{}}]), newshape=[{BATCH * HEADS}, {{}}])"
QUERY = HEAD.format("x", "0, 2, 1, 3", f"{ROWS}, {DEPTH}")
KEY = HEAD.format("y", "0, 2, 1, 3", f"{ROWS}, {DEPTH}")
TURNED_KEY = HEAD.format("y", "0, 2, 3, 1", f"{DEPTH}, {ROWS}")
VALUE = HEAD.format("z", "0, 2, 1, 3", f"{ROWS}, {DEPTH}")
SCORES = f"reshape(nn.batch_matmul({QUERY}, {KEY}), newshape=[{FOUR}, {ROWS}])"


def written(scores: str, after: str = "{}", more: str = "", result: str = "%0") -> str:
    """A program: `scores` of four axes, softmax, the values; `after` is done to the product."""
    product = f"nn.batch_matmul(reshape(%0, newshape=[{FLAT}, {ROWS}]), {VALUE}, transpose_b=False)"
    return f"""def @main({INPUTS}{more}) {{ %0 = nn.softmax({scores}); {after.format(product)} }}"""


def inputs(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    item = (BATCH, ROWS, HEADS, DEPTH)
    return [RNG.normal(size=s).astype("float32") for s in (item, item, item, *shapes)]


def fused(before: IRModule, args: list[np.ndarray]) -> AttentionAttrs:
    """The attributes of the one attention that a program becomes."""
    after = InferType()(FuseAttention()(before))
    assert_same_meaning(before, after, args)
    names = calls(after)
    assert not {"nn.softmax", "nn.batch_matmul", "transpose"} & set(names), names
    (result,) = (
        e.attrs for e in post_order(after["main"])
        if isinstance(e, Call) and isinstance(e.attrs, AttentionAttrs)
    )  # fmt: skip
    return result


def test_transpositions_become_layouts() -> None:
    attrs = fused(program(written(f"divide({SCORES}, 2f)")), inputs())
    assert attrs.scale == 0.5
    assert attrs.heads.layouts == ("bshd", "bshd", "bshd", "bhsd")


def test_attention_writes_requested_layout() -> None:
    joined = f"transpose(reshape({{}}, newshape=[{FOUR}, {DEPTH}]), axes=[0, 2, 1, 3])"
    attrs = fused(program(written(SCORES, joined)), inputs())
    assert attrs.heads.layouts == ("bshd",) * 4 and attrs.scale == 1.0


def test_transposed_key_is_fused() -> None:
    turned = f"nn.batch_matmul({QUERY}, {TURNED_KEY}, transpose_b=False)"
    attrs = fused(program(written(f"reshape({turned}, newshape=[{FOUR}, {ROWS}])")), inputs())
    assert attrs.key_layout == "bshd"


@pytest.mark.parametrize(
    "shape", [(BATCH, 1, 1, ROWS), (HEADS, ROWS, ROWS), (ROWS,), (1, 1, ROWS, 1)]
)
def test_additive_mask_is_fused(shape: tuple[int, ...]) -> None:
    text = written(f"add(%m, multiply({SCORES}, 0.25f))", more=f", %m: Tensor[{shape}, float32]")
    assert fused(program(text), inputs(shape)).scale == 0.25


def test_consecutive_additive_masks_are_merged() -> None:
    more = f", %m: Tensor[({BATCH}, 1, 1, {ROWS}), float32], %n: Tensor[({ROWS}, {ROWS}), float32]"
    fused(program(written(f"add(add({SCORES}, %m), %n)", more=more)),
          inputs((BATCH, 1, 1, ROWS), (ROWS, ROWS)))  # fmt: skip


@pytest.mark.parametrize("sides", ["{}, -1e30f", "-1e30f, {}"])
def test_where_mask_is_fused(sides: str) -> None:
    choice = f"where(%m, {sides.format(SCORES)})"
    before = program(written(choice, more=f", %m: Tensor[({ROWS}, {ROWS}), bool]"))
    seen = np.tri(ROWS, dtype=bool)
    fused(before, [*inputs(), seen if sides.startswith("{") else ~seen])


def test_fully_masked_rows_are_zero() -> None:
    """As Attention of ONNX is defined: a row that sees no key gives zeros."""
    text = written(SCORES, more=f", %m: Tensor[({ROWS}, 1), bool]")
    text = text.replace("; nn", "; %1 = where(%m, 0f, %0); nn", 1)
    before = program(text.replace("reshape(%0", "reshape(%1"))
    fused(before, [*inputs(), np.arange(ROWS)[:, None] < 2])


@pytest.mark.parametrize("hidden", ["-inff", "-1e30f"])
def test_nan_probabilities_are_zeroed(hidden: str) -> None:
    """As torch.export writes what scaled_dot_product_attention does with rows without keys."""
    choice = f"where(%m, {SCORES}, {hidden})"
    text = written(choice, more=f", %m: Tensor[({ROWS}, {ROWS}), bool]")
    text = text.replace("; nn", "; %1 = where(isnan(%0), 0f, %0); nn", 1)
    args = [*inputs(), np.tri(ROWS, k=-2, dtype=bool)]
    before = program(text.replace("reshape(%0", "reshape(%1"))
    assert fused(before, args).nan_as_zero
    args[0][0, 3] = np.nan  # all shares of a row
    fused(before, args)
    args[2][0, 4, 1, 2] = np.nan  # a value that no row may hide
    fused(before, args)


def test_query_and_key_scales_are_fused() -> None:
    product = f"nn.batch_matmul(multiply({QUERY}, 0.5f), multiply(3f, {KEY}))"
    attrs = fused(program(written(f"reshape({product}, newshape=[{FOUR}, {ROWS}])")), inputs())
    assert attrs.scale == 1.5


def test_heads_as_batch_are_fused() -> None:
    """As torch.nn.MultiheadAttention is exported: [sequence, batch * heads, depth], turned."""
    kind = f"Tensor[({ROWS}, 6, {DEPTH}), float32]"
    turned = [f"transpose(%{n}, axes=[1, 0, 2])" for n in "xyz"]
    text = f"""def @main(%x: {kind}, %y: {kind}, %z: {kind}) {{
        %0 = nn.softmax(nn.batch_matmul({turned[0]}, {turned[1]}));
        transpose(nn.batch_matmul(%0, {turned[2]}, transpose_b=False), axes=[1, 0, 2]) }}"""
    args = [RNG.normal(size=(ROWS, 6, DEPTH)).astype("float32") for _ in range(3)]
    assert fused(program(text), args).heads.layouts == ("sbhd",) * 4


@pytest.mark.parametrize(
    "text",
    [
        written(f"multiply(add({SCORES}, 1f), 2f)"),  # a factor of what was added
        written(f"where(%m, {SCORES}, -5f)", more=f", %m: Tensor[({ROWS}, {ROWS}), bool]"),
        written(SCORES, "({}, %0)"),  # the shares are a result too
        written(SCORES)
        .replace("; nn", "; %1 = where(isnan(%0), 1f, %0); nn", 1)
        .replace("reshape(%0", "reshape(%1"),
        written(SCORES).replace("); nn", ", axis=2); nn", 1),
    ],
)
def test_unmatched_attention_stays(text: str) -> None:
    before = program(text)
    assert "nn.attention" not in calls(FuseAttention()(before))
