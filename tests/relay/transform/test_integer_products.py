"""IntegerProducts: a product of what was bytes is one of the quantised dialect, in whichever way
a program says that it was bytes.
"""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import program

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import PassContext
from ekiden.relay.expr import Call
from ekiden.relay.transform import InferType
from ekiden.relay.transform.quantization.integer_products import IntegerProducts
from ekiden.relay.visitor import post_order

pytestmark = pytest.mark.quick


def products(module: IRModule) -> list[str]:
    """The names of the products in a module behind the pass."""
    transformed = InferType()(IntegerProducts()(module))
    calls = [e for e in post_order(transformed["main"]) if isinstance(e, Call)]
    rows = [(c.op.name, c.op.definition) for c in calls if hasattr(c.op, "definition")]
    return [name for name, row in rows if row.macs is not None]


DATA = "%x: Tensor[(4, 8), uint8], %w: Tensor[(6, 8), int8]"


def body(text: str, params: str = DATA) -> IRModule:
    return program(f"def @main({params}) {{ {text} }}")


@pytest.mark.parametrize(
    "text",
    [
        "nn.dense(cast(%x, dtype='int32'), cast(%w, dtype='int32'))",
        "nn.dense(subtract(cast(%x, dtype='int32'), 3), cast(%w, dtype='int32'))",
        "nn.dense(add(cast(%x, dtype='int32'), -3), subtract(cast(%w, dtype='int32'), 1))",
        "nn.dense(cast(subtract(cast(%x, dtype='int16'), 3i16), dtype='int32'),"
        " cast(%w, dtype='int32'))",
        "nn.dense(multiply(cast(%x, dtype='float32'), 0.5f), cast(%w, dtype='float32'))",
        "nn.dense(multiply(subtract(cast(%x, dtype='float32'), 3f), 0.5f),"
        " multiply(0.1f, cast(%w, dtype='float32')))",
        "nn.dense(qnn.dequantize(%x, 0.5f, 3), qnn.dequantize(%w, 0.1f, 0))",
        "nn.matmul(qnn.dequantize(%x, 0.5f, 3), transpose(qnn.dequantize(%w, 0.1f, 0)))",
        "nn.dense(qnn.dequantize(%x, 0.5f, 3), transpose(transpose(qnn.dequantize(%w, 0.1f, 0))))",
    ],
)
def test_dequantized_int8_operands_are_recognized(text: str) -> None:
    text = text.replace("'", '"')
    assert products(body(text)) == ["qnn.dense"]


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("nn.dense(%f, cast(%w, dtype='float32'))", "%f: Tensor[(4, 8), float32], " + DATA),
        ("nn.dense(clip(%f, a_min=0f, a_max=255f), cast(%w, dtype='float32'))",
         "%f: Tensor[(4, 8), float32], " + DATA),
        ("nn.dense(add(cast(%x, dtype='float32'), 0.5f), cast(%w, dtype='float32'))", DATA),
        ("nn.dense(multiply(cast(%x, dtype='float32'), %s), cast(%w, dtype='float32'))",
         "%s: Tensor[(8), float32], " + DATA),
        ("nn.dense(cast(%i, dtype='float32'), cast(%w, dtype='float32'))",
         "%i: Tensor[(4, 8), int16], " + DATA),
    ],
    ids=["floats", "not whole", "half a step", "a scale along the sum", "int16"],
)  # fmt: skip
def test_non_int8_products_are_unchanged(text: str, params: str) -> None:
    assert products(body(text.replace("'", '"'), params)) == ["nn.dense"]


def test_rounded_and_clipped_floats_are_bytes() -> None:
    """Fake quantisation keeps floats, whose values are integers times a scale."""
    levels = "clip(add(round(divide(%x, 0.5f)), 3f), a_min=0f, a_max=255f)"
    data = f"multiply(subtract({levels}, 3f), 0.5f)"
    text = f'nn.dense({data}, multiply(cast(%w, dtype="float32"), 0.1f))'
    module = body(text, "%x: Tensor[(4, 8), float32], %w: Tensor[(6, 8), int8]")
    assert products(module) == ["qnn.dense"]


def test_per_axis_scales_follow_transposes() -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(5, 8), dtype="int8")
    rows = relay.const(rng.random((5, 1)).astype("float32"))
    columns = relay.const(rng.random((1, 6)).astype("float32"))
    weight = relay.const(rng.integers(-128, 128, (8, 6)).astype("int8"))
    data = relay.multiply(relay.cast(x, "float32"), rows)
    matrix = relay.multiply(relay.cast(weight, "float32"), columns)
    tensor = relay.nn.dense(data, relay.transpose(matrix))
    module = IRModule.from_expr(relay.Function([x], tensor))
    assert products(InferType()(module)) == ["qnn.dense"]
    levels = rng.integers(-128, 128, (5, 8)).astype("int8")
    expected = (levels * rows.data) @ (weight.data * columns.data)
    actual = ekiden.compile(module)(levels).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-3)


def test_border_is_the_zero_point() -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(1, 4, 6, 6), dtype="uint8")
    weight = relay.const(rng.integers(-128, 128, (4, 4, 3, 3)).astype("int8"))
    data = relay.qnn.op.dequantize(x, relay.const(0.5), relay.const(9))
    data = relay.nn.pad(data, ((0, 0), (0, 0), (1, 1), (1, 1)))
    kernel = relay.qnn.op.dequantize(weight, relay.const(0.25), relay.const(0))
    tensor = relay.nn.conv2d(data, kernel)
    module = IRModule.from_expr(relay.Function([x], tensor))
    assert products(InferType()(module)) == ["qnn.conv2d"]
    levels = rng.integers(0, 256, (1, 4, 6, 6)).astype("uint8")
    expected = relay.create_executor("debug", module).evaluate()(levels).numpy()
    np.testing.assert_array_equal(ekiden.compile(module)(levels).numpy(), expected)


def test_context_may_ask_for_the_sums_of_floats() -> None:
    module = body("nn.dense(qnn.dequantize(%x, 0.5f, 3), qnn.dequantize(%w, 0.1f, 0))")
    with PassContext(config={"relay.float_rewrites": "exact"}):
        assert products(module) == ["nn.dense"]
