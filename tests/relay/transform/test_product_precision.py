"""ProductPrecision: in which type products are computed; and that compiled they are right, over
dtypes, sizes and targets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from pass_checks import Array, main_of, program

import ekiden
from ekiden import relay
from ekiden.ir.dtype import to_numpy
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.pass_context import PRODUCT_PRECISION_OPTION
from ekiden.ir.transform import PassContext
from ekiden.relay.expr import Call
from ekiden.relay.transform import InferType, ProductPrecision, ToMixedPrecision
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.runtime.errors import PassError
from ekiden.target import Target
from long_runs import share

BRIEF = Target.parse("llvm -mcpu=znver4 -mattr=avx512bf16")
PLAIN = Target.parse("llvm -mcpu=x86-64-v3")
ASKED = {PRODUCT_PRECISION_OPTION: "bfloat16"}
SMALL = ("float16", "bfloat16")
EPSILON = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Twice the distance of neighbours at 1, and a little for sums."""


def random(*shape: int, dtype: str = "float32") -> Array:
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return values.astype(to_numpy(dtype))


def layer(dtype: str, depth: int = 6, units: int = 5, out_dtype: str = "") -> IRModule:
    x = relay.var("x", shape=(3, depth), dtype=dtype)
    weight = relay.const(random(units, depth, dtype=dtype))
    body = relay.nn.dense(x, weight, out_dtype=out_dtype)
    return InferType()(IRModule.from_expr(relay.Function([x], body)))


def steps(module: IRModule) -> list[str]:
    """Each call below main as `op:dtype`."""
    result = evaluation_order(main_of(InferType()(module)).body)
    return [
        f"{e.op.name}:{e.checked_type.dtype}"
        for e in result
        if isinstance(e, Call) and isinstance(e.op, Op)
    ]


@pytest.mark.parametrize(
    ("dtype", "out_dtype", "target", "after"),
    [
        ("float32", "", BRIEF, ["nn.dense:float32"]),
        ("float64", "", BRIEF, ["nn.dense:float64"]),
        ("bfloat16", "float32", BRIEF, ["nn.dense:float32"]),
        ("bfloat16", "", BRIEF, ["nn.dense:float32", "cast:bfloat16"]),
        ("bfloat16", "float32", PLAIN, ["cast:float32"] * 2 + ["nn.dense:float32"]),
        ("bfloat16", "", PLAIN, ["cast:float32"] * 2 + ["nn.dense:float32", "cast:bfloat16"]),
        ("float16", "", BRIEF, ["cast:float32"] * 2 + ["nn.dense:float32", "cast:float16"]),
    ],
)  # fmt: skip
def test_dense_layer_precision_by_target(
    dtype: str, out_dtype: str, target: Target, after: list[str]
) -> None:
    assert steps(ProductPrecision(target)(layer(dtype, out_dtype=out_dtype))) == after


@pytest.mark.parametrize(
    ("dtype", "target", "after"),
    [
        ("float32", BRIEF, ["cast:bfloat16"] * 2 + ["nn.dense:float32"]),
        ("float32", PLAIN, ["nn.dense:float32"]),
        ("float64", BRIEF, ["nn.dense:float64"]),
    ],
)
def test_bfloat16_on_request(dtype: str, target: Target, after: list[str]) -> None:
    with PassContext(config=ASKED):
        assert steps(ProductPrecision(target)(layer(dtype))) == after


def test_only_bfloat16_can_be_asked_for() -> None:
    with (
        PassContext(config={PRODUCT_PRECISION_OPTION: "int8"}),
        pytest.raises(PassError, match="expected 'bfloat16' or '', got 'int8'"),
    ):
        ProductPrecision(BRIEF)(layer("float32"))


def test_rounded_operands_use_unrounded_source() -> None:
    module = ToMixedPrecision("float16")(layer("float32"))
    result = steps(ProductPrecision(BRIEF)(module))
    assert result == ["nn.dense:float32", "cast:float16"]


def test_products_of_computed_matrices_are_widened() -> None:
    module = program(
        """def @main(%x: Tensor[(2, 3, 4), bfloat16], %y: Tensor[(2, 5, 4), bfloat16]) {
          nn.batch_matmul(%x, %y) }"""
    )
    wide = ["cast:float32", "cast:float32", "nn.batch_matmul:float32", "cast:bfloat16"]
    assert steps(ProductPrecision(BRIEF)(module)) == wide


def near(actual: Array, expected: Array, dtype: str) -> None:
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    error = np.abs(actual.astype("float64") - expected).max(initial=0)
    assert error <= EPSILON[dtype] * scale, (error, scale)


def compiled(module: IRModule, *inputs: Array) -> Array:
    return np.asarray(ekiden.compile(module)(*inputs).numpy())


@share(4)
@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("out_dtype", ["", "float32"])
@pytest.mark.parametrize(
    ("rows", "depth", "units"),
    [(1, 1, 1), (3, 7, 17), (37, 16, 129), (0, 8, 16), (2, 0, 3)],
)
def test_dense_layers_match_reference(
    dtype: str, out_dtype: str, rows: int, depth: int, units: int
) -> None:
    n = relay.SizeVar("n")
    x = relay.var("x", relay.TensorType((n, depth), dtype))
    weight, data = random(units, depth, dtype=dtype), random(rows, depth, dtype=dtype)
    body = relay.nn.dense(x, relay.const(weight), out_dtype=out_dtype)
    result = compiled(IRModule.from_expr(relay.Function([x], body)), data)
    assert str(result.dtype) == (out_dtype or dtype) and result.shape == (rows, units)
    near(result, data.astype("float64") @ weight.astype("float64").T, out_dtype or dtype)


@pytest.mark.parametrize("dtype", SMALL)
def test_epilogue_joins_the_layer(dtype: str) -> None:
    x = relay.var("x", shape=(2, 3, 9), dtype=dtype)
    weight, bias = random(20, 9, dtype=dtype), random(20, dtype=dtype)
    product = relay.nn.dense(x, relay.const(weight))
    body = relay.nn.relu(relay.nn.bias_add(product, relay.const(bias), axis=-1))
    executable = ekiden.compile(IRModule.from_expr(relay.Function([x], body)))
    data = random(2, 3, 9, dtype=dtype)
    wide = data.astype("float64") @ weight.astype("float64").T + bias.astype("float64")
    near(np.asarray(executable(data).numpy()), np.maximum(wide, 0), dtype)


CONV = "%x: Tensor[(1, 3, 7, 9), {0}], %y: Tensor[(4, 3, 3, 3), {0}]"
PRODUCTS: dict[str, tuple[str, Callable[[Array, Array], Array]]] = {
    "nn.batch_matmul(%x, %y)": (
        "%x: Tensor[(2, 5, 7), {0}], %y: Tensor[(2, 3, 7), {0}]",
        lambda x, y: x @ y.transpose(0, 2, 1),
    ),
    "nn.matmul(%x, %y)": ("%x: Tensor[(5, 7), {0}], %y: Tensor[(7, 3), {0}]", np.matmul),
    "nn.dense(%x, %y)": ("%x: Tensor[(5, 7), {0}], %y: Tensor[(3, 7), {0}]", lambda x, y: x @ y.T),
    "nn.conv2d(%x, %y)": (
        CONV,
        lambda x, y: np.einsum(
            "nchwij,ocij->nohw", np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3)), y
        ),
    ),
}


@share(4)
@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("body", PRODUCTS)
def test_other_products_match_reference(body: str, dtype: str) -> None:
    header, meaning = PRODUCTS[body]
    module = program(f"def @main({header.format(dtype)}) {{ {body} }}")
    shapes = [[int(str(d)) for d in p.checked_type.shape] for p in main_of(module).params]
    inputs = [random(*shape, dtype=dtype) for shape in shapes]
    result = compiled(module, *inputs)
    assert str(result.dtype) == dtype
    near(result, meaning(*(i.astype("float64") for i in inputs)), dtype)


@pytest.mark.parametrize("target", ["llvm", "llvm -mcpu=x86-64-v3", "c"])
def test_layer_asked_for_in_bfloat16(target: str) -> None:
    module = layer("float32", 50, 33)
    data = random(3, 50)
    with PassContext(config=ASKED):
        executable = ekiden.compile(module, target)
    weight = random(33, 50)
    near(np.asarray(executable(data).numpy()), data.astype("float64") @ weight.T, "bfloat16")
